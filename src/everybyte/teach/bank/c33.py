"""Exercises of chapter 33: what does splitting one matrix split?"""

from functools import cache
from math import prod

from ...ask.mesh import Mesh
from ...ask.setup import Setup
from ...formulas import formula
from ...formulas.symbols import B, H, S, t
from ..asking import at, step
from ..program import Case, named_shapes, small_gpts, small_llamas
from . import answers, program

LLAMA = "llama-3.1-8b"
#: One sequence on eight GPUs that divide the model.
_EIGHT = Setup(batch=1, sequence=4096, precision="bf16", gpus=8, mesh=Mesh(tensor=8))


def _sent(parts, width=8192, tokens=4096):
    return int(formula("tensor.sent")(tensor=parts, weight_bytes=2, batch=1, sequence=tokens, width=width))


def _whole():
    """What a gradient with all rows adds to the weights' bytes."""
    run = step(LLAMA, _EIGHT)
    return run.parts_at("after_backward")["gradients"] - run.parts_at("rest")["parameters"]


@cache
def _loss(divided):
    return at("tensor.loss", LLAMA, _EIGHT, gpus=2, mesh=Mesh(tensor=2, loss_parallel=divided))


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


def _parted(weights, parts, *, norms=True, sums=True, tables=True):
    """The answer, or what it would be with norms or the biases of sums divided, or with whole tables."""
    total = 0
    for name, shape in weights:
        whole = norms and "norm" in name or sums and name.endswith(("out.bias", "down.bias"))
        whole = whole or not tables and name in ("token.weight", "position.weight")
        total += prod(shape) // (1 if whole else parts)
    return total


ANSWERS = {
    "33.1": answers(
        lambda: _sent(8), forward=lambda: _sent(8) / 2, whole=8 * 2 * 4096 * 8192, one=lambda: _sent(8) / 8
    ),
    "33.2": answers(8 * B * S * H / t, dtensor=B * S * H * (4 / t + 4), tokens=8 * B * S * H, norms=4 * B * S * H / t),
    "33.3": answers(_whole, whole=2 * 128_256 * 4096, share=2 * 128_256 * 4096 // 8, fp32=4 * 128_256 * 4096 * 7 // 8),
    "33.4": answers(
        lambda: 100 * (_loss(True) / _loss(False) - 1),
        fp32=100 * (16 / 2 / 12 - 1),
        half=-50,
        ratio=lambda: 100 * _loss(True) / _loss(False),
    ),
    "33.5": program(_parted, _split, norms=False, sums=False, tables=False),
}
