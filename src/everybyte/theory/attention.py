"""Attention on the tape: the scores one by one, and the kernels that CUDA takes, each with what it makes, saves and pads."""

from functools import partial

from .autograd import record, save, wants_gradient
from .letters import over, up
from .operations import contiguous, cut, dropout, lowered, matmul, safe_softmax, scale, transpose, whole
from .tape import BITS16, BOOL, COMPLEX, FP32, INT64
from .tensors import Tensor, is_contiguous, laid_out, new, reshaped, several, strides_like, transposed

#: The memory-efficient kernel takes masks whose rows begin at multiples of so many numbers.
MASK_MULTIPLE = 8


def pad(x, multiple, title):
    """The last dimension padded to a multiple. Backward copies the unpadded part of the gradient."""
    out = new(x.tape, f"{title} padded", (*x.shape[:-1], multiple * up(x.shape[-1], multiple)), x.type)
    record(out, f"{title} padded", whole(f"{title} padding backward", x.shape), [x])
    return out


def put(x, values, title):
    """Numbers copied into a part of a tensor, in place, whose history the tensor then has.

    Backward copies the gradient of the whole, and of it the part's; where the whole had a history, it sets the part to zeros.

    Source: `torch/csrc/autograd/functions/tensor.cpp`, `CopySlices` and `CopyBackwards`.
    """
    shape, type = values.shape, values.type

    def run(node, grads):
        whole = new(grads[0].tape, f"{title}: whole gradient copied", grads[0].shape, grads[0].type)
        part = new(whole.tape, f"{title}: its part", shape, type)
        zeros = new(whole.tape, f"{title}: zeros", shape, type) if node.edges[0] else None  # noqa: F841
        return [whole if node.edges[0] else None, part]

    record(x, title, run, [x, values])


def as_complex(x, title):
    """Pairs of numbers as complex ones, a view. Backward reads the gradient as it lies where it is contiguous, and else copies it."""
    half = [over(stride, 2) for stride in x.strides[:-1]]
    out = Tensor(x.shape[:-1], tuple(map(int, half)), x.storage, COMPLEX, x.base or x)
    record(out, title, lambda node, grads: [_real(contiguous(grads[0], f"{title} gradient copied"))], [x])
    return out


def _real(x):
    return Tensor((*x.shape, 2), (*(2 * stride for stride in x.strides), 1), x.storage, FP32, x.base or x)


