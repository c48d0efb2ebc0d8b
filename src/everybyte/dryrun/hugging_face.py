"""Hugging Face's models: made from a config, or from the dimensions of a `Model` that the book's references do not build.

Nothing is downloaded: a config is dimensions, and the weights are random, here without data.
"""

import copy
import sys
import traceback
from collections.abc import Callable
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, fields
from importlib import import_module
from typing import Any
from unittest import mock

import torch
from torch import nn

from ..ask.setup import Setup
from ..catalog import Model
from ..catalog import model as catalog_model
from ..catalog.configs import LOADED
from ..catalog.decoders import decoder
from ..common import files
from ..reference.adapters import base_parameters, package

#: What transformers calls attention -> what a setup does.
ATTENTIONS = {"sdpa": "flash", "eager": "eager"}
#: Names of the depth in configurations; the most layers, which a dry run makes and runs one by one in a minute or two.
DEPTHS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers")
MOST_LAYERS = 10_000


def check_depth(owner: str, layers: object) -> None:
    """Raise ValueError for more than `MOST_LAYERS` layers."""
    if isinstance(layers, int) and layers > MOST_LAYERS:
        raise ValueError(
            f"{owner}: {layers:,} layers, each of which a dry run makes and runs; allowed: {MOST_LAYERS:,}. eb.budget takes a Model of "
            "any depth"
        )


def check_depths(config) -> None:
    """Raise ValueError for a config of more layers."""
    for depth in DEPTHS:
        check_depth(f"{type(config).__name__}.{depth}", getattr(config, depth, None))


@contextmanager
def named(model, does: str):
    """Within it an error of a config's own model says, in a ValueError, which numbers can be changed. does: what the model does not."""
    try:
        yield
    except (ArithmeticError, AssertionError, AttributeError, LookupError, RuntimeError, TypeError, ValueError) as error:
        *_, (frame, _) = traceback.walk_tb(error.__traceback__)
        by_us = frame.f_globals.get("__name__", "").startswith(__package__.split(".")[0])
        if not is_config(model) or (by_us and isinstance(error, ValueError)):
            raise
        # No line of whoever gave the config stands in the traceback: its numbers are what they can change.
        raise ValueError(
            f"{type(model).__name__}: its model does not {does} ({first_line(error)}); allowed: dimensions that fit one another"
        ) from error


def first_line(error: Exception) -> str:
    """An error's first line, or its name."""
    return (str(error) or type(error).__name__).splitlines()[0]


# Configurations.


@dataclass(frozen=True)
class Recipe:
    """How Hugging Face builds an architecture: a row of `catalog/recipes.toml`, where the columns are explained."""

    config: str
    like: str = ""
    names: dict[str, str] = field(default_factory=dict)
    free: tuple[str, ...] = ()
    fixed: dict[str, object] = field(default_factory=dict)
    gelu_tanh: str = "gelu_pytorch_tanh"
    differs: str = ""
    more: str = ""

    def of(self, model: Model, **others):
        """The configuration with the dimensions of `model`, which trains without a cache. others: further arguments of it."""
        activation = self.gelu_tanh if model.activation == "gelu_tanh" else model.activation
        values = vars(model) | {"window": model.window or None, "activation": activation}
        usual = {theirs: ours for theirs, ours in USUAL.items() if ours not in self.names.values()}
        sizes = {theirs: values[ours] for theirs, ours in (usual | self.names).items()}
        more = _MORE[self.more](model) if self.more else {}
        said = {"use_cache": False} | others | sizes | self.fixed | more
        return getattr(import_module("transformers"), self.config)(**said)


def _by_layers(model):
    """Which layers have the window."""
    return {"layer_types": [("full_attention", "sliding_attention")[model.windowed(i)] for i in range(model.layers)]}


def _switched(model):
    """Qwen's have a window where it is switched on."""
    if not model.window:
        return {}
    return {"use_sliding_window": True, "sliding_window": model.window} | _by_layers(model)


def _latent(model):
    """The part of a head that does not turn, and groups of experts: all are one where a choice is among all at once."""
    groups = {"n_group": model.expert_groups or 1, "topk_group": model.groups_per_token or 1}
    return {"qk_nope_head_dim": model.head_width - model.rope_width} | groups


