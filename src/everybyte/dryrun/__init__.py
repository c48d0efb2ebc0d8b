"""Dry runs: the real training step on tensors without data. Every byte is counted, nothing is computed."""

from dataclasses import replace

import torch
from torch._subclasses.fake_tensor import unset_fake_temporarily

from ..ask.setup import Setup
from ..common import checks
from ..step.course import PHASES
from ..step.witness import Counted
from .counting import count
from .cuda import refused
from .hugging_face import first_line, named
from .interrupts import BetweenOperations
from .modules import workload
from .trace import PARTS, SHARED_PARTS, Trace
from .tracker import Allocation, Tracker
from .workload import Workload

__all__ = ["PARTS", "PHASES", "SHARED_PARTS", "Allocation", "Counted", "Trace", "Workload", "count", "dry_run"]


def _check_steady(trace):
    """Raise ValueError where a step after the first leaves more than it found, or less: the next one finds another memory."""
    before, after = (
        sum(a.bytes for a in trace.allocations if not a.host and found(a))
        for found in (lambda a: not a.birth, lambda a: a.death is None)
    )
    if before != after:
        said = f"{trace.model.name}, whose second step finds {before:,} bytes and leaves {after:,}"
        raise refused(
            said, "one whose steps leave what they find: what it keeps has its full size from the first step on"
        )


def dry_run(model, setup: Setup, rounding: int = 1, batch=None, rank: int = 0) -> Trace:
    """Count the bytes of one steady training step, as it would run on CUDA.

    A steady step is one after the optimizer's states exist. The tensors have no data, so the model may be larger than the machine.

    Args:
        model: one of these:
            a `Model`: its reference implementation is run, or where the book has none, Hugging Face's with those dimensions;
            an `Objective`;
            a Hugging Face config: its language model is made with random weights, the setup's attention, dropout and full
            checkpointing, and is given tokens and labels. A config with a dropout needs a setup with the same. With
            `use_cache`, which most configs have by default, each forward makes a cache of keys and values, and gives it beside the loss:
            it lives as long as the loop's outputs. `Trainer` switches it off, by `TrainingArguments.use_cache`, and so does
            checkpointing; a `Model` is run without;
            a function that makes a `torch.nn.Module` whose forward returns the loss, or an object with a `.loss`.
            The part `loss` begins with the output of the head: the module called `head` or `lm_head`, or the one whose output a
            loss function of PyTorch is given.
        setup: every field is used, or refused by name: a module of your own decides itself about attention, dropout, loss and
            checkpointing. With `Mesh(tensor=...)` its method `parallelize` is called with the device mesh, and must divide its
            matrices. The trace's setup has the batch and the sequence of the module's arguments.
        rounding: bytes; each allocation is rounded up to a multiple of it, 512 for CUDA's allocator.
        batch: the forward's arguments, for a module of your own or a config: a dict, a tuple or one value, with each tensor
            as an example or as (shape, dtype). Of an example on the CPU whole numbers and booleans keep their values, and sizes
            may depend on them: a processor's `image_grid_thw`, tokens that stand for pictures. In a dict, `labels`, `targets` and
            `target` count as the loss's.
        rank: which of several GPUs is counted. Where FSDP cannot divide a weight evenly, the last ranks have less of it. Ranks of
            a pipeline have different blocks, and different numbers of micro-batches in flight.

    Raises:
        ValueError: where the setup does not fit the model, no reference has the architecture, or the module cannot run on
            tensors without data. An error that a module itself raises gets a note with its place.
    """
    checks.whole("dry_run", "rounding", rounding, 1, 2**30)
    checks.kind("dry_run", "setup", setup, Setup)
    with named(model, "run"):
        try:
            # The caller's FakeTensorMode and inference mode are left for as long.
            with BetweenOperations(), unset_fake_temporarily(), torch.inference_mode(False):
                work, tracker = workload(model, setup, batch, rank), Tracker()
                trace = count(work, tracker, rank, first=setup.looped or setup.optimizer_in_backward)
                if not tracker.steady:
                    trace = count(work, Tracker(), rank, first=True)
                    _check_steady(trace)
            return replace(trace, rounding=rounding)
        except SystemExit as error:
            said = f"a {type(model).__name__} that ends the program, by sys.exit({error.code!r})"
            raise refused(said, "one that returns") from error
        except RuntimeError as error:
            if "overflow" not in str(error):
                raise
            said = f"batch {setup.batch} and sequence {setup.sequence} make a tensor of 2**63 bytes or more ({first_line(error)})"
            raise refused(said, "less, on which PyTorch can compute", "setup") from error
