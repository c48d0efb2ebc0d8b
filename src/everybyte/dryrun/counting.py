"""Count one steady training step with a tracker."""

import gc
import traceback
import warnings
from contextlib import ExitStack, contextmanager, nullcontext
from functools import partial

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from . import hugging_face, lowered, parallel
from .autocast import autocast_as_on_cuda
from .cuda import (
    Kernels,
    clipping_on_meta,
    fused_optimizers_on_meta,
    loss_in_the_open,
    paged_states,
    quantized_weights,
    saved_on_host,
)
from .delta_rules import delta_rules
from .interrupts import BetweenOperations
from .trace import Trace
from .tracker import Tracker
from .workload import Workload, raise_of_gpu


def count(work: Workload, tracker: Tracker, rank: int = 0, first: bool = False) -> Trace:
    """Count one steady step of a workload on one of its GPUs.

    A steady step leaves the memory that it found. On one GPU only the optimizer's first update is run before, on a gradient for
    every weight; `tracker.steady` says whether the step was steady after that.

    Args:
        first: whether a whole step is run before the counted one, in place of that update.
    """
    setup = work.setup
    with BetweenOperations(), _as_on_gpu(setup, tracker, rank), ExitStack() as stack:
        step = _Step(work, tracker)
        stack.enter_context(hugging_face.as_on_cuda())
        stack.enter_context(delta_rules(step.module, setup, tracker))
        if step.trainer.scaler:
            step.trainer.scaler.scale(torch.empty((), device="meta"))  # its scale stands from now on
        if setup.distributed:
            # What stays of a pipeline's step, or of a loop's, belongs to somebody.
            with tracker.watching(step.module) if step.pipelined or setup.looped else nullcontext():
                run = step.run if setup.looped else partial(step.trainer.step, work.batch, tracker.mark)
                parallel.make_steady(step.trainer, run, tracker)
        elif first:
            with tracker.watching(step.module):
                step.run()
            gc.collect()
        else:
            _make_states(step.trainer, tracker)
        _assign(tracker, step.trainer)
        gc_was_on = gc.isenabled()
        gc.disable()  # what a cycle keeps alive here, it keeps alive on the GPU; collections in between would hide that
        stack.callback(gc.enable if gc_was_on else lambda: None)
        tracker.restart()
        beginning, tracker.changes = tracker.changes, []
        stack.enter_context(tracker.watching(step.module))
        marks = {"rest": 0} | step.run()
        tracker.mark("rest")
        tracker.steady = setup.distributed or not (step.idle or tracker.left())
    return Trace(
        step.counted, setup, tracker.operations, tracker.allocations, marks, 1, tracker.changes, beginning,
        tracker.flops, frozenset(tracker.heads), rank,
    )  # fmt: skip


@contextmanager
def _as_on_gpu(setup, tracker, rank):
    """A context in which PyTorch acts as on this GPU, and the tracker follows it."""
    around = [
        warnings.catch_warnings(),
        fused_optimizers_on_meta(),
        clipping_on_meta(),
        loss_in_the_open(),
        torch.enable_grad(),
        Kernels(tracker.loss_of, tracker.values),
        autocast_as_on_cuda(),
        parallel.as_rank(setup, tracker, rank),
        tracker,
        paged_states(setup, tracker),
        saved_on_host(tracker),
        quantized_weights(setup),
        lowered.torchao_compiled(setup),
    ]
    if setup.mesh.pipeline > 1:
        from .divided import pipelines_on_meta

        around.append(pipelines_on_meta())
    with ExitStack() as stack:
        for context in around:
            stack.enter_context(context)
        for hook in _of_optimizers_inside(tracker):
            stack.callback(hook.remove)
        yield


def _of_optimizers_inside(tracker):
    """Hooks: what an optimizer allocates belongs to the part `optimizer`, also where it is stepped in forward or backward."""
    entered = []

    def before(*_):
        if tracker.phase != "optimizer step":
            entered.append(tracker.making("optimizer", ""))
            entered[-1].__enter__()

    def after(*_):
        if entered:
            entered.pop().__exit__(None, None, None)

    return register_optimizer_step_pre_hook(before), register_optimizer_step_post_hook(after)


