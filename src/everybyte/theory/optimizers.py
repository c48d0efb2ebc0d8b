"""Optimizers: what they keep from step to step, and what their step takes.

Source: PyTorch, `torch/optim/adam.py`, `rmsprop.py`, `_adafactor.py`, `_muon.py`, `torch/amp/grad_scaler.py`; `lion_pytorch/lion_pytorch.py`;
`bitsandbytes/optim/optimizer.py`; torchao's in `low_bits.py`.
"""

from copy import copy
from math import prod

from ..ask.choices import DTYPE_BYTES, OPTIMIZERS
from ..catalog.decoders import optimized
from ..catalog.weights import ENDS, Weight
from . import low_bits
from .letters import Letter, least, up
from .schedule import Loop
from .tape import Piece

#: Numbers in a tensor from which on bitsandbytes keeps 8-bit states, and pages them; in one block; in a table.
QUANTIZED, PAGED, BLOCK, TABLE = 4096, 100_000, 256, 256

#: Weights of embeddings.
EMBEDDINGS = ("token.weight", "position.weight")


class Optimizer:
    """What the setup's optimizer keeps and takes, tensor by tensor.

    Args:
        tensors: (group, numbers, count) of what it steps through; by default what the step trains.
    """

    def __init__(self, step, tensors=None):
        self.step_, self.tape, self.setup = step, step.tape, step.setup
        self.kind, self.width = OPTIMIZERS[step.setup.optimizer], step.states
        split = step.network.split
        moved = [] if tensors else [(n, count) for weight, n, count in step.trained if split.moves(weight.name)]
        self.moved = [(numbers, self.width, count) for numbers, count in moved]
        self.tensors = tensors or [(weight.group, numbers, count) for weight, numbers, count in step.trained]
        self.weights = step.trained
        if tensors and not step.setup.fsdp:  # all numbers in a row, or a share of them
            self.weights = [(Weight("share", (n,), group), n, count) for group, n, count in self.tensors]

    # Between steps.

    def rest(self):
        """What it keeps on the GPU."""
        setup, found = self.setup, []
        if setup.dtypes.master:
            wide = Letter(DTYPE_BYTES[setup.dtypes.master], "m_w")
            found += [Piece(numbers, wide, "optimizer", count) for _, numbers, count in self.tensors]
        found += self._kept(paged=False)
        if self.kind.algorithm == "adam8bit":
            narrow = [count for weight, numbers, count in self.weights if not self._wide(weight, numbers)]
            shared = narrow if setup.optimizer_in_backward else narrow[:1] and [1]
            found += [
                Piece(TABLE, 4, "optimizer", 2 * count) for count in shared
            ]  # an optimizer's, signed and unsigned
        return found

    def host(self):
        """What it keeps in memory that is paged between GPU and CPU."""
        return self._kept(paged=True)

    def _kept(self, paged):
        """The states that are paged, or those that are not: of a large tensor, what has as many numbers as it is paged."""
        return [
            Piece(size, width, "optimizer", count)
            for weight, numbers, count in self._paired
            for size, width in self._states(weight, numbers)
            if paged == (self.kind.paged and numbers >= PAGED and size is numbers)
        ]

    def _states(self, weight, numbers):
        """(numbers, bytes of each) of what it keeps of one tensor, in the order in which it is made."""
        counter = [(1, 4)] * (self.setup.optimizer_impl == "fused")
        match self.kind.algorithm:
            case "adam":
                return counter + [(numbers, self.width)] * 2
            case "adafactor":
                return [(size, self.width) for size in factors(weight.shape)]
            case "muon":
                return [(numbers, self.width)] if is_hidden(weight) else [(numbers, self.width)] * 2 + counter
            case "adam8bit":
                return (
                    [(numbers, 4)] * 2 if self._wide(weight, numbers) else [(numbers, 1), (up(numbers, BLOCK), 4)] * 2
                )
            case "torchao":
                return low_bits.state(self.setup.optimizer, numbers, self.width) * 2
        return [(numbers, self.width)] * self.kind.states

    def _wide(self, weight, numbers):
        """Whether an 8-bit optimizer keeps its states in fp32: of few numbers, and in transformers' `Trainer` of embeddings."""
        return numbers < QUANTIZED or (self.setup.loop == "trainer" and weight.name in EMBEDDINGS)

    # The update.

    def unscale(self):
        """Under loss scaling the gradients are divided; whether one is infinite is known until the step has ended."""
        return self.tape.take("gradients unscaled", *[(1, 4)] * 4, part="optimizer", kind="prepared")[:1]

    def step(self, checks=None):
        """The update. `checks`: what `unscale` gave, where it was called before."""
        setup = self.setup
        if setup.dtypes.loss_scaling and checks is None:
            checks = self.unscale()
        if setup.dtypes.master and setup.kept_gradients == "bf16":
            sizes = [(n, 4, count) for _, n, count in self.tensors]
            if self.moved:
                shape = self.step_.network.split.gradient_shape
                sizes = [(prod(shape(w)), 4, count) for w, _, count in self.step_.trained]
            copies = self._all("fp32 gradients", sizes, "prepared")  # noqa: F841
        getattr(self, f"_{self.kind.algorithm}")()

    def alone(self, parameter, numbers):
        """The update of one weight, or of a share of it, by an optimizer of its own."""
        one, weight = copy(self), Weight(parameter.name, parameter.shape, "last")
        one.tensors, one.weights, one.moved = [("last", numbers, 1)], [(weight, numbers, 1)], []
        self.tape.note("weight moved", [])
        states = [size for piece in one.rest() for size in [piece.numbers * piece.width] * int(piece.count)]
        self.tape.by("moved", *states)  # in the first step they are made here
        one.step()

    def accumulate(self):
        """DeepSpeed's gradients, one after another, as fp32 to be added."""
        for _, numbers in self._in_order(self.step_.trained):
            self._make("gradient cast", numbers, 4)

    def _all(self, name, pieces, kind=""):
        """Tensors that are made together: (numbers, width, count) each."""
        return self.tape.hold(name, [Piece(n, width, "optimizer", count) for n, width, count in pieces], kind)

    def _make(self, name, numbers, width=None):
        """One tensor."""
        return self.tape.take(name, (numbers, width or self.width), part="optimizer")

    def _redistribute(self, operations):
        """Each operation asks for the gradients as their weights are divided; a list's copies stand until it has run, and so
        do those of the list before."""
        for times in range(1, operations + 1) if self.moved else ():
            self._all("gradients redistributed", self.moved * times)

    @property
    def _paired(self):
        """(weight, numbers, count) of each tensor of which there are so many numbers."""
        return [(weight, n, count) for (weight, *_), (_, n, count) in zip(self.weights, self.tensors, strict=True)]

    # By algorithm. What is made and given no name is freed before the next is made.

    def _sgd(self):
        self._redistribute(1)

    def _momentum(self):
        """In place."""

    _adam8bit = _momentum

    def _torchao(self):
        """One tensor after another, each in compiled code: under FSDP its first rows, as if that were all."""
        name = self.setup.optimizer
        parts = self.step_.shards if self.setup.fsdp else 1
        for weight, numbers in self._in_order(self._paired):
            inner = weight.shape[1:]
            if self.step_.model.turned_experts and len(inner) == 2:
                inner = inner[::-1]
            shape = (up(weight.shape[0], parts), *inner)
            sizes = low_bits.temporaries(name, shape, numbers)
            self._all("compiled step's buffers", [(*size, 1) for size in sizes])

    def _adam(self, tensors=None):
        """Of `tensors`, (weight, numbers, count) each, the root of each variance: of all at once, or of one after another; then the root scaled, while the one before
        still has its name."""
        tensors = self._paired if tensors is None else tensors
        if self.setup.optimizer_impl == "fused":
            self._redistribute(1)
        if self.setup.optimizer_impl == "foreach":
            self._redistribute(2)
            self._all("root of the variance", [(numbers, self.width, count) for _, numbers, count in tensors])
        if self.setup.optimizer_impl != "loop":
            return
        denominator = None  # noqa: F841
        for _, numbers in self._in_order(tensors):
            root = self._make("root of one tensor's variance", numbers)
            denominator = self._make("root of one tensor's variance", numbers)  # noqa: F841
            del root

    def _rmsprop(self):
        """The root of each mean square: of all at once; or of one after another, while the one before still has its name."""
        if self.setup.optimizer_impl == "foreach":
            self._all("roots of the mean squares", [(n, self.width, count) for _, n, count in self.tensors])
            return
        root = None  # noqa: F841
        for _, numbers in self._in_order(self._paired):
            root = self._make("root of one tensor's mean square", numbers)  # noqa: F841

    def _lion(self):
        for _, numbers in self._in_order(self._paired):
            copy = self._make("average copied", numbers)
            update = self._make("sign of the update", numbers)  # noqa: F841
            del copy, update

    def _adafactor(self):
        self._adafactor_together() if self.setup.optimizer_impl == "foreach" else self._adafactor_each()

    def _adafactor_each(self):
        """One tensor after another: what an iteration makes has its name until the next one's."""
        row = column = squared = update = None  # noqa: F841
        for weight, numbers in self._in_order(self.weights):
            self._make("norm of the weights", 1)
            if len(weight.shape) > 1:
                rows, columns = factors(weight.shape)
                row = self._make("means of the rows", rows)  # noqa: F841
                column = self._make("means of the columns", columns)  # noqa: F841
                estimate = self._make("estimate of the variance", numbers)
                self._make("mean of the rows", prod(weight.shape[:-2]))
            else:
                squared = self._make("gradient squared", numbers)  # noqa: F841
                estimate = self._make("variance copied", numbers)
            update = estimate  # noqa: F841
            self._make("norm of the update", 1)

    def _adafactor_together(self):
        """All matrices and all vectors, first those of the step's first weight; an update has its name until the others'."""
        matrices = [(w.shape, n, count) for w, n, count in self.weights if len(w.shape) > 1]
        vectors = [(n, self.width, count) for w, n, count in self.weights if len(w.shape) == 1]
        groups = [(self._factored, matrices), (self._squared, vectors)]
        if len(self.weights[0][0].shape) == 1:  # of a stage without embeddings a norm's
            groups.reverse()
        for estimates, tensors in groups:
            if tensors:
                self._make("norm of the weights", 1)
                updates = estimates(tensors)  # noqa: F841
                self._make("norm of the update", 1)

    def _squared(self, vectors):
        self._all("gradients squared", vectors)
        return self._all("variances copied", vectors)

    def _factored(self, matrices):
        for i, what in enumerate(("rows", "columns")):
            self._all(f"means of the {what}", [(factors(s)[i], self.width, count) for s, _, count in matrices])
        updates = self._all("estimates of the variances", [(n, self.width, count) for _, n, count in matrices])
        self._all("means of the rows", [(prod(s[:-2]), self.width, count) for s, _, count in matrices])
        return updates

    def _muon(self):
        """One matrix after another: five times two products with the matrix's smaller side, in bf16. Under FSDP gathered before."""
        bits, update, narrow = 2, None, self.setup.fsdp or self.setup.dtypes.states == "bf16"
        hidden = [row for row in self._paired if is_hidden(row[0])]
        if self.setup.muon_gather != "each":
            hidden = []
            self._exchanged(bits)
        for weight, numbers in self._in_order(hidden):
            if self.setup.fsdp:
                update = self._gathered(numbers, bits)
            else:
                update = self._make("gradient with momentum", numbers)
            update = self._orthogonal(update, prod(weight.shape), least(*weight.shape), bits, narrow)
        del update
        self._adam([row for row in self._paired if not is_hidden(row[0])])

    def _gathered(self, numbers, bits):
        """The update of a whole matrix, filled up to equal shares. numbers: of this GPU's rows. Source: `reference/saving/muon.py`."""
        rows = self._make("gradient with momentum", numbers)  # noqa: F841
        sent = self._make("rows in bf16", numbers, bits)  # noqa: F841
        return self._make("matrix gathered", Letter(self.setup.shards, "G") * numbers, bits)

    def _exchanged(self, bits):
        """Of each shape as many matrices at once as there are GPUs, one on each. Source: `reference/saving/muon.py`."""
        owned = self.setup.muon_gather == "owner"
        turns = [row for row, loop in rounds(self.step_.whole, self._paired, self.setup) for _ in range(loop.turns)]
        for index, (weight, numbers, _) in enumerate(turns):
            whole = Letter(self.setup.shards, "G") * numbers
            with self.tape.turn("round", index):
                sent = self._make(
                    "rows for an owner" if owned else "rows for all owners", numbers if owned else whole, bits
                )
                self._make("gradient with momentum", numbers)  # of one matrix after another
                update = self._make("matrix from all GPUs' rows", whole, bits)
                if owned:
                    del sent
                self._orthogonal(update, prod(weight.shape), least(*weight.shape), bits, True)
                sent = self._make("rows from an owner", numbers, bits) if owned else sent
                del sent, update

    def _orthogonal(self, update, numbers, side, bits, narrow):
        found = update if narrow else self._make("matrix in bf16", numbers, bits)
        norm = self._make("norm of the matrix", 1, bits)
        least_norm = self._make("norm of the matrix, not 0", 1, bits)
        del norm, least_norm
        for _ in range(5):
            gram = self._make("matrix by itself", side * side, bits)
            again = self._make("polynomial of it", side * side, bits)  # noqa: F841
            found = self._make("matrix turned", numbers, bits)
        del gram
        return found

    def _in_order(self, rows):
        """(weight, numbers) of (weight, numbers, ...) each, within its turn: what comes before the blocks, each that is traced, last."""
        if not self.step_.whole.family:
            rows = optimized(self.step_.whole, rows)
        places = [i for i, (weight, *_) in enumerate(rows) if weight.group not in ENDS] or [0, -1]
        first, block, last = rows[: places[0]], rows[places[0] : places[-1] + 1], rows[places[-1] + 1 :]
        *dense, _ = stepped = self.step_.stepped
        yield from _each(first)
        for i in range(sum(stepped)):
            other = ("mixture" if i < sum(dense) else "dense") if dense else ""
            with self.tape.turn("layer", i):
                yield from _each(row for row in block if row[0].group != other)
        yield from _each(last)


def _each(rows):
    """(weight, numbers), as often as there are such."""
    return ((weight, numbers) for weight, numbers, *_ in rows for _ in range(weight.count))


def factors(shape):
    """Numbers in the factors of Adafactor's variance: along the last dimension, and along the one before; of a vector, in itself."""
    return (prod(shape[:-1]), prod((*shape[:-2], shape[-1]))) if len(shape) > 1 else (shape[0],)


def rounds(model, rows, setup):
    """(row, Loop) of each shape of Muon's matrices: of one of them, and how often each GPU gets one. rows: (weight, numbers, count) each."""
    alike, hidden = {}, [row for row in rows if is_hidden(row[0])]
    for row in hidden if model.family else optimized(model, hidden):
        alike.setdefault(tuple(map(int, row[0].shape)), []).append(row)
    gpus = Letter(setup.shards, "G")
    return [(same[0], Loop.of(up(sum(count for *_, count in same), gpus), 3, 1)) for same in alike.values()]


def is_hidden(weight):
    """Whether it is a matrix of a block, which Muon takes."""
    return weight.group not in ENDS and len(weight.shape) == 2
