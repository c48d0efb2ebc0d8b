"""The first witness: a training step's memory, predicted by formula alone."""

from dataclasses import dataclass, field
from functools import cached_property

from ..allocator import STEPS, Reserved, Settings, Shaped, play
from ..ask.objectives import Objective, Scorer
from ..ask.schedules import ONE_STAGE
from ..ask.setup import Setup
from ..catalog import Gpu, Model
from ..catalog import gpu as find_gpu
from ..common import checks
from ..rules import FORMULA, RESERVED, SCHEDULE, WHOLE, broken, check
from ..step.witness import Alive, Witness
from . import MARKS, PEAKS, letters, place_of, trace
from .alignment import trace as align
from .asking import asked, made
from .pipelines import part_of

__all__ = ["PEAKS", "Budget", "budget", "course_of", "heaviest", "not_derived", "peaks"]


@dataclass(frozen=True, eq=False, repr=False)
class Budget(Witness):
    """A prediction in bytes.

    Attributes:
        model, setup: what is predicted. rounding: bytes that each tensor is rounded up to a multiple of.
        moments: phase -> bytes of each part at its end, between steps (`rest`) and after each phase.
        parts: bytes of each part at the peak; they sum to it. `workspace`, what kernels take for themselves, is 0:
            `formulas.workspaces` says what their sources say. phases: live bytes at the same moments, and the most in the
            optimizer's step (`step`).
        peak: the most bytes that live at once, and peak_at: where, one of `PEAKS`.
        host: bytes of each part in the memory of the CPU, for each GPU, from backward to the optimizer's step; empty without
            offload. As PyTorch asks for them: what it pins, its allocator rounds up to a power of two. Activations are not counted.
        rank: which of several GPUs it is.
    """

    witness = "predict"

    model: Model | Objective
    setup: Setup
    rounding: int
    moments: dict[str, dict[str, int]]
    parts: dict[str, int]
    phases: dict[str, int]
    peak: int
    peak_at: str
    host: dict[str, int] = field(default_factory=dict)
    rank: int = 0

    def timeline(self) -> dict[str, list[int]]:
        """Live bytes while each operation that takes something runs, by part, as a dry run's."""
        return self._course[1]

    @property
    def operations(self) -> list[tuple[str, str, str]]:
        """(name, phase, owner) of each place of the timeline: rest, operations, ends of phases, rest."""
        return self._course[0]

    @property
    def kernels(self) -> list[tuple]:
        """What runs at each place of the timeline: (one of `KERNELS`, its numbers), or () where it takes nothing for itself."""
        return self._course[3]

    @property
    def marks(self) -> dict[str, int]:
        """The end of a phase -> its place in the timeline."""
        return self._course[2]

    def alive(self) -> list[Alive]:
        """Each tensor that lives at the peak, in the order in which it was made."""
        return _at_peak(*_read(self.model, self.setup, self.rounding, self.rank))

    @cached_property
    def _course(self):
        return _unrolled(self.model, self.setup, self.rounding, self.rank)

    def on(
        self,
        gpu: Gpu | str,
        configuration: Settings | str = "",
        memory: int | None = None,
        steps: int = STEPS,
        whole: bool | None = None,
    ) -> Reserved:
        """What PyTorch's allocator makes of it on a GPU, from the first weight on: reserved bytes, and what they are.

        The bytes asked for are exact, and cuBLAS's workspaces are among them. Each tensor is followed, on the stream that makes it: of
        several GPUs what is reserved is within 0.5 % of a rehearsal in 53 steps of 54. Streams are taken to be done with a block as soon
        as it is freed.

        Args:
            gpu: of the catalog, by name too: how large cuBLAS's workspaces are. configuration: as `PYTORCH_ALLOC_CONF`.
            memory: bytes that the process has; by default all that are asked for. steps: how many, the first among them.
            whole: whether weights are first made whole on the GPU, in fp32, as the book's own step makes them; else they come as they
                stay, in their types and shares. None: as the step's own code does, so transformers' as they stay. A dry run's `on`
                takes the same.

        Raises:
            ValueError: with `whole` True, where it is not told how that is.
        """
        if whole is not None:
            checks.flag("Budget.on", "whole", whole)
        if whole and isinstance(self.model, Model):
            check(WHOLE, self.setup, self.model)
        elif whole:
            raise ValueError(f"Budget.on.whole: True of {self.model!r} is not derived; allowed: False or None")
        gpu = find_gpu(gpu) if isinstance(gpu, str) else gpu
        return play(self._asked(gpu.cublas_workspace, whole), configuration, memory, gpu.memory, steps)

    def _asked(self, workspace, whole):
        """What a process asks of its allocator, whatever that makes of it."""
        if (workspace, whole) not in self._requests:
            self._requests[workspace, whole] = shaped(self.model, self.setup, workspace, whole, self.rank).requests
        return self._requests[workspace, whole]

    @cached_property
    def _requests(self):
        return {}


