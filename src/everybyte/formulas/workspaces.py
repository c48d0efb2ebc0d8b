"""What kernels take for themselves: memory that CUDA's allocator counts and no tensor of the step is.

Each term is what the source of the kernel says, in the book's letters, under its assumptions. None is measured yet, so
the budget counts 0 for each (`COUNTED`), and what a GPU shows above the budget stays in the open until then.
"""

from functools import cache

from sympy import Integer, Max, Min, Piecewise, ceiling, floor

from ..ask.setup import Setup
from ..catalog import Gpu, Model
from ..common.tables import Table
from .registry import Formula, register
from .symbols import (
    A,
    A_kv,
    B,
    D,
    E,
    E_t,
    F,
    H,
    S,
    V,
    dropped,
    eager,
    ffn_bias,
    fp16,
    grouped,
    half,
    multiprocessors,
    norm_bias,
    out_bias,
    qkv_bias,
    queries,
    splits,
    threads,
    tile,
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
    "16 bits; deterministic algorithms are off",
    source="PyTorch, aten/src/ATen/native/transformers/cuda/flash_attn/flash_api.cpp, mha_bwd: dq_accum, softmax_d",
)  # fmt: skip
#: Whether some query heads share a key head: 1 or 0.
_shared = Min(A - A_kv, 1)
GROUPED_HEADS = _register(
    "flash_heads", "flash attention's backward with grouped heads: keys' and values' gradients for every query head",
    "backward of one attention", 2 * 2 * half * (1 - eager) * _shared * B * S * A * D,
    "16 bits; they are added up into those of the key heads at its end",
    source="PyTorch, aten/src/ATen/native/transformers/cuda/flash_attn/flash_api.cpp, mha_bwd: dk_expanded, dv_expanded",
)  # fmt: skip
#: Its row sums: in the layout of the output, and again in the one that the kernel reads, where these differ.
_deltas = 4 * B * A * S
EFFICIENT = _register(
    "efficient_backward", "memory-efficient attention's backward: a product and its row sums; then the query's gradient in tiles",
    "backward of one attention",
    (1 - half) * (1 - eager) * (1 - _shared) * Max(
        4 * B * A * S * D + _deltas * (1 + Min(A - 1, 1)),
        _deltas + B * A * ceiling(S / queries) * ceiling(D / 64) * (4 * 64 * queries + 16),
    ),
    "fp32, as many key heads as query heads: others take the math kernel; queries in tiles of 64, or of 128 where heads are wider than 64 and a block has 163 KiB of shared memory",
    source="PyTorch, mem_eff_attention/kernel_backward.h (kKernelComputesDelta, workspace_size) and attention_backward.cu",
)  # fmt: skip

_rows = Min(floor(64 * 1024 / 2 / ceiling(H / 32)), ceiling(B * S / 32))
#: Many rows, of numbers too few to keep half of the multiprocessors at work.
_tall = (B * S > 64 * 1024) & (floor(H / 32) < floor(multiprocessors / 2))
NORM = _register(
    "norm_backward", "layer norm's backward: partial sums of the weight's and the bias's gradients, and one of these twice",
    "backward of one norm", Piecewise(((1 + norm_bias) * w * _rows * H + w * H, _tall), (0, True)),
    source="PyTorch, aten/src/ATen/native/cuda/layer_norm_kernel.cu, LaunchGammaBetaBackwardCUDAKernel",
)  # fmt: skip

_sorted = B * S > 3072
_segments = Min(B * S, V)
_partial = floor(B * S / 10) + _segments
#: Blocks of threads that would add up the partial sums.
_blocks = ceiling(_segments * _up(H, 32) / Min(_up(H, 32), 1024))
_fused = (_blocks < 4 * multiprocessors) & (_partial > 4 * _blocks)
_EMBEDDING = "PyTorch, aten/src/ATen/native/cuda/Embedding.cu and EmbeddingBackwardKernel.cu"
EMBEDDING = _register(
    "embedding_backward", "the token table's backward: sorted tokens, their places, partial sums in fp32",
    "the end of backward",
    Piecewise(
        (8 * (3 * B * S + 2 * _segments + 2 * _partial) + 16, _sorted & _fused),
        (8 * (3 * B * S + 2 * _segments + _partial) + 16 + 4 * H * _partial, _sorted),
        (0, True),
    ),
    "int64 tokens, no padding index", "few rows of many tokens have no partial sums: under four blocks of threads a "
    "multiprocessor, and over four parts a block, as rehearsals of PyTorch 2.13 show", source=_EMBEDDING,
)  # fmt: skip

