"""A run on any number of GPUs, kept on a disk so that it can be resumed: PyTorch's distributed checkpoints.

Each GPU writes what it alone has. A checkpoint is renamed to its place once all of it is there, so a run killed at any
moment finds the last whole one. Its files' checksums stand beside them, and what PyTorch would unpickle is read by
name: nothing of a damaged file is loaded, and nothing in a file is run.
"""

import hashlib
import json
import os
import pickle
import re
import shutil
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed import checkpoint
from torch.distributed.checkpoint import metadata as described
from torch.distributed.checkpoint.filesystem import FileSystemReader, _StorageInfo

from ..common import files
from ..reference import Trainer
from ..reference.parallel import ShardedOptimizer

_NAME = re.compile(r"step-(\d+)")
#: The checksums of a checkpoint's files, SHA-256 by name: the last that is written of it.
SUMS = "checksums.json"
#: Numbers of the loss scaling.
SCALER = ("scale", "growth_factor", "backoff_factor", "growth_interval", "_growth_tracker")
#: What the description of a checkpoint's tensors may name: the classes that PyTorch's writer puts there.
KNOWN = {("torch", "Size"), ("torch.serialization", "_get_layout"), ("pathlib._local", "PosixPath")}
KNOWN |= {("pathlib", f"{kind}Path") for kind in ("", "Posix", "Windows", "PurePosix", "PureWindows")}
KNOWN |= {("torch", name) for name in dir(torch) if isinstance(getattr(torch, name), torch.dtype)}
KNOWN |= {(described.__name__, n) for n in dir(described) if n.endswith(("Metadata", "Properties", "Index", "Meta"))}
KNOWN |= {(described.__name__, "_MEM_FORMAT_ENCODING"), (_StorageInfo.__module__, _StorageInfo.__name__)}


def save(trainer: Trainer, folder: str | os.PathLike, step: int) -> Path:
    """Write what the run is after `step` steps to `folder`/step-N, on all of its GPUs; then older ones are removed.

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
        (part / SUMS).write_text(json.dumps(_sums(part)), encoding="utf-8")
        os.replace(part, place)
        for older in _there(folder)[:-1]:
            shutil.rmtree(folder / f"step-{older}")
    _wait()
    return place


def load(trainer: Trainer, folder: str | os.PathLike) -> int:
    """Load the last whole checkpoint in `folder`: how many steps it has taken; 0 where there is none.

    Raises:
        ValueError: where a file is not what was written, names what PyTorch's checkpoints do not, or is of another run.
    """
    there = _there(Path(folder))
    if not there:
        return 0
    place = Path(folder) / f"step-{there[-1]}"
    _check(place)
    _make_states(_inner(trainer))
    state = _state(trainer)
    try:
        checkpoint.load(state, storage_reader=_Reader(place), planner=_Planner())  # into the tensors that are there
    except checkpoint.CheckpointException as error:
        first = next(iter(error.failures.values()))[0]
        raise ValueError(
            f"load.folder: {place.name}: {first}; allowed: a checkpoint of the same model and setup"
        ) from None
    torch.set_rng_state(state[f"random.{_rank()}"])
    if trainer.scaler:
        own = trainer.scaler.state_dict()
        numbers = {name: type(own[name])(n) for name, n in zip(SCALER, state["scaler"].tolist(), strict=True)}
        trainer.scaler.load_state_dict(numbers)
    return there[-1]


def _there(folder):
    """The steps of whole checkpoints: those that have their checksums."""
    names = (_NAME.fullmatch(path.parent.name) for path in folder.glob(f"step-*/{SUMS}"))
    return sorted(int(name[1]) for name in names if name)


def _sums(place):
    sums = {}
    for path in sorted(set(place.iterdir()) - {place / SUMS}):
        with path.open("rb") as file:
            sums[path.name] = hashlib.file_digest(file, "sha256").hexdigest()
    return sums


def _check(place):
    """Raise unless every file is what was written."""
    try:
        wanted = files.parsed((place / SUMS).read_bytes())
    except ValueError:
        wanted = None
    there = _sums(place)
    if wanted != there:
        other = wanted.items() ^ there.items() if isinstance(wanted, dict) else ()
        names = sorted({str(name) for name, _ in other}) or [SUMS]
        raise ValueError(
            f"load.folder: {place.name} is not what was written: {', '.join(names)}; allowed: a whole checkpoint; "
            f"without {place.name} the one before it is taken up"
        )


class _Described(pickle.Unpickler):
    """Reads a checkpoint's description of its tensors, by names of a list alone, so that nothing in it is run."""

    def find_class(self, module, name):
        if (module, name) not in KNOWN:
            raise pickle.UnpicklingError(f"it names {module}.{name}")
        return super().find_class(module, name)


class _Reader(FileSystemReader):
    """PyTorch's, but for unpickling whatever is there."""

    def read_metadata(self, *_, **__):
        try:
            with (Path(self.path) / ".metadata").open("rb") as file:
                found = _Described(file).load()
        except Exception as error:  # bytes that make no pickle end in whatever they run into
            raise ValueError(
                f"load.folder: {Path(self.path).name}/.metadata: {str(error) or type(error).__name__}; allowed: the "
                "names, sizes and places of tensors, as torch.distributed.checkpoint writes them"
            ) from None
        found.storage_meta = found.storage_meta or described.StorageMeta()
        found.storage_meta.load_id = self.load_id
        return found


class _Planner(checkpoint.DefaultLoadPlanner):
    """PyTorch's, but for unpickling objects: there are none in our checkpoints."""

    def load_bytes(self, read_item, value):
        raise ValueError(f"load.folder: {read_item.dest_index.fqn} is no tensor; allowed: tensors")


def _rank():
    return dist.get_rank() if dist.is_initialized() else 0


def _wait():
    if dist.is_initialized():
        dist.barrier()


def _inner(trainer):
    """PyTorch's optimizer, inside those that wrap it."""
    optimizer = trainer.optimizer
    while not isinstance(optimizer, torch.optim.Optimizer):
        optimizer = optimizer.optimizer
    return optimizer


def _make_states(optimizer):
    """Make the states that are loaded into, by a step that moves nothing."""
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
    """All that a run is, by name: shards as shards, and once what every GPU has."""
    optimizer = _inner(trainer)
    state = {f"weights.{name}": tensor for name, tensor in trainer.module.state_dict().items()}
    for i, p in enumerate(p for group in optimizer.param_groups for p in group["params"]):
        state[f"optimizer.{i}"] = p.detach()  # the master weights, where there are
        for name, value in optimizer.state[p].items():
            state[f"optimizer.{i}.{name}"] = value
    if isinstance(trainer.optimizer, ShardedOptimizer):
        state |= {name: _share(value) for name, value in state.items() if name.startswith("optimizer.") and value.dim()}
    if trainer.scaler:
        numbers = trainer.scaler.state_dict()
        # A tensor, and no object that would be unpickled.
        state["scaler"] = torch.tensor([numbers[name] for name in SCALER], dtype=torch.float64)
    return state | {f"random.{_rank()}": torch.get_rng_state()}


def _share(tensor):
    """A tensor as this rank's share of one that is N times as long."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import DTensor, Shard

    mesh = init_device_mesh(tensor.device.type, (dist.get_world_size(),))
    return DTensor.from_local(tensor, mesh, [Shard(0)], run_check=False)
