"""The real training step on tensors without data: every byte is counted, nothing is computed."""

import gc
import warnings
from contextlib import ExitStack

import torch

from .. import checks
from ..catalog import Model
from ..reference import GPT, Trainer
from ..reference.step import random_batch
from ..setup import Setup
from .cuda import Autocast, Kernels, fused_optimizers_on_meta
from .trace import PARTS, PHASES, Trace
from .tracker import Allocation, Tracker

__all__ = ["PARTS", "PHASES", "Allocation", "Trace", "dry_run"]


def dry_run(model: Model, setup: Setup, block: int = 1) -> Trace:
    """Count the bytes of one steady training step, as it would run on CUDA.

    Steady: the optimizer's states exist already. The tensors have no data, so the model may be larger than the machine.

    Args:
        block: round each allocation up to a multiple of so many bytes: 512 as CUDA's allocator does.

    Raises:
        ValueError: where the setup does not fit the model, or the reference has no such architecture.
    """
    checks.whole("dry_run", "block", block, 1, 2**30)
    with ExitStack() as stack:
        stack.enter_context(warnings.catch_warnings())
        stack.enter_context(fused_optimizers_on_meta())
        stack.enter_context(torch.enable_grad())
        tracker = Tracker()
        stack.enter_context(Kernels())
        stack.enter_context(tracker)
        with torch.device("meta"):
            module = GPT(model, setup)
        for parameter in module.parameters():  # before the trainer's own hooks, which may drop the gradient
            parameter.register_post_accumulate_grad_hook(lambda p: tracker.assign(p.grad, "gradients"))
        trainer = Trainer(module, setup, autocast=Autocast)
        _assign(tracker, trainer)
        _make_states(trainer)
        gc_was_on = gc.isenabled()
        gc.disable()  # what a cycle keeps alive here, it keeps alive on the GPU; collections in between would hide that
        stack.callback(gc.enable if gc_was_on else lambda: None)
        tracker.restart()
        marks = {"rest": 0}
        stack.enter_context(tracker.watching(module))
        following = {"after_forward": "backward", "after_backward": "optimizer", "after_step": "rest"}

        def at(moment):
            marks[moment] = tracker.mark(moment)
            tracker.phase = following[moment]

        def batch():
            tracker.phase = "forward"
            tokens, targets = random_batch(model.vocabulary, setup, "meta")()
            tracker.assign(targets, "loss")
            return tokens, targets

        trainer.step(batch, at)
        tracker.mark("rest")
    return Trace(model, setup, tracker.operations, tracker.allocations, marks, block)


def _assign(tracker, trainer):
    """Tell the tracker what each tensor is that stands before the first step."""
    for name, parameter in trainer.module.named_parameters():
        tracker.assign(parameter, "parameters", name)
    for name, buffer in trainer.module.named_buffers():
        tracker.assign(buffer, "buffers", name)
    for buffer in getattr(trainer.optimizer, "buffers", None) or ():
        tracker.assign(buffer, "gradients")


def _make_states(trainer):
    """The optimizer's first update, on gradients of nothing: from it on its states exist."""
    for parameter in trainer.module.parameters():
        parameter.grad = torch.empty_like(parameter)
    if trainer.scaler:
        trainer.scaler.scale(torch.empty((), device="meta"))
    trainer.update()
    trainer.optimizer.zero_grad()
