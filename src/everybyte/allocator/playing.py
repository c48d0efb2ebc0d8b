"""Play a training step's requests through the allocator: what it reserves, and why that is more than the tensors."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

from ..common.tables import Shown, Table, sized
from ..units import text
from .settings import Settings
from .simulator import Allocator, OutOfMemory

#: The number of steps played: after the second, the same requests get the same blocks again.
STEPS = 3


class Request(NamedTuple):
    """Allocate `bytes` for `key` on a stream; with 0 bytes free the key's block."""

    key: int
    bytes: int
    stream: int = 0


@dataclass(frozen=True)
class Requests:
    """A process's requests to its allocator, in order.

    A key may be allocated again before it is freed: its first block is freed first.

    Attributes:
        beginning: until the first step: weights, and other lasting tensors. first: the first step, in which the optimizer's
            states are made. steady: each step after it.
    """

    beginning: Sequence[Request]
    first: Sequence[Request]
    steady: Sequence[Request]


@dataclass(frozen=True, eq=False)
class Reserved(Shown):
    """The result of an allocator for the requests of some steps.

    Attributes:
        settings: of the allocator. steps: the most bytes reserved in each step, the beginning first. reserved: the most of all.
        requested, rounding, unsplit, cached: at the moment of the last step at which the most is allocated, the bytes asked for;
            what the multiples of 512 B add; what stays with blocks that are not split; what is kept free. They sum to `standing`.
        largest_free: the largest free block then. segments: how many stand then.
        live: (requested, allocated, reserved) after each request of the last step. allocator: as it is at the end.
        failed: where the memory ran out; None where it did not.
    """

    settings: Settings
    steps: list[int]
    reserved: int
    requested: int
    rounding: int
    unsplit: int
    cached: int
    largest_free: int
    segments: int
    live: list[tuple[int, int, int]]
    allocator: Allocator = field(repr=False)
    failed: OutOfMemory | None = None

    @property
    def allocated(self) -> int:
        """The most bytes in blocks that serve requests, in the last step."""
        return self.requested + self.rounding + self.unsplit

    @property
    def standing(self) -> int:
        """Bytes that are reserved when the most is allocated."""
        return self.allocated + self.cached

    @cached_property
    def overhead(self) -> float:
        """Reserved above requested, as a share of what is requested."""
        return self.reserved / self.requested - 1

    def table(self) -> Table:
        """The terms between requested and reserved bytes, each by its name."""
        rows = [
            sized("requested: tensors, and cuBLAS's workspaces", self.requested),
            sized("+ each rounded up to a multiple of 512 B", self.rounding),
            sized("+ rests that stay with a block that is not split", self.unsplit),
            sized("= allocated, at its peak", self.allocated),
            sized(f"+ free in {self.segments:,} segments, the largest piece {text(self.largest_free)}", self.cached),
            sized("= reserved then", self.standing),
        ]
        if self.reserved > self.standing:
            rows.append(sized("reserved at most, in all steps", self.reserved))
        said = self.settings.text() or "PyTorch's defaults"
        return Table(["", "bytes", "size"], rows, f"Simulated, {said}")

    def __repr__(self):
        end = ", out of memory" if self.failed else ""
        return f"Reserved({self.reserved:,} B reserved, {self.allocated:,} B allocated, {self.requested:,} B requested{end})"


def play(
    requests: Requests,
    configuration: Settings | str = "",
    memory: int | None = None,
    total: int | None = None,
    steps: int = STEPS,
    clear: bool = False,
) -> Reserved:
    """Play the beginning and some steps through an allocator.

    It assumes that other streams are done with a block at once, and that the driver gives the lowest addresses first.

    Args:
        configuration, memory, total: as for `Allocator`. steps: how many, with the first. clear: whether the cache is emptied
            after each, as by `torch.cuda.empty_cache()`.
    """
    player = _Measured(Allocator(configuration, memory, total))
    parts = [requests.beginning, *([requests.first, *[requests.steady] * (steps - 1)] if steps else [])]
    highest, failed, before = [], None, None
    for number, part in enumerate(parts, 1):
        try:
            highest.append(player.measure(part))
            if clear:
                player.allocator.empty_cache()
        except OutOfMemory as error:
            highest.append(player.allocator.reserved)
            failed = error
            player.look()
            break
        stood, before = before, (player.state(), player.rounded, len(player.allocator.log))
        if part is requests.steady and stood == before:
            highest += highest[-1:] * (len(parts) - number)  # each step from here on begins and ends the same
            break
    return Reserved(
        settings=player.allocator.settings, steps=highest, reserved=max(highest), live=player.live, allocator=player.allocator, failed=failed,
        **player.highest,
    )  # fmt: skip


class Player:
    """An allocator that serves requests, and where each key's blocks are, the oldest first. rounded: bytes of what they hold, rounded."""

    def __init__(self, allocator: Allocator):
        self.allocator, self.rounded = allocator, 0
        self._here: dict[int, list[tuple[int, int]]] = {}  # of each key (address, bytes rounded)

    def run(self, requests: Iterable[Request]) -> Iterator[int]:
        """Serve requests, one after another; after each, its bytes, 0 where it frees."""
        allocator, here = self.allocator, self._here
        for key, size, stream in requests:
            if size:
                block = allocator.settings.rounded(size)
                here.setdefault(key, []).append((allocator.malloc(size, stream), block))
                self.rounded += block
            elif here.get(key):
                address, block = here[key].pop(0)
                self.rounded -= block
                allocator.free(address)
            yield size

    def state(self) -> object:
        """All that what follows depends on; no two are equal where it depends on ages."""
        if self.allocator.settings.garbage_collection_threshold:
            return object()
        free = {key: (tuple(pool.free), tuple(pool.unmapped)) for key, pool in self.allocator.pools.items()}
        return {key: tuple(address for address, _ in places) for key, places in self._here.items() if places}, free


class _Measured(Player):
    """A player that notes what `Reserved` has of a part. live: after each request; highest: when the most was allocated."""

    def __init__(self, allocator):
        super().__init__(allocator)
        self.live, self.highest = [], {}

    def measure(self, requests):
        """Run one part; return the most bytes reserved in it."""
        allocator, most, top = self.allocator, self.allocator.reserved, -1
        self.live = live = []
        for _ in self.run(requests):
            most = max(most, allocator.reserved)
            if allocator.allocated > top:
                top = allocator.allocated
                self.look()
            live.append((allocator.requested, allocator.allocated, allocator.reserved))
        return most

    def look(self):
        """Note the terms of what is reserved now."""
        allocator = self.allocator
        self.highest = {
            "requested": allocator.requested,
            "rounding": self.rounded - allocator.requested,
            "unsplit": allocator.allocated - self.rounded,
            "cached": allocator.reserved - allocator.allocated,
            "largest_free": max((pool.free[-1][0] for pool in allocator.pools.values() if pool.free), default=0),
            "segments": len(allocator.segments),
        }
