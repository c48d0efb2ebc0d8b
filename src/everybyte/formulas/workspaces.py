"""What kernels take for themselves: memory that CUDA's allocator counts and no tensor of the step is.

Each term is what the source of the kernel says, in the book's letters, under its assumptions. None is measured yet, so
the budget counts 0 for each (`COUNTED`), and what a GPU shows above the budget stays in the open until then.
"""

from sympy import Integer, Max, Min, Piecewise, ceiling, floor

from ..catalog import Gpu, Model
from ..setup import Setup
from ..tables import Table
from .registry import Formula, register
from .symbols import (
    A,
    B,
    D,
    F,
    H,
    S,
    V,
    dropped,
    eager,
    ffn_bias,
    half,
    multiprocessors,
    norm_bias,
    out_bias,
    qkv_bias,
    splits,
    w,
)  # fmt: skip

#: Bytes that the budget counts for all of them, and why.
COUNTED, WHY = 0, "not measured: 0"
_CHAPTER = "17_the_step"
#: Of each term: while what it lives.
WHEN: dict[str, str] = {}


def _register(item, title, when, expr, *assumptions, source):
    name = f"workspace.{item}"
    WHEN[name] = when
    notes = (*assumptions, "read in the source and not measured on a GPU yet: the budget counts 0")
    return register(name, title, expr, "B", source=source, chapter=_CHAPTER, assumptions=notes)


def _up(number, multiple):
    return multiple * ceiling(number / multiple)


_HANDLES = "PyTorch 2.13, aten/src/ATen/cuda/CublasHandlePool.cpp"
#: cuBLAS's default workspace: on Hopper and Blackwell, and elsewhere (two buffers of 4 MiB, eight of 16 KiB).
LARGE, SMALL = 32 * 2**20, 2 * 4096 * 2**10 + 8 * 16 * 2**10
CUBLAS = _register(
    "cublas", "cuBLAS, a workspace for forward's thread and one for backward's", "always, from the first product on",
    Integer(2 * LARGE), "Hopper or Blackwell; on other GPUs 2 of 8,519,680 bytes",
    "CUBLAS_WORKSPACE_CONFIG is not set", source=f"{_HANDLES}, parseChosenWorkspaceSize",
)  # fmt: skip
CUBLASLT = _register(
    "cublaslt", "cuBLASLt, for products with a bias", "always, from the first such product on", Integer(0),
    "it shares cuBLAS's: TORCH_CUBLASLT_UNIFIED_WORKSPACE is not switched off",
    source=f"{_HANDLES}, getCUDABlasLtWorkspace",
)  # fmt: skip

#: The kernel's heads: padded to whole tiles of 32, above 128 of 64.
_head = Piecewise((_up(D, 32), D <= 128), (_up(D, 64), True))
FLASH = _register(
    "flash_backward", "flash attention's backward: the query's gradient and the row sums, in fp32",
    "backward of one attention", 4 * half * (1 - eager) * B * A * _up(S, 128) * (_head + 1),
    "16 bits; as many key heads as query heads; deterministic algorithms are off",
    source="PyTorch, aten/src/ATen/native/transformers/cuda/flash_attn/flash_api.cpp, mha_bwd: dq_accum, softmax_d",
)  # fmt: skip
EFFICIENT = _register(
    "efficient_backward", "memory-efficient attention's backward: a product, its row sums, the query's gradient",
    "backward of one attention",
    4 * (1 - half) * (1 - eager) * B * A * (S * D + S + _up(S, 64) * _up(D, 64)),
    "fp32; tiles of 64 by 64, whose 16 bytes of counters each are left out",
    source="PyTorch, mem_eff_attention/kernel_backward.h (kKernelComputesDelta, workspace_size) and attention_backward.cu",
)  # fmt: skip

_rows = Min(floor(64 * 1024 / 2 / ceiling(H / 32)), ceiling(B * S / 32))
NORM = _register(
    "norm_backward", "layer norm's backward: partial sums of the weight's and the bias's gradients",
    "backward of one norm", Piecewise(((1 + norm_bias) * w * _rows * H, B * S > 64 * 1024), (0, True)),
    "H/32 is under half of the GPU's multiprocessors: wider norms take nothing",
    source="PyTorch, aten/src/ATen/native/cuda/layer_norm_kernel.cu, LaunchGammaBetaBackwardCUDAKernel",
)  # fmt: skip

_segments = Min(B * S, V)
_partial = floor(B * S / 10) + _segments
EMBEDDING = _register(
    "embedding_backward", "the token table's backward: sorted tokens, their places, partial sums in fp32",
    "the end of backward",
    Piecewise((8 * (3 * B * S + 2 * _segments + _partial) + 4 * H * _partial, B * S > 3072), (0, True)),
    "int64 tokens, no padding index",
    source="PyTorch, aten/src/ATen/native/cuda/Embedding.cu and EmbeddingBackwardKernel.cu",
)  # fmt: skip

_passes = Piecewise((1, V <= 2**8), (2, V <= 2**16), (3, True))
SORT = _register(
    "embedding_sort", "CUB's sort of the tokens: second copies, counts of each digit, states of its tiles",
    "the end of backward",
    Piecewise((16 * B * S + 2048 * _passes + 1024 * ceiling(B * S / 4608) + 511, B * S > 3072), (0, True)),
    "tiles of 4,608 pairs of int64: inferred from one number, 137,727 bytes of 8,192 tokens on a Hopper, not read", "the two scans after it take 1,279 bytes each of 8,192 tokens, and are left out",
    source="CUB, device/dispatch/dispatch_radix_sort.cuh, InvokeOnesweep; PyTorch, Embedding.cu",
)  # fmt: skip


