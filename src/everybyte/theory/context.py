"""Ring attention: what PyTorch's `context_parallel` makes, holds and frees on one of c GPUs that share every sequence.

Each GPU has S / c tokens of a sequence: a piece from its beginning and one as long from its end. Its queries stay. Keys and
values of all others come by, one GPU's at a time, and after each the result so far and the new one are merged in fp32. In
backward the gradients of keys and values travel on with them, in fp32 too.

The functions are those of `torch/distributed/tensor/experimental/_context_parallel/_attention.py`, by their names and line by
line, as what a variable still names lives. What is sent lives until what comes is waited for: NCCL's process group keeps it.
"""

from ..ask.setup import Setup
from . import attention
from . import operations as op
from .autograd import record, save
from .letters import Letter, over, product, up
from .tape import BITS16, FP32, INT32, INT64
from .tensors import (
    Tensor,
    contiguous_strides,
    is_contiguous,
    new,
    reshaped,
    several,
    strides_like,
    strides_of_joined,
    strides_through,
    transposed,
    view,
)  # fmt: skip


def own_sequence(setup: Setup):
    """Tokens of each sequence that one GPU has."""
    sequence = Letter(setup.sequence, "S")
    return sequence if setup.mesh.context == 1 else over(sequence, Letter(setup.mesh.context, "C"))


def cut(tape, beside, sequence, parts):
    """What entering `context_parallel` makes; returns what it holds until it is left.

    Args:
        beside: of each tensor that is cut, such as tokens, targets and positions, its dimensions before the sequence.
    """
    order = _head_and_tail(tape, sequence, parts)
    mine = over(sequence, parts)
    shards = []
    for first in beside:
        buffer = None  # the loop's next
        buffer = new(tape, "tokens reordered", (*first, sequence), INT64)
        shards.append(new(tape, "own tokens", (*first, mine), INT64))
    del buffer, order
    for shard in shards:
        shard = new(tape, "own tokens copied", shard.shape, INT64)  # noqa: PLW2901  as the loop does
    return shards, shard


def _head_and_tail(tape, sequence, parts):
    """Which token goes where. Source: `_HeadTailLoadBalancer._generate_indices`."""
    piece = over(sequence, 2 * parts)
    indices = new(tape, "places", (sequence,), INT32)  # noqa: F841
    heads = new(tape, "heads", (parts,), INT64)  # noqa: F841
    tails = new(tape, "tails", (parts,), INT64)  # noqa: F841
    parts_of = new(tape, "heads' places", (parts, piece), INT32), new(tape, "tails' places", (parts, piece), INT32)
    paired = new(tape, "places paired", (sequence,), INT32)
    del parts_of
    return paired


def own(x, parts):
    """A tensor that `context_parallel` has cut, in place: its first numbers, in the bytes that it had."""
    shape = (*x.shape[:-1], over(x.shape[-1], parts))
    return Tensor(shape, contiguous_strides(shape), x.storage, x.type)


