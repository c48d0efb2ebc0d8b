"""One GPU of a pipeline: stages of a model, run in the order of a schedule.

What a stage receives, sends, keeps and frees is what PyTorch's does, method by method: `torch/distributed/pipelining/stage.py`,
`_backward.py`, and the loops of `schedules.py`, whose local variables hold tensors too. A tensor that is sent is taken to have
arrived at once; where a send takes longer, NCCL holds its tensor until then.
"""

from contextlib import contextmanager
from dataclasses import replace

from ..ask import schedules
from ..catalog.weights import ENDS
from . import operations as op
from .autograd import Accumulate, backward
from .context import cut
from .letters import Letter, over, product, text
from .programs import Network, source
from .schedule import Loop, one_after_another
from .tape import INT64, Piece, Storage
from .tensors import Tensor, contiguous_strides, new
from .training import Step


def part_of(model, setup, rank):
    """What one GPU has of a model: (a `Model` of so many blocks, the groups of weights that are other stages').

    Where embedding and head are one weight, the first and the last stage have a copy each.
    """
    mesh = setup.mesh
    if mesh.pipeline == 1:
        return model, ()
    place, last = place_of(setup, rank), mesh.pipeline * mesh.stages - 1
    mine, layers = schedules.stages_of(mesh, place), sum(map(len, schedules.blocks_of(model.layers, mesh, place)))
    without = tuple(group for group, stage in zip(ENDS, (0, last), strict=True) if stage not in mine)
    return model.replace(layers=layers, tied=bool(model.tied and not without)), without


