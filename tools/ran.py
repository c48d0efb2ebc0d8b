"""What scripts of `tools/beside` ran on a GPU, in the library's own terms."""

import json
from functools import cache
from pathlib import Path
from random import Random

import everybyte as eb


@cache
def scripts(file: str = "records/scripts/h200") -> dict[str, dict]:
    """{name: its line} of a file of `labs`: the scripts that a GPU ran, or that were rehearsed.

    Raises:
        ValueError: two of one name.
    """
    path = Path(__file__).resolve().parents[1] / f"labs/{file}.jsonl"
    lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    found = {line["name"]: line for line in lines}
    if len(found) < len(lines):
        raise ValueError(f"{file}: {len(lines)} lines of {len(found)} names; allowed: one of each")
    return found


def llama(layers: int) -> eb.Model:
    """The small Llama of `beside/cases.py`, `SMALL`, with so many layers."""
    return eb.model("llama-3.1-8b").replace(
        layers=layers, width=1024, ffn_width=2816, heads=16, kv_heads=4, head_width=64, vocabulary=32_003, embedding_width=1024,
    )  # fmt: skip


def lengths() -> list[int]:
    """Tokens of the sequences of `beside/scripts/epoch.py`, in the order in which it draws them: four for each of 150 steps."""
    draw = Random(0)
    return [max(16, min(4096, int(draw.lognormvariate(6.0, 0.8)))) for _ in range(600)]
