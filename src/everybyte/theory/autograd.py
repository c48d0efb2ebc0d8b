"""PyTorch's autograd, as far as memory goes: what is saved, in which order backward runs, where two gradients meet.

Sources: `torch/csrc/autograd/engine.cpp` (a node runs when all its gradients have come, the latest made first; what it
saved is released after it; results of another shape or type than the input's are summed and cast), `input_buffer.cpp` (two
gradients are added in place only where nobody else holds the first), `functions/accumulate_grad.cpp`, and
`torch/utils/checkpoint.py` (the non-reentrant variant, with early stop).
"""

import heapq
import sys
from contextlib import suppress
from types import SimpleNamespace
from weakref import ref

from .letters import product
from .tape import AROUND, Held, run
from .tensors import Tensor, is_contiguous, is_dense, new

#: The sequence number of a parameter's own node: it runs as soon as it can.
SOON = 2**62


class Node:
    """One operation's backward.

    Attributes:
        run: (node, gradients of its results, saved tensors ...) -> gradients of its inputs; None for one that is not wanted.
        edges: for each input (node, slot, shape, type), or None. saved: what forward saved, packed. hooks: called before it
            runs. spread: whether its tensors are spread over GPUs (`DTensor`s), whose shapes are those of the whole and whose
            gradients are never added in place.
    """

    __slots__ = ("edges", "hooks", "loss", "owner", "place", "run", "saved", "sequence", "slots", "spread", "title")

    def __init__(self, tape, title, run, inputs, saved):
        self.title, self.run, self.slots, self.saved = title, run, 1, saved
        self.owner, self.loss, self.place = tape.owner, tape.loss, tape.at("segment", "block", "chunk")
        self.sequence, self.hooks, self.spread = tape.next_sequence(), (), False
        self.edges = [(x.node, x.slot, x.shape, x.type) if x is not None and x.node else None for x in inputs]


class End:
    """A node at which backward ends. Its `arrive` takes the gradients that have come out of their list."""

    sequence, edges, slots, saved, spread = SOON, (), 1, (), False


class Accumulate(End):
    """A parameter's own node, which accumulates its gradient."""

    def __init__(self, parameter, spread=False):
        self.parameter, self.spread = parameter, spread

    def arrive(self, grads):
        """The gradient has come."""
        grad, parameter = grads[0], self.parameter
        grad.storage.assign("gradients")
        grad.tape.arrived.append(parameter)
        if parameter.grad is None:
            parameter.grad = grad.alias()
        grads.clear()
        del grad
        for hook in parameter.hooks:
            hook(parameter)


class Parameter(Tensor):
    """A leaf that requires a gradient, unless it is frozen.

    Attributes:
        grad: the gradient, once there is one. name: its path. hooks: called with it once its gradient has been added.
        place: its segment and block.
    """

    __slots__ = ("__weakref__", "grad", "hooks", "name", "numbers", "place")

    def __init__(self, name, shape, strides, storage, type, place=(), frozen=False, spread=False):
        super().__init__(shape, strides, storage, type)
        self.name, self.grad, self.hooks, self.place = name, None, [], place
        self.numbers = product(shape)
        self.node = None if frozen else Accumulate(self, spread)


class Leaf(End):
    """The node of a tensor that was made a leaf: it keeps the tensor and its gradient as long as the graph lives."""

    def __init__(self, x):
        self.own, self.grad = x.alias(), None

    def arrive(self, grads):
        """The gradient has come."""
        self.grad = grads.pop()


def wants_gradient(tape, *inputs):
    """Whether autograd records an operation on these inputs."""
    return tape.grad and any(x is not None and x.node is not None for x in inputs)


def save(tape, inputs, *tensors):
    """Save tensors for backward before the kernel runs; nothing where no input requires a gradient."""
    return [tape.pack(x) for x in tensors] if wants_gradient(tape, *inputs) else []


