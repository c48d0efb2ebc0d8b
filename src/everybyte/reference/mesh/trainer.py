"""One GPU's part of a step on a mesh. Every dimension is a pass, and `parallelize` has their order."""

from collections.abc import Callable
from contextlib import contextmanager, nullcontext
from functools import partial

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from ...ask.mesh import Mesh
from ...ask.schedules import blocks_of, stages_of
from ...ask.setup import Setup
from ...catalog import Model
from ..parallel import ShardedOptimizer, all_gather, at_once, device_mesh, reduce_scatter, shard, sharers
from ..saving import built
from ..saving.fsdp import into_groups, resharded
from ..splitting import split, split_experts
from ..step import DTYPES, MasterWeights, Trainer, default_autocast, hidden_matrices, make_optimizer
from .context import going_around
from .experts import average, expert_mesh, shard_experts
from .mixture import ParallelExperts
from .pipeline import Pipeline, cut
from .stages import Blocks, Share


def held(model: Model, setup: Setup, place: int = 0, mixture: type[ParallelExperts] = ParallelExperts) -> nn.Module:
    """What one GPU has of a model's blocks, experts and ends, by the names that they have in the whole.

    Of a pipeline the first stage has the embeddings, the last has norm, head and loss.

    Args:
        place: of the GPU in the pipeline. mixture: what stands for the experts of a block where several GPUs divide them.
    """
    ways = setup.mesh
    mine, last = stages_of(ways, place), ways.pipeline * ways.stages - 1
    numbers = [i for blocks in blocks_of(model.layers, ways, place) for i in blocks]
    module: nn.Module = built(model.replace(layers=len(numbers)), undivided(setup))
    for block in module.blocks if ways.expert > 1 else ():
        block.mlp = mixture(model, ways.expert)
    if ways.pipeline == 1:
        return module
    module.blocks = Blocks(dict(zip(numbers, module.blocks, strict=True)))
    if 0 not in mine:
        for name in ("token", "position")[: 1 + (model.family == "gpt")]:
            delattr(module, name)
    if last in mine:
        module.loss = Share(module.loss, module.head if module.with_head else None, setup.accumulation)
    else:
        del module.norm, module.head, module.loss
    return module


def undivided(setup: Setup) -> Setup:
    """The same on one GPU."""
    return setup.replace(
        gpus=1, mesh=Mesh(), sharding="none", sharding_units="block", resharding="usual", resharding_gpus=8, muon_gather="each", buckets="copies", offload="none", no_sync=False
    )  # fmt: skip


def parallelize(
    module: nn.Module, setup: Setup, mesh, by_expert=None, model: Model | None = None
) -> tuple[list[nn.Module], list[nn.Module]]:
    """Apply each dimension to what a GPU has of a model, in this order; returns (its stages, what is called in their place).

    1. tensor: of each matrix a part (`splitting.py`), of the experts' too (`experts.py`).
    2. experts: each mixture knows the GPUs that have its other experts (`experts.py`).
    3. context: nothing in the module; in the step each GPU keeps its own tokens, and attention goes around (`context.py`).
    4. stages: the blocks are cut into stages, which a schedule runs (`pipeline.py`).
    5. checkpointing: the model's own, which calls its blocks so (`gpt.through`).
    6. data: FSDP divides each stage, its experts among the GPUs that have the same, or DDP averages it; ZeRO-1 is the optimizer's.

    Source of the order: torchtitan, models/llama3/infra/parallelize.py.

    Args:
        mesh: what `device_mesh` gives. by_expert: what `expert_mesh` gives, where experts are divided. model: the whole, of a pipeline.
    """
    ways = setup.mesh
    if ways.tensor > 1:
        for block in module.blocks if by_expert else ():
            split_experts(block.mlp.own, by_expert["tensor"])
        if hasattr(module, "parallelize"):  # none of the book's: it says itself how
            module.parallelize(mesh["tensor"])
        else:
            split(module, mesh["tensor"], ways)
    if by_expert:
        for block in module.blocks:
            block.mlp.group = by_expert["expert"].get_group()
    stages: list[nn.Module] = [module]
    if ways.pipeline > 1 and model:
        stages = [*cut(module, model, setup)]
    if setup.fsdp:
        if by_expert:
            shard_experts(module, setup, by_expert["same"])
        with into_groups(setup):
            return stages, [resharded(shard(stage, setup, mesh), setup) for stage in stages]
    if setup.ddp:
        return stages, [replicate(stage, setup, sharers(mesh).get_group()) for stage in stages]
    return stages, stages


