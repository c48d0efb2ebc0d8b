"""Kernels' workspaces: memory that CUDA's allocator counts but that is no tensor of the step.

Each term follows the kernel's source, under the assumptions that it names, and an H200 took as much. The budget counts tensors
alone, so 0 for each (`COUNTED`); `requested` adds them where their kernels run.
"""

from functools import cache

from sympy import Integer, Max, Min, Piecewise, ceiling, floor

from ..ask.setup import Setup
from ..catalog import Gpu, Model
from ..catalog import gpu as find_gpu
from ..common.tables import Table
from . import symbols
from .dispatch import up
from .registry import Formula, register
from .symbols import A, A_kv, B, D, E, E_t, F, H, S, V, dropped, eager, half, norm_bias, queries, splits, tile, w
from .symbols import multiprocessors as cores

#: Bytes that the budget counts for each, and why; and what a GPU showed (`labs/records`).
COUNTED, WHY = 0, "no tensor: 0"
SEEN = (
    "Kernels of each kind were measured on an H200, under PyTorch 2.11: they took what their sources say, and cuBLASLt 1 MiB for each "
    "thread, which PyTorch 2.13 no longer takes"
)


def _register(item, expr):
    return register(f"workspace.{item}", expr)


def _where(condition, expr):
    return Piecewise((expr, condition), (0, True))


# Products and attention.

#: On Hopper or Blackwell.
CUBLAS = _register("cublas", Integer(2 * 32 * 2**20))
CUBLASLT = _register("cublaslt", Integer(0))

_flash = half * (1 - eager)
#: Head width in the kernel: padded to a multiple of 32, above 128 of 64.
_head = Piecewise((up(D, 32), D <= 128), (up(D, 64), True))
FLASH = _register("flash_backward", 4 * _flash * B * A * up(S, 128) * (_head + 1))
#: Whether some query heads share a key head: 1 or 0.
_shared = Min(A - A_kv, 1)
GROUPED_HEADS = _register("flash_heads", 2 * 2 * _flash * _shared * B * S * A * D)
#: Memory-efficient attention's row sums: in the output's layout, and a second time in the kernel's layout where that differs.
_deltas = 4 * B * A * S
_product = 4 * B * A * S * D + _deltas * (1 + Min(A - 1, 1))
_tiles = B * A * ceiling(S / queries) * ceiling(D / 64) * (4 * 64 * queries + 16)
EFFICIENT = _register("efficient_backward", (1 - half) * (1 - eager) * (1 - _shared) * Max(_product, _deltas + _tiles))

# Norms, tables, biases.

_rows = Min(floor(64 * 1024 / 2 / ceiling(H / 32)), ceiling(B * S / 32))
#: Many rows that are so narrow that they use less than half of the multiprocessors.
_tall = (B * S > 64 * 1024) & (floor(H / 32) < floor(cores / 2))
NORM = _register("norm_backward", _where(_tall, (1 + norm_bias) * w * _rows * H + w * H))

_sorted = B * S > 3072
_segments = Min(B * S, V)
_partial = floor(B * S / 10) + _segments
#: Blocks of threads that add up the partial sums.
_blocks = ceiling(_segments * up(H, 32) / Min(up(H, 32), 1024))
_fused = (_blocks < 4 * cores) & (_partial > 4 * _blocks)
_places = 8 * (3 * B * S + 2 * _segments + _partial) + 16
_sums = Piecewise((_places + 8 * _partial, _sorted & _fused), (_places + 4 * H * _partial, _sorted), (0, True))
EMBEDDING = _register("embedding_backward", _sums)


def _radix(numbers, copies, passes):
    """Bytes of CUB's radix sort of 8-byte numbers, 8 bits a pass: copies, a histogram per pass, the states of its tiles."""
    return copies * up(8 * numbers, 256) + 2048 * passes + 1024 * ceiling(numbers / tile) + 511


_passes = Piecewise((1, V < 2**8), (2, V < 2**16), (3, True))
_copies = Piecewise((0, V < 2**8), (2 * up(8 * B * S, 256), True))
SORT = _register("embedding_sort", _where(_sorted, _copies + _radix(B * S, 0, _passes)))
UNIQUE = _register("embedding_unique", _where(_sorted, 32 * B * S + 8 + 1279))


def summed(outputs, rows):
    """Bytes of the buffer and semaphores with which several blocks of threads sum `rows` rows of `outputs` numbers.

    Below 1,021 rows one block sums a column alone, and takes none.
    """
    values, grid = ceiling(rows / 4), ceiling(outputs / 128)
    blocks = Max(Min(ceiling(symbols.threads / 128 * cores / grid), ceiling(values / 16)), ceiling(values / 256))
    return _where(rows > 1020, 4 * outputs * blocks * 128 + 4 * grid)


_biases = [(symbols.qkv_bias, 3 * H), (symbols.out_bias, H), (symbols.ffn_bias, F), (symbols.ffn_bias, H)]
BIAS = _register("bias_gradient", Max(*(there * summed(outputs, B * S) for there, outputs in _biases)))
NORM_SUMS = _register("norm_sums", _where(_tall, summed(H, _rows)))
SPLIT = _register("flash_split", 4 * _flash * (1 - dropped) * Min(splits - 1, 1) * splits * B * A * S * (_head + 1))
RANDOM = _register("flash_dropout", 16 * _flash * dropped)

# Experts.

#: (token, expert) pairs; and the most that CUB sorts in one block of threads: keys alone, and pairs.
_visits, _ONE_BLOCK, _ONE_BLOCK_OF_PAIRS = B * S * E_t, 4096, 2304
_many = 8 * _visits + _radix(_visits, 2, 8)
VISITS = _register("experts_sort", Piecewise((8 * _visits, _visits <= _ONE_BLOCK), (_many, True)))
ENDS = _register("experts_ends", Integer(1023))


