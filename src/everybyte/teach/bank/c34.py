"""Exercises of chapter 34: which stage holds the most, and why is it the first?"""

from fractions import Fraction

from ...budget import budget
from ...catalog import model
from ...formulas import SYMBOLS, formula
from ...mesh import Mesh
from ...pipelines import order
from ...setup import Setup
from ..program import Case
from . import answers, program

_LONG = Setup(gpus=16, accumulation=64, mesh=Mesh(pipeline=16))
_RUN = Setup(batch=1, sequence=4096, precision="bf16", gpus=4, accumulation=8, mesh=Mesh(pipeline=4))
_v, _n, _B, _S, _H, _w = (
    SYMBOLS[name].symbol
    for name in ("pipeline_stages", "accumulation", "batch", "sequence", "width", "weight_bytes")
)  # fmt: skip


def _flying(place, setup=_LONG):
    return int(formula("pipeline.in_flight").at(None, setup, place=place))


def _first(rank=0, **changes):
    """The first GPU's peak, or another's."""
    return budget(model("llama-3.1-8b"), _RUN.replace(**changes), rank=rank).peak


def _gpipe(rank=0, **changes):
    return _first(rank, mesh=Mesh(pipeline=4, schedule="gpipe"), **changes)


def _idle(stages):
    """The share of a whole step, in percent."""
    waits = Fraction(3, 8 * stages)
    return 100 * waits / (1 + waits)


def _orders():
    for places, place, batches in ((4, 0, 8), (4, 3, 8), (4, 1, 4), (1, 0, 3), (8, 2, 8), (3, 1, 7), (2, 0, 2)):
        right = [f"{action.kind}{action.batch}" for action in order(Mesh(pipeline=places), batches, place)]
        yield Case(f"GPU {place} of {places}, {batches} micro-batches", (places, place, batches), right)


def _one_by_one(ahead=0, first="B", gpipe=False):
    """What it would be with more forwards ahead, with a forward before each backward, or with all forwards first."""

    def actions(places, place, batches):
        start = batches if gpipe else min(batches, places - place + ahead)
        found = [f"F{i}" for i in range(start)]
        for i in range(batches):
            pair = [f"B{i}"] + [f"F{start + i}"] * (start + i < batches)
            found += pair if first == "B" else pair[::-1]
        return found

    return actions


ANSWERS = {
    "34.1": answers(lambda: _flying(5), one_less=lambda: _flying(5) - 1, gpipe=64, first=lambda: _flying(0), before=5),
    "34.2": answers(
        2 * _v * _n * _B * _S * _H * _w,
        gradients=_v * _n * _B * _S * _H * _w,
        stages=2 * _n * _B * _S * _H * _w,
        buffers=2 * _v * _B * _S * _H * _w,
    ),
    "34.3": answers(
        lambda: _gpipe(accumulation=16) - _first(accumulation=16),
        checkpointed=lambda: (
            _gpipe(accumulation=16, checkpointing="full") - _first(accumulation=16, checkpointing="full")
        ),
        eight=lambda: _gpipe() - _first(),
        last=lambda: _gpipe(3, accumulation=16) - _first(3, accumulation=16),
    ),
    "34.4": answers(
        lambda: _idle(2), working=lambda: 100 * Fraction(3, 16), one_stage=lambda: _idle(1), half=lambda: _idle(1) / 2
    ),
    "34.5": answers(
        lambda: _first(checkpointing="full"),
        kept=lambda: _first(),
        rest=lambda: budget(model("llama-3.1-8b"), _RUN).phases["rest"],
    ),
    "34.6": program(_one_by_one, _orders, lambda given, right: list(given) == right, gpipe=True, ahead=-1, first="F"),
}
