"""Exercises of chapter 33: what does splitting one matrix split?"""

from math import prod

from ...formulas.symbols import B, H, S, t
from . import Case, Mesh, Run, Setup, answers, formula, named_shapes, program, run, small_gpts, small_llamas

#: One sequence on eight GPUs that divide the model, and on two.
EIGHT = run("llama-3.1-8b", batch=1, sequence=4096, precision="bf16", gpus=8, mesh=Mesh(tensor=8))
DIVIDED, WHOLE = (
    EIGHT.at("tensor.loss", gpus=2, mesh=Mesh(tensor=2, loss_parallel=divided)) for divided in (True, False)
)
SENT = int(formula("tensor.sent")(tensor=8, weight_bytes=2, batch=1, sequence=4096, width=8192))


def split():
    """Small models whose heads, inner width, vocabulary and positions divide."""
    fits = {"width": 64, "heads": 8, "head_width": 8, "ffn_width": 192, "vocabulary": 96}
    models = [m.replace(**fits) for m in small_gpts(33, 4)]
    models += [m.replace(**fits, kv_heads=8 // (1 + i % 2)) for i, m in enumerate(small_llamas(33, 4))]
    for m, parts in zip(models, 2 * (2, 4, 8, 1), strict=True):
        right = m.parameters
        if parts > 1:
            run = Run(m, Setup(batch=1, sequence=64, precision="bf16", gpus=parts, mesh=Mesh(tensor=parts)))
            right = int(run.at("tensor.parameters"))
        yield Case(f"{m.name} on {parts} GPU{'s' * (parts > 1)}", (named_shapes(m), parts), right)


def parted(weights, parts, *, norms=True, sums=True, tables=True):
    total = 0
    for name, shape in weights:
        whole = norms and "norm" in name or sums and name.endswith(("out.bias", "down.bias"))
        whole = whole or not tables and name in ("token.weight", "position.weight")
        total += prod(shape) // (1 if whole else parts)
    return total


ANSWERS = {
    "33.1": answers(SENT, forward=SENT / 2, whole=8 * 2 * 4096 * 8192, one=SENT / 8),
    "33.2": answers(8 * B * S * H / t, dtensor=B * S * H * (4 / t + 4), tokens=8 * B * S * H, norms=4 * B * S * H / t),
    "33.3": answers(
        EIGHT.part("gradients", "after_backward") - EIGHT.part("parameters", "rest"),
        whole=2 * 128_256 * 4096,
        share=2 * 128_256 * 4096 // 8,
        fp32=4 * 128_256 * 4096 * 7 // 8,
    ),
    "33.4": answers(100 * (DIVIDED / WHOLE - 1), fp32=100 * (16 / 2 / 12 - 1), half=-50, ratio=100 * DIVIDED / WHOLE),
    "33.5": program(parted, split, norms=False, sums=False, tables=False),
}
