"""Alignment's steps: the program of a training step with the losses of DPO, PPO and GRPO. Source: `dryrun/alignment.py`, line by line.

All of them save each token's log-probabilities over the whole vocabulary, and their backward makes two more tensors of that size:
gather's, a table of zeros with one number a token, and log-softmax's. Cross-entropy's are the same three; what differs is that under
autocast all are in fp32, and that DPO has them for both sequences of a pair at once, beside the reference's.
"""

from functools import partial

from ..ask.setup import DTYPE_BYTES
from . import operations as op
from .autograd import record, save, unpacked
from .course import Course
from .letters import Letter
from .programs import Network
from .stand_in import Module
from .structure import trace as course
from .tape import BOOL, FP32, INT64, Piece, Type
from .tensors import new, view
from .training import Step

# Operations of PyTorch's that no other step has.


def log_softmax(x, title):
    """Saves its result. Under autocast in fp32, which fp16 alone is read into without a cast. Source: `native/SoftMax.cpp`."""
    direct = x.tape.autocast and x.type.name == "fp16"
    before, wide = x.type, x if direct else op.raised(x, "logits in fp32")
    out = new(x.tape, title, wide.shape, FP32 if direct else wide.type)

    def run(node, grads):
        read = unpacked(node)  # noqa: F841
        return [new(grads[0].tape, f"{title} backward", grads[0].shape, before if direct else grads[0].type)]

    record(out, title, run, [wide], results=[out])
    return out


def gather(x, index, title):
    """One number of each row. Saves table and index; its backward fills a new table of zeros in place.

    Source: `gather_backward` in `native/TensorAdvancedIndexing.cpp`.
    """
    saved, shape = save(x.tape, [x], x, index), x.shape
    out = new(x.tape, title, (*x.shape[:-1], 1), x.type)

    def run(node, grads):
        read = unpacked(node)  # noqa: F841
        return [new(grads[0].tape, f"{title} backward", shape, grads[0].type)]

    record(out, title, run, [x], saved)
    return out


def squeezed(x):
    """A view without the last dimension, which is 1."""
    before, strides = x.shape, x.strides
    out = view(x, x.shape[:-1], x.strides[:-1])
    record(out, "squeezed", lambda node, grads: [view(grads[0], before, strides)], [x])
    return out


def _wider(x, y):
    return FP32 if FP32.name in (x.type.name, y.type.name) else x.type


def subtract(x, y, title):
    """A difference, of the wider type; the second's gradient is negated."""
    out = new(x.tape, title, x.shape, _wider(x, y))
    record(out, title, lambda node, grads: [grads[0], _same(grads[0], f"{title}: negated")], [x, y])
    return out


def times(x, factor, title):
    """A product with what wants no gradient, and is saved."""
    saved = save(x.tape, [x], factor)
    out = new(x.tape, title, x.shape, _wider(x, factor) if factor.type is not BOOL else x.type)

    def run(node, grads):
        read = unpacked(node)  # noqa: F841
        return [_same(grads[0], f"{title} backward")]

    record(out, title, run, [x], saved)
    return out


def _same(x, title):
    return new(x.tape, title, x.shape, x.type)


def exponential(x, title):
    """Saves its result. On autocast's fp32 list."""
    wide = op.raised(x, f"{title} input cast")
    out = _same(wide, title)

    def run(node, grads):
        read = unpacked(node)  # noqa: F841
        return [_same(grads[0], f"{title} backward")]

    record(out, title, run, [wide], results=[out])
    return out


def clamp(x, title):
    """Saves its input. Source: `clamp_backward` in `FunctionsManual.cpp`."""
    saved = save(x.tape, [x], x)
    out = _same(x, title)

    def run(node, grads):
        (x,) = unpacked(node)
        zero = new(x.tape, f"{title}: zero", (), grads[0].type)  # noqa: F841
        above = new(x.tape, f"{title}: above", x.shape, BOOL)  # noqa: F841
        below = new(x.tape, f"{title}: below", x.shape, BOOL)  # noqa: F841
        return [_same(grads[0], f"{title} backward")]

    record(out, title, run, [x], saved)
    return out


def extreme(x, y, title):
    """The smaller or the larger of each two. Saves both. Source: `minimum` and `maximum` in derivatives.yaml."""
    saved = save(x.tape, [x, y], x, y)
    out = _same(x, title)

    def run(node, grads):
        x, y = unpacked(node)

        def share(name):
            half = _same(grads[0], f"{title}: half, {name}")  # noqa: F841
            equal = new(x.tape, f"{title}: equal, {name}", x.shape, BOOL)  # noqa: F841
            made = _same(grads[0], f"{title} backward, {name}")
            other = new(x.tape, f"{title}: other, {name}", x.shape, BOOL)  # noqa: F841
            return made

        second = share("second")
        return [share("first"), second]

    record(out, title, run, [x, y], saved)
    return out


