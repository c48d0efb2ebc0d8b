"""Exercises of chapter 43: the job died."""

from ...evidence import message, reports
from ..exercise import Exercise

_GIB = 2**30


def _read(name):
    return message(reports()[name].text)


def _left(name):
    said = _read(name)
    return said.capacity - said.free - said.allocated - said.cached


def _cached_above(share):
    return sum(said.cached > share * said.allocated for said in map(_read, reports()))


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
    Exercise(
        id="43.4",
        title="What is neither free nor PyTorch's, in a message without a process",
        difficulty=2,
        minutes=5,
        unit="GiB",
        decimals=2,
        answer=lambda: _left("diffuman"),
        mistakes={
            "76.36 are MiB, not GiB": lambda: round((23.99 - 15.52 - 6.78 - 76.36) * _GIB),
            "what is free has to be taken off too": lambda: round((23.99 - 6.78 - 76.36 / 1024) * _GIB),
        },
        hints=(
            "From the capacity take what is free, allocated and cached.",
            "Mind the unit of the last one: 76.36 MiB are 0.0746 GiB.",
        ),
    ),
]
