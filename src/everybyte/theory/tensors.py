"""Tensors with shapes, strides and a storage, and no numbers: which operations copy, and which are views.

Each function here is one of PyTorch's, by what it takes: `aten/src/ATen/native/TensorShape.cpp` for the views,
`aten/src/ATen/TensorIterator.cpp` for what element by element operations lay out.
"""

from .letters import product
from .tape import Storage, Tape, Type


class Tensor:
    """A tensor.

    Attributes:
        shape: dimensions, letters or numbers. strides: numbers. storage: its bytes. type: of its numbers.
        node, slot: the operation that made it, for autograd, and which of its results it is; None without gradient.
        base: the tensor that it is a view of, which it keeps alive. turn: (loop, number) of the turn that it stands for, if any.
        sent: the tensor sent in exchange for what other GPUs sent, until that has come.
    """

    __slots__ = ("base", "node", "sent", "shape", "slot", "storage", "strides", "turn", "type")

    def __init__(self, shape, strides, storage: Storage, type: Type, base=None):
        self.shape, self.strides, self.storage, self.type, self.base = shape, strides, storage, type, base
        self.node, self.slot, self.turn, self.sent = None, 0, None, None

    @property
    def tape(self) -> Tape:
        """Where it is recorded."""
        return self.storage.tape

    def alias(self):
        """The same bytes, without history."""
        return Tensor(self.shape, self.strides, self.storage, self.type)


def laid_out(shape, order):
    """Strides of dimensions that run in that order, the fastest first."""
    strides, step = [0] * len(shape), 1
    for d in order:
        strides[d] = step
        step *= max(int(shape[d]), 1)
    return tuple(strides)


def contiguous_strides(shape):
    """Strides of a tensor whose last dimension runs fastest."""
    return laid_out(shape, reversed(range(len(shape))))


def is_contiguous(x):
    """Whether its elements are contiguous in the order of its dimensions."""
    own = contiguous_strides(x.shape)
    return all(size == 1 or a == b for size, a, b in zip(x.shape, x.strides, own, strict=True))


def is_dense(x):
    """Whether its elements are contiguous in some order of its dimensions."""
    step = 1
    for stride, size in sorted((t, int(s)) for t, s in zip(x.strides, x.shape, strict=True) if s != 1):
        if stride != step:
            return False
        step *= size
    return True


def strides_like(x):
    """Strides of `empty_like(x)` and of a cast."""
    if is_dense(x):
        return x.strides
    return laid_out(x.shape, sorted(range(len(x.shape)), key=lambda d: (x.strides[d], -d)))


def _channels_last(x):
    """Whether four dimensions are laid out in channels-last order. Source: `c10/core/MemoryFormat.h`."""
    if len(x.shape) != 4 or x.strides[1] == 0:
        return False
    least = 0
    for d in (1, 3, 2, 0):
        if x.strides[d] < least or (d == 0 and least == x.strides[1]):
            return False
        least = x.strides[d] * max(int(x.shape[d]), 1)
    return True


def strides_through(shape, *operands):
    """Strides of the result of an elementwise operation on these operands.

    Source: `aten/src/ATen/TensorIterator.cpp`, `compute_fast_setup_type` and `reorder_dimensions`.
    """
    same = all(
        len(x.shape) == len(shape) and all(a == b for a, b in zip(x.shape, shape, strict=True)) for x in operands
    )
    if same:
        if all(map(is_contiguous, operands)):
            return contiguous_strides(shape)
        first = operands[0].strides
        if all(x.strides == first and is_dense(x) for x in operands):
            return first
    rows = [_broadcast(x, shape) for x in operands]
    order = list(range(len(shape)))[::-1]
    for i in range(1, len(order)):
        right = i
        for left in range(i - 1, -1, -1):
            swap = _compared(shape, rows, order[left], order[right])
            if swap > 0:
                order[left], order[right] = order[right], order[left]
                right = left
            elif swap < 0:
                break
    return laid_out(shape, order)


def _broadcast(x, shape):
    """Strides of `x` read in a larger shape: 0 where it is repeated."""
    missing = len(shape) - len(x.shape)
    read = (0 if a == 1 and b != 1 else s for a, b, s in zip(x.shape, shape[missing:], x.strides, strict=True))
    return [0] * missing + list(read)


def _compared(shape, rows, a, b):
    """1 where dimension `a` is slower than `b`, -1 where it is faster, 0 where the operands do not say."""
    for row in rows:
        if row[a] and row[b]:
            if row[a] != row[b]:
                return 1 if row[a] > row[b] else -1
            if shape[a] > shape[b]:
                return 1
    return 0


def strides_of_joined(parts, shape):
    """Strides of `torch.cat`: contiguous, unless all parts are channels-last. Source: `native/TensorShape.cpp`."""
    if not all(part is not None and _channels_last(part) for part in parts):
        return contiguous_strides(shape)
    return laid_out(shape, (1, 3, 2, 0))


def viewed(shape, strides, new):
    """Strides of a view in shape `new`; None where the elements must be copied."""
    found, d, chunk, base = [0] * len(new), len(new) - 1, 1, strides[-1] if strides else 1
    for i in range(len(shape) - 1, -1, -1):
        chunk *= int(shape[i])
        if i == 0 or (shape[i - 1] != 1 and strides[i - 1] != chunk * base):
            view = 1
            while d >= 0 and (view < chunk or new[d] == 1):
                found[d] = view * base
                view *= int(new[d])
                d -= 1
            if view != chunk:
                return None
            if i > 0:
                base, chunk = strides[i - 1], 1
    return tuple(found) if d == -1 else None


def new(tape, name, shape, type, strides=None, part=None) -> Tensor:
    """A new tensor, allocated by an operation of that name."""
    (storage,) = tape.take(name, (product(shape), type.width), part=part)
    return Tensor(shape, strides or contiguous_strides(shape), storage, type)


def several(tape, name, *tensors, part=None):
    """New tensors of (shape, type) each, allocated by one operation."""
    storages = tape.take(name, *((product(shape), type.width) for shape, type, *_ in tensors), part=part)
    return [
        Tensor(shape, strides[0] if strides else contiguous_strides(shape), storage, type)
        for (shape, type, *strides), storage in zip(tensors, storages, strict=True)
    ]


def view(x, shape, strides) -> Tensor:
    """A view of the same bytes."""
    return Tensor(shape, strides, x.storage, x.type, x.base or x)


def transposed(x, a, b) -> Tensor:
    """A view with two dimensions exchanged."""
    shape, strides = list(x.shape), list(x.strides)
    shape[a], shape[b] = shape[b], shape[a]
    strides[a], strides[b] = strides[b], strides[a]
    return view(x, tuple(shape), tuple(strides))


def reshaped(x, shape, name) -> Tensor:
    """A view where there is one, else a copy."""
    strides = viewed(x.shape, x.strides, shape)
    return view(x, shape, strides) if strides is not None else new(x.tape, name, shape, x.type)
