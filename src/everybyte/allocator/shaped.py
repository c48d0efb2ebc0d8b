"""A step's requests at one batch and sequence, such that steps of other shapes can follow, and micro-batches of others stand beside."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from .playing import Request, Requests

#: Keys from here on name what one run of a step takes and another frees, or the next step: the same ones whatever the shape.
SHARED = 2**40


class Run(NamedTuple):
    """Requests of one micro-batch, one after another."""

    batch: int
    requests: Sequence[Request]


@dataclass(frozen=True)
class Shaped:
    """A process's requests to its allocator, all its batches of one shape.

    Attributes:
        beginning: until the first step. first, steady: the runs of the first step, and of each after it.
    """

    beginning: Sequence[Request]
    first: Sequence[Run]
    steady: Sequence[Run]

    @property
    def requests(self) -> Requests:
        """The same, without runs."""
        flat = ([request for run in runs for request in run.requests] for runs in (self.first, self.steady))
        return Requests(self.beginning, *flat)

    @property
    def shared(self) -> list[tuple[int, list[int]]]:
        """(micro-batch, keys shared with other runs or steps, in order) of each run: what those of other shapes must have too."""
        return [(run.batch, [r.key for r in run.requests if r.key >= SHARED]) for run in self.steady]


def closed(step: Sequence[Request]) -> bool:
    """Whether a step frees what it takes and nothing else."""
    return {r.key for r in step if r.bytes} == {r.key for r in step if not r.bytes}


def parted(step: Sequence[Request], runs: Sequence[tuple[int, int]]) -> list[Run]:
    """The runs of a step, from (micro-batch, where it begins) of each."""
    ends = [*(start for _, start in runs[1:]), len(step)]
    return [Run(batch, step[start:end]) for (batch, start), end in zip(runs, ends, strict=True)]


def named(step: Sequence[Request], runs: Sequence[tuple[int, int]], standing: Collection[int] = ()) -> list[Run]:
    """The runs of a step, in which what crosses their ends, or the step's, has keys from `SHARED` on, in the order of the requests.

    Args:
        runs: as `parted` takes them. standing: keys of what a step finds, and leaves to the next one.
    """
    parts = parted(step, runs)
    taken = {r.key: number for number, run in enumerate(parts) for r in run.requests if r.bytes}
    freed = {r.key: number for number, run in enumerate(parts) for r in run.requests if not r.bytes}
    crossing = [
        key for key in dict.fromkeys(r.key for r in step) if key in standing or taken.get(key) != freed.get(key)
    ]
    names = {key: SHARED + number for number, key in enumerate(crossing)}
    return [Run(batch, [r._replace(key=names.get(r.key, r.key)) for r in part]) for batch, part in parts]


def composed(shapes: Sequence[Shaped], first: bool = False) -> list[Request]:
    """The requests of one step whose micro-batches have these shapes, one each; `shared` is the same of all."""
    runs = [shape.first if first else shape.steady for shape in shapes]
    return [r for number, (batch, _) in enumerate(runs[0]) for r in runs[batch][number].requests]
