"""What one of c GPUs makes, holds and frees that share every sequence: ring attention, PyTorch's `context_parallel`, or Ulysses.

In a ring each GPU has S / c tokens of a sequence: a piece from its beginning and one as long from its end. Its queries stay. Keys and
values of all others come by, one GPU's at a time, and after each the result so far and the new one are merged in fp32. In
backward the gradients of keys and values travel on with them, in fp32 too.

The functions are those of `torch/distributed/tensor/experimental/_context_parallel/_attention.py`, by their names and line by
line, as what a variable still names lives. What is sent lives until what comes is waited for: NCCL's process group keeps it.
"""

from functools import partial

from ..ask.setup import Setup
from . import attention
from . import operations as op
from .autograd import record, save
from .letters import Letter, over, product
from .programs import source
from .tape import BITS16, FP32, INT32, INT64
from .tensors import (
    Tensor,
    contiguous_strides,
    new,
    reshaped,
    strides_of_joined,
    view,
)  # fmt: skip


def own_sequence(setup: Setup):
    """Tokens of each sequence that one GPU has."""
    sequence = Letter(setup.sequence, "S")
    return sequence if setup.mesh.context == 1 else over(sequence, Letter(setup.mesh.context, "C"))


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
        """What entering `context_parallel` makes; returns what it holds until it is left.

        Args:
            beside: of each tensor that is cut, such as tokens, targets and positions, its dimensions before the sequence.
        """
        order, shards = _head_and_tail(tape, sequence, self.parts), []
        for first in beside:
            buffer = None  # the loop's next
            buffer = new(tape, "tokens reordered", (*first, sequence), INT64)
            shards.append(new(tape, "own tokens", (*first, over(sequence, self.parts)), INT64))
        del buffer, order
        for shard in shards:
            shard = new(tape, "own tokens copied", shard.shape, INT64)  # noqa: PLW2901  as the loop does
        return shards, shard

    def __call__(self, q, k, v, probability=0.0):
        v, k, q = (op.lowered(x, f"{n} cast") for n, x in zip("vkq", (v, k, q), strict=True))
        if q.type.name in BITS16:
            return attention.padded(q, k, v, partial(self._attention, attention.Flash(q.tape)))
        return self._attention(attention.Efficient(q.tape), q, k, v)

    def _attention(self, kernel, q, k, v):
        tape = q.tape
        saved = save(tape, [q, k, v], q, k, v)

        def forward():
            with tape.within(grad=False):
                return self._forward(tape, kernel, q, k, v)

        out, *kept = tape.kernel("aten._scaled_dot_product_flash_attention", forward)

        def run(node, grads, *read):
            return self._backward(tape, kernel, grads[0], *read)

        record(out, "ring attention", run, [q, k, v], saved, [out, *kept])
        return out

    def _rotater(self, tape, rotation=None):
        return (_AllGather if (rotation or self.rotation) == "all-gather" else _AllToAll)(tape, self.parts)

    def _forward(self, tape, kernel, query, key, value):
        """Source: `_templated_ring_attention`."""
        keys = key
        key, value = op.contiguous(key, "k copied"), op.contiguous(value, "v copied")
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
        grad_query = op.like("q's gradient so far", query, FP32)
        grad_key = op.like("k's gradient so far", key, FP32)
        grad_value = op.like("v's gradient so far", value, FP32)
        key, value = op.contiguous(key, "k copied"), op.contiguous(value, "v copied")
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
                    _half(query), key, value, _half(out), _half(grad_out), op.contiguous(_half(logsumexp), "log-sums copied")
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
        grad_query = op.cast(grad_query, kind, "q's gradient")
        next_grad_kv = op.cast(dkv_rotater.next_buffer(), kind, "gradients of keys and values")
        return [grad_query, _first(next_grad_kv, grad_key.shape), _first(next_grad_kv, grad_value.shape)]


class Ulysses:
    """DeepSpeed-Ulysses, `reference/mesh/ulysses.py`: attention of this GPU's heads to all tokens. parts: GPUs that share a sequence."""

    def __init__(self, parts):
        self.parts = parts

    def cut(self, tape, beside, sequence):
        """What keeping its own tokens makes; nothing of it stays. beside: as `Ring.cut`'s."""
        for first in beside:
            new(tape, "own tokens", (*first, over(sequence, self.parts)), INT64)

    def __call__(self, q, k, v, probability=0.0):
        return source("mesh.ulysses").exchanged(_SWAPPED, q, k, v, self.parts, None, probability=probability)


#: Of heads that lie one after another, whose results backward copies.
_SWAPPED = partial(attention.scaled_dot_product_attention, copies=True)


# What PyTorch's classes are called there: `_SDPAMerger`, `_AllGatherRotater`, `_AllToAllRotater`.


class _Merger:
    """The result so far and its logarithm of each row's sum, in fp32."""

    def __init__(self, tape):
        self.tape, self.out, self.lse = tape, None, None

    def step(self, out, lse, partial):
        self.kinds = out.type, lse.type
        block_out, block_lse = op.cast(out, FP32, "part in fp32"), op.cast(lse, FP32, "log-sums in fp32")
        block_lse = view(block_lse, (*block_lse.shape, 1), (*block_lse.strides, 1))
        if self.lse is None:
            self.lse, self.out = block_lse, block_out
            return
        lse = _half(self.lse) if partial else self.lse
        out = _half(self.out) if partial else self.out
        out = op.through(
            "merged", out,
            op.through("part's change", op.through("part's share", op.through("log-sums apart", block_lse, lse)), op.through("parts apart", out, block_out)),
        )  # fmt: skip
        lse = op.through(
            "log-sums merged", lse, op.through("log of a share", op.through("log-sums apart", lse, block_lse))
        )
        if partial:
            self.lse = _joined("log-sums merged", self.lse, lse)
            self.out = _joined("merged", self.out, out)
        else:
            self.lse, self.out = lse, out

    def results(self):
        out = op.cast(self.out, self.kinds[0], "merged, cast")
        lse = view(self.lse, self.lse.shape[:-1], self.lse.strides[:-1])
        return out, op.cast(lse, self.kinds[1], "log-sums cast")


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


# Tensors below autograd.


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