def square(x, title):
    """Saves its input. Source: `pow_backward` in `FunctionsManual.cpp`."""
    saved = save(x.tape, [x], x)
    out = _same(x, title)

    def run(node, grads):
        (x,) = unpacked(node)
        power = _same(x, f"{title}: power")  # noqa: F841
        double = _same(x, f"{title}: doubled")  # noqa: F841
        return [_same(x, f"{title} backward")]

    record(out, title, run, [x], saved)
    return out


def total(x, title, keep=()):
    """A sum over the last dimension, or over all; its gradient is spread by a view."""
    shape, strides = x.shape, x.strides
    out = new(x.tape, title, keep, x.type)
    record(out, title, lambda node, grads: [view(grads[0], shape, (0,) * len(strides))], [x])
    return out


# The losses.


def log_probabilities(logits, targets):
    """Each token's."""
    return squeezed(gather(log_softmax(logits, "log-softmax"), targets, "gathered"))


def of_sequences(log_p, mask):
    """Each sequence's."""
    return total(times(log_p, mask, "answers alone"), "sequences' log-probabilities", (log_p.shape[0],))


def preference(policy, reference):
    """DPO's."""
    half = Letter(int(policy.shape[0]) // 2, f"whole({policy.shape[0].text},2)")
    chosen, rejected = op.split(subtract(policy, reference, "ahead of the reference"), (half, half), 0, "pair")
    margin = op.scale(op.subtract(chosen, rejected, "margin"), "scaled margin")
    del chosen, rejected
    return op.scale(_mean(_log_sigmoid(margin)), "loss")


def _log_sigmoid(x):
    """Saves its input, and on CUDA nothing besides. Source: `log_sigmoid_forward_cuda`."""
    saved = save(x.tape, [x], x)
    out = _same(x, "log-sigmoid")

    def run(node, grads):
        read = unpacked(node)  # noqa: F841
        return [_same(grads[0], "log-sigmoid backward")]

    record(out, "log-sigmoid", run, [x], saved)
    return out


def _mean(x):
    shape, out = x.shape, new(x.tape, "mean", (), x.type)
    record(out, "mean", lambda node, grads: [new(grads[0].tape, "mean backward", shape, grads[0].type)], [x])
    return out


def surrogate(log_p, mask, old, advantages, reference=None):
    """PPO's and GRPO's."""
    ratio = exponential(subtract(log_p, old, "ahead of the old"), "ratio")
    gain = extreme(
        times(ratio, advantages, "gain"),
        times(clamp(ratio, "clipped ratio"), advantages, "clipped gain"),
        "smaller gain",
    )
    if reference is not None:
        ahead = subtract(reference, log_p, "reference ahead")
        gain = subtract(
            gain,
            op.scale(
                op.shift(subtract(exponential(ahead, "inverse ratio"), ahead, "divergence and 1"), "divergence"),
                "scaled divergence",
            ),
            "gain less divergence",
        )
    return _of_answers(gain, mask, "negative sum")


def clipped_square(values, mask, old, returns):
    """The value model's."""
    clipped = subtract(clamp(subtract(values, old, "ahead of the old"), "clipped"), old, "clipped values")
    worse = extreme(
        square(subtract(values, returns, "error"), "squared error"),
        square(subtract(clipped, returns, "clipped error"), "squared clipped error"),
        "larger error",
    )
    return _of_answers(worse, mask, "half of the sum")


def _of_answers(x, mask, title):
    """The mean over the tokens of answers, with a factor."""
    summed = op.scale(total(times(x, mask, "answers alone"), "sum"), title)
    return times(summed, new(summed.tape, "tokens", (), INT64), "loss")


# The step.


class _Ends(Module):
    """What a network does with its logits, in the loss's place."""

    def __init__(self, forward):
        super().__init__()
        self.forward = forward


def _ending(network, ends):
    """The network with another loss."""
    network.module.loss = _Ends(ends)
    network.module.loss.on(network, "loss")
    return network


class AlignmentStep(Step):
    """One step of an objective on a tape. Arguments as for `Step`, after the objective."""

    def __init__(self, objective, model, setup, *counts):
        super().__init__(model, setup, *counts)
        self.objective, self.reference = objective, None
        self.batch = objective.sequences * self.batch[0], self.batch[1]
        ends = log_probabilities
        if objective.reference == "before":
            ends = {"dpo": self._preference, "value": self._values}.get(objective.method, self._surrogate)
        elif setup.adapters is not None:  # the same weights, with the adapters switched off
            self.reference = self.network
        else:
            kind = Type(setup.dtypes.compute, Letter(DTYPE_BYTES[setup.dtypes.compute], "c"))
            network = Network(self.tape, self.model, setup, self.network.segments, self.network.chunks, kind)
            self.reference = _ending(network, log_probabilities)
        _ending(self.network, ends)

    def rest(self):
        """With the weights of a reference of its own, and its masks."""
        found = super().rest()
        if self.reference is not None and self.setup.adapters is None:
            wide = self.reference.type.width
            found += [Piece(numbers, wide, "parameters", count) for _, numbers, count in self.weights]
            found += [Piece(p.numbers, wide, p.part, p.count) for p in self._buffers()]
        return found

    def _inputs(self):
        tape, sequences = self.tape, self.batch[0]
        tokens = new(tape, "tokens", self.batch, INT64)
        targets, mask = new(tape, "targets", self.batch, INT64, part="loss"), new(tape, "answers", self.batch, BOOL)
        if self.reference is not None:
            return tokens, targets, mask
        shapes = {
            "dpo": [(sequences,)], "ppo": [self.batch] * 2, "grpo": [self.batch, (sequences, 1), self.batch],
            "value": [self.batch] * 2,
        }[self.objective.method]  # fmt: skip
        return tokens, (targets, mask, *(new(tape, "known before", shape, FP32) for shape in shapes))

    def _preference(self, logits, known):
        targets, mask, reference = known
        return preference(of_sequences(log_probabilities(logits, targets), mask), reference)

    def _surrogate(self, logits, known):
        targets, *others = known
        return surrogate(log_probabilities(logits, targets), *others)

    def _values(self, scores, known):
        _, *others = known
        return clipped_square(squeezed(scores), *others)

    def forward(self, tokens, *others):
        if self.reference is None:
            return self.network.forward(tokens, *others)
        targets, mask = others
        first = self.objective.reference == "first"
        reference = self._by_reference(tokens, targets) if first else None
        log_p = self.network.forward(tokens, targets)
        if not first:
            reference = self._by_reference(tokens, targets)
        with self.tape.within(loss=True, owner="loss"):
            return preference(of_sequences(log_p, mask), of_sequences(reference, mask))

    def _by_reference(self, tokens, targets):
        network = self.reference
        everything = network.parameters
        network.parameters = {n: p for n, p in everything.items() if ".lora_" not in n}
        try:
            with self.tape.within(grad=False):
                return network.forward(tokens, targets)
        finally:
            network.parameters = everything


class Scoring(Step):
    """One pass of a frozen model over a batch that a policy learns from: log-probabilities, or of a `Scorer` one number a token."""

    def __init__(self, model, setup, *counts):
        super().__init__(model, setup, *counts)
        kind = Type(setup.dtypes.compute, Letter(DTYPE_BYTES[setup.dtypes.compute], "c"))
        self.network = Network(self.tape, self.model, setup, self.network.segments, self.network.chunks, kind)
        scores = getattr(model, "outputs", 0)
        _ending(self.network, (lambda scores, targets: squeezed(scores)) if scores else log_probabilities)

    def rest(self):
        """The weights, and masks."""
        wide = self.network.type.width
        return [Piece(n, wide, "parameters", count) for _, n, count in self.weights] + [
            Piece(p.numbers, wide, p.part, p.count) for p in self._buffers()
        ]

    def host(self):
        """Nothing."""
        return []

    def run(self):
        """The pass. Returns its operations."""
        tape = self.tape
        tape.phase = "forward"
        inputs = self._inputs()
        with tape.casting(), tape.within(grad=False):
            found = self.network.forward(*inputs)  # noqa: F841  lives to the end
        tape.mark("after_forward")
        tape.running = False
        return tape.operations


def scoring(model, setup) -> Course:
    """The course of a frozen model's pass on one GPU. model: a Model or a `Scorer`. setup: of one GPU, without adapters."""
    return course(model, setup, make=Scoring, beside=("scoring", getattr(model, "outputs", 0)))


def trace(objective, setup) -> Course:
    """The course of an objective's step; equal structures share it."""
    return course(
        objective.trained, setup, make=partial(AlignmentStep, objective), beside=(objective.method, objective.reference)
    )
