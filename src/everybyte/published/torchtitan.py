"""Runs whose makers published the memory that they took, in their own model code and switches: what a dry run says of them."""

from collections import Counter
from dataclasses import dataclass
from functools import lru_cache

from ..ask.mesh import Mesh
from ..ask.setup import Setup
from ..catalog import model as find_model
from ..common import checks
from ..common.tables import Table

#: Where the figures stand: six tables of GiB that the allocator reserved at most, on H100 of 96 GB.
SOURCE = "github.com/pytorch/torchtitan, benchmarks/llama3_h100_202412_torchtitan.md"
#: How torchtitan starts a run: `run_llama_train.sh`.
CONFIGURATION = "expandable_segments:True"
#: Bytes of that H100, as a process finds them: 96 GB of the vendor's, less what the driver keeps.
MEMORY = 95 * 2**30


@dataclass(frozen=True)
class Run:
    """A published run.

    Attributes:
        table: its number there. model: by name. setup: with FSDP as torchtitan's. recompute: `every second product` or `blocks`.
        gib: reserved at most, as published. compiled: whether blocks ran through torch.compile, and products in fp8.
        own: whether its makers' model code is run; else, where matrices are divided, the book's Llama.
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
        """In words."""
        setup = self.setup
        how = ", compiled, fp8" if self.compiled else ""
        tensor = f", tensor {setup.mesh.tensor}" if setup.mesh.tensor > 1 else ""
        return f"{self.model}, {setup.gpus} GPUs{tensor}, {setup.batch} × {setup.sequence:,}, recomputes {self.recompute}{how}"


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
    """A Llama of the catalog as torchtitan writes it, for `dry_run` and `derive`: a module of tokens and labels that gives the loss.

    What differs from the book's own: rotary embeddings by complex numbers in fp32, key and value heads repeated, the logits
    cast to fp32 for the loss, and checkpoints that keep every second matrix product. Source: torchtitan,
    `torchtitan/models/llama/model.py` and `parallelisms/parallelize_llama.py`, December 2024.

    Args:
        recompute: `nothing`, `blocks`, or `every second product`: all else but that and attention.
    """
    checks.one_of("llama", "recompute", recompute, ("nothing", "blocks", "every second product"))
    import torch
    from torch import nn
    from torch.nn import functional as F
    from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

    model = find_model(name)
    ops = torch.ops.aten
    attends = (
        ops._scaled_dot_product_flash_attention.default,
        ops._scaled_dot_product_efficient_attention.default,
    )

    def linear(wide, narrow):
        return nn.Linear(wide, narrow, bias=False)

    def rotated(x, turns):
        as_complex = torch.view_as_complex(x.float().reshape(*x.shape[:-1], -1, 2))
        return torch.view_as_real(as_complex * turns[None, : x.shape[1], None]).flatten(3).type_as(x)

    class Attention(nn.Module):
        def __init__(self):
            super().__init__()
            heads, keys = model.heads * model.head_width, model.kv_heads * model.head_width
            self.wq, self.wk, self.wv = (linear(model.width, n) for n in (heads, keys, keys))
            self.wo = linear(heads, model.width)

        def repeated(self, x):
            batch, length, heads, width = x.shape
            groups = model.heads // model.kv_heads
            return x[:, :, :, None].expand(batch, length, heads, groups, width).reshape(batch, length, -1, width)

        def forward(self, x, turns):
            batch, length, _ = x.shape
            q, k, v = (layer(x).view(batch, length, -1, model.head_width) for layer in (self.wq, self.wk, self.wv))
            q, k = rotated(q, turns), rotated(k, turns)
            heads = [x.transpose(1, 2) for x in (q, self.repeated(k), self.repeated(v))]
            y = F.scaled_dot_product_attention(*heads, is_causal=True)
            return self.wo(y.transpose(1, 2).contiguous().view(batch, length, -1))

    class FeedForward(nn.Module):
        def __init__(self):
            super().__init__()
            self.w1, self.w3 = linear(model.width, model.ffn_width), linear(model.width, model.ffn_width)
            self.w2 = linear(model.ffn_width, model.width)

        def forward(self, x):
            return self.w2(F.silu(self.w1(x)) * self.w3(x))

    def every_second():
        seen = Counter()

        def policy(context, op, *_, **__):
            if op is ops.mm.default:
                seen[context.is_recompute] += 1
            kept = op in attends or (op is ops.mm.default and seen[context.is_recompute] % 2)
            return CheckpointPolicy.MUST_SAVE if kept else CheckpointPolicy.PREFER_RECOMPUTE

        return create_selective_checkpoint_contexts(policy)

    contexts = {"context_fn": every_second} if recompute == "every second product" else {}

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.attention, self.feed_forward = Attention(), FeedForward()
            self.attention_norm, self.ffn_norm = nn.RMSNorm(model.width), nn.RMSNorm(model.width)

        def run(self, x, turns):
            h = x + self.attention(self.attention_norm(x), turns)
            return h + self.feed_forward(self.ffn_norm(h))

        def forward(self, x, turns):
            if recompute == "nothing":
                return self.run(x, turns)
            return checkpoint(self.run, x, turns, use_reentrant=False, preserve_rng_state=False, **contexts)

    class Llama(nn.Module):
        def __init__(self):
            super().__init__()
            self.tok_embeddings = nn.Embedding(model.vocabulary, model.width)
            self.layers = nn.ModuleList(Block() for _ in range(model.layers))
            self.norm, self.output = nn.RMSNorm(model.width), linear(model.width, model.vocabulary)
            self.register_buffer("turns", torch.empty(sequence, model.head_width // 2, dtype=torch.complex64))

        def forward(self, tokens, labels):
            x = self.tok_embeddings(tokens)
            for layer in self.layers:
                x = layer(x, self.turns)
            logits = self.output(self.norm(x))
            return F.cross_entropy(logits.flatten(0, 1).float(), labels.flatten(0, 1))

    return Llama


@lru_cache
def reserved(run: Run) -> tuple[int, int]:
    """(bytes live, bytes reserved) at most by a dry run of a published run's own code, in segments that grow, on an H100's allocator."""
    import torch

    from ..dryrun import dry_run

    if run.own:
        shape = (run.setup.batch, run.setup.sequence), torch.int64
        made = llama(run.model, run.recompute, run.setup.sequence)
        trace = dry_run(made, run.setup, batch={"tokens": shape, "labels": shape})
    else:
        trace = dry_run(find_model(run.model), run.setup)
    played = trace.on("h100-80gb", CONFIGURATION, MEMORY, whole=False)
    return played.allocated, played.reserved


def table() -> Table:
    """Each published run: what a dry run of its own code reserves, what was published, and the difference."""
    rows = []
    for run in RUNS:
        live, held = reserved(run)
        gib = held / 2**30
        code = "its own" if run.own else "the book's"
        rows.append(
            [
                run.table,
                run.name,
                code,
                f"{live / 2**30:.1f}",
                f"{gib:.1f}",
                f"{run.gib:.1f}",
                f"{gib / run.gib - 1:+.1%}",
            ]
        )
    columns = ("table", "run", "code", "live, GiB", "reserved, GiB", "published", "difference")
    return Table(columns, rows, f"Published: {SOURCE}. Reserved: a dry run, played through the allocator")
