"""Exercises of chapter 42: reading the evidence."""

from functools import cache

from ...evidence import example
from ..exercise import Exercise

_MIB, _GIB = 2**20, 2**30
_ROWS, _SEQUENCE, _WIDTH, _LAYERS, _VOCABULARY = 8, 512, 512, 4, 8192


@cache
def _memory():
    return example.left().main


def _left(wide, casts, rows=_ROWS):
    """Bytes that the script's evaluation keeps: saved tensors of `wide` bytes a number, a norm's input and the loss in fp32."""
    tokens = _SEQUENCE * _WIDTH
    block = 4 * tokens + 8 * _SEQUENCE + wide * 9 * tokens + casts * 8 * _WIDTH**2
    around = wide * tokens + casts * _WIDTH * _VOCABULARY + 4 * _SEQUENCE * _VOCABULARY + 8
    return _LAYERS * block + around + 16 * rows * _SEQUENCE


@cache
def _most(part):
    """The most bytes of one part at once, in one pass over the events."""
    memory, live, now, most = _memory(), {}, 0, 0
    for (action, address, size, _), frames in zip(memory.events, memory.frames, strict=True):
        if action == "alloc" and memory.part_of(frames) == part:
            live[address] = size
            now += size
        elif action == "free_requested":
            now -= live.pop(address, 0)
        most = max(most, now)
    return most


EXERCISES = [
    Exercise(
        id="42.1",
        title="What is kept free at the script's end",
        difficulty=1,
        minutes=3,
        unit="MiB",
        decimals=2,
        answer=lambda: _memory().reserved - _memory().allocated,
        mistakes={
            "that is what is allocated": lambda: _memory().allocated,
            "that is what is kept free at the peak": lambda: _memory().reserved - _memory().peak,
        },
        hints=(
            "Reserved is allocated and kept free together.",
            "`memory.reserved` and `memory.allocated` are whole bytes; a MiB has 2**20.",
        ),
    ),
    Exercise(
        id="42.2",
        title="The leak without autocast",
        difficulty=2,
        minutes=8,
        unit="MiB",
        decimals=2,
        answer=lambda: _left(4, 0),
        mistakes={
            "weights in fp32 need no cast": lambda: _left(4, 4),
            "the casts are in bf16, and there are none in fp32": lambda: _left(4, 2),
            "that is the leak under autocast": lambda: _left(2, 2),
            "a view of one row keeps the whole batch": lambda: _left(4, 0, rows=1),
        },
        hints=(
            "Which of the formula's terms are casts of weights? They go.",
            "Each saved activation doubles; the norm's input, the loss and the batch stay as they are.",
        ),
    ),
    Exercise(
        id="42.3",
        title="The peak behind a profile's column",
        difficulty=1,
        minutes=3,
        unit="GiB",
        answer=lambda: 5 * _GIB,
        mistakes={
            "that is the sum of the column: what is left at the end": lambda: 2 * _GIB,
            "that is all that was taken; some was freed": lambda: 6 * _GIB,
        },
        hints=("Add them up one after the other.", "3, then 5, then 1, then 2: which is the largest?"),
    ),
    Exercise(
        id="42.4",
        title="The most that the loss ever has, in the snapshot",
        difficulty=3,
        minutes=12,
        unit="MiB",
        decimals=2,
        answer=lambda: _most("loss"),
        mistakes={
            "that is at the peak of all parts": lambda: _memory().parts()["loss"],
            "that is at the end": lambda: _memory().parts(len(_memory().events))["loss"],
        },
        hints=(
            "Go through `memory.events` and `memory.frames` together, and keep the loss's blocks by address.",
            "Add a block's bytes where `memory.part_of(frames)` is `loss`, and take them off when its address is freed.",
        ),
    ),
]
