"""Exercises of chapter 43: the job died."""

from collections import Counter
from functools import partial
from random import Random

from ...answers.diagnosis import doctor
from ...evidence import Message, message, reports
from ..program import Case
from . import answers, program

_GIB = 2**30


def _read(name):
    return message(reports()[name].text)


def _cached_above(share):
    return sum(said.cached > share * said.allocated for said in map(_read, reports()))


def _messages():
    draw, seen = Random(43), Counter()
    near = Message(
        kind="pytorch",
        asked=_GIB,
        capacity=24 * _GIB,
        free=_GIB // 2,
        process=23 * _GIB,
        cached=3 * _GIB // 4,
        allocated=21 * _GIB,
    )
    yield Case("message 0", (near,), doctor(near).cause)
    while min((seen[cause] for cause in ("tensor", "others", "fragmentation", "need")), default=0) < 2:
        capacity = draw.choice((16, 24, 40, 80)) * _GIB
        asked = draw.choice((draw.randint(1, 200) * 2**20, draw.randint(1, 8) * _GIB, 2 * capacity))
        free = min(draw.randint(0, 900) * 2**20, asked - 1)
        others = ((77, draw.randint(1, 12) * _GIB),) if draw.random() < 0.5 else ()
        mine = capacity - free - sum(size for _, size in others)
        cached = min(draw.choice((0, 300 * 2**20, 3 * _GIB, 9 * _GIB)), mine // 2)
        said = Message(
            kind="pytorch", asked=asked, capacity=capacity, free=free, process=mine, cached=cached, others=others,
            allocated=mine - cached - 600 * 2**20,
        )  # fmt: skip
        cause = doctor(said).cause
        if cause in ("tensor", "others", "fragmentation", "need") and seen[cause] < 3:
            seen[cause] += 1
            yield Case(f"message {sum(seen.values())}", (said,), cause)


def _reason(said, *, order=("tensor", "others", "fragmentation"), whole=True, large=True):
    """The answer, or what it would be in another order, with the cached bytes alone, or with any other process however small."""
    away = sum(size for _, size in said.others)
    is_so = {
        "tensor": said.asked > said.capacity,
        "others": away >= said.asked - said.free and (away > _GIB or not large and away > 0),
        "fragmentation": said.free < said.asked <= said.cached + (said.free if whole else 0),
    }
    return next((name for name in order if is_so[name]), "need")


ANSWERS = {
    "43.1": answers(
        lambda: _read("maddog").cached,
        reserved=lambda: round(13.71 * _GIB),
        rest=lambda: round((14.76 - 13.71) * _GIB),
        asked=lambda: round((13.71 - 8.77 - 2.87) * _GIB),
    ),
    "43.2": answers(2**20 + 1, small=2**20, segment=20 * 2**20, large=10 * 2**20),
    "43.3": answers(lambda: _cached_above(0.5), all=lambda: _cached_above(1), quarter=lambda: _cached_above(0.25)),
    "43.4": program(
        _reason,
        _messages,
        lambda given, right: given == right,
        processes=partial(_reason, order=("tensor", "fragmentation", "others")),
        request=partial(_reason, order=("others", "fragmentation")),
        whole=False,
    ),
}
