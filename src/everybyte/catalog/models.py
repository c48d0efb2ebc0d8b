"""A transformer's dimensions, and the catalog of published ones."""

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from functools import cache
from typing import Any, Literal, Protocol, final

from ..common import checks, files
from .weights import layers, weights

NORMS = ("layernorm", "rmsnorm")
#: The MLP's activation functions: GELU, its tanh approximation, ReLU, SiLU; and SiLU with clamped factors (gpt-oss).
ACTIVATIONS = ("gelu", "gelu_tanh", "relu", "silu", "silu_clamped")
#: The architectures that the book's references build.
FAMILIES: tuple[Literal["gpt"], Literal["llama"]] = ("gpt", "llama")
#: Whose code a model runs, and its name in words.
CODE_NAMES = {"reference": "the book's code", "transformers": "transformers' code"}
CODES = tuple(CODE_NAMES)
_REQUIRED = ("layers", "width", "heads", "vocabulary")
#: Field -> (its default as a function of the model, the fields that this reads). Order matters: a default may use an earlier one.
_DEFAULTS = {
    "learned_positions": (lambda m: m.positions, {"positions"}),
    "kv_heads": (lambda m: m.heads, {"heads"}),
    "head_width": (lambda m: None if m.width % m.heads else m.width // m.heads, {"width", "heads"}),
    "ffn_width": (lambda m: 4 * m.width, {"width"}),
    "embedding_width": (lambda m: m.width, {"width"}),
    "norm_bias": (lambda m: m.norm == "layernorm", {"norm"}),
    "activation": (lambda m: "silu" if m.gated else "gelu", {"gated"}),
}
#: The value of such a field until `__post_init__` fills it.
_FOLLOWS: Any = None
#: Fields that may not be 0.
_POSITIVE = {*_REQUIRED, "kv_heads", "head_width", "ffn_width", "embedding_width", "published"}
#: The largest value of a dimension, and the fields with another bound.
_MOST = 2**24
_MORE = {"positions": 2**27, "learned_positions": 2**27, "window": 2**27, "published": 2**60, "rotary_percent": 100}
#: Fields that only models have in which the first one is not 0.
_MIXTURE = (
    "experts", "experts_per_token", "expert_width", "shared_experts", "dense_layers", "router_bias", "expert_groups", "groups_per_token"
)  # fmt: skip
_LATENT = ("latent_rank", "query_rank", "rope_width", "value_width")
_WINDOW = ("full_every", "chunked")


def architectures(file: str) -> dict[str, dict[str, Sequence[Any]]]:
    """{architecture: {field of `Model`: its allowed values}}, from a file of the catalog."""

    def values(said):
        return range(said["least"], said["most"] + 1, said.get("step", 1)) if isinstance(said, dict) else said

    entries = files.entries(__package__, file).items()
    return {name: {field: values(said) for field, said in entry.items()} for name, entry in entries}


_REFERENCES = architectures("references.toml")


def bounds(field: str) -> tuple[int, int]:
    """The least and the most of a dimension of a `Model`."""
    return int(field in _POSITIVE), _MORE.get(field, _MOST)


class Described(Protocol):
    """The model of a result: a `Model`, or the name and parameter count of a module of your own."""

    @property
    def name(self) -> str: ...

    @property
    def parameters(self) -> int: ...


@final
@dataclass(frozen=True, kw_only=True)
class Model:
    """The dimensions that decide a transformer's parameter count and memory. Counts, not bytes.

    Required: `layers`, `width` (the residual stream's), `heads`, `vocabulary`. The rest defaults to GPT-2's architecture:
    learned positions, biases everywhere, LayerNorm before attention and MLP and at the end, MLP of four times the width,
    tied embedding and output head.

    Attributes:
        name: as in the catalog, or any text for a model of your own.
        positions: the longest sequence in tokens; 0 for no bound.
        learned_positions: rows of the learned position table; 0 for rotary or no positions; by default `positions`.
        kv_heads: key and value heads (grouped-query attention); by default `heads`.
        head_width: width of one head; by default `width // heads`.
        ffn_width: inner width of the dense MLP; by default `4 * width`.
        gated: three MLP matrices (SwiGLU, GeGLU) in place of two.
        activation: the MLP's function, one of `ACTIVATIONS`; by default `silu` where the MLP is gated, else `gelu`.
        fused: query, key and value are one weight tensor, and so are a gated MLP's two inner matrices.
        tied: the output head is the embedding table.
        qkv_bias, out_bias, ffn_bias: biases of the attention's input and output projections and of the MLP.
        norm: `layernorm` or `rmsnorm`; norm_bias: whether a layernorm has a bias, as by default.
        norm_offset: an rmsnorm multiplies by 1 + weight (Gemma) in place of the weight.
        block_norms: norms of width `width` in a block. final_norm, embedding_norm: whether there is one.
        post_norm: the block's norms stand after the sum with the residual stream (BERT, OPT-350m), not before attention and MLP.
        parallel_residual: attention and MLP both read the block's input, and their outputs are added to it at once (GPT-NeoX).
        qk_norm: a norm of `head_width` on queries and one on keys.
        rotary_percent: percent of each head's width that rotary positions rotate.
        window: tokens that one attends to, itself among them, in each layer that has the window; 0 where no layer has one.
        full_every: of every so many layers the last attends to all tokens, and the others have the window; 0: all have it.
        chunked: the window is a chunk (Llama 4): sequences are cut every `window` tokens, and none attends to an earlier chunk.
        causal: whether a token attends only to itself and earlier tokens.
        softcap: attention scores and logits pass through a scaled tanh (Gemma 2).
        sinks: one learned attention sink per head.
        scaled_embedding: embeddings are multiplied by the square root of the width (Gemma).
        embedding_width: width of the token table; a projection each way where it differs from `width`.
        token_types: rows of BERT's segment table. pooler: BERT's last dense layer, `width` by `width`.
        experts: routed experts in each mixture layer; 0 for a dense model. experts_per_token: how many a token visits.
        expert_width: inner width of an expert. shared_experts: experts that every token visits.
        dense_layers: layers at the start that keep the dense MLP. router_bias: a bias for each expert's score.
        expert_groups, groups_per_token: groups into which experts are divided, and how many of them a token's are chosen from
            (DeepSeek-V3); 0 for a choice among all at once.
        query_rank, latent_rank, rope_width, value_width: multi-head latent attention (DeepSeek): ranks of the query's and
            the key-value's compression, rotary part of each head, width of a value head. `latent_rank` 0: no latent attention.
        code: whose code runs the model. `reference`: the book's where it has the architecture, else Hugging Face's.
            `transformers`: Hugging Face's. The weights are the same; data types and the order of operations differ.
        published: the published parameter count, if any. source: of the count and the dimensions.

    Raises:
        ValueError: naming the field, the value and what is allowed.
    """

    name: str = "custom"
    layers: int
    width: int
    heads: int
    vocabulary: int
    positions: int = 0
    learned_positions: int = _FOLLOWS
    kv_heads: int = _FOLLOWS
    head_width: int = _FOLLOWS
    ffn_width: int = _FOLLOWS
    gated: bool = False
    activation: str = _FOLLOWS
    fused: bool = True
    tied: bool = True
    qkv_bias: bool = True
    out_bias: bool = True
    ffn_bias: bool = True
    norm: str = "layernorm"
    norm_bias: bool = _FOLLOWS
    norm_offset: bool = False
    block_norms: int = 2
    final_norm: bool = True
    embedding_norm: bool = False
    post_norm: bool = False
    parallel_residual: bool = False
    qk_norm: bool = False
    rotary_percent: int = 100
    window: int = 0
    full_every: int = 0
    chunked: bool = False
    causal: bool = True
    softcap: bool = False
    sinks: bool = False
    scaled_embedding: bool = False
    embedding_width: int = _FOLLOWS
    token_types: int = 0
    pooler: bool = False
    experts: int = 0
    experts_per_token: int = 0
    expert_width: int = 0
    shared_experts: int = 0
    dense_layers: int = 0
    router_bias: bool = False
    expert_groups: int = 0
    groups_per_token: int = 0
    query_rank: int = 0
    latent_rank: int = 0
    rope_width: int = 0
    value_width: int = 0
    code: str = "reference"
    published: int | None = None
    source: str = ""

    def __post_init__(self):
        self._check_each()
        if self.head_width is None and self.width % self.heads:
            raise ValueError(
                f"Model.heads: {self.heads} does not divide the width {self.width}; allowed: its divisors, such as "
                f"{_divisors_near(self.width, self.heads)}, or a head_width of its own"
            )
        for field, (default, _) in _DEFAULTS.items():
            if getattr(self, field) is None:
                object.__setattr__(self, field, default(self))
        self._check_each()  # what follows from others too
        self._check_together()

    def _check_each(self):
        for field in fields(self):
            value = getattr(self, field.name)
            if value is None and field.default is None:
                continue
            if field.type is bool:
                checks.flag("Model", field.name, value)
            elif field.type in (int, int | None):
                checks.whole("Model", field.name, value, *bounds(field.name))
            elif field.name == "name":
                checks.line("Model", "name", value)
            elif not isinstance(value, str):
                raise ValueError(f"Model.{field.name}: {checks.shown(value)} is not text")
        checks.one_of("Model", "norm", self.norm, NORMS)
        checks.one_of("Model", "code", self.code, CODES)
        if self.activation is not None:
            checks.one_of("Model", "activation", self.activation, ACTIVATIONS)

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
        for norm, field in (("rmsnorm", "norm_bias"), ("layernorm", "norm_offset")):
            if self.norm == norm and getattr(self, field):
                raise ValueError(f"Model.{field}: True does not go with norm {norm!r}; allowed: False")
        self._only_with(*_MIXTURE)
        if self.experts:
            checks.whole("Model", "experts_per_token", self.experts_per_token, 1, self.experts)
            checks.whole("Model", "expert_width", self.expert_width, 1, _MOST)
            checks.whole("Model", "dense_layers", self.dense_layers, 0, self.layers)
            self._check_groups()
        self._only_with(*_LATENT)
        if self.latent_rank:
            checks.whole("Model", "query_rank", self.query_rank, 1, _MOST)
            checks.whole("Model", "rope_width", self.rope_width, 1, self.head_width)
            checks.whole("Model", "value_width", self.value_width, 1, _MOST)
        self._only_with("window", *_WINDOW)
        if self.full_every == 1:
            raise ValueError("Model.full_every: 1 leaves no layer its window; allowed: 0, 2 or more, or window 0")

    def _check_groups(self):
        if self.expert_groups:  # whose best two experts say how good a group is
            if self.experts % self.expert_groups or self.experts // self.expert_groups < 2:
                raise ValueError(
                    f"Model.expert_groups: {self.expert_groups} of {self.experts} experts; allowed: divisors that leave two in a group"
                )
            checks.whole("Model", "groups_per_token", self.groups_per_token, 1, self.expert_groups)
        self._only_with("expert_groups", "groups_per_token")

    def _only_with(self, switch, *others):
        for field in others:
            if getattr(self, field) and not getattr(self, switch):
                raise ValueError(
                    f"Model.{field}: {getattr(self, field)!r} needs {switch}; allowed where {switch} is 0: "
                    f"{type(getattr(self, field))()!r}"
                )

    @property
    def parameters(self) -> int:
        """The parameter count: the sum over the model's weight tensors, each counted once."""
        times = layers(self)
        return sum(weight.numbers * weight.count * times[weight.group] for weight in weights(self))

    @property
    def mixture_layers(self) -> int:
        """Layers with experts."""
        return self.layers - self.dense_layers if self.experts else 0

    def windowed(self, layer: int) -> bool:
        """Whether a layer, counted from 0, has the window."""
        return self.window > 0 and not (self.full_every and (layer + 1) % self.full_every == 0)

    @property
    def period(self) -> int:
        """Layers after which those with and without the window come again; 1 where all are alike, as in the book's code."""
        return self.full_every if self.family is None and 0 < self.full_every <= self.layers else 1

    @property
    def windowed_layers(self) -> int:
        """Layers that have the window; the others attend to all tokens."""
        full = self.layers // self.full_every if self.full_every else 0
        return self.layers - full if self.window else 0

    @property
    def has_positions(self) -> bool:
        """Whether it has a table of learned positions."""
        return self.learned_positions > 0

    @property
    def has_types(self) -> bool:
        """Whether it has a segment table."""
        return self.token_types > 0

    @property
    def has_experts(self) -> bool:
        """Whether it has experts."""
        return self.experts > 0

    @property
    def turned_experts(self) -> bool:
        """Whether each expert's matrices have a row for each input, as Llama 4's and gpt-oss's have in transformers' code."""
        return self.sinks or self.chunked

    @property
    def has_shared(self) -> bool:
        """Whether there are experts that every token visits. They are one MLP, as wide as all of them."""
        return self.shared_experts > 0

    @property
    def corrected(self) -> bool:
        """Whether the routers' biases are buffers, by which experts are chosen and which have no gradient (DeepSeek-V3).

        A router with a bias that is a weight (gpt-oss) stands beside experts with biases.
        """
        return self.router_bias and not self.ffn_bias

    @property
    def projected(self) -> bool:
        """Whether its token table is not as wide as the residual stream."""
        return self.embedding_width != self.width

    @property
    def divided_width(self) -> float:
        """Numbers of the width for each head: of GPT-2's kin, whose heads divide it, the width of a head."""
        return self.width / self.heads

    @property
    def latent(self) -> bool:
        """Whether it has multi-head latent attention."""
        return self.latent_rank > 0

    @property
    def family(self) -> Literal["gpt", "llama"] | None:
        """Which of the book's references builds the model; None where neither does, or `code` is `transformers`.

        `gpt`: learned positions, LayerNorm, an MLP of two matrices, as many key as query heads (GPT-2, OPT). `llama`: rotary
        positions, RMSNorm, a gated MLP or experts, grouped heads (Llama, Mistral, Qwen, Gemma, Phi-3, Mixtral).
        """
        return next((family for family in FAMILIES if self.unlike_reference(family) is None), None)

    def unlike_reference(self, family: str | None = None) -> str | None:
        """Why the book's references, or that of one `family`, cannot build the model, in words; None where one can."""
        if self.code != "reference":
            return f"Model.code: {self.code!r} of {self.name} is not the book's; allowed: 'reference'"
        if family is None:
            if self.family:
                return None
            family = "llama" if self.gated or self.norm == "rmsnorm" else "gpt"  # the nearer
        checks.one_of("Model", "family", family, FAMILIES)
        for field, values in (_REFERENCES[family] | self._by_other_fields(family)).items():
            if (value := getattr(self, field)) not in values:
                what = "a GPT" if family == "gpt" else "a Llama"
                return f"Model.{field}: {value!r} of {self.name} is not {what}'s; allowed: {_in_words(values)}"
        return None

    def _by_other_fields(self, family):
        """{field: its allowed values in a reference}, where these follow from other fields."""
        turns = self.turning and self.turning % 2 == 0
        own: dict[str, Sequence] = {"embedding_width": (self.width,)}
        if family == "llama":
            own["rotary_percent"] = (self.rotary_percent if turns else 100,)
            return own | {"fused": (False,) if self.experts else (False, True)}
        own["learned_positions"] = range(max(self.positions, 1), _MORE["learned_positions"] + 1)
        return own | {"kv_heads": (self.heads,), "head_width": (self.divided_width,)}

    @property
    def own(self) -> dict[str, Any]:
        """What a setup has where it says nothing, by its field: no more tokens than there are positions; of transformers' code its own.

        Configurations of models with learned positions (GPT-2's, OPT's, BERT's) say a dropout of 0.1, others 0.0; and where attention
        scores are softcapped, or there are sinks, the code has no other attention than eager. Sources: transformers 5.23,
        models/*/configuration_*.py, and `_supports_sdpa` of models/gemma2 and gpt_oss.
        """
        own: dict[str, Any] = {"sequence": self.positions} if self.positions else {}
        if self.family is None:
            own |= {"dropout": 0.1 * self.has_positions, "attention": "eager" if self.eager_alone else "flash"}
        return own

    @property
    def eager_alone(self) -> bool:
        """Whether transformers' code has no other attention than eager. Source: `_supports_sdpa` of models/gemma2 and gpt_oss."""
        return self.softcap or self.sinks

    @property
    def turning(self) -> int:
        """Numbers of each head that rotary positions rotate."""
        return self.head_width * self.rotary_percent // 100

    def replace(self, **changes) -> "Model":
        """A copy with some fields changed, checked again.

        A field at its default is computed anew from the changed ones: GPT-2 at twice the width has twice the `ffn_width`.
        `published` is dropped; without a window, or experts, all that is said of them.
        """
        if changes.get("window") == 0:
            changes = {"full_every": 0, "chunked": False} | changes
        if changes.get("experts") == 0:
            changes = {field: type(getattr(self, field))() for field in _MIXTURE[1:]} | changes
        following = {
            field: None
            for field, (default, sources) in _DEFAULTS.items()
            if sources & changes.keys() and getattr(self, field) == default(self)
        }
        return replace(self, **{"published": None} | following | changes)


def _in_words(values):
    """The allowed values as an error names them."""
    if isinstance(values, range):
        return f"{values[0]} or more" if values.step == 1 else "even numbers"
    return " or ".join(map(repr, values))


def _divisors_near(number: int, wanted: int) -> str:
    divisors = [d for d in range(1, number + 1) if number % d == 0]
    return ", ".join(map(str, sorted(sorted(divisors, key=lambda d: abs(d - wanted))[:4])))


@cache
def models(code: str | None = None) -> dict[str, Model]:
    """Every model of the catalog, by name, in the catalog's order.

    Args:
        code: whose code runs them, one of `CODES`; by default the code that people run each of them with: transformers' for a Llama and
            its like, OPT, Pythia and gpt-oss, the book's for GPT-2, which is nanoGPT's.
    """
    instead = {} if code is None else {"code": code}
    entries = files.entries(__package__, "models.toml").items()
    return {name: Model(name=name, **entry | instead) for name, entry in entries}


def model(name: str, code: str | None = None) -> Model:
    """The catalog's model of that name; `code` as for `models`.

    Raises:
        ValueError: where there is none; the message names near matches.
    """
    if code is not None:
        checks.one_of("model", "code", code, CODES)
    checks.one_of("model", "name", name, models())
    return models(code)[name]
