"""A model by the configuration that lies beside its weights, config.json: read without transformers, and refused where it says more."""

import os
from collections.abc import Mapping
from dataclasses import MISSING, fields
from functools import cache
from pathlib import Path
from typing import Any

from ..common import checks, files
from .models import Model, model

_ROWS = files.toml(__package__, "configs.toml")
_EVERY = _ROWS.pop("every")
_RECIPES = files.toml(__package__, "recipes.toml")
#: transformers' `model_type`s that are read.
KINDS = tuple(_ROWS)
#: Data type of a configuration's weights -> the precision in which what `from_pretrained` loads by it trains.
LOADED = {"float32": "fp32", "bfloat16": "bf16"}
#: Endings of the classes of transformers' that make a language model.
ENDS = _EVERY["ends"]
#: Kinds of rotary positions, which are computed beforehand whatever the sequence.
ROPES = ("default", "llama3", "linear", "yarn")
#: The file's most bytes.
_MOST = 2**20
#: Fields of Model that follow from others where a configuration does not say them.
_FOLLOWING = set("kv_heads head_width ffn_width embedding_width window full_every name published source".split())
#: Fields of which a size is computed.
_PATTERNS = "sliding_window_pattern", "_sliding_window_pattern"
_COMPUTED = ("architectures", "rope_parameters", "rope_scaling", "layer_types", *_PATTERNS)
_SWITCH = ("use_sliding_window", "sliding_window")
_ELSEWHERE = "or eb.derive(transformers.AutoConfig.from_pretrained(folder), setup), which runs the code itself"


def from_config(said: Any, name: str = "") -> Model:
    """The model of a Hugging Face configuration: the path of a config.json, its content, or an object of transformers' with `to_dict`.

    Its code is transformers', and trains without a cache, as transformers' Trainer does: `use_cache` is not read, nor is `dtype`: the setup's
    precision decides, and a model that is made in 16 bits keeps its rotary frequencies twice, 2 bytes for each number of a head more. What a field means for memory is known, or the field is refused.

    Args:
        name: of the model; by default the configuration's own, or its kind.

    Raises:
        ValueError: a file that is no such JSON, an architecture or a field that is not read here, a value that is not allowed.
    """
    content = _content(said)
    config = {field: value for field, value in content.items() if value is not None}
    kind = config.get("model_type")
    if "text_config" in config:
        raise ValueError(
            f"config.text_config: {checks.shown(kind)} has several towers; allowed: a language model's own configuration, {_ELSEWHERE}"
        )
    if kind not in KINDS:
        raise ValueError(f"config.model_type: {checks.shown(kind)}; allowed: {', '.join(KINDS)}, {_ELSEWHERE}")
    row, (names, flags) = _ROWS[kind], _kept(kind)
    instead = row.get("instead", {})
    filled = {*row["usual"], *row.get("filled", ())}
    null = {instead.get(field, field) for field, value in content.items() if value is None} & filled
    config = {instead.get(field, field): value for field, value in config.items()}
    if unknown := sorted(null - {*row.get("null", ()), *config}):
        raise ValueError(
            f"config.{unknown[0]}: None of {kind}; allowed: a number, or a file that does not say it, {_ELSEWHERE}"
        )
    _check(kind, config, row, names)
    sizes = _sizes(config, kind, row, names, null)
    return Model(
        **flags | sizes | {"name": name or _name(said, config, kind), "source": "a configuration of Hugging Face's"}
    )


def precision(said: Any) -> str:
    """The precision of a setup in which a configuration's weights are loaded: what it says, else fp32. ValueError for another data type."""
    content = _content(said)
    dtype = str(content.get("dtype") or content.get("torch_dtype") or "float32").removeprefix("torch.")
    if dtype not in LOADED:
        raise ValueError(
            f"config.dtype: {checks.shown(dtype)}, which no precision is; allowed: {', '.join(LOADED)}, or a precision that is said: "
            "--precision bf16 takes the bytes of fp16, but where attention is eager: its softmax casts bf16, and reads fp16 as it is"
        )
    return LOADED[dtype]


