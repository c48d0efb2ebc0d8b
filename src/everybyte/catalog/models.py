"""A transformer's dimensions, and the catalog of published ones."""

import tomllib
from dataclasses import dataclass, fields, replace
from functools import cache
from importlib import resources

from .. import checks

NORMS = ("layernorm", "rmsnorm")
_REQUIRED = ("layers", "width", "heads", "vocabulary")
#: Where an unstated field comes from. Order matters: a default may use the one before it.
_DEFAULTS = {
    "learned_positions": lambda m: m.positions,
    "kv_heads": lambda m: m.heads,
    "head_width": lambda m: m.width // m.heads,
    "ffn_width": lambda m: 4 * m.width,
    "embedding_width": lambda m: m.width,
    "norm_bias": lambda m: m.norm == "layernorm",
}
#: Fields that may not be 0.
_POSITIVE = {*_REQUIRED, "kv_heads", "head_width", "ffn_width", "embedding_width", "published"}
#: The largest dimension that is taken for one, and the exceptions.
_MOST = 2**24
_MORE = {"positions": 2**27, "learned_positions": 2**27, "published": 2**60}
#: Fields that describe only models with the field named first; 0 elsewhere.
_MIXTURE = ("experts", "experts_per_token", "expert_width", "shared_experts", "dense_layers", "router_bias")
_LATENT = ("latent_rank", "query_rank", "rope_width", "value_width")


