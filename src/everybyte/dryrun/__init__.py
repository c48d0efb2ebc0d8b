"""The real training step on tensors without data: every byte is counted, nothing is computed."""

import gc
import traceback
import warnings
from contextlib import ExitStack, nullcontext
from dataclasses import replace

import torch

from .. import checks
from ..catalog import Model
from ..objectives import Objective
from ..pipelines import alone
from ..setup import Setup
from ..witness import Counted
from . import parallel
from .cuda import (
    Autocast,
    Kernels,
    fused_optimizers_on_meta,
    loss_in_the_open,
    paged_states,
    quantized_weights,
    recomputation_as_in_forward,
)
from .hugging_face import one_sequence_a_row
from .interrupts import BetweenOperations
from .modules import Workload, is_config, raise_of_gpu, workload
from .trace import PARTS, PHASES, SHARED_PARTS, Trace
from .tracker import Allocation, Tracker

__all__ = ["PARTS", "PHASES", "SHARED_PARTS", "Allocation", "Counted", "Trace", "dry_run"]


def dry_run(model, setup: Setup, rounding: int = 1, batch=None, rank: int = 0) -> Trace:
    """Count the bytes of one steady training step, as it would run on CUDA.

    Steady: the optimizer's states exist already. The tensors have no data, so the model may be larger than the machine.

    Args:
        model: a `Model`, whose reference implementation is run, or where the book has none, Hugging Face's of those
            dimensions; a Hugging Face config, whose language model is made with random weights, `setup`'s attention,
            dropout and full checkpointing, and no cache, and is given tokens and labels (a config with a dropout of its
            own asks for a setup that says the same); or a function that makes a `torch.nn.Module` whose forward returns
            the loss, or an object with it as `.loss`. Part `loss` is what the head makes, and what follows it: the head is
            called `head` or `lm_head`, or is what makes what one of PyTorch's loss functions is given.
        setup: every field counts, or is refused by name: a module of your own decides itself about attention, dropout,
            loss and checkpointing.
            The trace's setup has the batch and the sequence of what is given to the module.
        rounding: round each allocation up to a multiple of so many bytes: 512 as CUDA's allocator does.
        batch: the forward's arguments, for a module of your own or a config: a dict, a tuple or one value, each tensor
            as an example or as (shape, dtype). Of a dict, `labels`, `targets` and `target` count as the loss's.

        rank: of several GPUs the one that is counted. Where FSDP cannot cut a weight evenly, the last ones hold less of it. Those of
            a pipeline have other blocks, and other micro-batches in flight.

    Raises:
        ValueError: where the setup does not fit the model, the reference has no such architecture, or the module
            cannot run on tensors without data. What a module itself raises says in a note where it was.
    """
    checks.whole("dry_run", "rounding", rounding, 1, 2**30)
    checks.kind("dry_run", "setup", setup, Setup)
    try:
        return replace(count(_work(model, setup, batch, rank), Tracker(), rank), rounding=rounding)
    except (ArithmeticError, AssertionError, AttributeError, LookupError, RuntimeError, TypeError, ValueError) as error:
        said = (str(error) or type(error).__name__).splitlines()[0]
        if isinstance(error, RuntimeError) and "overflow" in str(error):
            raise ValueError(
                f"dry_run.setup: batch {setup.batch} and sequence {setup.sequence} make a tensor of 2**63 bytes or more ({said}); "
                "allowed: less, on which PyTorch can compute"
            ) from error
        if not is_config(model) or _ours(error):
            raise
        # No line of whoever gave the config stands in the traceback: its numbers are what they can change.
        raise ValueError(
            f"{type(model).__name__}: its model does not run ({said}); allowed: dimensions that fit one another"
        ) from error


def _ours(error):
    """Whether this package's own code raised it, and so named what is wrong."""
    *_, last = traceback.walk_tb(error.__traceback__)
    return isinstance(error, ValueError) and last[0].f_globals.get("__name__", "").startswith(__package__.split(".")[0])


def _work(model, setup, batch, rank):
    """What is run, made ready."""
    if setup.mesh.pipeline > 1:
        return _pipelined(model, setup, batch, rank)
    setup.check_derived("dry_run")
    if not setup.mesh.alone and (not isinstance(model, Model) or model.family is None):
        name = model.name if isinstance(model, Model | Objective) else f"a {type(model).__name__}"
        raise ValueError(
            f"dry_run.model: {name} with mesh {setup.mesh}: the book divides its own models; allowed: a Model of GPT's or "
            "Llama's kind, or no mesh"
        )
    if not isinstance(model, Objective):
        return workload(model, setup, batch)
    from .alignment import workload as aligning

    if batch is not None:
        raise ValueError(
            f"dry_run.batch: a {type(batch).__name__} with {model.name}; allowed: None, since setup says the batch"
        )
    return aligning(model, setup)


def _pipelined(model, setup, batch, rank):
    """One GPU's step of a pipeline, made ready."""
    if not isinstance(model, Model) or model.family is None or batch is not None:
        name = model.name if isinstance(model, Model) else f"a {type(model).__name__}"
        raise ValueError(
            f"dry_run.model: {name} with mesh {setup.mesh}: the book cuts its own models into stages; allowed: a Model of GPT's or "
            "Llama's kind, or no pipeline"
        )
    checks.whole("dry_run", "rank", rank, 0, setup.gpus - 1)
    setup.check_model(model)
    if why := alone(setup):
        raise ValueError(why)
    from .pipelines import workload as pipelined

    return pipelined(model, setup, rank)


