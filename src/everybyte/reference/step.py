"""The training step, in every precision, with one optimizer of PyTorch's."""

import logging
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from importlib import import_module

import torch
from torch import nn

from ..setup import OPTIMIZERS, Setup
from .parallel import ShardedOptimizer, distribute

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


class MasterWeights:
    """An optimizer over fp32 copies of 16-bit weights, as Megatron-LM and DeepSpeed keep them.

    `gradients` says where gradients are kept: `bf16`, as backward makes them, with fp32 copies for the step alone;
    `fp32`, each added to a lasting buffer as soon as backward has it, then dropped; `both`.
    """

    def __init__(self, parameters, make: Callable, gradients: str):
        self.weights = list(parameters)
        self.masters = [p.detach().float() for p in self.weights]
        self.optimizer = make(self.masters)
        self.buffers = None
        if gradients != "bf16":
            self.buffers = [torch.zeros_like(m) for m in self.masters]
        if gradients == "fp32":
            for weight, buffer in zip(self.weights, self.buffers, strict=True):
                weight.register_post_accumulate_grad_hook(lambda w, buffer=buffer: move(w, buffer))
        self.gradients = gradients

    @torch.no_grad()
    def step(self):
        if self.gradients == "both":
            torch._foreach_copy_(self.buffers, [w.grad for w in self.weights])
        for i, (weight, master) in enumerate(zip(self.weights, self.masters, strict=True)):
            master.grad = self.buffers[i] if self.buffers else weight.grad.float()
        self.optimizer.step()
        for master in self.masters:
            master.grad = None
        for weight, master in zip(self.weights, self.masters, strict=True):
            weight.copy_(master)  # one by one: FSDP's tensors have no copy of lists

    def zero_grad(self):
        for weight in self.weights:
            weight.grad = None
        if self.buffers:
            torch._foreach_zero_(self.buffers)


@torch.no_grad()
def move(weight, buffer):
    """Add a weight's gradient to its buffer and drop it."""
    buffer.add_(weight.grad)
    weight.grad = None


class Muon:
    """PyTorch's Muon for the blocks' matrices, and AdamW for embeddings, head, gains and biases, as Muon's authors train."""

    def __init__(self, parameters, hidden, **impl):
        sorted_out = list(zip(parameters, hidden, strict=True))
        matrices, others = [p for p, inside in sorted_out if inside], [p for p, inside in sorted_out if not inside]
        self.both = [torch.optim.Muon(matrices, lr=1e-3)] if matrices else []
        self.both.append(torch.optim.AdamW(others, lr=3e-4, **impl))
        self.param_groups = [group for one in self.both for group in one.param_groups]

    def step(self):
        for optimizer in self.both:
            optimizer.step()

    def zero_grad(self):
        for optimizer in self.both:
            optimizer.zero_grad()


def hidden_matrices(module: nn.Module) -> list[bool]:
    """Which of its trained parameters are matrices of a block, one of many alike: these are Muon's."""
    trained = ((name, p) for name, p in module.named_parameters() if p.requires_grad)
    return [p.dim() == 2 and any(part.isdigit() for part in name.split(".")) for name, p in trained]


def make_optimizer(setup: Setup, hidden: list[bool] = ()) -> Callable:
    """The optimizer of `setup`, to be given the parameters.

    Args:
        hidden: for `muon`, which of them are matrices of blocks.

    Raises:
        ValueError: where the optimizer's package is not installed.
    """
    impl = {"foreach": setup.optimizer_impl == "foreach", "fused": setup.optimizer_impl == "fused"}
    return {
        "sgd": lambda p: torch.optim.SGD(p, lr=1e-3, **impl),
        "momentum": lambda p: torch.optim.SGD(p, lr=1e-3, momentum=0.9, **impl),
        "adam": lambda p: torch.optim.Adam(p, lr=3e-4, **impl),
        "adamw": lambda p: torch.optim.AdamW(p, lr=3e-4, **impl),
        "lion": lambda p: _package(setup, "lion_pytorch").Lion(p, lr=1e-4),
        "adafactor": lambda p: torch.optim.Adafactor(p, lr=1e-2, foreach=impl["foreach"]),
        "muon": lambda p: Muon(p, hidden, **impl),
        "adamw8bit": lambda p: _package(setup, "bitsandbytes").optim.AdamW8bit(p, lr=3e-4),
        "paged-adamw8bit": lambda p: _package(setup, "bitsandbytes").optim.PagedAdamW8bit(p, lr=3e-4),
    }[setup.optimizer]


