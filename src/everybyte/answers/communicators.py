"""What NCCL takes of a GPU outside PyTorch's allocator: the buffers of each communicator, by the formulas of its sources.

Since NCCL 2.22 an algorithm's buffers come with its first use and stay until the communicator is destroyed. Here each communicator has
used all that it may: a ring, a tree, NVLink SHARP. So it is what to plan with, not what a job has after its first step; reported
jobs are within a factor of 2 (`headroom.toml`).
"""

from dataclasses import dataclass

from ..ask.setup import Setup
from ..catalog import Gpu
from ..units import UNITS

MIB = UNITS["MiB"]
#: What NCCL rounds its buffers up to. Source: `CUDA_IPC_MIN`, `p2p.cc`.
PAGE = 2 * MIB
#: A channel's buffers by protocol. Source: `device.h`, `init.cc`: NCCL_LL_BUFFSIZE, NCCL_LL128_BUFFSIZE, NCCL_BUFFSIZE.
LL, LL128, SIMPLE = 8 * 512 * 8 * 16, 120 * 640 * 8 * 8, 4 * MIB
#: Channels of a ring or a tree on GPUs with NVLink, and those of an exchange with each peer. As jobs on 8 H100 and GB200 report.
CHANNELS, EXCHANGED = 24, 32
#: Major compute capability -> channels of NVLink SHARP, which older GPUs have not. Source: `nvls.cc`.
SHARP = {9: 16, 10: 24}


def _up(size):
    return -(-size // PAGE) * PAGE


#: A channel to one peer: in the node what is received in, and flags for what is sent; over the network both ways. Source: `p2p.cc`,
#: `net.cc`.
NEAR = _up(LL + LL128 + SIMPLE + 2048) + _up(1024)
FAR = _up(LL128 + SIMPLE) + _up(LL + LL128 + SIMPLE)


@dataclass(frozen=True)
class Communicator:
    """GPUs that talk to each other.

    Attributes:
        axis: of the mesh, in words. size: how many GPUs. near: those of them in one node. kind: `sum` for collectives around a ring,
            `exchange` where each sends to every other, `neighbors` in a pipeline.
    """

    axis: str
    size: int
    near: int
    kind: str = "sum"

    def bytes(self, gpu: Gpu) -> int:
        """What its buffers take of each GPU."""
        if self.kind == "neighbors":
            return min(2, self.size - 1) * EXCHANGED * (NEAR if self.near > 1 else FAR)
        if self.kind == "exchange":
            return EXCHANGED * ((self.near - 1) * NEAR + (self.size > self.near) * FAR)
        each = CHANNELS * (NEAR if self.near == self.size else FAR)
        major = int(gpu.capability.split(".")[0]) if gpu.capability[:1].isdigit() else 0
        sharp = SHARP.get(major, 0) if gpu.peer_link and self.near > 2 else 0
        # A tree between two is the ring. A head of SHARP is a GPU of the node.
        return each * (2 if self.size > 2 else 1) + self.near * sharp * 2 * 8 * 128 * 1024


def communicators(setup: Setup, gpu: Gpu) -> list[Communicator]:
    """Those of a step: one for each dimension of the mesh that communicates, tensor parallelism's ranks side by side."""
    mesh, found = setup.mesh, []
    sizes = [
        ("tensor", mesh.tensor, 1, "sum"),
        ("context", mesh.context, mesh.tensor, "sum"),
        ("expert", mesh.expert, mesh.tensor, "exchange"),
        ("data", setup.shards if setup.sharding != "none" else setup.sharers, mesh.tensor, "sum"),
        ("replicas", setup.replicas if setup.sharding != "none" else 1, mesh.tensor * setup.shards, "sum"),
        ("pipeline", mesh.pipeline, setup.gpus // mesh.pipeline, "neighbors"),
    ]
    for axis, size, apart, kind in sizes:
        if size > 1:
            found.append(Communicator(axis, size, max(1, min(size, gpu.node // apart)), kind))
    return found
