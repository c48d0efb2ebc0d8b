"""Exercises of chapter 34: which stage holds the most, and why is it the first?"""

from fractions import Fraction

from ...budget import budget
from ...catalog import model
from ...formulas import SYMBOLS, formula
from ...mesh import Mesh
from ...pipelines import order
from ...setup import Setup
from ..exercise import Exercise
from ..program import Case, Program

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


EXERCISES = [
    Exercise(
        id="34.1",
        title="Micro-batches in flight on GPU 5 of 16 under 1F1B",
        difficulty=1,
        minutes=3,
        unit="micro-batches",
        answer=lambda: _flying(5),
        mistakes={
            "GPUs are counted from 0: GPU 5 has 10 behind it, and one of its own": lambda: _flying(5) - 1,
            "that is GPipe's: 1F1B does not keep all": 64,
            "that is the first GPU's": lambda: _flying(0),
            "that many are before it; what counts is how many come after": 5,
        },
        hints=(
            "What it starts must pass all GPUs behind it before anything comes back.",
            "p - i, unless there are fewer micro-batches.",
        ),
    ),
    Exercise(
        id="34.2",
        title="Receive buffers of a GPU in the middle with v stages",
        difficulty=2,
        minutes=5,
        accepts="expression",
        answer=lambda: 2 * _v * _n * _B * _S * _H * _w,
        mistakes={
            "each stage receives gradients too": lambda: _v * _n * _B * _S * _H * _w,
            "each of the v stages has buffers of its own": lambda: 2 * _n * _B * _S * _H * _w,
            "PyTorch makes one for every micro-batch": lambda: 2 * _v * _B * _S * _H * _w,
        },
        hints=(
            "Count the neighbors of each stage: all are on other GPUs.",
            "One buffer a micro-batch for each stage and direction, of B S H numbers.",
        ),
    ),
    Exercise(
        id="34.3",
        title="What 1F1B saves the first of 4 GPUs",
        difficulty=2,
        minutes=5,
        unit="GiB",
        decimals=2,
        answer=lambda: _gpipe(accumulation=16) - _first(accumulation=16),
        mistakes={
            "that is with every block checkpointed": lambda: (
                _gpipe(accumulation=16, checkpointing="full") - _first(accumulation=16, checkpointing="full")
            ),
            "that is with the chapter's 8 micro-batches": lambda: _gpipe() - _first(),
            "those are the last GPU's, where GPipe keeps logits": lambda: (
                _gpipe(3, accumulation=16) - _first(3, accumulation=16)
            ),
        },
        hints=(
            'Two budgets of rank 0 with accumulation=16, of eb.Mesh(pipeline=4, schedule="gpipe") and of eb.Mesh(pipeline=4).',
            "Subtract the second's peak from the first's: what was in flight is less, the gradients at the peak are more.",
        ),
    ),
    Exercise(
        id="34.4",
        title="The share of a step that is idle with two stages on each of 4 GPUs, 8 micro-batches",
        difficulty=2,
        minutes=5,
        unit="%",
        decimals=1,
        answer=lambda: _idle(2),
        mistakes={
            "that is the ratio to the working time; the whole step is longer": lambda: 100 * Fraction(3, 16),
            "that is with one stage on each": lambda: _idle(1),
            "half of one stage's share: ratios to the working time halve, shares do not": lambda: _idle(1) / 2,
        },
        hints=("Idle over working time is (p - 1) / (v n).", "3/16 of the working time, so 3/19 of the whole."),
    ),
    Exercise(
        id="34.5",
        title="The first GPU's peak under 1F1B with every block checkpointed",
        difficulty=1,
        minutes=4,
        unit="GiB",
        decimals=2,
        answer=lambda: _first(checkpointing="full"),
        mistakes={
            "that is without checkpointing": lambda: _first(),
            "that is what stands between steps": lambda: budget(model("llama-3.1-8b"), _RUN).phases["rest"],
        },
        hints=(
            'The setup of the chapter with one switch more: run.replace(checkpointing="full").',
            "Its budget's peak, of rank 0; `peak_at` says where it is.",
        ),
    ),
    Program(
        id="34.6",
        title="A function: what 1F1B runs on a GPU, in order",
        difficulty=2,
        minutes=10,
        call="actions(places, place, batches)",
        cases=_orders,
        agree=lambda given, right: list(given) == right,
        answer=_one_by_one,
        mistakes={
            "that is GPipe: a backward runs as soon as there is one": lambda: _one_by_one(gpipe=True),
            "one forward too few ahead: the micro-batch of its own counts too": lambda: _one_by_one(ahead=-1),
            "one forward too many: it waits for the first to come back before it starts another": lambda: _one_by_one(
                first="F"
            ),
        },
        hints=(
            "How many forwards does a GPU start before the first backward can come? (Never more than there are micro-batches.)",
            "places - place of them; then a backward and the next forward, in turn, until all backwards are done.",
        ),
    ),
]