_passes = Piecewise((1, V < 2**8), (2, V < 2**16), (3, True))
_copies = Piecewise((0, V < 2**8), (2 * _up(8 * B * S, 256), True))
SORT = _register(
    "embedding_sort", "CUB's sort of the tokens: second copies, counts of each digit, states of its tiles",
    "the end of backward, before that",
    Piecewise((_copies + 2048 * _passes + 1024 * ceiling(B * S / tile) + 511, _sorted), (0, True)),
    "int64 tokens, a table of less than 16,777,216 rows", "tiles as rehearsals show them, at each one's end (`TILES`)",
    source=f"CUB, device/dispatch/dispatch_radix_sort.cuh, InvokeOnesweep; {_EMBEDDING}",
)  # fmt: skip
UNIQUE = _register(
    "embedding_unique", "where each token's run begins: the sorted tokens again, and what CUB scans with",
    "the end of backward, between", Piecewise((32 * B * S + 8 + 1279, _sorted), (0, True)),
    "1,279 bytes to scan with, as rehearsals show on Hopper up to 131,071 tokens; other GPUs take some hundreds more",
    source=_EMBEDDING,
)  # fmt: skip


def summed(outputs, rows):
    """Bytes of the buffer in which blocks of threads meet that sum rows of so many numbers, and of their semaphores.

    With less than 1,021 rows, one block sums a column by itself.
    """
    values, grid = ceiling(rows / 4), ceiling(outputs / 128)
    blocks = Max(Min(ceiling(threads / 128 * multiprocessors / grid), ceiling(values / 16)), ceiling(values / 256))
    return Piecewise((4 * outputs * blocks * 128 + 4 * grid, rows > 1020), (0, True))