def summed(outputs, rows):
    """Bytes of the buffer in which blocks of threads meet that sum rows of so many numbers, and of their semaphores.

    With less than 1,021 rows, one block sums a column by itself.
    """
    values, grid = ceiling(rows / 4), ceiling(outputs / 128)
    blocks = Max(Min(ceiling(16 * multiprocessors / grid), ceiling(values / 16)), ceiling(values / 256))
    return Piecewise((4 * outputs * blocks * 128 + 4 * grid, rows > 1020), (0, True))


_REDUCE = "PyTorch, aten/src/ATen/native/cuda/Reduce.cuh, setReduceConfig, global_memory_size and semaphore_size"
_THREADS = "2,048 threads a multiprocessor, as on Hopper; rows of 128 numbers or more, a multiple of four"
_layers = [(qkv_bias, 3 * H), (out_bias, H), (ffn_bias, F), (ffn_bias, H)]
BIAS = _register(
    "bias_gradient", "the sum over rows that a bias's gradient is: where blocks of threads meet, and their semaphores",
    "one bias's gradient", Max(*(there * summed(outputs, B * S) for there, outputs in _layers)),
    _THREADS, "a GPT's block, the largest of its four", source=_REDUCE,
)  # fmt: skip
NORM_SUMS = _register(
    "norm_sums", "layer norm's backward: the sums of those partial sums",
    "backward of one norm", Piecewise((summed(H, _rows), B * S > 64 * 1024), (0, True)), _THREADS, source=_REDUCE,
)  # fmt: skip
SPLIT = _register(
    "flash_split", "flash attention's forward where keys are cut into parts: each part's output and row sums, in fp32",
    "one attention", 4 * half * (1 - eager) * (1 - dropped) * Min(splits - 1, 1) * splits * B * A * S * (_head + 1),
    "16 bits; `flash_splits` says how many parts, by the number of multiprocessors",
    source="PyTorch, aten/src/ATen/native/transformers/cuda/flash_attn/flash_api.cpp, set_params_splitkv",
)  # fmt: skip
RANDOM = _register(
    "flash_dropout", "flash attention's forward with dropout: the state of its random numbers, once more",
    "one attention", 16 * half * (1 - eager) * dropped, "16 bits",
    source="PyTorch, aten/src/ATen/native/transformers/cuda/flash_attn/flash_api.cpp, mha_fwd",
)  # fmt: skip

TERMS: tuple[Formula, ...] = (
    CUBLAS, CUBLASLT, FLASH, SPLIT, RANDOM, EFFICIENT, BIAS, NORM, NORM_SUMS, EMBEDDING, SORT,
)  # fmt: skip
#: An H200's.
MULTIPROCESSORS = 132


def flash_splits(model: Model, setup: Setup, multiprocessors: int = MULTIPROCESSORS) -> int:
    """Into how many parts flash attention cuts the keys, so that few heads and sequences keep all multiprocessors at work.

    Source: PyTorch, flash_api.cpp, `num_splits_heuristic`.
    """
    width = model.head_width
    slots, tiles = 2 * multiprocessors, setup.batch * model.heads * -(-setup.sequence // 64)
    parts = -(-setup.sequence // (256 if width <= 64 else 128 if width <= 128 else 64))
    if setup.dropout or tiles >= 0.8 * slots:
        return 1
    able = [n for n in range(1, min(128, slots, parts) + 1) if n == 1 or -(-parts // n) != -(-parts // (n - 1))]
    busy = {n: tiles * n / slots / -(-tiles * n // slots) for n in able}
    return next(n for n in able if busy[n] >= 0.85 * max(busy.values()))


def cublas(gpu: Gpu) -> int:
    """Bytes of one cuBLAS or hipBLAS workspace by default, by the GPU's architecture."""
    if gpu.capability.startswith("gfx"):
        return (128 if gpu.capability.startswith(("gfx94", "gfx95")) else 32) * 2**20
    return LARGE if gpu.capability.partition(".")[0] in ("9", "10", "12") else SMALL


def said(model: Model, setup: Setup, gpu: Gpu | None = None) -> dict[str, int]:
    """What the sources say, in bytes, of each term: its name without `workspace.`. `gpu`: by default an H200."""
    number = getattr(gpu, "multiprocessors", 0) or MULTIPROCESSORS
    more = {"multiprocessors": number, "splits": flash_splits(model, setup, number)}
    found = {term.name.partition(".")[2]: int(term.at(model, setup, **more)) for term in TERMS}
    return found | ({"cublas": 2 * cublas(gpu)} if gpu else {})


def table(model: Model, setup: Setup, gpu: Gpu | None = None) -> Table:
    """Each term: when it lives, what the budget counts, and what its source says, in bytes."""
    says = said(model, setup, gpu)
    rows = [[t.title, WHEN[t.name], WHY, says[t.name.partition(".")[2]]] for t in TERMS]
    return Table(["what a kernel takes for itself", "while", "counted", "its source says (B)"], rows)
