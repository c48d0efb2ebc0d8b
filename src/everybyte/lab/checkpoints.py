"""A run of any number of GPUs, kept on a disk so that it can be taken up again: PyTorch's distributed checkpoints.

Each GPU writes what it alone has. A checkpoint is written beside its place and renamed once all of it is there, so that a
run killed at any moment finds the last whole one.
"""

import os
import re
import shutil
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed import checkpoint

from ..reference import Trainer
from ..reference.parallel import ShardedOptimizer

_NAME = re.compile(r"step-(\d+)")


def save(trainer: Trainer, folder: str | os.PathLike, step: int) -> Path:
    """Write what the run is after `step` steps to `folder`/step-N, on every GPU of it at once; older ones are then removed.

    Raises:
        ValueError: where there is one of that step already.
    """
    folder = Path(folder)
    place, part = folder / f"step-{step}", folder / f"step-{step}.part"
    if place.exists():
        raise ValueError(f"save.step: {step} is there already, in {folder.name}; allowed: a step that is not")
    if _rank() == 0:
        folder.mkdir(parents=True, exist_ok=True)
        for left in folder.glob("step-*.part"):  # of a run that was killed
            shutil.rmtree(left)
    _wait()
    checkpoint.save(_state(trainer), checkpoint_id=part)
    _wait()  # every rank's part is on the disk
    if _rank() == 0:
        os.replace(part, place)
        for older in _there(folder)[:-1]:
            shutil.rmtree(folder / f"step-{older}")
    _wait()
    return place


def load(trainer: Trainer, folder: str | os.PathLike) -> int:
    """Take up the last whole checkpoint in `folder`: the steps that it has taken; 0 where there is none."""
    there = _there(Path(folder))
    if not there:
        return 0
    _make_states(_inner(trainer))
    state = _state(trainer)
    checkpoint.load(state, checkpoint_id=Path(folder) / f"step-{there[-1]}")  # into the tensors that are there
    torch.set_rng_state(state[f"random.{_rank()}"])
    if trainer.scaler:
        trainer.scaler.load_state_dict(state["scaler"])
    return there[-1]


def _there(folder):
    names = (_NAME.fullmatch(path.name) for path in (folder.iterdir() if folder.exists() else ()))
    return sorted(int(name[1]) for name in names if name)


def _rank():
    return dist.get_rank() if dist.is_initialized() else 0


def _wait():
    if dist.is_initialized():
        dist.barrier()


def _inner(trainer):
    """PyTorch's optimizer, within those that stand around it."""
    optimizer = trainer.optimizer
    while not isinstance(optimizer, torch.optim.Optimizer):
        optimizer = optimizer.optimizer
    return optimizer


def _make_states(optimizer):
    """States to be read into: those of a step that moves nothing."""
    rates = [group["lr"] for group in optimizer.param_groups]
    for group in optimizer.param_groups:
        group["lr"] = 0.0
        for p in group["params"]:
            p.grad = torch.zeros_like(p)
    optimizer.step()
    for group, rate in zip(optimizer.param_groups, rates, strict=True):
        group["lr"] = rate
        for p in group["params"]:
            p.grad = None


def _state(trainer):
    """All that a run is, by name: shards as shards, what every GPU has once."""
    optimizer, state = _inner(trainer), {}
    for name, tensor in trainer.module.state_dict().items():
        state[f"weights.{name}"] = tensor
    for i, p in enumerate(p for group in optimizer.param_groups for p in group["params"]):
        state[f"optimizer.{i}"] = p.detach()  # the master weights, where there are
        for name, value in optimizer.state[p].items():
            state[f"optimizer.{i}.{name}"] = value
    if isinstance(trainer.optimizer, ShardedOptimizer):
        shares = {name: _share(value) for name, value in state.items() if name.startswith("optimizer.") and value.dim()}
        state |= shares
    if trainer.scaler:
        state["scaler"] = trainer.scaler.state_dict()
    return state | {f"random.{_rank()}": torch.get_rng_state()}


def _share(tensor):
    """A tensor as this rank's share of one N times as long."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import DTensor, Shard

    mesh = init_device_mesh(tensor.device.type, (dist.get_world_size(),))
    return DTensor.from_local(tensor, mesh, [Shard(0)], run_check=False)
