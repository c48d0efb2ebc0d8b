"""Chapter 11's explorer: a transformer's parameters, by group, from its dimensions."""

import math

from ..catalog import Model
from ..formulas import SYMBOLS, bindings, formula
from .controls import Choice, Slider, opens
from .explorer import Explorer
from .pictures import Stack

_YES_NO = {"tied": ("its own table", "the token table (tied)"), "gated": ("two matrices", "three matrices (gated)")}
#: {symbol: (label, most, step)}
_SLIDERS = {
    "layers": ("layers", 128, 1),
    "heads": ("heads", 128, 1),
    "kv_heads": ("key-value heads", 128, 1),
    "head_width": ("width of a head", 256, 8),
    "ffn_width": ("width of the MLP", 65536, 64),
    "vocabulary": ("vocabulary", 262144, 1),
    "learned_positions": ("learned positions", 8192, 1),
}


def _slider(name, label, most, step, start):
    step = math.gcd(step, start)
    low = 0 if name == "learned_positions" else step
    return Slider(name, label, low, most, start, step, divides="heads" if name == "kv_heads" else "")


def _fault(model):
    """Why the explorer cannot show `model`, or nothing."""
    if model.experts or model.latent_rank:
        return "has experts or latent attention"
    if model.width != model.heads * model.head_width or model.embedding_width != model.width:
        return "has a width that is not heads times head_width, or a token table of another width"
    return ""


@opens
def parameters(model: Model | None = None) -> Explorer:
    """The parameters of a dense transformer: embeddings, attention, MLP, norms and head, as its dimensions move.

    The width is the heads times the width of a head, so that heads always divide it; of the key-value heads only
    divisors of the heads are offered. What has no slider (biases, norms) stays as in the model chosen.

    Args:
        model: what it opens with, one of your own too; by default GPT-2.

    Raises:
        ValueError: a model with experts or latent attention, or whose width is not heads times head width.
    """
    from ..catalog import models

    known = {name: m for name, m in models().items() if not _fault(m)}
    start = model or known["gpt2"]
    if _fault(start):
        raise ValueError(
            f"parameters.model: {start.name} {_fault(start)}; allowed: {', '.join(known)}, or a dense Model"
        )
    if known.get(start.name) != start:
        known = {**{n: m for n, m in known.items() if n != start.name}, start.name: start}

    values = {name: bindings(m, None) for name, m in known.items()}
    sets = {name: {k: v[k] for k in (*_SLIDERS, *_YES_NO)} for name, v in values.items()}
    at = sets[start.name]
    controls = [
        Choice("model", "start from", values, start.name, sets=sets),
        *(
            Choice(name, {"tied": "output head", "gated": "MLP"}[name], {label: {name: i} for i, label in enumerate(labels)},
                   labels[at[name]])
            for name, labels in _YES_NO.items()
        ),
        *(_slider(name, label, most, step, at[name]) for name, (label, most, step) in _SLIDERS.items()),
    ]  # fmt: skip
    layers, width = SYMBOLS["layers"].symbol, SYMBOLS["width"].symbol
    a_layer = {item: formula(f"parameters.{item}").expr for item in ("attention", "mlp", "norms")}
    parts = [
        ("embeddings", "embeddings", "parameters.embeddings"),
        ("attention", "attention", layers * a_layer["attention"]),
        ("mlp", "MLP", layers * a_layer["mlp"]),
        ("norms", "norms", layers * a_layer["norms"]),
        ("head", "last norm and head", "parameters.final"),
    ]
    return Explorer(
        "Parameters of a transformer",
        controls,
        Stack(parts, unit="parameters", shares=True),
        {name: {"model": name} for name in ("gpt2", "gpt2-xl", "llama-2-7b", "llama-3.1-8b", "gemma-2b")},
        derived=[("width", SYMBOLS["heads"].symbol * SYMBOLS["head_width"].symbol), ("embedding_width", width)],
        subject=("model",),
        also=("width",),
    )
