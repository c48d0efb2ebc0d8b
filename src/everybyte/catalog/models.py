"""A transformer's dimensions, and the catalogue of published ones."""

import tomllib
from dataclasses import dataclass, fields, replace
from functools import cache
from importlib import resources

from .. import checks

NORMS = ("layernorm", "rmsnorm")
#: Where an unstated dimension comes from. Order matters: a default may use the one before it.
_DEFAULTS = {
    "kv_heads": lambda m: m.heads,
    "head_width": lambda m: m.width // m.heads,
    "ffn_width": lambda m: 4 * m.width,
    "embedding_width": lambda m: m.width,
}


@dataclass(frozen=True, kw_only=True)
class Model:
    """The dimensions that decide a transformer's parameter count and memory. Counts, not bytes.

    Required: `layers`, `width` (the residual stream's), `heads`, `vocabulary`. The rest defaults to GPT-2's architecture:
    learned positions, biases everywhere, LayerNorm before attention and MLP and at the end, MLP of four times the width,
    tied embedding and output head.

    Attributes:
        name: as in the catalogue, or any text for a model of your own.
        positions: the longest sequence; 0 where nothing bounds it.
        learned_positions: rows of the learned position table; 0 for rotary or no positions; by default `positions`.
        kv_heads: key and value heads (grouped-query attention); by default `heads`.
        head_width: width of one head; by default `width // heads`.
        ffn_width: inner width of the dense MLP; by default `4 * width`.
        gated: three MLP matrices (SwiGLU, GeGLU) in place of two.
        fused: query, key and value are one weight tensor (and a gated MLP's two inner matrices one).
        tied: the output head is the embedding table.
        qkv_bias, out_bias, ffn_bias: biases of the attention's input and output projections and of the MLP.
        norm: `layernorm` or `rmsnorm`; norm_bias: whether a layernorm has a bias.
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
    norm_bias: bool = True
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
        for field in ("layers", "width", "heads", "vocabulary"):
            checks.whole("Model", field, getattr(self, field), 1, 2**24)
        if self.learned_positions is None:
            object.__setattr__(self, "learned_positions", self.positions)
        for field, default in _DEFAULTS.items():
            if getattr(self, field) is None:
                if field == "head_width" and self.width % self.heads:
                    divisors = [h for h in range(1, self.width + 1) if self.width % h == 0]
                    near = sorted(divisors, key=lambda h: abs(h - self.heads))[:4]
                    raise ValueError(
                        f"Model.heads: {self.heads} does not divide the width {self.width}; allowed: its divisors, "
                        f"such as {', '.join(map(str, sorted(near)))}, or a head_width of its own"
                    )
                object.__setattr__(self, field, default(self))
        for f in fields(self):
            value = getattr(self, f.name)
            if f.type == "bool" or f.type is bool:
                checks.flag("Model", f.name, value)
            elif f.type in (int, int | None) and value is not None:
                checks.whole("Model", f.name, value, _least(f.name))
        checks.one_of("Model", "norm", self.norm, NORMS)
        if self.heads % self.kv_heads:
            raise ValueError(f"Model.kv_heads: {self.kv_heads} does not divide the {self.heads} heads; allowed: its divisors")
        if self.norm == "rmsnorm" and self.norm_bias:
            raise ValueError("Model.norm_bias: True does not go with norm 'rmsnorm'; allowed: False")
        if self.experts:
            checks.whole("Model", "experts_per_token", self.experts_per_token, 1, self.experts)
            checks.whole("Model", "expert_width", self.expert_width, 1)
            checks.whole("Model", "dense_layers", self.dense_layers, 0, self.layers)
        if self.latent_rank:
            for field in ("query_rank", "rope_width", "value_width"):
                checks.whole("Model", field, getattr(self, field), 1)

    @property
    def parameters(self) -> int:
        """The parameter count, from the formula `parameters`."""
        from ..formulas import formula

        return formula("parameters").at(self)

    def replace(self, **changes) -> "Model":
        """A copy with some fields changed, checked again.

        Dimensions that followed from a changed one keep their values: name them too.
        """
        return replace(self, **changes)


def _least(field: str) -> int:
    return 1 if field in ("kv_heads", "head_width", "embedding_width", "ffn_width") else 0


@cache
def models() -> dict[str, Model]:
    """Every model of the catalogue, by name, in the catalogue's order."""
    text = resources.files(__package__).joinpath("models.toml").read_text(encoding="utf-8")
    return {name: Model(name=name, **entry) for name, entry in tomllib.loads(text).items()}


def model(name: str) -> Model:
    """The catalogue's model of that name.

    Raises:
        ValueError: where there is none; the message names near matches.
    """
    checks.one_of("model", "name", name, models())
    return models()[name]