def replicate(stage: nn.Module, setup: Setup, group) -> nn.Module:
    """DDP over a group of GPUs; of a stage of a pipeline in its last backward.

    Source: `torch/distributed/pipelining/stage.py`, `backward_maybe_with_nosync`.
    """
    if setup.mesh.expert > 1:  # which are averaged by hand
        own = [name for name, _ in stage.named_parameters() if ".mlp.own." in name]
        DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(stage, own)
    fake = dist.get_backend() == "fake"  # nobody to compare weights with
    views = setup.buckets == "views"
    ddp = DistributedDataParallel(stage, process_group=group, init_sync=not fake, gradient_as_bucket_view=views)
    ddp.broadcast_buffers = False  # causal masks: the same everywhere and always
    if fake:
        ddp.register_comm_hook(None, at_once)
    return ddp


class Shares:
    """Weights of a GPU side by side, their gradients in another buffer, and this GPU's share of both.

    Args:
        weights: of this GPU. group: the GPUs that have the same, and divide the optimizer's states. tokens: of how many GPUs' tokens
            gradients are the mean.
    """

    @torch.no_grad()
    def __init__(self, weights: list, group, tokens: int):
        self.group, self.tokens, gpus = group, tokens, dist.get_world_size(group)
        numbers = [weight.numel() for weight in weights]
        share = -(-sum(numbers) // gpus)
        self.flat = weights[0].new_empty(share * gpus, requires_grad=False)
        self.gradients = torch.zeros_like(self.flat)
        padding = share * gpus - sum(numbers)
        views = zip(*(flat.split([*numbers, padding]) for flat in (self.flat, self.gradients)), strict=True)
        for weight, (view, gradient) in zip(weights, views, strict=False):
            weight.data = view.view_as(weight).copy_(weight)
            weight.grad = gradient.view_as(weight)
        self.flat[sum(numbers) :].zero_()
        rank = dist.get_rank(group)
        mine = slice(rank * share, (rank + 1) * share)
        self.own, self.own_gradients = self.flat.detach()[mine], self.gradients[mine]

    def reduce(self):
        reduce_scatter(self.own_gradients, self.gradients, group=self.group)
        self.own.grad = self.own_gradients.div_(self.tokens)

    def gather(self):
        self.own.grad = None
        all_gather(self.flat, self.own, group=self.group)


class GroupOptimizer(ShardedOptimizer):
    """ZeRO-1 among the GPUs of groups: those that have the same part of a model, and where experts are divided those that have the same.

    Args:
        shares: of each group. make: makes the optimizer of this GPU's share of all.
    """

    def __init__(self, shares: list[Shares], make: Callable):
        self.shares = shares
        self.buffers = [one.gradients for one in shares]
        self.optimizer = make([one.own for one in shares])

    @torch.no_grad()
    def step(self):
        for one in self.shares:
            one.reduce()
        self.optimizer.step()
        for one in self.shares:
            one.gather()

    def zero_grad(self):
        for buffer in self.buffers:
            buffer.zero_()


class MeshTrainer(Trainer):
    """One GPU's part of a model, its optimizer, and one step of training with the other GPUs of a mesh.

    Args:
        module: what `held` gives, on its device. model: the whole, of a pipeline.

    Attributes:
        parts: what is called: the module, or each of its stages, perhaps in DDP.
        pipeline: what runs the stages; None without a pipeline.

    Raises:
        ValueError: where there is no process group of as many GPUs as the setup says, or a pipeline is given no model.
    """

    def __init__(self, module: nn.Module, setup: Setup, autocast: Callable | None = None, model: Model | None = None):
        _check(setup, model)
        precision, ways, self.device = setup.dtypes, setup.mesh, next(module.parameters()).device
        self.module, mesh = module.to(DTYPES[precision.weights]), device_mesh(setup, self.device.type)
        by_expert = expert_mesh(setup, self.device.type) if ways.expert > 1 else None
        stages, self.parts = parallelize(self.module, setup, mesh, by_expert, model)
        self.called = self.parts[0]
        self.accumulation, self.no_sync = setup.accumulation, setup.no_sync
        self.optimizer = _optimizer(self.module, setup, mesh, by_expert)
        self.scaler = torch.amp.GradScaler(self.device.type) if precision.loss_scaling else None
        self.autocast = nullcontext
        if precision.autocast and not setup.fsdp:  # FSDP gathers 16 bits itself
            dtype = DTYPES[precision.compute]
            enter = autocast or default_autocast(self.device.type)
            self.autocast = partial(enter, dtype)  # type: ignore[assignment]  # as the base has it
        self.ring = partial(going_around, mesh["context"], ways.rotation) if ways.context > 1 else None
        self.same = by_expert["same"].get_group() if by_expert and setup.sharding == "none" else None
        self.sharers = setup.sharers
        self.pipeline: Pipeline | None = None
        if ways.pipeline > 1 and model:
            self.pipeline = Pipeline(self.module, stages, self.parts, model, setup, mesh)

    def step(self, batch, at=lambda phase: None):
        """One step, as `Trainer`'s; of a pipeline all micro-batches at once.

        Args:
            batch: makes tokens, targets and, of GPUs that share sequences, positions (S,); each of these is given the whole sequences
                and keeps its own tokens. Of a pipeline it makes all micro-batches, (m B, S) each, and None for what a GPU has no use for.
            at: is told each phase as it ends: `after_forward` of each micro-batch, `after_backward`, `after_step`.

        Returns:
            The loss, averaged over the micro-batches, where the last stage is here; else None.
        """
        if self.pipeline is None:

            def kept():
                self.inputs = batch()
                return self.inputs

            return super().step(kept if self.ring else batch, at)
        inputs = batch()
        with self.shared([x for x in inputs if x is not None]):
            losses = self.pipeline.run(*inputs, at=at)
        total = None
        for share in losses:
            total = share.detach() if self.accumulation == 1 else (0.0 if total is None else total) + share.detach()
        at("after_backward")
        self.pipeline.tell("optimizer step")
        self.update()
        at("after_step")
        self.optimizer.zero_grad()
        return total

    @contextmanager
    def averaging(self, last):
        inputs, self.inputs = getattr(self, "inputs", None), None
        with super().averaging(last), self.shared(inputs):
            yield

    @contextmanager
    def shared(self, inputs):
        """Within it each GPU of a ring has its own tokens of the inputs, and attention goes around, in backward too."""
        with self.ring(inputs) if self.ring else nullcontext():
            del inputs
            yield

    def update(self):
        if self.pipeline:
            self.pipeline.add_ends()
        if self.same:
            average(self.module.blocks, self.same, self.sharers)
        super().update()


def _check(setup, model):
    if setup.mesh.pipeline > 1 and model is None:
        raise ValueError(
            f"MeshTrainer.model: None with mesh {setup.mesh}; allowed: the whole Model, whose stages are cut"
        )
    gpus = dist.get_world_size() if dist.is_initialized() else None
    if gpus != setup.gpus:
        there = "there is no process group" if gpus is None else f"the process group has {gpus}"
        raise ValueError(f"Setup.gpus: {setup.gpus}, and {there}; allowed: as many as torchrun started")


def _optimizer(module, setup, mesh, by_expert):
    """The optimizer of what trains; under ZeRO-1 each GPU of data and context has its states for a share, of experts among the same ones."""
    trained = [p for p in module.parameters() if p.requires_grad]
    make = make_optimizer(setup, hidden_matrices(module))
    if setup.dtypes.master:
        make = partial(MasterWeights, make=make, gradients=setup.master_gradients)
    if setup.sharding != "zero1":
        return make(trained)
    own = [p for name, p in module.named_parameters() if ".mlp.own." in name] if by_expert else []
    rest = [p for p in trained if not any(p is one for one in own)]
    shares = [Shares(rest, sharers(mesh).get_group(), setup.sharers)]
    if by_expert:
        shares.append(Shares(own, by_expert["same"].get_group(), setup.sharers))
    return GroupOptimizer(shares, make)
