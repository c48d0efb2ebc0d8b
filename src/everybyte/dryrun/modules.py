"""The `Workload` of whatever can be run: a model, an objective, a Hugging Face config, a module of your own."""

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from ..ask.choices import LIMITS
from ..ask.objectives import Objective
from ..ask.setup import Setup
from ..catalog import Model
from ..catalog.configs import LOADED
from ..common import checks
from ..reference.saving import built
from ..reference.step import random_batch
from ..rules import PIPELINE, TENSOR, check
from . import alignment, hugging_face
from .cuda import refused
from .hugging_face import is_config
from .workload import Workload, kind_of, of_reference

#: Fields of a setup that a module of your own decides itself.
_ITS_OWN = {"attention", "dropout", "loss", "loss_chunks", "checkpointing", "checkpoint_every"}


def workload(model, setup: Setup, batch=None, rank: int = 0) -> Workload:
    """The workload of the arguments of `dry_run`; it raises what `dry_run` raises."""
    if isinstance(model, Model):
        hugging_face.check_depth("Model.layers", model.layers)
    setup = setup.of(own(model))
    _check_mesh(model, setup, batch)
    if isinstance(model, Model | Objective):
        if batch is not None:
            raise refused(f"{kind_of(batch)} with {model.name}", "None, since setup says the batch", "batch")
        return _of_ours(model, setup, rank)
    if is_config(model):
        return _of_config(model, setup, batch)
    if isinstance(model, nn.Module):
        raise refused(f"{kind_of(model)}, made already", "a function that makes it, such as a lambda")
    if not callable(model):
        named, instead = kind_of(model), ""
        if isinstance(model, str):
            named, instead = checks.shown(model), f"; eb.model({checks.shown(model)})"
        allowed = f"an everybyte Model, a Hugging Face config, or a function that makes a torch.nn.Module{instead}"
        raise refused(named, allowed)
    if batch is None:
        raise ValueError(
            "dry_run.batch: None; allowed with a module of your own: the arguments of its forward, a dict or a tuple, "
            "each a tensor or (shape, dtype)"
        )
    hugging_face.refuse(setup, "a module of your own", _ITS_OWN)
    work = replace(_own(model, setup, batch), as_made=True)
    if setup.mesh.alone:
        return work
    from .divided import mesh_trainer

    return replace(work, trains=mesh_trainer)


def own(model) -> dict[str, Any]:
    """What of a setup a model has of its own, where nobody says it; a module of your own decides itself, without the setup.

    Raises:
        ValueError: for a config whose attention no setup has.
    """
    if isinstance(model, Model | Objective):
        return model.own
    return hugging_face.own(model) if is_config(model) else {}


def _check_mesh(model, setup, batch):
    """Raise ValueError for a mesh by which the model cannot be divided. A module of your own divides its matrices itself."""
    pipelined = setup.mesh.pipeline > 1
    ours = isinstance(model, Model) and model.family is not None and not (pipelined and batch is not None)
    if setup.mesh.alone or ours:
        return
    if not isinstance(model, Model | Objective) and not is_config(model) and setup.mesh.divided == ["tensor"]:
        check(TENSOR, setup, None)
        return
    name = model.name if isinstance(model, Model | Objective) else f"a {type(model).__name__}"
    does, allowed = "divides its own models", "a function that makes a module with Mesh(tensor=...) alone, or no mesh"
    if pipelined:
        does, allowed = "cuts its own models into stages", "no pipeline"
    raise refused(f"{name} with mesh {setup.mesh}: the book {does}", f"a Model of GPT's or Llama's kind, or {allowed}")


def _of_ours(model, setup, rank):
    if isinstance(model, Objective):
        return alignment.workload(model, setup)
    if not setup.mesh.alone:
        checks.whole("dry_run", "rank", rank, 0, setup.gpus - 1)
        setup.check_model(model)
        check(PIPELINE, setup)
    if model.family is None:
        config = hugging_face.config_of(model)
        setup.check_model(model)
        return _of_config(config, setup, None, model)
    if not setup.mesh.alone:
        from .divided import workload as divided  # PyTorch's pipelines take half a second to import

        return divided(model, setup, rank)
    return of_reference(built, random_batch(model.vocabulary, setup, "meta"), setup, model)


