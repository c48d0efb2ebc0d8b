"""Replay a real allocator's history: does the simulator take the same block, at the same address, each time?"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial

from .driver import Driver
from .settings import SMALL_SEGMENT, Settings
from .simulator import GIVES, TAKES, Allocator, OutOfMemory

#: The actions of a history that are read; others are skipped.
ACTIONS = ("alloc", "free_requested", "free_completed", "oom", *TAKES, *GIVES)


@dataclass(eq=False)
class Replayed:
    """A history replayed up to its end, or to the first decision that differs.

    Attributes:
        allocator: as it is at the end.
        allocations: decided. asked: requests to the driver among the decisions. strays: frees of blocks that no event allocated.
        live: (requested, allocated, reserved) bytes after each event that changes them. wrong: the decision that differs, in words.
    """

    allocator: Allocator
    allocations: int = 0
    asked: int = 0
    strays: int = 0
    live: list[tuple[int, int, int]] = field(default_factory=list)
    wrong: str | None = None

    @property
    def decisions(self) -> int:
        """The number of decisions: which block, and whether to request memory from the driver."""
        return self.allocations + self.asked

    def __repr__(self):
        return f"Replayed({self.decisions:,} decisions, {self.wrong or 'all as the real allocator made them'})"


def replay(
    events: Iterable[Sequence],
    configuration: Settings | str = "",
    total: int | None = None,
    start: Iterable[Sequence] = (),
) -> Replayed:
    """Replay a history from its requests and frees, and the driver's addresses.

    When other streams were done with a block, and when `empty_cache` was called, is read off the history.

    Args:
        events: (action, address, bytes, stream), in the order and by the names of a snapshot's `device_traces`.
        configuration: as for `Allocator`. total: bytes of the GPU, for the addresses of a growing segment.
        start: the segments before the first event, from `before`; none where the history is whole.
    """
    told = _Told()
    allocator = Allocator(configuration, total=total, driver=told)
    for segment in start:
        _stand(allocator, *segment)
    found, waiting = Replayed(allocator), {}
    for action, address, size, stream in events:
        if action in TAKES + GIVES:
            told.pending.append((action, address, size))
        if action in TAKES + GIVES or action not in ACTIONS:
            continue
        asks = action in ("alloc", "oom")
        emptied = told.pending and (not asks or _emptied(allocator, told, size, stream))
        if emptied and (wrong := _again(told, allocator.empty_cache, gives=True)):
            found.wrong = f"before event {len(found.live) + 1}, empty_cache: {wrong}"
            return found
        if asks:
            found.asked += len(told.pending)
            found.allocations += 1
            if wrong := _again(told, partial(allocator.malloc, size, stream), address if action == "alloc" else None):
                found.wrong = f"allocation {found.allocations}, of {size:,} B: {wrong}"
                return found
        elif action == "free_requested":
            if address in allocator.live:
                waiting[address] = allocator.let_go(address)
            else:
                found.strays += 1
        elif action == "free_completed" and address in waiting:
            allocator.complete(waiting.pop(address))
        found.live.append((allocator.requested, allocator.allocated, allocator.reserved))
    if told.pending and (wrong := _again(told, allocator.empty_cache)):
        found.wrong = f"at the end, empty_cache: {wrong}"
    return found


def _emptied(allocator, told, size, stream):
    """Whether the whole cache was freed before an allocation.

    It makes no difference whether by `empty_cache` or by a retry; but a retry that gives back less than all is left to `malloc`.
    """
    partly = allocator.settings.max_split_size is not None or allocator.settings.garbage_collection_threshold
    return told.pending[0][0] in GIVES and (not partly or allocator.find(size, stream) is not None)


def _again(told, act, address=None, gives=False):
    """Repeat an event; return what differs, in words. gives: only up to the first request for more memory."""
    count = next((i for i, e in enumerate(told.pending) if gives and e[0] in TAKES), len(told.pending))
    expected, rest = told.pending[:count], told.pending[count:]
    told.pending = list(expected)
    told.said.clear()
    try:
        got = act()
    except OutOfMemory:
        got = None
    told.pending = rest
    if got != address or told.said != expected:
        return f"{got} with {told.said}; the real one took {address} with {expected}"
    return None


class _Told(Driver):
    """A driver with the memory and the addresses of the real one, from the history; it notes its requests."""

    def __init__(self):
        super().__init__()
        self.pending, self.said = [], []

    def _next(self, action, size):
        found = self.pending and self.pending[0][0] == action and self.pending[0][2] == size
        return self.pending[0][1] if found else None

    def _note(self, action, address, size):
        self.said.append((action, address, size))
        if self.pending and self.pending[0] == self.said[-1]:
            self.pending.pop(0)

    def take(self, size):
        address = self._next("segment_alloc", size)
        if address is not None:
            self._note("segment_alloc", address, size)
        return address

    def give(self, address, size):
        self._note("segment_free", address, size)

    def reserve(self, size):
        return next((address for action, address, _ in self.pending if action == "segment_map"), 0)

    def forget(self, address):
        pass

    def map(self, address, size):
        had = self._next("segment_map", size) == address
        if had:
            self._note("segment_map", address, size)
        return had

    def unmap(self, address, size):
        self._note("segment_unmap", address, size)


def before(segments: Iterable[dict], events: Sequence[Sequence]) -> list[tuple]:
    """The segments before a history's first event: those of its end, with each event undone.

    Args:
        segments: of a snapshot. events: as for `replay`, until the snapshot.

    Returns:
        (address, bytes, stream, whether small, [(address, requested) of each block that was allocated]) of each segment.

    Raises:
        ValueError: where segments grow, since a snapshot lacks their first addresses.
    """
    standing, live = {}, {}
    for segment in segments:
        if segment.get("is_expandable"):
            raise ValueError("before.segments: a growing one; allowed: histories of those from their first event on")
        at = segment["address"]
        standing[at] = segment["total_size"], segment["stream"], segment["segment_type"] == "small"
        for block in segment["blocks"]:
            if block["state"] != "inactive":
                live[at] = block["requested_size"]
            at += block["size"]
    for action, address, size, stream in reversed(events):
        if action == "alloc":
            live.pop(address, None)
        elif action == "free_completed":
            live[address] = size
        elif action == "segment_alloc":
            standing.pop(address, None)
        elif action == "segment_free":
            standing[address] = size, stream, size == SMALL_SEGMENT
    return [
        (address, size, *of, sorted(block for block in live.items() if address <= block[0] < address + size))
        for address, (size, *of) in sorted(standing.items())
    ]


def _stand(allocator, address, size, stream, small, inside):
    """Add a segment with its allocated blocks, each as large as the rules divide it."""
    pool = allocator.pool(stream, small)
    block = allocator.segment(address, size, pool)
    allocator.reserved += size
    for at, asked in inside:
        if at > block.address:
            free, block = block, block.cut(at - block.address)
            pool.put(free)
        wanted = allocator.settings.rounded(asked)
        rest = block.cut(wanted) if block.size > wanted and allocator.splits(block, wanted) else None
        allocator.hand_out(block, asked)
        if rest is None:
            return
        block = rest
    pool.put(block)
