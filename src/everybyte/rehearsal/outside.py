"""What a process takes of its GPU outside PyTorch's allocator, as a range: CUDA's context, and NCCL's buffers."""

from ..catalog import Gpu
from ..catalog.outside import FIRST, Communicator, context
from ..units import text


def taken(gpu: Gpu, groups: list[dict]) -> dict[str, tuple[int, int]]:
    """What -> (the least, the most) in bytes.

    Args:
        groups: those of a process that have communicated: `ranks`, how many; `apart`, the distance of neighbors; `does`, in which ways,
            as `ranks.talked` says them.
    """
    read = context(gpu)
    found = {"context": (read.least, read.most)}
    if groups:  # of each at the least a ring, at the most a tree and NVLink SHARP too
        each = [_buffers(gpu, **group) for group in groups]
        found["nccl"] = FIRST + sum(least for least, _ in each), FIRST + sum(most for _, most in each)
    return found


def most(gpu: Gpu, processes: list[dict]) -> int:
    """The most bytes of NCCL's buffers on one of the GPUs of some processes."""
    return max((taken(gpu, process["groups"]).get("nccl", (0, 0))[1] for process in processes), default=0)


def _buffers(gpu, ranks, apart, does):
    near = max(1, min(ranks, gpu.node // apart))
    ways = [Communicator("a group", ranks, near, kind) for kind in does]
    least = (way.ring if way.kind == "sum" and ranks > 1 else way.bytes(gpu) for way in ways)
    return sum(least), sum(way.bytes(gpu) for way in ways)


def said(gpu: Gpu, groups: list[dict]) -> str:
    """The same in a sentence."""
    sizes = {what: " to ".join(dict.fromkeys(map(text, range_))) for what, range_ in taken(gpu, groups).items()}
    line = f"Outside PyTorch's bytes: CUDA's context, {sizes['context']}, more with cuSOLVER"
    if groups:
        of = ", ".join(str(group["ranks"]) for group in groups)
        line += f"; buffers for {len(groups)} communicator{'s' * (len(groups) > 1)} (ranks: {of}), {sizes['nccl']} by NCCL's formulas, jobs within a factor of 2"
    return line
