"""Which of Hugging Face's decoders generates as a model does, by the model's features."""

from collections.abc import Sequence
from typing import Any

from .models import Model

#: Field of `Model` -> what it may be, in Llama; the others differ from it.
_LLAMA: dict[str, Sequence[Any]] = {
    "causal": (True,), "post_norm": (False,), "softcap": (False,), "sinks": (False,), "pooler": (False,), "token_types": (0,),
    "embedding_norm": (False,), "final_norm": (True,), "block_norms": (2,), "projected": (False,),
    "latent": (False,), "parallel_residual": (False,), "norm": ("rmsnorm",), "norm_offset": (False,), "has_positions": (False,),
    "gated": (True,), "activation": ("silu",), "fused": (False,), "qk_norm": (False,), "scaled_embedding": (False,),
    "has_experts": (False,), "shared_experts": (0,), "dense_layers": (0,), "router_bias": (False,), "window": (0,),
    "rotary_percent": (100,), "qkv_bias": (False,), "out_bias": (False,), "ffn_bias": (False,),
}  # fmt: skip
_BIASED: dict[str, Sequence[Any]] = {
    "qkv_bias": (True,),
    "out_bias": (True,),
    "ffn_bias": (True,),
    "norm": ("layernorm",),
    "gated": (False,),
}
_GPT2 = _BIASED | {"has_positions": (True,), "fused": (True,), "activation": ("gelu", "gelu_tanh", "relu")}
_ANY = range(2**27)
#: transformers' `model_type` -> what its models are.
DECODERS = {
    "llama": _LLAMA,
    "mistral": _LLAMA | {"window": _ANY},
    "qwen2": _LLAMA | {"qkv_bias": (True,)},
    "qwen3": _LLAMA | {"qk_norm": (True,)},
    "gemma": _LLAMA | {"norm_offset": (True,), "scaled_embedding": (True,), "activation": ("gelu_tanh",)},
    "phi3": _LLAMA | {"fused": (True,), "window": _ANY},
    "mixtral": _LLAMA | {"has_experts": (True,)},
    "deepseek_v3": _LLAMA | {"latent": (True,), "has_experts": (True,), "shared_experts": range(1, 2**24), "dense_layers": _ANY, "router_bias": (True,)},
    "gpt2": _LLAMA | _GPT2,
    "opt": _LLAMA | _GPT2 | {"fused": (False,), "activation": ("relu",)},
    "gpt_neox": _LLAMA | _BIASED | {"parallel_residual": (True,), "fused": (True,), "activation": ("gelu",), "rotary_percent": range(1, 101)},
}  # fmt: skip


def decoder(model: Model) -> str:
    """transformers' `model_type` of the decoder that a model is.

    Raises:
        ValueError: where it is none of those whose passes are derived: naming the field that keeps it from the nearest.
    """
    apart = {
        name: [field for field, allowed in wanted.items() if getattr(model, field) not in allowed]
        for name, wanted in DECODERS.items()
    }
    nearest = min(apart, key=lambda name: len(apart[name]))
    if not apart[nearest]:
        return nearest
    field = apart[nearest][0]
    allowed = DECODERS[nearest][field]
    said = f"{allowed[0]} to {allowed[-1]:,}" if isinstance(allowed, range) else " or ".join(map(repr, allowed))
    raise ValueError(
        f"Model.{field}: {getattr(model, field)!r} of {model.name} is of no decoder whose passes are derived; allowed, as in "
        f"{nearest}: {said}"
    )
