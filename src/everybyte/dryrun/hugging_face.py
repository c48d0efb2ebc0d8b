"""Hugging Face's models: made from a config, or from the dimensions of a `Model` that the book's references do not build.

Nothing is downloaded: a config is dimensions, and the weights are random, here without data.
"""

import copy
import sys
from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import dataclass, fields
from unittest import mock

from torch import nn

from ..ask.setup import Setup
from ..catalog import Model
from ..catalog import model as catalog_model
from ..reference.adapters import base_parameters

_ACTIVATIONS = {"gelu": "gelu", "gelu_tanh": "gelu_pytorch_tanh", "relu": "relu", "silu": "silu"}
#: Field -> what a config of nearly every architecture calls it.
NAMES = {
    "layers": "num_hidden_layers", "width": "hidden_size", "heads": "num_attention_heads", "vocabulary": "vocab_size",
    "positions": "max_position_embeddings", "ffn_width": "intermediate_size", "tied": "tie_word_embeddings",
}  # fmt: skip
GROUPED = {"kv_heads": "num_key_value_heads"}
NARROW = {"head_width": "head_dim"}
#: What a configuration may call its depth; and the most layers that a dry run makes, one by one, in a minute or two.
DEPTHS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers")
MOST_LAYERS = 10_000


def check_depth(owner: str, layers: object) -> None:
    """Raise ValueError where so many layers are more than a dry run makes."""
    if isinstance(layers, int) and layers > MOST_LAYERS:
        raise ValueError(
            f"{owner}: {layers:,} layers, each of which a dry run makes and runs; allowed: {MOST_LAYERS:,}. eb.budget takes a Model of "
            "any depth"
        )


@dataclass(frozen=True)
class Recipe:
    """How Hugging Face builds an architecture.

    Attributes:
        like: a model of the catalog, which any other must equal in every field that `names` and `free` do not have.
        config: the configuration's class. names: field of `Model` -> the configuration's name for it.
        free: fields of which the configuration needs no name, since they follow or since `more` says them.
        more: (model) -> what else the configuration is told.
        differs: why the module has other parameters than the catalog counts; "" where it has the same.
    """

    like: str
    config: str
    names: dict
    free: tuple = ()
    more: Callable[[Model], dict] = lambda model: {}
    differs: str = ""


#: What tells an architecture from those after it -> its recipe.
RECIPES = {
    "causal": Recipe(
        "bert-base", "BertConfig", NAMES | {"token_types": "type_vocab_size"},
        ("learned_positions", "kv_heads", "head_width", "embedding_width", "activation"),
        lambda m: {"hidden_act": _ACTIVATIONS[m.activation]},
        "BertForMaskedLM has a head for masked tokens, and no pooler",
    ),
    "post_norm": Recipe(
        "opt-350m", "OPTConfig", NAMES | {"ffn_width": "ffn_dim", "embedding_width": "word_embed_proj_dim"},
        ("learned_positions", "kv_heads", "head_width", "activation"),
        lambda m: {"activation_function": _ACTIVATIONS[m.activation], "do_layer_norm_before": False},
    ),
    "parallel_residual": Recipe(
        "pythia-14m", "GPTNeoXConfig", NAMES, ("kv_heads", "head_width", "embedding_width", "rotary_percent", "activation"),
        lambda m: {
            "hidden_act": _ACTIVATIONS[m.activation],
            "rope_parameters": {"rope_type": "default", "rope_theta": 10_000.0, "partial_rotary_factor": m.rotary_percent / 100},
        },
    ),
    "softcap": Recipe(
        "gemma-2-2b", "Gemma2Config", NAMES | GROUPED | NARROW | {"window": "sliding_window"}, ("embedding_width", "activation"),
        lambda m: {"hidden_activation": _ACTIVATIONS[m.activation], "query_pre_attn_scalar": m.head_width},
    ),
    "sinks": Recipe(
        "gpt-oss-20b", "GptOssConfig",
        NAMES | GROUPED | NARROW | {
            "window": "sliding_window", "experts": "num_local_experts", "experts_per_token": "num_experts_per_tok",
            "expert_width": "intermediate_size",
        },
        ("embedding_width",),
        lambda m: {"rope_parameters": {"rope_type": "default", "rope_theta": 150_000.0}},
    ),
    "latent_rank": Recipe(
        "deepseek-v3", "DeepseekV3Config",
        NAMES | {
            "experts": "n_routed_experts", "experts_per_token": "num_experts_per_tok", "expert_width": "moe_intermediate_size",
            "shared_experts": "n_shared_experts", "dense_layers": "first_k_dense_replace", "query_rank": "q_lora_rank",
            "latent_rank": "kv_lora_rank", "rope_width": "qk_rope_head_dim", "value_width": "v_head_dim",
        },
        ("embedding_width", "head_width", "kv_heads"),
        lambda m: {"qk_nope_head_dim": m.head_width - m.rope_width, "num_key_value_heads": m.kv_heads} | _groups(m.experts),
        "the biases of its routers have no gradient, and are buffers",
    ),
}  # fmt: skip