def budget(model: Model | Objective, setup: Setup, rounding: int = 1, rank: int = 0) -> Budget:
    """Predict the memory of one steady training step, in bytes.

    Args:
        model: a Model, trained to say the next token; or an Objective, with another loss.
        rounding: round each tensor up to a multiple of so many bytes: 512 as CUDA's allocator does.
        rank: of several GPUs the one that is predicted: those of a pipeline, and of a ring, differ.

    Raises:
        ValueError: where the setup does not fit the model, or the model's step is not derived: the message names the field
            and what answers instead.
    """
    checks.whole("budget", "rounding", rounding, 1, 2**30)
    setup = _settled(model, setup)
    course = course_of(model, setup, rank)
    found = course.budget(letters(_model(model), setup, rounding, rank), rounding)
    host, parts = course.host(letters(_model(model), setup, rank=rank)), found.parts | {"workspace": 0}
    return Budget(model, setup, rounding, found.moments, parts, found.phases, found.peak, found.peak_at, host, rank)


def shaped(model: Model | Objective, setup: Setup, workspace: int, whole: bool | None = None, rank: int = 0) -> Shaped:
    """What a process asks of its allocator. workspace: bytes of each of cuBLAS's; whole: as `Budget.on`'s."""
    setup = _settled(model, setup)
    check(RESERVED, setup)
    values = letters(_model(model), setup, rank=rank)
    beginning = made(model, setup) if whole is not False else None
    return asked(course_of(model, setup, rank), values, workspace, beginning).shaped


class Shapes:
    """What a process asks of its allocator at every batch and sequence. Arguments as for `shaped`.

    Steps of one course ask for the same tensors in other sizes: their order is found once.
    """

    def __init__(self, model: Model | Objective, setup: Setup, workspace: int, whole: bool | None = None):
        self.model, self.setup, self.workspace, self.whole = model, _settled(model, setup), workspace, whole
        check(RESERVED, setup)
        self._known: dict[int, tuple] = {}

    def at(self, batch: int, sequence: int) -> Shaped:
        """The requests of a step. Raise ValueError where it is not derived."""
        setup = self.setup.replace(batch=batch, sequence=sequence)
        course, values = course_of(self.model, setup), letters(_model(self.model), setup)
        amounts = course.at(values).amounts
        if id(course) in self._known:
            _, first, before = self._known[id(course)]
            if (found := first.at(before, amounts)) is not None:
                return found
        beginning = made(self.model, setup) if self.whole is not False else None
        found = asked(course, values, self.workspace, beginning)
        self._known.setdefault(id(course), (course, found, amounts))
        return found.shaped


def heaviest(model, setup: Setup, rounding: int = 1, witness=budget):
    """What the GPU needs that needs the most: of the stages and the places of a ring that `heavy` names.

    Args:
        witness: called with model, setup, rounding and rank; the model and the errors are its own.
    """
    ranks = heavy(model, setup)
    if len(ranks) == 1:
        return witness(model, setup, rounding=rounding)
    return max((witness(model, setup, rounding=rounding, rank=rank) for rank in ranks), key=lambda one: one.peak)