def _package(setup, name):
    logging.getLogger(name).setLevel(logging.ERROR)  # bitsandbytes says which kernels the CPU has not
    try:
        return import_module(name)
    except ImportError as error:
        raise ValueError(
            f"Setup.optimizer: {setup.optimizer!r} needs {OPTIMIZERS[setup.optimizer].package}, which is not installed: "
            "pip install everybyte[adapters]"
        ) from error


class Trainer:
    """A model, its optimizer, and one step of training.

    Args:
        module: tokens and targets in, loss out; on its device, in fp32.
        setup: precision and optimizer.
        autocast: what to enter in forward, given the data type; by default PyTorch's autocast for the module's device.
    """

    def __init__(self, module: nn.Module, setup: Setup, autocast: Callable | None = None):
        precision = setup.dtypes
        self.device = next(module.parameters()).device
        self.module = module.to(DTYPES[precision.weights])
        self.called = distribute(self.module, setup)  # the module itself, or what averages its gradients over GPUs
        self.accumulation, self.no_sync = setup.accumulation, setup.no_sync
        trained = [p for p in self.module.parameters() if p.requires_grad]
        make = make_optimizer(setup, hidden_matrices(self.module))
        if precision.master:
            make = partial(MasterWeights, make=make, gradients=setup.master_gradients)
        self.optimizer = ShardedOptimizer(trained, make) if setup.sharding == "zero1" else make(trained)
        self.scaler = torch.amp.GradScaler(self.device.type) if precision.loss_scaling else None
        self.autocast = nullcontext
        if precision.autocast and not setup.fsdp:  # FSDP gathers 16 bits itself
            dtype = DTYPES[precision.compute]
            self.autocast = lambda: (autocast or default_autocast(self.device.type))(dtype)

    def step(self, batch: Callable, at: Callable = lambda phase: None):
        """One step: the gradients of some batches add up, then the optimizer moves the weights once.

        Args:
            batch: makes the arguments of the module.
            at: is told each phase as it ends: `after_forward` and `after_backward` of each batch, `after_step`.

        Returns:
            The loss, averaged over the batches.
        """
        total = 0.0
        for left in reversed(range(self.accumulation)):
            inputs = batch()
            with self.averaging(not left):
                with self.autocast():
                    loss = self.forward(inputs)
                at("after_forward")
                share = loss / self.accumulation if self.accumulation > 1 else loss
                (self.scaler.scale(share) if self.scaler else share).backward()  # adds to the gradients that are there
            total = total + share.detach() if self.accumulation > 1 else share.detach()
            at("after_backward")
        self.update()
        at("after_step")
        self.optimizer.zero_grad()  # sets gradients to None: their memory is free until backward makes them anew
        return total

    def forward(self, inputs):
        """The loss of a batch."""
        return self.called(*inputs)

    def averaging(self, last: bool):
        """Within it, backward averages gradients over GPUs: under DDP after the last batch alone, under FSDP if told so."""
        if self.no_sync:
            self.module.set_requires_gradient_sync(last)
        no_sync = getattr(self.called, "no_sync", None)
        return nullcontext() if last or no_sync is None else no_sync()

    def update(self):
        """The optimizer's step; under loss scaling, skipped where a gradient is infinite."""
        if self.scaler:
            self.scaler.step(self.optimizer)
            self.scaler.update()
        else:
            self.optimizer.step()


def default_autocast(device: str) -> Callable:
    """PyTorch's autocast on that device, as a function of the data type."""
    return lambda dtype: torch.autocast(device, dtype=dtype)


def random_batch(vocabulary: int, setup: Setup, device) -> Callable:
    """Random tokens, and the same moved on by one as targets: (B, S) each, int64."""

    def batch():
        tokens = torch.randint(vocabulary, (setup.batch, setup.sequence), device=device)
        return tokens, torch.roll(tokens, -1, dims=1)

    return batch