def as_real(x, title):
    """Complex numbers as pairs, a view."""
    out = _real(x)

    def run(node, grads):
        grad = contiguous(grads[0], f"{title} gradient copied")
        strides = tuple(stride // 2 for stride in grad.strides[:-1])
        return [Tensor(grad.shape[:-1], strides, grad.storage, COMPLEX, grad.base or grad)]

    record(out, title, run, [x])
    return out


def repeat_heads(x, groups, title, dim=1):
    """Each key or value head repeated, always a copy. dim: where the heads are. Source: `repeat_interleave` of a number: expand, clone, flatten."""
    before = x.shape
    shape = (*x.shape[:dim], x.shape[dim] * groups, *x.shape[dim + 1 :])
    out = new(x.tape, f"{title} repeated", shape, x.type)

    def run(node, grads):
        grad = grads[0]
        if groups == 1:
            return [reshaped(grad, before, f"{title} gradient copied")]
        return [new(grad.tape, f"{title} gradients added", before, grad.type)]

    record(out, f"{title} repeated", run, [x])
    return out


def scaled_dot_product_attention(q, k, v, probability=0.0, mask=None, copies=False):
    """Attention of queries (B, A, S, D) to K key and value heads (B, K, T, D), by the kernel that PyTorch chooses on CUDA.

    In 16 bits it is flash attention, with heads padded to a multiple of eight. With a mask, with values of another width, or in
    fp32 it is the memory-efficient kernel. What fits neither computes the scores in fp32. Source: `native/transformers/cuda/sdp_utils.cpp`,
    `native/transformers/attention.cpp`.

    Args:
        copies: whether flash attention's backward copies a result, or its gradient, that is not stored token by token.
    """
    tape = q.tape
    v, k, q = (lowered(x, f"{n} cast") for n, x in zip("vkq", (v, k, q), strict=True))
    if q.type.name in BITS16 and mask is None and q.shape[-1] == v.shape[-1]:
        return padded(q, k, v, partial(_attention, Flash(tape, copies)))
    bias = [] if mask is None else [_bias(q, mask)]
    if q.shape[-1] % 4 or q.shape[1] != k.shape[1]:
        return _math(tape, q, k, v, probability)
    return _attention(Efficient(tape, sums=wants_gradient(tape, q, k, v)), q, k, v, bias)


def _bias(q, mask):
    """A boolean mask as numbers to add, its rows padded as the kernel needs them, before heads share it. Source: `pad_bias`."""
    tape, rows = q.tape, mask.shape[-1]
    infinity, zero = new(tape, "minus infinity", (), q.type), new(tape, "zero", (), q.type)
    bias = new(tape, "mask as numbers", mask.shape, q.type)
    del infinity, zero
    if rows % MASK_MULTIPLE:
        bias = new(tape, "mask padded", (*mask.shape[:-1], MASK_MULTIPLE * up(rows, MASK_MULTIPLE)), q.type)
    return bias


def _attention(kernel, q, k, v, bias=()):
    """One attention kernel: its result, and what it saves besides."""
    saved, place = save(kernel.tape, [q, k, v], q, k, v, *bias), len(bias)
    out, *kept = kernel.tape.kernel("aten._scaled_dot_product_flash_attention", lambda: kernel.forward(q, k, v))

    def run(node, grads, q, k, v, *read):
        return kernel.backward(q, k, v, read[place], grads[0])

    record(out, "flash attention", run, [q, k, v], saved, [out, *kept])
    return out


def padded(q, k, v, attend):
    """What `attend` makes of heads that are padded to a multiple of eight, as flash attention takes them; the padding is cut off."""
    width = q.shape[-1]
    if width % 8:
        q, k, v = (pad(x, 8, name) for name, x in zip("qkv", (q, k, v), strict=True))
    out = attend(q, k, v)
    return cut(out, width, "padding") if width % 8 else out


class Flash:
    """Flash attention. Source: `native/transformers/cuda/attention.cu`, `attention_backward.cu`.

    Args:
        copies: whether backward copies a result, or its gradient, that is not stored token by token.
    """

    def __init__(self, tape, copies=True):
        self.tape, self.copies = tape, copies

    def forward(self, q, k, v):
        """The result, and what backward reads besides."""
        made = several(self.tape, "flash attention", *self.results(q, v))
        self.tape.multiplied(2, *q.shape[:3], k.shape[2], q.shape[3], by="attention")
        return made

    def backward(self, q, k, v, out, dout):
        """The gradients: the scores again, and two products for each of their two."""
        made = several(self.tape, "flash attention backward", *self.gradients(q, k, v, out, dout))
        self.tape.multiplied(5, *q.shape[:3], k.shape[2], q.shape[3], by="attention backward")
        return made[:3]

    def results(self, q, v):
        """Beside the result: of the scores, the logarithm of each row's sum; the dropout's random state."""
        return (q.shape, q.type, strides_like(q)), (q.shape[:3], FP32), ((2,), INT64), ((), INT64)

    def gradients(self, q, k, v, out, dout):
        """Of each input one, and what is copied for them."""
        read = (dout, out) if self.copies else ()
        copies = [(x.shape, x.type) for x in read if not is_contiguous(transposed(x, 1, 2))]
        return *((x.shape, x.type, strides_like(x)) for x in (q, k, v)), *copies


class Efficient(Flash):
    """The memory-efficient kernel, whose random state stands on the CPU. sums: whether the sums' logarithms are made: for gradients."""

    def __init__(self, tape, sums=True):
        super().__init__(tape)
        self.sums = sums

    def results(self, q, v):
        """The result, and the sums' logarithms."""
        shape, rows = (*q.shape[:3], v.shape[-1]), (*q.shape[:2], 32 * up(q.shape[2], 32))
        return (shape, q.type, permuted(shape)), *[(rows, FP32)] * self.sums

    def gradients(self, q, k, v, out, dout):
        """Of each input one."""
        return [(x.shape, x.type, permuted(x.shape)) for x in (q, k, v)]


def permuted(shape):
    """Strides of (B, A, S, D) for data laid out as (B, S, A, D)."""
    return laid_out(shape, (3, 1, 2, 0))


def _math(tape, q, k, v, probability):
    """The fallback where no kernel fits: the scores are stored. Source: `_scaled_dot_product_attention_math`."""
    sequence, groups = q.shape[2], over(q.shape[1], k.shape[1])
    q = scale(q, "q scaled")
    ones = new(tape, "ones", (sequence, sequence), BOOL)
    past = new(tape, "past", (sequence, sequence), BOOL)
    del ones
    infinity = new(tape, "minus infinity", (), q.type)
    zero = new(tape, "zero", (), q.type)
    mask = new(tape, "mask", (sequence, sequence), q.type)
    del infinity, zero, past
    if groups > 1:
        k, v = repeat_heads(k, groups, "k"), repeat_heads(v, groups, "v")
    weights = matmul(q, transpose(scale(k, "k scaled"), 2, 3), "scores", ("q", "k"))
    weights = safe_softmax(weights, "softmax")
    weights = dropout(weights, probability, "weights")
    out = matmul(weights, v, "heads", ("weights", "v"))
    del mask
    return out
