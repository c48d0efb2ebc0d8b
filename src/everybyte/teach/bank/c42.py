"""Exercises of chapter 42: reading the evidence."""

from collections import Counter
from functools import cache
from random import Random

from ...evidence import example
from ..program import Case
from . import answers, program

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


def _histories():
    memory = _memory()
    named = [
        (action, address, size, memory.part_of(frames))
        for (action, address, size, _), frames in zip(memory.events, memory.frames, strict=True)
    ]
    draw = Random(42)
    for case in range(5):
        events, live, parts = [], {}, ("activations", "gradients", "loss", "optimizer")
        for address in range(10 + 5 * case):
            live[address] = draw.randint(1, 100)
            events.append(("alloc", address, live[address], draw.choice(parts)))
            for gone in [a for a in live if draw.random() < 0.25]:
                events += [
                    (f"free_{what}", gone, live[gone], draw.choice(parts)) for what in ("requested", "completed")
                ]
                del live[gone]
        yield Case(f"{len(events)} events", (events,), _most_of(events))
    yield Case("the script's snapshot", (named,), _most_of(named))


def _most_of(events):
    live, now, most = {}, Counter(), Counter()
    for action, address, size, part in events:
        if action == "alloc":
            live[address] = part, size
            now[part] += size
            most[part] = max(most[part], now[part])
        elif action == "free_requested" and address in live:
            part, size = live.pop(address)
            now[part] -= size
    return dict(most)


def _most_by(events, *, frees="requested", owner=True, together=False):
    """The answer, or what it would be if nothing were freed, if whoever frees were the owner, or at the peak of all parts together."""
    live, now, found, top = {}, Counter(), Counter(), 0
    for action, address, size, part in events:
        if action == "alloc":
            live[address] = part, size
            now[part] += size
        elif action == f"free_{frees}" and address in live:
            made, size = live.pop(address)
            now[made if owner else part] -= size
        if together and sum(now.values()) > top:
            top, found = sum(now.values()), Counter(now)
        elif not together:
            found |= now
    return {part: size for part, size in found.items() if size or not together}


ANSWERS = {
    "42.1": answers(
        lambda: _memory().reserved - _memory().allocated,
        allocated=lambda: _memory().allocated,
        peak=lambda: _memory().reserved - _memory().peak,
    ),
    "42.2": answers(
        lambda: _left(4, 0),
        casts=lambda: _left(4, 4),
        bf16_casts=lambda: _left(4, 2),
        autocast=lambda: _left(2, 2),
        row=lambda: _left(4, 0, rows=1),
    ),
    "42.3": answers(5 * _GIB, end=2 * _GIB, taken=6 * _GIB),
    "42.4": program(
        _most_by, _histories, lambda given, right: dict(given) == right, frees="never", owner=False, together=True
    ),
}
