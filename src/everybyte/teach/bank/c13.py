"""Exercises of chapter 13: which bytes make "16 bytes per parameter"?"""

from itertools import product
from math import prod

from ...budget import budget
from ...catalog import model
from ...catalog.weights import weights
from ...formulas import SYMBOLS, formula
from ...setup import DTYPE_BYTES, Setup
from ..exercise import Exercise
from ..program import Case, Program, small_gpts, small_llamas

G_M, M_W = (SYMBOLS[name].symbol for name in ("gradient_buffer_bytes", "master_bytes"))


def _each(gradients, optimizer="momentum"):
    setup = Setup(precision="bf16-master", master_gradients=gradients, optimizer=optimizer)
    return formula("bytes_per_parameter").at(None, setup)


def _states(**setup):
    return formula("optimizer.states").at(model("gpt2-xl"), Setup(**setup))


def _of_7b(precision, optimizer="adamw"):
    return 7 * 10**9 * formula("bytes_per_parameter").at(None, Setup(precision=precision, optimizer=optimizer))


def _at_rest(states):
    return formula("bytes_per_parameter").given(states=states, gradient_bytes=0)


def _gradients(name="gpt2-xl", precision="bf16-mixed"):
    return formula("gradients").at(model(name), Setup(precision=precision))


def _shapes(m):
    """Of all weights, in the model's order."""
    groups = [("embeddings",), *[("block", "dense")] * m.layers, ("last",)]
    return [tuple(t.shape) for group in groups for t in weights(m) if t.group in group for _ in range(t.count)]


def _worst_moments():
    """Of small models in fp32, less the batch and the loss."""
    models = small_gpts(13, 4) + small_llamas(13, 4)
    for m, kind in product(models, ("fused", "foreach", "loop")):
        step = budget(m, Setup(batch=1, sequence=8, precision="fp32", optimizer_impl=kind)).phases["step"]
        yield Case(f"{m.name}, {kind}", (_shapes(m), kind), step - 2 * 8 * 8 - 4)


def _worst(foreach=1, loop=2, before=1, fused=1, states=2):
    """What it would be with so many temporaries: `before`, of the tensor before the one that the loop is at."""

    def worst_moment(shapes, implementation):
        sizes = [prod(shape) for shape in shapes]
        turns = [before * previous + loop * size for previous, size in zip([0, *sizes], sizes, strict=False)]
        extra = {"foreach": foreach * sum(sizes), "loop": max(turns), "fused": fused * len(sizes)}
        return 4 * ((2 + states) * sum(sizes) + extra[implementation])

    return worst_moment


