"""The result of a dry run: every allocation, and the live bytes at every operation."""

from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

from ..allocator import STEPS, Reserved, Settings, play
from ..ask.setup import Setup
from ..catalog import Described, Gpu, Model
from ..catalog import gpu as find_gpu
from ..rules import RESERVED, WHOLE, broken, check
from ..step.course import Course, Found, Operation, Reading
from ..step.witness import Alive, Followed, starred
from .requests import requests
from .tracker import Allocation, Change, is_loss

PARTS = ("parameters", "casts", "buffers", "gradients", "optimizer", "activations", "transient", "loss", "workspace")
#: Further parts of steps on several GPUs: gathered weights, and buffers of communication.
SHARED_PARTS = ("unsharded", "communication")


class _Rounded(NamedTuple):
    rounding: int

    def size(self, allocation: Allocation) -> int:
        """The allocation's bytes, rounded up."""
        return -(-allocation.bytes // self.rounding) * self.rounding


def reading(operations, allocations, rounding=1, parts=PARTS, heads=()) -> Reading:
    """A `Reading` of what was counted on the GPU; its moments are the operations.

    Args:
        operations: (name, phase, owner) of each, as a tracker has them. rounding: bytes that each allocation is rounded up to a multiple of.
        heads: modules whose operations belong to the loss, beside those with such a name.
    """
    items = [Operation(name, phase, owner, is_loss(owner) or owner in heads, ()) for name, phase, owner in operations]
    course = Course(items, parts, [])
    for a in allocations:
        if a.host:
            continue
        (items[a.birth].taken if a.birth else course.rest).append(a)
        if a.death is not None:
            items[a.death].freed.append(a)
    return Reading(course, _Rounded(rounding))


@dataclass(frozen=True, eq=False, repr=False)
class Trace(Followed):
    """One steady training step, counted.

    Attributes:
        model, setup: what ran. rounding: bytes that each allocation is rounded up to a multiple of; 1 for none, 512 as CUDA.
        operations: (name, phase, owner) of each operation that allocated, and of each mark.
        allocations: all, those that outlived the step with `death` None.
        marks: end of a phase, one of `PHASES` without `step` -> its number among the operations.
        changes: allocations, frees and marks of the steady step, in order. beginning: the same from the first weight until the
            steady step, with the first update between the marks `states` and `states made`.
        flops: of the step's matrix products.
        heads: modules whose operations belong to the loss, beside those with such a name. rank: which of several GPUs it is.
        sizes: of letters of the reader's own, where it was counted at some.
    """

    witness = "dry run"

    model: Described
    setup: Setup
    operations: list[tuple[str, str, str]]
    allocations: list[Allocation]
    marks: dict[str, int]
    rounding: int = 1
    changes: list[Change] = field(default_factory=list)
    beginning: list[Change] = field(default_factory=list)
    flops: int = 0
    heads: frozenset[str] = frozenset()
    rank: int = 0
    sizes: dict[str, int] = field(default_factory=dict)

    def size(self, allocation: Allocation) -> int:
        """The allocation's bytes, rounded up."""
        return self._reading.amounts.size(allocation)

    @cached_property
    def _reading(self) -> Reading:
        parts = PARTS + SHARED_PARTS * self.setup.distributed
        return reading(self.operations, self.allocations, self.rounding, parts, self.heads)

    @cached_property
    def _found(self) -> Found:
        return self._reading.budget()

    @cached_property
    def _timeline(self):
        return {part: [moment.live[part] for moment in self._reading.moments] for part in self._reading.course.parts}

    def timeline(self) -> dict[str, list[int]]:
        """Live bytes while each operation runs, by part: every one of `PARTS`, on several GPUs of `SHARED_PARTS` too."""
        return self._timeline

    def owners(self, operation: int | None = None) -> list[Allocation]:
        """What lives at an operation, by default the peak's, largest first."""
        at = self.peak_operation if operation is None else operation
        return sorted((a for a in self._alive(at) if not a.host), key=lambda a: -a.bytes)

    def alive(self) -> list[Alive]:
        """Each tensor that lives at the peak, in the order in which it was made."""
        found = sorted(self.owners(), key=lambda a: a.birth)
        return [Alive(self.size(a), a.part, a.owner, a.operation) for a in found if a.bytes]

    def _alive(self, at):
        return [a for a in self.allocations if a.birth <= at and (a.death is None or a.death >= at)]

    @property
    def host(self) -> dict[str, int]:
        """Bytes of each part in the memory of the CPU after backward, where it is the most; empty without offload. Activations are not counted."""
        parts = ("parameters", "gradients", "optimizer")
        there = [a for a in self._alive(self.marks["after_backward"]) if a.host and a.part in parts]
        return {part: sum(a.bytes for a in there if a.part == part) for part in parts if there}

    def by_owner(self, operation: int | None = None) -> list[tuple[str, str, int, int]]:
        """What lives at an operation, by default the peak's: (owner, part, tensors, bytes), most bytes first.

        The owner is the parameter, or the module that made it. All blocks count as one owner, `blocks.*`.
        """
        gathered = {}
        for allocation in self.owners(operation):
            key = starred(allocation.owner), allocation.part
            count, size = gathered.get(key, (0, 0))
            gathered[key] = count + 1, size + self.size(allocation)
        return sorted(((*key, *found) for key, found in gathered.items()), key=lambda row: -row[3])

    @cached_property
    def reserved(self) -> int:
        """The most bytes that PyTorch's allocator reserves for it on an H200 with default settings; see `on` for others."""
        return self.on("h200").reserved

    def on(
        self,
        gpu: Gpu | str,
        configuration: Settings | str = "",
        memory: int | None = None,
        steps: int = STEPS,
        clear: bool = False,
        whole: bool | None = None,
    ) -> Reserved:
        """What PyTorch's allocator reserves for it on a GPU, from the first weight on, simulated, and what these bytes are.

        cuBLAS's workspaces are included. Other kernels' workspaces are not, nor memory outside of the allocator. It assumes that
        streams are done with a block as soon as it is freed. Of 486 rehearsed steps, 471 reserve within 2 % of this and 478 within
        5 %. The others are small models and losses in many chunks: there the sum of a bias's gradient takes a buffer (`Reduce.cuh`)
        larger than any free block. Without that buffer, four of them reserve exactly this.

        Args:
            gpu: of the catalog, or its name: how large cuBLAS's workspaces are. configuration: as `PYTORCH_ALLOC_CONF`.
            memory: bytes that the process has; by default no limit. steps: how many, with the first.
            clear: whether the cache is emptied after each step. whole: whether weights are first made whole on the GPU, in fp32; else
                they come as they stay, as from a checkpoint or from a module on meta. None: whole where the book's own step makes
                them so, else as they stay.
        """
        check(RESERVED, self.setup)
        if whole is None:
            whole = isinstance(self.model, Model) and not broken(WHOLE, self.setup, self.model)
        gpu = find_gpu(gpu) if isinstance(gpu, str) else gpu
        asked = requests(self, gpu.cublas_workspace, whole)
        return play(asked, configuration, memory, gpu.memory, steps, clear)
