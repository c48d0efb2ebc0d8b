"""Triton's kernels and a CUDA graph, as somebody else writes them; prints what each takes as JSON."""

import json

import torch
import triton
import triton.language as tl

NUMBERS = 4096


@triton.jit
def described(x, y, rows: tl.constexpr):
    """A tensor's descriptor that is made on the GPU: 128 bytes of scratch a program."""
    to = tl.make_tensor_descriptor(y, [rows, 256], [256, 1], [1, 256])
    to.store([tl.program_id(0), 0], tl.load(x + tl.arange(0, 256))[None, :])


@triton.autotune(
    [triton.Config({"block": 2**k}, num_warps=warps) for k, warps in ((12, 64), (7, 4), (8, 4))], key=["n"]
)
@triton.jit
def tuned(x, y, n, block: tl.constexpr):
    at = tl.program_id(0) * block + tl.arange(0, block)
    tl.store(y + at, tl.load(x + at, mask=at < n) * 2, mask=at < n)


def requested(what):
    return torch.cuda.memory_stats()[f"requested_bytes.all.{what}"]


def scratch(size, alignment, stream):
    asked.append(size)
    return torch.empty(size, dtype=torch.int8, device="cuda")


found, asked = {}, []
triton.set_allocator(scratch)
x = torch.zeros(NUMBERS, device="cuda")
y = torch.empty_like(x)
kernel = described[(16,)](x, y, 16)
found |= {"scratch": asked, "registers": kernel.n_regs}

before = requested("current")
for _ in range(2):  # the second time it knows
    tuned[lambda how: (triton.cdiv(NUMBERS, how["block"]),)](x, y, NUMBERS)
found |= {
    "buffer": requested("peak") - before,
    "left": requested("current") - before,
    "block": tuned.best_config.kwargs["block"],
}

try:
    described[(16,)](torch.zeros(NUMBERS), y, 16)
except ValueError as error:
    found["not the GPU's"] = str(error)

graph, empty = torch.cuda.CUDAGraph(), torch.cuda.memory_allocated()
with torch.cuda.graph(graph):
    z = (x * 2).sin()
    described[(16,)](x, z, 16)
graph.replay()
found["graph"] = torch.cuda.memory_allocated() - empty
try:
    with torch.cuda.graph(torch.cuda.CUDAGraph()):
        x.sum().item()
except RuntimeError as error:
    found["read in a capture"] = str(error.__context__).splitlines()[0]
print("FOUND", json.dumps(found))
