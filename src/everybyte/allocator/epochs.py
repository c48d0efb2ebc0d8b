"""Play an epoch: steps of varying shapes, one after another, through one allocator."""

from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass

from .playing import Request, condition
from .settings import Settings, settings
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
    chosen = settings(configuration) if isinstance(configuration, str) else configuration
    playing = _Playing(Allocator(chosen, memory, total))
    playing.run(beginning)
    known: dict[Hashable, tuple[int, int, int]] = {}
    rows: list[tuple[int, ...]] = []
    state = None
    for number, (name, requests) in enumerate(steps, 1):
        if (found := known.get(name)) is None and playing.failed is None:
            found, state = _step(playing, requests(), name, known, state)
        allocator = playing.allocator
        if clear and number % clear == 0:
            before = len(allocator.log)
            allocator.empty_cache()
            if len(allocator.log) > before:
                known.clear()
        rows.append(
            (
                *(found or (allocator.reserved, allocator.allocated, allocator.requested)),
                allocator.reserved,
                allocator.retries,
            )
        )
        if playing.failed is not None:
            break
    reserved, allocated, requested, kept, retries = ([row[i] for row in rows] for i in range(5))
    segments = len(playing.allocator.segments)
    return Epoch(reserved, allocated, requested, kept, retries, segments, playing.failed, playing.steps)


def _step(playing, requests, name, known, state):
    """(the most reserved, allocated and requested in a step, the state after it); what is known, where it changes nothing, grows."""
    if not known:
        state = playing.state()
    log, retries = len(playing.allocator.log), playing.allocator.retries
    found = playing.run(requests)
    playing.steps += 1
    after = playing.state()
    if (log, retries, state) == (len(playing.allocator.log), playing.allocator.retries, after):
        known[name] = found
    else:
        known.clear()
    return found, after


class _Playing:
    """An allocator, and where each key's blocks are.

    Attributes:
        steps: how many were played. failed: where the memory ran out.
    """

    def __init__(self, allocator):
        self.allocator, self.steps, self.failed = allocator, 0, None
        self._here: dict[int, list[int]] = {}

    def run(self, requests):
        """The most bytes reserved, allocated and requested."""
        allocator, here = self.allocator, self._here
        reserved, allocated, requested = allocator.reserved, allocator.allocated, allocator.requested
        try:
            for key, size, stream in requests:
                if size:
                    here.setdefault(key, []).append(allocator.malloc(size, stream))
                    reserved = max(reserved, allocator.reserved)
                    allocated = max(allocated, allocator.allocated)
                    requested = max(requested, allocator.requested)
                elif places := here.get(key):
                    allocator.free(places.pop(0))
        except OutOfMemory as error:
            self.failed = error
        return reserved, allocated, requested

    def state(self):
        """All that what follows depends on."""
        return condition(self.allocator, self._here)
