"""The memory of a rehearsed script over time, by part: of the step with the peak, from the allocator's history."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from ..evidence import Memory
from .history import numbers
from .owners import OTHER, PARTS, WORKSPACE

#: The most places of a history that are kept, beside its marks and its peak.
PLACES = 2000


@dataclass(frozen=True, eq=False, repr=False)
class Owned(Memory):
    """A history whose blocks have owners. of: the number of an event that allocates -> the part of memory that the block belongs to."""

    of: Mapping[int, str] = field(default_factory=dict)

    def _part(self, address, number):
        return self.of.get(number, OTHER)

    def _made(self, address, number):
        return super()._made(address, number)._replace(part=self._part(address, number))


def owned(memory: Memory, lost: int, parts: Mapping[str, list[int]]) -> Owned:
    """A history with its owners.

    Args:
        lost: how many allocations there were before it. parts: part -> the numbers of its allocations, from the process's first.
    """
    named = {number: part for part, those in parts.items() for number in those}
    of = {event: named[number] for event, number in numbers(memory, lost).items() if number in named}
    return Owned(memory.device, memory.segments, memory.events, memory.frames, memory.settings, of)


@dataclass(frozen=True, eq=False)
class Timeline:
    """Live bytes of one step at each of some places of its history.

    Attributes:
        lines: part -> bytes. marks: the end of a phase -> its place. peak: the most bytes; peak_operation: the place; peak_at: in words.
    """

    lines: dict[str, list[int]]
    marks: dict[str, int]
    peak_operation: int
    peak_at: str

    def timeline(self) -> dict[str, list[int]]:
        """Part -> bytes at each place."""
        return self.lines

    @property
    def live(self) -> list[int]:
        """Bytes of all parts at each place."""
        return [sum(sizes) for sizes in zip(*self.lines.values(), strict=True)]

    @property
    def peak(self) -> int:
        """The most bytes."""
        return self.live[self.peak_operation]

    @property
    def parts(self) -> dict[str, int]:
        """Bytes of each part at the peak."""
        return {name: line[self.peak_operation] for name, line in self.lines.items()}


def of_peak(memory: Owned, at: str, lost: int, marks: list[tuple[str, int]]) -> Timeline:
    """The timeline of the step with the peak: from the end of the step before it to its own, or to the history's end.

    Args:
        at: the phase of the peak, in words. lost: as of `owned`. marks: (moment, number of allocations by then), in order.
    """
    until = [*numbers(memory, lost), len(memory.events)]  # up to which event so many allocations reach
    ends = [(moment, until[min(count - lost, len(until) - 1)]) for moment, count in marks if lost <= count]
    steps = [place for moment, place in ends if moment == "after_step"]
    first = max((place for place in steps if place < memory.peak_event), default=0)
    last = min((place for place in steps if place >= memory.peak_event), default=len(memory.events))
    within = [(moment, place) for moment, place in ends if first < place <= last]
    every = max(1, (last - first) // PLACES)
    places = sorted({*range(first, last + 1, every), memory.peak_event, last, *(place for _, place in within)})
    found = list(memory.sums(places))
    order = [name for name in (*PARTS, WORKSPACE, OTHER) if any(now.get(name) for now in found)]
    lines = {name: [now.get(name, 0) for now in found] for name in order}
    return Timeline(
        lines, {moment: places.index(place) for moment, place in within}, places.index(memory.peak_event), at
    )