class Ring:
    """Ring attention, as `scaled_dot_product_attention`: (B, A, S / c, D) by (B, K, S / c, D).

    Args:
        parts: GPUs that share a sequence. rank: this one's place among them. rotation: `all-gather` or `all-to-all`.
    """

    def __init__(self, parts, rank, rotation):
        self.size, self.rank, self.rotation = int(parts), rank, rotation
        self.parts = parts

    def cut(self, tape, beside, sequence):
        """What entering the ring makes; returns what it holds until it is left."""
        return cut(tape, beside, sequence, self.parts)

    def __call__(self, q, k, v, probability=0.0):
        v, k, q = (op.lowered(x, f"{n} cast") for n, x in zip("vkq", (v, k, q), strict=True))
        if q.type.name in BITS16:
            return self._padded(q, k, v)
        return self._attention(_Efficient(q.tape), q, k, v)

    def _padded(self, q, k, v):
        width = q.shape[-1]
        if width % 8:
            q, k, v = (attention.pad(x, 8, name) for name, x in zip("qkv", (q, k, v), strict=True))
        out = self._attention(_Flash(q.tape), q, k, v)
        return op.cut(out, width, "padding") if width % 8 else out

    def _attention(self, kernel, q, k, v):
        tape = q.tape
        saved = save(tape, [q, k, v], q, k, v)
        out, *kept = tape.kernel(
            "aten._scaled_dot_product_flash_attention", lambda: self._forward(tape, kernel, q, k, v)
        )

        def run(node, grads, *read):
            return self._backward(tape, kernel, grads[0], *read)

        record(out, "ring attention", run, [q, k, v], saved, [out, *kept])
        return out

    def _rotater(self, tape, rotation=None):
        return (_AllGather if (rotation or self.rotation) == "all-gather" else _AllToAll)(tape, self.parts)

    def _forward(self, tape, kernel, query, key, value):
        """Source: `_templated_ring_attention`."""
        keys = key
        key, value = _contiguous(key, "k copied"), _contiguous(value, "v copied")
        merger, rotater = _Merger(tape), self._rotater(tape)
        for i in range(self.size):
            if i > 0:
                next_kv = rotater.next_buffer()
                key, value = _first(next_kv, key.shape), _first(next_kv, value.shape)
            if i < self.size - 1:
                next_kv = _side_by_side(tape, "keys and values", [key, value])
                next_kv = rotater.exchange(next_kv)
            if i == 0:
                q, k, v, partial = query, key, value, False
            elif i <= self.rank:
                q, k, v, partial = query, _half(key), _half(value), False
            else:
                q, k, v, partial = _half(query), key, value, True
            out, logsumexp, *rest = kernel.forward(q, k, v)
            merger.step(out, logsumexp, partial)
        del keys
        return [*merger.results(), *rest]

    def _backward(self, tape, kernel, grad_out, query, key, value, out, logsumexp, *rest):
        """Source: `_templated_ring_attention_backward`."""
        queries, keys, values = query, key, value  # noqa: F841  the callers' own
        kind = query.type
        grad_query = _like("q's gradient so far", query, FP32)
        grad_key = _like("k's gradient so far", key, FP32)
        grad_value = _like("v's gradient so far", value, FP32)
        key, value = _contiguous(key, "k copied"), _contiguous(value, "v copied")
        kv_rotater, dkv_rotater = self._rotater(tape), self._rotater(tape, "all-to-all")
        for i in range(self.size):
            if i > 0:
                buffer = kv_rotater.next_buffer()
                key, value = _first(buffer, key.shape), _first(buffer, value.shape)
            if i != self.size - 1:
                next_kv = _side_by_side(tape, "keys and values", [key, value])
                kv_rotater.exchange(next_kv)
            if i == 0:
                q, k, v, out_, dout, _lse = query, key, value, out, grad_out, logsumexp
            elif i <= self.rank:
                q, k, v, out_, dout, _lse = query, _half(key), _half(value), out, grad_out, logsumexp
            else:
                q, k, v, out_, dout, _lse = (
                    _half(query), key, value, _half(out), _half(grad_out), _contiguous(_half(logsumexp), "log-sums copied")
                )  # fmt: skip
            grad_query_, grad_key_, grad_value_ = kernel.backward(q, k, v, out_, dout)
            if i > 0:
                next_grad_kv = dkv_rotater.next_buffer()
                grad_key, grad_value = _first(next_grad_kv, grad_key.shape), _first(next_grad_kv, grad_value.shape)
                if i <= self.rank:
                    grad_key = _joined("k's gradient so far", grad_key)
                    grad_value = _joined("v's gradient so far", grad_value)
            next_grad_kv = _side_by_side(tape, "gradients of keys and values", [grad_key, grad_value])
            dkv_rotater.exchange(next_grad_kv)
            if i > self.rank:
                grad_query = _joined("q's gradient so far", grad_query)
        grad_query = _cast(grad_query, kind, "q's gradient")
        next_grad_kv = _cast(dkv_rotater.next_buffer(), kind, "gradients of keys and values")
        return [grad_query, _first(next_grad_kv, grad_key.shape), _first(next_grad_kv, grad_value.shape)]


# What PyTorch's classes are called there: `_SDPAMerger`, `_AllGatherRotater`, `_AllToAllRotater`.


class _Merger:
    """The result so far and its logarithm of each row's sum, in fp32."""

    def __init__(self, tape):
        self.tape, self.out, self.lse = tape, None, None

    def step(self, out, lse, partial):
        self.kinds = out.type, lse.type
        out, lse = _cast(out, FP32, "part in fp32"), _cast(lse, FP32, "log-sums in fp32")
        self._merge(out, lse, partial)

    def _merge(self, block_out, block_lse, partial):
        block_lse = view(block_lse, (*block_lse.shape, 1), (*block_lse.strides, 1))
        if self.lse is None:
            self.lse, self.out = block_lse, block_out
            return
        lse = _half(self.lse) if partial else self.lse
        out = _half(self.out) if partial else self.out
        out = _two(
            "merged", out,
            _two("part's change", _one("part's share", _two("log-sums apart", block_lse, lse)), _two("parts apart", out, block_out)),
        )  # fmt: skip
        lse = _two("log-sums merged", lse, _one("log of a share", _two("log-sums apart", lse, block_lse)))
        if partial:
            self.lse = _joined("log-sums merged", self.lse, lse)
            self.out = _joined("merged", self.out, out)
        else:
            self.lse, self.out = lse, out

    def results(self):
        out = _cast(self.out, self.kinds[0], "merged, cast")
        lse = view(self.lse, self.lse.shape[:-1], self.lse.strides[:-1])
        return out, _cast(lse, self.kinds[1], "log-sums cast")


