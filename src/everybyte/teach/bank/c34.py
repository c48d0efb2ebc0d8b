"""Exercises of chapter 34: which stage holds the most, and why is it the first?"""

from fractions import Fraction

from ...ask.schedules import order
from ...formulas.symbols import B, H, S, n_a, v, w
from . import Case, Mesh, Run, Setup, alike, answers, program, run

LLAMA = run("llama-3.1-8b", batch=1, sequence=4096, precision="bf16", gpus=4, accumulation=8, mesh=Mesh(pipeline=4))
LONG = Run(None, Setup(gpus=16, accumulation=64, mesh=Mesh(pipeline=16)))
SENT = n_a * B * S * H * w
FIRST, SIXTH = (int(LONG.at("pipeline.in_flight", {"place": place})) for place in (0, 5))


def saved(accumulation=16, **changes):
    """What 1F1B saves over GPipe on the first GPU."""
    some = LLAMA.having(accumulation=accumulation)
    return some.peak(mesh=Mesh(pipeline=4, schedule="gpipe"), **changes) - some.peak(**changes)


def idle(stages):
    """The share of a whole step, in percent."""
    waits = Fraction(3, 8 * stages)
    return 100 * waits / (1 + waits)


def orders():
    for places, place, batches in ((4, 0, 8), (4, 3, 8), (4, 1, 4), (1, 0, 3), (8, 2, 8), (3, 1, 7), (2, 0, 2)):
        right = [f"{action.kind}{action.batch}" for action in order(Mesh(pipeline=places), batches, place)]
        yield Case(f"GPU {place} of {places}, {batches} micro-batches", (places, place, batches), right)


def one_by_one(places, place, batches, *, ahead=0, first="B", gpipe=False):
    start = batches if gpipe else min(batches, places - place + ahead)
    found = [f"F{i}" for i in range(start)]
    for i in range(batches):
        pair = [f"B{i}"] + [f"F{start + i}"] * (start + i < batches)
        found += pair if first == "B" else pair[::-1]
    return found


ANSWERS = {
    "34.1": answers(SIXTH, one_less=SIXTH - 1, gpipe=64, first=FIRST, before=5),
    "34.2": answers(2 * v * SENT, gradients=v * SENT, stages=2 * SENT, buffers=2 * v * SENT / n_a),
    "34.3": answers(saved, checkpointing="full", accumulation=8, rank=3),
    "34.4": answers(idle(2), working=100 * Fraction(3, 16), one_stage=idle(1), half=idle(1) / 2),
    "34.5": answers(LLAMA.peak(checkpointing="full"), kept=LLAMA.peak(), rest=LLAMA.phase("rest")),
    "34.6": program(one_by_one, orders, alike, gpipe=True, ahead=-1, first="F"),
}
