"""What a derivation is made of: tensors of one kind, the instants of a step, and where one course of operations holds."""

from dataclasses import dataclass

from .course import Course
from .ranges import Range


@dataclass(frozen=True)
class Column:
    """Tensors of one kind: their `part`, their `owner` with * for its numbers, whether on the `host`, their `form`'s number."""

    part: str
    owner: str
    host: bool
    form: int


@dataclass(frozen=True)
class Instant:
    """One operation of the step.

    Attributes:
        operation, phase, owner: its name, the phase, and the module that it belongs to. at: where in the step, in words.
        place: its number in the step. counts: what lives while it runs, as (column's number, how many).
    """

    operation: str
    phase: str
    owner: str
    at: str
    place: int
    counts: tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class Case:
    """Where one course of operations holds, and its instants.

    Attributes:
        batch, sequence, further: the ranges; of the reader's own letters (letter, range) each. instants: in the step's order. peak: numbers of those of which one is the highest;
            rounded: with those that may be once tensors are rounded up. step: the same of the optimizer's step alone.
        moments: the end of a phase, or rest -> the number of its instant. course: all operations.
    """

    batch: Range
    sequence: Range
    instants: tuple[Instant, ...]
    peak: tuple[int, ...]
    rounded: tuple[int, ...]
    step: tuple[int, ...]
    moments: dict[str, int]
    course: Course
    further: tuple[tuple[str, Range], ...] = ()

    @property
    def ranges(self) -> dict[str, Range]:
        """Letter -> range."""
        return {"B": self.batch, "S": self.sequence, **dict(self.further)}

    def __contains__(self, point: tuple[int, ...]) -> bool:
        return all(value in r for value, r in zip(point, self.ranges.values(), strict=True))
