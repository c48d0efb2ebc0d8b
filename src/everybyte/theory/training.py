"""The training step: batches whose gradients add up, then the optimizer. Source: `reference/step.py`, line by line."""

from dataclasses import replace

from ..ask.choices import DTYPE_BYTES, LIBRARIES
from ..ask.mesh import DIVIDED
from ..catalog.weights import ENDS, linears, quantized
from .autograd import OnHost, backward
from .context import own, own_sequence
from .letters import Letter, over, product, up
from .operations import scale
from .optimizers import Optimizer
from .passes import PASSES
from .programs import Network, Transformers
from .sharding import share
from .tape import AROUND, FP32, INT64, Piece, Tape, Type
from .tensors import new


class Fields:
    """A model's fields with dimensions as letters; with `parts`, those of one of so many GPUs that divide it."""

    #: Field -> its letter.
    LETTERS = {
        "width": "H", "heads": "A", "kv_heads": "A_kv", "head_width": "D", "ffn_width": "F", "vocabulary": "V",
        "learned_positions": "N", "positions": "N_max", "embedding_width": "W", "experts": "E", "experts_per_token": "E_t",
        "expert_width": "F_e", "layers": "L", "query_rank": "r_q", "latent_rank": "r_c", "rope_width": "D_r", "value_width": "D_v",
        "dense_layers": "L_d", "shared_experts": "E_s",
    }  # fmt: skip

    def __init__(self, model, parts=None):
        self._model = model
        for name, letter in self.LETTERS.items():
            whole = Letter(getattr(model, name), letter)
            setattr(self, name, over(whole, parts) if parts and name in DIVIDED else whole)

    @property
    def turning(self):
        """Numbers of each head that turn."""
        return over(self.head_width * self.rotary_percent, 100) if self.rotary_percent < 100 else self.head_width

    def __getattr__(self, name):
        return getattr(self._model, name)


def occurrences(fields):
    """{group: how often its weights occur}, as letters."""
    every, first = Letter(fields.layers, "L"), fields.dense_layers if fields.experts else 0
    mixtures = every - first if fields.experts else 0
    return {"block": every, "dense": first if fields.experts else every, "mixture": mixtures} | dict.fromkeys(ENDS, 1)


def buffers(fields, module, width, wide, routers):
    """The buffers of transformers' code beside weights: an embedding's scale, the rotary frequencies twice, routers' biases.

    width, wide, routers: bytes of a number of each.
    """
    if fields.scaled_embedding:
        yield Piece(1, width, "buffers")
    if not fields.has_positions:
        turned = over(fields.rope_width if fields.latent else fields.turning, 2)
        yield Piece(turned, wide, "buffers", 2 * module.tables)
    if fields.corrected:
        yield Piece(fields.experts, routers, "buffers", occurrences(fields)["mixture"])