#: What a configuration is told that is computed from several fields: what a recipe calls `more`.
_MORE: dict[str, Callable] = {
    "by layers": _by_layers,
    "switched": _switched,
    "latent": _latent,
    # Llama 4's layers that attend to all tokens have no rotary positions.
    "without rope": lambda model: {"no_rope_layers": [int(model.windowed(i)) for i in range(model.layers)]},
    "partly rotary": lambda model: {
        "rope_parameters": {
            "rope_type": "default", "rope_theta": 10_000.0, "partial_rotary_factor": model.rotary_percent / 100,
        }
    },
}  # fmt: skip
_SAID = files.toml("everybyte.catalog", "recipes.toml")
USUAL = _SAID["usual"]
TRAINED, DECODERS = ({name: Recipe(**row) for name, row in _SAID[table].items()} for table in ("trained", "decoders"))


def recipe(model: Model) -> Recipe:
    """The recipe of a model that the references do not build.

    Raises:
        ValueError: where it is none of the architectures known here.
    """
    why = ""
    for telling, found in TRAINED.items():
        like = catalog_model(found.like)
        if bool(getattr(model, telling)) != bool(getattr(like, telling)):
            continue
        open_fields = {"name", "published", "source", "code", *USUAL.values(), *found.names.values(), *found.free}
        others = (f.name for f in fields(Model) if f.name not in open_fields)
        strange = next((f for f in others if getattr(model, f) != getattr(like, f)), None)
        if strange is None:
            return found
        why = why or f", such as {like.name}, whose {strange} is {getattr(like, strange)!r}"
    raise ValueError(
        f"{model.unlike_reference()}; nor is it like one that Hugging Face's code is told the dimensions of{why}"
    )


def config_of(model: Model):
    """The configuration with which Hugging Face's code trains a model that the book's references do not run.

    Raises:
        ValueError: where transformers is not installed, or the architecture is not known.
    """
    if model.code == "transformers" and (kind := decoder_of(model)) in DECODERS:
        return _decoding("dry_run.model", kind, model)
    found = recipe(model)
    try:
        import_module("transformers")
    except ImportError as error:
        raise ValueError(
            f"{model.unlike_reference()}. Hugging Face's {found.config} would make it, which is not installed: "
            "pip install 'everybyte[models]'"
        ) from error
    return found.of(model)


def decoder_config(model: Model):
    """The configuration with which Hugging Face's code generates. Raises ValueError as `config_of`, and where the model does not."""
    if not model.causal:
        raise ValueError(f"Model.causal: False of {model.name}, which does not generate; allowed: True")
    kind = decoder_of(model)
    return _decoding("dry_serve.model", kind, model) if kind in DECODERS else config_of(model)


def kernel(config) -> str:
    """The attention that transformers takes by default: `sdpa`, or `eager` where the architecture has nothing else."""
    return "sdpa" if getattr(_made_by(config)[1], "_supports_sdpa", True) else "eager"


def own(config) -> dict[str, Any]:
    """What a setup has that leaves it unsaid: the config's dropout, its attention or else the code's, its data type, its positions.

    Of another attention than eager and `sdpa` it is transformers' name, which no setup takes.
    """
    attention = getattr(config, "_attn_implementation", None) or kernel(config)
    positions = getattr(config, "max_position_embeddings", None)
    return {
        "dropout": next((value for value in dropouts(config).values() if value), 0.0),
        "attention": ATTENTIONS.get(attention, attention), "precision": LOADED.get(dtype(config), "own"),
    } | ({"sequence": positions} if isinstance(positions, int) and positions > 0 else {})  # fmt: skip


def dtype(config) -> str:
    """The data type in which a config's model is made, by PyTorch's name."""
    return str(getattr(config, "dtype", None) or "float32").removeprefix("torch.")


