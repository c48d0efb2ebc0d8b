"""FSDP as a pass: what it gathers for each unit of a network, when it frees it, and what it sends.

Each parameter is cut along its first dimension, so that of G GPUs each holds the G-th part of the rows, rounded up. A unit is
gathered into a flat buffer, copied out into whole tensors, used, and resharded; its gradients are copied into a flat
buffer, and one G-th of their sum comes out. The methods are those of PyTorch's `torch/distributed/fsdp/_fully_shard`, by
their names: `_fsdp_param_group.py` says what lives until when, `_fsdp_collectives.py` what is allocated, `_fsdp_state.py`
which unit comes next.
"""

from typing import NamedTuple

from ..catalog.weights import linears
from ..step.course import GATHERS, REDUCES
from .autograd import Node, hooked
from .letters import Letter, over, product, up
from .tape import AROUND, Piece
from .tensors import Tensor


def share(shape, shards, axis=0):
    """Numbers that one GPU holds of a tensor of that shape, cut along a dimension: along others than the first only evenly."""
    cut = over if axis else up
    return product((*shape[:axis], cut(shape[axis], shards), *shape[axis + 1 :]))


class Unit:
    """Parameters that are gathered together: an `FSDPParamGroup` and its state.

    Args:
        numbers: elements that one GPU holds, of each kind in `Kinds`. reshards: whether the unit is freed after forward.
        shards: how many GPUs divide it. axis: the dimension that they cut. factored: whether gradients are divided by another number
            than that of the GPUs.
    """

    def __init__(self, sharding, name, parameters, numbers, reshards, shards, axis=0, factored=False):
        self.sharding, self.name, self.parameters, self.reshards = sharding, name, parameters, reshards
        self.shards, self.alone, self.axis, self.factored = shards, int(shards) == 1, axis, factored
        self.tape, self.held = sharding.tape, numbers
        self.numbers = numbers.adapters if sharding.adapted else numbers.weights  # whose gradients are sent
        self.state, self.training, self.whole, self.gathered, self.indices = "idle", "idle", False, None, []
        self.shares = [sharding.share(p, shards, axis) for p in parameters]
        self.kept = None  # what was received, where replicas average it
        self.between = []  # its share among fewer GPUs, from forward to backward
        self.accumulated = {}

    # Gathering.

    def unshard(self):
        """Gather all GPUs' shards into a flat buffer."""
        if self.gathered is not None or self.whole or not self.parameters:
            return
        sharding, tape = self.sharding, self.tape
        if self.alone:
            self.gathered = ()
            return
        with tape.within(part="communication", stream=GATHERS):
            if sharding.offloads and not self.between:
                inputs = [self._input(p, numbers) for p, numbers in self._each()]
            else:
                flat = sum((numbers for numbers, cast in zip(self.held, sharding.casts, strict=True) if cast), 0)
                flat = over(self.shards * flat, sharding.few) if self.between else flat
                copies = flat and not sharding.offloads
                inputs = tape.take(f"{self.name} copied", (flat, sharding.width)) if copies else None
            self.gathered = tape.take(f"{self.name} gathered", sharding.flat(self.shards, self.held), kind="gathered")
            del inputs

    def _each(self):
        return zip(self.parameters, self.shares, strict=True)

    def _input(self, parameter, numbers):
        """This GPU's shard as it is gathered: copied from the CPU, cast to the type of forward; None where it is as stored."""
        sharding, tape, copy = self.sharding, self.tape, None
        kind = sharding.kind(parameter)
        with tape.within(part="communication", place=self._place(parameter)):
            if sharding.offloads:
                width = getattr(sharding.widths, kind)
                copy = tape.take(f"{self.name} copied", (numbers, width), kind="from the host")
            casts = getattr(sharding.casts, kind)
            return tape.take(f"{self.name} cast", (numbers, sharding.width)) if casts else copy

    def wait_for_unshard(self):
        """Copy each parameter out of the flat buffer into a tensor of its own."""
        if self.gathered is None:
            return
        sharding = self.sharding
        copies, before = [], sharding.last_gathered  # noqa: F841  freed once this unit is whole: copies and gathering overlap
        if self.training == "forward":
            sharding.last_gathered = None
        for parameter, numbers in self._each():
            if self.alone:
                copy = self._input(parameter, numbers)
            piece = Piece(self.shards * numbers, parameter.type.width, "unsharded")
            with self.tape.within(place=self._place(parameter)):
                self.tape.note(f"{self.name} whole", [piece])
                if self.axis and not self.alone:  # as they came, to be put side by side
                    whole = self.shards * numbers, parameter.type.width
                    copies.append(self.tape.take(f"{self.name} as it came", whole, part="unsharded"))
            parameter.storage.pieces = (piece,)
        copy = None  # noqa: F841
        copies.clear()
        self.between.clear()
        self.whole = True
        if self.training == "forward" and not self.alone:
            sharding.last_gathered = self.gathered
        self.gathered = None

    def _place(self, parameter):
        """The place of an operation on one parameter: where a unit holds several blocks, that of the parameter's block."""
        return (*self.tape.at(*AROUND), *parameter.place) if self.name == "model" else self.tape.place

    def reshard(self):
        """Free the whole tensors; after forward a copy of a part of each may stay. Source: `to_sharded_post_forward`."""
        sharding, forward = self.sharding, self.training == "forward"
        if self.whole and (not forward or self.reshards):
            for parameter, numbers in self._each():
                if forward and sharding.few:
                    part = over(self.shards * numbers, sharding.few), parameter.type.width
                    with self.tape.within(place=self._place(parameter)):
                        self.between += self.tape.take(f"{self.name} between", part, part="unsharded")
                parameter.storage.free()
            self.whole = False

    # Forward.

    def pre_forward(self, args):
        """The module is entered."""
        sharding = self.sharding
        if self.state == "backward":
            if not self.whole:
                self.unshard()
                self.wait_for_unshard()
            return args
        if self.state != "forward" and sharding.root is None:
            sharding.root = self
        self.state = "forward"
        entering, self.training = self.training != "forward", "forward"
        self.unshard()
        self.wait_for_unshard()
        return self._followed(args) if entering and self.parameters else args

    def _followed(self, args):
        """Have backward call `post_backward` once the gradients of the module's inputs have come."""
        inputs = [x for x in args if isinstance(x, Tensor) and x.node is not None]
        if not inputs or not self.tape.grad:
            return args

        def run(node, grads):
            self.post_backward()
            return list(grads)

        node = Node(self.tape, f"{self.name} passed", run, inputs, [])
        node.slots, found = len(inputs), []
        for x in args:
            if isinstance(x, Tensor) and x.node is not None:
                slot = sum(isinstance(y, Tensor) for y in found)
                x = Tensor(x.shape, x.strides, x.storage, x.type, x)
                x.node, x.slot = node, slot
            found.append(x)
        return tuple(found)

    def post_forward(self, out):
        """The module is left."""
        sharding = self.sharding
        if self.state == "backward":
            return out
        if not sharding.in_backward and self.parameters:
            self.reshard()
            self.indices.append(len(sharding.order))
            sharding.order.append(self)
        self.training = "idle"
        hooked(out, self.pre_backward)
        self.state = "idle"
        if sharding.root is self:
            sharding.last_gathered = sharding.root = None
        return out

    # Backward.

    def pre_backward(self):
        """Backward enters the module."""
        sharding, self.state = self.sharding, "backward"
        if not sharding.ending:
            sharding.ending = True
            self.tape.callbacks.append(sharding.backward_ended)
        if self.training == "backward":
            return
        self.training = "backward"
        with self.tape.within(
            loss=self.tape.loss and self.name not in ("root", "model")
        ):  # no module's, though the loss calls it
            self.unshard()
            self.wait_for_unshard()
        if self.indices:
            place = self.indices.pop()
            if place > 0:
                sharding.order[place - 1].prefetch()

    def prefetch(self):
        """Gather this unit, which backward enters next."""
        before, self.training = self.training, "backward"
        first = self.parameters[0].name.split(".") if self.parameters else ()
        with self.tape.module(".".join(first[:2]) if self.name == "block" else "", loss=False):  # its own, whoever asks
            self.unshard()
        self.training = before

    def post_backward(self):
        """Backward has left the module: its gradients are sent, or stay whole until the last batch."""
        sharding, tape, self.training = self.sharding, self.tape, "passed"
        if not self.parameters:  # FSDP makes no group of none
            return
        with tape.within(part="communication"):
            for parameter in self.parameters:
                if parameter in self.accumulated and parameter.grad is not None:
                    parameter.grad = None  # added
            if not sharding.sends:
                if sharding.last:
                    self.reshard()
                if sharding.sums_wider:
                    for parameter in self.parameters:
                        if parameter.grad is not None:
                            numbers = product(sharding.gradient_shape(parameter))
                            with tape.within(place=self._place(parameter)):
                                wide = tape.take(f"{self.name} gradient in fp32", (numbers, sharding.reduced))
                            wide[0].assign("gradients")  # whole, until the last batch
                            self.accumulated[parameter] = wide
                            parameter.grad = None
                return
            gradients = []
            for parameter in self.parameters:
                if parameter.node is not None:
                    gradients.append(self._as_divided(parameter))
                    parameter.grad = None
            self.reshard()
            sharding.sent.clear()
            if gradients:
                self._reduce(gradients)

    def _as_divided(self, parameter):
        """The gradient, redistributed as tensor parallelism divides the weight. Source: `_fsdp_param.py`, `_get_grad_inner_tensor`."""
        added = self.accumulated.pop(parameter, None)
        if (added is None and parameter.grad is None) or not self.sharding.moves(parameter.name):
            return added or parameter.grad
        width = self.sharding.reduced if added else parameter.type.width
        with self.tape.within(place=self._place(parameter)):
            return self.tape.take(f"{self.name} gradient redistributed", (product(parameter.shape), width))

    def _reduce(self, gradients):
        """Source: `foreach_reduce`, whose loop still names the last gradient."""
        sharding, tape, numbers = self.sharding, self.tape, self.numbers
        self.kept = None
        last = None if self.alone else gradients[-1]  # noqa: F841
        if self.axis and not self.alone:
            self._turn(gradients)
        sent = tape.take(f"{self.name} sent", (self.shards * numbers, sharding.reduced), kind="sent")
        gradients.clear()
        with tape.within(stream=REDUCES):
            received = tape.take(f"{self.name} received", (numbers, sharding.reduced), kind="received")
            if self.alone and self.factored:
                tape.take(f"{self.name} divided", (numbers, sharding.reduced))
            if sharding.replicated:
                self.kept = received
            if sharding.narrows:
                received = tape.take(f"{self.name} received, as stored", (numbers, sharding.beside), kind="stored")
        if sharding.move:
            for parameter, numbers in self._each():
                if parameter.node is not None:
                    sharding.move(parameter, numbers)
        elif not sharding.offloads and self not in sharding.gradients:
            sharding.gradients[self] = received
            received[0].assign("gradients")
        sharding.sent.append(sent)

    def _turn(self, gradients):
        """Copy each gradient so that each GPU's part is contiguous. `zip` holds the first gradient to the end of the loop."""
        first = gradients[0]  # noqa: F841
        for i, parameter in enumerate(self.parameters):
            before = gradients[i]
            width = self.sharding.reduced if isinstance(before, list) else parameter.type.width
            gradients[i] = self.tape.take(f"{self.name} gradient in parts", (product(parameter.shape), width))


