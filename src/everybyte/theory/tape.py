"""What a step takes and frees, operation by operation: the storages of PyTorch's tensors, without PyTorch.

A storage is taken by the operation that makes it and freed when nothing refers to it any more. Nobody writes that down:
the program of a step (the source of `reference/`) holds its tensors in variables, autograd's nodes hold
what they save (`autograd`), and a storage that loses its last holder is freed after the operation that has just run.
So releases are Python's own, by reference counting, as they are in PyTorch.
"""

from contextlib import contextmanager, nullcontext
from typing import NamedTuple

from ..step.course import RUNS, Operation
from .letters import text


class Type(NamedTuple):
    """A data type. Tensors are cast where names differ; `width` is the bytes of one number, a letter or a number."""

    name: str
    width: object


FP32, INT64, BOOL, INT32 = Type("fp32", 4), Type("int64", 8), Type("bool", 1), Type("int32", 4)
COMPLEX = Type("complex64", 8)
BITS16 = ("bf16", "fp16")


class Piece:
    """`count` tensors of so many elements, allocated at once. `part` may still change: a tensor becomes a gradient.

    `of`: the piece that this one stands for as often as `count` says, where it is freed with those of other turns.
    """

    __slots__ = ("_key", "count", "numbers", "of", "part", "width")

    def __init__(self, numbers, width, part, count=1, of=None):
        self.numbers, self.width, self.part, self.count, self.of, self._key = numbers, width, part, count, of, None

    @property
    def key(self):
        """(numbers, bytes of one, count), as text."""
        if self._key is None:  # it is asked for at every turn of what repeats
            self._key = text(self.numbers), text(self.width), text(self.count)
        return self._key

    @property
    def kin(self):
        """By which part a freed tensor is sought among those taken: a gradient of activations takes an activation's place."""
        return "activations" if self.part == "transient" else self.part


class Storage:
    """The bytes behind one or more tensors. Freed with its last tensor."""

    __slots__ = ("pieces", "tape")

    def __init__(self, tape, pieces):
        self.tape, self.pieces = tape, pieces

    def free(self):
        """Free the bytes now, though tensors still refer to the storage, as FSDP does."""
        if self.pieces and self.tape.running:
            self.tape.operations[-1].freed.extend(self.pieces)
        self.pieces = ()

    __del__ = free

    def assign(self, part):
        """Say which part the bytes belong to, from their allocation on."""
        for piece in self.pieces:
            piece.part = part


def _alias(x):
    return x.alias()


def run(kind, make):
    """Run a kernel of some kind."""
    return make()


#: The places that repeat, from the outermost.
LOOPS = ("batch", "stage", "layer", "round", "segment", "block", "chunk")
#: Those of them around a network's own.
AROUND = ("batch", "stage")


class Held:
    """In forward: what a node has in place of a tensor that it saves; `frame.unpack(index)` gives the tensor."""

    __slots__ = ("__weakref__", "frame", "index")

    def __init__(self, frame, index):
        self.frame, self.index = frame, index


class Tape:
    """Records the operations of a step.

    Attributes:
        operations: so far. phase: of what runs now. owner: the module that runs now, by its path. place: by loop, which
            turn it is: (("batch", 0), ("block", 2)). grad: whether autograd records. passing: whether backward's functions run. pack: what a node keeps
            of a tensor. kernel: runs a kernel, or gives what it made before. autocast: the type that matrix products are cast
            to, if any; casts: its copies of weights. callbacks: run as backward ends. arrived: parameters in the order in which their
            gradients came. network: whose module runs; naming: what its operations are called.
        stream: on which tensors are made now.
    """

    def __init__(self):
        self.operations: list[Operation] = []
        self.phase, self.owner, self.loss, self.place, self.part = "rest", "", False, (), None
        self.running, self.grad, self.passing, self.pack, self.kernel = True, True, False, _alias, run
        self.casts, self.autocast, self.callbacks, self.arrived, self._sequence = {}, None, [], [], 0
        self.naming = self.network = None
        self.stream = RUNS

    def next_sequence(self):
        """The number of autograd's next node."""
        self._sequence += 1
        return self._sequence

    def casting(self):
        """As `torch.autocast`: each weight is cast once, and the copies are freed at the end."""
        return self.within(casts={})

    def take(self, name, *tensors, part=None, count=1, kind=""):
        """Record an operation that allocates tensors of (elements, width) each. Returns their storages."""
        part = self.part or part or ("loss" if self.loss else "transient" if self.passing else "activations")
        storages = [Storage(self, [Piece(numbers, width, part, count)]) for numbers, width in tensors]
        self.note(name, [s.pieces[0] for s in storages], kind)
        return storages

    def hold(self, name, pieces, kind=""):
        """Record an operation that allocates all these pieces. Returns the storage that holds them."""
        self.note(name, pieces, kind)
        return Storage(self, pieces)

    def note(self, name, pieces, kind=""):
        """Record an operation that allocates these pieces."""
        made = Operation(
            name, self.phase, self.owner, self.loss, self.place, list(pieces), kind=kind, stream=self.stream
        )
        self.operations.append(made)

    def by(self, kernel, *numbers):
        """The last operation runs a kernel of `KERNELS`, with these numbers."""
        self.operations[-1].kernel = kernel, *numbers

    def multiplied(self, *sizes, by="product"):
        """The last operation takes so many multiplications: the product of `sizes`."""
        self.operations[-1].products.append(sizes)
        self.by(by)

    def mark(self, name):
        """A named moment between operations."""
        self.operations.append(Operation(name, name, "", False, self.at("batch")))

    def at(self, *loops):
        """The current place, in these loops alone."""
        return tuple(p for p in self.place if p[0] in loops)

    def turn(self, loop, index):
        """Set the turn of `loop` to `index` within the block."""
        return self.within(place=(*self.at(*LOOPS[: LOOPS.index(loop)]), (loop, index)))

    def turns(self, turn):
        """`turn` for (loop, index); nothing for None."""
        return nullcontext() if turn is None else self.turn(*turn)

    def module(self, path, loss=None):
        """Operations within the block belong to that module, and to head and loss where `loss` is true."""
        return self.within(owner=path, loss=self.loss if loss is None else loss)

    @contextmanager
    def within(self, **changes):
        """Set some attributes within the block."""
        before = {name: getattr(self, name) for name in changes}
        for name, value in changes.items():
            setattr(self, name, value)
        try:
            yield
        finally:
            for name, value in before.items():
                setattr(self, name, value)
