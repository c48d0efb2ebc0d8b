"""One GPU of a pipeline: stages of a model, run in the order of a schedule.

What a stage receives, sends, keeps and lets go is what PyTorch's does, method by method: `torch/distributed/pipelining/stage.py`,
`_backward.py`, and the loops of `schedules.py`, whose local variables hold tensors too. A tensor that is sent is taken to have
arrived at once; where a send takes longer, NCCL holds its tensor until then.
"""

from .. import pipelines
from . import operations as op
from .architectures import Network, rotary_embedding
from .autograd import Accumulate, backward
from .letters import Letter, product
from .schedule import Loop
from .tape import INT64, Piece, Storage
from .tensors import Tensor, contiguous_strides, new
from .training import Step


def part_of(model, setup, rank):
    """What one GPU of a pipeline has of a model, as a `Model` of so many blocks, and which ends it has: (model, first, last).

    Where embedding and head are one weight, the first and the last stage have a copy each.
    """
    place = place_of(setup, rank)
    mine, last = pipelines.stages_of(setup.mesh, place), setup.mesh.pipeline * setup.mesh.stages - 1
    layers = sum(map(len, pipelines.blocks_of(model.layers, setup.mesh, place)))
    ends = 0 in mine, last in mine
    return model.replace(layers=layers, tied=bool(model.tied and all(ends))), *ends


def place_of(setup, rank):
    """The rank's place in the pipeline."""
    return setup.mesh.rank(rank, setup.data)["pipeline"]


class Leaf(Tensor):
    """What a stage received: its gradient is wanted, and nobody's part.

    Attributes:
        grad: the gradient, once there is one.
    """

    __slots__ = ("grad",)

    def __init__(self, shape, storage, type):
        super().__init__(shape, contiguous_strides(shape), storage, type)
        self.grad, self.node = None, Arrive(self)


class Arrive(Accumulate):
    """The node of what was received."""

    def arrive(self, grads):
        self.parameter.grad = grads[0]
        grads.clear()


class StageNetwork(Network):
    """A stage: blocks in a row; the first with the embeddings, the last with norm and head. Source: `dryrun/pipelines.py`."""

    def __init__(self, *args, first, last, **options):
        super().__init__(*args, **options)
        self.first, self.last = first, last

    def forward(self, x):
        """Of the first stage tokens in, of others what the one before gave; of the last logits out."""
        return self.call("", self._stage, x)

    def _stage(self, x):
        tape, model = self.tape, self.model
        others = ()
        if self.first:
            x = self._embedded(x)
        if model.family != "gpt":
            others = rotary_embedding(tape, x.shape[1], model.head_width)
        return self._through(x, *others)

    def _embedded(self, tokens):
        if self.model.family == "gpt":
            positions = new(self.tape, "positions", (tokens.shape[1],), INT64)
            rows = op.add(self.embedding("token", tokens), self.embedding("position", positions), "embedding")
            return op.dropout(rows, self.setup.dropout, "embedding")
        x = self.embedding("token", tokens)
        return op.scale(x, "embedding scaled") if self.model.scaled_embedding else x

    def _through(self, x, *others):
        x = self._blocks(x, *others)
        if not self.last:
            return x
        x = self.norm("norm", x, "last norm")
        return x if self.setup.loss == "chunked" else self.head(x)

    def loss(self, output, targets):
        """A micro-batch's share in the loss."""
        return self.call("loss", self._share, output, targets, loss=True)

    def _share(self, output, targets):
        loss = self._chunked_loss(output, targets) if self.setup.loss == "chunked" else self._loss(output, targets)
        return op.scale(loss, "share in the loss") if self.setup.accumulation > 1 else loss


