"""What runs a loop with PyTorch: a trainer whose step is the loop's next one."""

from collections.abc import Callable, Mapping
from contextlib import contextmanager
from functools import partial
from importlib import import_module
from inspect import signature

import torch
from torch import nn
from torch.autograd import graph

from ...ask.choices import OPTIMIZERS
from ...ask.setup import Setup
from ..saving.fsdp import averaging_once, in_flat_units, into_groups, resharded
from ..saving.muon import gathering
from ..step import Trainer, make_optimizer
from .buffers import DistributedBuffers
from .outputs import WithLogits

#: The norm that gradients are scaled down to.
MOST = 1.0


def trainer_of(module: nn.Module, setup: Setup, autocast: Callable | None = None) -> Trainer:
    """The trainer whose steps are those of the setup's loop. Arguments as for `Trainer`."""
    buffered = setup.precision == "bf16-megatron" and setup.sharding == "zero1"
    with into_groups(setup), in_flat_units(setup):
        trained = setup.replace(precision="bf16") if buffered else setup
        trainer = (Looped if setup.looped else Trainer)(module, trained, autocast)
    if buffered:
        trainer.optimizer = DistributedBuffers(
            (p for p in module.parameters() if p.requires_grad), make_optimizer(setup)
        )
    if setup.fsdp_version == 1:
        averaging_once(trainer)
    resharded(trainer.module, setup)
    if setup.offload == "activations":
        saved_on_host(trainer)
    gathering(trainer, setup)
    if setup.optimizer_in_backward:
        trainer.optimizer = InBackward(trainer.module, setup)
    return trainer


def saved_on_host(trainer):
    """Have forwards save on the host what they save for backward, checkpoints their inputs too."""
    autocast, pinned = trainer.autocast, trainer.device.type == "cuda"

    @contextmanager
    def around():
        with autocast(), graph.save_on_cpu(pin_memory=pinned):
            yield

    trainer.autocast = around


class InBackward:
    """An optimizer for each weight, which moves it in backward and drops its gradient: gradients never stand all at once.

    Under FSDP a weight is this GPU's share, and its hook runs when the unit's gradients have been reduced.
    Sources: PyTorch, tutorials, `optimizer_step_in_backward_tutorial`; `torch/distributed/fsdp/_fully_shard/_fsdp_collectives.py`,
    `foreach_reduce`; torchtune, training/memory.py, `OptimizerInBackwardWrapper`.
    """

    def __init__(self, module: nn.Module, setup: Setup):
        make, self.param_groups = make_optimizer(setup), []
        for weight in module.parameters():
            if weight.requires_grad:
                optimizer = make([weight])
                weight.register_post_accumulate_grad_hook(partial(move, optimizer))
                self.param_groups += optimizer.param_groups

    def step(self):
        """Nothing is left to be done."""

    zero_grad = step


def move(optimizer, weight):
    optimizer.step()
    weight.grad = None


class Looped(Trainer):
    """A trainer that goes on in a loop: what the loop has names for lives from step to step.

    Attributes:
        outputs, zero_grad, clip: as the setup says. forward: (inputs) -> (loss, what else the model gave ...).
    """

    def __init__(self, module: nn.Module, setup: Setup, autocast: Callable | None = None):
        for part in module.modules() if setup.outputs == "kept" else ():
            if (
                hasattr(part, "with_head") and "loss" in part._modules
            ):  # a model of the book's, which gives its loss alone
                part.loss = WithLogits(part.loss)
        super().__init__(module, setup, autocast)
        self.outputs, self.zero_grad, self.clip = setup.outputs, setup.zero_grad, setup.clip
        self.widens = setup.dtypes.autocast
        self.weights = [p for p in self.module.parameters() if p.requires_grad]
        if setup.loop == "trainer" and OPTIMIZERS[setup.optimizer].algorithm == "adam8bit":
            widen_embeddings(self.optimizer, self.module)
        self.loss, self.going = None, import_module(f"{__package__}.{setup.loop}").steps(self)

    def step(self, batch: Callable, at: Callable = lambda phase: None):
        """One step, as `Trainer`'s."""
        self.next_batch, self.at = batch, at
        next(self.going)
        loss, self.loss = self.loss, None
        return loss

    # What a loop calls.

    def turns(self):
        """For each batch of a step the number of those that follow."""
        return reversed(range(self.accumulation))

    def tokens(self, inputs):
        """What a model is given without the targets."""
        return [x for name, x in inputs.items() if name != "labels"] if isinstance(inputs, Mapping) else inputs[0]

    def items(self, batches):
        """How many targets all batches have, a tensor of one number; None for a model that does not take it, as transformers' do."""
        told = all(isinstance(inputs, Mapping) and "labels" in inputs for inputs in batches)
        taken = signature(self.module.forward).parameters.values()
        if not told or not any(one.kind is one.VAR_KEYWORD for one in taken):
            return None
        return sum(inputs["labels"][..., 1:].ne(-100).sum() for inputs in batches) / 1

    def forward(self, inputs, items=None):
        given = super().forward(inputs)
        return given if isinstance(given, tuple) else (given,)

    def widened(self, outputs):
        """Under autocast what has 16 bits in fp32."""
        return wide(outputs) if self.widens else outputs

    def scaled(self, loss, batches=None):
        """A batch's share in the loss of so many, or of all."""
        return loss / (batches or self.accumulation)

    def zero(self):
        """A loss that is added up in place."""
        return torch.zeros((), device=self.device)

    def clear(self, total):
        total.zero_()

    def add(self, total, loss):
        total += loss

    def summed(self, total, share):
        """The loss of the batches so far."""
        return total + share.detach() if self.accumulation > 1 else share.detach()

    def stacked(self, losses):
        return torch.sum(torch.stack(losses))

    def backward(self, loss):
        (self.scaler.scale(loss) if self.scaler else loss).backward()

    def clip_norm(self):
        """Scale the gradients down to a norm; returns the norm that they had."""
        if self.clip == "none":
            return None
        if self.scaler:
            self.scaler.unscale_(self.optimizer)
        return nn.utils.clip_grad_norm_(self.weights, MOST, foreach=self.clip == "foreach")

    def drop_gradients(self):
        self.optimizer.zero_grad()

    def end(self, loss):
        """What the step returns."""
        self.loss = loss


def widen_embeddings(optimizer, module):
    """Have bitsandbytes keep the states of embeddings in fp32, as `Trainer.create_optimizer` does.

    There the manager is one for the whole process; here it is the optimizer's own.
    """
    manager = object.__new__(type(optimizer.mng))
    manager.initialize()
    for part in module.modules():
        if isinstance(part, nn.Embedding):
            manager.register_module_override(part, "weight", {"optim_bits": 32})
    optimizer.mng = manager


def wide(x):
    """A tensor of 16 bits in fp32; of a tuple each."""
    if isinstance(x, torch.Tensor):
        return x.float() if x.dtype in (torch.float16, torch.bfloat16) else x
    return tuple(map(wide, x)) if isinstance(x, tuple) else x
