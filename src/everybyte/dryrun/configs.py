"""The `Model` that a Hugging Face config of a derived decoder says: its dimensions read, and the config that these make held against it."""

from collections.abc import Iterator
from typing import Any

from ..catalog import Model, model, models
from ..common import checks
from .hugging_face import DECODERS, TRAINED, USUAL, Recipe, decoder_of, weights

#: Fields of a config that change no tensor of a pass in 16 bits: names of tokens, numbers without a size, what training alone asks for.
FREE = frozenset(
    """
    architectures bos_token_id eos_token_id pad_token_id sep_token_id dtype torch_dtype transformers_version use_cache _name_or_path
    initializer_range initializer_factor rms_norm_eps layer_norm_eps layer_norm_epsilon embd_pdrop resid_pdrop attn_pdrop
    attention_dropout hidden_dropout dropout layerdrop classifier_dropout pretraining_tp router_aux_loss_coef output_router_logits
    router_jitter_noise id2label label2id problem_type return_dict output_attentions output_hidden_states chunk_size_feed_forward
    is_encoder_decoder max_window_layers use_sliding_window summary_type summary_use_proj summary_activation summary_proj_to_labels
    summary_first_dropout task_specific_params tokenizer_class ep_size aux_loss_alpha seq_aux
    auto_map num_nextn_predict_layers
    """.split()
)


#: Rotary positions whose tables grow with the sequence, or are two.
_LONGER = ("dynamic", "longrope")
#: Fields that a config may leave out, where its code computes them as the `Model` does.
_LEFT_OUT = ("head_dim", "n_inner", "num_key_value_heads")


def model_of(config) -> Model:
    """The `Model` whose decoder is a config's. Nothing is downloaded, and weights are made without data.

    Raises:
        ValueError: naming the config's field, for a config of another architecture, or with a field that no derived decoder has.
    """
    kind, apart = type(config).__name__, {}
    for like, recipe in _recipes():
        if recipe.config != kind:
            continue
        for found in _tried(config, like, recipe):
            apart = _differences(config, recipe.of(found, bos_token_id=None, eos_token_id=None))
            if not apart:
                return _counted(config, found)
    if not apart:
        known = ", ".join(sorted({recipe.config for _, recipe in _recipes()}))
        raise ValueError(f"serve.model: a {kind}; allowed: {known}, or a hybrid's")
    field, (theirs, ours) = next(iter(apart.items()))
    raise ValueError(
        f"{kind}.{field}: {checks.shown(theirs)} is not derived; allowed: {checks.shown(ours)}. eb.dry_serve counts it"
    )


def _recipes() -> Iterator[tuple[Model, Recipe]]:
    """(A model of the catalog, how Hugging Face builds those like it), of decoders."""
    for name, recipe in DECODERS.items():
        like = next((one for one in models().values() if decoder_of(one) == name), None)
        if like is not None:
            yield like, recipe
    for recipe in TRAINED.values():
        if (like := model(recipe.like)).causal and decoder_of(like) is not None:
            yield like, recipe


def _tried(config, like: Model, recipe: Recipe) -> Iterator[Model]:
    """Models that may be the config's: one of the catalog, with the config's dimensions."""
    names = {theirs: ours for theirs, ours in USUAL.items() if ours not in recipe.names.values()} | recipe.names
    sizes: dict[str, Any] = {}
    for theirs, ours in names.items():
        sizes.setdefault(ours, getattr(config, theirs, None))
    types = getattr(config, "layer_types", None) or ()
    sizes |= _follows(config, like, recipe, sizes, types)
    turns = dict.fromkeys((like.full_every, 0, *range(2, len(types) + 1))) if sizes.get("window") else (0,)
    for turn in turns:
        try:
            yield like.replace(**sizes, full_every=turn)
        except ValueError:  # no model has these together
            continue


def _follows(config, like, recipe, sizes, types):
    """Fields of a `Model` that no field of a config is, or that one leaves out."""
    width = sizes["width"]
    found: dict[str, Any] = {
        "name": str(getattr(config, "name_or_path", "") or config.model_type).rpartition("/")[2],
        "code": "transformers",
    }
    found["embedding_width"] = sizes.get("embedding_width") or width
    found["kv_heads"] = sizes.get("kv_heads") or sizes["heads"]
    found["head_width"] = sizes.get("head_width") or width // sizes["heads"]
    found["ffn_width"] = sizes.get("ffn_width") or (like.ffn_width if "ffn_width" not in sizes else 4 * width)
    if "activation" in sizes:
        found["activation"] = "gelu_tanh" if sizes["activation"] == recipe.gelu_tanh else sizes["activation"]
    if "window" in sizes or recipe.more == "switched":
        near = not types or not {*types}.isdisjoint(("sliding_attention", "chunked_attention"))
        found["window"] = (sizes.get("window") or getattr(config, "sliding_window", None) or 0) * near
    if like.has_positions:
        found["learned_positions"] = sizes["positions"] + like.learned_positions - like.positions
    if recipe.more == "partly rotary":
        found["rotary_percent"] = round(100 * (config.rope_parameters or {}).get("partial_rotary_factor", 1))
    if recipe.more == "latent":
        grouped = config.n_group > 1
        found |= {"expert_groups": config.n_group * grouped, "groups_per_token": config.topk_group * grouped}
        found["head_width"] = config.qk_nope_head_dim + config.qk_rope_head_dim
    return found


def _differences(config, made) -> dict[str, tuple]:
    """Field -> (as the config has it, as the `Model`'s has it), of those that may change a tensor."""
    theirs, ours = config.to_dict(), made.to_dict()
    for said in (theirs, ours):
        turning = said.pop("rope_parameters", None) or {}
        said["partial_rotary_factor"] = turning.get("partial_rotary_factor", 1)
        kind = turning.get("rope_type", "default")
        said["rope_type"] = kind if kind in _LONGER else "default"
    fields = (theirs.keys() | ours.keys()) - FREE
    apart = {f: (theirs.get(f), ours.get(f)) for f in sorted(fields) if theirs.get(f) != ours.get(f)}
    return {f: both for f, both in apart.items() if both[0] is not None or f not in _LEFT_OUT}


def _counted(config, found):
    """The model. Raise ValueError where transformers' has another parameter count; biases of routers are buffers there."""
    count = sum(weights(config).values()) + found.corrected * found.mixture_layers * found.experts
    if count != found.parameters:
        raise ValueError(
            f"serve.model: a {type(config).__name__} of {count:,} parameters, where eb.Model has {found.parameters:,}; allowed: as many"
        )
    return found
