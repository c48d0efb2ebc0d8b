"""The communicators of a setup: one for each dimension of its mesh that communicates."""

from collections.abc import Sequence

from ..ask.setup import Setup
from ..catalog import Gpu
from ..catalog.outside import FIRST, Communicator


def communicators(setup: Setup, gpu: Gpu) -> list[Communicator]:
    """Those of a step: one for each dimension of the mesh that communicates, tensor parallelism's ranks side by side."""
    mesh, found = setup.mesh, []
    sizes = [
        ("tensor", mesh.tensor, 1, "sum"),
        ("context", mesh.context, mesh.tensor, "exchange" if mesh.rotation == "ulysses" else "sum"),
        ("expert", mesh.expert, mesh.tensor, "exchange"),
        ("data", setup.shards if setup.sharding != "none" else setup.sharers, mesh.tensor, "sum"),
        ("replicas", setup.replicas if setup.sharding != "none" else 1, mesh.tensor * setup.shards, "sum"),
        ("pipeline", mesh.pipeline, setup.gpus // mesh.pipeline, "neighbors"),
    ]
    for axis, size, apart, kind in sizes:
        if size > 1:
            found.append(Communicator(axis, size, max(1, min(size, gpu.node // apart)), kind))
    return found


def taken(talking: Sequence[Communicator], gpu: Gpu) -> int:
    """What they take of each GPU, with what the first one takes more; 0 where nobody communicates."""
    return sum(one.bytes(gpu) for one in talking) + FIRST * bool(talking)
