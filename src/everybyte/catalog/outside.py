"""What a process takes of a GPU outside PyTorch's allocator: CUDA's context, as jobs told it, and NCCL's buffers, by its sources.

Since NCCL 2.22 an algorithm's buffers come with its first use and stay until the communicator is destroyed. `Communicator.bytes` has
used all that it may: a ring, a tree, NVLink SHARP. So it is what to plan with, not what a job has after its first step; reported jobs
are within a factor of 2 (`answers/headroom.toml`).
"""

from dataclasses import dataclass

from ..common import files
from ..units import UNITS
from .gpus import Gpu

MIB = UNITS["MiB"]
#: What NCCL rounds its buffers up to. Source: `CUDA_IPC_MIN`, `p2p.cc`.
PAGE = 2 * MIB
#: A channel's buffers by protocol. Source: `device.h`, `init.cc`: NCCL_LL_BUFFSIZE, NCCL_LL128_BUFFSIZE, NCCL_BUFFSIZE.
LL, LL128, SIMPLE = 8 * 512 * 8 * 16, 120 * 640 * 8 * 8, 4 * MIB
#: Channels of a ring or a tree on GPUs with NVLink, and those of an exchange with each peer. As jobs on 8 H100 and GB200 report.
CHANNELS, EXCHANGED = 24, 32
#: Major compute capability -> channels of NVLink SHARP, which older GPUs have not. Source: `nvls.cc`.
SHARP = {9: 16, 10: 24}
_SAID = files.toml(__package__, "outside.toml")
#: A communicator of one rank, which has no buffers to a peer; and what the first one took more, most of which stays when all are
#: destroyed: NCCL's kernels. As one H200 showed, with PyTorch 2.11's NCCL (`labs/records/scripts`).
ALONE, FIRST = 390 * MIB, 168 * MIB


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
        if self.size == 1:
            return ALONE
        major = int(gpu.capability.split(".")[0]) if gpu.capability[:1].isdigit() else 0
        sharp = SHARP.get(major, 0) if gpu.peer_link and self.near > 2 else 0
        # A tree between two is the ring. A head of SHARP is a GPU of the node.
        return self.ring * (2 if self.size > 2 else 1) + self.near * sharp * 2 * 8 * 128 * 1024

    @property
    def ring(self) -> int:
        """What the buffers of its ring alone take, the least that a `sum` has used."""
        return CHANNELS * (NEAR if self.near == self.size else FAR)


@dataclass(frozen=True)
class Context:
    """Readings of a process's CUDA context on a GPU, in bytes."""

    least: int
    most: int
    source: str


def context(gpu: Gpu) -> Context:
    """The readings of that GPU; where there are none, three of other ones."""
    said = next((said for said in _SAID["contexts"] if gpu.name in said["gpus"]), _SAID["any"])
    return Context(said["least"] * MIB, said["most"] * MIB, said["source"])