def indexed(numbers, rows):
    """Bytes of adding `numbers` gradients to rows by index: the sorted indices, and CUB's sort of pairs."""
    passes = Piecewise((1, rows <= 2**8), (2, rows <= 2**16), (3, True))
    copies = Piecewise((0, rows <= 2**8), (2, True))
    return 32 * numbers + Piecewise((1, numbers <= _ONE_BLOCK_OF_PAIRS), (_radix(numbers, copies, passes), True))


INDEXED = _register("experts_index", indexed(_visits, _visits))
_sixteen = half * (1 - symbols.fp16) * (4 - w) * symbols.grouped > 0
GROUPED = _register("experts_products", _where(_sixteen, 60 * E + symbols.grouped))

#: Terms that only mixture layers have.
MIXTURE: tuple[Formula, ...] = (VISITS, ENDS, INDEXED, GROUPED)
TERMS: tuple[Formula, ...] = (
    CUBLAS, CUBLASLT, FLASH, GROUPED_HEADS, SPLIT, RANDOM, EFFICIENT, BIAS, NORM, NORM_SUMS, SORT, UNIQUE, EMBEDDING,
    *MIXTURE,
)  # fmt: skip
#: Of an H200.
MULTIPROCESSORS = 132
#: Compute capability from which on -> pairs per tile of CUB's radix sort of 8-byte numbers, counted in rehearsals of
#: PyTorch 2.13: with one pair more there is one more tile state.
TILES = {9: 4608, 8: 3840, 7: 2816}


def flash_splits(model: Model, setup: Setup, multiprocessors: int = MULTIPROCESSORS) -> int:
    """How many parts flash attention splits the keys into, so that few heads still use all multiprocessors.

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


def said(model: Model, setup: Setup, gpu: Gpu | None = None) -> dict[str, int]:
    """{name without `workspace.`: bytes by the kernel's source} of each term. `gpu`: by default an H200."""
    machine = _machine(model, setup, gpu)
    found = {term.name.partition(".")[2]: int(term.at(model, setup, **machine)) for term in _of(model)}
    return found | ({"cublas": 2 * gpu.cublas_workspace} if gpu else {})


def _of(model):
    """The terms that a model can have."""
    return [term for term in TERMS if model.experts or term not in MIXTURE]


def _machine(model, setup, gpu):
    """{symbol's name: value} of the machine; an H200's where no GPU is given, or its multiprocessors are unknown."""
    if gpu is None or not gpu.multiprocessors:
        gpu = find_gpu("h200")
    number, major = gpu.multiprocessors, gpu.capability.partition(".")[0]
    major = int(major) if major.isdigit() else 9
    return {
        "multiprocessors": number, "threads": gpu.threads, "splits": flash_splits(model, setup, number),
        "tile": TILES[max(7, min(major, 9))], "grouped_mm": 512 * number * (major == 9),
        "query_tile": 128 if model.head_width > 64 and gpu.shared_memory >= 163 * 1024 else 64,
    }  # fmt: skip


def requested(found, gpu: Gpu) -> tuple[int, str]:
    """The most bytes that PyTorch's CUDA code asks for in a step, and the operation that runs then.

    It adds what each operation's kernel takes for itself, and cuBLAS's workspaces, to the predicted live bytes.

    Args:
        found: a budget whose tensors are not rounded (`rounding` 1). gpu: the catalog's.

    Raises:
        ValueError: for what the terms do not cover: other models than the book's references, tensors rounded up, sums
            over rows of widths that are under 128 or no multiples of four.
    """
    model, setup = found.model, found.setup
    if found.rounding != 1:
        raise ValueError(f"requested.rounding: {found.rounding}; allowed: 1, each tensor as it is asked for")
    if unlike := model.unlike_reference():
        raise ValueError(f"requested.model: {unlike}")
    summed_over = {
        "Model.width": (model.qkv_bias or model.out_bias or model.ffn_bias, model.width),
        "Model.kv_heads × Model.head_width": (model.qkv_bias, model.kv_heads * model.head_width),
        "Model.head_width": (model.qk_norm and setup.batch * setup.sequence * model.heads > 2**16, model.head_width),
    }
    for name, (there, width) in summed_over.items():
        if there and (width % 4 or width < 128):
            raise ValueError(f"{name}: {width}, and sums over rows are known for multiples of 4, from 128 on")
    takes = _scratch(model, setup, gpu)
    most = max(range(len(found.live)), key=lambda i: (found.live[i] + takes(found.kernels[i]), -i))
    name, _, owner = found.operations[most]
    return 2 * gpu.cublas_workspace + found.live[most] + takes(found.kernels[most]), f"{name} ({owner})"


#: Kernel -> the terms whose sum it takes.
_TERMS = {
    "attention": ("flash_split", "flash_dropout"),
    "attention backward": ("flash_backward", "flash_heads", "efficient_backward"),
    "sort": ("experts_sort",),
    "scan": ("experts_ends",),
    "grouped product": ("experts_products",),
}


def _scratch(model, setup, gpu):
    """What each of `course.KERNELS` takes for itself while it runs, in bytes."""
    terms, machine = said(model, setup, gpu), _machine(model, setup, gpu)
    of_gpu = {symbols.SYMBOLS[name].symbol: machine[name] for name in ("multiprocessors", "threads", "tile")}
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
    """Each term: when it lives, what the budget counts, and what its source says, in bytes. The caption says what a GPU showed."""
    says = said(model, setup, gpu)
    rows = [[t.title, t.when, WHY, says[t.name.partition(".")[2]]] for t in _of(model)]
    return Table(["what a kernel takes for itself", "while", "in the budget", "its source says (B)"], rows, SEEN)
