"""Exercises of chapter 33: what does splitting one matrix split?"""

from functools import cache
from math import prod

from ...budget import budget
from ...catalog import model
from ...formulas import SYMBOLS, formula
from ...mesh import Mesh
from ...setup import Setup
from ..exercise import Exercise
from ..program import Case, Program, named_shapes, small_gpts, small_llamas

B, S, H = (SYMBOLS[name].symbol for name in ("batch", "sequence", "width"))
t = SYMBOLS["tensor"].symbol
LLAMA = "llama-3.1-8b"
#: One sequence on eight GPUs that divide the model.
_EIGHT = Setup(batch=1, sequence=4096, precision="bf16", gpus=8, mesh=Mesh(tensor=8))


def _sent(parts, width=8192, tokens=4096):
    return int(formula("tensor.sent")(tensor=parts, weight_bytes=2, batch=1, sequence=tokens, width=width))


def _gradients(**changes):
    return budget(model(LLAMA), _EIGHT.replace(**changes)).parts_at("after_backward")["gradients"]


def _whole():
    """What a gradient with all rows adds to the weights' bytes."""
    return _gradients() - budget(model(LLAMA), _EIGHT).parts_at("rest")["parameters"]


def _held(parts=8):
    return int(formula("tensor.parameters").at(model(LLAMA), _EIGHT.replace(gpus=parts, mesh=Mesh(tensor=parts))))


@cache
def _loss(divided):
    mesh = Mesh(tensor=2, loss_parallel=divided)
    return formula("tensor.loss").at(model(LLAMA), _EIGHT.replace(gpus=2, mesh=mesh))


def _split():
    """Small models whose heads, inner width, vocabulary and positions divide."""
    fits = {"width": 64, "heads": 8, "head_width": 8, "ffn_width": 192, "vocabulary": 96}
    models = [m.replace(**fits) for m in small_gpts(33, 4)]
    models += [m.replace(**fits, kv_heads=8 // (1 + i % 2)) for i, m in enumerate(small_llamas(33, 4))]
    for case, m in enumerate(models):
        parts = (2, 4, 8, 1)[case % 4]
        run = Setup(
            batch=1, sequence=64, precision="bf16", gpus=parts, mesh=Mesh(tensor=parts) if parts > 1 else Mesh()
        )
        right = int(formula("tensor.parameters").at(m, run)) if parts > 1 else m.parameters
        yield Case(f"{m.name} on {parts} GPU{'s' * (parts > 1)}", (named_shapes(m), parts), right)


def _parted(norms=True, sums=True, tables=True):
    """What it would be with norms or the biases of sums divided, or with whole tables."""

    def held(weights, parts):
        total = 0
        for name, shape in weights:
            whole = norms and "norm" in name or sums and name.endswith(("out.bias", "down.bias"))
            whole = whole or not tables and name in ("token.weight", "position.weight")
            total += prod(shape) // (1 if whole else parts)
        return total

    return held


EXERCISES = [
    Exercise(
        id="33.1",
        title="What one GPU of eight sends for one block of width 8,192, one sequence of 4,096 tokens in bf16",
        difficulty=1,
        minutes=4,
        unit="MiB",
        answer=lambda: _sent(8),
        mistakes={
            "that is forward alone: backward sends as much": lambda: _sent(8) / 2,
            "a ring sends (t - 1)/t of the tensor, not all of it": lambda: 8 * 2 * 4096 * 8192,
            "one collective of the eight": lambda: _sent(8) / 8,
        },
        hints=(
            "Two gathers and two scatters in forward, and the same again in backward.",
            "Each moves 7/8 of 4,096 × 8,192 numbers of 2 bytes.",
        ),
    ),
    Exercise(
        id="33.2",
        title="What a block keeps between and for its matrices where tokens are gathered again in backward",
        difficulty=2,
        minutes=6,
        accepts="expression",
        answer=lambda: 8 * B * S * H / t,
        mistakes={
            "that is DTensor's, which keeps what it gathered": lambda: B * S * H * (4 / t + 4),
            "that is without sequence parallelism: every GPU has all tokens": lambda: 8 * B * S * H,
            "those are the norms' inputs alone: what the matrices are given is kept too, divided": lambda: (
                4 * B * S * H / t
            ),
        },
        hints=(
            "Four tensors of width H: what both norms are given, and what both norms give.",
            "In bf16, each 2 B S H / t bytes where a GPU keeps its own tokens alone.",
        ),
    ),
    Exercise(
        id="33.3",
        title="How much DTensor's whole gradient of the token table adds, Llama-3.1-8B on eight GPUs",
        difficulty=2,
        minutes=5,
        unit="MiB",
        decimals=0,
        answer=_whole,
        mistakes={
            "that is the whole table's gradient: an eighth would be there anyway": 2 * 128_256 * 4096,
            "that is an eighth of it, which would be there anyway": 2 * 128_256 * 4096 // 8,
            "in fp32; backward makes it in bf16": 4 * 128_256 * 4096 * 7 // 8,
        },
        hints=(
            "128,256 rows of 4,096 numbers in bf16. How many of the rows are this GPU's?",
            "Seven eighths of 1,050,673,152 bytes. A MiB is 1024 × 1024 bytes.",
        ),
    ),
    Exercise(
        id="33.4",
        title="Loss parallelism on two GPUs in bf16: over the gathered loss, at the loss's peak",
        difficulty=2,
        minutes=5,
        unit="%",
        decimals=0,
        answer=lambda: 100 * (_loss(True) / _loss(False) - 1),
        mistakes={
            "that is what it would be in fp32": lambda: 100 * (16 / 2 / 12 - 1),
            "half the logits do not make half the bytes: the divided log-softmax computes in fp32": -50,
            "that is the ratio: how much more is it?": lambda: 100 * _loss(True) / _loss(False),
        },
        hints=(
            "16/t bytes a logit divided, 3 w bytes gathered, with w bytes a weight.",
            "Eight bytes a logit on each of two GPUs, against six gathered.",
        ),
    ),
    Program(
        id="33.5",
        title="A function: the parameters that one of several GPUs holds",
        difficulty=2,
        minutes=10,
        call="held(weights, parts)",
        cases=_split,
        answer=_parted,
        mistakes={
            "norms are whole on every GPU": lambda: _parted(norms=False),
            "a bias that is added to a sum is whole on every GPU: `out` and `down` are cut by rows": lambda: _parted(
                sums=False
            ),
            "tables are cut by rows, each GPU has some words": lambda: _parted(tables=False),
        },
        hints=(
            "Go through the names. Which tensors work between the matrices, and which are added after the sum over GPUs?",
            "Whole: every name with `norm` in it, and those that end in `out.bias` or `down.bias`. All others divide.",
        ),
    ),
]