def _made_by(config):
    """(transformers' class that makes a config's language model, the model's own; None where it knows none).

    A model that is no decoder is made for masked tokens.
    """
    import transformers
    from transformers.models.auto import modeling_auto

    auto, mapping = transformers.AutoModelForCausalLM, modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING
    if type(config) in modeling_auto.MODEL_FOR_MASKED_LM_MAPPING and not getattr(config, "is_decoder", False):
        auto, mapping = transformers.AutoModelForMaskedLM, modeling_auto.MODEL_FOR_MASKED_LM_MAPPING
    return auto, mapping.get(type(config), None)


def _decoding(owner, kind, model):
    """The configuration of a decoder. Raises ValueError, beginning with the owner, where transformers is not installed."""
    package("transformers", owner, extra="models")
    return DECODERS[kind].of(model, bos_token_id=None, eos_token_id=None)


def decoder_of(model: Model) -> str | None:
    """Which decoder a model is; None where it is another architecture."""
    with suppress(ValueError):
        return decoder(model)
    return None


def is_config(model) -> bool:
    """Whether it is a configuration of transformers'."""
    transformers = sys.modules.get("transformers")  # whoever holds a config has imported it
    return transformers is not None and isinstance(model, transformers.PretrainedConfig)


def check_own(owner: str, config) -> None:
    """Raise ValueError for a config whose code is not a language model's that generates, or that is deeper than a dry run makes.

    And for an attention that a dry run does not have, and weights that are stored in another form than the config's model has.
    """
    check_depths(config)
    auto, made = _made_by(config)
    name, attention = type(config).__name__, getattr(config, "_attn_implementation", None)
    if made is None or auto.__name__ != "AutoModelForCausalLM":
        raise ValueError(f"{owner}: a {name}; allowed: one whose code is a language model that generates")
    if attention not in (None, *ATTENTIONS):
        raise ValueError(
            f"{name}.attn_implementation: {attention!r} is not what a dry run has; allowed: {', '.join(ATTENTIONS)}"
        )
    if getattr(config, "quantization_config", None) is not None:
        raise ValueError(
            f"{name}.quantization_config: weights that are stored in fewer bits are not counted; allowed: a config without it"
        )


def weights(config) -> dict[str, int]:
    """Name -> numbers of each weight of a config's language model, which is made without data; of a shared one once."""
    check_depths(config)
    config = copy.deepcopy(config)
    config._attn_implementation = kernel(config)  # which has no weights, and may not be installed
    with torch.device("meta"):
        return {name: weight.numel() for name, weight in _made_by(config)[0].from_config(config).named_parameters()}


def named_difference(model: Model, module: nn.Module) -> str | None:
    """Why Hugging Face's module has another parameter count than `model`; None where it is the same.

    Raises:
        ValueError: where no reason is known, so that it is another architecture.
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


# Modules.


def made(config, setup: Setup, made_here: bool = False) -> Callable[[], nn.Module]:
    """A function that makes the language model of a config, with the setup's attention, dropout and checkpointing.

    A model that is no decoder is made for masked tokens. A config's `use_cache` stays, where neither `Trainer` nor checkpointing
    switches it off: then each forward makes a cache of keys and values, and gives it beside the loss.

    Args:
        made_here: whether the config was made from a `Model`: then the setup decides about dropout. Else the setup must have the
            config's dropout.

    Raises:
        ValueError: naming the field of the setup that such a model does not support.
    """
    kind = type(config).__name__
    check_depths(config)
    refuse(setup, "a Hugging Face model", {"loss", "loss_chunks", "checkpoint_every"})
    if setup.checkpointing not in ("none", "full"):
        raise ValueError(
            f"Setup.checkpointing: {setup.checkpointing!r} with a Hugging Face model; allowed: 'none' or 'full'"
        )
    if getattr(config, "_experts_implementation", None) == "eager" and _has_experts(config):
        raise ValueError(
            f"{kind}.experts_implementation: 'eager' asks which experts each token visits, and in a dry run no "
            "tensor has values; allowed: 'grouped_mm', the default, or 'batched_mm'"
        )
    _refuse_quantized(config, setup)
    config = copy.deepcopy(config)
    if setup.loop == "trainer" or setup.checkpointing == "full":
        config.use_cache = False  # as `TrainingArguments` has it, and as transformers makes it where it recomputes
    for dropout in _dropouts(config, setup, made_here):
        setattr(config, dropout, setup.dropout)
    (auto, module), attention = _made_by(config), "eager" if setup.attention == "eager" else "sdpa"
    if attention == "sdpa" and not getattr(module, "_supports_sdpa", True):
        raise ValueError(f"Setup.attention: {setup.attention!r} is not what {module.__name__} has; allowed: 'eager'")
    positions = getattr(config, "max_position_embeddings", None)
    if isinstance(positions, int) and 0 < positions < setup.sequence:  # 0: no bound
        raise ValueError(
            f"Setup.sequence: {setup.sequence} is more than the {positions} positions of this {kind}; "
            f"allowed: 1 to {positions}"
        )

    def make():
        module = auto.from_config(config, attn_implementation=attention).train()
        if setup.checkpointing == "full":
            if not module.supports_gradient_checkpointing:
                name = type(module).__name__
                raise ValueError(f"Setup.checkpointing: 'full' is not what {name} has; allowed: 'none'")
            # The first is what version 6 calls it.
            enable = getattr(module, "activation_checkpointing_enable", module.gradient_checkpointing_enable)
            enable({"use_reentrant": False})
        return module

    return make


def _has_experts(config):
    """Whether a config's code has experts of which it can be told how they run: of other models too transformers notes `eager`."""
    return getattr(_made_by(config)[1], "_can_set_experts_implementation", lambda: True)()


