"""The optimizer's step within backward: of each weight as soon as its gradient has come."""

from torch import nn

from ...ask.setup import Setup
from ..step import make_optimizer


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
                weight.register_post_accumulate_grad_hook(lambda weight, optimizer=optimizer: move(weight, optimizer))
                self.param_groups += optimizer.param_groups

    def step(self):
        """Nothing is left to be done."""

    zero_grad = step


def move(weight, optimizer):
    optimizer.step()
    weight.grad = None