def modules_of(model, setup, rank):
    """What one GPU has, module by module as data parallelism takes them: (model, (whether it has the embeddings, norm and head)).

    Of a pipeline each stage.
    """
    mesh = setup.mesh
    if mesh.pipeline == 1:
        return [(model, (True, True))]
    place, last = place_of(setup, rank), mesh.pipeline * mesh.stages - 1
    pairs = zip(schedules.stages_of(mesh, place), schedules.blocks_of(model.layers, mesh, place), strict=True)
    return [(model.replace(layers=len(blocks), tied=False), (i == 0, i == last)) for i, blocks in pairs]


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
    """A stage: blocks in a row; the first with the embeddings, the last with norm and head, as `reference/mesh/stages.py` has it."""

    def __init__(self, *args, first, last, sequence, **options):
        self.first, self.last, self.sequence = first, last, sequence
        super().__init__(*args, **options)
        for there, paths in ((first, ("token.", "position.")), (last, ("norm.", "head."))):
            for name in [] if there else [name for name in self.parameters if name.startswith(paths)]:
                del self.parameters[name]

    def _built(self, model, setup):
        whole = super()._built(model, setup)
        setup.sequence, self.share = self.sequence, whole.loss
        self.before = (whole.head,) if whole.with_head else ()
        stage = source("mesh.stages").STAGES[model.family](whole, range(model.layers), self.first, self.last)
        stage.on(self)
        return stage

    def forward(self, x, positions):
        """Of the first stage tokens in, of others what the one before gave; of the last logits out.

        Args:
            positions: where tokens stand, of GPUs that share sequences; else None.
        """
        self.module.positions = positions
        try:
            return self.module(x)
        finally:
            self.module.positions = None

    def loss(self, output, targets):
        """A micro-batch's share in the loss."""
        loss = self.share(*self.before, output, targets)
        if self.setup.accumulation == 1:
            return loss
        with self.tape.within(loss=True, owner="loss"):
            return op.scale(loss, "share in the loss")


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
        for i in range(step.batches):
            if not self.first:
                self.received[i] = step.buffer(Leaf)
            if not self.last:
                self.grads_received[i] = step.buffer(Tensor)

    @contextmanager
    def place(self):
        """Within it, what runs is of this stage, in the turn that it is."""
        with self.tape.turn("batch", self.step.turn), self.tape.turn("stage", self.step.stages.index(self)):
            yield

    def clear(self):
        """A step begins: `clear_runtime_states`."""
        self.fwd_cache.clear()
        self.backwards = 0
        for buffer in self.received.values():
            buffer.grad = None

    def forward_one_chunk(self, i, tokens):
        """A forward, whose output is kept."""
        self.tape.phase = "forward"
        x = tokens if self.first else self.received[i]
        with self.place():
            output = self.network.forward(x, self.step.positions)
        self.fwd_cache[i] = output, x
        return output

    def backward_one_chunk(self, i, loss):
        """A whole backward: `backward_one_chunk` and `stage_backward`."""
        tape, tape.phase = self.tape, "backward"
        output, x = self.fwd_cache.pop(i)
        if self.network.sharding:
            self.network.sharding.sends = self.network.sharding.last = False
        self.backwards += 1
        self.step.final = self.backwards == self.step.batches
        with self.place():
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

    def reduce_grad(self):
        """After all backwards: `perform_reduce_grad`."""
        self.within(lambda sharding: sharding.reduce())

    def within(self, run):
        """Have what FSDP divides of the stage do something outside of forwards and backwards."""
        if self.network.sharding:
            with self.place():
                run(self.network.sharding)

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
        own, self.without = part_of(model, setup, rank)
        self.first, self.last = (group not in self.without for group in ENDS)
        self.numbers, self.count = schedules.stages_of(setup.mesh, self.place), setup.mesh.pipeline * setup.mesh.stages
        in_ring = setup.mesh.rank(rank, setup.data)["context"]
        super().__init__(own, setup, None, plan.chunks, plan.batches, plan.loops["layer"].turns, in_ring)
        self.turn, self.positions = 0, None
        self.stages = [Stage(self, *one, self.count) for one in zip(self.networks, self.numbers, strict=True)]

    def made(self, beside):
        networks = [
            self.network_of(StageNetwork, blocks.segments, sequence=self.sequence, first=number == 0, last=number == self.count - 1)
            for number, blocks in zip(self.numbers, self.plan.blocks, strict=True)
        ]  # fmt: skip
        if self.model.tied:
            networks[-1].parameters["head.weight"] = networks[0].parameters["token.weight"]
        return networks

    def weights_of(self, network):
        times = Letter(self.model.layers, "L")
        if len(self.networks) > 1:
            times = self.plan.counts[self.networks.index(network)]
        ends = {"embeddings": network.first, "last": network.last}
        return [
            (w, numbers, w.count * (times if w.group not in ENDS else 1))
            for w, numbers, _ in self.weights if ends.get(w.group, True)
        ]  # fmt: skip

    def _shape(self):
        batch, sequence = self.batch[0], self.sequence
        if self.setup.mesh.tensor > 1 and self.setup.mesh.sequence_parallel:
            sequence = over(sequence, Letter(self.setup.mesh.tensor, "t"))
        return batch, sequence, self.model.width

    def buffer(self, kind):
        """A buffer that stands for good: what `rest` counts."""
        shape, storage = self._shape(), Storage(self.tape, ())
        if kind is Tensor:
            return Tensor(shape, contiguous_strides(shape), storage, self.weight)
        return kind(shape, storage, self.weight)

    def rest(self):
        """Between steps: the GPU's weights and states, and what is received into."""
        number = sum((not stage.first) + (not stage.last) for stage in self.stages)
        number = number * Letter(self.setup.accumulation, "n_a")
        received = Piece(product(self._shape()), self.weight.width, "communication", number)
        return [*super().rest(), received]

    def run(self):
        """The step. Returns its operations."""
        tape = self.tape
        tape.note("beginning", [])
        tape.phase = "forward"
        shape = Letter(self.setup.accumulation, "n_a") * self.batch[0], self.batch[1]
        whole = new(tape, "tokens", shape, INT64) if self.first else None
        targets = new(tape, "targets", shape, INT64, part="loss") if self.last else None
        own = self.batch[0], self.sequence
        if self.ring:
            positions = new(tape, "positions", shape[1:], INT64)
            self.held = cut(tape, [shape[:1]] * (self.first + self.last) + [()], shape[1], self.ring.parts)
            self.positions = Tensor(own[1:], contiguous_strides(own[1:]), positions.storage, INT64)
        self.tokens = whole and Tensor(own, contiguous_strides(own), whole.storage, INT64)
        self.targets = targets and Tensor(own, contiguous_strides(own), targets.storage, INT64)
        for stage in self.stages:
            stage.clear()
        self.losses = []
        order = schedules.turns(self.plan.mesh, self.batches, self.place)
        {"gpipe": self._gpipe, "1f1b": self._one_forward_one_backward}.get(self.setup.mesh.schedule, self._runtime)(
            order
        )
        self.held = self.positions = None
        tape.phase = "backward"
        total = self._summed()  # noqa: F841
        tape.mark("after_backward")
        tape.phase = "optimizer step"
        if self.setup.offload == "none":
            self.optimizer.step()
        tape.mark("after_step")
        tape.running = False
        return tape.operations

    def _summed(self):
        total = None
        for turn, share in self.losses:
            if self.setup.accumulation == 1:
                total = share.alias()
                continue
            with self.tape.turn("batch", turn), self.tape.within(loss=True, owner="loss"):
                total = new(self.tape, "sum of the shares", (), share.type)
        return total

    def _loss_of(self, stage, output, i):
        """`_maybe_compute_loss`, after which forward has ended."""
        with stage.place():
            if stage.last:
                self.losses.append((self.turn, stage.network.loss(output, self.targets)))
            self.tape.mark("after_forward")

    def _loss_from(self, i):
        return self.losses[i][1] if self.losses else None

    # The schedules' loops, with the local variables that hold tensors.

    def _gpipe(self, order):
        (stage,) = self.stages
        for i in range(self.batches):
            self.turn = i
            output = stage.forward_one_chunk(i, self.tokens)
            ops = self._sent(stage, output)  # noqa: F841
            self._loss_of(stage, output, i)
        for i in range(self.batches):
            self.turn = i
            ops = None  # noqa: F841
            loss = self._loss_from(i)
            stage.backward_one_chunk(i, loss)
            ops = stage.bwd_cache.pop(i)  # noqa: F841
        stage.reduce_grad()

    @staticmethod
    def _sent(stage, output):
        return None if stage.last else output.alias()

    def _one_forward_one_backward(self, order):
        (stage,) = self.stages
        fwd_sends = bwd_sends = output = loss = None  # noqa: F841
        before = next(turn for turn, (kind, *_) in order if kind == "B")
        for self.turn, (kind, _, i) in order:
            if kind == "F":
                output = stage.forward_one_chunk(i, self.tokens)
                if self.turn < before:
                    fwd_sends = self._sent(stage, output)  # noqa: F841
                    self._loss_of(stage, output, i)
                else:
                    self._loss_of(stage, output, i)
                    fwd_sends = self._sent(stage, output)  # noqa: F841
            else:
                loss = self._loss_from(i)
                stage.backward_one_chunk(i, loss)
                bwd_sends = stage.bwd_cache.pop(i)  # noqa: F841
        stage.reduce_grad()

    def _runtime(self, order):
        stages = {stage.number: stage for stage in self.stages}
        if self.setup.fsdp:
            order = schedules.gathering(order, self.batches)
        self.waiting = set()
        for self.turn, (kind, number, i) in order:
            self._perform(kind, stages[number], i)

    def _perform(self, kind, stage, i):
        if kind in ("unshard", "reshard"):
            stage.within(lambda sharding: getattr(sharding, kind)())
            if kind == "unshard":
                self.waiting.add(stage)
            return
        if kind == "reduce":
            stage.reduce_grad()
            return
        if stage in self.waiting:
            self.waiting.remove(stage)
            stage.within(lambda sharding: sharding.wait_for_unshard())
        if kind == "F":
            output = stage.forward_one_chunk(i, self.tokens)
            self._loss_of(stage, output, i)
        else:
            loss = self._loss_from(i) if stage.last else None
            stage.backward_one_chunk(i, loss)
            stage.bwd_cache.pop(i)


