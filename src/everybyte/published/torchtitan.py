"""Runs of torchtitan with published memory, compared with a dry run of their code."""

from dataclasses import dataclass
from functools import lru_cache, partial

from ..ask.mesh import Mesh
from ..ask.setup import Setup
from ..catalog import model as find_model
from ..common import checks
from ..common.tables import Table

#: The address of six tables of GiB that the allocator reserved at most, on H100 of 96 GB.
SOURCE = "github.com/pytorch/torchtitan, benchmarks/llama3_h100_202412_torchtitan.md"
#: torchtitan's allocator settings, from `run_llama_train.sh`.
CONFIGURATION = "expandable_segments:True"
#: Bytes of that H100 that a process sees: the vendor's 96 GB without the driver's own.
MEMORY = 95 * 2**30


@dataclass(frozen=True)
class Run:
    """A published run.

    Attributes:
        table: its number there. model: its name. setup: with FSDP as in torchtitan.
        recompute: `every second product` or `blocks`. gib: published reserved memory at most.
        compiled: whether blocks ran through torch.compile, with products in fp8.
        own: whether torchtitan's model code is run; else, where matrices are divided, the book's Llama.
    """

    table: int
    model: str
    setup: Setup
    recompute: str
    gib: float
    compiled: bool = False
    own: bool = True

    @property
    def name(self) -> str:
        """A short description."""
        setup = self.setup
        how = ", compiled, fp8" if self.compiled else ""
        tensor = f", tensor {setup.mesh.tensor}" if setup.mesh.tensor > 1 else ""
        shape = f"{setup.gpus} GPUs{tensor}, {setup.batch} × {setup.sequence:,}"
        return f"{self.model}, {shape}, recomputes {self.recompute}{how}"


_FSDP = Setup(batch=2, sequence=8192, precision="bf16-mixed", sharding="zero3", gpus=8)
RUNS = (
    Run(1, "llama-3.1-8b", _FSDP, "every second product", 82.4),
    Run(3, "llama-3.1-8b", _FSDP.replace(gpus=128), "every second product", 67.0),
    Run(2, "llama-3.1-8b", _FSDP.replace(batch=1, sequence=32768), "blocks", 83.9, compiled=True),
    Run(
        4, "llama-3.1-70b", _FSDP.replace(batch=16, gpus=256, mesh=Mesh(tensor=8), checkpointing="full"), "blocks", 71.9,
        compiled=True, own=False,
    ),
)  # fmt: skip


def llama(name: str, recompute: str, sequence: int):
    """A function that makes torchtitan's Llama with a catalog model's dimensions, for `dry_run` and `derive`; inputs: tokens, labels.

    It differs from the book's: rotary embeddings by complex numbers in fp32, repeated key and value heads, logits cast to fp32
    for the loss, an untied head, and checkpoints that save every second matrix product.

    Args:
        recompute: `nothing`, `blocks`, or `every second product`: all but attention and every second product.
    """
    checks.one_of("llama", "recompute", recompute, ("nothing", "blocks", "every second product"))
    from .models import Llama

    return partial(Llama, find_model(name, "reference").replace(tied=False), recompute, sequence)


@lru_cache
def reserved(run: Run) -> tuple[int, int]:
    """(live bytes, reserved bytes) at most, from a dry run of the run's own code, played through an H100's allocator."""
    import torch

    from ..dryrun import dry_run

    if run.own:
        shape = (run.setup.batch, run.setup.sequence), torch.int64
        made = llama(run.model, run.recompute, run.setup.sequence)
        trace = dry_run(made, run.setup, batch={"tokens": shape, "labels": shape})
    else:
        trace = dry_run(find_model(run.model, "reference"), run.setup)
    played = trace.on("h100-80gb", CONFIGURATION, MEMORY, whole=False)
    return played.allocated, played.reserved


def table() -> Table:
    """A table of the published runs: reserved memory of a dry run, published memory, and the difference."""
    rows = []
    for run in RUNS:
        live, held = (size / 2**30 for size in reserved(run))
        numbers = (f"{live:.1f}", f"{held:.1f}", f"{run.gib:.1f}", f"{held / run.gib - 1:+.1%}")
        rows.append([run.table, run.name, "its own" if run.own else "the book's", *numbers])
    columns = ("table", "run", "code", "live, GiB", "reserved, GiB", "published", "difference")
    return Table(columns, rows, f"Published: {SOURCE}. Reserved: a dry run, played through the allocator")
