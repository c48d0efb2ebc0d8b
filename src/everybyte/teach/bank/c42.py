"""Exercises of chapter 42: reading the evidence."""

from collections import Counter
from random import Random

from ...evidence import example
from . import GIB, Case, alike, answers, program

MEMORY = example.left().main
SEQUENCE, WIDTH, LAYERS, VOCABULARY = 512, 512, 4, 8192


def left(wide=4, casts=0, rows=8):
    """Bytes that the script's evaluation keeps: saved tensors of `wide` bytes a number, a norm's input and the loss in fp32."""
    tokens = SEQUENCE * WIDTH
    block = 4 * tokens + 8 * SEQUENCE + wide * 9 * tokens + casts * 8 * WIDTH**2
    around = wide * tokens + casts * WIDTH * VOCABULARY + 4 * SEQUENCE * VOCABULARY + 8
    return LAYERS * block + around + 16 * rows * SEQUENCE


def histories():
    draw, parts = Random(42), ("activations", "gradients", "loss", "optimizer")
    for case in range(5):
        events, live = [], {}
        for address in range(10 + 5 * case):
            live[address] = draw.randint(1, 100)
            events.append(("alloc", address, live[address], draw.choice(parts)))
            for gone in [a for a in live if draw.random() < 0.25]:
                for what in ("free_requested", "free_completed"):
                    events.append((what, gone, live[gone], draw.choice(parts)))
                del live[gone]
        yield Case(f"{len(events)} events", (events,), most_by(events))
    found = zip(MEMORY.events, MEMORY.frames, strict=True)
    events = [(action, address, size, MEMORY.part_of(frames)) for (action, address, size, _), frames in found]
    yield Case("the script's snapshot", (events,), most_by(events))


def most_by(events, *, frees="requested", owner=True, together=False):
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
    "42.1": answers(MEMORY.reserved - MEMORY.allocated, allocated=MEMORY.allocated, peak=MEMORY.reserved - MEMORY.peak),
    "42.2": answers(left, casts=4, bf16_casts={"casts": 2}, autocast={"wide": 2, "casts": 2}, rows=1),
    "42.3": answers(5 * GIB, end=2 * GIB, taken=6 * GIB),
    "42.4": program(most_by, histories, alike, frees="never", owner=False, together=True),
}