class Stage:
    """PyTorch's `PipelineStage`, by the names of its methods.

    Args:
        network: its modules. number, count: which of how many. received: micro-batch -> what its input comes into;
            grads_received: its output's gradient.
    """

    def __init__(self, step, network, number, count):
        self.step, self.network, self.number, self.tape = step, network, number, step.tape
        self.first, self.last = number == 0, number == count - 1
        self.received, self.grads_received, self.fwd_cache, self.bwd_cache = {}, {}, {}, {}
        for i in range(step.setup.accumulation):
            if not self.first:
                self.received[i] = step.buffer(Leaf)
            if not self.last:
                self.grads_received[i] = step.buffer(Tensor)

    def place(self, i):
        """Within it, what runs is that of the micro-batch on this stage."""
        return self.tape.turn("batch", self.step.stages.index(self) * self.step.setup.accumulation + i)

    def clear(self):
        """A step begins: `clear_runtime_states`."""
        self.fwd_cache.clear()
        for buffer in self.received.values():
            buffer.grad = None

    def forward_one_chunk(self, i, tokens):
        """A forward, whose output is kept."""
        self.tape.phase = "forward"
        x = tokens if self.first else self.received[i]
        with self.place(i):
            output = self.network.forward(x)
        self.fwd_cache[i] = output, x
        return output

    def backward_one_chunk(self, i, loss):
        """A whole backward: `backward_one_chunk` and `stage_backward`."""
        tape, tape.phase = self.tape, "backward"
        output, x = self.fwd_cache.pop(i)
        with self.place(i):
            if self.last:
                self._from_loss(loss)
            else:
                backward(tape, output, self.grads_received[i])
        self.bwd_cache[i] = self._taken(x)
        if self.last and not self.first:
            output.node = None

    def _from_loss(self, loss):
        with self.tape.within(loss=True, owner="loss"):
            one = new(self.tape, "gradient of one", (), loss.type)
        backward(self.tape, loss, one)

    def _taken(self, x):
        """The gradient of what was received, which is sent."""
        if self.first:
            return None
        grad, x.grad = x.grad, None
        return grad