def heavy(model, setup: Setup) -> list[int]:
    """Ranks of which one needs the most: of each stage of a pipeline and each place of a ring the first.

    Of a ring's places the first two and the last: those between take the same kinds of turns as the second. Where heads are swapped for
    tokens all places are alike.

    The others of a stage have the same, or where FSDP cannot cut a weight evenly less. Where each GPU has one stage, of those between
    the ends the first alone: whatever a later one does, an earlier one does too, with no less in flight and no fewer blocks.
    """
    mesh = setup.mesh
    every, stages = setup.gpus // mesh.pipeline, list(range(mesh.pipeline))
    # A segment of several blocks can be shorter in a stage of more.
    alike = setup.checkpointing != "every-k" or model.layers % mesh.pipeline == 0
    if mesh.schedule in ONE_STAGE and len(stages) > 3 and alike:
        stages = [0, 1, stages[-1]]
    places = [0] if mesh.rotation == "ulysses" else sorted({0, min(1, mesh.context - 1), mesh.context - 1})
    return [stage * every + place * mesh.tensor for stage in stages for place in places]


def _settled(model, setup):
    """The setup with what it leaves unsaid as the model has it; of what is none as it is, which `course_of` refuses."""
    known = isinstance(model, Model | Objective) and isinstance(setup, Setup)
    return setup.of(model.own) if known else setup


def _model(model: Model | Objective) -> Model | Scorer:
    """Whose dimensions the letters stand for."""
    return model.trained if isinstance(model, Objective) else model


def course_of(model: Model | Objective, setup: Setup, rank: int = 0):
    """The course of a step: its operations with formulas for sizes. Arguments and errors as for `budget`."""
    setup = _settled(model, setup)
    if isinstance(model, Objective):
        model.check(setup)
        setup.check_model(model.model)
        if unlike := not_derived(model.model, setup):
            raise ValueError(unlike)
        return align(model, setup)
    if not isinstance(model, Model):
        named = checks.shown(model) if isinstance(model, str) else f"a {type(model).__name__}"
        instead = (
            f"eb.model({checks.shown(model)})" if isinstance(model, str) else "eb.dry_run and eb.derive take any model"
        )
        raise ValueError(f"budget.model: {named}; allowed: a Model of the catalog's kind; {instead}")
    checks.kind("budget", "setup", setup, Setup)
    setup.check_model(model)
    if unlike := not_derived(model, setup):
        raise ValueError(unlike)
    checks.whole("budget", "rank", rank, 0, setup.gpus - 1)
    if setup.mesh.pipeline > 1:
        part, without = part_of(model, setup, rank)
        setup.check_rank("budget", part, rank, without)
    elif setup.mesh.context * setup.mesh.expert > 1:
        setup.check_rank("budget", model, rank)
    elif setup.sharer(rank):
        most = setup.mesh.tensor - 1
        near = f"0 to {most}, which hold the most" if most else "0, which holds the most"
        if setup.fsdp_version == 1:  # all pieces are as large, with more or less padding
            near = "0"
        raise ValueError(
            f"budget.rank: {rank} without a pipeline or a ring is not derived; allowed: {near}; eb.dry_run takes any"
        )
    return trace(model, setup, rank)


def not_derived(model: Model, setup: Setup) -> str | None:
    """Why the model's step with the setup is not derived, in words, with what answers instead; None where it is derived."""
    setup = setup.of(model.own)
    return broken(SCHEDULE, setup) or broken(FORMULA, setup, model)


def _read(model, setup, rounding, rank):
    """(the course of a step with its sizes, what says of an operation and its turns the path of its module)."""
    whole = _model(model)
    reading = course_of(model, setup, rank).at(letters(whole, setup, rounding, rank), rounding)
    every = max(whole.period, setup.cycle)  # blocks in one turn of their loop
    last = part_of(whole, setup, rank)[0].layers // setup.mesh.stages - 1

    def owner(operation, turns):
        """With the block's own number."""
        if not operation.owner.startswith("blocks."):
            return operation.owner
        _, number, *path = operation.owner.split(".")
        if not turns.keys() & {"block", "segment"}:  # gathered before backward enters it
            block = last
        elif every > 1:
            block = turns["block"] * every + int(number) % every
        else:
            block = turns.get("block", 0) + turns.get("segment", 0) * setup.segment
        return ".".join(["blocks", str(block), *path])

    return reading, owner


