"""The real training step on tensors without data: every byte is counted, nothing is computed."""

import traceback
from dataclasses import replace

import torch
from torch._subclasses.fake_tensor import unset_fake_temporarily

from ..ask.setup import Setup
from ..common import checks
from ..step.course import PHASES
from ..step.witness import Counted
from .counting import count
from .cuda import refused
from .interrupts import BetweenOperations
from .modules import is_config, workload
from .trace import PARTS, SHARED_PARTS, Trace
from .tracker import Allocation, Tracker
from .workload import Workload

__all__ = ["PARTS", "PHASES", "SHARED_PARTS", "Allocation", "Counted", "Trace", "Workload", "count", "dry_run"]


def dry_run(model, setup: Setup, rounding: int = 1, batch=None, rank: int = 0) -> Trace:
    """Count the bytes of one steady training step, as it would run on CUDA.

    Steady: the optimizer's states exist already. The tensors have no data, so the model may be larger than the machine.

    Args:
        model: a `Model`, whose reference implementation is run, or where the book has none, Hugging Face's of those
            dimensions; an `Objective`; a Hugging Face config, whose language model is made with random weights, `setup`'s
            attention, dropout and full checkpointing, and no cache, and is given tokens and labels (a config with a dropout of
            its own asks for a setup that says the same); or a function that makes a `torch.nn.Module` whose forward returns
            the loss, or an object with it as `.loss`. Part `loss` is what the head makes, and what follows it: the head is
            called `head` or `lm_head`, or makes what one of PyTorch's loss functions is given.
        setup: every field counts, or is refused by name: a module of your own decides itself about attention, dropout,
            loss and checkpointing. With `Mesh(tensor=...)` it divides its matrices itself: its method `parallelize` is called with
            the device mesh of the GPUs that divide them. The trace's setup has the batch and the sequence of what the module is given.
        rounding: round each allocation up to a multiple of so many bytes: 512 as CUDA's allocator does.
        batch: the forward's arguments, for a module of your own or a config: a dict, a tuple or one value, each tensor
            as an example or as (shape, dtype). Of a dict, `labels`, `targets` and `target` count as the loss's.
        rank: of several GPUs the one that is counted. Where FSDP cannot cut a weight evenly, the last ones hold less of it. Those
            of a pipeline have other blocks, and other micro-batches in flight.

    Raises:
        ValueError: where the setup does not fit the model, the reference has no such architecture, or the module
            cannot run on tensors without data. What a module itself raises says in a note where it was.
    """
    checks.whole("dry_run", "rounding", rounding, 1, 2**30)
    checks.kind("dry_run", "setup", setup, Setup)
    try:
        # The caller's FakeTensorMode and inference mode are left for as long.
        with BetweenOperations(), unset_fake_temporarily(), torch.inference_mode(False):
            work, tracker = workload(model, setup, batch, rank), Tracker()
            trace = count(work, tracker, rank)
            if not tracker.steady:
                trace = count(work, Tracker(), rank, first=True)
        return replace(trace, rounding=rounding)
    except SystemExit as error:
        said = f"a {type(model).__name__} that ends the program, by sys.exit({error.code!r})"
        raise refused(said, "one that returns") from error
    except (ArithmeticError, AssertionError, AttributeError, LookupError, RuntimeError, TypeError, ValueError) as error:
        said = (str(error) or type(error).__name__).splitlines()[0]
        if isinstance(error, RuntimeError) and "overflow" in str(error):
            said = f"batch {setup.batch} and sequence {setup.sequence} make a tensor of 2**63 bytes or more ({said})"
            raise refused(said, "less, on which PyTorch can compute", "setup") from error
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