class _Step:
    """The module and the trainer of a workload, and their step.

    Attributes:
        idle: names of trained parameters without a gradient when the optimizer's step began.
    """

    def __init__(self, work, tracker):
        self.work, self.tracker, setup = work, tracker, work.setup
        self.pipelined, self.idle = setup.mesh.pipeline > 1, []
        with tracker.making("parameters", ""):  # what a quantized weight is made of has no name in the module
            self.module = work.module()
        if self.pipelined:  # of a whole model, made outside of the tracker, a stage was kept
            _assign_named(tracker, self.module)
        self.counted = work.counted(self.module)
        _follow_gradients(tracker, _trained(self.module))  # before the trainer's own hooks, which may drop the gradient
        offloaded = setup.offload == "cpu"
        with tracker.on_host() if offloaded else nullcontext():  # FSDP's shares, and the optimizer's copies of them
            self.trainer = work.trainer(self.module, setup, autocast=partial(torch.autocast, "cuda"))
        if offloaded:
            parallel.offload(self.trainer, tracker)
        if self.pipelined:
            self.trainer.pipeline.watch(partial(setattr, tracker, "phase"))
        if setup.looped:  # which may make batches before
            self.trainer.forward = self._told(self.trainer.forward)
        if setup.mesh.tensor > 1 and not setup.fsdp:  # parts of weights, which have taken their places
            _follow_gradients(tracker, _trained(self.trainer.module))

    def _told(self, forward):
        def run(*inputs):
            self.tracker.phase = "forward"
            return forward(*inputs)

        return run

    def run(self) -> dict[str, int]:
        """Take the step; return {moment: the number of its mark}. Raise ValueError where it needs a GPU, or a missing gradient."""
        tracker, setup, marks = self.tracker, self.work.setup, {}
        following = {"after_forward": "backward", "after_backward": "optimizer step", "after_step": "rest"}
        if self.pipelined:  # another forward may follow, and says so
            following["after_forward"] = "forward"

        def at(moment):
            if moment == "after_backward" and not (
                setup.distributed or setup.kept_gradients == "fp32" or setup.optimizer_in_backward
            ):  # those drop gradients themselves
                self.idle = [name for name, p in self.module.named_parameters() if p.requires_grad and p.grad is None]
            marks[moment] = tracker.mark(moment)
            tracker.phase = following[moment]

        def batch():
            tracker.phase = "forward"
            inputs = self.work.batch()
            for target in self.work.targets(inputs):
                tracker.assign(target, "loss")
            return inputs

        try:
            self.trainer.step(batch, at)
        except Exception as error:
            if self.idle and setup.dtypes.master and isinstance(error, AttributeError | TypeError):
                raise ValueError(
                    f"dry_run.model: parameter {self.idle[0]!r} of {type(self.module).__name__} gets no gradient, and precision "
                    f"{setup.precision!r} copies every gradient; allowed: requires_grad=False for it, or another precision"
                ) from error
            error.add_note(_where(error, tracker, self.module))
            raise_of_gpu("a step of it", error)
            raise
        return marks


def _trained(module):
    return [p for p in module.parameters() if p.requires_grad]


def _follow_gradients(tracker, parameters):
    def accumulated(parameter):
        if parameter.grad is not None:  # a hook of the module's own may have dropped it
            tracker.assign(parameter.grad, "gradients")

    for parameter in parameters:
        parameter.register_hook(lambda gradient: tracker.assign(gradient, "gradients"))
        parameter.register_post_accumulate_grad_hook(accumulated)


def _where(error, tracker, module):
    """The note of an error: where in the step it was raised."""
    paths = {id(child): path or type(module).__name__ for path, child in module.named_modules()}
    inside = [paths.get(id(frame.f_locals.get("self"))) for frame, _ in traceback.walk_tb(error.__traceback__)]
    path = next((p for p in reversed(inside) if p), type(module).__name__)
    name = tracker.operations[-1][0]
    return (
        f"everybyte.dry_run: in {tracker.phase}, in module {path!r}, after operation {name!r}. The module runs as on a GPU, "
        "but on device meta: its tensors have shapes and data types, and no data."
    )


def _assign_named(tracker, module):
    for name, parameter in module.named_parameters():
        tracker.assign(parameter, "parameters", name)
    for name, buffer in module.named_buffers():
        tracker.assign(buffer, "buffers", name, device=True)


def _assign(tracker, trainer):
    """Tell the tracker the part of each tensor that exists before the first step."""
    _assign_named(tracker, trainer.module)
    shares = getattr(trainer.optimizer, "shares", [trainer.optimizer])
    for flat in (one.flat for one in shares if hasattr(one, "flat")):
        tracker.assign(flat, "parameters", "weights")
    for buffer in getattr(trainer.optimizer, "buffers", None) or ():
        tracker.assign(buffer, "gradients")
    if pipeline := getattr(trainer, "pipeline", None):
        for buffer in pipeline.buffers():
            tracker.assign(buffer, "communication", "received")
    roots = getattr(trainer, "parts", [trainer.module])
    for name, parameter, storages in (found for root in roots for found in parallel.gathered(root)):
        if parameter.requires_grad:
            _follow_gradients(tracker, [parameter])
        for storage in storages:
            tracker.assign(storage, "unsharded", name)


def _make_states(trainer, tracker):
    """Run the optimizer's first update, on gradients without data: it makes the states."""
    for parameter in _trained(trainer.module):
        parameter.grad = torch.empty_like(parameter)
    tracker.mark("states")
    trainer.update()
    tracker.mark("states made")
    trainer.optimizer.zero_grad()