def _unrolled(model, setup, rounding, rank):
    """(operations, part -> live bytes, phase -> place, kernels) of a whole step, block after block."""
    operations, course, marks, kernels = [("rest", "rest", "")], [], {"rest": 0}, [()]
    reading, owner = _read(model, setup, rounding, rank)
    for operation, live, turns in reading.unrolled():
        if operation is not None and operation.name in MARKS:
            marks[operation.name] = len(course)
            operations.append((operation.name, operation.name, ""))
        elif operation is not None and operation.taken:
            operations.append((operation.name, place_of(operation), owner(operation, turns)))
        elif operation is not None:
            continue
        if operation is not None:
            kernels.append((*operation.kernel[:1], *map(reading.amounts.number, operation.kernel[1:])))
        course.append(live)
    operations.append(("rest", "rest", ""))
    course.append(course[0])
    return operations, {part: [live[part] for live in course] for part in course[0]}, marks, [*kernels, ()]


def _at_peak(reading, owner) -> list[Alive]:
    """What lives at the first peak, in the order in which it was taken; the bytes sum to the peak.

    A turn may free what stands for a piece of another turn: then the last one of its part and size goes.

    Args:
        reading: of a theory's course. owner: from an operation and its turns to the module's path.
    """
    best, peak = sum(reading.rest.values()), 0
    for place, (operation, live, _) in enumerate(reading.unrolled()):
        if operation is not None and operation.taken and operation.name not in MARKS and sum(live.values()) > best:
            best, peak = sum(live.values()), place
    found, standing = [], {}

    def take(piece, alive):
        size, count = reading.amounts.each(piece)
        for _ in range(count if size else 0):
            standing.setdefault(size, []).append(len(found))
            found.append(Alive(size, piece.part, *alive))

    def give(piece):
        size, count = reading.amounts.each(piece)
        for _ in range(count if size else 0):
            places = standing[size]
            places.remove(next((p for p in reversed(places) if found[p].part == piece.part), places[-1]))

    for piece in reading.course.rest:
        take(piece, ("", ""))
    for place, (operation, _, turns) in enumerate(reading.unrolled()):
        for piece in operation.taken if operation else ():
            take(piece, (owner(operation, turns), operation.name))
        if place == peak:
            break
        for piece in operation.freed if operation else ():
            give(piece)
    return [found[place] for place in sorted(place for places in standing.values() for place in places)]


def peaks(model: Model, setup: Setup, batch, sequence, rounding: int = 1):
    """The peaks of many steps at once, over numpy arrays of batches and sequences, which broadcast.

    Args:
        batch, sequence: whole numbers from 1; the setup's own are not read.

    Returns:
        (peak, peak_at), arrays of their common shape: bytes, exact whatever their size (Python's whole numbers from 2**63 on),
        and the place in `PEAKS` of where each is.

    Raises:
        ValueError: for what is no whole number, where the setup or a sequence does not fit the model, its step is not derived,
            or the loss is chunked.
    """
    import numpy

    checks.kind("peaks", "setup", setup, Setup)
    setup = _settled(model, setup)
    setup.check_undivided("peaks", "; eb.budget takes each rank")
    checks.one_of("peaks", "setup.loss", setup.loss, ("plain",))
    checks.whole("peaks", "rounding", rounding, 1, 2**30)
    given = {"batch": batch, "sequence": sequence}
    batch, sequence = numpy.broadcast_arrays(*(checks.whole_numbers("peaks", *one) for one in given.items()))
    peak, peak_at = numpy.zeros(batch.shape, object), numpy.zeros(batch.shape, "int8")
    for trivial in ((False, False), (True, False), (False, True), (True, True)):
        where = ((batch == 1) == trivial[0]) & ((sequence == 1) == trivial[1])
        if where.any():
            peak[where], peak_at[where] = _peaks(model, setup, batch[where], sequence[where], rounding)
    return peak.astype("int64") if peak.max(initial=0) < 2**63 else peak, peak_at


def _peaks(model, setup, batch, sequence, rounding):
    """The same of steps that are all of one structure."""
    import numpy

    largest = setup
    for choose in (min, max):
        largest = setup.replace(batch=int(choose(batch)), sequence=int(choose(sequence)))
        course = course_of(model, largest)
    exact = "int64" if course.budget(letters(model, largest, rounding), rounding).peak < 2**62 else object
    values = {"B": batch.astype(exact), "S": sequence.astype(exact)}
    return course.at(letters(model, setup, rounding) | values, rounding).peaks(numpy.zeros(batch.shape, exact))