def _children_first(names):
    """The router's weight before the experts' own: FSDP goes through modules inside out."""
    found, own = [], []
    for name in names:
        if name.endswith(("mlp.gate_up", "mlp.down")):
            own.append(name)
            continue
        found += [name, *own] if name.endswith("mlp.router.weight") else [name]
        own = [] if name.endswith("mlp.router.weight") else own
    return found + own


def _inside(names):
    """Adapters after the weights of the layer that peft puts them into."""
    found = [name for name in names if ".lora_" not in name]
    for name in reversed([name for name in names if ".lora_" in name]):
        layer = name.partition(".lora_")[0]
        found.insert(1 + max(i for i, other in enumerate(found) if other.rpartition(".")[0] == layer), name)
    return found


class Kinds(NamedTuple):
    """What is said of each kind of parameter: weights as they are, those in 4 bits, and adapters."""

    weights: object
    packed: object
    adapters: object


class Cut(NamedTuple):
    """Weights of a block that are divided among other GPUs than the rest: which, among how many, and along which dimension."""

    names: tuple[str, ...]
    shards: Letter
    axis: int


def packed_names(model, blocks):
    """Names of the weights in 4 bits: of a network with so many blocks, and as they are counted."""
    names = [weight.name for _, weight in linears(model)]
    return frozenset(names + [f"blocks.{i}.{name}" for i in range(blocks) for name in names])