def record(out, title, run, inputs, saved=(), results=(), slot=0, node=None):
    """Record the operation that made `out`. Returns its node, or None where no input requires a gradient.

    Args:
        run: its backward. saved: what `save` gave. results: what it saves of its results.
        slot, node: for a further result of an operation recorded before.
    """
    tape = out.tape
    if not wants_gradient(tape, *inputs):
        return None
    if node is None:
        node = Node(tape, title, run, inputs, [*saved, *map(tape.pack, results)])
    out.node, out.slot = node, slot
    return node


def hooked(out, hook):
    """Have a hook called before backward of a tensor, or of each of a tuple."""
    for made in out if isinstance(out, tuple) else (out,):
        if made.node is not None:
            made.node.hooks = (*made.node.hooks, hook)


def _unpacked(saved):
    """The tensor that was saved in forward, or what is none; a checkpointed block is recomputed here."""
    return saved.frame.unpack(saved.index) if isinstance(saved, Held) else saved


def backward(tape, loss, gradient):
    """Run backward from a loss."""
    waiting, seen, todo = {}, {id(loss.node)}, [loss.node]
    while todo:
        for edge in todo.pop().edges:
            if edge is not None:
                target = edge[0]
                waiting[id(target)] = waiting.get(id(target), 0) + 1
                if id(target) not in seen:
                    seen.add(id(target))
                    todo.append(target)
    ready, buffers, turn = [(-loss.node.sequence, 0, loss.node, [gradient])], {}, 0
    del loss, gradient, seen, todo
    with tape.within(grad=False, passing=True):
        while ready:
            _, _, node, grads = heapq.heappop(ready)
            results = _evaluate(tape, node, grads)
            del grads
            for i, edge in enumerate(node.edges):
                grad, results[i] = results[i], None
                if edge is None:
                    continue
                target, slot = edge[:2]
                key = id(target)
                buffer = buffers.setdefault(key, [None] * target.slots)
                if grad is not None:
                    _meet(tape, node, target, buffer, slot, grad)
                del grad
                waiting[key] -= 1
                if not waiting[key]:
                    turn += 1
                    heapq.heappush(ready, (-target.sequence, turn, target, buffers.pop(key)))
                del buffer, target
            node = edge = None
        for callback in tape.callbacks:
            callback()
        tape.callbacks = []


def _evaluate(tape, node, grads):
    if isinstance(node, End):
        node.arrive(grads)
        return []
    owner, loss, place = tape.owner, tape.loss, tape.place
    tape.owner, tape.loss, tape.place = node.owner, node.loss, (*tape.at(*AROUND), *node.place)
    for hook in node.hooks:
        hook()
    results = node.run(node, grads, *map(_unpacked, node.saved))
    for i, edge in enumerate(node.edges):
        grad = results[i]
        if edge is not None and grad is not None:
            unlike = len(grad.shape) != len(edge[2]) or any(a != b for a, b in zip(grad.shape, edge[2], strict=True))
            if unlike and not node.spread:
                rows = product(grad.shape[:-1])
                grad = results[i] = new(tape, _bias(node.title), edge[2], grad.type)
                if len(edge[2]) == 1:
                    tape.by("row sum", edge[2][0], rows)
            if grad.type.name != edge[3].name:
                grad = results[i] = new(tape, f"{node.title} gradient cast", grad.shape, edge[3], grad.strides)
        del grad
    grads.clear()
    node.saved, node.run = (), None
    tape.owner, tape.loss, tape.place = owner, loss, place
    return results


def _bias(title):
    if title == "embedding":
        return "sum over sequences"
    return f"{title} {'weight' if 'norm' in title.replace(':', '').split() else 'bias'} gradient"


def _holders(buffer, slot):
    """Reference counts of a buffer's tensor and of its storage. From Python 3.14 on an argument is not counted."""
    before = buffer[slot]
    return sys.getrefcount(before), sys.getrefcount(before.storage)


#: Of a tensor and a storage that only the buffer holds.
_ALONE = _holders([SimpleNamespace(storage=object())], 0)


