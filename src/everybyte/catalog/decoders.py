"""Which of Hugging Face's decoders a model is, decided by its fields."""

from .models import Model, architectures
from .weights import ENDS

#: transformers' `model_type` -> field of `Model` -> allowed values.
DECODERS = architectures("decoders.toml")
#: Modules of a block as transformers' classes make them, one after another: the order of the optimizer's tensors. Others are as Llama.
ORDERS = {
    "llama": ("attention.sinks", "attention", "mlp.router", "mlp.gate_up", "mlp", "norm"),
    "phi3": ("attention.out", "attention", "mlp", "norm"),
    "gpt2": ("norm1", "attention", "norm2", "mlp"),
    "gpt_neox": ("norm1", "norm2", "attention", "mlp"),
    "deepseek_v3": ("attention", "mlp", "norm"),
    "qwen3_moe": ("attention", "mlp", "norm"),
    "llama4_text": ("attention", "mlp", "norm"),
    "glm4_moe": ("attention", "mlp", "norm"),
    "opt": ("attention.k", "attention.v", "attention.q", "attention.out", "norm1", "mlp", "norm2"),
}
#: Those whose last norm is made before the blocks.
NORM_FIRST = ("opt",)


def untrained(model: Model) -> str | None:
    """Why no training step of a Hugging Face decoder is derived for the model, in words; None where one is."""
    try:
        decoder(model)
    except ValueError as error:
        return str(error)
    return None


def optimized(model: Model, weights: list) -> list:
    """Rows that begin with a weight, in the order in which an optimizer of transformers' code gets them: of one block, and the ends."""
    kind = decoder(model)
    order, first = ORDERS.get(kind, ORDERS["llama"]), ("norm.",) * (kind in NORM_FIRST)

    def place(row):
        weight = row[0]
        if weight.group in ENDS:
            return (weight.group == ENDS[1] and not weight.name.startswith(first)) * 2, 0
        return 1, next(i for i, name in enumerate(order) if weight.name.startswith(name))

    return sorted(weights, key=place)


def _allows(model, field, allowed):
    """Whether a field's value is allowed. A range looks at all of its numbers for one that is no plain int, as a tape's sizes are."""
    value = getattr(model, field)
    if isinstance(allowed, str):
        return value == getattr(model, allowed)
    return allowed.start <= value < allowed.stop if isinstance(allowed, range) else value in allowed


def _in_words(model, allowed):
    if isinstance(allowed, str):
        return f"{getattr(model, allowed):g}, as {allowed}"
    return f"{allowed[0]} to {allowed[-1]:,}" if isinstance(allowed, range) else " or ".join(map(repr, allowed))


def decoder(model: Model) -> str:
    """transformers' `model_type` of the decoder that a model is.

    Raises:
        ValueError: where it is none of the derived decoders; the message names the field that differs from the nearest one.
    """
    apart = {
        name: [field for field, allowed in wanted.items() if not _allows(model, field, allowed)]
        for name, wanted in DECODERS.items()
    }
    nearest = min(apart, key=lambda name: len(apart[name]))
    if not apart[nearest]:
        return nearest
    field = apart[nearest][0]
    said = _in_words(model, DECODERS[nearest][field])
    raise ValueError(
        f"Model.{field}: {getattr(model, field)!r} of {model.name} is of no decoder whose passes are derived; allowed, as in "
        f"{nearest}: {said}"
    )