class StagePlan:
    """What is traced of a GPU's stages: a few micro-batches, and of each stage's blocks a few.

    Attributes:
        blocks: `Blocks` of each stage. mesh: as deep as it is traced. batches: micro-batches that are traced. chunks, loops, key:
            as a `Plan`'s.
    """

    def __init__(self, model, setup, rank, blocks, chunked):
        place = place_of(setup, rank)
        counts = [len(found) for found in schedules.blocks_of(model.layers, setup.mesh, place)]
        layers = Letter(sum(counts), "L")
        self.counts, self.blocks = counts, [blocks(layers if len(counts) == 1 else count, setup) for count in counts]
        self.mesh, self.batches, turns = _some(setup, place)
        self.loops = {
            "batch": one_after_another("batch", turns),
            "layer": Loop.of(layers, 3, 1),
            "block": lambda where: self.blocks[where.get("stage", 0)].block(where),
            "segment": lambda where: self.blocks[where.get("stage", 0)].segment,
        }
        self.chunks, stretch = chunked(setup, self.loops, [found.stretched for found in self.blocks])
        # Of GPUs with a stage each it makes no difference where one is that has neither end.
        where = (place == 0, place == setup.mesh.pipeline - 1) if setup.mesh.schedule in schedules.ONE_STAGE else place
        self.key = (
            where, setup.mesh.rank(rank, setup.data)["context"], self.batches, tuple((loop.turns, loop.middle, text(loop.times)) for loop in turns), tuple(counts) if len(counts) > 1 else (),
            tuple(found.segments for found in self.blocks), len(self.chunks), repr(stretch), self.loops["layer"].turns,
        )  # fmt: skip


def _some(setup, place):
    """(the mesh as deep as it is traced, micro-batches that are traced, the loops of their turns, one after another).

    A few micro-batches, or of turns that are rounds a few; of 1F1B of the forwards before them too, and of the backwards after.
    """
    mesh, batches = setup.mesh, Letter(setup.accumulation, "n_a")
    if mesh.schedule in ("gpipe", "looped-bfs"):
        loop = replace(Loop.of(batches, 5, 2), together=False)
        return mesh, loop.turns, [loop]
    if mesh.schedule == "1f1b":
        before = Letter(mesh.pipeline - place, "n_f")
        alone, pairs = (
            replace(Loop.of(before, 3, 1), together=False),
            replace(Loop.of(batches - before, 2, 1), together=False),
        )
        return replace(mesh, pipeline=place + alone.turns), alone.turns + pairs.turns, [alone, pairs, alone]
    pairs, _, whole = schedules.rounds(mesh, batches, place)
    if whole <= 4:
        return mesh, int(batches), [Loop(int(batches), 1, -1)]
    each = pairs // mesh.stages
    times = over(batches, each) - (int(batches) // each - whole + 3)
    return mesh, int(batches) - (whole - 4) * each, [Loop(1, 1, -1), Loop(4, times, 2, False)]
