"""Exercises of chapter 21: does mixed precision halve the memory?"""

import math

from ...ask.setup import Setup
from ...catalog import model
from ...formulas import formula
from ...formulas.symbols import A, B, H, S
from ...theory.budget import budget
from ..asking import parameters, peak, step
from ..program import Case, named_shapes, small_gpts, small_llamas
from . import answers, program

_MIXED = Setup(precision="bf16-mixed")
_SHORT = Setup(batch=1, sequence=128)


def _casts(name, **changes):
    return formula("casts").at(model(name).replace(**changes), _MIXED)


def _turn(layers, heads, head_width, vocabulary, logits=True):
    loss = (heads * head_width + vocabulary) / (heads * layers)
    return math.ceil(14 * head_width + (loss if logits else 0))


def _rise(**changes):
    short = _SHORT.replace(**changes)
    return peak("gpt2-xl", short, precision="bf16-master") - peak("gpt2-xl", short)


def _falls(name, **changes):
    eager = Setup(attention="eager", **changes)
    return peak(name, eager) - peak(name, eager, precision="bf16-mixed")


def _cast():
    run = Setup(batch=1, sequence=32, precision="bf16-mixed")
    for m in [*small_gpts(21, 4), *small_llamas(21, 4)]:
        yield Case(m.name, (named_shapes(m),), int(budget(m, run).parts_at("after_forward")["casts"]))


def _cast_bytes(weights, *, each=2, vectors=False, tables=False, tied=True):
    """The answer, or what it would be with other bytes a number, with vectors or tables cast too, or without a tied head."""
    names, total = [name for name, _ in weights], 0
    for name, shape in weights:
        head = name == "token.weight" and "head.weight" not in names and tied
        if (len(shape) == 2 or vectors) and (name not in ("token.weight", "position.weight") or head or tables):
            total += each * math.prod(shape)
    return total


ANSWERS = {
    "21.1": answers(
        lambda: _casts("gpt2-medium"),
        head=lambda: _casts("gpt2-medium", vocabulary=1),
        fp32=lambda: 2 * _casts("gpt2-medium"),
        weights=lambda: 4 * parameters("gpt2-medium"),
    ),
    "21.2": answers(
        -28 * B * S * H - 2 * A * B * S**2,
        no_dropout=-28 * B * S * H + 2 * A * B * S**2,
        sign=28 * B * S * H + 2 * A * B * S**2,
        square=-28 * B * S * H,
        stream=-32 * B * S * H - 2 * A * B * S**2,
    ),
    "21.3": answers(
        lambda: _turn(32, 32, 128, 128_256),
        block=lambda: _turn(32, 32, 128, 128_256, logits=False),
        gpt2=lambda: _turn(32, 32, 128, 50_257),
        rounded_down=lambda: _turn(32, 32, 128, 128_256) - 1,
    ),
    "21.4": answers(
        _rise,
        rest=lambda: (
            step("gpt2-xl", _SHORT, precision="bf16-master").phases["rest"] - step("gpt2-xl", _SHORT).phases["rest"]
        ),
        fused=lambda: _rise(optimizer_impl="fused"),
        peak=lambda: peak("gpt2-xl", _SHORT, precision="bf16-master"),
    ),
    "21.5": answers(
        lambda: _falls("gpt2-large", dropout=0.1),
        no_dropout=lambda: _falls("gpt2-large"),
        sign=lambda: -_falls("gpt2-large", dropout=0.1),
        rise=lambda: -_falls("gpt2-large"),
    ),
    "21.6": program(_cast_bytes, _cast, each=4, vectors=True, tables=True, tied=False),
}
