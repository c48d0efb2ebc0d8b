"""Exercises of chapter 43: the job died."""

from collections import Counter
from random import Random

from ...diagnosis import doctor
from ...evidence import Message, message, reports
from ..exercise import Exercise
from ..program import Case, Program

_GIB = 2**30


def _read(name):
    return message(reports()[name].text)


def _left(name):
    said = _read(name)
    return said.capacity - said.free - said.allocated - said.cached


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


def _reason(order=("tensor", "others", "fragmentation"), whole=True, large=True):
    """What it would be in another order, with the cached bytes alone, or with any other process however small."""

    def cause(said):
        away = sum(size for _, size in said.others)
        is_so = {
            "tensor": said.asked > said.capacity,
            "others": away >= said.asked - said.free and (away > _GIB or not large and away > 0),
            "fragmentation": said.free < said.asked <= said.cached + (said.free if whole else 0),
        }
        return next((name for name in order if is_so[name]), "need")

    return cause


EXERCISES = [
    Exercise(
        id="43.1",
        title="What is cached in a message of PyTorch 1",
        difficulty=1,
        minutes=3,
        unit="GiB",
        decimals=2,
        answer=lambda: _read("maddog").cached,
        mistakes={
            "reserved has the allocated bytes in it": lambda: round(13.71 * _GIB),
            "that is what is not reserved": lambda: round((14.76 - 13.71) * _GIB),
            "what was asked for is not in it": lambda: round((13.71 - 8.77 - 2.87) * _GIB),
        },
        hints=(
            "What is reserved is the allocated and the cached bytes together.",
            "Take the allocated 8.77 from the 13.71 in total.",
        ),
    ),
    Exercise(
        id="43.2",
        title="The least tensor that asks the driver for 20 MiB",
        difficulty=1,
        minutes=3,
        unit="B",
        answer=lambda: 2**20 + 1,
        mistakes={
            "a MiB still belongs to the small pool, whose segments have 2 MiB": lambda: 2**20,
            "that is the segment; which tensors get one?": lambda: 20 * 2**20,
            "from 10 MiB on a tensor has a segment of its own size": lambda: 10 * 2**20,
        },
        hints=(
            "Which requests does the large pool of chapter 41 serve?",
            "All that are above 1 MiB, by a single byte too.",
        ),
    ),
    Exercise(
        id="43.3",
        title="Reports in which more is cached than half of what is allocated",
        difficulty=2,
        minutes=6,
        unit="",
        answer=lambda: _cached_above(0.5),
        mistakes={
            "that is more than all of what is allocated": lambda: _cached_above(1),
            "that is more than a quarter": lambda: _cached_above(0.25),
        },
        hints=(
            "`message(report.text)` has `cached` and `allocated`, in whole bytes, for each report.",
            "Few reports are above; those in which most is in use are not.",
        ),
    ),
    Program(
        id="43.4",
        title="A function: which of the four causes a message has",
        difficulty=2,
        minutes=10,
        call="cause(said)",
        cases=_messages,
        agree=lambda given, right: given == right,
        answer=_reason,
        mistakes={
            "ask for the other processes before fragmentation: ending them costs nothing": lambda: _reason(
                ("tensor", "fragmentation", "others")
            ),
            "a request larger than the GPU comes first: no switch helps there": lambda: _reason(
                ("others", "fragmentation")
            ),
            "what is free by the driver counts beside what is cached": lambda: _reason(whole=False),
        },
        hints=(
            "Four comparisons in the chapter's order; the first that is so decides.",
            "`said.others` is a list of (process, bytes): their sum must be above a GiB, and at least `said.asked - said.free`.",
        ),
    ),
]
