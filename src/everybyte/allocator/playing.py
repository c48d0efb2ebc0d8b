"""Play a training step's requests through the allocator: what it reserves, and why that is more than the tensors."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

from ..common.tables import Shown, Table, sized
from ..units import text
from .settings import Settings, settings
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
    chosen = settings(configuration) if isinstance(configuration, str) else configuration
    player = _Player(Allocator(chosen, memory, total))
    parts = [requests.beginning, *([requests.first, *[requests.steady] * (steps - 1)] if steps else [])]
    highest, failed, before = [], None, None
    for number, part in enumerate(parts, 1):
        try:
            highest.append(player.run(part))
            if clear:
                player.allocator.empty_cache()
        except OutOfMemory as error:
            highest.append(player.allocator.reserved)
            failed = error
            player.look()
            break
        stood, before = before, player.state()
        if part is requests.steady and stood == before:
            highest += highest[-1:] * (len(parts) - number)  # each step from here on begins and ends the same
            break
    return Reserved(
        settings=chosen, steps=highest, reserved=max(highest), live=player.live, allocator=player.allocator, failed=failed,
        **player.highest,
    )  # fmt: skip


def condition(allocator: Allocator, here: Mapping[int, Sequence]) -> object:
    """All that what follows depends on; no two are equal where it depends on ages. here: what each key has."""
    if allocator.settings.garbage_collection_threshold:
        return object()
    free = {key: (tuple(pool.free), tuple(pool.unmapped)) for key, pool in allocator.pools.items()}
    return {key: tuple(places) for key, places in here.items() if places}, free


class _Player:
    def __init__(self, allocator):
        self.allocator, self.live, self.highest = allocator, [], {}
        self._here: dict[int, list[tuple[int, int]]] = {}  # of each key (address, bytes rounded), the oldest first
        self._rounded = 0

    def run(self, requests: Iterable[Request]) -> int:
        """Run one part; return the most bytes reserved in it. Note the state when the most was allocated."""
        allocator, here, most, top = self.allocator, self._here, self.allocator.reserved, -1
        self.live = live = []
        for key, size, stream in requests:
            if size:
                block = allocator.settings.rounded(size)
                here.setdefault(key, []).append((allocator.malloc(size, stream), block))
                self._rounded += block
                most = max(most, allocator.reserved)
                if allocator.allocated > top:
                    top = allocator.allocated
                    self.look()
            elif here.get(key):
                address, block = here[key].pop(0)
                self._rounded -= block
                allocator.free(address)
            live.append((allocator.requested, allocator.allocated, allocator.reserved))
        return most

    def state(self):
        """All that what follows depends on, and how often the driver was asked."""
        return condition(self.allocator, self._here), len(self.allocator.log)

    def look(self):
        """Note the terms of what is reserved now."""
        allocator = self.allocator
        self.highest = {
            "requested": allocator.requested,
            "rounding": self._rounded - allocator.requested,
            "unsplit": allocator.allocated - self._rounded,
            "cached": allocator.reserved - allocator.allocated,
            "largest_free": max((pool.free[-1][0] for pool in allocator.pools.values() if pool.free), default=0),
            "segments": len(allocator.segments),
        }
