"""What can be run: the book's reference, a module of your own, a Hugging Face config."""

import math
import sys
from dataclasses import replace

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from ..ask.setup import LIMITS, Setup
from ..catalog import Model
from ..common.checks import shown
from ..reference import FAMILIES
from ..reference.step import random_batch
from . import hugging_face
from .workload import Workload, kind_of, of_reference

#: What a module of your own decides itself.
_ITS_OWN = {"attention", "dropout", "loss", "loss_chunks", "checkpointing", "checkpoint_every"}


def workload(model, setup: Setup, batch=None, rank: int = 0) -> Workload:
    """What `dry_run` was given, made ready; the arguments and errors are its."""
    if isinstance(model, Model):
        if batch is not None:
            raise ValueError(
                f"dry_run.batch: {kind_of(batch)} with {model.name}; allowed: None, since setup says the batch"
            )
        if model.family is None:
            config = hugging_face.config_of(model)
            setup.check_model(model)
            return _of_config(config, setup, None, model)
        if not setup.mesh.alone:
            from .divided import workload as divided  # PyTorch's pipelines take half a second to import

            return divided(model, setup, rank)
        return of_reference(FAMILIES[model.family], random_batch(model.vocabulary, setup, "meta"), setup, model)
    if is_config(model):
        return _of_config(model, setup, batch)
    if isinstance(model, nn.Module):
        raise ValueError(
            f"dry_run.model: {kind_of(model)}, made already; allowed: a function that makes it, such as a lambda"
        )
    if not callable(model):
        named, instead = (
            (shown(model), f"; eb.model({shown(model)})") if isinstance(model, str) else (kind_of(model), "")
        )
        raise ValueError(
            f"dry_run.model: {named}; allowed: an everybyte Model, a Hugging Face config, or a function that makes a "
            f"torch.nn.Module{instead}"
        )
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


def _of_config(config, setup, batch, model=None):
    """A language model with random weights: nothing is downloaded."""
    if batch is None:
        shape = (setup.batch, setup.sequence), torch.int64
        batch = {"input_ids": shape, "labels": shape}
    return _own(hugging_face.made(config, setup, model is not None), setup, batch, model)


def _own(make, setup, batch, model=None):
    def inputs():
        made = tree_map(_without_data, batch, is_leaf=_is_description)
        return made if isinstance(made, dict | tuple | list) else (made,)

    if not any(isinstance(leaf, Tensor) for leaf in _leaves(inputs())):
        raise ValueError(
            f"dry_run.batch: {kind_of(batch)} without a tensor; allowed: a dict or a tuple of tensors or of (shape, dtype)"
        )
    return Workload(make, inputs, _targets, _call, _as_given(setup, _leaves(inputs())), model)


def _as_given(setup, leaves):
    """The setup with the batch and the sequence of the arguments, as the first of them has them: tokens, (B, S), or states, (B, S, H).

    Where it is neither, the sequence is 1.

    Raises:
        ValueError: where the setup says others.
    """
    first = next(leaf for leaf in leaves if isinstance(leaf, Tensor))
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
            raise ValueError(f"dry_run.batch: a {field} of {size}; allowed: {least} to {most:,}")
    return setup.replace(**given)


def _leaves(inputs):
    return list(inputs.values()) if isinstance(inputs, dict) else list(inputs)


def _targets(inputs):
    names = ("labels", "targets", "target")
    return [inputs[n] for n in names if isinstance(inputs.get(n), Tensor)] if isinstance(inputs, dict) else []


def _is_description(value):
    return isinstance(value, tuple) and len(value) == 2 and isinstance(value[1], torch.dtype)


def _without_data(value):
    if _is_description(value):
        shape = value[0]
        sizes = list(shape) if isinstance(shape, tuple | list | torch.Size) else [None]
        symbolic = any(isinstance(size, torch.SymInt) for size in sizes)
        if not symbolic and not all(type(size) is int and 0 <= size < 2**63 for size in sizes):
            raise ValueError(f"dry_run.batch: a tensor of shape {shape!r}; allowed: a tuple of whole numbers from 0 on")
        if not symbolic and math.prod(sizes) * value[1].itemsize >= 2**63:
            raise ValueError(f"dry_run.batch: a tensor of shape {shape!r}; allowed: less than 2**63 bytes")
        return torch.empty(value[0], dtype=value[1], device="meta")
    return torch.empty_like(value, device="meta") if isinstance(value, Tensor) else value


def _call(module, inputs):
    output = module(**inputs) if isinstance(inputs, dict) else module(*inputs)
    loss = output if isinstance(output, Tensor) else getattr(output, "loss", None)
    name = type(module).__name__
    if not isinstance(loss, Tensor) or loss.numel() != 1:
        raise ValueError(
            f"dry_run.model: the forward of {name} returned {kind_of(output)}; allowed: the loss, a tensor of one number, "
            "or an object with it as its `loss`"
        )
    if not loss.requires_grad:
        raise ValueError(f"dry_run.model: the loss of {name} depends on none of its parameters; allowed: one that does")
    return loss


def is_config(model):
    transformers = sys.modules.get("transformers")  # whoever holds a config has imported it
    return transformers is not None and isinstance(model, transformers.PretrainedConfig)
