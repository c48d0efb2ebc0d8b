"""A derivation as JSON, and back."""

from ..ask.setup import Setup
from ..step.amount import LETTERS, USUAL, Amount
from ..step.course import PHASES, Repeat
from ..step.witness import heading
from .course import Case, Column, Instant, Tally, differing, instants
from .ranges import Range


def as_dict(d) -> dict:
    """A derivation in whole numbers and text."""
    return heading("derive", d.model, d.setup) | {
        "layers": d.layers,
        "letters": d.letters,
        "rank": d.rank,
        "parts": list(d.part_names),
        "forms": [f.as_list() for f in d.forms],
        "columns": [[c.part, c.owner, c.host, c.form] for c in d.columns],
        "cases": [_case(c) for c in d.cases],
        "refused": [[*map(_range, ranges), why] for ranges, why in d.refused],
        "how": d.how,
        "checked": [list(c) for c in d.checked],
    }


def _range(r):
    return [r.low, r.high, r.by, r.multiples]


def _case(c):
    further = {letter: _range(r) for letter, r in c.ranges.items() if letter not in USUAL}
    number = {instant.place: n for n, instant in enumerate(c.instants)}
    return {
        "batch": _range(c.ranges["B"]),
        "sequence": _range(c.ranges["S"]),
        "instants": [[i.operation, i.phase, i.owner, i.at, i.place, _tally(i.counts)] for i in c.instants],
        "peak": [number[i.place] for i in c.peak],
        "rounded": [number[i.place] for i in c.rounded],
        "step": [number[i.place] for i in c.step],
        "moments": {name: number[i.place] for name, i in c.moments.items()},
        "course": _operations(c.course),
    } | ({"further": further} if further else {})


def _tally(counts):
    return [list(pair) for pair in sorted(counts.items())]


def _operations(course):
    """Every operation (of a repeat the first and last turn), with the change of live tensors since the one before."""
    found, repeats, start = list(instants(course)), [], 0
    before = [Tally(), *(i.counts for i in found)]
    for item in course.items:
        if isinstance(item, Repeat):
            repeats.append([start, len(item.items), item.times])
            start += (1 + (item.times > 1)) * len(item.items)
        else:
            start += 1
    return {
        "operations": [[i.operation, i.phase, i.owner] for i in found],
        "places": [i.at for i in found],
        "changes": [_tally(i.counts - there) for i, there in zip(found, before, strict=False)],
        "repeats": repeats,
    }


def _course(said, columns, parts):
    """The operations that were written; ValueError where they are none."""
    found = [
        (str(name), str(place), str(phase), str(owner), _counted(changed, columns))
        for (name, phase, owner), place, changed in zip(
            said["operations"], said["places"], said["changes"], strict=True
        )
    ]
    repeats, done = [(start, length, times) for start, length, times in said["repeats"]], 0
    for start, length, times in repeats:
        following = start + (1 + (times > 1)) * length
        if not done <= start < following <= len(found) or times < 1:
            raise ValueError("derive: what repeats is no part of the step")
        done = following
    return differing(found, repeats, columns, parts)


def _numbers(values, below, least=0):
    values = tuple(values)
    if not all(type(v) is int and least <= v < below for v in values):
        raise ValueError("derive: a number out of range")
    return values


def _counted(pairs, columns, least=-(2**63)):
    """How many of each column."""
    _numbers((c for c, _ in pairs), len(columns))
    _numbers((n for _, n in pairs), 2**63, least)
    return Tally((c, n) for c, n in pairs)


def _ranged(values):
    low, high, by, multiples = values
    found = Range(*_numbers((low, high, by), 2**63, 1), bool(multiples))
    if high < low:
        raise ValueError("derive: a range without a number")
    return found


def _letters(said, forms):
    """The letters that were written: those of the forms are among them."""
    used = {x for form in forms for m, _ in form.terms for x in m.used}
    if not isinstance(said, str) or not used - {*USUAL} <= {*said} <= LETTERS or len({*said}) != len(said):
        raise ValueError(f"derive: the letters {said!r}")
    return said


def _read_case(c, columns, parts):
    found = tuple(
        Instant(operation, phase, owner, at, *_numbers([place], 2**63), _counted(counts, columns, 0))
        for operation, phase, owner, at, place, counts in c["instants"]
    )

    def named(numbers):
        return tuple(found[i] for i in _numbers(numbers, len(found)))

    moments = dict(zip(c["moments"], named(c["moments"].values()), strict=True))
    able = [named(c[name]) for name in ("peak", "rounded", "step")]
    if not all(able) or not {*c["peak"]} <= {*c["rounded"]} or not {*PHASES} - {"step"} <= {*moments}:
        raise ValueError("derive: a case without instants")
    ranges = {"B": c["batch"], "S": c["sequence"], **c.get("further", {})}
    ranges = {str(letter): _ranged(r) for letter, r in ranges.items()}
    return Case(ranges, *able, moments, _course(c["course"], columns, parts))


def read(said: dict) -> tuple:
    """The fields of a kept derivation, except its model.

    Raises:
        ValueError, TypeError, KeyError, IndexError: where it is none.
    """
    forms, parts = tuple(map(Amount.read, said["forms"])), tuple(map(str, said["parts"]))
    columns = tuple(Column(str(p), str(o), bool(h), *_numbers([f], len(forms))) for p, o, h, f in said["columns"])
    if not {c.part for c in columns} <= set(parts):
        raise ValueError("derive: an unknown part")
    letters = _letters(said["letters"], forms)
    cases = tuple(_read_case(c, columns, parts) for c in said["cases"])
    if not cases:
        raise ValueError("derive: no case")
    refused = tuple((tuple(map(_ranged, ranges)), str(why)) for *ranges, why in said["refused"])
    every = [*USUAL, *(x for x in letters if x not in USUAL)]  # these become code
    if any([*c.ranges] != every for c in cases) or any(len(ranges) != len(every) for ranges, _ in refused):
        raise ValueError("derive: ranges of other letters")
    return (
        Setup(**said["setup"]), said["layers"], forms, columns, cases, parts, refused, str(said["how"]),
        tuple(map(tuple, said["checked"])), letters, *_numbers([said["rank"]], 2**31),
    )  # fmt: skip
