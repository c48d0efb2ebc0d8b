"""Chapter 11's explorer: a transformer's parameters, by group, from its dimensions."""

import math

from ..catalog import Model
from ..formulas import SYMBOLS, bindings, formula
from .beside import said
from .controls import Choice, Slider, listed, opens, with_own
from .explorer import Explorer, told
from .pictures import Stack


def _slider(name, of_it, start):
    label, most, step = of_it
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
    if fault := _fault(start):
        raise ValueError(f"parameters.model: {start.name} {fault}; allowed: {', '.join(known)}, or a dense Model")
    values = {name: bindings(m, None) for name, m in with_own(known, start).items()}
    sliders, choices = said("parameters")["sliders"], said("parameters")["choices"]
    sets = {name: {k: v[k] for k in (*sliders, *choices)} for name, v in values.items()}
    at = sets[start.name]
    controls = [
        Choice("model", "start from", values, start.name, sets=sets),
        *(listed(name, label, options, options[at[name]]) for name, (label, options) in choices.items()),
        *(_slider(name, of_it, at[name]) for name, of_it in sliders.items()),
    ]
    layers, width = SYMBOLS["layers"].symbol, SYMBOLS["width"].symbol
    parts = [
        ("embeddings", "embeddings", "parameters.embeddings"),
        *((name, label, layers * formula(f"parameters.{name}").expr)
          for name, label in (("attention", "attention"), ("mlp", "MLP"), ("norms", "norms"))),
        ("head", "last norm and head", "parameters.final"),
    ]  # fmt: skip
    derived = [("width", SYMBOLS["heads"].symbol * SYMBOLS["head_width"].symbol), ("embedding_width", width)]
    return told("parameters", controls, Stack(parts, unit="parameters", shares=True), derived=derived)