_REDUCE = "PyTorch, aten/src/ATen/native/cuda/Reduce.cuh, setReduceConfig, global_memory_size and semaphore_size"
_VECTORS = "rows of 128 numbers or more, a multiple of four"
_layers = [(qkv_bias, 3 * H), (out_bias, H), (ffn_bias, F), (ffn_bias, H)]
BIAS = _register(
    "bias_gradient", "the sum over rows that a bias's gradient is: where blocks of threads meet, and their semaphores",
    "one bias's gradient", Max(*(there * summed(outputs, B * S) for there, outputs in _layers)),
    _VECTORS, "a GPT's block, the largest of its four", source=_REDUCE,
)  # fmt: skip
NORM_SUMS = _register(
    "norm_sums", "layer norm's backward: the sums of those partial sums",
    "backward of one norm", Piecewise((summed(H, _rows), _tall), (0, True)), _VECTORS, source=_REDUCE,
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

#: Visits of tokens to experts; what CUB's sort of so many takes by passes of 8 bits: copies, counts of each digit, states.
_visits = B * S * E_t


def _radix(numbers, copies, passes):
    return copies * _up(8 * numbers, 256) + 2048 * passes + 1024 * ceiling(numbers / tile) + 511


#: Visits up to which CUB sorts within one block of threads: keys alone, and pairs.
_ONE_BLOCK, _ONE_BLOCK_OF_PAIRS = 4096, 2304
VISITS = _register(
    "experts_sort", "the sort of the visits by expert: their numbers in order, and what CUB takes for 64 bits",
    "a mixture layer's forward, once",
    Piecewise((8 * _visits, _visits <= _ONE_BLOCK), (8 * _visits + _radix(_visits, 2, 8), True)),
    "int64, as rehearsals of PyTorch 2.13 show", "tiles as rehearsals show them (`TILES`)",
    source="PyTorch, aten/src/ATen/native/cuda/Sort.cpp; CUB, device/dispatch/dispatch_radix_sort.cuh",
)  # fmt: skip
ENDS = _register(
    "experts_ends", "the running sum of the experts' visitors: what CUB scans with", "a mixture layer's forward, once",
    Integer(1023), "up to 1,000 experts, as rehearsals of PyTorch 2.13 show",
    source="PyTorch, aten/src/ATen/native/cuda/ScanUtils.cuh, scan_dim: cuda::cub::inclusive_scan",
)  # fmt: skip


def indexed(numbers, rows):
    """Bytes that adding so many gradients to rows by their numbers takes: places, sorted, and what CUB sorts pairs with."""
    passes = Piecewise((1, rows <= 2**8), (2, rows <= 2**16), (3, True))
    copies = Piecewise((0, rows <= 2**8), (2, True))
    return 32 * numbers + Piecewise((1, numbers <= _ONE_BLOCK_OF_PAIRS), (_radix(numbers, copies, passes), True))


INDEXED = _register(
    "experts_index", "backward of rows by their numbers: the places of the gradients, sorted, and CUB's sort of pairs",
    "a mixture layer's backward, three times", indexed(_visits, _visits),
    "int64; tokens' rows, fewer than visits, may take a pass less", "tiles as rehearsals show them (`TILES`)",
    source="PyTorch, aten/src/ATen/native/cuda/Indexing.cu, index_put_with_sort_kernel",
)  # fmt: skip
GROUPED = _register(
    "experts_products", "grouped products in bf16 on Hopper: each group's sizes and pointers, and CUTLASS's workspace",
    "one product of all experts", Piecewise((60 * E + grouped, half * (1 - fp16) * (4 - w) * grouped > 0), (0, True)),
    "weights in bf16, two experts or more: in fp32, and on other GPUs, the products run one after another and take nothing",
    source="PyTorch, aten/src/ATen/native/cuda/GroupMM.cu, bf16bf16_grouped_gemm_impl_sm90_sm100",
)  # fmt: skip

#: Of mixture layers alone.
MIXTURE: tuple[Formula, ...] = (VISITS, ENDS, INDEXED, GROUPED)
TERMS: tuple[Formula, ...] = (
    CUBLAS, CUBLASLT, FLASH, GROUPED_HEADS, SPLIT, RANDOM, EFFICIENT, BIAS, NORM, NORM_SUMS, SORT, UNIQUE, EMBEDDING, *MIXTURE,
)  # fmt: skip
#: An H200's multiprocessors, and the threads of each.
MULTIPROCESSORS, THREADS = 132, 2048
#: Numbers of 8 bytes, with others beside them, that CUB's radix sort gives a block, by compute capability from which on.
#: As rehearsals of PyTorch 2.13 show: the states of its tiles grow by one at the next number.
TILES = {9: 4608, 8: 3840, 7: 2816}


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
    return gpu.cublas_workspace


def said(model: Model, setup: Setup, gpu: Gpu | None = None) -> dict[str, int]:
    """What the sources say, in bytes, of each term: its name without `workspace.`. `gpu`: by default an H200."""
    machine = _machine(model, setup, gpu)
    found = {term.name.partition(".")[2]: int(term.at(model, setup, **machine)) for term in _of(model)}
    return found | ({"cublas": 2 * cublas(gpu)} if gpu else {})


def _of(model):
    """The terms that a model can have."""
    return [term for term in TERMS if model.experts or term not in MIXTURE]


def _machine(model, setup, gpu):
    """What of a GPU decides how much its kernels take: an H200's where none is given, or the catalog knows no more of it."""
    known = gpu is not None and gpu.multiprocessors > 0
    number = gpu.multiprocessors if known else MULTIPROCESSORS
    major = int(gpu.capability.partition(".")[0]) if known and gpu.capability[0].isdigit() else 9
    return {
        "multiprocessors": number, "threads": gpu.threads if known else THREADS,
        "tile": next((size for least, size in TILES.items() if major >= least), TILES[7]),
        "splits": flash_splits(model, setup, number), "grouped_mm": 512 * number * (major == 9),
        "query_tile": 128 if model.head_width > 64 and (not known or gpu.shared_memory >= 163 * 1024) else 64,
    }  # fmt: skip


def requested(found, gpu: Gpu) -> tuple[int, str]:
    """The most bytes that PyTorch's CUDA code asks for in a step, and the operation that runs then.

    The live bytes of the prediction at each operation, with what that operation's kernel takes for itself, and cuBLAS's.

    Args:
        found: a budget, each tensor as asked for (`rounding` 1): its `operations` and `live` bytes are read. gpu: the catalog's.

    Raises:
        ValueError: for what the terms do not cover: other models than the book's references, sums over rows of widths that are
            under 128 or no multiples of four, tensors rounded up.
    """
    model, setup = found.model, found.setup
    if found.rounding != 1:
        raise ValueError(f"requested.rounding: {found.rounding}; allowed: 1, each tensor as it is asked for")
    if unlike := model.unlike_reference():
        raise ValueError(f"requested.model: {unlike}")
    heads = {"Model.kv_heads × Model.head_width": model.kv_heads * model.head_width} if model.qkv_bias else {}
    if model.qk_norm and setup.batch * setup.sequence * model.heads > 2**16:
        heads["Model.head_width"] = model.head_width
    wide = {"Model.width": model.width} if model.qkv_bias or model.out_bias or model.ffn_bias else {}
    for name, width in (wide | heads).items():
        if width % 4 or width < 128:
            raise ValueError(f"{name}: {width}, and sums over rows are known for multiples of 4, from 128 on")
    takes = _scratch(model, setup, gpu)
    most = max(range(len(found.live)), key=lambda i: (found.live[i] + takes(found.kernels[i]), -i))
    name, _, owner = found.operations[most]
    return 2 * cublas(gpu) + found.live[most] + takes(found.kernels[most]), f"{name} ({owner})"


#: Kernels -> the terms that say together what one takes.
_TERMS = {
    "attention": ("flash_split", "flash_dropout"), "attention backward": ("flash_backward", "flash_heads", "efficient_backward"),
    "sort": ("experts_sort",), "scan": ("experts_ends",), "grouped product": ("experts_products",),
}  # fmt: skip


def _scratch(model, setup, gpu):
    """What each of `course.KERNELS` takes for itself while it runs, in bytes."""
    terms, machine = said(model, setup, gpu), _machine(model, setup, gpu)
    of_gpu = {multiprocessors: machine["multiprocessors"], threads: machine["threads"], tile: machine["tile"]}
    width = 2 if setup.dtypes.weights != "fp32" else 4

    @cache
    def takes(kernel):
        match kernel:
            case ("table backward", tokens, rows, numbers):
                values = of_gpu | {S: tokens, B: 1, V: rows, H: numbers}
                backward, unique, sort = (int(term.expr.subs(values)) for term in (EMBEDDING, UNIQUE, SORT))
                sorting = 24 * tokens + sort - rows * numbers * width if sort else 0
                return max(backward, unique, sorting)
            case ("norm backward", rows, numbers, gains):
                values = of_gpu | {S: rows, B: 1, H: numbers, norm_bias: gains - 1, w: width}
                return sum(int(term.expr.subs(values)) for term in (NORM, NORM_SUMS))
            case ("row sum", numbers, rows):
                return int(summed(numbers, Integer(rows)).subs(of_gpu))
            case ("rows backward", taken, rows):
                return int(indexed(Integer(taken), Integer(rows)).subs(of_gpu))
        return sum(terms[name] for name in _TERMS.get(kernel[0] if kernel else "", ()))

    return takes


def table(model: Model, setup: Setup, gpu: Gpu | None = None) -> Table:
    """Each term: when it lives, what the budget counts, and what its source says, in bytes."""
    says = said(model, setup, gpu)
    rows = [[t.title, WHEN[t.name], WHY, says[t.name.partition(".")[2]]] for t in _of(model)]
    return Table(["what a kernel takes for itself", "while", "counted", "its source says (B)"], rows)