@cache
def _kept(kind):
    """({field of a configuration: that of Model whose value it is}, {field of Model: its value in each model of the kind})."""
    row = _ROWS[kind]
    group, _, which = row["recipe"].partition(".")
    recipe = _RECIPES[group][which]
    names = {t: o for t, o in _RECIPES["usual"].items() if o not in recipe["names"].values()} | recipe["names"]
    told = {*row["told"], *row.get("neutral", ())}
    names = {t: o for t, o in names.items() if t not in told and o != "activation"}
    like = model(row["like"], "transformers")
    # What no field says follows from others, as by default.
    own = {*names.values(), *recipe.get("free", ()), *_FOLLOWING, *(["learned_positions"] * like.has_positions)}
    return names, {f.name: getattr(like, f.name) for f in fields(Model) if f.name not in own}


def rows() -> dict[str, dict]:
    """What `from_config` goes by, of each kind, for whoever reads a configuration in another language; `model` is without what follows."""
    found, usual = {}, {f.name: f.default for f in fields(Model) if f.default not in (None, MISSING)}
    for kind, row in _ROWS.items():
        names, flags = _kept(kind)
        found[kind] = {
            "names": names, "model": usual | flags, "usual": row["usual"], "told": _EVERY["told"] | row["told"],
            "instead": row.get("instead", {}), "null": row.get("null", []), "neutral": sorted(_neutral(row)),
            "computed": sorted(_computed(row)), "switched": row.get("switched", False), "window_every": row.get("window_every", 0),
            "stated": row.get("stated", []), "patterns": _PATTERNS, "filled": row.get("filled", []), "pattern": row.get("pattern", ""),
        }  # fmt: skip
    return found


def _neutral(row):
    """Fields that move no byte."""
    return {*_EVERY["neutral"], *row.get("neutral", ())}


def _computed(row):
    """Fields of which sizes are computed."""
    return {*_COMPUTED, *row["usual"], *row["follows"], *(_SWITCH if row.get("switched") else ())}


def _content(said):
    """{field: value} of what was given."""
    if hasattr(said, "to_dict"):
        said = {"attn_implementation": getattr(said, "_attn_implementation", None)} | said.to_dict()
    if isinstance(said, str | os.PathLike):
        data = files.read("config", said, _MOST)
        try:
            said = files.parsed(data)
        except ValueError as error:
            raise ValueError(f"config: {error}; allowed: a config.json") from None
    if not isinstance(said, Mapping):
        raise ValueError(f"config: {checks.shown(said)}; allowed: the path of a config.json, or its content")
    return dict(said)


def _name(said, config, kind):
    """What to call it: its folder, or what it calls itself."""
    path = Path(said) if isinstance(said, str | os.PathLike) else None
    own = str(config.get("_name_or_path") or kind).rstrip("/").rpartition("/")[2]
    name = path.absolute().parent.name if path and path.stem == "config" else path.stem if path else own
    return name if name.isprintable() and 0 < len(name) <= 60 else kind


def _check(kind, config, row, names):
    """Raise ValueError for a field that is not known to be told, to be a size, or to move no byte."""
    if "quantization_config" in config:
        raise ValueError(
            f"config.quantization_config: weights that are stored in fewer bits; allowed: none, or Setup.quantization; {_ELSEWHERE}"
        )
    told = _EVERY["told"] | row["told"]
    neutral, computed = _neutral(row), _computed(row)
    made = config.get("architectures", [])
    if not isinstance(made, list) or not all(isinstance(one, str) and one.endswith(tuple(ENDS)) for one in made):
        raise ValueError(
            f"config.architectures: {checks.shown(made)} of {kind}; allowed: a language model's, whose name ends in {' or '.join(ENDS)}, or "
            "eb.dry_run(a function that makes it, setup, batch=...), which runs that code itself"
        )
    for field, value in config.items():
        if field in told:
            if value not in told[field]:
                allowed = " or ".join(map(repr, told[field])) or "none"
                allowed += ", or none and Setup.attention beside" if field.endswith("attn_implementation") else ""
                raise ValueError(f"config.{field}: {checks.shown(value)} of {kind}; allowed: {allowed}, {_ELSEWHERE}")
        elif field not in neutral and field not in names and field not in computed:
            raise ValueError(
                f"config.{checks.printable(str(field), 60)}: {checks.shown(value)} is not known here to move no byte; allowed: a {kind} without, {_ELSEWHERE}"
            )
    for field in row.get("stated", ()):
        if field not in config:
            raise ValueError(f"config.{field}: not said by a {kind}; allowed: {told[field][0]!r}, said, {_ELSEWHERE}")
    for rope in _ropes(config):
        said = rope.get("rope_type", rope.get("type", "default"))
        if said not in ROPES or rope.get("partial_rotary_factor", 1.0) != 1.0:
            raise ValueError(
                f"config.rope_parameters: {checks.shown(said)}; allowed: {', '.join(ROPES)}, of whole heads; {_ELSEWHERE}"
            )


