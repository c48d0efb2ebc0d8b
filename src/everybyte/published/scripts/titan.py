"""A training step as torchtitan takes it: Llama 3 or Qwen3 under FSDP2, with tensor and sequence parallelism, in mixed precision.

Said as torchtitan's code has it at the commit of a record: `torchtitan/models`, `torchtitan/train.py`, `parallelize_llama.py`.
What changed with time is an option: norms written out (--norm own, to March 2025), or `nn.RMSNorm`; Adam by lists of tensors
(--adam foreach, to February 2025) or fused; embedding and head as units of their own (--units ends, from July 2025) or the root's.
"""

import argparse
import os
from collections import Counter

import torch
import torch.distributed as dist
from _norms import RMSNorm
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    loss_parallel,
    parallelize_module,
)  # fmt: skip
from torch.nn import functional as F
from torch.utils import checkpoint

try:
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
    from torch.distributed.tensor import Replicate, Shard
except ImportError:  # before PyTorch 2.6
    from torch.distributed._composable.fsdp import MixedPrecisionPolicy, fully_shard
    from torch.distributed._tensor import Replicate, Shard

#: width, blocks, query heads, key heads, head's width, feed-forward's width, vocabulary, whether queries and keys are normed.
MODELS = {
    "debug": (256, 6, 16, 16, 16, 768, 2048, False),
    "llama2-7b": (4096, 32, 32, 32, 128, 11008, 32000, False),
    "8b": (4096, 32, 32, 8, 128, 14336, 128256, False),
    "70b": (8192, 80, 64, 8, 128, 28672, 128256, False),
    "405b": (16384, 126, 128, 8, 128, 53248, 128256, False),
    "qwen3-32b": (5120, 64, 64, 8, 128, 25600, 151936, True),
}
aten = torch.ops.aten
KEPT = (
    aten.mm.default, aten._scaled_dot_product_efficient_attention.default, aten._scaled_dot_product_flash_attention.default,
    torch.ops._c10d_functional.reduce_scatter_tensor.default,
)  # fmt: skip


class ComposedNorm(RMSNorm):
    """`nn.RMSNorm` as PyTorch had it before 2.9, composed of operations: the scale is applied in fp32."""

    def forward(self, x):
        return (self.normed(x) * self.weight).type_as(x)


NORMS = {"own": RMSNorm, "composed": ComposedNorm, "fused": nn.RMSNorm}


def turned_complex(x, turns):  # (B, S, A, D), complex (S, D/2)
    pairs = torch.view_as_complex(x.float().reshape(*x.shape[:-1], -1, 2))
    return torch.view_as_real(pairs * turns[: x.shape[1], None]).flatten(3).type_as(x)


def turned_halves(x, turns):  # (B, S, A, D), (S, 2 D)
    cos, sin = (part.to(x.dtype)[None, :, None] for part in turns[: x.shape[1]].chunk(2, -1))
    left, right = x.chunk(2, -1)
    return x * cos + torch.cat((-right, left), -1) * sin


class Attention(nn.Module):
    def __init__(self, args, norm):
        super().__init__()
        width, _, heads, keys, self.size, _, _, normed = args
        self.groups, self.turned = heads // keys, turned_halves if normed else turned_complex
        self.wq = nn.Linear(width, heads * self.size, bias=False)
        self.wk = nn.Linear(width, keys * self.size, bias=False)
        self.wv = nn.Linear(width, keys * self.size, bias=False)
        self.wo = nn.Linear(heads * self.size, width, bias=False)
        if normed:
            self.q_norm, self.k_norm = norm(self.size), norm(self.size)

    def forward(self, x, turns):
        batch, length = x.shape[:2]
        q, k, v = (layer(x).view(batch, length, -1, self.size) for layer in (self.wq, self.wk, self.wv))
        if hasattr(self, "q_norm"):
            q, k = self.q_norm(q), self.k_norm(k)
        q, k = self.turned(q, turns), self.turned(k, turns)
        q, k, v = (t.transpose(1, 2) for t in (q, self.repeated(k), self.repeated(v)))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.wo(y.transpose(1, 2).contiguous().view(batch, length, -1))

    def repeated(self, x):
        if self.groups == 1:
            return x
        batch, length, keys, size = x.shape
        wide = x[:, :, :, None].expand(batch, length, keys, self.groups, size)
        return wide.reshape(batch, length, keys * self.groups, size)


