"""The training step, in every precision, with one optimizer of PyTorch's."""

import logging
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from importlib import import_module

import torch
from torch import nn

from ..ask.choices import OPTIMIZERS
from ..ask.setup import Setup
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
        self.copies = gradients == "both"

    def gradients(self):
        """The fp32 gradients, one for each weight."""
        if self.copies:
            torch._foreach_copy_(self.buffers, [w.grad for w in self.weights])
        return self.buffers or [w.grad.float() for w in self.weights]

    @torch.no_grad()
    def step(self):
        gradients = self.gradients()
        for i, master in enumerate(self.masters):
            master.grad = gradients[i]
        del gradients
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


class Megatron(MasterWeights):
    """As Megatron-LM keeps 16-bit weights: fp32 gradients side by side in one buffer, and the update in one kernel.

    Each weight's gradient is added to its view of the buffer, `main_grad`, as soon as backward has it, and dropped. So does
    Megatron without its own fused product, which writes a linear layer's gradient there at once. Gradients are not clipped here.
    Source: Megatron-LM, megatron/core/distributed/distributed_data_parallel.py, `_make_backward_post_hook`;
    megatron/core/optimizer/optimizer.py, `Float16OptimizerWithFloat16Params`.
    """

    def __init__(self, parameters, make: Callable):
        super().__init__(parameters, make, "bf16")
        numbers = sum(w.numel() for w in self.weights)
        self.buffers = [torch.zeros(numbers, dtype=torch.float32, device=self.weights[0].device)]
        self.main_grads = views(self.buffers[0], self.weights)
        for weight, main_grad in zip(self.weights, self.main_grads, strict=True):
            weight.register_post_accumulate_grad_hook(lambda w, main_grad=main_grad: move(w, main_grad))

    def gradients(self):
        return self.main_grads


class DeepSpeed(MasterWeights):
    """As DeepSpeed's `BF16_Optimizer` keeps 16-bit weights: weights, fp32 copies and fp32 gradients, each in one buffer.

    It is what `bf16` with ZeRO stage 1 and `grad_accum_dtype: fp32` runs, here on one GPU: after each backward it adds 16-bit
    gradients, cast one by one, to the fp32 ones, and they stay until the step has ended. Gradients are not clipped here.
    Source: DeepSpeed, deepspeed/runtime/bf16_optimizer.py; runtime/engine.py, `_take_model_step`.
    """

    def __init__(self, parameters, make: Callable):
        self.weights = list(parameters)
        numbers = sum(w.numel() for w in self.weights)
        self.flat = self.weights[0].new_empty(numbers + numbers % 2, requires_grad=False)  # aligned to 4 bytes
        with torch.no_grad():
            self.flat[numbers:].zero_()
            for weight, view in zip(self.weights, views(self.flat, self.weights), strict=True):
                weight.data = view.copy_(weight)
        self.masters = [self.flat.detach().float()]
        self.buffers = [torch.zeros_like(self.masters[0])]
        self.sums = views(self.buffers[0], self.weights)
        self.optimizer = make(self.masters)

    @torch.no_grad()
    def accumulate(self):
        """After each backward."""
        for weight, total in zip(self.weights, self.sums, strict=True):
            total.add_(weight.grad.to(total.dtype))
        torch._foreach_zero_([w.grad for w in self.weights])  # for the next backward, which adds to them

    @torch.no_grad()
    def step(self):
        self.masters[0].grad = self.buffers[0]
        self.optimizer.step()
        self.masters[0].grad = None
        self.flat.copy_(self.masters[0])


def views(buffer, weights):
    """Of one buffer with all numbers side by side, each weight's."""
    parts = buffer[: sum(w.numel() for w in weights)].split([w.numel() for w in weights])
    return [part.view_as(weight) for part, weight in zip(parts, weights, strict=True)]


@torch.no_grad()
def move(weight, buffer):
    """Add a weight's gradient to its buffer and drop it."""
    buffer.add_(weight.grad)
    weight.grad = None


class Muon:
    """PyTorch's Muon for the blocks' matrices, and AdamW for embeddings, head, gains and biases, as Muon's authors train."""

    def __init__(self, parameters, hidden, lr, **impl):
        sorted_out = list(zip(parameters, hidden, strict=True))
        matrices, others = [p for p, inside in sorted_out if inside], [p for p, inside in sorted_out if not inside]
        self.both = [torch.optim.Muon(matrices, lr=lr)] if matrices else []
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
    row = OPTIMIZERS[setup.optimizer]
    switches = () if row.package else [name for name in ("foreach", "fused") if name in row.impls]
    impl = {name: setup.optimizer_impl == name for name in switches}
    if row.algorithm == "muon":
        return lambda p: Muon(p, hidden, **row.options, **impl)
    module, _, name = row.code.rpartition(".")
    make = getattr(_module(setup, module), name)
    return lambda p: make(p, **row.options, **impl)


def _module(setup, name):
    package = name.partition(".")[0]
    logging.getLogger(package).setLevel(logging.ERROR)  # bitsandbytes says which kernels the CPU has not
    try:
        import_module(package)
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
            make = {
                "bf16-master": partial(MasterWeights, make=make, gradients=setup.master_gradients),
                "bf16-megatron": partial(Megatron, make=make),
                "bf16-deepspeed": partial(DeepSpeed, make=make),
            }[setup.precision]
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
            if hasattr(self.optimizer, "accumulate"):
                self.optimizer.accumulate()
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
