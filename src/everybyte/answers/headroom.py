"""What of a GPU's memory no tensor of a step can have, in named bytes; and whether the GPU computes in a setup's precision."""

from dataclasses import dataclass

from .. import units
from ..ask.choices import EVERY_PRECISION, PrecisionName
from ..ask.setup import Setup
from ..catalog import Gpu, gpu
from ..catalog.gpus import RATES
from ..catalog.outside import FIRST, context
from ..common import checks, files
from ..common.tables import Table
from ..rules import GPU, check
from .communicators import communicators, taken

_MIB = units.UNITS["MiB"]
#: Term -> its reason, and the source of its default.
_SAID = files.toml(__package__, "headroom.toml")
#: CUDA's allocator rounds each tensor up to a multiple of so many bytes.
ROUNDING = 512
#: How whoever fills a GPU to its end should set the allocator. Where nobody says how it is set, it is simulated as PyTorch has it, ""; and
#: then so.
EXPANDABLE = "expandable_segments:True"
#: How many steps the allocator is simulated for, to say that they run: near the border some die in the third or the fourth, whose requests
#: find the second's blocks in other places.
PLAYED = 4
#: What is said of a configuration that is empty.
PYTORCH = "PyTorch's defaults"


@dataclass(frozen=True)
class Term:
    """Bytes of a GPU that no tensor of the step can have: `name`, the `reason`, and the `source` of the default."""

    name: str
    bytes: int
    reason: str
    source: str


@dataclass(frozen=True, kw_only=True)
class Headroom:
    """What is kept free of tensors on a GPU, in named bytes. None: the default for the GPU, as `terms` says with its source.

    Attributes:
        driver: what the driver keeps from every process; 0 where the catalog's memory is what a process is told.
        context: the process's CUDA context: the driver's structures and the loaded kernels.
        workspace: scratch of cuBLAS, one for the thread of forward and one for that of backward.
        fragmentation: what the allocator has and no tensor can use: the least of it; where it is not set, `fit` simulates the rest.
        nccl: of several GPUs the buffers of NCCL's communicators, by `communicators`, and what the first takes more; 0 for one.
        other: other processes, a display; 0 by default.
    """

    driver: int | None = None
    context: int | None = None
    workspace: int | None = None
    fragmentation: int | None = None
    nccl: int | None = None
    other: int | None = None

    def __post_init__(self):
        for name, value in vars(self).items():
            if value is not None:
                checks.whole("Headroom", name, value, 0, 2**50)

    def terms(self, gpu: Gpu, setup: Setup | None = None) -> list[Term]:
        """The terms on that GPU, in the order in which they are taken. setup: says which communicators there are; None for none.

        Raises:
            ValueError: where the GPU shares the host's memory, and nobody says what the host has of it.
        """
        if gpu.unified and self.other is None:
            raise ValueError(
                f"Headroom.other: None on {gpu.name}, which has no memory of its own: programs and the page cache of the host are in the same, "
                f"and what goes beyond ends in a hang, not in an error (pytorch/pytorch#174358); allowed: {gpu.memory:,} less MemAvailable of "
                "/proc/meminfo before the job starts"
            )
        return [
            term if getattr(self, name) is None else Term(name, getattr(self, name), term.reason, "set by the reader")
            for name, term in _defaults(gpu, setup).items()
        ]

    def usable(self, gpu: Gpu, setup: Setup | None = None) -> int:
        """Bytes that are left for tensors."""
        return gpu.memory - sum(term.bytes for term in self.terms(gpu, setup))

    def room(self, gpu: Gpu, setup: Setup | None = None) -> int:
        """Bytes that are left for PyTorch's allocator: workspaces and what fragments are its own."""
        return gpu.memory - sum(t.bytes for t in self.terms(gpu, setup) if t.name not in ("workspace", "fragmentation"))

    def table(self, gpu: Gpu, setup: Setup | None = None) -> Table:
        """From the GPU's memory to what is usable."""
        rows = [(f"memory ({gpu.memory_source})", units.text(gpu.memory), gpu.title, gpu.source)]
        rows += [(f"− {t.name}", units.text(t.bytes), t.reason, t.source) for t in self.terms(gpu, setup)]
        rows.append(("usable", units.text(self.usable(gpu, setup)), "", ""))
        return Table(("", "bytes", "what it is", "source"), rows)


def _defaults(gpu, setup):
    read = context(gpu)
    found = {
        "driver": Term("driver", 0 if gpu.memory_source == "reported" else 441 * _MIB, **_SAID["driver"]),
        "context": Term("context", read.most, _SAID["context"]["reason"], read.source),
        "workspace": Term("workspace", 2 * (gpu.cublas_workspace + gpu.lt_workspace), **_SAID["workspace"]),
        "fragmentation": Term("fragmentation", 22 * _MIB, **_SAID["fragmentation"]),
    }
    talking = communicators(setup, gpu) if setup is not None else []
    reason = "no other GPU"
    if talking:
        named = ", ".join(f"{one.axis} {units.text(one.bytes(gpu))}" for one in talking)
        reason = f"{_SAID['nccl']['reason']}: {named}, the first {units.text(FIRST)} more"
    found["nccl"] = Term("nccl", taken(talking, gpu), reason, _SAID["nccl"]["source"])
    return found | {"other": Term("other", 0, **_SAID["other"])}


def left(free: int) -> tuple[str, int]:
    """What is free, or missing where it is negative: a row of a table."""
    return ("free", free) if free >= 0 else ("missing", -free)


def find_gpu(wanted: Gpu | str) -> Gpu:
    """The GPU, by name or size too ("24 GiB"). Raises ValueError where the catalog has none of that name."""
    if isinstance(wanted, Gpu):
        return wanted
    if isinstance(wanted, str) and wanted[:1].isdigit() and not wanted.isdigit():
        return Gpu(memory=wanted)
    if isinstance(wanted, int) and not isinstance(wanted, bool):
        size = units.text(wanted) if 0 < wanted < 2**63 else "24 GiB"
        allowed = f"a name from eb.gpus(), or a size with its unit: {size!r}"
        raise ValueError(f"gpu: {checks.shown(wanted)}; allowed: {allowed}")
    return gpu(wanted)


def kept_free(owner: str, headroom: Headroom | None) -> Headroom:
    """What is kept free, by default the GPU's own. Raise ValueError for what is no `Headroom`."""
    if headroom is not None:
        checks.kind(owner, "headroom", headroom, Headroom)
    return headroom or Headroom()


def computes(setup: Setup, wanted: Gpu | str, rates: bool = False) -> Gpu:
    """The GPU of a run.

    Raises:
        ValueError: as `find_gpu`; where it has no bf16 and the setup computes or stores in it; with `rates` also where
            nothing says how fast it is, or the network between the nodes of the setup's GPUs.
    """
    gpu = find_gpu(wanted)
    check(GPU, setup, gpu)
    if rates and not gpu.rated:
        field = next(f for f in RATES if not getattr(gpu, f))
        raise ValueError(
            f"Gpu.{field}: 0 of the {gpu.name}, so that nothing says what a switch costs in time; allowed: a GPU of the catalog, or "
            f"Gpu(memory=..., {', '.join(f'{f}=...' for f in RATES)}); eb.fit asks for the memory alone"
        )
    if rates:
        gpu.ring(setup.gpus)
    return gpu


def takes(gpu: Gpu, precision: PrecisionName) -> bool:
    """Whether the GPU computes in that precision."""
    return gpu.bf16 or not EVERY_PRECISION[precision].needs_bf16
