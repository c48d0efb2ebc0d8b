"""CUDA's choices, held against PyTorch's own: its header's lists, its autocast on fake CUDA tensors, its rules' bounds."""

import re
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode

import everybyte as eb
from everybyte.dryrun import cuda
from everybyte.dryrun.autocast import FP32, FP32_RESULT, LOWER, WIDEST, autocast_as_on_cuda
from everybyte.dryrun.cuda import Kernels

HEADER = Path(torch.__file__).parent / "include" / "ATen" / "autocast_mode.h"
LISTS = {"LOWER_PRECISION_FP": LOWER, "FP32": FP32, "FP32_SET_OPT_DTYPE": FP32_RESULT, "PROMOTE": WIDEST}
#: What Python does not offer under the header's name: it is reached through the function after it.
REACHED = {
    "linalg_vecdot": "vecdot", "linalg_multi_dot": "multi_dot", "linalg_vector_norm": "vector_norm",
    "linalg_matrix_norm": "matrix_norm", "_convolution": "convolution", "nll_loss2d": "nll_loss",
    "_scaled_dot_product_flash_attention": "scaled_dot_product_attention",
    "_thnn_fused_lstm_cell": "lstm_cell", "_thnn_fused_gru_cell": "gru_cell",
}  # fmt: skip


def header(name):
    """The functions on one of the lists of PyTorch's header."""
    text = re.search(rf"#define AT_FORALL_{name}\(_\)((?:.*\\\n)*.*)", HEADER.read_text())[1]
    return set(re.findall(r"_\((\w+)", text))


@pytest.mark.parametrize("name", LISTS)
def test_our_lists_have_all_of_pytorchs(name):
    known = {f.__name__ for f in LISTS[name]}
    upsampling = {n for n in header(name) if "upsample" in n}  # all of them behind F.interpolate
    missing = {n for n in header(name) - upsampling if not {n, REACHED.get(n)} & known}
    assert missing == set()
    assert len(header(name)) >= 8
    assert not upsampling or F.interpolate in FP32


def test_our_lists_do_not_overlap():
    everything = [*LOWER, *FP32, *FP32_RESULT, *WIDEST]
    assert len(everything) == len(set(everything))
    assert all(callable(f) for f in everything)


class Recorder(TorchDispatchMode):
    """Every operation and the data types of what it gives: what autocast cast, and what ran in which type."""

    def __init__(self):
        super().__init__()
        self.seen = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        outs = out if isinstance(out, tuple | list) else [out]
        if types := [t.dtype for t in outs if isinstance(t, Tensor)]:
            self.seen.append((func.overloadpacket.__name__, types))
        return out


@contextmanager
def pytorchs_autocast(dtype):
    """`torch.autocast("cuda")` itself: without CUDA the context manager declines, the dispatcher does not."""

    def set_to(enabled, dtype):
        torch.set_autocast_enabled("cuda", enabled)
        torch.set_autocast_dtype("cuda", dtype)

    before = torch.is_autocast_enabled("cuda"), torch.get_autocast_dtype("cuda")
    set_to(True, dtype)
    torch.autocast_increment_nesting()
    try:
        yield
    finally:
        torch.autocast_decrement_nesting()
        torch.clear_autocast_cache()
        set_to(*before)


def real(call, shapes, dtypes, dtype):
    with FakeTensorMode(), torch.no_grad():
        tensors = [torch.empty(s, dtype=d, device="cuda") for s, d in zip(shapes, dtypes, strict=True)]
        with Recorder() as recorder, pytorchs_autocast(dtype):
            out = call(*tensors)
    return out.dtype, recorder.seen


def ours(call, shapes, dtypes, dtype):
    with torch.no_grad():
        tensors = [torch.empty(s, dtype=d, device="meta") for s, d in zip(shapes, dtypes, strict=True)]
        with Recorder() as recorder, Kernels(), autocast_as_on_cuda(), torch.autocast("cuda", dtype):
            out = call(*tensors)
    return out.dtype, recorder.seen


