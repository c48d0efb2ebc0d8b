"""CUDA's choices of kernels, for tensors without data.

A build of PyTorch without CUDA cannot dispatch to its kernels. These function modes make the same choices one level above:
which kernel attention takes, how dropout stores its mask, what autocast casts. Sources: PyTorch's
`aten/src/ATen/autocast_mode.h` (the lists), `autocast_mode.cpp` (the cache), `native/Dropout.cpp`,
`native/transformers/attention.cpp` and `native/transformers/cuda/sdp_utils.cpp`.
"""

from collections.abc import Callable
from contextlib import ExitStack, contextmanager, nullcontext
from functools import cache, partial
from math import prod
from types import FunctionType
from unittest import mock

import torch
from torch import Tensor
from torch.autograd import graph
from torch.nn import functional as F
from torch.optim import optimizer
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry

from ..ask.choices import OPTIMIZERS
from ..reference.adapters import package
from .values import Values

aten = torch.ops.aten
#: Operation -> a function of its arguments: bytes that CUDA's kernel takes while it runs, of one tensor or of several.
#: Softmax's backward first makes the product of gradient and result (`softmax_backward_cuda_out` in `native/cuda/SoftMax.cu`).
#: A masked scatter makes the mask as large as what it writes into, and 8 bytes for each number of it (`masked_scatter__cuda` in
#: `native/cuda/IndexKernel.cpp`).
#: A safe softmax looks where scores are minus infinity, and in which rows all are (`_safe_softmax` in `native/transformers/attention.cpp`).
#: The gradient of distances is made for each pair before it is summed (`cdist_backward_kernel_impl` in `native/cuda/DistanceKernel.cu`).
#: Norms of many tensors first are those of their blocks, as many for each as the largest has (`foreach_tensor_norm_cuda` in
#: `native/cuda/ForeachReduceOp.cu`).
SCRATCH = {
    aten._softmax_backward_data.default: lambda gradient, result, *_: result.numel() * result.itemsize,
    aten.masked_scatter.default: lambda x, mask, *_: (
        8 * x.numel(),
        0 if mask.shape == x.shape and mask.is_contiguous() else x.numel(),
    ),
    aten._safe_softmax.default: lambda x, *_: (x.numel(), x.numel() // max(x.size(-1), 1), x.itemsize),
    aten._cdist_backward.default: lambda gradient, x, y, p, distances: (
        0 if p == 0 else distances.numel() * x.size(-1) * x.itemsize
    ),
    aten._foreach_norm.Scalar: lambda tensors, *_: 4 * len(tensors) * -(-max(t.numel() for t in tensors) // 65536),
}
#: Which results are in the memory of the CPU, outside of a CUDA graph: attention's seed of random numbers, and its offset
#: (`_efficient_attention_forward` in `native/transformers/cuda/attention.cu`).
ON_HOST = {aten._scaled_dot_product_efficient_attention.default: (2, 3)}


def refused(said: str, allowed: str, field: str = "model") -> ValueError:
    """The `ValueError` for what cannot be dry-run."""
    return ValueError(f"dry_run.{field}: {said}; allowed: {allowed}")


def _grouped_mm(a, b, offs=None, bias=None, out_dtype=None):
    """Groups of rows, each times its own matrix, as on CUDA: in three data types, with rows of a multiple of 16 bytes.

    The kernel for tensors without data accepts only bf16, as CUDA once did. Sources: `_grouped_mm_cuda` in
    `native/cuda/GroupedBlas.cpp`, and `native/GroupedMMUtils.h`.
    """
    for matrix in (a, b):
        each, (*_, along, across) = 16 // matrix.itemsize, matrix.stride()
        if (across != 1 or along % each) and (along != 1 or across % each):
            raise refused(
                f"grouped_mm is given a matrix of strides {matrix.stride()} in {matrix.dtype}",
                f"rows or columns of a multiple of 16 bytes, which is {each} numbers",
            )
    groups = [] if a.dim() != b.dim() else [(a if a.dim() == 3 else offs).size(0)]
    rows, columns = a.size(-2), b.size(-1)
    stride = -(-columns * a.itemsize // 16) * 16 // a.itemsize  # each row begins at a multiple of 16 bytes
    strides = [rows * stride] * len(groups) + [stride, 1]
    return torch.empty_strided([*groups, rows, columns], strides, dtype=a.dtype, device=a.device)


def _col2im(x, size, kernel, *_):
    """Pieces summed into an image, as on CUDA: in memory as large as the pieces (`col2im_cuda` in `native/cuda/Col2Im.cu`)."""
    shape = (*x.shape[:-2], x.size(-2) // prod(kernel), *size)
    whole = torch.empty(max(prod(shape), x.numel()), dtype=x.dtype, device=x.device)
    return whole[: prod(shape)].view(shape)


#: What CUDA's kernel returns, where the one for tensors without data returns something else. Log-sigmoid saves its input alone on CUDA;
#: on a CPU a buffer too (`log_sigmoid_forward_cuda` in `native/Activation.cpp`).
ANSWERS = {
    aten._grouped_mm.default: _grouped_mm,
    aten.col2im.default: _col2im,
    aten.log_sigmoid_forward.default: lambda x: (torch.empty_like(x), x.new_empty(0)),
    aten.log_sigmoid_backward.default: lambda grad, x, buffer: torch.empty_like(x),
}


def masked_scatter_backward(gradient, mask, sizes):
    """The gradient of what is scattered, by the operations that it is made of (`native/TensorAdvancedIndexing.cpp`)."""
    found = gradient.masked_select(mask)
    if rest := prod(sizes) - found.numel():
        found = torch.cat([found, gradient.new_zeros(rest)])
    return found.view(sizes)


def _grouped_flops(a, b, *_, **__):
    """Each row is multiplied once, with its own group's matrix."""
    if a.dim() == b.dim() == 2:
        return 2 * a.size(0) * a.size(1) * b.size(1)
    return 2 * b.numel() * a.size(-2) if a.dim() == 3 and b.dim() == 2 else 2 * a.numel() * b.size(-1)


def _of_shapes(flops):
    """One of PyTorch's FLOP counts, which takes shapes, as a function of tensors."""

    def count(*args, out_val=None, **kwargs):
        if kwargs or not isinstance(out_val, Tensor) or not all(isinstance(a, Tensor) for a in args):
            return flops(*args, out_val=out_val, **kwargs)
        return flops.__wrapped__(*(a.shape for a in args), out_shape=out_val.shape)

    return count if hasattr(flops, "__wrapped__") else flops


#: Operation -> its FLOPs as a function of its arguments: PyTorch's own list, and operations that it lacks.
FLOPS = {packet: _of_shapes(flops) for packet, flops in flop_registry.items()} | {aten._grouped_mm: _grouped_flops}
FLOPS[aten.addmm_] = FLOPS[aten.addmm]


def _half_where_causal(packet, flops):
    """Of a kernel of attention, which skips what a causal mask hides: half of PyTorch's count, which is of the whole square.

    Sources: Dao 2023, arXiv:2307.08691, section 3.1; PyTorch, `native/transformers/cuda/mem_eff_attention/kernel_forward.h`, `num_keys`
    with `kSupportsCausal`.
    """
    names = [argument.name for argument in packet.default._schema.arguments]

    def count(*args, out_val=None, **kwargs):
        causal = (dict(zip(names, args, strict=False)) | kwargs).get("is_causal", False)
        return flops(*args, out_val=out_val, **kwargs) // (2 if causal else 1)

    return count


_CAUSAL = [
    getattr(aten, f"_scaled_dot_product_{kind}_attention{way}") for kind in ("flash", "efficient") for way in ("", "_backward")
]  # fmt: skip
FLOPS |= {packet: _half_where_causal(packet, FLOPS[packet]) for packet in _CAUSAL}
#: Operations whose inner operations are followed -> the function that runs in their place.
IN_THE_OPEN: dict = {}


@contextmanager
def patched(*changes):
    """Within it each owner has something else by a name. changes: (owner, name, what) each."""
    with ExitStack() as stack:
        for change in changes:
            stack.enter_context(mock.patch.object(*change))
        yield


class Mode(TorchFunctionMode):
    """A function mode that also sees what PyTorch's functions in Python call, and what runs in backward."""

    def run(self, func, args, kwargs):
        body = _body(func)
        if body is None:
            return func(*args, **kwargs)
        with self:
            return body(*args, **kwargs)


@cache
def _body(func):
    """A function written in Python without the check that hands it to a mode as a whole; None for any other.

    With that check PyTorch would run it, and all that it calls, outside of the mode. But the mode must see what it calls:
    `multi_head_attention_forward` calls `linear`, `scaled_dot_product_attention` and `dropout`.
    """
    if func is Tensor.backward:
        return _backward
    written = isinstance(func, FunctionType) and any(func.__globals__ is vars(m) for m in (F, torch.autograd))
    if func in _KERNELS or not written:
        return None
    checks = ("has_torch_function", "has_torch_function_unary", "has_torch_function_variadic")
    unchecked = func.__globals__ | dict.fromkeys(checks, lambda *_: False)
    body = FunctionType(func.__code__, unchecked, func.__name__, func.__defaults__, func.__closure__)
    body.__kwdefaults__ = func.__kwdefaults__
    return body


#: Functions that run backward, where recomputation and custom autograd functions need CUDA's choices too.
BACKWARD = {Tensor.backward, torch.autograd.backward, torch.autograd.grad}


def _backward(tensor, gradient=None, retain_graph=None, create_graph=False, inputs=None):
    return torch.autograd.backward(tensor, gradient, retain_graph, create_graph, inputs=inputs)


#: Loss functions; the first argument is scores or log-probabilities.
_LOSSES = [name for name in vars(F) if name.endswith(("_loss", "cross_entropy", "kl_div"))]
LOSSES = {getattr(F, name) for name in _LOSSES if name != "linear_cross_entropy"}


class Kernels(Mode):
    """CUDA's kernels in any precision. on_loss: called with the first argument of each loss function. values: that are known."""

    def __init__(self, on_loss: Callable = lambda scores: None, values: Values | None = None):
        super().__init__()
        self._on_loss, self._values = on_loss, values

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if func in LOSSES:
            self._on_loss(args[0] if args else kwargs.get("input"))
        if func is torch.tensor and self._values:
            return self._values.made(args, kwargs)
        special = _KERNELS.get(func)
        if special is not None and any(isinstance(t, Tensor) and t.is_meta for t in tree_leaves((args, kwargs))):
            return special(*args, **kwargs)
        return self.run(func, args, kwargs)


def _dropout(input, p=0.5, training=True, inplace=False):
    if not training or p == 0:
        return input
    if not inplace and p < 1 and input.numel():
        return torch.native_dropout(input, p, True)[0]  # the mask is kept as one byte an element
    if p == 1:
        return input.mul_(input.new_zeros(())) if inplace else input.mul(input.new_zeros(()))
    # In place no kernel does both: what is multiplied by is kept, in the input's data type (`_dropout_impl`).
    kept = torch.empty_like(input).bernoulli_(1 - p).div_(1 - p)
    return input.mul_(kept) if inplace else input.mul(kept)


def _attention(query, key, value, attn_mask=None, dropout_p=0.0, is_causal=False, scale=None, enable_gqa=False):
    scale = 1.0 if scale is None else scale  # whatever it is, it moves no byte
    kernel, attn_mask = _kernel(query, key, value, attn_mask, is_causal, enable_gqa), _added(attn_mask, query)
    if kernel == "flash":
        return _flash(query, key, value, dropout_p, is_causal, scale)
    if kernel == "math":
        return _math(query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa)
    if attn_mask is not None:
        attn_mask = _aligned(attn_mask).expand(*query.shape[:-1], key.size(-2))
    needs_grad = torch.is_grad_enabled() and any(t.requires_grad for t in (query, key, value))
    return aten._scaled_dot_product_efficient_attention(
        query, key, value, attn_mask, needs_grad, dropout_p, is_causal, scale=scale
    )[0]


def _kernel(query, key, value, mask, is_causal, enable_gqa):
    """`flash`, `efficient` or `math`: the first that is switched on and takes these. Source: `use_flash_attention` and
    `use_mem_efficient_attention`, of a GPU with an A100's compute capability.
    """
    switched = torch.backends.cuda
    on = {
        "flash": switched.flash_sdp_enabled(),
        "efficient": switched.mem_efficient_sdp_enabled(),
        "math": switched.math_sdp_enabled(),
    }
    given = (query, key, value)
    sixteen_bits = query.dtype in (torch.float16, torch.bfloat16)
    (width, wide), alike = (query.size(-1), value.size(-1)), key.shape[:-1] == value.shape[:-1]
    fused = query.dim() == 4 and all(t.dim() == 4 and t.dtype is query.dtype and t.numel() for t in given)
    fused = fused and alike and query.size(0) == key.size(0) and width == key.size(-1)
    rows = all(t.stride(-1) == 1 for t in (*given, *([] if mask is None else [mask])))
    square = not is_causal or query.size(-2) == key.size(-2)
    takes = {
        "flash": fused and (rows or width == 1) and mask is None and sixteen_bits and width == wide <= 256 and square
        and (query.size(-3) == key.size(-3) or enable_gqa),
        "efficient": fused and rows and query.dtype in (torch.float16, torch.bfloat16, torch.float32)
        and not any(n % (8 if sixteen_bits else 4) for n in (width, wide)) and query.size(-3) == key.size(-3),
        "math": True,
    }  # fmt: skip
    for kernel in takes:
        if on[kernel] and takes[kernel]:
            return kernel
    raise refused(
        f"attention under sdpa_kernel, which leaves none of {', '.join(takes)} that takes it", "one that does"
    )


def _aligned(mask):
    """A mask of which each row, head and sequence starts at a multiple of eight numbers; else its rows are padded, as PyTorch pads them
    before it repeats them (`preprocess_mask`, `pad_bias`).
    """
    if mask.stride(-1) == 1 and not any(stride % 8 for stride in mask.stride()[:-1]):
        return mask
    return F.pad(mask, (0, 8 - mask.size(-1) % 8))[..., : mask.size(-1)]


def _added(mask, query):
    """A boolean mask as a number that is added to the scores: 0 where it is True, minus infinity elsewhere."""
    if mask is None or mask.dtype is not torch.bool:
        return mask
    hidden = torch.full((), float("-inf"), dtype=query.dtype, device="meta")
    return torch.where(mask, torch.zeros_like(hidden), hidden)


def _math(query, key, value, mask, dropout_p, is_causal, scale, enable_gqa=False):
    """PyTorch's math kernel, for what no other kernel accepts: it makes the scores, in fp32."""
    dtype, root, groups = query.dtype, scale**0.5, query.size(-3) // key.size(-3) if enable_gqa else 1
    if dtype in (torch.float16, torch.bfloat16):
        query, key, value = _casts = query.float(), key.float(), value.float()
    query = query * root
    if is_causal:
        mask = _added(torch.ones(query.size(-2), key.size(-2), dtype=torch.bool, device="meta").tril(), query)
    if groups > 1:
        key, value = key.repeat_interleave(groups, -3), value.repeat_interleave(groups, -3)
    weights = query @ (key.transpose(-2, -1) * root)
    if mask is not None:
        weights.add_(mask)
    weights = aten._safe_softmax(weights, -1)
    weights = _dropout(weights, dropout_p)
    _returned = weights.to(dtype)  # PyTorch's function returns these too; nobody takes them
    return (weights @ value).to(dtype)


class _RMSNorm(torch.autograd.Function):
    """CUDA's single kernel, which saves its input and one fp32 number per row. Of a `DTensor` it takes this GPU's rows."""

    @staticmethod
    def forward(ctx, input, weight, dims):
        rows = _local(input)
        rstd = torch.empty(*rows.shape[:-dims], *[1] * dims, dtype=torch.float32, device="meta")
        ctx.save_for_backward(input, weight, rstd)
        return _as(input, torch.empty_like(rows), input)

    @staticmethod
    def backward(ctx, grad):
        input, weight, _statistics = ctx.saved_tensors  # the statistics too are held until both are made
        to_input, to_weight, _ = ctx.needs_input_grad
        made = _as(input, torch.empty_like(_local(input)), input) if to_input else None
        return made, _as(weight, torch.empty_like(_local(weight)), input, summed=True) if to_weight else None, None


def _local(tensor):
    """This GPU's part of a tensor that may be a `DTensor`."""
    return getattr(tensor, "_local_tensor", tensor)


def _as(tensor, local, rows, summed=False):
    """A result like `tensor` from this GPU's part `local`. summed: whether GPUs with other rows add to it, as to a weight's gradient.

    Source: `torch/distributed/tensor/_ops/_math_ops.py`, `_common_norm_forward_strategy` and `_common_norm_backward_strategy`.
    """
    if not hasattr(tensor, "_local_tensor"):
        return local
    from torch.distributed.tensor import DTensor, Partial
    from torch.distributed.tensor._dtensor_spec import DTensorSpec

    parts = tuple(Partial() if summed and place.is_shard() else place for place in rows.placements)
    spec = DTensorSpec(tensor.device_mesh, parts, tensor_meta=tensor._spec.tensor_meta)
    return DTensor(local, spec, requires_grad=False)  # as operations make it: no view of another tensor


def _rms_norm(input, normalized_shape, weight=None, eps=None):
    if weight is not None and weight.dtype is not input.dtype:
        return F.rms_norm(input, normalized_shape, weight, eps)  # many small operations, as PyTorch warns
    return _RMSNorm.apply(input, weight, len(normalized_shape))


def _flash(query, key, value, dropout_p, is_causal, scale):
    width = query.size(-1)
    if width % 8:  # the kernel takes multiples of eight
        query, key, value = (F.pad(t, (0, 8 - width % 8)) for t in (query, key, value))
    out = aten._scaled_dot_product_flash_attention(query, key, value, dropout_p, is_causal, scale=scale)[0]
    return out[..., :width]


def _softmax(function, kernel):
    def choose(input, dim=None, *args, dtype=None, **kwargs):
        if input.dtype is torch.float16 and dtype is torch.float32:
            return kernel(input, dim, True)  # for fp16 alone: read in 16 bits, written in 32, no cast between
        return function(input, dim, *args, dtype=dtype, **kwargs)

    return choose


def _unknown(name, why):
    """A function of PyTorch's that is refused."""

    def refuse(*_, **__):
        raise refused(f"it runs torch.{name}, {why}", "layers without it; eb.measure measures a step on a GPU")

    return refuse


#: Recurrent layers: cuDNN keeps a reserve whose size it alone says, and CUDA's fused cells keep what others do not.
_RECURRENT = "lstm gru rnn_tanh rnn_relu lstm_cell gru_cell".split()
_UNKNOWN = dict.fromkeys(_RECURRENT, "a recurrent kernel of CUDA's or of cuDNN's, and what these keep is not derived")
_UNKNOWN["bilinear"] = "whose products within one operation, larger than its results, are not followed"
_KERNELS = {
    **{getattr(torch, name): _unknown(name, why) for name, why in _UNKNOWN.items()},
    **dict.fromkeys((F.dropout, torch.dropout), _dropout),
    torch.dropout_: partial(_dropout, inplace=True),
    **dict.fromkeys((F.rms_norm, torch.rms_norm), _rms_norm),
    F.scaled_dot_product_attention: _attention,
    torch._fused_sgd_: lambda *_, **__: None,  # writes in place; has no kernel for tensors without data
    **{f: _softmax(f, aten._softmax) for f in (F.softmax, torch.softmax, Tensor.softmax)},
    **{f: _softmax(f, aten._log_softmax) for f in (F.log_softmax, torch.log_softmax, Tensor.log_softmax)},
}


@contextmanager
def loss_in_the_open():
    """A context in which `linear_cross_entropy` with options runs its own code on tensors without data, not only its shapes.

    It treats "meta" as CUDA, and multiplies 16 bits into fp32, as GPUs with bf16 do.
    Source: PyTorch, `torch/nn/modules/linear_cross_entropy.py`, and `_options.py`.
    """
    if not hasattr(torch.nn, "LinearCrossEntropyOptions"):  # from PyTorch 2.13 on
        yield
        return
    from torch.nn.modules import linear_cross_entropy as loss

    build = loss._ChunkContext.build.__func__
    asked = tuple("meta" if constant == "cuda" else constant for constant in build.__code__.co_consts)
    code = build.__code__.replace(co_consts=asked)
    on_meta = FunctionType(code, build.__globals__, build.__name__, build.__defaults__)

    def wide(dtype, device):
        return torch.float32 if dtype in (torch.float16, torch.bfloat16) else None

    def run(*args):
        retained = 11  # whether its gradients may be read twice, which is backward's business
        return loss._linear_cross_entropy_batch_chunked_accumulator(*args[:retained], *args[retained + 1 :])

    operation = loss._linear_cross_entropy_batch_chunked._opoverload
    with (
        mock.patch.object(loss._ChunkContext, "build", classmethod(on_meta)),
        mock.patch.object(torch.nn.LinearCrossEntropyOptions, "_resolve_auto_acc_dtype", staticmethod(wide)),
        mock.patch.dict(IN_THE_OPEN, {operation: run}),
    ):
        yield


def fused_optimizers_on_meta():
    """A context in which PyTorch's optimizers take their CUDA paths (`fused=True`) on device "meta"."""
    name = "_get_fused_kernels_supported_devices"
    supported = getattr(optimizer, name)
    return mock.patch.object(optimizer, name, lambda: [*supported(), "meta"])


def clipping_on_meta():
    """Within it `clip_grad_norm_` takes its CUDA path for tensors on device "meta": the norms of all tensors at once."""
    from torch.nn.utils import clip_grad

    asked, known = clip_grad._has_foreach_support, clip_grad._device_has_foreach_support

    def all_at_once(tensors, on):
        return asked(tensors, torch.device("cuda") if on.type == "meta" else on)

    return patched(
        (clip_grad, "_has_foreach_support", all_at_once),
        (clip_grad, "_device_has_foreach_support", lambda on: on.type == "meta" or known(on)),
    )


def paged_states(setup, tracker):
    """A context in which bitsandbytes pages an optimizer's states without a driver: paged states are on the host."""
    if not OPTIMIZERS[setup.optimizer].paged:
        return nullcontext()
    functional = package("bitsandbytes", f"Setup.optimizer: {setup.optimizer!r}").functional

    def get_paged(*shape, dtype, device):
        with tracker.on_host():
            return torch.empty(shape, dtype=dtype, device=device)

    nothing = {name: lambda *_, **__: None for name in ("fill", "prefetch_tensor")}
    return mock.patch.multiple(functional, get_paged=get_paged, **nothing)


def saved_on_host(tracker):
    """A context in which what autograd saves under `save_on_cpu` stands in the memory of the CPU. On meta PyTorch would copy nothing.

    A copy to the host of numbers that are not contiguous begins with a copy on the GPU (`aten/src/ATen/native/cuda/Copy.cu`). What stood on
    the host, as attention's random state, is not moved back from there (`save_on_cpu` in `torch/autograd/graph.py`).
    """

    def pack(saved):
        if not saved.is_contiguous():
            copy = torch.empty(saved.shape, dtype=saved.dtype, device="meta")
            del copy
        with tracker.on_host():
            return tracker.is_on_host(saved), torch.empty(saved.shape, dtype=saved.dtype, device="meta")

    def unpack(packed):
        stays, saved = packed
        return saved if stays else torch.empty_like(saved)

    return mock.patch.object(graph, "save_on_cpu", lambda *_, **__: graph.saved_tensors_hooks(pack, unpack))


@contextmanager
def quantized_weights(setup):
    """A context in which bitsandbytes' product with a 4-bit weight takes its CUDA kernel's memory: the whole weight, and its scales.

    Source: bitsandbytes, backends/cuda/ops.py, `_dequant_linear_fallback`: used from 1,537 rows on by every GPU, and with fewer by
    those for which `_gemm_4bit_use_custom_cuda` says so.
    """
    if setup.quantization == "none":
        yield
        return
    package("bitsandbytes", f"Setup.quantization: {setup.quantization!r}")
    packet = torch.ops.bitsandbytes.gemm_4bit

    def scratch(a, b, shape, absmax, blocksize, *_):
        numbers = shape[0] * shape[1]
        scales = -(-numbers // blocksize) * 4
        return scales, scales, numbers * a.itemsize

    def flops(a, b, shape, *_, **__):
        return 2 * a.numel() * shape[0]

    with mock.patch.dict(SCRATCH, {packet.default: scratch}), mock.patch.dict(FLOPS, {packet: flops}):
        yield
