"""Alignment's steps, and a frozen model's pass: a training step whose losses are those of `reference/objectives`.

All of them save each token's log-probabilities over the whole vocabulary, and their backward makes two more tensors of that size:
gather's, a table of zeros with one number a token, and log-softmax's. Cross-entropy's are the same three; what differs is that under
autocast all are in fp32, and that DPO has them for both sequences of a pair at once, beside the reference's.
"""

from functools import partial

from ..ask.choices import DTYPE_BYTES
from .course import Course
from .letters import Letter
from .programs import Network, source
from .structure import trace as course
from .tape import BOOL, FP32, INT64, Piece, Type
from .tensors import new
from .training import Step


def _ending(network, loss):
    """The network with another loss."""
    network.module.loss = loss
    loss.on(network, "loss")
    return network


def _standing(step, kind):
    """The weights of a frozen network of a step's model, in that data type, and its masks."""
    found = [Piece(numbers, kind.width, "parameters", count) for _, numbers, count in step.weights]
    return found + [Piece(p.numbers, kind.width, p.part, p.count) for p in step._buffers()]


def _frozen(step):
    """A second network of a step's model, whose weights have the data type of matrix products."""
    compute = step.setup.dtypes.compute
    kind = Type(compute, Letter(DTYPE_BYTES[compute], "c"))
    return Network(step.tape, step.model, step.setup, step.network.segments, step.network.chunks, kind)


class AlignmentStep(Step):
    """One step of an objective on a tape. Arguments as for `Step`, after the objective."""

    def __init__(self, objective, model, setup, *counts):
        super().__init__(model, setup, *counts)
        self.objective, self.both, self.reference = objective, None, None
        self.batch = objective.sequences * self.batch[0], self.batch[1]
        losses = source("objectives.losses")
        if not objective.in_step:
            _ending(self.network, losses.LOSSES[objective.method]())
            return
        _ending(self.network, losses.TokenLogProbabilities())
        if setup.adapters is None:  # else the reference is the policy, its adapters switched off
            self.reference = _ending(_frozen(self), losses.TokenLogProbabilities())
        beside = self.reference and self.reference.module
        self.both = losses.WithReference(self.network.module, beside, objective.reference == "first")
        self.both.loss.on(self.network, "loss")

    def rest(self):
        """With the weights of a reference of its own, and its masks."""
        beside = self.reference
        return super().rest() + ([] if beside is None else _standing(self, beside.type))

    def _inputs(self):
        tape, sequences = self.tape, self.batch[0]
        tokens = new(tape, "tokens", self.batch, INT64)
        targets, mask = new(tape, "targets", self.batch, INT64, part="loss"), new(tape, "answers", self.batch, BOOL)
        if self.both:
            return tokens, targets, mask
        shapes = {
            "dpo": [(sequences,)], "ppo": [self.batch] * 2, "grpo": [self.batch, (sequences, 1), *([self.batch] if self.objective.reference == "before" else [])],
            "value": [self.batch] * 2,
        }[self.objective.method]  # fmt: skip
        return tokens, (targets, mask, *(new(tape, "known before", shape, FP32) for shape in shapes))

    def forward(self, *inputs):
        return self.both.forward(*inputs) if self.both else super().forward(*inputs)


class Scoring(Step):
    """One pass of a frozen model over a batch that a policy learns from: log-probabilities, or of a `Scorer` one number a token."""

    def __init__(self, model, setup, *counts):
        super().__init__(model, setup, *counts)
        losses = source("objectives.losses")
        loss = losses.Scores() if getattr(model, "outputs", 0) else losses.TokenLogProbabilities()
        self.network = _ending(_frozen(self), loss)

    def rest(self):
        """The weights, and masks."""
        return _standing(self, self.network.type)

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
