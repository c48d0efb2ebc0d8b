"""Exercises of chapter 34: which stage holds the most, and why is it the first?"""

from fractions import Fraction

from ...ask.mesh import Mesh
from ...ask.schedules import order
from ...ask.setup import Setup
from ...catalog import model
from ...formulas import formula
from ...formulas.symbols import B, H, S, n_a, v, w
from ...theory.budget import budget
from ..asking import step
from ..program import Case
from . import answers, program

_LONG = Setup(gpus=16, accumulation=64, mesh=Mesh(pipeline=16))
_RUN = Setup(batch=1, sequence=4096, precision="bf16", gpus=4, accumulation=8, mesh=Mesh(pipeline=4))


def _flying(place):
    return int(formula("pipeline.in_flight").at(None, _LONG, place=place))


def _first(rank=0, **changes):
    """The first GPU's peak, or another's."""
    return budget(model("llama-3.1-8b"), _RUN.replace(**changes), rank=rank).peak


def _saved(rank=0, **changes):
    """What 1F1B saves over GPipe, of 16 micro-batches."""
    changes = {"accumulation": 16} | changes
    return _first(rank, mesh=Mesh(pipeline=4, schedule="gpipe"), **changes) - _first(rank, **changes)


def _idle(stages):
    """The share of a whole step, in percent."""
    waits = Fraction(3, 8 * stages)
    return 100 * waits / (1 + waits)


def _orders():
    for places, place, batches in ((4, 0, 8), (4, 3, 8), (4, 1, 4), (1, 0, 3), (8, 2, 8), (3, 1, 7), (2, 0, 2)):
        right = [f"{action.kind}{action.batch}" for action in order(Mesh(pipeline=places), batches, place)]
        yield Case(f"GPU {place} of {places}, {batches} micro-batches", (places, place, batches), right)


def _one_by_one(places, place, batches, *, ahead=0, first="B", gpipe=False):
    """The answer, or what it would be with more forwards ahead, with a forward before each backward, or with all forwards first."""
    start = batches if gpipe else min(batches, places - place + ahead)
    found = [f"F{i}" for i in range(start)]
    for i in range(batches):
        pair = [f"B{i}"] + [f"F{start + i}"] * (start + i < batches)
        found += pair if first == "B" else pair[::-1]
    return found


ANSWERS = {
    "34.1": answers(lambda: _flying(5), one_less=lambda: _flying(5) - 1, gpipe=64, first=lambda: _flying(0), before=5),
    "34.2": answers(
        2 * v * n_a * B * S * H * w,
        gradients=v * n_a * B * S * H * w,
        stages=2 * n_a * B * S * H * w,
        buffers=2 * v * B * S * H * w,
    ),
    "34.3": answers(
        _saved,
        checkpointed=lambda: _saved(checkpointing="full"),
        eight=lambda: _saved(accumulation=8),
        last=lambda: _saved(3),
    ),
    "34.4": answers(
        lambda: _idle(2), working=lambda: 100 * Fraction(3, 16), one_stage=lambda: _idle(1), half=lambda: _idle(1) / 2
    ),
    "34.5": answers(
        lambda: _first(checkpointing="full"),
        kept=_first,
        rest=lambda: step("llama-3.1-8b", _RUN).phases["rest"],
    ),
    "34.6": program(_one_by_one, _orders, lambda given, right: list(given) == right, gpipe=True, ahead=-1, first="F"),
}
