"""The GPU that a rehearsal pretends: one of the catalog's, described to the stubs by environment variables."""

from ..catalog import Gpu, gpu
from ..catalog.outside import context
from ..common import checks
from ..lab.devices import REHEARSED

#: Set in every process of a rehearsal.
MARK = "EVERYBYTE_REHEARSAL"
#: The most devices of one process.
MOST = 16


def find(name: "str | Gpu", capabilities: list[int]) -> Gpu:
    """The catalog's GPU of that name, if PyTorch has kernels for it.

    Raises:
        ValueError: where there is none, where it is not NVIDIA's, or PyTorch is not compiled for it.
    """
    found = name if isinstance(name, Gpu) else gpu(name)
    if not found.capability.replace(".", "").isdigit() or not found.multiprocessors:
        raise ValueError(f"rehearse.gpu: {found.name!r} is not NVIDIA's, and a rehearsal runs PyTorch's CUDA build")
    here, least = number(found), min(capabilities, default=0)
    # Kernels for 8.0 run on 8.6, and not on 9.0.
    if capabilities and not any(one // 10 == here // 10 and one <= here for one in capabilities):
        instead = f"{least // 10}.{least % 10} or more" if here < least else "a newer PyTorch, by --torch"
        raise ValueError(
            f"rehearse.gpu: {found.name!r} has compute capability {found.capability}, and this PyTorch has no kernels for it; "
            f"allowed: {instead}"
        )
    return found


def number(gpu: Gpu) -> int:
    """A compute capability as one number: 90 for 9.0."""
    return int(gpu.capability.replace(".", ""))


def environment(gpu: Gpu, count: int = 1, memory: int | None = None) -> dict[str, str]:
    """The environment variables that describe `count` such GPUs to the stubs.

    Before anything is allocated, the largest CUDA context that was read on such a GPU is gone, as `eb.fit` keeps it free.

    Args:
        memory: bytes in place of the catalog's.

    Raises:
        ValueError: where it is less than that context, or more than 1 TiB.
    """
    kept = context(gpu).most
    if memory is not None:
        checks.whole("rehearse", "memory", memory, kept, 2**40)
    said = {
        "NAME": f"{REHEARSED}{gpu.title} (no GPU)",  # nobody takes it for a real one
        "MEMORY": memory or gpu.memory,
        "CONTEXT": kept,
        "CAPABILITY": number(gpu),
        "MULTIPROCESSORS": gpu.multiprocessors,
        "SHARED": gpu.shared_memory,
        "L2": gpu.l2,
        "GPUS": count,
    }
    return {MARK: gpu.name} | {f"REHEARSAL_{name}": str(value) for name, value in said.items()}