class _AllToAll:
    """Each GPU sends to the next. What it sent lives until what comes is there."""

    def __init__(self, tape, parts):
        self.tape, self.parts, self.buffer, self.sent = tape, parts, None, None

    def exchange(self, given):
        self.buffer = new(self.tape, "keys and values from the neighbor", given.shape, given.type)
        self.sent = given

    def next_buffer(self):
        self.sent = None
        return self.buffer


class _AllGather(_AllToAll):
    """The keys and values of all GPUs come at the first exchange; the later ones do nothing."""

    def exchange(self, given):
        if self.buffer is None:
            shape = (self.parts * given.shape[0],)
            self.buffer, self.sent = new(self.tape, "keys and values from all", shape, given.type), given


# The kernels, called below autograd.


class _Flash:
    """Source: `native/transformers/cuda/attention.cu`, `attention_backward.cu`."""

    def __init__(self, tape):
        self.tape = tape

    def forward(self, q, k, v):
        made = several(self.tape, "flash attention", *self.results(q))
        self.tape.multiplied(2, *q.shape[:3], k.shape[2], q.shape[3], by="attention")
        return made

    def backward(self, q, k, v, out, dout):
        made = several(self.tape, "flash attention backward", *self.gradients(q, k, v, out, dout))
        self.tape.multiplied(5, *q.shape[:3], k.shape[2], q.shape[3], by="attention backward")
        return made[:3]

    def results(self, q):
        return (q.shape, q.type, strides_like(q)), (q.shape[:3], FP32), ((2,), INT64), ((), INT64)

    def gradients(self, q, k, v, out, dout):
        copies = [(x.shape, x.type) for x in (dout, out) if not is_contiguous(transposed(x, 1, 2))]
        return *((x.shape, x.type, strides_like(x)) for x in (q, k, v)), *copies


class _Efficient(_Flash):
    """The memory-efficient kernel. Its random state stands on the CPU."""

    def results(self, q):
        rows = (*q.shape[:2], 32 * up(q.shape[2], 32))
        return (q.shape, q.type, attention.permuted(q.shape)), (rows, FP32)

    def gradients(self, q, k, v, out, dout):
        return [(x.shape, x.type, attention.permuted(x.shape)) for x in (q, k, v)]


# Tensors below autograd.


def _contiguous(x, title):
    return x if is_contiguous(x) else new(x.tape, title, x.shape, x.type)


def _like(title, x, type):
    return new(x.tape, title, x.shape, type, strides_like(x))


def _cast(x, type, title):
    return x if x.type.name == type.name else _like(title, x, type)


def _one(title, x):
    return new(x.tape, title, x.shape, x.type, strides_through(x.shape, x))


def _two(title, x, y):
    """Of two tensors, number by number; of four dimensions the last may be repeated."""
    shape = (*x.shape[:3], max(x.shape[3], y.shape[3]))
    return new(x.tape, title, shape, x.type, strides_through(shape, x, y))


def _half(x):
    """Half of the tokens: which half makes no difference in bytes."""
    return view(x, (*x.shape[:2], over(x.shape[2], 2), *x.shape[3:]), x.strides)


def _joined(title, x, half=None):
    """Source: `_partial_update`: two halves side by side, of which one was changed or is another tensor's."""
    other = _half(x)
    parts = [other, half if half is not None else other]
    return new(x.tape, title, x.shape, x.type, strides_of_joined(parts, x.shape))


def _side_by_side(tape, title, tensors):
    flat = [reshaped(x, (product(x.shape),), f"{title} flattened") for x in tensors]
    return new(tape, title, (flat[0].shape[0] + flat[1].shape[0],), flat[0].type)


def _first(x, shape):
    """So many of a buffer's numbers, in a shape."""
    return view(x, shape, contiguous_strides(shape))