class Step:
    """One training step on a tape.

    Args:
        model: a Model. setup: a Setup. segments: blocks in each segment that is traced. chunks: tokens in each chunk.
        batches: how many are traced. stepped: of how many blocks the optimizer is, of each kind in turn: those before experts, if there
            are some, and the rest. place: the GPU's in its ring. dense: how many traced blocks stand before those with experts.
    """

    #: Groups of weights that are other stages'.
    without: tuple[str, ...] = ()
    #: Where the course begins among the operations: those before are of the step before it.
    first = 0

    def __init__(self, model, setup, segments, chunks, batches, stepped, place=0, dense=0):
        self.tape, self.setup, self.batches, self.stepped, self.in_ring = Tape(), setup, batches, stepped, place
        self.pack = OnHost(self.tape).pack if setup.offload == "activations" else self.tape.pack
        self.whole, self.segments, self.chunks, self.dense = model, segments, chunks, dense
        self.model, self.batch = Fields(model), (Letter(setup.batch, "B"), Letter(setup.sequence, "S"))
        self.sequence, self.shards = own_sequence(setup), Letter(setup.shards, "G")
        self.split = self.experts = self.own = self.ring = self.held = self.tensors = None
        precision = setup.dtypes
        self.stored = Type(setup.base_dtype, Letter(DTYPE_BYTES[setup.base_dtype], "w_s"))
        self.states = Letter(DTYPE_BYTES[setup.state_dtype], "s_b")
        self.beside = Type(setup.trained_dtype, Letter(DTYPE_BYTES[setup.trained_dtype], "w_A"))
        self.reduced = Letter(DTYPE_BYTES[setup.reduced_dtype], "r")
        name = precision.compute if setup.fsdp else setup.base_dtype
        self.weight = Type(name, Letter(DTYPE_BYTES[name], "w"))
        self.tape.compute = Type(precision.compute, Letter(DTYPE_BYTES[precision.compute], "c"))
        self.tape.autocast = self.tape.compute if precision.autocast and not setup.fsdp else None
        for apply in PASSES:
            apply(self)
        self.network = self.networks[0]
        for parameter in self.parameters() if setup.kept_gradients == "fp32" else ():
            parameter.hooks.append(_moved)
        for parameter in self.parameters() if setup.optimizer_in_backward and not setup.fsdp else ():
            parameter.hooks.append(self.move)
        if setup.precision in LIBRARIES and setup.sharding == "none":
            self.flats = [Letter(model.parameters, "P")]
            if setup.precision == "bf16-deepspeed":  # all side by side, aligned to 4 bytes
                self.flats = [2 * up(self.flats[0], 2)]
                self.tensors = [("last", self.flats[0], 1)]
        self.optimizer = Optimizer(self, self.tensors)

    def made(self, beside):
        """The networks, for the pass `stages`. `beside`: where adapters train, (their rank, their data type)."""
        return [self.network_of(Network if self.model.family else Transformers, self.segments, beside=beside)]

    def network_of(self, kind, segments, **options):
        """A network on this step's tape, with what its GPUs divide."""
        return kind(
            self.tape, self.model, self.setup, segments, self.chunks, self.weight, split=self.split, experts=self.experts, dense=self.dense, **options
        )  # fmt: skip

    def weights_of(self, network):
        """Those of `weights` that a network has."""
        return self.weights

    def counted(self, weights):
        """(weight, its numbers, how many there are of it) of each."""
        times = occurrences(self.model)
        if self.experts:
            weights = (replace(w, shape=self.experts.shape(w.name, w.shape)) for w in weights)
        return [(w, product(w.shape), w.count * times[w.group]) for w in weights]

    def share(self, weight):
        """Numbers of a weight that FSDP gives one GPU."""
        if self.own and weight.name in self.own.names:
            return share(weight.shape, self.own.shards, self.own.axis)
        return self.networks[0].sharding.share(weight, self.shards)

    def into_bucket(self, parameter):
        """The last batch's gradient is a view of DDP's bucket."""
        if self.final:
            parameter.grad = None

    def parameters(self):
        """Those of all networks, shared ones once."""
        return list(dict.fromkeys(p for network in self.networks for p in network.parameters.values()))

    def rest(self):
        """The pieces that live between steps."""
        precision, setup = self.setup.dtypes, self.setup
        if setup.offload == "cpu":
            return [*self._buffers(), *self._scales()]
        if setup.fsdp_version == 1:
            found = self.network.sharding.rest()
        elif setup.fsdp:
            found = [*self._shares(), *self._scales()]
        elif setup.sharding == "zero1":
            wide = self.beside.width if setup.adapters else self.stored.width
            kept = ("parameters",) if setup.precision in LIBRARIES else ("parameters", "gradients")
            found = [Piece(flat, wide, part) for flat in self.flats for part in kept]
            found += self._whole() if setup.adapters else []
        elif setup.precision == "bf16-deepspeed":
            found = [Piece(flat, self.stored.width, "parameters") for flat in self.flats]
        else:
            found = self._whole()
        if setup.adapters and setup.sharding != "zero1":
            sizes = self.optimizer.tensors if setup.fsdp else self.trained
            found += [Piece(numbers, self.beside.width, "parameters", count) for _, numbers, count in sizes]
        if setup.ddp:
            part = "gradients" if setup.buckets == "views" else "communication"
            found.append(Piece(Letter(1, "Q"), 1, part))
        if setup.precision in LIBRARIES:
            found += [Piece(flat, 4, "gradients") for flat in self.flats]
        elif setup.master_gradients != "bf16":
            found += [Piece(numbers, 4, "gradients", count) for _, numbers, count in self.trained]
        found += [*self._buffers(), *self.optimizer.rest()]
        if precision.loss_scaling:
            found += [Piece(1, 4, "optimizer", 2)]
        return found

    def _whole(self):
        """The weights of one GPU that has all of them."""
        paths = {path for path, _ in linears(self.model)} if self.setup.quantization != "none" else ()
        found = [Piece(256, 4, "parameters")] if paths else []  # a table of the process
        for weight, numbers, count in self.weights:
            path, _, kind = weight.name.rpartition(".")
            pieces = [(numbers, self.stored.width)]
            if path in paths:  # of linear layers in 4 bits the biases are those of the matrix product
                pieces = quantized(numbers, up) if kind == "weight" else [(numbers, self.tape.compute.width)]
            found += [Piece(size, width, "parameters", count) for size, width in pieces]
        return found

    def _scales(self):
        """What every GPU has under FSDP of each weight in 4 bits beside the codes, and a table of the process."""
        sharding = self.networks[0].sharding
        packed = [(numbers, count) for w, numbers, count in self.weights if sharding.kind(w) == "packed"]
        found = [
            Piece(*piece, "parameters", count) for numbers, count in packed for piece in quantized(numbers, up)[1:]
        ]
        return [Piece(256, 4, "parameters")] * bool(packed) + found

    def _shares(self):
        """What FSDP gives one GPU of the weights."""
        sharding = self.networks[0].sharding
        return [
            Piece(self.share(w), getattr(sharding.widths, sharding.kind(w)), "parameters", count)
            for w, _, count in self.weights
        ]

    def _buffers(self):
        """Eager attention's masks, one a block; in transformers' code `buffers`."""
        if not self.model.family:
            yield from buffers(self.model, self.network.module, *[self.stored.width] * 3)
        if self.setup.attention == "eager" and self.model.family == "gpt":
            square = product((self.model.positions, self.model.positions))
            yield Piece(square, self.stored.width, "buffers", Letter(self.model.layers, "L"))

    def host(self):
        """The pieces in the memory of the CPU, where shards and optimizer are offloaded."""
        setup = self.setup
        if setup.offload != "cpu":
            return self.optimizer.host()
        found = self._shares()
        width = self.beside.width if setup.adapters else self.reduced
        parts = ("parameters", "gradients") if setup.adapters else ("gradients",)
        found += [Piece(numbers, width, part, count) for part in parts for _, numbers, count in self.optimizer.tensors]
        return found + self.optimizer.rest()

    def run(self):
        """The step. Returns its operations."""
        tape, setup = self.tape, self.setup
        total = None  # noqa: F841  lives as long as the step
        for _ in self.turns():
            tape.phase = "forward"
            inputs = self._inputs()
            with tape.casting(), tape.within(pack=self.pack):
                loss = self.forward(*inputs)
            tape.mark("after_forward")
            tape.phase = "backward"
            share = self.share_of(loss)
            self.from_loss(share)
            self.held = None
            total = self.total(share)  # noqa: F841
            tape.mark("after_backward")
            tape.phase = "optimizer step"
            if setup.precision == "bf16-deepspeed":
                self.optimizer.accumulate()
        return self.updated()

    def turns(self):
        """For each batch of the step, within its turn, the number of those that follow."""
        for i in range(self.batches):
            self.final = i == self.batches - 1
            if sharding := self.network.sharding:
                sharding.sends = self.final or not self.setup.no_sync
            with self.tape.turn("batch", i):
                yield self.batches - 1 - i

    def updated(self):
        """The optimizer's step, which ends the step. Returns all operations."""
        tape, tape.phase = self.tape, "optimizer step"
        if self.setup.offload != "cpu":
            self.update()
        tape.mark("after_step")
        tape.running = False
        return tape.operations

    def update(self):
        """The optimizer's step, after backward."""
        if not self.setup.optimizer_in_backward:
            self.optimizer.step()

    def move(self, parameter, numbers=None):
        """The step of a weight's own optimizer, in backward. numbers: of its share, under FSDP."""
        place = (*self.tape.at(*AROUND), *parameter.place)
        with self.tape.within(owner="", loss=False, part="optimizer", place=place):
            self.optimizer.alone(parameter, numbers or parameter.numbers)
        parameter.grad = None

    def _inputs(self):
        tokens = new(self.tape, "tokens", self.batch, INT64)
        targets = new(self.tape, "targets", self.batch, INT64, part="loss")
        return (tokens, targets, new(self.tape, "positions", self.batch[1:], INT64)) if self.ring else (tokens, targets)

    def forward(self, *inputs):
        """Inputs in, loss out. GPUs that share sequences hold their own tokens until backward has ended."""
        if self.ring:
            batch, sequence = self.batch
            self.held = self.ring.cut(self.tape, [(batch,), (batch,), ()], sequence)
            inputs = [own(x, self.ring.parts) for x in inputs]
        return self.network.forward(*inputs)

    def share_of(self, loss):
        """A batch's share in the loss of all."""
        if self.setup.accumulation == 1:
            return loss
        with self.tape.within(loss=True, owner="loss"):
            return scale(loss, "share in the loss")

    def from_loss(self, share):
        """Backward of a batch."""
        tape = self.tape
        with tape.within(loss=True, owner="loss"):
            loss = scale(share, "scaled loss", FP32) if self.setup.dtypes.loss_scaling else share
            one = new(tape, "gradient of one", (), loss.type)
        backward(tape, loss, one)

    def total(self, share):
        """The sum of the shares so far."""
        if self.setup.accumulation == 1:
            return share.alias()
        with self.tape.within(loss=True, owner="loss"):
            return new(self.tape, "sum of the shares", (), share.type)


def _moved(parameter):
    """Drop a gradient that has been added to its fp32 buffer."""
    parameter.grad = None