SQUARE, ROWS, CUBE = (8, 8), (4, 8), (2, 8, 8)
#: name -> (call, the shapes of its tensors).
CALLS = {
    "linear": (lambda x, w, b: F.linear(x, w, b), [ROWS, SQUARE, (8,)]),
    "matmul": (lambda x, w: x @ w, [ROWS, SQUARE]),
    "torch.matmul": (torch.matmul, [ROWS, SQUARE]),
    "mm": (lambda x, w: x.mm(w), [ROWS, SQUARE]),
    "bmm": (torch.bmm, [CUBE, CUBE]),
    "mv": (torch.mv, [ROWS, (8,)]),
    "addmm": (torch.addmm, [(8,), ROWS, SQUARE]),
    "baddbmm": (torch.baddbmm, [CUBE, CUBE, CUBE]),
    "einsum": (lambda x, w: torch.einsum("bh,ho->bo", x, w), [ROWS, SQUARE]),
    "einsum of a list": (lambda x, w: torch.einsum("bh,ho->bo", [x, w]), [ROWS, SQUARE]),
    "vecdot": (torch.linalg.vecdot, [ROWS, ROWS]),
    "conv1d": (F.conv1d, [(2, 8, 9), (8, 8, 3)]),
    "layer_norm": (lambda x, w, b: F.layer_norm(x, (8,), w, b), [ROWS, (8,), (8,)]),
    "group_norm": (lambda x: F.group_norm(x, 2), [ROWS]),
    "softmax": (lambda x: F.softmax(x, -1), [ROWS]),
    "x.softmax": (lambda x: x.softmax(-1), [ROWS]),
    "softmax in its own type": (lambda x: torch.softmax(x, -1, dtype=x.dtype), [ROWS]),
    "log_softmax": (lambda x: F.log_softmax(x, -1), [ROWS]),
    "sum": (lambda x: x.sum(), [ROWS]),
    "sum over rows": (lambda x: torch.sum(x, 0), [ROWS]),
    "cumsum": (lambda x: x.cumsum(0), [ROWS]),
    "cumprod": (lambda x: torch.cumprod(x, 0), [ROWS]),
    "prod": (lambda x: x.prod(), [ROWS]),
    "mean": (lambda x: x.mean(), [ROWS]),
    "norm": (lambda x: x.norm(dim=-1), [ROWS]),
    "torch.norm": (torch.norm, [ROWS]),
    "vector_norm": (torch.linalg.vector_norm, [ROWS]),
    "normalize": (F.normalize, [ROWS]),
    "cosine_similarity": (F.cosine_similarity, [ROWS, ROWS]),
    "exp": (torch.exp, [ROWS]),
    "log": (lambda x: x.log(), [ROWS]),
    "pow": (lambda x: x**2, [ROWS]),
    "2 to the power of x": (lambda x: 2**x, [ROWS]),
    "rsqrt": (torch.rsqrt, [ROWS]),
    "sqrt": (torch.sqrt, [ROWS]),
    "logsumexp": (lambda x: x.logsumexp(-1), [ROWS]),
    "softplus": (F.softplus, [ROWS]),
    "gelu": (F.gelu, [ROWS]),
    "silu": (F.silu, [ROWS]),
    "relu": (F.relu, [ROWS]),
    "tanh": (torch.tanh, [ROWS]),
    "add": (lambda x, y: x + y, [ROWS, ROWS]),
    "cat": (lambda x, y: torch.cat([x, y]), [ROWS, ROWS]),
    "dot": (torch.dot, [(8,), (8,)]),
    "addcmul": (torch.addcmul, [ROWS, ROWS, ROWS]),
    "mse_loss": (F.mse_loss, [ROWS, ROWS]),
    "l1_loss": (F.l1_loss, [ROWS, ROWS]),
    "smooth_l1_loss": (F.smooth_l1_loss, [ROWS, ROWS]),
    "huber_loss": (F.huber_loss, [ROWS, ROWS]),
    "kl_div": (lambda x, y: F.kl_div(x, y, reduction="batchmean"), [ROWS, ROWS]),
    "binary_cross_entropy_with_logits": (F.binary_cross_entropy_with_logits, [ROWS, ROWS]),
    "cross_entropy": (lambda x: F.cross_entropy(x, x.new_zeros(4, dtype=torch.int64)), [ROWS]),
    "nll_loss": (lambda x: F.nll_loss(x, x.new_zeros(4, dtype=torch.int64)), [ROWS]),
    "dropout": (lambda x: F.dropout(x, 0.1), [ROWS]),
    "torch.dropout": (lambda x: torch.dropout(x, 0.1, True), [ROWS]),
    "interpolate": (lambda x: F.interpolate(x, scale_factor=2), [(2, 3, 4, 4)]),
}
#: The same operations in our order, but not theirs: what they give has one type all the same.
TYPE_ALONE = {"attention": (lambda q: F.scaled_dot_product_attention(q, q, q, is_causal=True), [(2, 2, 8, 16)])}