def _of_config(config, setup, batch, model=None):
    """The workload of a config's language model with random weights. Nothing is downloaded."""
    if batch is None:
        shape = (setup.batch, setup.sequence), torch.int64
        batch = {"input_ids": shape, "labels": shape}
    work = _own(hugging_face.made(config, setup, model is not None), setup, batch, model)
    as_loaded = LOADED.get(hugging_face.dtype(config)) == setup.base_dtype == "bf16"
    return replace(work, as_loaded=as_loaded and model is None)


def _own(make, setup, batch, model=None):
    def inputs():
        made = tree_map(_without_data, batch, is_leaf=_is_description)
        return made if isinstance(made, dict | tuple | list) else (made,)

    example = inputs()
    tensors = [t for t in (example.values() if isinstance(example, dict) else example) if isinstance(t, Tensor)]
    if not tensors:
        allowed = "a dict or a tuple of tensors or of (shape, dtype)"
        raise refused(f"{kind_of(batch)} without a tensor", allowed, "batch")
    return Workload(make, inputs, _targets, _call, _as_given(setup, tensors[0]), model)


def _as_given(setup, first):
    """The setup with batch and sequence of the first argument: tokens (B, S), or states (B, S, H); else the sequence is 1.

    Raises:
        ValueError: where the setup has other ones than these or the defaults.
    """
    in_sequence = first.dim() == (3 if first.is_floating_point() else 2)
    given = {"batch": first.size(0) if first.dim() else 1, "sequence": first.size(1) if in_sequence else 1}
    for field, size in given.items():
        said, usual = getattr(setup, field), getattr(Setup(), field)
        if said not in (usual, size):
            raise ValueError(
                f"Setup.{field}: {said}, and in the arguments of dry_run.batch it is {size}; allowed: {size}, or {usual}, the default"
            )
        least, most = LIMITS[field]
        if not least <= size <= most:
            raise refused(f"a {field} of {size}", f"{least} to {most:,}", "batch")
    return setup.replace(**{field: size for field, size in given.items() if size != getattr(setup, field)})


def _targets(inputs):
    names = ("labels", "targets", "target")
    return [inputs[n] for n in names if isinstance(inputs.get(n), Tensor)] if isinstance(inputs, dict) else []


def _is_description(value):
    return isinstance(value, tuple) and len(value) == 2 and isinstance(value[1], torch.dtype)


def _without_data(value):
    if not _is_description(value):
        if isinstance(value, Tensor) and value.device.type == "cpu" and not value.is_floating_point():
            return value.to("meta")  # the tracker sees it, and keeps its values
        return torch.empty_like(value, device="meta") if isinstance(value, Tensor) else value
    shape, dtype = value
    sizes = list(shape) if isinstance(shape, tuple | list | torch.Size) else [None]
    if not any(isinstance(size, torch.SymInt) for size in sizes):
        if not all(type(size) is int and 0 <= size < 2**63 for size in sizes):
            raise refused(f"a tensor of shape {shape!r}", "a tuple of whole numbers from 0 on", "batch")
        if math.prod(sizes) * dtype.itemsize >= 2**63:
            raise refused(f"a tensor of shape {shape!r}", "less than 2**63 bytes", "batch")
    return torch.empty(shape, dtype=dtype, device="meta")


def _call(module, inputs):
    output = module(**inputs) if isinstance(inputs, dict) else module(*inputs)
    loss = output if isinstance(output, Tensor) else getattr(output, "loss", None)
    name = type(module).__name__
    if not isinstance(loss, Tensor) or loss.numel() != 1:
        allowed = "the loss, a tensor of one number, or an object with it as its `loss`"
        raise refused(f"the forward of {name} returned {kind_of(output)}", allowed)
    if not loss.requires_grad:
        raise refused(f"the loss of {name} depends on none of its parameters", "one that does")
    others = [value for field, value in output.items() if field != "loss"] if isinstance(output, Mapping) else [output]
    return loss, *others
