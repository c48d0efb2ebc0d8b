"""One GPU of a pipeline: stages of a model, run in the order of a schedule.

What a stage receives, sends, keeps and frees follows PyTorch's method by method: `torch/distributed/pipelining/stage.py`,
`_backward.py`, and the loops of `schedules.py`, whose local variables hold tensors too. A tensor that is sent arrives at once; where
a send takes longer, NCCL holds its tensor until then.
"""

from contextlib import contextmanager
from dataclasses import replace

from ..ask import schedules
from ..catalog.weights import ENDS
from .autograd import Accumulate, backward
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
    """The modules of one GPU that data parallelism wraps, of a pipeline its stages: (model, (whether it has embeddings, last norm)) each."""
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
    """A buffer that a stage receives into. Its gradient is wanted, and belongs to no part.

    Attributes:
        grad: the gradient, once there is one.
    """

    __slots__ = ("grad",)

    def __init__(self, *args):
        super().__init__(*args)
        self.grad, self.node = None, Arrive(self)


class Arrive(Accumulate):
    """The node of a `Leaf`."""

    def arrive(self, grads):
        self.parameter.grad = grads[0]
        grads.clear()


class Stage(Network):
    """A stage of `reference/mesh/stages.py`, run as PyTorch's `PipelineStage` runs it, by the names of its methods.

    Args:
        step: a `PipelineStep`. index: the stage's number in the model.

    Attributes:
        received: micro-batch -> what its input comes into; grads_received: its output's gradient.
    """

    def __init__(self, *args, step, index, **options):
        self.step, self.index, self.first, self.last = step, index, index == 0, index == step.count - 1
        super().__init__(*args, **options)
        for there, paths in ((self.first, ("token.", "position.")), (self.last, ("norm.", "head."))):
            for name in [] if there else [name for name in self.parameters if name.startswith(paths)]:
                del self.parameters[name]
        self.received, self.grads_received, self.fwd_cache, self.bwd_cache = {}, {}, {}, {}
        for i in range(step.batches):
            if not self.first:
                self.received[i] = step.buffer(Leaf, index - 1)
            if not self.last:
                self.grads_received[i] = step.buffer(Tensor, index + 1)

    def _built(self, model, setup):
        whole = super()._built(model, setup)
        setup.sequence, self.share = self.step.sequence, whole.loss
        self.before = (whole.head,) if whole.with_head else ()
        stage = source("mesh.stages").STAGES[model.family](whole, range(model.layers), self.first, self.last)
        stage.on(self)
        return stage

    @contextmanager
    def place(self):
        """Within it, operations belong to this stage, in the step's present turn."""
        with self.tape.turn("batch", self.step.turn), self.tape.turn("stage", self.step.networks.index(self)):
            yield

    def clear(self):
        """A step begins: `clear_runtime_states`."""
        self.fwd_cache.clear()
        self.backwards = 0
        for buffer in self.received.values():
            buffer.grad = None

    def forward_one_chunk(self, i, tokens):
        """A forward, whose output is kept: of the first stage tokens in, of the last logits out."""
        self.tape.phase = "forward"
        x = tokens if self.first else self.received[i]
        self.module.positions = self.step.positions
        with self.place():
            output = self.module(x)
        self.module.positions = None
        self.fwd_cache[i] = output, x
        return output

    def maybe_compute_loss(self, output):
        """The loss of the last stage, after which forward has ended."""
        step = self.step
        with self.place():
            if self.last:
                step.losses.append((step.turn, step.share_of(self.share(*self.before, output, step.targets))))
            self.tape.mark("after_forward")

    def backward_one_chunk(self, i, loss):
        """A whole backward: `backward_one_chunk` and `stage_backward`. What it sends is the gradient of what was received."""
        tape, tape.phase = self.tape, "backward"
        output, x = self.fwd_cache.pop(i)
        if self.sharding:
            self.sharding.sends = self.sharding.last = False
        self.backwards += 1
        self.step.final = self.backwards == self.step.batches
        with self.place():
            if self.last:
                self.step.from_loss(loss)
            else:
                backward(tape, output, self.grads_received[i])
        self.bwd_cache[i] = None
        if not self.first:
            self.bwd_cache[i], x.grad = x.grad, None
            if self.last:
                output.node = None

    def gathered(self, kind):
        """Have FSDP `reduce`, or each of its units do something outside of forwards and backwards, such as `unshard`."""
        if self.sharding:
            with self.place():
                self.sharding.reduce() if kind == "reduce" else self.sharding.each(kind)