class FeedForward(nn.Module):
    def __init__(self, width, ffn):
        super().__init__()
        self.w1, self.w3 = nn.Linear(width, ffn, bias=False), nn.Linear(width, ffn, bias=False)
        self.w2 = nn.Linear(ffn, width, bias=False)

    def forward(self, x):
        return self.w2(F.silu(self.w1(x)) * self.w3(x))


class Block(nn.Module):
    def __init__(self, args, norm):
        super().__init__()
        self.attention, self.feed_forward = Attention(args, norm), FeedForward(args[0], args[5])
        self.attention_norm, self.ffn_norm = norm(args[0]), norm(args[0])

    def forward(self, x, turns):
        x = x + self.attention(self.attention_norm(x), turns)
        return x + self.feed_forward(self.ffn_norm(x))


class Transformer(nn.Module):
    def __init__(self, args, norm, length):
        super().__init__()
        width, blocks, _, _, size, _, vocabulary, normed = args
        self.embed = nn.Embedding(vocabulary, width)
        turns = torch.empty(length, 2 * size) if normed else torch.empty(length, size // 2, dtype=torch.complex64)
        self.register_buffer("turns", turns)
        self.layers = nn.ModuleList(Block(args, norm) for _ in range(blocks))
        self.norm, self.output = norm(width), nn.Linear(width, vocabulary, bias=False)
        self.wide = False

    def forward(self, tokens):
        x = self.embed(tokens)
        for block in self.layers:
            x = block(x, self.turns)
        logits = self.output(self.norm(x))
        return logits.float() if self.wide else logits


def divide(model, mesh):
    """Tensor and sequence parallelism, and a loss of divided logits: torchtitan's plan."""
    ends = {
        "embed": RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(1)),
        "norm": SequenceParallel(),
        "output": ColwiseParallel(input_layouts=Shard(1), output_layouts=Shard(-1), use_local_output=False),
    }
    parallelize_module(model, mesh, ends)
    inside = {
        "attention_norm": SequenceParallel(),
        "attention": PrepareModuleInput(input_layouts=(Shard(1), None), desired_input_layouts=(Replicate(), None)),
        "attention.wo": RowwiseParallel(output_layouts=Shard(1)),
        "ffn_norm": SequenceParallel(),
        "feed_forward": PrepareModuleInput(input_layouts=(Shard(1),), desired_input_layouts=(Replicate(),)),
        "feed_forward.w2": RowwiseParallel(output_layouts=Shard(1)),
    }
    if hasattr(model.layers[0].attention, "q_norm"):
        norms = ("attention.q_norm", "attention.k_norm")
        inside |= {name: SequenceParallel(sequence_dim=2, use_local_output=True) for name in norms}
    columns = ("attention.wq", "attention.wk", "attention.wv", "feed_forward.w1", "feed_forward.w3")
    for block in model.layers:
        parallelize_module(block, mesh, inside | {name: ColwiseParallel() for name in columns})


def every_second_product():
    """Contexts of a checkpoint that keeps attention, what a reduce-scatter gave, and every second matrix product."""
    seen = Counter()

    def kept(again, op):
        if op is aten.mm.default:
            seen[again] += 1
        return op in KEPT and not (op is aten.mm.default and seen[again] % 2 == 0)

    def policy(context, op, *_, **__):
        kinds = checkpoint.CheckpointPolicy
        return kinds.MUST_SAVE if kept(context.is_recompute, op) else kinds.PREFER_RECOMPUTE

    if hasattr(checkpoint, "CheckpointPolicy"):
        return checkpoint.create_selective_checkpoint_contexts(policy)
    before_2_5 = checkpoint._pt2_selective_checkpoint_context_fn_gen
    return before_2_5(lambda mode, op, *_, **__: kept(mode, op))


