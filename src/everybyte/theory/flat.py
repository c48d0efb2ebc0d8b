"""FSDP1 as a pass: a unit's weights are views of one flat tensor, gathered in place, and their gradients become one flat gradient.

A unit is gathered into the buffer that its weights are views of, and freed by resizing it to nothing. Backward joins the gradients of a
unit's weights as soon as the last of them has come; an equal piece of their sum comes out of the reduction. The methods are those of
PyTorch's `torch/distributed/fsdp`: `_flat_param.py` says what is allocated, `_runtime_utils.py` when, and which unit comes next.
"""

from dataclasses import replace

from ..catalog.decoders import optimized
from ..catalog.weights import ENDS
from ..step.course import CASTS, GATHERS, REDUCES
from .autograd import End, Node, hooked
from .letters import Letter, least, product, up
from .tape import AROUND, Piece, Storage
from .tensors import Tensor, is_contiguous, new

#: Bytes at whose multiples each weight begins. Source: `_flat_param.py`, `_get_aligned_numel`.
ALIGNED = 16


class Layout:
    """How weights lie in a unit's flat tensor.

    Args:
        shapes: of its weights, in the module's order. width: bytes of a number as it is gathered. shards: GPUs.

    Attributes:
        piece: numbers that each GPU has. gaps: padding before each weight, and at the end. own: numbers of each weight that the first GPU has.
    """

    def __init__(self, shapes, width, shards):
        step, end, ends, starts = ALIGNED // int(width), 0, [], []
        for shape in shapes:
            starts.append(step * up(end, step) if end else 0)
            end = starts[-1] + product(shape)
            ends.append(end)
        self.piece = up(end, shards)
        self.gaps = [start - before for start, before in zip([*starts, shards * self.piece], [0, *ends], strict=True)]
        self.own = [least(b, self.piece) - least(a, self.piece) for a, b in zip(starts, ends, strict=True)]

    @property
    def form(self):
        """Which gaps there are, and which weights the first GPU has a part of."""
        return tuple(gap > 0 for gap in self.gaps), tuple(own > 0 for own in self.own)


def layouts(model, rows, width, shards):
    """(weights, their layout) of a block's unit, and of the root's.

    Args:
        rows: (weight, ...) of each.
    """
    rows = rows if model.family else optimized(model, rows)
    for ends in (False, True):
        mine = [weight for weight, *_ in rows if (weight.group in ENDS) == ends]
        yield mine, Layout([weight.shape for weight in mine for _ in range(weight.count)], width, shards)


class Joined(End):
    """The node of a unit's flat gradient."""

    def __init__(self, unit):
        self.unit = unit

    def arrive(self, grads):
        """The gradient has come, which stays while the unit is left."""
        if self.unit.joined is None:
            grads[0].storage.assign("gradients")
            self.unit.joined = grads[0].alias()
        self.unit.post_backward()


class FlatUnit:
    """What is gathered together: a `FlatParamHandle` and its state.

    Args:
        path: the module's. parameters: in its order. frees: whether it is freed after forward.
    """

    def __init__(self, sharding, path, parameters, layout, frees):
        self.sharding, self.tape, self.path, self.name = sharding, sharding.tape, path, "block" if path else "root"
        self.parameters, self.layout, self.frees, self.storage = parameters, layout, frees, Storage(sharding.tape, ())
        self.whole, self.place = sharding.shards * layout.piece, parameters[0].place
        self.backward, self.asked, self.index, self.joined, self.seen = False, False, None, None, False
        for parameter in parameters:
            parameter.storage = self.storage

    def unshard(self):
        """Gather all GPUs' pieces, cast where forward has another type. Source: `_unshard`."""
        if self.storage.pieces:
            return
        tape, sharding, piece = self.tape, self.sharding, Piece(self.whole, self.sharding.width, "unsharded")
        with tape.within(part="communication", stream=CASTS):
            cast = sharding.casts and tape.take(f"{self.name} cast", (self.layout.piece, sharding.width))
        with tape.within(stream=GATHERS):
            tape.note(f"{self.name} gathered", [piece], kind="gathered")
            self.storage.pieces = (piece,)
            del cast

    def pre_forward(self, args):
        """The module is entered. What is recomputed finds its weights."""
        if not self.backward:
            if not self.path:
                self.sharding.let_go()
            self.unshard()
            self._view()
        return args

    def _view(self):
        """Make the weights views of the flat tensor. Source: `_use_unsharded_views`."""
        join = Node(self.tape, f"{self.name} gradients joined", self._join, [], [])
        join.slots = len(self.parameters)
        whole = self.parameters[0].type
        join.edges = [(Joined(self), 0, (self.whole,), whole)]
        for slot, parameter in enumerate(self.parameters):
            node = Node(self.tape, f"{self.name} view", _flattened, [], [])
            node.edges = [(join, slot, parameter.shape, parameter.type)]
            parameter.node = node

    def _join(self, _, grads):
        """Source: `split_with_sizes_backward` in `FunctionsManual.cpp`, which makes zeros of what nobody has a gradient of."""
        tape, kind, sharding = self.tape, grads[0].type, self.sharding
        zeros = [tape.take("zeros between gradients", (gap, kind.width)) for gap in self.layout.gaps if gap]
        sent = "sent" if sharding.sends and not sharding.casts else ""
        (storage,) = tape.take(f"{self.name} gradients joined", (self.whole, kind.width), kind=sent)
        del zeros
        return [Tensor((self.whole,), (1,), storage, kind)]

    def post_forward(self, out):
        """The module is left."""
        if self.backward:
            return out
        if self.frees:
            self.storage.free()
        self.index, self.asked = len(self.sharding.order), False
        self.sharding.order.append(self)
        hooked(out, self.pre_backward)
        return out

    def pre_backward(self):
        """Backward enters the module: the one that it enters next is gathered beside it."""
        sharding = self.sharding
        if not sharding.ending:
            sharding.ending = True
            sharding.let_go()
            self.tape.callbacks.append(sharding.backward_ended)
        if self.backward:
            return
        self.backward = self.asked = True
        self.unshard()
        if self.index:
            sharding.order[self.index - 1].prefetch()

    def prefetch(self):
        """Gather this unit, which backward enters next."""
        if not self.asked:
            self.asked = True
            self.unshard()

    def post_backward(self):
        """The flat gradient has come: the unit is freed, and the gradient sent, or kept whole until the last batch."""
        tape, sharding = self.tape, self.sharding
        place = (*tape.at(*AROUND), *self.place)
        with tape.within(part="communication", place=place, owner=self.path, loss=False):
            if sharding.sends or sharding.lets_go:
                self.storage.free()
            if sharding.sends:
                self._reduce()
            elif not self.seen:
                self.seen = True
                # Of each weight a gradient of its own part's shape, which is then pointed at the whole one.
                for own in filter(None, self.layout.own):
                    tape.take(f"{self.name} gradient shown", (own, sharding.stored))

    def _reduce(self):
        """Source: `_reduce_grad`."""
        tape, sharding = self.tape, self.sharding
        with tape.within(stream=REDUCES):
            sent = sharding.casts and tape.take(f"{self.name} sent", (self.whole, sharding.reduced), kind="sent")
            received = tape.take(f"{self.name} received", (self.layout.piece, sharding.reduced), kind="received")
        if self not in sharding.gradients:
            sharding.gradients[self] = received
            received[0].assign("gradients")
        self.joined, self.seen = None, False
        del sent


