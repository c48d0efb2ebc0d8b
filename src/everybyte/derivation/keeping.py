"""A derivation as JSON, and back."""

from ..ask.setup import Setup
from ..step.amount import USUAL, Amount
from ..step.course import Repeat, place_of
from .course import Case, Column, Instant, Tally, differing, rows
from .ranges import Range


def as_dict(d) -> dict:
    """Whole numbers and text alone."""
    return {
        "witness": "derive",
        "model": {"name": d.model.name, "parameters": int(d.model.parameters)},
        "setup": d.setup.as_dict(),
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
    return {
        "batch": _range(c.ranges["B"]),
        "sequence": _range(c.ranges["S"]),
        "instants": [
            [i.operation, i.phase, i.owner, i.at, i.place, [list(pair) for pair in i.counts]] for i in c.instants
        ],
        "peak": list(c.peak),
        "rounded": list(c.rounded),
        "step": list(c.step),
        "moments": c.moments,
        "course": _operations(c.course),
    } | ({"further": further} if further else {})


def _operations(course):
    """Every operation, of what repeats in the first and the last turn, by what lives more than at the one before."""
    operations, places, changes, before = [], [], [], Tally()
    for operation, owner, _, live in rows(course):
        operations.append([operation.name, operation.phase, owner])
        places.append(place_of(operation))
        changes.append([list(pair) for pair in sorted((live - before).items())])
        before = live
    repeats, start = [], 0
    for item in course.items:
        if isinstance(item, Repeat):
            repeats.append([start, len(item.items), item.times])
            start += (1 + (item.times > 1)) * len(item.items)
        else:
            start += 1
    return {"operations": operations, "places": places, "changes": changes, "repeats": repeats}


def _course(said, columns, parts):
    """The operations that were written; ValueError where they are none."""
    changes = [Tally((c, n) for c, n in changed) for changed in said["changes"]]
    if any(
        type(c) is not int or type(n) is not int or not 0 <= c < len(columns) for t in changes for c, n in t.items()
    ):
        raise ValueError("derive: changes of other columns")
    found = [
        (str(name), str(place), str(phase), str(owner), more)
        for (name, phase, owner), place, more in zip(said["operations"], said["places"], changes, strict=True)
    ]
    repeats, done = [(start, length, times) for start, length, times in said["repeats"]], 0
    for start, length, times in repeats:
        following = start + (1 + (times > 1)) * length
        if not done <= start < following <= len(found) or times < 1:
            raise ValueError("derive: what repeats is no part of the step")
        done = following
    return differing(found, repeats, columns, parts)


def read(said: dict) -> tuple:
    """What a derivation that was written is made of, beside its model.

    Raises:
        ValueError, TypeError, KeyError, IndexError: where it is none.
    """

    def numbers(values, below):
        values = tuple(values)
        if not all(type(v) is int and 0 <= v < below for v in values):
            raise ValueError("derive: a number out of range")
        return values

    def ranged(values):
        low, high, by, multiples = values
        numbers((low, high, by), 2**63)
        return Range(low, high, by, bool(multiples))

    forms = tuple(map(Amount.read, said["forms"]))
    columns = tuple(Column(str(p), str(o), bool(h), *numbers([f], len(forms))) for p, o, h, f in said["columns"])
    if not {c.part for c in columns} <= set(said["parts"]):
        raise ValueError("derive: an unknown part")
    cases = []
    for c in said["cases"]:
        found = []
        for operation, phase, owner, at, place, counts in c["instants"]:
            numbers([n for n, _ in counts], len(columns))
            numbers([n for _, n in counts], 2**63)
            found.append(
                Instant(
                    operation, phase, owner, at, numbers([place], 2**63)[0], tuple((n, times) for n, times in counts)
                )
            )
        size = len(found)
        moments = {m: numbers([i], size)[0] for m, i in c["moments"].items()}
        if not (c["peak"] and c["rounded"] and c["step"]) or "after_backward" not in moments:
            raise ValueError("derive: a case without instants")
        ranges = {"B": c["batch"], "S": c["sequence"], **c.get("further", {})}
        able = (numbers(c[name], size) for name in ("peak", "rounded", "step"))
        course = _course(c["course"], columns, said["parts"])
        ranges = {str(letter): ranged(r) for letter, r in ranges.items()}
        cases.append(Case(ranges, tuple(found), *able, moments, course))
    if not cases:
        raise ValueError("derive: no case")
    refused = tuple((tuple(map(ranged, ranges)), str(why)) for *ranges, why in said["refused"])
    return (
        Setup(**said["setup"]), said["layers"], forms, columns, tuple(cases),
        tuple(map(str, said["parts"])), refused, str(said["how"]), tuple(map(tuple, said["checked"])), said["letters"],
        numbers([said["rank"]], 2**31)[0],
    )  # fmt: skip