def mixtures(count, dtype=torch.bfloat16):
    """All in fp32, all in 16 bits, and, of several, the first in 16 bits alone."""
    half, full = [dtype], [torch.float32]
    return {"fp32": full * count, "16 bits": half * count} | ({"mixed": half + full * (count - 1)} if count > 1 else {})


CASES = [(name, mix) for name, (_, shapes) in (CALLS | TYPE_ALONE).items() for mix in mixtures(len(shapes))]


@pytest.mark.sampled(70)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize(("name", "mix"), CASES)
def test_autocast_casts_as_pytorchs(name, mix, dtype):
    call, shapes = (CALLS | TYPE_ALONE)[name]
    arguments = call, shapes, mixtures(len(shapes), dtype)[mix], dtype
    (their_type, theirs), (our_type, mine) = real(*arguments), ours(*arguments)
    assert our_type is their_type
    if name in CALLS:
        assert mine == theirs


def test_fp16_goes_into_softmax_as_it_is_and_bf16_in_a_copy():
    """Two scores-sized tensors, not three: what the test above holds for all, said once in numbers."""
    names = {
        d: [n for n, _ in ours(lambda x: x.softmax(-1), [ROWS], [d], d)[1]] for d in (torch.float16, torch.bfloat16)
    }
    assert names == {torch.float16: ["_softmax"], torch.bfloat16: ["_to_copy", "_softmax"]}


def test_leaving_autocast_in_a_module_leaves_it_in_what_it_calls():
    def call(x, w):
        with torch.amp.autocast("cuda", enabled=False):
            return F.linear(x, w) + F.normalize(x).sum()

    assert ours(call, [ROWS, SQUARE], [torch.float32] * 2, torch.bfloat16)[0] is torch.float32


@pytest.mark.parametrize("p", [0.0, 0.1, 0.9])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_a_dropouts_mask_is_one_byte_an_element(p, dtype):
    x = torch.empty(ROWS, dtype=dtype, device="meta", requires_grad=True)
    kept = []
    with Kernels(), torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t) or t, lambda t: t):
        out = F.dropout(x, p)
        assert F.dropout(x, p, training=False) is x
    assert out.dtype is dtype
    assert [(t.dtype, t.nbytes) for t in kept] == ([(torch.bool, x.numel())] if p else [])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("drop", [torch.dropout_, partial(F.dropout, inplace=True)], ids=["torch", "functional"])
def test_a_dropout_in_place_keeps_what_it_multiplies_by(drop, dtype):
    """A rehearsal on an A100 kept 61,440 bytes for 15,360 numbers in fp32, where the fused kernel keeps 15,360, and no new result."""
    x = torch.empty(ROWS, dtype=dtype, device="meta", requires_grad=True).exp()
    kept = []
    with Kernels(), torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t) or t, lambda t: t):
        y = x * 2
        kept.clear()
        assert drop(y, 0.1, True) is y
    assert [(t.dtype, t.shape) for t in kept] == [(dtype, x.shape)]


