"""The training step: batches whose gradients add up, then the optimizer. Source: `reference/step.py`, line by line."""

from functools import partial

from ..catalog.weights import layers, weights
from ..setup import DTYPE_BYTES, OPTIMIZERS
from .architectures import Network
from .autograd import backward
from .letters import Letter, least, product, up
from .operations import scale
from .sharding import Sharding, share
from .tape import FP32, INT64, Piece, Tape, Type
from .tensors import new


class _Fields:
    """A model's fields with dimensions as letters, and conditions as 0 or 1."""

    #: Field -> its letter.
    LETTERS = {
        "width": "H", "heads": "A", "kv_heads": "A_kv", "head_width": "D", "ffn_width": "F", "vocabulary": "V",
        "learned_positions": "N", "positions": "N_max", "embedding_width": "W", "experts": "E", "experts_per_token": "E_t",
        "expert_width": "F_e", "layers": "L",
    }  # fmt: skip

    def __init__(self, model):
        self._model = model
        for name, letter in self.LETTERS.items():
            setattr(self, name, Letter(getattr(model, name), letter))

    def __getattr__(self, name):
        return getattr(self._model, name)


class Step:
    """One training step on a tape.

    Args:
        model: a Model. setup: a Setup. segments: blocks in each segment that is traced. chunks: tokens in each chunk.
        batches: how many are traced. stepped: of how many blocks the optimizer is.
    """

    def __init__(self, model, setup, segments, chunks, batches, stepped):
        self.tape, self.setup, self.model, self.batches, self.stepped = Tape(), setup, _Fields(model), batches, stepped
        precision = setup.dtypes
        self.stored = Type(precision.weights, Letter(DTYPE_BYTES[precision.weights], "w_s"))
        self.states = Letter(DTYPE_BYTES[precision.states], "s_b")
        compute = Type(precision.compute, Letter(DTYPE_BYTES[precision.compute], "c"))
        name = precision.compute if setup.fsdp else precision.weights
        self.weight = Type(name, Letter(DTYPE_BYTES[name], "w"))
        self.tape.compute = compute
        self.tape.autocast = compute if precision.autocast and not setup.fsdp else None
        self.batch = Letter(setup.batch, "B"), Letter(setup.sequence, "S")
        self.weights = [
            (weight, product(weight.shape), weight.count * (Letter(model.layers, "L") if weight.group not in ENDS else 1))
            for weight in weights(self.model) if weight.count and layers(model)[weight.group]
        ]  # fmt: skip
        self.reduced = Letter(DTYPE_BYTES[precision.weights], "r")
        self.network = Network(self.tape, self.model, setup, segments, chunks, self.weight)
        for parameter in self._parameters():
            if setup.master_gradients == "fp32":
                parameter.hooks.append(_moved)
        self.sharding, tensors = None, None
        self.shards = Letter(setup.gpus // setup.replicas, "G")
        if setup.fsdp:
            self.sharding = Sharding(self, self.shards)
            tensors = [(w.group, share(w.shape, self.shards), count) for w, _, count in self.weights]
        elif setup.sharding == "zero1":
            self.padded = self.shards * up(Letter(model.parameters, "P"), self.shards)
            tensors = [("last", up(Letter(model.parameters, "P"), self.shards), 1)]
            for parameter in self._parameters():
                parameter.grad = parameter  # a view of a buffer, which each gradient is added to
        elif setup.buckets == "views":
            for parameter in self._parameters():
                parameter.hooks.append(self._into_bucket)
        self.optimizer = Optimizer(self, tensors)

    def _into_bucket(self, parameter):
        """DDP whose buckets are the gradients: the last batch's go there."""
        if self.last:
            parameter.grad = None

    def _parameters(self):
        return list(dict.fromkeys(self.network.parameters.values()))

    def rest(self):
        """Between steps: pieces, which every step finds."""
        precision, setup = self.setup.dtypes, self.setup
        if setup.offload == "cpu":
            return [*self._buffers()]
        if setup.fsdp:
            found = [
                Piece(numbers, self.stored.width, "parameters", count) for _, numbers, count in self.optimizer.tensors
            ]
        elif setup.sharding == "zero1":
            found = [Piece(self.padded, self.stored.width, part) for part in ("parameters", "gradients")]
        else:
            found = [Piece(numbers, self.stored.width, "parameters", count) for _, numbers, count in self.weights]
        if setup.ddp:
            part = "gradients" if setup.buckets == "views" else "communication"
            found.append(Piece(Letter(1, "Q"), 1, part))
        if setup.master_gradients != "bf16":
            found += [Piece(numbers, 4, "gradients", count) for _, numbers, count in self.weights]
        found += [*self._buffers(), *self.optimizer.rest()]
        if precision.loss_scaling:
            found += [Piece(1, 4, "optimizer", 2)]
        return found

    def _buffers(self):
        """Eager attention's masks, one a block."""
        if self.setup.attention == "eager" and self.model.family == "gpt":
            square = product((self.model.positions, self.model.positions))
            yield Piece(square, self.stored.width, "buffers", Letter(self.model.layers, "L"))

    def host(self):
        """In the memory of the CPU, where FSDP's shares and the optimizer are offloaded: pieces."""
        if self.setup.offload != "cpu":
            return self.optimizer.host()
        found = [Piece(numbers, self.stored.width, "parameters", count) for _, numbers, count in self.optimizer.tensors]
        found += [Piece(numbers, self.reduced, "gradients", count) for _, numbers, count in self.optimizer.tensors]
        return found + self.optimizer.rest()

    def run(self):
        """The step. Returns its operations."""
        tape, setup, n = self.tape, self.setup, self.setup.accumulation
        total = None  # noqa: F841  lives as long as the step
        for i in range(self.batches):
            self.last = i == self.batches - 1
            if self.sharding:
                self.sharding.sends = self.last or not setup.no_sync
            with tape.turn("batch", i):
                tape.phase = "forward"
                inputs = self._inputs()
                with tape.casting():
                    loss = self.network.forward(*inputs)
                tape.mark("after_forward")
                tape.phase = "backward"
                with tape.within(loss=True, owner="loss"):
                    share = scale(loss, "share in the loss") if n > 1 else loss
                self._backward(share)
                total = self._total(share)  # noqa: F841
                tape.mark("after_backward")
        tape.phase = "optimizer step"
        if setup.offload == "none":
            self.optimizer.step()
        tape.mark("after_step")
        tape.running = False
        return tape.operations

    def _inputs(self):
        tokens = new(self.tape, "tokens", self.batch, INT64)
        return tokens, new(self.tape, "targets", self.batch, INT64, part="loss")

    def _backward(self, share):
        tape = self.tape
        with tape.within(loss=True, owner="loss"):
            loss = scale(share, "scaled loss", FP32) if self.setup.dtypes.loss_scaling else share
            one = new(tape, "gradient of one", (), loss.type)
        backward(tape, loss, one)

    def _total(self, share):
        if self.setup.accumulation == 1:
            return share.alias()
        with self.tape.within(loss=True, owner="loss"):
            return new(self.tape, "sum of the shares", (), share.type)


#: Groups of weights that stand once in a model.
ENDS = ("embeddings", "last")


def _moved(parameter):
    """A gradient that has been added to a lasting fp32 buffer is dropped."""
    parameter.grad = None


class Optimizer:
    """What optimizers keep and take, tensor by tensor.

    Source: PyTorch, `torch/optim/adam.py`, `_adafactor.py`, `_muon.py`, `torch/amp/grad_scaler.py`;
    `lion_pytorch/lion_pytorch.py`; `bitsandbytes/optim/optimizer.py`.

    Args:
        tensors: (group, numbers, count) of what it steps through; by default the model's weights.
    """

    #: Numbers in a tensor from which on bitsandbytes keeps 8-bit states, and pages them; in one block; in a table.
    QUANTIZED, PAGED, BLOCK, TABLE = 4096, 100_000, 256, 256

    def __init__(self, step, tensors=None):
        self.step_, self.tape, self.setup = step, step.tape, step.setup
        self.kind, self.width = OPTIMIZERS[step.setup.optimizer], step.states
        self.tensors = tensors or [(weight.group, numbers, count) for weight, numbers, count in step.weights]

    # Between steps.

    def rest(self):
        """What it keeps on the GPU."""
        setup, found = self.setup, []
        if setup.dtypes.master:
            wide = Letter(DTYPE_BYTES[setup.dtypes.master], "m_w")
            found += [Piece(numbers, wide, "optimizer", count) for _, numbers, count in self.tensors]
        if self.kind.states is None:
            for weight, numbers, count in self.step_.weights:
                pieces = getattr(self, f"_{self.kind.algorithm}_states")(weight, numbers)
                found += [Piece(size, width, "optimizer", count) for size, width, paged in pieces if not paged]
        else:
            found += [
                Piece(n, self.width, "optimizer", count)
                for _, n, count in self.tensors
                for _ in range(self.kind.states)
            ]
        if self.kind.algorithm == "adam" and setup.optimizer_impl == "fused":
            found += [Piece(1, 4, "optimizer", count) for _, _, count in self.tensors]
        if self.kind.algorithm == "adam8bit" and any(numbers >= self.QUANTIZED for _, numbers, _ in self.step_.weights):
            found += [Piece(self.TABLE, 4, "optimizer", 2)]  # signed and unsigned, which all share
        return found

    def host(self):
        """What it keeps in memory that is paged between GPU and CPU."""
        if self.setup.optimizer != "paged-adamw8bit":
            return []
        found = [(self._adam8bit_states(weight, numbers), count) for weight, numbers, count in self.step_.weights]
        return [
            Piece(size, width, "optimizer", count) for pieces, count in found for size, width, paged in pieces if paged
        ]

    def _adafactor_states(self, weight, numbers):
        if len(weight.shape) == 1:
            return [(numbers, self.width, False)]
        return [(size, self.width, False) for size in _factors(weight.shape)]

    def _muon_states(self, weight, numbers):
        if is_hidden(weight):
            return [(numbers, self.width, False)]
        counter = [(1, 4, False)] * (self.setup.optimizer_impl == "fused")
        return [(numbers, self.width, False)] * 2 + counter

    def _adam8bit_states(self, weight, numbers):
        if numbers < self.QUANTIZED:
            return [(numbers, 4, False)] * 2
        paged = self.setup.optimizer.startswith("paged") and numbers >= self.PAGED
        return [(numbers, 1, paged), (up(numbers, self.BLOCK), 4, False)] * 2

    # The update.

    def step(self):
        """The update."""
        tape, setup = self.tape, self.setup
        if setup.dtypes.loss_scaling:
            checks = tape.take("gradients unscaled", *[(1, 4)] * 4, part="optimizer")
            del checks[1:]
        if setup.dtypes.master and setup.master_gradients == "bf16":
            copies = self._all("fp32 gradients", [(numbers, 4, count) for _, numbers, count in self.tensors])  # noqa: F841
        algorithm = self.kind.algorithm
        if algorithm == "adam":
            self._adam(self.tensors)
        elif algorithm == "lion":
            self._lion()
        elif algorithm == "adafactor":
            self._adafactor_together() if setup.optimizer_impl == "foreach" else self._adafactor()
        elif algorithm == "muon":
            self._muon()
            rest = [(weight.group, n, count) for weight, n, count in self.step_.weights if not is_hidden(weight)]
            self._adam(rest)

    def _all(self, name, pieces):
        """Tensors that are made together: (numbers, width, count) each."""
        return self.tape.hold(name, [Piece(n, width, "optimizer", count) for n, width, count in pieces])

    def _make(self, name, numbers, width=None):
        """One tensor."""
        return self.tape.take(name, (numbers, width or self.width), part="optimizer")

    def _adam(self, tensors):
        """The root of each variance: of all at once, or of one after another; then the root scaled, while the one before
        still has its name."""
        if self.setup.optimizer_impl == "foreach":
            roots = self._all("root of the variance", [(numbers, self.width, count) for _, numbers, count in tensors])
            del roots
        if self.setup.optimizer_impl != "loop":
            return
        denominator = None  # noqa: F841
        for turn, numbers in self._in_order(tensors):
            with turn():
                root = self._make("root of one tensor's variance", numbers)
                denominator = self._make("root of one tensor's variance", numbers)  # noqa: F841
                del root

    def _lion(self):
        for turn, numbers in self._in_order(self.tensors):
            with turn():
                copy = self._make("average copied", numbers)
                update = self._make("sign of the update", numbers)  # noqa: F841
                del copy, update

    def _adafactor(self):
        """One tensor after another: what an iteration makes has its name until the next one's."""
        row = column = squared = update = None  # noqa: F841
        for turn, (shape, numbers) in self._in_order([(w.group, (w.shape, n), 1) for w, n, _ in self.step_.weights]):
            with turn():
                norm = self._make("norm of the weights", 1)
                del norm
                if len(shape) > 1:
                    rows, columns = _factors(shape)
                    row = self._make("means of the rows", rows)  # noqa: F841
                    column = self._make("means of the columns", columns)  # noqa: F841
                    estimate = self._make("estimate of the variance", numbers)
                    mean = self._make("mean of the rows", product(shape[:-2]))
                    del mean
                else:
                    squared = self._make("gradient squared", numbers)  # noqa: F841
                    estimate = self._make("variance copied", numbers)
                update = estimate  # noqa: F841
                norm = self._make("norm of the update", 1)
                del norm

    def _adafactor_together(self):
        """All matrices, then all vectors, whose update takes the name of the matrices'."""
        weights = self.step_.weights
        matrices = [(w.shape, n, count) for w, n, count in weights if len(w.shape) > 1]
        vectors = [(n, self.width, count) for w, n, count in weights if len(w.shape) == 1]
        norm = self._make("norm of the weights", 1)
        del norm
        for i, what in enumerate(("rows", "columns")):
            means = self._all(f"means of the {what}", [(_factors(s)[i], self.width, count) for s, _, count in matrices])
            del means
        updates = self._all("estimates of the variances", [(n, self.width, count) for _, n, count in matrices])
        means = self._all("means of the rows", [(product(s[:-2]), self.width, count) for s, _, count in matrices])
        del means
        norm = self._make("norm of the update", 1)
        del norm
        if vectors:
            norm = self._make("norm of the weights", 1)
            del norm
            squared = self._all("gradients squared", vectors)
            del squared
            estimates = self._all("variances copied", vectors)
            updates = estimates  # noqa: F841
            norm = self._make("norm of the update", 1)
            del norm

    def _muon(self):
        """One matrix after another: five times two products with the matrix's smaller side, in bf16."""
        bits = 2
        update = None
        hidden = [(w.group, (w.shape, n), 1) for w, n, _ in self.step_.weights if is_hidden(w)]
        for turn, (shape, numbers) in self._in_order(hidden):
            with turn():
                update = self._make("gradient with momentum", numbers)
                update = self._orthogonal(update, numbers, least(*shape), bits)

    def _orthogonal(self, update, numbers, side, bits):
        found = update if self.setup.dtypes.states == "bf16" else self._make("matrix in bf16", numbers, bits)
        norm = self._make("norm of the matrix", 1, bits)
        least_norm = self._make("norm of the matrix, not 0", 1, bits)
        del norm, least_norm
        for _ in range(5):
            gram = self._make("matrix by itself", side * side, bits)
            again = self._make("polynomial of it", side * side, bits)  # noqa: F841
            found = self._make("matrix turned", numbers, bits)
        del gram
        return found

    def _in_order(self, tensors):
        """(within which turn, what stands in the second place of a tensor): embeddings, each block that is traced, last."""
        first = [what for group, what, _ in tensors if group == "embeddings"]
        block = [what for group, what, _ in tensors if group not in ENDS]
        last = [what for group, what, _ in tensors if group == "last"]
        yield from ((self.tape.within, what) for what in first)
        for i in range(self.step_.stepped):
            yield from ((partial(self.tape.turn, "layer", i), what) for what in block)
        yield from ((self.tape.within, what) for what in last)


def _factors(shape):
    """Numbers in the factors of Adafactor's variance: along the last dimension, and along the one before."""
    return product(shape[:-1]), product((*shape[:-2], shape[-1]))


def is_hidden(weight):
    """Whether it is a matrix of a block, which Muon takes."""
    return weight.group not in ENDS and len(weight.shape) == 2
