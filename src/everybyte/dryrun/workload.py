"""A workload: what a step trains, and on what."""

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import KW_ONLY, dataclass
from functools import partial
from unittest import mock

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from ..ask.choices import OWN
from ..ask.setup import Setup
from ..catalog import Model
from ..reference import Trainer
from ..reference.adapters import as_it_is, base_parameters
from ..reference.loops.running import trainer_of
from ..reference.saving import with_adapters
from ..reference.step import DTYPES
from ..step.witness import Counted
from . import hugging_face
from .cuda import refused
from .tracker import is_opaque


@dataclass(frozen=True)
class Workload:
    """What a step trains, and on what.

    Attributes:
        make: makes the module; called under device "meta".
        batch: makes the module's arguments, on device "meta". targets: which of them are there for the loss alone.
        call: (module, arguments) -> (the loss, what else the module gave ...).
        setup: what runs: with the batch and the sequence of the arguments.
        model: the `Model`; None where the module must be counted first.
        trains: makes the trainer. as_made: whether the data types in which `make` makes its tensors are the reader's word.
            as_loaded: whether a config says the weights' data type, so that they are made in it, and nothing casts them, or buffers.
    """

    make: Callable[[], nn.Module]
    batch: Callable[[], tuple | dict]
    targets: Callable[[tuple | dict], list[Tensor]]
    call: Callable[[nn.Module, tuple | dict], tuple]
    setup: Setup
    model: Model | None = None
    _: KW_ONLY
    trains: Callable[..., Trainer] = trainer_of
    as_made: bool = False
    as_loaded: bool = False

    def module(self) -> nn.Module:
        """The module, on device "meta".

        Raises:
            ValueError: where it is none, has no parameter to train, or stands on another device.
        """
        try:
            with torch.device("meta"):
                module = self.make()
        except Exception as error:
            raise_of_gpu("what makes it", error)
            raise
        if not isinstance(module, nn.Module):
            raise refused(f"it made {kind_of(module)}", "a function that makes a torch.nn.Module")
        _check_tensors(module)
        if self.as_made:
            _check_dtypes(module, self.setup)
        if not any(p.requires_grad for p in module.parameters()):
            raise refused(f"{type(module).__name__} has no parameter to train", "one or more")
        with _uncast(module) if self.as_loaded else nullcontext():
            return with_adapters(module, self.setup)

    def counted(self, module: nn.Module) -> Model | Counted:
        """The `model` of the trace."""
        if self.model is not None and self.model.family is not None:
            return self.model
        count = base_parameters(module) if self.setup.adapters else sum(p.numel() for p in module.parameters())
        module = module.get_base_model() if self.setup.adapters else module
        if self.model is None:
            return Counted(type(module).__name__, count)
        why = hugging_face.named_difference(self.model, module)
        return Counted(f"{self.model.name} ({why})", count) if why else self.model

    def trainer(self, module: nn.Module, setup: Setup, **options) -> Trainer:
        """A trainer that calls the module as this workload does."""
        own = setup.precision in OWN
        casts = as_it_is(module, setup)
        if not (own or setup.adapters):
            casts = _floats_alone(module) if self.as_made else _uncast(module) if self.as_loaded else casts
        with casts:
            # Where nothing is cast, that, and no more, is what the trainer is told.
            trainer = self.trains(module, setup.replace(precision="fp32") if own else setup, **options)

        # The trainer's own way of calling is a method, which this workload's way stands before.
        def forward(inputs, items=None):
            inputs = inputs if items is None else inputs | {"num_items_in_batch": items}
            given = self.call(trainer.called, inputs)
            return given if setup.looped else given[0]

        trainer.forward = forward  # type: ignore[method-assign]
        return trainer


def _check_tensors(module):
    """Raise ValueError where a parameter, a buffer or a part of it cannot be followed on tensors without data."""
    name = type(module).__name__
    for path, child in module.named_modules():
        if isinstance(child, torch.jit.ScriptModule):
            raise refused(
                f"module {path or name!r} is compiled by torch.jit, which runs no operation that can be followed",
                "the module that it was made of",
            )
    for what, tensor in _tensors(module).items():
        if is_lazy(tensor):
            why = "has no size before the first forward"
            allowed = "layers whose sizes are said, such as Linear in place of LazyLinear"
        elif not tensor.is_meta:
            why = f"is on device {tensor.device}"
            allowed = "meta, where a module stands that is made within the function and names no device"
        elif is_opaque(tensor):
            why = f"is a {type(tensor).__name__}, a tensor that does not say which tensors it is made of"
            allowed = "one with __tensor_flatten__, as torch.compile asks for too"
        else:
            continue
        raise refused(f"{what} of {name} {why}", allowed)


def _tensors(module):
    """{its name in a message: tensor} of all parameters, then all buffers."""
    found = {f"parameter {path!r}": tensor for path, tensor in module.named_parameters()}
    return found | {f"buffer {path!r}": tensor for path, tensor in module.named_buffers()}


def _check_dtypes(module, setup):
    """Raise ValueError where the setup's precision would cast a tensor that was not made in fp32.

    A module made in fp32 is cast to the precision, as scripts do; a tensor in another data type is not. Complex numbers are never
    cast.
    """
    if setup.precision in OWN:
        return
    made = {what: tensor.dtype for what, tensor in _tensors(module).items() if tensor.is_floating_point()}
    wanted = DTYPES[setup.base_dtype]
    if any(set(made.values()) <= {allowed} for allowed in (torch.float32, wanted)):
        return
    what, dtype = next((p, d) for p, d in made.items() if d is not wanted)
    types = " or ".join(dict.fromkeys(map(str, (torch.float32, wanted))))
    raise refused(
        f"{what} of {type(module).__name__} is made in {dtype}, and precision {setup.precision!r} would make it {wanted}",
        f"precision 'own', which casts nothing, or a module made in {types} alone",
    )


def _uncast(module):
    """A context in which a cast of the module leaves it as it is."""
    return mock.patch.object(module, "to", lambda *_: module)


def _floats_alone(module):
    """A context in which a cast of the module leaves complex numbers as they are; PyTorch would drop the imaginary part."""

    def to(dtype):
        return module._apply(lambda t: t.to(dtype) if t.is_floating_point() else t)

    return mock.patch.object(module, "to", to)


def of_reference(
    family: Callable[[Model, Setup], nn.Module], tokens, setup: Setup, model: Model, **options
) -> Workload:
    """The workload of a reference model, whose forward takes the batch and returns the loss.

    The batch's second entry are the targets, or a tuple that begins with them.
    """

    def targets(batch):
        return [batch[1] if isinstance(batch[1], Tensor) else batch[1][0]]

    make = partial(family, model, setup)
    return Workload(make, tokens, targets, as_tuple, setup, model, **options)


def as_tuple(module, batch):
    """What a module of the book's gives: its loss, and where the loop keeps them its logits."""
    given = module(*batch)
    return given if isinstance(given, tuple) else (given,)


def kind_of(value):
    return f"a tensor of shape {tuple(value.shape)}" if isinstance(value, Tensor) else f"a {type(value).__name__}"


def raise_of_gpu(who: str, error: Exception) -> None:
    """Raise ValueError where an error says that there is no GPU, for which `who` asked; a dry run needs none."""
    if isinstance(error, AssertionError | RuntimeError) and "CUDA" in str(error):
        allowed = "a module that names no device, and is not moved: a dry run makes it on device meta"
        raise refused(f"{who} asks for a GPU ({error})", allowed) from error