def _ropes(config):
    for said in (config.get("rope_parameters"), config.get("rope_scaling")):
        if isinstance(said, Mapping):
            inside = [value for value in said.values() if isinstance(value, Mapping)]
            yield from inside or [said]


def _sizes(config, kind, row, names, null):
    """{field of Model: its value}, of those that the configuration decides. null: fields that it says to be null, which is no size."""
    usual = {field: value for field, value in row["usual"].items() if field not in null}
    said = {field: config.get(field, usual.get(field)) for field in {*names, *row["usual"]}}
    for field, value in said.items():
        if field != "tie_word_embeddings" and value is not None and type(value) is not int:
            raise ValueError(f"config.{field}: {checks.shown(value)} is not a whole number")
    sizes = {ours: said[theirs] for theirs, ours in names.items() if said.get(theirs) is not None}
    if "intermediate_size" in said:  # of experts alone, too
        sizes.setdefault("ffn_width", said["intermediate_size"])
    if kind == "deepseek_v3":
        groups = said["n_group"] if said["n_group"] > 1 else 0
        sizes |= {"head_width": said["qk_nope_head_dim"] + said["qk_rope_head_dim"], "expert_groups": groups}
        sizes |= {"groups_per_token": said["topk_group"] if groups else 0}
    return sizes | _windows(kind, config, row, sizes)


def _windows(kind, config, row, sizes):
    """Which layers have the window, by the pattern or the list that the configuration has."""
    layers, window = sizes["layers"], sizes.get("window", 0)
    if row.get("switched"):
        checks.flag("config", "use_sliding_window", config.get("use_sliding_window", False))
    if row.get("switched") and config.get("use_sliding_window"):
        window = config.get("sliding_window", 4096)
        checks.whole("config", "sliding_window", window, 1, 2**27)
        if "layer_types" not in config:
            raise ValueError(
                f"config.use_sliding_window: True of {kind}, in all layers but the first; allowed: layer_types beside it, {_ELSEWHERE}"
            )
    elif config.get("sliding_window") == 0 and "window" in sizes:
        raise ValueError(f"config.sliding_window: 0 of {kind}; allowed: from 1 on, or null for none, {_ELSEWHERE}")
    usual = row.get("window_every", 0)
    every = config.get(row.get("pattern"), usual)
    for field in _PATTERNS:
        checks.whole("config", field, config.get(field, usual), 0, 2**24)
        if field != row.get("pattern") and window and config.get(field, usual) != usual and "layer_types" not in config:
            raise ValueError(
                f"config.{field}: {config[field]} of {kind}, which its code does not read; allowed: layer_types beside it, {_ELSEWHERE}"
            )
    if "layer_types" in config:
        types = config["layer_types"]
        full = [i + 1 for i, said in enumerate(types) if said == "full_attention"] if isinstance(types, list) else []
        every = full[0] if full and window else 0
        every = 0 if every == 1 else every  # all attend to all tokens, and none has the window
        whole = [not window or every and i % every == 0 for i in range(1, layers + 1)]
        if types != ["full_attention" if one else "sliding_attention" for one in whole]:
            raise ValueError(
                f"config.layer_types: {checks.shown(types)}; allowed: every so many layers one that attends to all, {_ELSEWHERE}"
            )
    return {"window": window, "full_every": every if window else 0}
