"""Exercises of chapter 43: the job died."""

from collections import Counter
from random import Random

from ...answers.diagnosis import doctor
from ...evidence import Message, message, reports
from . import GIB, MIB, Case, answers, program

CAUSES = ("tensor", "others", "fragmentation", "need")
MADDOG = message(reports()["maddog"].text)


def cached_above(share=0.5):
    """Reports whose cached bytes are more than this share of the allocated ones."""
    return sum(said.cached > share * said.allocated for said in (message(r.text) for r in reports().values()))


def messages():
    amounts = {"asked": 1, "capacity": 24, "free": 0.5, "process": 23, "cached": 0.75, "allocated": 21}
    near = Message(kind="pytorch", **{name: int(size * GIB) for name, size in amounts.items()})
    yield Case("message 0", (near,), doctor(near).cause)
    draw, seen = Random(43), Counter()
    while min(seen[cause] for cause in CAUSES) < 2:
        capacity = draw.choice((16, 24, 40, 80)) * GIB
        asked = draw.choice((draw.randint(1, 200) * MIB, draw.randint(1, 8) * GIB, 2 * capacity))
        free = min(draw.randint(0, 900) * MIB, asked - 1)
        others = ((77, draw.randint(1, 12) * GIB),) if draw.random() < 0.5 else ()
        mine = capacity - free - sum(size for _, size in others)
        cached = min(draw.choice((0, 300 * MIB, 3 * GIB, 9 * GIB)), mine // 2)
        allocated = mine - cached - 600 * MIB
        amounts = {"capacity": capacity, "free": free, "process": mine, "cached": cached, "allocated": allocated}
        said = Message(kind="pytorch", asked=asked, others=others, **amounts)
        cause = doctor(said).cause
        if cause in CAUSES and seen[cause] < 3:
            seen[cause] += 1
            yield Case(f"message {sum(seen.values())}", (said,), cause)


def reason(said, *, order=("tensor", "others", "fragmentation"), whole=True, large=True):
    away = sum(size for _, size in said.others)
    is_so = {
        "tensor": said.asked > said.capacity,
        "others": away >= said.asked - said.free and (away > GIB or not large and away > 0),
        "fragmentation": said.free < said.asked <= said.cached + (said.free if whole else 0),
    }
    return next((name for name in order if is_so[name]), "need")


ANSWERS = {
    "43.1": answers(
        MADDOG.cached,
        reserved=round(13.71 * GIB),
        rest=round((14.76 - 13.71) * GIB),
        asked=round((13.71 - 8.77 - 2.87) * GIB),
    ),
    "43.2": answers(MIB + 1, small=MIB, segment=20 * MIB, large=10 * MIB),
    "43.3": answers(cached_above(), all=cached_above(1), quarter=cached_above(0.25)),
    "43.4": program(
        reason,
        messages,
        processes={"order": ("tensor", "fragmentation", "others")},
        request={"order": ("others", "fragmentation")},
        whole=False,
    ),
}