class Sharding:
    """All units of a network.

    Args:
        weights: of the network, counted as `Step.weights` are.

    Attributes:
        own: where several GPUs divide experts, the `Cut` of their weights; else None.
        few: how many GPUs hold a unit between forward and backward, where these are fewer than all. gradients: unit -> its gradients' shards. order: units in the order in which forward left them. sends: whether this batch's
            gradients are sent. last: whether this is the last backward before that: units are then freed, and `order` is cleared.
    """

    def __init__(self, step, network, weights, shards):
        setup = step.setup
        self.tape, self.shards = step.tape, shards
        self.offloads, self.replicated, self.adapted = setup.offload == "cpu", setup.replicas > 1, bool(setup.adapters)
        self.width, self.reduced, self.beside = step.weight.width, step.reduced, step.beside.width
        self.sums_wider = setup.dtypes.autocast
        self.packed = packed_names(step.whole, sum(network.segments)) if setup.quantization != "none" else ()
        self.widths = Kinds(step.stored.width, self.width, self.beside)
        self.casts = Kinds(
            setup.dtypes.autocast and setup.base_dtype != setup.dtypes.compute, False,
            self.adapted and setup.dtypes.autocast and setup.trained_dtype != setup.dtypes.compute,
        )  # fmt: skip
        self.narrows = self.adapted and setup.reduced_dtype != setup.trained_dtype
        self.mixed = self.adapted and not setup.dtypes.autocast and setup.trained_dtype != setup.base_dtype
        self.moves, self.gradient_shape = network.split.moves, network.split.gradient_shape
        self.few = Letter(setup.resharding_gpus, "G_r") if setup.resharding == "group" else None
        self.order, self.sent, self.gradients, self.last_gathered, self.root = [], [], {}, None, None
        self.ending, self.sends, self.last = False, True, True
        self.own, self.move = step.own, step.move if setup.optimizer_in_backward else None
        self.units = self._cut(network, setup, weights, step.trained if self.adapted else [])
        network.enter, network.leave = self._enter, self._leave

    def kind(self, parameter):
        """Of a parameter, or a `Weight`: which of `Kinds` it is."""
        if ".lora_" in parameter.name:
            return "adapters"
        return "packed" if parameter.name in self.packed else "weights"

    def share(self, parameter, shards, axis=0):
        """Numbers that one GPU holds of a parameter, or of a `Weight`.

        In 4 bits it is a column of numbers of forward's type, each with as many codes as it has room for. Source: bitsandbytes,
        functional.py, `quantize_4bit`, with `quant_storage`.
        """
        if self.kind(parameter) == "packed":
            return share((up(product(parameter.shape), 2 * self.width),), shards)
        return share(parameter.shape, shards, axis)

    def flat(self, shards, held):
        """(elements, bytes of one) of the buffer that a unit is gathered into; bytes, where it has two data types.

        Source: `foreach_all_gather`.
        """
        frozen = held.weights + held.packed
        if not self.mixed:
            return shards * (frozen + held.adapters), self.width
        return shards * (frozen * self.width + held.adapters * self.beside), 1

    @property
    def in_backward(self):
        """Whether backward runs. What is recomputed there is not freed."""
        return self.tape.phase == "backward"

    def _cut(self, network, setup, weights, adapters):
        """Module path -> its unit; the two modules of `ends` share one."""
        left, units = dict(network.parameters), {}
        if network.model.tied:
            del left["head.weight"]

        def unit(name, paths, reshards, names=None, **cut):
            names = names or [n for n in left if any(n.startswith(f"{path}.") or not path for path in paths)]
            mine = [left.pop(n) for n in _inside(_children_first(names))]
            cut = {"shards": self.shards} | cut
            of = [(p, 1) for p in mine]
            if name == "model":
                apart = self.own.names if self.own else ()
                of = [(w, count) for w, _, count in (*weights, *adapters) if w.name not in apart]
            numbers = Kinds(*(
                sum(self.share(p, cut["shards"], cut.get("axis", 0)) * count for p, count in of if self.kind(p) == kind)
                for kind in Kinds._fields
            ))  # fmt: skip
            units.update(dict.fromkeys(paths, Unit(self, name, mine, numbers, reshards, **cut)))

        let_go, how = setup.sharding == "zero3", setup.resharding
        blocks = range(sum(network.segments))
        freed = {i: let_go and not (how == "not-last" and i == blocks[-1]) for i in blocks}
        for i in blocks if self.own else ():
            names = [f"blocks.{i}.{name}" for name in self.own.names]
            cut = {"shards": self.own.shards, "axis": self.own.axis, "factored": True}
            unit("experts", [f"blocks.{i}.mlp.own"], freed[i], names, **cut)
        inner, units = units, {}
        if setup.sharding_units == "block+ends":
            unit("token", ["token"], let_go)
        for i in blocks:
            if setup.sharding_units != "model":
                unit("block", [f"blocks.{i}"], freed[i])
            if self.own:  # a module's own units come after it
                units[f"blocks.{i}.mlp.own"] = inner[f"blocks.{i}.mlp.own"]
        if setup.sharding_units == "block+ends":
            unit("ends", ["norm", "head"], how in ("ends", "group"))
        unit("model" if setup.sharding_units == "model" else "root", [""], how in ("root", "group"))
        return units

    def drop(self):
        """The optimizer drops the gradients."""
        self.gradients.clear()

    def _enter(self, path, args):
        unit = self.units.get(path)
        return unit.pre_forward(args) if unit else args

    def _leave(self, path, out):
        unit = self.units.get(path)
        if unit is None or (unit.name == "ends" and path == "norm"):  # a group is left with its last module
            return out
        return unit.post_forward(out)

    @property
    def everyone(self):
        """All units, the root first."""
        return list(dict.fromkeys([self.units[""], *(unit for path, unit in self.units.items() if path)]))

    def backward_ended(self):
        """Backward ends. Units whose inputs have no gradient are passed only now. Source: `_root_post_backward_final_callback`."""
        for unit in self.everyone:
            if unit.training != "passed":
                unit.post_backward()
            unit.training = unit.state = "idle"
            if self.last:
                unit.kept = unit.gathered = None
                unit.indices.clear()
        if self.last:
            self.order.clear()
            self.sent.clear()
        self.ending, self.root = False, None

    # What a pipeline asks of a stage's units.

    def _each(self):
        """Every unit, in its own place."""
        for unit in self.everyone:
            inside = unit.parameters and unit.name in ("block", "experts")
            place = unit.parameters[0].place if inside else ()
            path = ".".join(unit.parameters[0].name.split(".")[:2]) if inside else ""
            with self.tape.within(place=(*self.tape.at(*AROUND), *place)), self.tape.module(path, loss=False):
                yield unit

    def each(self, kind):
        """Call a method of every unit: `unshard`, `wait_for_unshard` or `reshard`."""
        for unit in self._each():
            getattr(unit, kind)()

    def reduce(self):
        """After all backwards send the gradients and free the units. Source: `perform_reduce_grad` in `pipelining/stage.py`."""
        self.sends = self.last = True
        self.each("post_backward")
        self.backward_ended()