def count(work: Workload, tracker: Tracker, rank: int = 0) -> Trace:
    """One steady step of a workload on one of its GPUs, followed by a tracker."""
    setup = work.setup
    with BetweenOperations(), ExitStack() as stack:
        stack.enter_context(warnings.catch_warnings())
        stack.enter_context(fused_optimizers_on_meta())
        stack.enter_context(recomputation_as_in_forward())
        stack.enter_context(loss_in_the_open())
        stack.enter_context(torch.enable_grad())
        stack.enter_context(Kernels(tracker.loss_of))
        stack.enter_context(parallel.as_rank(setup, tracker, rank))
        stack.enter_context(tracker)
        stack.enter_context(paged_states(setup, tracker))
        stack.enter_context(quantized_weights(setup))
        pipelined = setup.mesh.pipeline > 1
        if pipelined:
            from . import pipelines

            stack.enter_context(pipelines.on_meta())
        with tracker.making("parameters", ""):  # what a quantized weight is made of has no name in the module
            module = work.module()
        if pipelined:
            pipelines.follow(tracker, module)
        counted = work.counted(module)
        stack.enter_context(one_sequence_a_row())
        _follow_gradients(tracker, _trained(module))  # before the trainer's own hooks, which may drop the gradient
        offloaded = setup.offload == "cpu"
        with tracker.on_host() if offloaded else nullcontext():  # FSDP's shares, and the optimizer's copies of them
            trainer = work.trainer(module, setup, autocast=Autocast)
        if offloaded:
            parallel.offload(trainer, tracker)
        if pipelined:
            pipelines.tell(trainer, tracker)
        if setup.mesh.tensor > 1 and not setup.fsdp:  # parts of weights, which have taken their places
            _follow_gradients(tracker, _trained(trainer.module))
        if setup.distributed:
            with (
                tracker.watching(module) if pipelined else nullcontext()
            ):  # what stays of this step belongs to somebody
                parallel.make_steady(trainer, work.batch, tracker)
        else:
            _make_states(trainer, tracker)
        _assign(tracker, trainer)
        gc_was_on = gc.isenabled()
        gc.disable()  # what a cycle keeps alive here, it keeps alive on the GPU; collections in between would hide that
        stack.callback(gc.enable if gc_was_on else lambda: None)
        tracker.restart()
        beginning, tracker.changes = tracker.changes, []
        marks = {"rest": 0}
        stack.enter_context(tracker.watching(module))
        following = {"after_forward": "backward", "after_backward": "optimizer step", "after_step": "rest"}
        if pipelined:  # another forward may follow, and says so
            following["after_forward"] = "forward"

        def at(moment):
            marks[moment] = tracker.mark(moment)
            tracker.phase = following[moment]

        def batch():
            tracker.phase = "forward"
            inputs = work.batch()
            for target in work.targets(inputs):
                tracker.assign(target, "loss")
            return inputs

        try:
            trainer.step(batch, at)
        except Exception as error:
            error.add_note(_where(error, tracker, module))
            raise_of_gpu("a step of it", error)
            raise
        tracker.mark("rest")
    return Trace(
        counted, setup, tracker.operations, tracker.allocations, marks, 1, tracker.changes, beginning,
        tracker.flops, frozenset(tracker.heads), rank,
    )  # fmt: skip


def _trained(module):
    return [p for p in module.parameters() if p.requires_grad]


def _follow_gradients(tracker, parameters):
    for parameter in parameters:
        parameter.register_hook(lambda gradient: tracker.assign(gradient, "gradients"))
        parameter.register_post_accumulate_grad_hook(lambda p: tracker.assign(p.grad, "gradients"))


def _where(error, tracker, module):
    """Where in the step an error arose, for its note."""
    paths = {id(child): path or type(module).__name__ for path, child in module.named_modules()}
    inside = [paths.get(id(frame.f_locals.get("self"))) for frame, _ in traceback.walk_tb(error.__traceback__)]
    path = next((p for p in reversed(inside) if p), type(module).__name__)
    name = tracker.operations[-1][0]
    return (
        f"everybyte.dry_run: in {tracker.phase}, in module {path!r}, after operation {name!r}. The module runs as on a GPU, "
        "but on device meta: its tensors have shapes and data types, and no data."
    )


def _assign(tracker, trainer):
    """Tell the tracker what each tensor is that stands before the first step."""
    for name, parameter in trainer.module.named_parameters():
        tracker.assign(parameter, "parameters", name)
    if hasattr(trainer.optimizer, "flat"):
        tracker.assign(trainer.optimizer.flat, "parameters", "weights")
    for name, buffer in trainer.module.named_buffers():
        tracker.assign(buffer, "buffers", name, device=True)
    for buffer in getattr(trainer.optimizer, "buffers", None) or ():
        tracker.assign(buffer, "gradients")
    for buffer in getattr(trainer, "buffers", tuple)():
        tracker.assign(buffer, "communication", "received")
    roots = getattr(trainer, "roots", [trainer.module])
    for name, parameter, storages in (found for root in roots for found in parallel.gathered(root)):
        if parameter.requires_grad:
            _follow_gradients(tracker, [parameter])
        for storage in storages:
            tracker.assign(storage, "unsharded", name)


def _make_states(trainer, tracker):
    """The optimizer's first update, on gradients of nothing: from it on its states exist."""
    for parameter in _trained(trainer.module):
        parameter.grad = torch.empty_like(parameter)
    if trainer.scaler:
        trainer.scaler.scale(torch.empty((), device="meta"))
    tracker.mark("states")
    trainer.update()
    tracker.mark("states made")
    trainer.optimizer.zero_grad()
