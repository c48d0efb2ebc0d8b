"""Where one course of operations holds: the ranges of batches and of sequences in which a step goes the same way."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import groupby, pairwise

#: Batches and sequences that are looked at to find them: some are multiples of much, such as 768, 840, 5040 and 110,880.
BATCHES = (2, 3, 5, 8, 33, 100, 4096, 5040, 65536)
SEQUENCES = (
    2, 3, 8, 24, 33, 64, 90, 128, 255, 256, 768, 777, 840, 1000, 1024, 2048, 4097, 5000, 8192, 16391, 32768, 99999,
    110880, 131072,
)  # fmt: skip
#: The largest size of a further letter that is looked at.
LONGEST = 2**17
#: Sizes of a further letter that are looked at first, and where not all go the same way those beside them.
SIZES = (1, 8, 14, 16, 30, 32, 64, 100, 128, 196, 224, 225, 256, 299, 384, 512, 1024, 4097, 131072)
MORE_SIZES = (
    3, 7, 24, 28, 40, 42, 48, 56, 70, 80, 96, 112, 126, 144, 160, 182, 208, 210, 240, 280, 288, 300, 320, 336, 448, 480,
    500, 518, 640, 768, 800, 896, 1000, 2048, 8192,
)  # fmt: skip
_MULTIPLES = (1, 2, 4, 8, 16, 32, 64)
#: Of what a sequence is cut into by state space models, too: Mamba-2's chunks.
SEQUENCE_MULTIPLES = (*_MULTIPLES, 128, 256)
#: Of what patches and strides make of images, too.
FURTHER_MULTIPLES = (*_MULTIPLES, 3, 5, 6, 7, 10, 12, 14, 20, 24, 28, 40, 48, 56, 128, 256)


#: Where so many numbers are all of different kinds, as in a loop over them, no more are looked at.
_PATIENCE = 4
#: Nor where there are more kinds than these, as in a loop over a sequence's chunks, and the last numbers are of different ones.
_KINDS = 6


#: Which of a range's multiples are taken where few stand close to its start.
_SPREAD = (3, 1, 7, 0, 15, 2, 31)


class Irregular(Exception):
    """`kind` differs at every number; two such numbers."""


@dataclass(frozen=True)
class Range:
    """Whole numbers from `low` to `high`; where `by` is more than 1, only its multiples, or only the others."""

    low: int
    high: int
    by: int = 1
    multiples: bool = True

    def __contains__(self, value: int) -> bool:
        return self.low <= value <= self.high and (self.by == 1 or (value % self.by == 0) == self.multiples)

    @property
    def single(self) -> bool:
        return self.low == self.high

    def first(self, value: int) -> int | None:
        """The least of its numbers from `value` on."""
        return next((n for n in range(max(value, self.low), self.high + 1) if n in self), None)

    def last(self, value: int) -> int | None:
        """The largest of its numbers up to `value`."""
        return next((n for n in range(min(value, self.high), self.low - 1, -1) if n in self), None)

    def some(self, wanted: Iterable[int], count: int) -> list[int]:
        """At least `count` of its numbers, if it has as many: the wanted ones first, then others from its start on."""
        found = [v for v in dict.fromkeys(wanted) if v in self]
        value = self.low
        while len(found) < count and value <= self.high:
            if value in self and value not in found:
                found.append(value)
            value += 1 if value < self.low + 64 else 37
        if len(found) < count and self.by > 1 and self.multiples:
            members = range(-(-self.low // self.by) * self.by, self.high + 1, self.by)
            further = (members[i] for i in _SPREAD if i < len(members))
            found += [v for v in further if v not in found][: count - len(found)]
        return found


def partition(
    kind: Callable[[int], object],
    low: int,
    high: int,
    wanted: Iterable[int],
    more: Iterable[int] = (),
    divisors=_MULTIPLES,
) -> list[tuple[Range, object]]:
    """The ranges of [low, high] in which `kind` is the same: looks at the wanted numbers, and halves between them.

    Thresholds and multiples of one of the `divisors` part them: of the divisor with the fewest ranges. Where there is
    more than one threshold, `more` numbers are looked at.
    """
    seen = {}
    for value in sorted({low, high, *(v for v in wanted if low <= v <= high)}):
        seen[value] = kind(value)
        last = list(seen)[-_PATIENCE:]
        if (more or len(seen) == _PATIENCE) and len({seen[n] for n in last}) == _PATIENCE:
            raise Irregular(*last[-2:] if more else last[:2])
        if len(set(seen.values())) > _KINDS and len({seen[n] for n in last[1:]}) == _PATIENCE - 1:
            raise Irregular(*last[-2:])
    if len(set(seen.values())) == 1:
        return [(Range(low, high), seen[low])]
    if len(_runs(seen)) > 2:  # more than a threshold
        seen |= {value: kind(value) for value in more if low <= value <= high and value not in seen}
    by = _divisor(seen, divisors)
    while more and (unseen := [v for v in _telling(by) if low <= v <= high and v not in seen]):
        seen |= {v: kind(v) for v in unseen}
        by = _divisor(seen, divisors)
    found = []
    for multiples in (True, False)[: 1 + (by > 1)]:
        members = Range(low, high, by, multiples)
        track = {v: k for v, k in seen.items() if v in members}
        _refine(track, members, kind)
        runs = _runs(track)
        _alone(runs, track, members, kind)
        starts = [low, *(run[0] for run in runs[1:]), high + 1]
        found += [
            (Range(a, b - 1, by, multiples), track[run[0]]) for (a, b), run in zip(pairwise(starts), runs, strict=True)
        ]
    return found


def _divisor(seen, divisors):
    def runs(by):
        tracks = ({v: k for v, k in seen.items() if (v % by == 0) == multiples} for multiples in (True, False))
        return sum(len(_runs(track)) for track in tracks)

    return min(divisors, key=lambda by: (runs(by), by))


def _alone(runs, track, members, kind):
    """Raise `Irregular` where numbers among others of one kind stand for their multiples, of no divisor that is known."""
    for (*_, before), (n, *others), (after, *_) in zip(runs, runs[1:], runs[2:], strict=False):
        if track[before] != track[after]:
            continue
        if others:
            parted = kind(members.first(n + 1)) != track[n]
        else:
            further = (2 * n, 3 * n, *(n // p for p in (2, 3, 5, 7) if n % p == 0))
            parted = any(kind(v) == track[n] for v in further if v in members)
        if parted:
            raise Irregular(before, n)


def _telling(by):
    """Numbers that distinguish the multiples of `by` from those of its own multiples and divisors."""
    if by == 1:
        return []
    parts = {by // p for p in (2, 3, 5, 7) if by % p == 0}
    return sorted({n * by for n in (1, 3, 5, 7, 11)} | {n * part for part in parts for n in (11, 13, 17)})


def _runs(track):
    """The numbers, in order, in runs of one kind."""
    return [list(run) for _, run in groupby(sorted(track), track.get)]


def _refine(track, members, kind):
    """Halve between neighbors of different kinds until they are the range's next to each other."""
    step, more = members.by if members.multiples else 1, True
    while more:
        ends = [(one[-1], other[0]) for one, other in pairwise(_runs(track))]
        middles = [(a, members.first((a + b) // 2 // step * step), b) for a, b in ends]
        more = {middle: kind(middle) for a, middle, b in middles if middle is not None and a < middle < b}
        track |= more
