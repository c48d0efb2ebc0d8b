"""Exercises of chapter 21: does mixed precision halve the memory?"""

import math

from ...formulas.symbols import A, B, H, S
from . import Case, Run, Setup, answers, model, named_shapes, program, run, small_models

MEDIUM = run("gpt2-medium", precision="bf16-mixed")
CASTS = MEDIUM.at("casts")
XL, MASTER = (run("gpt2-xl", batch=1, sequence=128, precision=precision) for precision in ("fp32", "bf16-master"))
LARGE = run("gpt2-large", attention="eager")
FALL, DROPPED = (LARGE.falls({"precision": "bf16-mixed"}, dropout=dropout) for dropout in (0.0, 0.1))


def change(stream=-28, square=-2):
    return stream * B * S * H + square * A * B * S**2


def turn(vocabulary=128_256, logits=True, layers=32, heads=32, head_width=128):
    loss = (heads * head_width + vocabulary) / (heads * layers)
    return math.ceil(14 * head_width + (loss if logits else 0))


def rise(**changes):
    return MASTER.peak(**changes) - XL.peak(**changes)


def casts():
    run = Setup(batch=1, sequence=32, precision="bf16-mixed")
    return [Case(m.name, (named_shapes(m),), Run(m, run).part("casts")) for m in small_models(21, 4)]


def cast_bytes(weights, *, each=2, vectors=False, tables=False, tied=True):
    names, total = [name for name, _ in weights], 0
    for name, shape in weights:
        head = name == "token.weight" and "head.weight" not in names and tied
        if (len(shape) == 2 or vectors) and (name not in ("token.weight", "position.weight") or head or tables):
            total += each * math.prod(shape)
    return total


ANSWERS = {
    "21.1": answers(
        CASTS,
        head=Run(model("gpt2-medium").replace(vocabulary=1), MEDIUM.setup).at("casts"),
        fp32=2 * CASTS,
        weights=4 * MEDIUM.parameters,
    ),
    "21.2": answers(change, square=0, stream=-32, no_dropout=change(-28, 2), sign=change(28, 2)),
    "21.3": answers(turn, logits=False, vocabulary=50_257, rounded_down=turn() - 1),
    "21.4": answers(
        rise(), rest=MASTER.phase("rest") - XL.phase("rest"), fused=rise(optimizer_impl="fused"), peak=MASTER.peak()
    ),
    "21.5": answers(DROPPED, no_dropout=FALL, sign=-DROPPED, rise=-FALL),
    "21.6": program(cast_bytes, casts, each=4, vectors=True, tables=True, tied=False),
}
