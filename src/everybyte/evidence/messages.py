"""The text of an out-of-memory error, read into whole bytes. A message gives two decimals, so each number is known to 0.5 %.

Sources: `c10/cuda/CUDACachingAllocator.cpp` of PyTorch 1.4 to 2.13 for the first three forms.
"""

import re
from dataclasses import dataclass, field

from ..units import UNITS

_SIZE = r"([\d.]+) (bytes|KiB|MiB|GiB|TiB)"
_UNITS = UNITS | {"bytes": 1}
#: Name -> the text around a size, in PyTorch 2's messages.
_TWO = {
    "asked": rf"Tried to allocate {_SIZE}", "capacity": rf"total capaci?ty of {_SIZE}", "free": rf"of which {_SIZE} is free",
    "process": rf"this process has {_SIZE} memory in use", "allowed": rf"{_SIZE} allowed;",
    "allocated": rf"Of the allocated memory {_SIZE} is allocated by PyTorch", "graphs": rf"with {_SIZE} allocated in private pools",
    "cached": rf"{_SIZE} is reserved by PyTorch but unallocated",
}  # fmt: skip
#: The same in PyTorch 1's: reserved as a whole, or before 1.4 what was cached.
_ONE = {
    "asked": rf"Tried to allocate {_SIZE}", "capacity": rf"{_SIZE} total capacity", "allocated": rf"{_SIZE} already allocated",
    "free": rf"{_SIZE} free", "allowed": rf"{_SIZE} allowed", "reserved": rf"{_SIZE} reserved in total by PyTorch",
    "cached": rf"{_SIZE} cached",
}  # fmt: skip
_REJECTED = rf"preemptively rejected.*?Requested size: {_SIZE}"
_OTHERS = {
    "cublas": r"CUBLAS_STATUS_(?:ALLOC_FAILED|NOT_INITIALIZED)",
    "cudnn": r"CUDNN_STATUS_(?:ALLOC_FAILED|INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED)",
    "nccl": r"(?si)nccl.*(?:out of memory|Failed to CUDA malloc|Cuda failure 2|unhandled cuda error)",
    "pinned": r"(?i)cudaHostAlloc|pin(?:ned)?[ _]memory.*out of memory",
    "driver": r"CUDA error: out of memory|cudaErrorMemoryAllocation|CUDA_ERROR_OUT_OF_MEMORY",
    "host": r"DefaultCPUAllocator: (?:can't|not enough memory)|not enough memory: you tried to allocate|MemoryError|Cannot allocate memory|oom-kill|Out of memory: Killed|exit(?:ed with)? (?:code|status) -?(?:9|137)\b|Signal 9|SIGKILL",
}
#: What other errors begin with, that are taken for a lack of memory or look like one.
_NOT_MEMORY = {
    "an illegal access, not a lack of memory": r"illegal memory access",
    "a check within a kernel, most often an index out of range": r"device-side assert",
    "no kernel for this GPU": r"no kernel image is available",
    "shapes that do not fit one another": r"(?:mat1 and mat2 shapes|size mismatch|shape '.*' is invalid)",
    "a driver older than CUDA needs": r"driver version is insufficient",
    "tensors on several devices": r"Expected all tensors to be on the same device",
    "a Python error of another kind": r"(?m)^(?:\w+\.)*(?:Attribute|Key|Type|Import|Name|Index|Value|FileNotFound)Error\b",
}


@dataclass(frozen=True, kw_only=True)
class Message:
    """What a message says, in bytes; None where it does not say.

    Attributes:
        kind: `pytorch`, `rejected`, `cublas`, `cudnn`, `nccl`, `pinned`, `driver` or `host`: whose memory ran out. form: of PyTorch's
            text, 1 or 2.
        asked: of the driver, for a new segment. gpu: its number. capacity, free: of the GPU, as its driver counts them.
        allocated: in blocks that serve tensors. cached: reserved besides, after all that could be given back was.
        process: what the driver counts for this process. others: (number, bytes) of other processes. allowed: what this one may have.
        graphs: of the allocated, what pools of CUDA graphs hold, free blocks among them.
    """

    kind: str
    form: int = 2
    asked: int | None = None
    gpu: int | None = None
    capacity: int | None = None
    free: int | None = None
    allocated: int | None = None
    cached: int | None = None
    process: int | None = None
    allowed: int | None = None
    graphs: int | None = None
    others: tuple[tuple[int, int], ...] = field(default=())

    @property
    def reserved(self) -> int | None:
        """Bytes that PyTorch's allocator has."""
        return None if self.allocated is None or self.cached is None else self.allocated + self.cached


def message(text: str) -> Message:
    """Read an error's text, with whatever stands around it.

    Raises:
        ValueError: where no memory ran out: the message says what the text looks like instead.
    """
    flat = " ".join(text.split())
    if found := re.search(_REJECTED, flat):
        return Message(kind="rejected", asked=_bytes(found))
    if re.search(r"out of memory\. Tried to allocate", flat):
        last = flat[flat.rindex("Tried to allocate") :]
        two = bool(re.search("total capaci?ty of", last)) or "Of the allocated memory" in last
        said = {name: _bytes(m) for name, pattern in (_TWO if two else _ONE).items() if (m := re.search(pattern, last))}
        reserved = said.pop("reserved", None)
        if reserved is not None and "allocated" in said:
            said["cached"] = max(0, reserved - said["allocated"])
        gpu = re.search(r"GPU (\d+)", last)
        others = tuple(
            (int(n), _amount(size, unit))
            for n, size, unit in re.findall(rf"Process (\d+) has {_SIZE} memory in use", last)
        )
        return Message(kind="pytorch", form=2 if two else 1, gpu=int(gpu[1]) if gpu else None, others=others, **said)
    for kind, pattern in _OTHERS.items():
        if re.search(pattern, text):
            asked = re.search(r"you tried to allocate (\d+) bytes", flat)
            return Message(kind=kind, asked=int(asked[1]) if asked else None)
    looks = next((what for what, pattern in _NOT_MEMORY.items() if re.search(pattern, text)), None)
    if not flat:
        looks = "nothing at all"
    raise ValueError(
        f"doctor.text: no out-of-memory message; it looks like {looks or 'text of another kind'}; allowed: the last lines of an error "
        "of PyTorch's, cuBLAS's, NCCL's or the host's, or a memory snapshot"
    )


def _amount(number, unit):
    return round(float(number) * _UNITS[unit])


def _bytes(found):
    return _amount(found[1], found[2])