@dataclass(frozen=True, kw_only=True)
class Model:
    """The dimensions that decide a transformer's parameter count and memory. Counts, not bytes.

    Required: `layers`, `width` (the residual stream's), `heads`, `vocabulary`. The rest defaults to GPT-2's architecture:
    learned positions, biases everywhere, LayerNorm before attention and MLP and at the end, MLP of four times the width,
    tied embedding and output head.

    Attributes:
        name: as in the catalog, or any text for a model of your own.
        positions: the longest sequence; 0 where nothing bounds it.
        learned_positions: rows of the learned position table; 0 for rotary or no positions; by default `positions`.
        kv_heads: key and value heads (grouped-query attention); by default `heads`.
        head_width: width of one head; by default `width // heads`.
        ffn_width: inner width of the dense MLP; by default `4 * width`.
        gated: three MLP matrices (SwiGLU, GeGLU) in place of two.
        fused: query, key and value are one weight tensor (and a gated MLP's two inner matrices one).
        tied: the output head is the embedding table.
        qkv_bias, out_bias, ffn_bias: biases of the attention's input and output projections and of the MLP.
        norm: `layernorm` or `rmsnorm`; norm_bias: whether a layernorm has a bias, as by default.
        block_norms: norms of width `width` in a block. final_norm, embedding_norm: whether there is one.
        qk_norm: a norm of `head_width` on queries and one on keys.
        sinks: one learned attention sink a head.
        embedding_width: width of the token table; a projection each way where it differs from `width`.
        token_types: rows of BERT's segment table. pooler: BERT's last dense layer, `width` by `width`.
        experts: routed experts in each mixture layer; 0 for a dense model. experts_per_token: how many a token visits.
        expert_width: inner width of an expert. shared_experts: experts that every token visits.
        dense_layers: layers at the start that keep the dense MLP. router_bias: a bias for each expert's score.
        query_rank, latent_rank, rope_width, value_width: multi-head latent attention (DeepSeek): ranks of the query's and
            the key-value's compression, rotary part of each head, width of a value head. `latent_rank` 0: no latent attention.
        published: the published parameter count, if any; source: where it and the dimensions stand.

    Raises:
        ValueError: naming the field, the value and what is allowed.
    """

    name: str = "custom"
    layers: int
    width: int
    heads: int
    vocabulary: int
    positions: int = 0
    learned_positions: int | None = None
    kv_heads: int | None = None
    head_width: int | None = None
    ffn_width: int | None = None
    gated: bool = False
    fused: bool = True
    tied: bool = True
    qkv_bias: bool = True
    out_bias: bool = True
    ffn_bias: bool = True
    norm: str = "layernorm"
    norm_bias: bool | None = None
    block_norms: int = 2
    final_norm: bool = True
    embedding_norm: bool = False
    qk_norm: bool = False
    sinks: bool = False
    embedding_width: int | None = None
    token_types: int = 0
    pooler: bool = False
    experts: int = 0
    experts_per_token: int = 0
    expert_width: int = 0
    shared_experts: int = 0
    dense_layers: int = 0
    router_bias: bool = False
    query_rank: int = 0
    latent_rank: int = 0
    rope_width: int = 0
    value_width: int = 0
    published: int | None = None
    source: str = ""

    def __post_init__(self):
        self._check_each()
        if self.head_width is None and self.width % self.heads:
            raise ValueError(
                f"Model.heads: {self.heads} does not divide the width {self.width}; allowed: its divisors, such as "
                f"{_divisors_near(self.width, self.heads)}, or a head_width of its own"
            )
        for field, default in _DEFAULTS.items():
            if getattr(self, field) is None:
                object.__setattr__(self, field, default(self))
        self._check_together()

    def _check_each(self):
        for field in fields(self):
            value = getattr(self, field.name)
            if value is None and field.default is None:
                continue
            if field.type in (bool, bool | None):
                checks.flag("Model", field.name, value)
            elif field.type in (int, int | None):
                checks.whole("Model", field.name, value, int(field.name in _POSITIVE), _MORE.get(field.name, _MOST))
            elif not isinstance(value, str):
                raise ValueError(f"Model.{field.name}: {value!r} is not text")
        checks.one_of("Model", "norm", self.norm, NORMS)

    def _check_together(self):
        if self.heads % self.kv_heads:
            raise ValueError(
                f"Model.kv_heads: {self.kv_heads} does not divide the {self.heads} heads; allowed: its divisors, such as "
                f"{_divisors_near(self.heads, self.kv_heads)}"
            )
        if self.learned_positions and not 0 < self.positions <= self.learned_positions:
            raise ValueError(
                f"Model.positions: {self.positions} with a table of {self.learned_positions} learned positions; "
                f"allowed: 1 to {self.learned_positions}"
            )
        if self.norm == "rmsnorm" and self.norm_bias:
            raise ValueError("Model.norm_bias: True does not go with norm 'rmsnorm'; allowed: False")
        self._only_with(*_MIXTURE)
        if self.experts:
            checks.whole("Model", "experts_per_token", self.experts_per_token, 1, self.experts)
            checks.whole("Model", "expert_width", self.expert_width, 1, _MOST)
            checks.whole("Model", "dense_layers", self.dense_layers, 0, self.layers)
        self._only_with(*_LATENT)
        if self.latent_rank:
            checks.whole("Model", "query_rank", self.query_rank, 1, _MOST)
            checks.whole("Model", "rope_width", self.rope_width, 1, self.head_width)
            checks.whole("Model", "value_width", self.value_width, 1, _MOST)

    def _only_with(self, switch, *others):
        for field in others:
            if getattr(self, field) and not getattr(self, switch):
                raise ValueError(
                    f"Model.{field}: {getattr(self, field)!r} needs {switch}; allowed where {switch} is 0: "
                    f"{type(getattr(self, field))()!r}"
                )

    @property
    def parameters(self) -> int:
        """The parameter count, from the formula `parameters`."""
        from ..formulas import formula

        return int(formula("parameters").at(self))

    def unlike_gpt(self) -> str | None:
        """What keeps the model from being a GPT as the book's reference builds it, in words; None where nothing does."""
        wanted = dict.fromkeys(("experts", "latent_rank", "token_types"), 0)
        wanted |= dict.fromkeys(("gated", "embedding_norm", "qk_norm", "sinks", "pooler"), False)
        wanted |= {"norm": "layernorm", "fused": True, "block_norms": 2, "final_norm": True, "kv_heads": self.heads}
        wanted |= {"head_width": self.width / self.heads, "embedding_width": self.width}
        wanted |= {"learned_positions": self.positions or "1 or more"}
        return self._unlike("a GPT", wanted)

    def unlike_llama(self) -> str | None:
        """What keeps the model from being a Llama as the book's reference builds it, in words; None where nothing does."""
        wanted = dict.fromkeys(("experts", "latent_rank", "token_types", "learned_positions"), 0)
        wanted |= dict.fromkeys(
            ("embedding_norm", "qk_norm", "sinks", "pooler", "fused", "out_bias", "ffn_bias"), False
        )
        wanted |= {
            "gated": True,
            "norm": "rmsnorm",
            "block_norms": 2,
            "final_norm": True,
            "embedding_width": self.width,
        }
        if not (unlike := self._unlike("a Llama", wanted)) and self.head_width % 2:
            return (
                f"Model.head_width: {self.head_width} of {self.name} cannot be turned in pairs; allowed: even numbers"
            )
        return unlike

    def _unlike(self, what, wanted):
        for field, value in wanted.items():
            if getattr(self, field) != value:
                return f"Model.{field}: {getattr(self, field)!r} of {self.name} is not {what}'s; allowed: {value!r}"
        return None

    def replace(self, **changes) -> "Model":
        """A copy with some fields changed, checked again.

        A dimension that had its default follows the change (GPT-2 at twice the width has twice the `ffn_width`).
        `published` does not carry over.
        """
        following = {f: None for f, default in _DEFAULTS.items() if getattr(self, f) == default(self)}
        return replace(self, **{"published": None} | following | changes)


def _divisors_near(number: int, wanted: int) -> str:
    divisors = [d for d in range(1, number + 1) if number % d == 0]
    return ", ".join(map(str, sorted(sorted(divisors, key=lambda d: abs(d - wanted))[:4])))


@cache
def models() -> dict[str, Model]:
    """Every model of the catalog, by name, in the catalog's order."""
    text = resources.files(__package__).joinpath("models.toml").read_text(encoding="utf-8")
    entries = {}
    for name, entry in tomllib.loads(text).items():
        entries[name] = (entries[entry.pop("like")] if "like" in entry else {}) | entry
    return {name: Model(name=name, **entry) for name, entry in entries.items()}


def model(name: str) -> Model:
    """The catalog's model of that name.

    Raises:
        ValueError: where there is none; the message names near matches.
    """
    checks.one_of("model", "name", name, models())
    return models()[name]