EXERCISES = [
    Exercise(
        id="13.1",
        title="Bytes per parameter with a master copy, gradients kept in fp32, and SGD with momentum",
        difficulty=1,
        minutes=3,
        unit="B",
        answer=lambda: _each("fp32"),
        mistakes={
            "this is AdamW's, which keeps two states; or you counted the fp32 master twice": lambda: _each(
                "fp32", "adamw"
            ),
            "an fp32 number is missing: the master copy, or the momentum": lambda: _each("fp32") - DTYPE_BYTES["fp32"],
            "a bf16 number too few: the weights are missing, or the gradients are two bytes each": lambda: _each(
                "bf16"
            ),
            "these are gradients kept twice, in bf16 and in fp32": lambda: _each("both"),
        },
        hints=(
            "Write one line for each thing that has a number for every parameter: there are four.",
            "Weights, the gradients' buffer, master copy, momentum: next to each, two bytes or four.",
        ),
    ),
    Exercise(
        id="13.2",
        title="Adam's states for GPT-2 XL in fp32",
        difficulty=1,
        minutes=4,
        unit="GiB",
        decimals=2,
        answer=_states,
        mistakes={
            "this is half: Adam keeps two states, and here each is fp32": lambda: _states(optimizer="momentum"),
            "you counted the weights too": lambda: _states() + formula("weights").at(model("gpt2-xl"), Setup()),
            "these are GPT-2 large's": lambda: formula("optimizer.states").at(model("gpt2-large"), Setup()),
        },
        hints=(
            "How many numbers does Adam remember for each parameter, from one step to the next?",
            "Momentum and variance, four bytes each, times chapter 11's count; a GiB is 1024 × 1024 × 1024 bytes.",
        ),
    ),
    Exercise(
        id="13.3",
        title="What a published sum for a 7B model leaves out",
        difficulty=2,
        minutes=5,
        unit="GB",
        answer=lambda: _of_7b("bf16-master", "sgd") - _of_7b("bf16", "sgd"),
        mistakes={
            "a master copy in 16 bits would be no better than the weights: it is fp32": 7 * 10**9 * DTYPE_BYTES["bf16"],
            "that is the whole sum; what is missing from it?": lambda: _of_7b("bf16-master"),
            "that is the published sum itself": lambda: _of_7b("bf16-master") - 7 * 10**9 * DTYPE_BYTES["fp32"],
            "that is what Adam's states take: they are in the sum": 7 * 10**9 * 2 * DTYPE_BYTES["fp32"],
        },
        hints=(
            "Hold the three lines of the sum against the row `bf16-master`: which column has no line?",
            "The optimizer adds small steps to its own fp32 copy of the weights: four bytes for each of 7,000,000,000.",
        ),
    ),
    Exercise(
        id="13.4",
        title="Bytes per parameter between steps, with amsgrad and an average of the weights",
        difficulty=2,
        minutes=8,
        accepts="expression",
        answer=lambda: _at_rest(4),
        mistakes={
            "between steps the gradients of backward are gone: g is too much": lambda: formula(
                "bytes_per_parameter"
            ).given(states=4),
            "these are Adam's two states: amsgrad keeps a third, and the average is a fourth": lambda: _at_rest(2),
            "one of the two additions is missing": lambda: _at_rest(3),
            "the master copy is missing: where there is none, m_w is 0": lambda: _at_rest(4).subs(M_W, 0),
            "a lasting gradient buffer survives the step: g_m is missing": lambda: _at_rest(4).subs(G_M, 0),
        },
        hints=(
            "Begin with the chapter's expression at rest, and count how many numbers the optimizer now remembers for each parameter.",
            "Momentum, variance, the largest variance so far, the average of the weights: each costs s.",
        ),
    ),
    Exercise(
        id="13.5",
        title="How much too large: gradients added to the peak's activations, GPT-2 XL under autocast",
        difficulty=3,
        minutes=10,
        unit="GiB",
        decimals=2,
        answer=_gradients,
        mistakes={
            "under autocast the weights are fp32, so their gradients are too: this is two bytes each": lambda: (
                _gradients(precision="bf16")
            ),
            "these are Adam's states: they do stand beside the activations": _states,
            "these are GPT-2 large's": lambda: _gradients("gpt2-large"),
            "these are GPT-2's": lambda: _gradients("gpt2"),
        },
        hints=(
            "Ask the dry run what stands at the peak: `eb.dry_run(model, setup).parts`. Which part is 0 there?",
            "The difference is that part as it is after backward: four bytes for each of GPT-2 XL's parameters.",
        ),
    ),
    Program(
        id="13.6",
        title="A function for the worst moment of an AdamW step, from the shapes of the weights",
        difficulty=3,
        minutes=12,
        call="worst_moment(shapes, implementation)",
        cases=_worst_moments,
        answer=_worst,
        mistakes={
            "that is what stands after the step: the step's own temporaries are missing": lambda: _worst(0, 0, 0),
            "the loop has two temporaries of a tensor at once": lambda: _worst(loop=1),
            "the loop's name for its temporary still holds the tensor before, while the next one's are made": lambda: (
                _worst(before=0)
            ),
            "the fused kernel reads a step count for each tensor from the GPU, 4 bytes": lambda: _worst(fused=0),
            "one state is missing: Adam keeps two": lambda: _worst(states=1),
        },
        hints=(
            "Sixteen bytes for each number of all shapes; then one extra term for each implementation, as in the chapter's table.",
            "The loop writes `denom = (v.sqrt() / c).add_(eps)` for one tensor after another: what does `denom` hold meanwhile?",
        ),
    ),
]
