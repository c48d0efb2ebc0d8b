"""A step of a training loop: the source of `reference/loops`, run on the tape as it runs with PyTorch.

Two steps are run. What the first has left is there when the second begins, and the second is the course: its `rest` is what stands
between steps besides weights and states.
"""

from contextlib import nullcontext

from . import operations as op
from .letters import Letter, most, up
from .programs import Transformers, source
from .tape import BOOL, FP32, INT64, Piece
from .tensors import Tensor, new
from .training import Step

#: Numbers that one block of `_foreach_norm` adds up. Source: PyTorch, `native/cuda/MultiTensorApply.cuh`, `kChunkSize`.
CHUNK = 65536
Tensor.detach = Tensor.alias  # type: ignore[attr-defined]


class LoopStep(Step):
    """A step of `Setup.loop`. It is what `Looped` is to PyTorch; arguments as for `Step`."""

    def __init__(self, *given):
        super().__init__(*given)
        setup = self.setup
        self.outputs, self.zero_grad, self.clip = setup.outputs, setup.zero_grad, setup.clip
        self.accumulation = self.batches
        if self.outputs == "kept" and not isinstance(self.network, Transformers):
            module = self.network.module
            module.loss = source("loops.outputs").WithLogits(module.loss)
            module.loss.on(self.network, "loss")
        self.unscaled, self.gradient_width = None, self.beside.width if setup.adapters else self.reduced

    def run(self):
        tape = self.tape
        tape.note("beginning", [])
        steps = source(f"loops.{self.setup.loop}").steps(self)
        next(steps)
        tape.phase = "rest"
        tape.note("beginning", [])
        self.first = len(tape.operations) - 1
        next(steps)
        tape.running = False
        return tape.operations

    # What a loop calls.

    def next_batch(self):
        self.tape.phase = "forward"
        return self._inputs()

    def tokens(self, inputs):
        return inputs[0]

    def averaging(self, last):
        return nullcontext()

    def autocast(self):
        return self.tape.casting()

    def items(self, batches):
        """Targets that count, batch by batch: all but the first of each sequence."""
        if not isinstance(self.network, Transformers):
            return None
        tape, total = self.tape, None
        for _ in self.turns():
            mask = new(tape, "targets that count", (self.batch[0], self.batch[1] - 1), BOOL)
            number = new(tape, "how many", (), INT64)
            del mask
            total = new(tape, "how many so far", (), INT64)  # noqa: F841
            del number
        return new(tape, "how many in all", (), FP32)

    def forward(self, inputs, items=None):
        """The loss, and the logits where they are kept, in a tuple."""
        self.tape.phase = "forward"
        if isinstance(self.network, Transformers):
            return source("hugging_face.training").outputs_of(self.network.module, *inputs, items)
        given = super().forward(*inputs)
        return given if isinstance(given, tuple) else (given,)

    def widened(self, outputs):
        return tuple(op.cast(x, FP32, "outputs in fp32") for x in outputs) if self.setup.dtypes.autocast else outputs

    def zero(self):
        return new(self.tape, "loss that is logged", (), FP32, part="optimizer")

    def clear(self, total):
        """In place."""

    def add(self, total, loss):
        """In place."""

    def scaled(self, loss, batches=None):
        with self._alone():
            return op.scale(loss, "share in the loss")

    def _alone(self):
        """Outside of all modules a dry run takes what backward makes for the loss's."""
        return self.tape.within(loss=True, owner="loss") if self.tape.phase == "backward" else nullcontext()

    def summed(self, total, share):
        return self.total(share)

    def stacked(self, losses):
        number, width = Letter(self.setup.accumulation, "n_a"), losses[0].type.width
        stack = self.tape.hold("losses of the batches", [Piece(number, width, "optimizer")])
        total = self.tape.take("their sum", (1, width), part="optimizer")
        del stack
        return total

    def at(self, moment):
        self.tape.mark(moment)
        following = {"after_forward": "backward", "after_backward": "optimizer step", "after_step": "rest"}
        self.tape.phase = following[moment]

    def backward(self, loss):
        self.from_loss(loss)

    def update(self):
        if not self.setup.optimizer_in_backward:
            self.optimizer.step(self.unscaled)
        self.unscaled = None

    def drop_gradients(self):
        for parameter in self.parameters() if self.setup.sharding != "zero1" else ():
            parameter.grad = None
        if sharding := self.network.sharding:
            sharding.drop()

    def end(self, loss):
        """Whoever called the step has it."""

    def clip_norm(self):
        """Norms of each gradient, of all of them, and what they are multiplied with. Source: `torch/nn/utils/clip_grad.py`, line by line."""
        if self.clip == "none":
            return None
        tape, setup, width = self.tape, self.setup, self.gradient_width
        if setup.dtypes.loss_scaling:
            self.unscaled = self.optimizer.unscale()
        tensors = [(numbers, count) for _, numbers, count in self.optimizer.tensors]
        many = sum(count for _, count in tensors)

        def side_by_side(name):
            return tape.hold(name, [Piece(many, width, "optimizer")])

        scratch = None
        if self.clip == "foreach":
            blocks = most(*(up(numbers, CHUNK) for numbers, _ in tensors))
            scratch = tape.hold("norms of blocks", [Piece(many * blocks, 4, "optimizer")])
        norms = tape.hold("norms of the gradients", [Piece(1, width, "optimizer", count) for _, count in tensors])
        del scratch
        stack, whole = side_by_side("norms side by side"), None
        if setup.fsdp and setup.shards > 1:
            # Norms of shares: their squares are summed over the GPUs. Source: `_NormPartial`, `tensor/_ops/_math_ops.py`.
            squares, sums = side_by_side("norms squared"), side_by_side("squares summed")
            whole = side_by_side("roots of the sums")
            del squares, sums
        norm = tape.take("norm of all gradients", (1, width), part="optimizer")
        del stack, norms, whole
        small = tape.take("norm, not 0", (1, width), part="optimizer")
        inverse = tape.take("its inverse", (1, width), part="optimizer")
        ratio = tape.take("ratio of norms", (1, width), part="optimizer")
        del small, inverse
        clamped = tape.take("ratio, at most 1", (1, width), part="optimizer")
        del ratio, clamped
        return norm
