"""Runs of Megatron-LM with bytes recorded in its own tests, compared with a dry run of one GPU's part.

Megatron's functional tests train models on eight GPUs and compare PyTorch's allocated bytes with recorded values: after a step,
and at most. Configuration and record of each test are side by side in its repository.
"""

from dataclasses import dataclass
from functools import lru_cache, partial

from ..answers.throughput import GPT as MODEL
from ..ask.setup import Setup
from ..catalog import Model
from ..common.tables import Table

#: The address of configurations and records, read on 2026-11-22.
SOURCE = "github.com/NVIDIA/Megatron-LM, tests/functional_tests/test_cases/gpt"


@dataclass(frozen=True)
class Run:
    """A run on eight H100: bf16, the distributed optimizer, accumulated fp32 gradients, dropout of 0.1, no checkpointing.

    Attributes:
        test: its folder. commit: of the record. batch: sequences of 8,192 in a micro-batch.
        tensor: GPUs that share a matrix. vocabulary: padded to 128 times `tensor`.
        owned: blocks of the last GPU, which records; it has no embedding where it is one stage of several.
        in_flight: blocks whose activations it has when its first backward begins.
        standing, most: bytes after a step, and at most, as recorded.
    """

    test: str
    commit: str
    batch: int
    tensor: int
    vocabulary: int
    owned: int
    in_flight: int
    standing: int
    most: int

    @property
    def embeds(self) -> bool:
        """Whether the GPU has the embedding, as it does with all blocks."""
        return self.owned == MODEL.layers

    @property
    def name(self) -> str:
        """A short description."""
        how = f"tensor {self.tensor}" if self.embeds else "pipeline 4, interleaved, 1 block each"
        return f"{MODEL.name}, 8 GPUs, {how}, {self.batch} × 8,192"


#: The last of four stages of eight chunks warms up with (8 - 1) · 4 chunks, then runs one more before a backward:
#: `get_pp_rank_microbatches` of Megatron's `core/pipeline_parallel/schedules.py`.
RUNS = (
    Run("gpt3_7b_tp4_pp1_memory_speed", "09eb91e5", 2, 4, 131_584, 32, 32, 20_663_519_232, 57_143_791_616),
    Run("gpt3_7b_tp1_pp4_memory_speed", "070712a0", 1, 1, 131_200, 8, 29, 24_540_168_192, 60_518_293_504),
)
#: Bytes of a parameter: bf16 and its fp32 gradient on each GPU; fp32 weights and Adam's two states over two GPUs.
BYTES = 2 + 4 + 12 // 2


def gpt(model: Model, layers: int, tensor: int, vocabulary: int, embeds: bool):
    """A function that makes one GPU's part of Megatron's GPT, for `dry_run`. Its inputs are tokens and labels, or a stage's input.

    Matrices are divided by `tensor`; norms, positions and what is added to the residual stream are not, as there is no
    sequence parallelism. Collectives add up in place. Source: Megatron-LM, `core/models/gpt/gpt_model.py`,
    `core/transformer/transformer_layer.py`, `core/fusions`, `core/tensor_parallel/cross_entropy.py`.

    Args:
        layers: number of blocks. embeds: whether it begins with the embedding; else its input is `stream`, a float tensor
            (batch, sequence, width).
    """
    from .models import GPTPart

    return partial(GPTPart, model, layers, tensor, vocabulary, embeds)


@lru_cache
def predicted(run: Run) -> tuple[int, int]:
    """(bytes after a step, bytes at most) of a run: states from `BYTES`, the rest from a dry run of its own code."""
    import torch

    from ..dryrun import dry_run

    with torch.device("meta"):
        weights = sum(p.numel() for p in gpt(MODEL, run.owned, run.tensor, run.vocabulary, run.embeds)().parameters())
    tokens = (run.batch, MODEL.positions), torch.int64
    stream = (run.batch, MODEL.positions, MODEL.width), torch.bfloat16
    batch = {"labels": tokens} | ({"tokens": tokens} if run.embeds else {"stream": stream})
    made = gpt(MODEL, run.in_flight, run.tensor, run.vocabulary, run.embeds)
    setup = Setup(batch=run.batch, sequence=MODEL.positions, precision="bf16", optimizer="sgd")
    trace = dry_run(made, setup, batch=batch, rounding=512)
    return BYTES * weights, BYTES * weights + trace.peak - trace.parts["parameters"]


def table() -> Table:
    """A table of the recorded runs: predicted and recorded GiB after a step and at most, and the difference at most."""
    rows = []
    for run in RUNS:
        standing, most = predicted(run)
        numbers = (f"{x / 2**30:.2f}" for x in (standing, run.standing, most, run.most))
        rows.append([run.test, run.name, *numbers, f"{most / run.most - 1:+.1%}"])
    columns = ("test", "run", "after a step", "recorded", "at most", "recorded", "difference")
    return Table(columns, rows, f"Recorded: {SOURCE}. GiB that PyTorch allocated, on the last GPU")