class PipelineStep(Step):
    """One GPU's training step.

    Args:
        model: the whole. rank: of the GPU. plan: a `StagePlan`.
    """

    def __init__(self, model, setup, rank, plan):
        self.place, self.plan, self.turn, self.positions = place_of(setup, rank), plan, 0, None
        self.mine, self.handed = schedules.stages_of(setup.mesh, self.place), []
        self.count = setup.mesh.pipeline * setup.mesh.stages
        own, self.without = part_of(model, setup, rank)
        self.first, self.last = (group not in self.without for group in ENDS)
        in_ring = setup.mesh.rank(rank, setup.data)["context"]
        super().__init__(own, setup, None, plan.chunks, plan.batches, (plan.loops["layer"].turns,), in_ring)

    def made(self, beside):
        stages = [
            self.network_of(Stage, blocks.segments, step=self, index=number)
            for number, blocks in zip(self.mine, self.plan.blocks, strict=True)
        ]
        if self.model.tied:
            stages[-1].parameters["head.weight"] = stages[0].parameters["token.weight"]
        return stages

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

    def buffer(self, kind, source):
        """What comes from a stage is received into: a buffer that stands for good, as `rest` counts. From a stage of this GPU it is what
        that handed on in the step before, until it hands on the next."""
        shape, pieces = self._shape(), []
        if source in self.mine:
            pieces = [Piece(product(shape), self.weight.width, "activations" if kind is Leaf else "transient")]
            self.handed += pieces
        return kind(shape, contiguous_strides(shape), Storage(self.tape, pieces), self.weight)

    def rest(self):
        """Between steps: the GPU's weights and states, and what is received into."""
        sources = [number for stage in self.mine for number in (stage - 1, stage + 1)]
        number = sum(0 <= source < self.count and source not in self.mine for source in sources)
        number = number * Letter(self.setup.accumulation, "n_a")
        received = Piece(product(self._shape()), self.weight.width, "communication", number)
        return [*super().rest(), received, *self.handed]

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
            self.held = self.ring.cut(tape, [shape[:1]] * (self.first + self.last) + [()], shape[1])
            self.positions = Tensor(own[1:], contiguous_strides(own[1:]), positions.storage, INT64)
        self.tokens = whole and Tensor(own, contiguous_strides(own), whole.storage, INT64)
        self.targets = targets and Tensor(own, contiguous_strides(own), targets.storage, INT64)
        for stage in self.networks:
            stage.clear()
        self.losses = []
        order = schedules.turns(self.plan.mesh, self.batches, self.place)
        loops = {"gpipe": self._gpipe, "1f1b": self._one_forward_one_backward}
        loops.get(self.setup.mesh.schedule, self._runtime)(order)
        self.held = self.positions = None
        tape.phase = "backward"
        total = None  # noqa: F841  lives as long as the step
        for turn, share in self.losses:
            with tape.turn("batch", turn):
                total = self.total(share)  # noqa: F841
        tape.mark("after_backward")
        return self.updated()

    # The schedules' loops, with the local variables that hold tensors.

    def _gpipe(self, order):
        (stage,) = self.networks
        for self.turn, (kind, _, i) in order:
            if kind == "F":
                output = stage.forward_one_chunk(i, self.tokens)
                ops = None if stage.last else output.alias()  # noqa: F841
                stage.maybe_compute_loss(output)
            else:
                ops = None  # noqa: F841
                loss = self._loss(i)
                stage.backward_one_chunk(i, loss)
                ops = stage.bwd_cache.pop(i)  # noqa: F841
        stage.gathered("reduce")

    def _one_forward_one_backward(self, order):
        (stage,) = self.networks
        fwd_sends = bwd_sends = output = loss = None  # noqa: F841
        before = next(turn for turn, (kind, *_) in order if kind == "B")
        for self.turn, (kind, _, i) in order:
            if kind == "F":
                output = stage.forward_one_chunk(i, self.tokens)
                if self.turn >= before:
                    stage.maybe_compute_loss(output)
                fwd_sends = None if stage.last else output.alias()  # noqa: F841
                if self.turn < before:
                    stage.maybe_compute_loss(output)
            else:
                loss = self._loss(i)
                stage.backward_one_chunk(i, loss)
                bwd_sends = stage.bwd_cache.pop(i)  # noqa: F841
        stage.gathered("reduce")

    def _runtime(self, order):
        stages, waiting = {stage.index: stage for stage in self.networks}, set()
        if self.setup.fsdp:
            order = schedules.gathering(order, self.batches)
        for self.turn, (kind, number, i) in order:
            stage = stages[number]
            if kind not in ("F", "B"):
                stage.gathered(kind)
                if kind == "unshard":
                    waiting.add(stage)
                continue
            if stage in waiting:
                waiting.remove(stage)
                stage.gathered("wait_for_unshard")
            if kind == "F":
                self._forward(stage, i, stages.get(number + 1))
            else:
                stage.backward_one_chunk(i, self._loss(i) if stage.last else None)
                grad = stage.bwd_cache.pop(i)
                if number - 1 in stages:
                    stages[number - 1].grads_received[i] = grad
                del grad

    def _forward(self, stage, i, after):
        """A forward. What it gives is handed on where the next stage is on this GPU too: `set_local_fwd_input`."""
        output = stage.forward_one_chunk(i, self.tokens)
        stage.maybe_compute_loss(output)
        if after:
            after.received[i].node = None  # which knows its leaf
            after.received[i] = Leaf(output.shape, output.strides, output.storage, output.type)

    def _loss(self, i):
        return self.losses[i][1] if self.losses else None


