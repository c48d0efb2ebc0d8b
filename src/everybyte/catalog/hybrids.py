"""Hybrids: models whose layers have a recurrent state in place of keys and values, or beside them, read off Hugging Face's configs.

Only a config is asked, so neither PyTorch nor transformers is imported here. Sources: transformers 5.23, models/*/configuration_*.py, and
`cache_utils.py`, `LinearAttentionLayer`; vLLM, `model_executor/layers/mamba/mamba_utils.py`, and `models/config.py` for data types.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from ..common import checks
from .models import Model

#: Fields of `States` that a config says.
_SIZES = ("heads", "columns", "groups", "rows", "convolved")
_DELTA = (
    "linear_num_value_heads", "linear_value_head_dim", "linear_num_key_heads", "linear_key_head_dim", "linear_conv_kernel_dim",
)  # fmt: skip
_MAMBA = ("mamba_n_heads", "mamba_d_head", "mamba_n_groups", "mamba_d_state", "mamba_d_conv")
_KIMI = ("linear_num_heads", "linear_head_dim", "linear_num_heads", "linear_head_dim", "linear_conv_kernel_dim")
_NEMOTRON = ("mamba_num_heads", "mamba_head_dim", "n_groups", "ssm_state_size", "conv_kernel")
_MAMBA2 = ("num_heads", "head_dim", "n_groups", "state_size", "conv_kernel")
#: Mamba's first has a state a channel, and nothing else in the convolution.
_MAMBA1 = ("intermediate_size", 1, 0, "state_size", "conv_kernel")
#: transformers' `model_type` -> what it calls each of `_SIZES`, or what that always is.
KINDS: dict[str, tuple[str | int, ...]] = {
    "qwen3_next": _DELTA, "qwen3_5_text": _DELTA, "qwen3_5_moe_text": _DELTA, "kimi_linear": _KIMI,
    "falcon_h1": _MAMBA, "bamba": _MAMBA, "granitemoehybrid": _MAMBA, "nemotron_h": _NEMOTRON, "mamba2": _MAMBA2,
    "mamba": _MAMBA1, "falcon_mamba": _MAMBA1,
}  # fmt: skip
#: Kinds whose groups are Mamba-2's: an engine repeats a single one on each GPU.
_GROUPED = ("falcon_h1", "bamba", "granitemoehybrid", "nemotron_h", "mamba2")
#: Field of a config that says the data type of the recurrent state, which vLLM then takes; without one, the model's own.
_SAID = dict.fromkeys(("qwen3_5_text", "qwen3_5_moe_text"), "mamba_ssm_dtype") | {"nemotron_h": "mamba_ssm_cache_dtype"}
#: Kinds of which vLLM keeps recurrent states in fp32 whatever is said.
WIDE = ("kimi_linear",)
#: Kinds whose weights vLLM holds as transformers makes them, but for the decay rates, which it has in fp32.
COUNTED = ("qwen3_next", "bamba", "granitemoehybrid")
#: Of these, those whose weights are known divided: parts of the names of what stands whole on each GPU.
_WHOLE = {"qwen3_next": ("norm", ".mlp.gate.", "shared_expert_gate")}
#: Bytes of a number in a recurrent state, by data type, and torch's names of these.
STATE_TYPES = {"bf16": 2, "fp16": 2, "fp32": 4}
_TYPES = {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32"}
#: Layers by the name that transformers' caches know them by.
_STATE, _KEYS, _NEITHER = ("linear_attention", "hybrid"), ("full_attention", "hybrid"), ("mlp", "moe")


@dataclass(frozen=True)
class States:
    """Layers with a recurrent state, all alike.

    Attributes:
        layers: how many. heads, rows, columns: of the state of one, a matrix a head. groups: heads of what is `rows` wide beside in the
            convolution: keys and queries of a delta net, B and C of Mamba-2; 0 of Mamba. convolved: tokens that the short convolution sees.
        grouped: whether one group is repeated on each GPU, as Mamba-2's is.
    """

    layers: int
    heads: int
    rows: int
    columns: int
    groups: int
    convolved: int
    grouped: bool = False

    def held(self) -> int:
        """Bytes of one sequence in one layer, as transformers keeps them: the state in fp32, all convolved tokens in 16 bits."""
        return 4 * self.heads * self.rows * self.columns + 2 * self.convolved * self._convolution(1)

    def page(self, gpus: int, dtype: str) -> int:
        """Bytes of one sequence in one layer on each of so many GPUs, as vLLM keeps them: convolved tokens but the newest, in 16 bits."""
        state = STATE_TYPES[dtype] * self.heads * self.rows * self.columns
        return (state + 2 * (self.convolved - 1) * self._convolution(gpus)) // gpus

    def undivided(self, gpus: int) -> str:
        """What so many GPUs do not divide, in words; empty where they do."""
        repeated = self.grouped and self.groups == 1
        for what, number in (("heads", self.heads), ("groups", gpus if repeated else self.groups)):
            if number % gpus:
                return f"the {number} {what} of its states"
        return ""

    def _convolution(self, gpus):
        """Numbers that a token leaves in the convolution, on all GPUs: a group that is repeated on each counted there."""
        groups = gpus if self.groups % gpus else self.groups
        return self.heads * self.columns + 2 * groups * self.rows


@dataclass(frozen=True, eq=False)
class Hybrid:
    """A hybrid, as its config says it.

    Attributes:
        name, kind: its name, and transformers' `model_type`. layers: all of them. states: those with a recurrent state.
        attention: a `Model` of those with keys and values alone, for what these cache; None where there are none.
        positions: of the config. dtype: data type of a recurrent state that it asks an engine for, or "".
        config: what it was read from. whole: whether that is the language model's own, not one of images and text. stored: whether its
            weights are stored in fewer bits, as its `quantization_config` says. count: of a config the weights, as `weights`.
    """

    name: str
    kind: str
    layers: int
    states: States
    attention: Model | None
    positions: int
    dtype: str
    config: Any
    whole: bool
    stored: bool
    count: Callable[[Any], dict[str, int]] = field(repr=False)

    @property
    def causal(self) -> bool:
        """Whether it generates."""
        return True

    @property
    def latent(self) -> bool:
        """Whether its attention is latent."""
        return self.attention is not None and self.attention.latent

    @property
    def kv_heads(self) -> int:
        """Key and value heads of a layer with attention."""
        return self.attention.kv_heads if self.attention else 0

    @cached_property
    def weights(self) -> dict[str, int]:
        """Name -> numbers of each weight of transformers' language model, made without data. Raises ImportError without PyTorch."""
        return self.count(self.config)

    @property
    def parameters(self) -> int:
        """The parameter count of the language model. Raises ImportError without PyTorch."""
        return sum(self.weights.values())

    def counted(self, gpus: int) -> bool:
        """Whether the bytes of its weights on each of so many GPUs of an engine are known from its config."""
        divided = self.kind in _WHOLE and not self.kv_heads % gpus
        return self.kind in COUNTED and self.whole and not self.stored and (gpus == 1 or divided)

    def standing(self, gpus: int, padded: int) -> dict[str, int]:
        """Part -> bytes on each of so many GPUs of an engine, in 16 bits. padded: what rows of token tables are padded to a multiple of."""
        text, states, whole = self.config, self.states, _WHOLE.get(self.kind, ())
        divided = {name: 1 if any(one in name for one in whole) else gpus for name in self.weights}
        numbers = sum(size // divided[name] for name, size in self.weights.items())
        rows = -text.vocab_size % padded * (1 if text.tie_word_embeddings else 2)
        wide = self.attention.head_width if self.attention else 0
        turning = int(wide * (text.rope_parameters or {}).get("partial_rotary_factor", 1))
        if self.kind == "granitemoehybrid" and text.position_embedding_type != "rope":
            turning = 0
        rates = 2 * states.layers * states.heads  # of decay, in fp32
        weights = 2 * numbers + (2 * rows * text.hidden_size + rates) // gpus
        return {"weights": weights} | ({"rotary table": self.positions * turning * 2} if turning else {})


def hybrid(config, count: Callable[[Any], dict[str, int]]) -> Hybrid | None:
    """The hybrid that a Hugging Face config says, or the language model in it; None where it has no layers with a state.

    count: of a config the numbers of each weight by its name, which is asked for when they are.

    Raises:
        ValueError: a hybrid of another kind than `KINDS`, or with layers of a kind that is not derived.
    """
    text = config.get_text_config()
    kind, types = text.model_type, getattr(text, "layer_types", None)
    if not types or not set(types) & {*_STATE, "conv", "mamba", "hybrid_sliding"}:
        return None
    owner = f"{type(config).__name__}.layer_types"
    if kind not in KINDS:
        raise ValueError(f"{owner}: states of {kind!r} are not derived; allowed: those of {', '.join(KINDS)}")
    strange = next((one for one in types if one not in {*_STATE, *_KEYS, *_NEITHER}), None)
    if strange is not None:
        raise ValueError(
            f"{owner}: {strange!r} is not derived; allowed: {', '.join(dict.fromkeys(_STATE + _KEYS + _NEITHER))}"
        )
    name = (getattr(text, "name_or_path", "") or getattr(config, "name_or_path", "") or kind).rpartition("/")[2]
    said_sizes = (theirs if isinstance(theirs, int) else _size(text, theirs) for theirs in KINDS[kind])
    sizes = dict(zip(_SIZES, said_sizes, strict=True))
    states = States(sum(one in _STATE for one in types), **sizes, grouped=kind in _GROUPED)
    said = str(getattr(text, _SAID.get(kind, ""), None) or "").removeprefix("torch.") if kind in _SAID else ""
    if said and said not in _TYPES:
        raise ValueError(f"{type(text).__name__}.{_SAID[kind]}: {checks.shown(said)}; allowed: {', '.join(_TYPES)}")
    attends = sum(one in _KEYS for one in types)
    positions = getattr(text, "max_position_embeddings", 0) or 0
    stored = any(getattr(one, "quantization_config", None) is not None for one in (config, text))
    return Hybrid(
        name, kind, len(types), states, _attention(text, name, attends) if attends else None, positions,
        "fp32" if kind in WIDE else _TYPES.get(said, ""), text, text is config, stored, count,
    )  # fmt: skip


def _size(text, field):
    """A whole number of a config. Raise ValueError where it is none."""
    value = getattr(text, field, None)
    checks.whole(type(text).__name__, field, value, 1, 2**24)
    return value


def _attention(text, name, layers):
    """A `Model` of the layers with attention, of which only what they cache is meant: keys and values, or a latent."""
    heads, width = _size(text, "num_attention_heads"), _size(text, "hidden_size")
    fields = {
        "name": name,
        "layers": layers,
        "width": width,
        "heads": heads,
        "vocabulary": _size(text, "vocab_size"),
        "gated": True,
    }
    if getattr(text, "kv_lora_rank", None):
        latent = {"latent_rank": "kv_lora_rank", "rope_width": "qk_rope_head_dim", "value_width": "v_head_dim"}
        fields |= {field: _size(text, theirs) for field, theirs in latent.items()} | {"query_rank": width}
        return Model(**fields, head_width=text.qk_nope_head_dim + text.qk_rope_head_dim)
    own = getattr(text, "head_dim", None) or width // heads
    return Model(**fields, kv_heads=_size(text, "num_key_value_heads"), head_width=own)