def _groups(experts):
    """DeepSeek-V3 sends a token to 4 of 8 groups of experts; so few experts as make no groups of two are one group."""
    return {} if experts % 8 == 0 and experts >= 16 else {"n_group": 1, "topk_group": 1}


def recipe(model: Model) -> Recipe:
    """How Hugging Face builds a model that the references do not.

    Raises:
        ValueError: where it is none of the architectures known here.
    """
    why = ""
    for field, found in RECIPES.items():
        like = catalog_model(found.like)
        if bool(getattr(model, field)) != bool(getattr(like, field)):
            continue
        open_fields = {"name", "published", "source", *found.names, *found.free}
        others = (f.name for f in fields(Model) if f.name not in open_fields)
        strange = next((f for f in others if getattr(model, f) != getattr(like, f)), None)
        if strange is None:
            return found
        why = why or f", such as {like.name}, whose {strange} is {getattr(like, strange)!r}"
    raise ValueError(
        f"{model.unlike_reference()}; nor is it like one that Hugging Face's code is told the dimensions of{why}"
    )


def config_of(model: Model):
    """The configuration of Hugging Face's model of those dimensions, where the book's references build none.

    Raises:
        ValueError: where transformers is not installed, or the architecture is not known.
    """
    found = recipe(model)
    try:
        import transformers
    except ImportError as error:
        raise ValueError(
            f"{model.unlike_reference()}. Hugging Face's {found.config} would make it, which is not installed: "
            "pip install 'everybyte[models]'"
        ) from error
    sizes = {name: getattr(model, field) for field, name in found.names.items()}
    if "window" in found.names:
        sizes["sliding_window"] = model.window or None
    return getattr(transformers, found.config)(**sizes | found.more(model))


def named_difference(model: Model, module: nn.Module) -> str | None:
    """Why the module that Hugging Face makes of `model` has other parameters than it, in words; None where it has the same.

    Raises:
        ValueError: where no reason is known: it would be another architecture.
    """
    count = base_parameters(module)
    if count == model.parameters:
        return None
    found = recipe(model)
    if not found.differs:
        raise ValueError(
            f"dry_run.model: {type(module).__name__} has {count:,} parameters where {model.name} has {model.parameters:,}: "
            f"not the same architecture; allowed: what differs from {found.like} in dimensions alone"
        )
    return found.differs