def attention_kernel(width, dtype, value_width=None, mask=None):
    """Which kernel attention takes, and the width of a head as it sees it."""
    q, v = (torch.empty(2, 3, 8, w, dtype=dtype, device="meta") for w in (width, value_width or width))
    seen = []

    class Widths(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            seen.append((func.overloadpacket.__name__, args[0].shape[-1:] if isinstance(args[0], Tensor) else ()))
            return func(*args, **(kwargs or {}))

    with Kernels(), Widths():
        out = F.scaled_dot_product_attention(q, q, v, attn_mask=mask, is_causal=mask is None)
    assert out.shape == v.shape and out.dtype is dtype
    names = {
        "_scaled_dot_product_flash_attention": "flash",
        "_scaled_dot_product_efficient_attention": "efficient",
        "_safe_softmax": "math",
    }
    ((name, last),) = [(names[n], w) for n, w in seen if n in names]
    return name if name == "math" else (name, *last)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_in_16_bits_heads_up_to_256_are_padded_to_eights_for_the_flash_kernel(dtype):
    for width in (1, 4, 7, 8, 20, 36, 64, 250, 256):
        assert attention_kernel(width, dtype) == ("flash", -(-width // 8) * 8)
    assert attention_kernel(264, dtype) == ("efficient", 264)
    assert attention_kernel(260, dtype) == "math"
    assert attention_kernel(64, dtype, value_width=32) == ("efficient", 64)
    mask = torch.ones(8, 8, dtype=torch.bool, device="meta")
    assert attention_kernel(64, dtype, mask=mask) == ("efficient", 64)
    assert attention_kernel(20, dtype, mask=mask) == "math"


def test_in_fp32_heads_of_fours_take_the_efficient_kernel_and_others_the_scores():
    for width in (1, 2, 3, 4, 6, 12, 20, 62, 64, 128, 260, 512):
        expected = "math" if width % 4 else ("efficient", width)
        assert attention_kernel(width, torch.float32) == expected


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_where_no_kernel_fits_the_scores_are_made_as_pytorch_makes_them(dtype, causal):
    shape, free = (2, 2, 8, 6), {"transpose", "expand", "view", "_unsafe_view", "full", "zeros_like", "scalar_tensor"}
    with FakeTensorMode(), torch.no_grad():
        q = torch.empty(shape, dtype=dtype, device="cuda")
        with Recorder() as theirs:
            F.scaled_dot_product_attention(q, q, q, is_causal=causal)
    with torch.no_grad():
        q = torch.empty(shape, dtype=dtype, device="meta")
        with Recorder() as mine, Kernels():
            cuda._math(q, q, q, None, 0.0, causal, 6**-0.5)
    # Under a dispatch mode PyTorch adds the mask out of place; without one it does so in place, as ours.
    expected, found = ([(n.rstrip("_"), d) for n, d in r.seen if n not in free] for r in (theirs, mine))
    assert found == expected
    assert causal == any(n == "add_" for n, _ in mine.seen)


def test_pytorchs_own_transformer_layer_makes_cudas_choices():
    """Its attention is a function in Python that calls the rest: neither autocast nor flash may stop at its door."""

    class Own(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.TransformerEncoderLayer(64, 4, 128, dropout=0.1, batch_first=True)

        def forward(self, x):
            return self.layer(x).sum()

    batch = {"x": ((2, 16, 64), torch.float32)}
    trace = eb.dry_run(Own, eb.Setup(batch=2, sequence=16, precision="bf16-mixed"), batch=batch)
    names = [name for name, _, _ in trace.operations]
    assert names.count("_scaled_dot_product_flash_attention") == 1
    matrices = 64 * 3 * 64 + 64 * 64 + 2 * 64 * 128
    casts = [a for a in trace.allocations if a.part == "casts"]
    assert sum(a.bytes for a in casts) == 2 * (matrices + 3 * 64 + 64 + 128 + 64)
    assert "_safe_softmax" not in names


class Rows(torch.nn.Module):
    """Rows by their numbers, and the largest of each."""

    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.empty(64, 32))

    def forward(self, at):
        return torch.topk(self.weight.exp()[at], 2).values.exp().sum()


def test_backward_fills_its_zeros_in_place():
    """As a rehearsal shows of CUDA's: under a dispatch mode autograd would make a second tensor, which no step has."""
    trace = eb.dry_run(Rows, eb.Setup(optimizer="sgd"), batch={"at": ((1000,), torch.int64)})
    backward = trace.operations[trace.marks["after_forward"] : trace.marks["after_backward"]]
    assert not {"index_put", "scatter", "index_put_", "scatter_"} & {name for name, *_ in backward}
    rows = [
        a for a in trace.allocations if a.birth and a.bytes == 4 * 1000 * 32 and a.operation in ("new_zeros", "zeros")
    ]
    assert len(rows) == 1
    assert len([a for a in trace.allocations if a.operation in ("new_zeros", "zeros") and a.bytes == 4 * 64 * 32]) == 1