def _flattened(node, grads):
    """A view of a gradient as a row, or a copy of one that is none."""
    grad = grads[0]
    if is_contiguous(grad):
        grad.storage.assign("gradients")
        return [grad]
    return [new(grad.tape, "gradient as a row", grad.shape, grad.type, part="gradients")]


class FlatSharding:
    """All units of a network.

    Attributes:
        gradients: unit -> its piece of the gradients. before: those of the step before, which stand until forward begins.
        order: units in the order in which forward left them. sends: whether this batch's gradients are sent.
        lets_go: whether units are freed in backward though it sends nothing. casts: whether forward has another type than the shares.
    """

    def __init__(self, step, network):
        setup = step.setup
        self.tape, self.shards = step.tape, step.shards
        self.width, self.stored, self.reduced = step.weight.width, step.stored.width, step.reduced
        self.lets_go = setup.sharding == "zero3"
        self.casts = setup.dtypes.autocast
        self.order, self.gradients, self.ending, self.sends, self.units = [], {}, False, True, {}
        block, root = layouts(step.whole, step.trained, self.width, self.shards)
        self.kinds = [(*block, Letter(step.model.layers, "L")), (*root, 1)]
        self.looped, self.before = setup.looped, None
        for i in range(sum(network.segments)):
            self._unit(network, f"blocks.{i}", *block, self.lets_go)
        self._unit(network, "", *root, False)
        network.enter, network.leave = self._enter, self._leave

    def _unit(self, network, path, weights, layout, frees):
        before = f"{path}." if path else ""
        mine = [network.parameters[before + name] for name, _ in network._named(weights)]
        self.units[path] = FlatUnit(self, path, mine, layout, frees)

    def held(self):
        """(weight, numbers that the first GPU has of it, how many there are) of each of which it has some, in the model's order."""
        found = []
        for weights, layout, count in self.kinds:
            each = [replace(weight, count=1) for weight in weights for _ in range(weight.count)]
            found += [(weight, own, count) for weight, own in zip(each, layout.own, strict=True) if own]
        return sorted(found, key=lambda row: (row[0].group == ENDS[1]) - (row[0].group == ENDS[0]))

    def rest(self):
        """The pieces that stand between steps: each unit's of the weights, and of the gradients, which the optimizer alone has dropped."""
        found, gradients = (
            [Piece(layout.piece, width, part, count) for _, layout, count in self.kinds]
            for part, width in (("parameters", self.stored), ("gradients", self.reduced))
        )
        if self.looped:  # which runs the step before
            return found
        self.before = Storage(self.tape, gradients)
        return found + gradients

    def drop(self):
        """The optimizer drops the gradients, and PyTorch does not yet."""
        self.before, self.gradients = [*self.gradients.values()], {}

    def let_go(self):
        """Forward or backward begins: PyTorch drops what the optimizer has dropped. Source: `_reset_flat_param_grad_info_if_needed`."""
        self.before = None

    def _enter(self, path, args):
        unit = self.units.get(path)
        return unit.pre_forward(args) if unit else args

    def _leave(self, path, out):
        unit = self.units.get(path)
        return unit.post_forward(out) if unit else out

    def backward_ended(self):
        """Source: `_post_backward_final_callback`."""
        for unit in self.units.values():
            unit.backward, unit.index, unit.asked = False, None, False
        self.order.clear()
        self.ending = False
