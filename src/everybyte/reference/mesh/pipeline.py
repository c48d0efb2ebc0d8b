"""Pipelines: stages of a model on GPUs in a row, which PyTorch's own schedules run.

`torch.distributed.pipelining` runs as it is: what a stage receives, sends, keeps and frees is its own. The last stage gives
logits, and the schedule calls the loss; outputs are not gathered (`return_outputs=False`, as torchtitan asks), and each
micro-batch's loss is divided by their number, so that gradients need no scaling. Where embedding and head are one weight, the
first and the last stage have a copy each, whose gradients are added before the optimizer's step, as in Megatron-LM.
"""

from contextlib import contextmanager
from functools import partial
from unittest import mock

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.pipelining import PipelineStage, schedules
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import _disable_current_modes

from ...ask.mesh import Mesh
from ...ask.schedules import ONE_STAGE, TWO_STAGES, blocks_of, order, stages_of
from ...ask.schedules import SCHEDULES as ORDERS
from ...ask.setup import Setup
from ...catalog import Model
from ..step import DTYPES
from .stages import STAGES, Stage


class Ordered(schedules._PipelineScheduleRuntime):
    """The runtime with the actions of `ask/schedules.py`, of a schedule that PyTorch has not.

    Args:
        name: the schedule's. stages: of this GPU. batches: micro-batches.
    """

    def __init__(self, name, stages, batches, **options):
        super().__init__(stages, batches, **options)
        mesh = Mesh(pipeline=self.pp_group_size, schedule=name, stages=len(stages))
        self.pipeline_order = {
            place: [schedules._Action.from_str(str(action)) for action in order(mesh, batches, place)]
            for place in range(mesh.pipeline)
        }
        self._prepare_schedule_with_comms(self.pipeline_order)


#: Schedule -> PyTorch's class of it, or the runtime with its order.
SCHEDULES = {
    name: schedules.get_schedule_class(row.pytorch) if row.pytorch else partial(Ordered, name)
    for name, row in ORDERS.items()
}


def place_of(setup: Setup) -> int:
    """This GPU's place in the pipeline."""
    return setup.mesh.rank(dist.get_rank(), setup.data)["pipeline"]


def cut(module: nn.Module, model: Model, setup: Setup) -> list[Stage]:
    """This GPU's stages of what it has of a model."""
    ways, place, make = setup.mesh, place_of(setup), STAGES[str(model.family)]
    pairs = zip(stages_of(ways, place), blocks_of(model.layers, ways, place), strict=True)
    last = ways.pipeline * ways.stages - 1
    return [make(module, blocks, number == 0, number == last) for number, blocks in pairs]


class Watched(PipelineStage):
    """PyTorch's stage, which says before it runs what it does."""

    watch = staticmethod(lambda kind: None)  # is told `forward` or `backward`

    def forward_one_chunk(self, *args, **kwargs):
        self.watch("forward")
        return super().forward_one_chunk(*args, **kwargs)

    def backward_one_chunk(self, *args, **kwargs):
        self.watch("backward")
        return super().backward_one_chunk(*args, **kwargs)

    def backward_weight_one_chunk(self, *args, **kwargs):
        self.watch("backward")
        return super().backward_weight_one_chunk(*args, **kwargs)


class Pipeline:
    """What runs one GPU's stages of a model.

    Args:
        module: all that the GPU has. stages: of it. parts: what is called in their place. model: the whole. mesh: of all GPUs.
    """

    def __init__(self, module: nn.Module, stages, parts, model: Model, setup: Setup, mesh):
        ways, count = setup.mesh, setup.mesh.pipeline * setup.mesh.stages
        self.stages, self.tell = stages, lambda kind: None
        self.first, self.last = any(stage.first for stage in stages), any(stage.last for stage in stages)
        self.runs = []
        for number, stage, part in zip(stages_of(ways, place_of(setup)), stages, parts, strict=True):
            given, gives = _examples(model, setup, stage)
            self.runs.append(
                Watched(
                    part, number, count, next(module.parameters()).device, input_args=(given,), output_args=(gives,),
                    group=mesh["pipeline"].get_group(),
                )
            )  # fmt: skip
        self.schedule = SCHEDULES[ways.schedule](
            self.runs[0] if ways.schedule in ONE_STAGE else self.runs, setup.accumulation,
            loss_fn=module.loss if self.last else _no_loss, scale_grads=False,
        )  # fmt: skip
        self.tied = self.ends = None
        if model.tied and ways.schedule not in TWO_STAGES:
            if self.first or self.last:
                self.tied = (module.token if self.first else module.head).weight
            for pipeline in mesh.mesh.flatten(1).T.tolist():  # everybody makes every group
                group = dist.new_group([pipeline[0], pipeline[-1]])
                self.ends = group if dist.get_rank() in pipeline else self.ends

    def watch(self, tell):
        """Have `tell` be told what runs next: `forward`, `backward` or `optimizer step`."""
        self.tell = tell
        for run in self.runs:
            run.watch = tell

    def run(self, tokens, targets, positions=None, *, at):
        """Forward and backward of all micro-batches; their shares in the loss, where the last stage is here."""
        losses = []
        for stage in self.stages:
            stage.positions = positions
        with self._marked(at):
            self.schedule.step(
                *((tokens,) if self.first else ()), target=targets, losses=losses if self.last else None,
                return_outputs=False,
            )  # fmt: skip
        for stage in self.stages:
            stage.positions = None
        return losses

    def add_ends(self):
        """Add the gradients of the two copies that the ends have of one weight."""
        if self.tied is not None:
            grad = self.tied.grad
            dist.all_reduce(grad.to_local() if isinstance(grad, DTensor) else grad, group=self.ends)

    @contextmanager
    def _marked(self, at):
        """Within it, the end of each forward is told, its loss included."""
        compute = self.schedule._maybe_compute_loss

        def then_mark(*args, **kwargs):
            compute(*args, **kwargs)
            at("after_forward")

        with mock.patch.object(self.schedule, "_maybe_compute_loss", then_mark):
            yield

    def buffers(self):
        """What stands for good to receive into: PyTorch's stages have one for each micro-batch and direction."""
        mine = [run.stage_index for run in self.runs]
        for run in self.runs:
            for infos in (*run.args_recv_info.values(), *run.grad_recv_info.values()):
                yield from (info.buffer for info in infos if info.buffer is not None and info.source not in mine)


def _examples(model, setup, stage):
    """What a stage is given and gives, without data: PyTorch asks for shapes and types alone."""
    dtype = DTYPES[setup.dtypes.compute if setup.fsdp else setup.dtypes.weights]
    shape, parts = (setup.batch, setup.own_sequence), setup.mesh.tensor if setup.mesh.sequence_parallel else 1
    with _disable_current_modes(), torch.device("meta"):
        sent = setup.batch, setup.own_sequence // parts, model.width
        hidden = torch.empty(sent, dtype=dtype, requires_grad=True)
        given = torch.empty(shape, dtype=torch.int64) if stage.first else hidden
        if stage.last and setup.loss == "plain":
            return given, torch.empty(*shape, model.vocabulary, dtype=dtype, requires_grad=True)
        return given, hidden


def _no_loss(output, targets):
    raise AssertionError("a stage that is not the last has no loss")