class PipelineStep(Step):
    """One GPU's training step.

    Args:
        model: the whole. rank: of the GPU. plan: a `StagePlan`.
    """

    def __init__(self, model, setup, rank, plan):
        self.place, self.plan = place_of(setup, rank), plan
        own, self.first, self.last = part_of(model, setup, rank)
        self.numbers, self.count = (
            pipelines.stages_of(setup.mesh, self.place), setup.mesh.pipeline * setup.mesh.stages
        )  # fmt: skip
        super().__init__(own, setup, None, plan.chunks, 1, plan.loops["layer"].turns)
        self.stages = [Stage(self, *one, self.count) for one in zip(self.networks, self.numbers, strict=True)]

    def made(self, segments, chunks, beside):
        """The networks of all stages; the first of them."""
        self.networks = [
            StageNetwork(
                self.tape, self.model, self.setup, blocks.segments, chunks, self.weight, first=number == 0,
                last=number == self.count - 1,
            )
            for number, blocks in zip(self.numbers, self.plan.blocks, strict=True)
        ]  # fmt: skip
        if self.model.tied:
            self.networks[-1].parameters["head.weight"] = self.networks[0].parameters["token.weight"]
        return self.networks[0]

    def has(self, group):
        return {"embeddings": self.first, "last": self.last}.get(group, True)

    def _parameters(self):
        return list(dict.fromkeys(p for network in self.networks for p in network.parameters.values()))

    def _shape(self):
        return (*self.batch, self.model.width)

    def buffer(self, kind):
        """A buffer that stands for good: what `rest` counts."""
        shape, storage = self._shape(), Storage(self.tape, ())
        if kind is Tensor:
            return Tensor(shape, contiguous_strides(shape), storage, self.weight)
        return kind(shape, storage, self.weight)

    def rest(self):
        """Between steps: the GPU's weights and states, and what is received into."""
        number = sum(len(stage.received) + len(stage.grads_received) for stage in self.stages)
        received = Piece(product(self._shape()), self.weight.width, "communication", number)
        return [*super().rest(), received]

    def run(self):
        """The step. Returns its operations."""
        tape, m = self.tape, self.setup.accumulation
        tape.note("beginning", [])
        tape.phase = "forward"
        shape = Letter(self.setup.accumulation, "n_a") * self.batch[0], self.batch[1]
        whole = new(tape, "tokens", shape, INT64) if self.first else None
        targets = new(tape, "targets", shape, INT64, part="loss") if self.last else None
        self.tokens = whole and Tensor(self.batch, contiguous_strides(self.batch), whole.storage, INT64)
        self.targets = targets and Tensor(self.batch, contiguous_strides(self.batch), targets.storage, INT64)
        for stage in self.stages:
            stage.clear()
        self.losses = []
        order = pipelines.order(self.setup.mesh, m, self.place)
        {"gpipe": self._gpipe, "1f1b": self._one_forward_one_backward}.get(self.setup.mesh.schedule, self._runtime)(
            order
        )
        tape.phase = "backward"
        total = self._summed()  # noqa: F841
        tape.mark("after_backward")
        tape.phase = "optimizer step"
        self.optimizer.step()
        tape.mark("after_step")
        tape.running = False
        return tape.operations

    def _summed(self):
        total = None
        for share in self.losses:
            if self.setup.accumulation == 1:
                total = share.alias()
                continue
            with self.tape.within(loss=True, owner="loss"):
                total = new(self.tape, "sum of the shares", (), share.type)
        return total

    def _loss_of(self, stage, output, i):
        """`_maybe_compute_loss`, after which forward has ended."""
        if stage.last:
            with stage.place(i):
                self.losses.append(stage.network.loss(output, self.targets))
        self.tape.mark("after_forward")

    def _share(self, i):
        return self.losses[i] if self.losses else None

    # The schedules' loops, with the local variables that hold tensors.

    def _gpipe(self, order):
        (stage,), m = self.stages, self.setup.accumulation
        for i in range(m):
            output = stage.forward_one_chunk(i, self.tokens)
            ops = self._sent(stage, output)  # noqa: F841
            self._loss_of(stage, output, i)
        for i in range(m):
            ops = None  # noqa: F841
            loss = self._share(i)
            stage.backward_one_chunk(i, loss)
            ops = stage.bwd_cache.pop(i)  # noqa: F841

    @staticmethod
    def _sent(stage, output):
        return None if stage.last else output.alias()

    def _one_forward_one_backward(self, order):
        (stage,), m = self.stages, self.setup.accumulation
        fwd_sends = bwd_sends = output = loss = None  # noqa: F841
        for kind, _, i in order:
            if kind == "F":
                output = stage.forward_one_chunk(i, self.tokens)
                if i < min(m, self.setup.mesh.pipeline - self.place):
                    fwd_sends = self._sent(stage, output)  # noqa: F841
                    self._loss_of(stage, output, i)
                else:
                    self._loss_of(stage, output, i)
                    fwd_sends = self._sent(stage, output)  # noqa: F841
            else:
                loss = self._share(i)
                stage.backward_one_chunk(i, loss)
                bwd_sends = stage.bwd_cache.pop(i)  # noqa: F841

    def _runtime(self, order):
        stages = {stage.number: stage for stage in self.stages}
        for kind, number, i in order:
            self._perform(stages, kind, stages[number], i)

    def _perform(self, stages, kind, stage, i):
        if kind == "F":
            output = stage.forward_one_chunk(i, self.tokens)
            self._loss_of(stage, output, i)
        else:
            loss = self._share(i) if stage.last else None
            stage.backward_one_chunk(i, loss)
            stage.bwd_cache.pop(i)


class StagePlan:
    """What is traced of a GPU's stages: every micro-batch, and of each stage's blocks a few.

    Attributes:
        blocks: `Blocks` of each stage. chunks, loops, key: as a `Plan`'s.
    """

    def __init__(self, model, setup, rank, blocks, chunked):
        place, m = place_of(setup, rank), setup.accumulation
        counts = [len(found) for found in pipelines.blocks_of(model.layers, setup.mesh, place)]
        layers = Letter(sum(counts), "L")
        self.blocks = [blocks(layers if len(counts) == 1 else count, setup) for count in counts]
        self.loops = {
            "layer": Loop.of(layers, 3, 1),
            "block": lambda where: self.blocks[where.get("batch", 0) // m].block(where),
            "segment": lambda where: self.blocks[where.get("batch", 0) // m].segment,
        }
        self.chunks, stretch = chunked(setup, self.loops, [found.stretched for found in self.blocks])
        self.key = (
            setup.mesh, place, m, tuple(counts) if len(counts) > 1 else (), tuple(found.segments for found in self.blocks),
            len(self.chunks), repr(stretch), self.loops["layer"].turns,
        )  # fmt: skip
