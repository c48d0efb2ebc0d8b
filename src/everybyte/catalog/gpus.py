"""GPUs and what matters of them in training: memory, bandwidth, arithmetic, links."""

from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, final

from .. import units
from ..common import checks, files

MEMORY_SOURCES = ("reported", "nvidia-smi", "data sheet")
#: Fields that an estimate of time needs.
RATES = ("bandwidth", "bf16_flops", "fp32_flops", "host_link")
_BYTES = ("memory", "bandwidth", "host_link", "peer_link", "network", "l2", "shared", "cublas", "lt")


def _in_bytes(entry):
    return entry | {field: round(units.parse(entry[field])) for field in _BYTES if field in entry}


#: The beginning of a capability -> what it decides.
_ARCHITECTURES = {prefix: _in_bytes(row) for prefix, row in files.entries(__package__, "architectures.toml").items()}


@final
@dataclass(frozen=True, kw_only=True)
class Gpu:
    """One GPU's data sheet, and the memory that a process finds on it.

    A GPU may be given by its size alone, `Gpu(memory="24 GiB")`: then all rates are 0, and the size counts as a data sheet's.

    Attributes:
        name: as in the catalog. title: the vendor's name.
        memory: the device's total bytes, before any context, or a text such as "24 GiB".
        memory_source: `reported`: CUDA's total for a process (torch's `total_memory`), read from such a card; `nvidia-smi`:
            the driver's total, some hundred MiB more; `data sheet`: the vendor's figure.
        advertised_gb: the data sheet's figure, GB as the vendor counts.
        bandwidth: of device memory, bytes per second. Here and in the next fields 0 means unknown.
        bf16_flops: FLOP/s in bf16, dense; in fp16 where `bf16` is False. fp32_flops: FLOP/s in fp32 without TF32.
        bf16: whether the matrix units support bf16.
        host_link: bytes per second to the host, one direction. peer_link: to the other GPUs; 0 where the host's is the only link.
        bridged: how many GPUs a bridge joins, where `peer_link` is a bridge's; 0 where it reaches the whole node.
        unified: whether it has no memory of its own, and shares the host's.
        network: bytes per second, one direction, of each GPU's network card; 0 for unknown. node: GPUs of a node.
        capability: CUDA compute capability, or the vendor's architecture name.
        multiprocessors: how many; l2: bytes of the second-level cache. 0 where the catalog does not say.
        source: of the figures.

    Raises:
        ValueError: naming the field, the value and what is allowed.
    """

    name: str = ""
    title: str = ""
    memory: int
    memory_source: str = "data sheet"
    advertised_gb: int = 0
    bandwidth: int = 0
    bf16_flops: int = 0
    fp32_flops: int = 0
    bf16: bool = True
    host_link: int = 0
    peer_link: int = 0
    bridged: int = 0
    network: int = 0
    node: int = 8
    unified: bool = False
    capability: str = ""
    multiprocessors: int = 0
    l2: int = 0
    source: str = "given by its size"

    if TYPE_CHECKING:

        def __init__(self, *, memory: int | str, **figures: Any): ...

    def __post_init__(self):
        if isinstance(self.memory, str):
            try:
                object.__setattr__(self, "memory", round(units.parse(self.memory)))
            except ValueError as error:
                raise ValueError(f"Gpu.memory: {error}") from None
        checks.whole("Gpu", "memory", self.memory, 1, 2**60)
        for field in ("name", "title", "capability"):
            checks.line("Gpu", field, getattr(self, field))
        checks.kind("Gpu", "source", self.source, str)
        for field in ("name", "title"):
            if not getattr(self, field):
                object.__setattr__(self, field, f"GPU of {units.text(self.memory)}")
        for field in (*RATES, "advertised_gb", "peer_link", "network", "multiprocessors", "l2"):
            checks.whole("Gpu", field, getattr(self, field), 0, 2**60)
        checks.whole("Gpu", "node", self.node, 1, 2**20)
        checks.whole("Gpu", "bridged", self.bridged, 0, self.node)
        if self.bridged and not self.peer_link:
            raise ValueError(f"Gpu.bridged: {self.bridged} without a peer_link, the bridge's rate; allowed: 0")
        checks.flag("Gpu", "bf16", self.bf16)
        checks.flag("Gpu", "unified", self.unified)
        checks.one_of("Gpu", "memory_source", self.memory_source, MEMORY_SOURCES)

    @property
    def rated(self) -> bool:
        """Whether its rates are known."""
        return all(getattr(self, field) for field in RATES)

    @property
    def _architecture(self) -> dict[str, Any]:
        """What the capability decides: a row of `architectures.toml`; of an unknown one Hopper's, without shared memory."""
        name = f"{self.capability or 9}."
        found = next(row for prefix, row in _ARCHITECTURES.items() if name.startswith(prefix))
        return _ARCHITECTURES[""] | found

    @property
    def shared_memory(self) -> int:
        """Bytes of shared memory that one block of threads may use; 0 where the catalog does not say."""
        return self._architecture["shared"]

    @property
    def threads(self) -> int:
        """The most threads that are resident on one multiprocessor."""
        return self._architecture["threads"]

    @property
    def flash(self) -> bool:
        """Whether PyTorch has a flash attention kernel for it."""
        return self._architecture["flash"]

    @property
    def cublas_workspace(self) -> int:
        """Default bytes of one cuBLAS or hipBLAS workspace; NVIDIA's larger one where the capability is unknown."""
        return self._architecture["cublas"]

    @property
    def lt_workspace(self) -> int:
        """Default bytes of one hipBLASLt workspace; 0 of NVIDIA's, whose cuBLASLt has cuBLAS's."""
        return self._architecture["lt"]

    def flops(self, compute: str) -> int:
        """FLOP/s of matrix products in that data type: `fp32`, or one of 16 bits."""
        return self.fp32_flops if compute == "fp32" else self.bf16_flops

    def ring(self, gpus: int, apart: int = 1) -> int:
        """Bytes per second that each of `gpus` GPUs sends in a ring collective: the rate of the slowest link on the ring.

        Within a node that is `peer_link`, or the host's where there is none, or where the ring is longer than a bridge reaches.
        Across nodes several rings run at once, each over another member's network card: their rates add up.

        Args:
            apart: the distance between members: 1 for neighbors, G for replicas of G GPUs each.

        Raises:
            ValueError: where the ring spans several nodes and the network's rate is unknown.
        """
        within = self.peer_link or self.host_link
        if self.bridged and gpus > 1 and gpus * apart > self.bridged:
            within = min(self.peer_link, self.host_link)
        if gpus * apart <= self.node or gpus == 1:
            return within
        if not self.network:
            raise ValueError(
                f"Gpu.network: 0 of the {self.name}, so that nothing says what leaving a node of {self.node} GPUs costs in time; "
                f"allowed: up to {self.node} GPUs, or a Gpu(network=..., node=...) of your own"
            )
        return min(within, max(1, self.node // apart) * self.network)


@cache
def gpus() -> dict[str, Gpu]:
    """Every GPU of the catalog, by name, in the catalog's order."""
    return {name: Gpu(name=name, **_in_bytes(entry)) for name, entry in files.entries(__package__, "gpus.toml").items()}


def gpu(name: str) -> Gpu:
    """The catalog's GPU of that name.

    Raises:
        ValueError: where there is none; the message names near matches.
    """
    checks.one_of("gpu", "name", name, gpus())
    return gpus()[name]