class StagePlan:
    """Which micro-batches of a GPU's stages, and which blocks of each stage, are traced.

    Attributes:
        blocks: `Blocks` of each stage. mesh: the mesh at the traced depth. batches: traced micro-batches. chunks, loops, key: as a
            `Plan`'s.
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
        # With one stage a GPU, all GPUs between the ends run alike.
        where = (place == 0, place == setup.mesh.pipeline - 1) if setup.mesh.schedule in schedules.ONE_STAGE else place
        self.key = (
            where, setup.mesh.rank(rank, setup.data)["context"], self.batches, tuple((loop.turns, loop.middle, text(loop.times)) for loop in turns), tuple(counts) if len(counts) > 1 else (),
            tuple(found.segments for found in self.blocks), len(self.chunks), repr(stretch), self.loops["layer"].turns,
        )  # fmt: skip


def _some(setup, place):
    """(the mesh at the traced depth, traced micro-batches, the loops of their turns, one after another).

    Where turns are rounds, a few rounds are traced; under 1F1B also a few of the forwards before them and of the backwards after.
    """
    mesh, batches = setup.mesh, Letter(setup.accumulation, "n_a")
    if mesh.schedule in schedules.ALL_FIRST:
        loop = replace(Loop.of(batches, 5, 2), together=False)
        return mesh, loop.turns, [loop]
    if mesh.schedule == "1f1b":
        before = Letter(mesh.pipeline - place, "n_f")
        alone, pairs = (
            replace(Loop.of(before, 3, 1), together=False),
            replace(Loop.of(batches - before, 2, 1), together=False),
        )
        return replace(mesh, pipeline=place + alone.turns), alone.turns + pairs.turns, [alone, pairs, alone]
    if schedules.SCHEDULES[mesh.schedule].hops is None:  # nobody counts its rounds
        return mesh, int(batches), [Loop(1, 1, -1)]
    pairs, _, whole = schedules.rounds(mesh, batches, place)
    if whole <= 4:
        return mesh, int(batches), [Loop(int(batches), 1, -1)]
    each = pairs // mesh.stages
    times = over(batches, each) - (int(batches) // each - whole + 3)
    return mesh, int(batches) - (whole - 4) * each, [Loop(1, 1, -1), Loop(4, times, 2, False)]