def _meet(tape, node, target, buffer, slot, grad):
    """Add two gradients of one tensor, in place where nobody else holds the first.

    Where the first is a shard of a `DTensor` and the second is whole, the second is sharded first.
    """
    if buffer[slot] is None:
        buffer[slot] = grad
    elif target.spread or not (_holders(buffer, slot) == _ALONE and is_dense(buffer[slot])):
        before = buffer[slot]
        with tape.within(owner=node.owner, loss=node.loss, place=(*tape.at(*AROUND), *node.place)):
            if target.spread and product(grad.shape) != product(before.shape):
                part = new(tape, f"{node.title} gradient, own part", before.shape, grad.type)  # noqa: F841
            buffer[slot] = new(tape, f"{node.title} gradients added", before.shape, before.type)


class OnHost:
    """As `torch.autograd.graph.save_on_cpu(pin_memory=True)`: saved tensors go to the host as they are saved; each comes back as a tensor of its own, in the order of its dimensions.

    A tensor that is not contiguous is first copied on the GPU. Sources: PyTorch, `torch/autograd/graph.py`, `save_on_cpu`;
    `aten/src/ATen/native/cuda/Copy.cu`, `copy_requires_temporaries`.
    """

    def __init__(self, tape):
        self.tape = tape

    def pack(self, x):
        """In forward: its shape and type, in place of the tensor."""
        if not is_contiguous(x):
            new(self.tape, "saved tensor in order", x.shape, x.type)  # for the copy alone
        return Held(self, (x.shape, x.type))

    def unpack(self, saved):
        """In backward."""
        return new(self.tape, "saved tensor from the host", *saved)


# Checkpointing.


class _Enough(Exception):
    """Everything that backward reads has been recomputed."""


class _Recomputed(End):
    """The end of a recomputed graph. It never runs."""

    sequence = 0


class _Frame:
    """One checkpointed call: the function, its inputs, and what recomputing it made. saves: (whether forward, or backward, runs, a
    kernel's kind) -> whether its results are saved; None where none are."""

    def __init__(self, tape, function, inputs, saves):
        self.tape, self.function, self.saves = tape, function, saves
        self.inputs = [(tape.pack(x), x.node is not None) if isinstance(x, Tensor) else (x, False) for x in inputs]
        self.held, self.recomputed, self.kept = [], None, []

    def pack(self, x):
        """In forward: a number in place of the tensor."""
        held = Held(self, len(self.held))
        self.held.append(ref(held))
        return held

    def unpack(self, index):
        """In backward: the tensor. The first request recomputes all of them."""
        if self.recomputed is None:
            self.recomputed = {}
            self._again()
        return self.recomputed.pop(index)

    def _again(self):
        made = 0

        def pack(x):
            nonlocal made
            saved, wanted = x.alias(), self.held[made]() is not None  # a node that is gone asks for nothing
            if wanted:
                self.recomputed[made] = saved
            made += 1
            if made == len(self.held):
                raise _Enough
            return saved

        arguments = []
        for x, wanted in self.inputs:
            x = _unpacked(x)
            arguments.append(x.alias() if isinstance(x, Tensor) else x)
            if wanted:
                arguments[-1].node = _Recomputed
        x = None
        kernel = self.given if self.saves else run
        again = self.tape.within(grad=True, passing=False, pack=pack, kernel=kernel)
        with suppress(_Enough), again, self.tape.casting():
            self.function(*arguments)

    def keep(self, kind, make):
        """In forward: a kernel's results, saved or not."""
        made = make()
        if self.saves(False, kind):
            self.kept.append([x.alias() for x in made] if isinstance(made, list) else made.alias())
        return made

    def given(self, kind, make):
        """In backward: what forward saved, else recomputed."""
        return self.kept.pop(0) if self.saves(True, kind) else make()


def checkpoint(tape, function, *inputs, saves=None):
    """Run a function of tensors and save its inputs alone; backward recomputes the rest.

    Args:
        saves: (whether it is recomputed, a kernel's kind) -> whether its results are saved, and not recomputed.
    """
    frame = _Frame(tape, function, inputs, saves)
    with tape.within(pack=frame.pack, kernel=frame.keep if saves else run):
        return function(*inputs)
