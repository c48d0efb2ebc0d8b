"""Play an epoch: steps of varying shapes, one after another, through one allocator."""

from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass

from .playing import Player, Request
from .settings import Settings
from .simulator import Allocator, OutOfMemory


@dataclass(frozen=True)
class Epoch:
    """What the allocator has in each step.

    Attributes:
        reserved, allocated, requested: the most bytes in each step. kept: bytes reserved at its end.
        retries: how often, up to its end, all that was kept was given back to serve a request. segments: how many stand at the end.
        failed: where the memory ran out, in the last step; None where it did not.
        played: how many steps were played: those that change nothing in the allocator are played once for each shape.
    """

    reserved: list[int]
    allocated: list[int]
    requested: list[int]
    kept: list[int]
    retries: list[int]
    segments: int
    failed: OutOfMemory | None
    played: int


def play_epoch(
    beginning: Sequence[Request],
    steps: Iterable[tuple[Hashable, Callable[[], Sequence[Request]]]],
    configuration: Settings | str = "",
    memory: int | None = None,
    total: int | None = None,
    clear: int = 0,
) -> Epoch:
    """Play what comes before the first step, and the steps.

    Where a step leaves the allocator as it found it, the same step from there on has the same bytes, and is not played again.

    Args:
        steps: (what names its requests, a function that gives them) each. configuration, memory, total: as for `Allocator`.
        clear: after how many steps `torch.cuda.empty_cache()` is called; 0: never.
    """
    allocator = Allocator(configuration, memory, total)
    player = Player(allocator)
    failed = _most(player, beginning)[1]
    known: dict[Hashable, tuple[int, ...]] = {}
    rows: list[tuple[int, ...]] = []
    state, played = None, 0
    for number, (name, requests) in enumerate(steps, 1):
        if (found := known.get(name)) is None and failed is None:
            before = (len(allocator.log), allocator.retries, state if known else player.state())
            found, failed = _most(player, requests())
            played, state = played + 1, player.state()
            if before == (len(allocator.log), allocator.retries, state):
                known[name] = found
            else:
                known.clear()
        if clear and number % clear == 0:
            asked = len(allocator.log)
            allocator.empty_cache()
            if len(allocator.log) > asked:
                known.clear()
        rows.append((*(found or _counts(allocator)), allocator.reserved, allocator.retries))
        if failed is not None:
            break
    reserved, allocated, requested, kept, retries = ([row[i] for row in rows] for i in range(5))
    return Epoch(reserved, allocated, requested, kept, retries, len(allocator.segments), failed, played)


def _counts(allocator):
    return allocator.reserved, allocator.allocated, allocator.requested


def _most(player, requests):
    """(the most bytes reserved, allocated and requested as these are served, where the memory ran out or None)."""
    most = _counts(player.allocator)
    try:
        for size in player.run(requests):
            if size:
                most = tuple(map(max, most, _counts(player.allocator)))
    except OutOfMemory as error:
        return most, error
    return most, None
