"""What autograd saves, in the memory of the CPU while backward has not asked for it."""

from contextlib import ExitStack, contextmanager

from torch.autograd import graph

from ...ask.setup import Setup


def offloading(trainer, setup: Setup):
    """The trainer, whose forwards save on the host what they save for backward, checkpoints their inputs too. Returns it."""
    if setup.offload == "activations":
        trainer.autocast = _both(trainer.autocast, trainer.device.type == "cuda")
    return trainer


def _both(autocast, pinned):
    @contextmanager
    def around():
        with ExitStack() as stack:
            stack.enter_context(autocast())
            stack.enter_context(graph.save_on_cpu(pin_memory=pinned))
            yield

    return around
