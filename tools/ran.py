"""What scripts of `tools/beside` ran on a GPU, in the library's own terms."""

from random import Random

import everybyte as eb


def llama(layers: int) -> eb.Model:
    """The small Llama of `beside/cases.py`, `SMALL`, with so many layers."""
    return eb.model("llama-3.1-8b").replace(
        layers=layers, width=1024, ffn_width=2816, heads=16, kv_heads=4, head_width=64, vocabulary=32_003, embedding_width=1024,
    )  # fmt: skip


def lengths() -> list[int]:
    """Tokens of the sequences of `beside/scripts/epoch.py`, in the order in which it draws them: four for each of 150 steps."""
    draw = Random(0)
    return [max(16, min(4096, int(draw.lognormvariate(6.0, 0.8)))) for _ in range(600)]