def _refuse_quantized(config, setup):
    """Raise ValueError where a checkpoint's weights are stored in a form that nothing here makes: a config's model has them whole."""
    said = getattr(config, "quantization_config", None)
    if said is None:
        return
    stored = said if isinstance(said, dict) else said.to_dict()
    if setup.quantization != "nf4" or stored.get("bnb_4bit_quant_type") != "nf4":
        method = getattr(stored.get("quant_method"), "value", stored.get("quant_method"))
        raise ValueError(
            f"{type(config).__name__}.quantization_config: weights stored by {method!r} are not counted; allowed: a config without it, "
            "whose weights are in its dtype, or bitsandbytes' nf4 with Setup.quantization 'nf4'"
        )


def dropouts(config) -> dict[str, float]:
    """The probabilities of a config with which its language model drops numbers."""
    named = (name for name in vars(config) if "dropout" in name or name.endswith("_pdrop"))
    others = ("summary_", "classifier")  # of heads for other tasks
    said = {name: getattr(config, name) for name in named if not name.startswith(others)}
    return {name: value for name, value in said.items() if isinstance(value, float)}


def _dropouts(config, setup, made_here):
    """The fields of a config that are set to the setup's dropout; none where a reader's config has a dropout, which must be equal.

    They are those that transformers does not make 0.0, of OPT not attention's; where it makes all 0.0, all.
    """
    kind, said = type(config).__name__, vars(config)
    for name, value in said.items():
        if "layerdrop" in name and value:
            raise ValueError(
                f"{kind}.{name}: {value} leaves layers out by chance, so that no two steps take the same; allowed: 0.0"
            )
    there = dropouts(config)
    own = {name: value for name, value in there.items() if value}
    if made_here or not own:
        return list(own or there)
    if setup.dropout not in own.values():
        name, value = next(iter(own.items()))
        raise ValueError(
            f"Setup.dropout: {setup.dropout}, and {kind}.{name} is {value}; allowed: {value}, which leaves the "
            "config as it is, or a config whose dropouts are 0.0"
        )
    return []


def refuse(setup: Setup, what: str, meaningless: set) -> None:
    """Raise ValueError where a field that `what` does not use is not at its default."""
    for name, usual in vars(Setup()).items():
        if name in meaningless and (value := getattr(setup, name)) != usual:
            raise ValueError(
                f"Setup.{name}: {value!r} means nothing to {what}, which decides this itself; allowed: {usual!r}"
            )
    if setup.sharding_units == "block+ends":
        raise ValueError(
            f"Setup.sharding_units: 'block+ends' with {what}, whose ends have no names here; allowed: 'block' or 'model'"
        )


@contextmanager
def as_on_cuda():
    """A context in which Hugging Face's models do on device meta what they do on a GPU.

    They would read off the positions whether a row packs several sequences; here none does. And only on meta they would skip
    autocast.
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