def made(config, setup: Setup, made_here: bool = False) -> Callable[[], nn.Module]:
    """A function that makes the language model of a config as `setup` has it: its attention, its dropout, its checkpointing.

    A model that is no decoder is trained on masked tokens. Where the config has dropout itself, the setup must say so.

    Args:
        made_here: whether the config is of a `Model`, which says nothing of dropout: then the setup alone does.

    Raises:
        ValueError: naming what of `setup` such a model cannot do.
    """
    import transformers
    from transformers.models.auto import modeling_auto

    for field in DEPTHS:
        check_depth(f"{type(config).__name__}.{field}", getattr(config, field, None))
    refuse(setup, "a Hugging Face model", {"loss", "loss_chunks", "checkpoint_every"})
    if setup.checkpointing not in ("none", "full"):
        raise ValueError(
            f"Setup.checkpointing: {setup.checkpointing!r} with a Hugging Face model; allowed: 'none' or 'full'"
        )
    if getattr(config, "_experts_implementation", None) == "eager":
        raise ValueError(
            f"{type(config).__name__}.experts_implementation: 'eager' asks which experts each token visits, and in a dry run no "
            "tensor has values; allowed: 'grouped_mm', the default, or 'batched_mm'"
        )
    config = copy.deepcopy(config)
    config.use_cache = False
    for field in _dropouts(config, setup, made_here):
        setattr(config, field, setup.dropout)
    masked = type(config) in modeling_auto.MODEL_FOR_MASKED_LM_MAPPING and not getattr(config, "is_decoder", False)
    auto = transformers.AutoModelForMaskedLM if masked else transformers.AutoModelForCausalLM
    attention = "eager" if setup.attention == "eager" else "sdpa"
    mapping = modeling_auto.MODEL_FOR_MASKED_LM_MAPPING if masked else modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING
    module = mapping.get(type(config), None)
    if attention == "sdpa" and not getattr(module, "_supports_sdpa", True):
        raise ValueError(f"Setup.attention: {setup.attention!r} is not what {module.__name__} has; allowed: 'eager'")
    positions = getattr(config, "max_position_embeddings", None)
    if isinstance(positions, int) and setup.sequence > positions:
        raise ValueError(
            f"Setup.sequence: {setup.sequence} is more than the {positions} positions of this {type(config).__name__}; "
            f"allowed: 1 to {positions}"
        )

    def make():
        module = auto.from_config(config, attn_implementation=attention).train()
        if setup.checkpointing == "full":
            if not module.supports_gradient_checkpointing:
                raise ValueError(
                    f"Setup.checkpointing: 'full' is not what {type(module).__name__} has; allowed: 'none'"
                )
            # The first is what version 6 calls it.
            enable = getattr(module, "activation_checkpointing_enable", module.gradient_checkpointing_enable)
            enable({"use_reentrant": False})
        return module

    return make


def _dropouts(config, setup, made_here):
    """The fields of a config that the setup's dropout is put into.

    Raises:
        ValueError: where the config has a dropout of its own, and the setup another; where it drops layers by chance.
    """
    said = {f: v for f, v in vars(config).items() if isinstance(v, float) and _is_dropout(f)}
    for field, value in vars(config).items():
        if "layerdrop" in field and value:
            raise ValueError(
                f"{type(config).__name__}.{field}: {value} leaves layers out by chance, so that no two steps take the same; allowed: 0.0"
            )
    own = {f: v for f, v in said.items() if v}
    if made_here or not own:
        return list(said)
    if setup.dropout not in own.values():
        field, value = next(iter(own.items()))
        raise ValueError(
            f"Setup.dropout: {setup.dropout}, and {type(config).__name__}.{field} is {value}; allowed: {value}, which leaves the "
            "config as it is, or a config whose dropouts are 0.0"
        )
    return []


def _is_dropout(field):
    """Whether a field is a dropout of the language model: others are of heads for other tasks."""
    return ("dropout" in field or field.endswith("_pdrop")) and not field.startswith(("summary_", "classifier"))


def refuse(setup: Setup, what: str, meaningless: set) -> None:
    """Raise where a field that `what` does not read has another value than its default."""
    for field in fields(Setup):
        if field.name in meaningless and getattr(setup, field.name) != field.default:
            raise ValueError(
                f"Setup.{field.name}: {getattr(setup, field.name)!r} means nothing to {what}, which decides this itself; "
                f"allowed: {field.default!r}"
            )
    if setup.sharding_units == "block+ends":
        raise ValueError(
            f"Setup.sharding_units: 'block+ends' with {what}, whose ends have no names here; allowed: 'block' or 'model'"
        )


@contextmanager
def as_on_cuda():
    """Have Hugging Face's models do on meta what they do on a GPU.

    From the positions they would read that no row packs several sequences; and for meta alone they make no region of autocast.
    """
    if sys.modules.get("transformers") is None:
        yield
        return
    from transformers import masking_utils
    from transformers.utils import generic

    region, code = generic.maybe_autocast, generic.maybe_autocast.__code__
    with mock.patch.object(masking_utils, "find_packed_sequence_indices", lambda position_ids: None):
        try:
            region.__code__ = code.replace(co_consts=tuple("" if c == "meta" else c for c in code.co_consts))
            yield
        finally:
            region.__code__ = code