def recompute(model, how):
    """`full`, `op` (every second product), `none`, or a number: every so many blocks."""
    for i, block in enumerate(model.layers, 1):
        if how == "op":
            model.layers[i - 1] = checkpoint_wrapper(block, context_fn=every_second_product, preserve_rng_state=False)
        elif how == "full" or (how.isdigit() and i % int(how) == 0):
            model.layers[i - 1] = checkpoint_wrapper(block, preserve_rng_state=False)


def shard(model, mesh, given):
    """FSDP2 as torchtitan has it. To July 2025 a PyTorch of then left the root's weights whole after forward, whatever it was told."""
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    settings, never, always = {"mesh": mesh, "mp_policy": policy}, given.reshard == "never", given.reshard == "always"
    ends = given.units == "ends"
    if ends:
        fully_shard(model.embed, **settings, reshard_after_forward=not never)
    for i, block in enumerate(model.layers):
        last = i == len(model.layers) - 1
        fully_shard(block, **settings, reshard_after_forward=always or not (never or (last and not ends)))
    if ends:
        fully_shard([model.norm, model.output], **settings, reshard_after_forward=always)
    fully_shard(model, **settings, reshard_after_forward=False)


def loss_of(logits, labels):
    return F.cross_entropy(logits.flatten(0, 1).float(), labels.flatten(0, 1))


def in_chunks(chunks):
    """The loss over so many parts of the sequence, as torchtitan's commit e23bb707 has it."""

    def loss(logits, labels):
        parts = zip(list(logits.chunk(chunks, dim=1)), list(labels.chunk(chunks, dim=1)), strict=True)
        total = 0.0
        for some, wanted in parts:
            total += loss_of(some, wanted)
        return total / chunks

    return loss


def built(given, mesh):
    args = MODELS[given.model]
    with torch.device("meta"):
        model = Transformer(args, NORMS[given.norm], given.sequence)
    if given.tensor > 1:
        divide(model, mesh["tensor"])
    model.wide = given.kept
    recompute(model, given.recompute)
    if given.compile:
        for i, block in enumerate(model.layers):
            model.layers[i] = torch.compile(block, fullgraph=True)
    shard(model, mesh["data"], given)
    model.to_empty(device="cuda")
    return model


def options():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", choices=MODELS, default="8b")
    for name, default in (("batch", 1), ("sequence", 8192), ("tensor", 1), ("chunks", 1), ("steps", 2)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--recompute", default="op")
    parser.add_argument("--reshard", choices=("default", "always", "never"), default="default")
    parser.add_argument("--norm", choices=NORMS, default="fused")
    parser.add_argument("--units", choices=("root", "ends"), default="ends")
    parser.add_argument("--adam", choices=("foreach", "fused"), default="fused")
    parser.add_argument(
        "--kept", action="store_true", help="fp32 logits are the model's, and kept in backward (to October 2024)"
    )
    parser.add_argument("--compile-loss", action="store_true", help="the loss by torch.compile too (from April 2025)")
    parser.add_argument("--compile", action="store_true", help="each block by torch.compile")
    return parser.parse_args()


def main():
    given = options()
    dist.init_process_group("nccl")
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    torch.backends.cuda.enable_cudnn_sdp(
        False
    )  # torchtitan asks for FlashAttention first, as PyTorch did before it had the choice
    shape = (dist.get_world_size() // given.tensor, given.tensor)
    mesh = init_device_mesh("cuda", shape, mesh_dim_names=("data", "tensor"))
    model = built(given, mesh)
    adam = torch.optim.AdamW(model.parameters(), lr=3e-4, **{given.adam: True})
    loss_fn = in_chunks(given.chunks) if given.chunks > 1 else loss_of
    if given.compile_loss:
        loss_fn = torch.compile(loss_fn)
    for _ in range(given.steps):
        tokens = torch.zeros(given.batch, given.sequence, dtype=torch.int64).to("cuda")
        labels = torch.zeros(given.batch, given.sequence, dtype=torch.int64).to("cuda")
        adam.zero_grad()
        with loss_parallel() if given.tensor > 1 else torch.enable_grad():
            logits = model(tokens)
            loss = loss_fn(logits, labels)
            if not given.kept:
                del logits
            loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0, foreach=True)
        adam.step()


main()
