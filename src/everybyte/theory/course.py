"""A step as a course of operations with formulas for sizes, run on whole numbers, on arrays, or on symbols.

The step is run once for each structure (`trace`): what is switched on, which dimensions are trivial, how many blocks are
worth telling apart. What it took and freed is kept with each size as text in the letters of the notation, so another
batch, sequence or width of the same structure is arithmetic: `Course.budget` compiles it to a few hundred additions.
"""

import gc
from collections import OrderedDict
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from functools import cached_property, lru_cache
from math import prod
from operator import attrgetter

from ..catalog import Model
from ..catalog.weights import adapters, numbers_of, weights
from ..pipelines import ONE_STAGE
from ..setup import COMMON_OPTIMIZERS, DTYPE_BYTES, LIBRARIES, OPTIMIZERS, Setup
from .buckets import buckets
from .context import RingStep, own_sequence
from .expert_parallel import OWN, ExpertStep, along, received
from .letters import Letter, factor, text, up
from .operations import is_thin
from .optimizers import PAGED, QUANTIZED
from .pipelines import PipelineStep, StagePlan, modules_of, part_of
from .schedule import Loop, Repeat, flat, nested, stretched
from .tape import Type
from .training import Step

#: The parts of a step's memory, in the order in which they are stacked; and what steps on several GPUs have besides.
PARTS = ("parameters", "casts", "buffers", "gradients", "optimizer", "activations", "loss")
SHARED_PARTS = ("unsharded", "communication")
MARKS = ("after_forward", "after_backward", "after_step")
#: Where a peak may be, in the order of the step.
PEAKS = ("forward", "loss forward", "loss backward", "backward", "optimizer step")


def letters(model, setup, rounding=1, rank=0) -> dict[str, int]:
    """The value of each letter that a course uses. `rounding`: for Q, the bytes of DDP's buckets. `rank`: of a pipeline's GPUs."""
    dtypes, whole = setup.dtypes, model
    if setup.mesh.pipeline > 1:
        model, *_ = part_of(model, setup, rank)
    return {
        "B": setup.batch, "S": setup.sequence, "L": model.layers, "H": model.width, "A": model.heads, "A_kv": model.kv_heads,
        "D": model.head_width, "F": model.ffn_width, "V": model.vocabulary, "N": model.learned_positions,
        "N_max": model.positions, "W": model.embedding_width, "E": model.experts, "E_t": model.experts_per_token,
        "F_e": model.expert_width, "K": setup.segment or 1, "n_c": setup.loss_chunks, "n_a": setup.accumulation, "n_f": setup.mesh.pipeline - setup.mesh.rank(rank, setup.data)["pipeline"],
        "w": DTYPE_BYTES[dtypes.compute if setup.fsdp else setup.base_dtype], "w_s": DTYPE_BYTES[setup.base_dtype],
        "c": DTYPE_BYTES[dtypes.compute], "s_b": DTYPE_BYTES[setup.state_dtype], "r": DTYPE_BYTES[setup.reduced_dtype],
        "m_w": DTYPE_BYTES[dtypes.master] if dtypes.master else 0, "G": setup.shards, "R": setup.replicas,
        "C": setup.mesh.context, "C_l": rows_at_once(model, setup) if setup.loss == "linear-cross-entropy" else 0, "E_p": setup.mesh.expert, "G_e": setup.expert_shards, "X": received(model, setup) if setup.mesh.expert > 1 else 0, "P": numbers_of(model, setup.adapters) if setup.sharding == "zero1" or setup.precision in LIBRARIES else 0, "Q": _bucketed(whole, setup, rounding, rank),
        "t": setup.mesh.tensor, "r_A": setup.adapters.rank if setup.adapters else 0, "w_A": DTYPE_BYTES[setup.trained_dtype] if setup.adapters else 0,
    }  # fmt: skip


def _bucketed(model, setup, rounding, rank):
    if not setup.ddp:
        return 0
    alone, found = OWN if setup.mesh.expert > 1 else (), []
    for part, ends in modules_of(model, setup, rank):
        found += buckets(part, DTYPE_BYTES[setup.trained_dtype], alone, setup.dtypes.autocast, ends, setup.adapters)
    return sum(-(-size // rounding) * rounding for size in found)


class Blocks:
    """How many of some blocks in a row are traced, in how many segments, and which of them stands for how many.

    Attributes:
        segments: blocks that are traced in each segment. segment: the loop of segments, if any; block: place -> its loop.
        stretched: which turns stand for others.
    """

    def __init__(self, blocks, setup):
        few = (3, 1)
        if setup.fsdp:  # it gathers a block while its neighbor is at work
            few = (5, 2)
        elif setup.adapters:  # the first block may hold no rotary angles: then the second lets them go
            few = (4, 2)
        self.segment = None
        if setup.segment:
            size = Letter(setup.segment, "K")
            full = up(blocks, size) - 1  # all but the last segment, which has what is left
            last = blocks - full * size
            self.segment = Loop.of(full, 3, 1)
            inner, final = Loop.of(size, *few), Loop.of(last, *few)
            count = self.segment.turns
            self.block = lambda place: final if place.get("segment") == count else inner
            self.segments = (inner.turns,) * count + (final.turns,)
            self.stretched = self.segment.middle, inner.middle, final.middle
        else:
            loop = Loop.of(blocks, *few)
            self.block = lambda place: loop
            self.segments, self.stretched = (loop.turns,), loop.middle


class Plan:
    """How many blocks, segments, chunks and batches are traced, and which of them stands for how many."""

    def __init__(self, model, setup):
        layers = Letter(model.layers, "L")
        blocks = Blocks(layers, setup)
        self.loops = {
            "batch": Loop.of(Letter(setup.accumulation, "n_a"), 3, 1), "layer": Loop.of(layers, 3, 1), "block": blocks.block,
        }  # fmt: skip
        if blocks.segment:
            self.loops["segment"] = blocks.segment
        self.segments = blocks.segments
        self.chunks, stretched = chunked(setup, self.loops, blocks.stretched, model)
        self.key = (
            self.segments, len(self.chunks), stretched, self.loops["batch"].turns, self.loops["batch"].middle,
            self.loops["layer"].turns,
        )  # fmt: skip


def rows_at_once(model, setup):
    """Tokens in a chunk of `linear_cross_entropy`: whose logits take about half of what all inputs of the head do, a power of two.

    Source: `torch/nn/modules/linear_cross_entropy_options.py`, `_compute_batch_chunk_size`, of "aspect_ratio:2".
    """
    tokens = setup.batch * setup.sequence
    each = -(-tokens // -(-model.vocabulary // model.width))
    return max(1, min(2 ** (each - 1).bit_length() // 2, tokens))


def chunked(setup, loops, stretched, model=None):
    """(tokens of each chunk of the loss that is traced, what decides the form besides); the loop of chunks goes to `loops`."""
    if setup.loss == "plain":
        return (), stretched
    tokens = Letter(setup.batch, "B") * own_sequence(setup)
    if setup.loss == "chunked":
        chunk = up(tokens, Letter(setup.loss_chunks, "n_c"))
    else:
        chunk = Letter(rows_at_once(model, setup), "C_l")
        stretched = stretched, is_thin(model.width, model.vocabulary, Type(setup.dtypes.weights, 0))
    number = up(tokens, chunk)
    loops["chunk"] = loop = Loop.of(number, 4, 1)
    chunks = (chunk,) * (loop.turns - 1) + (tokens - (number - 1) * chunk,)
    return chunks, (stretched, loop.middle, chunk == 1, chunks[-1] == 1)


@lru_cache(4096)
def _form(mesh, alike):
    """What of a mesh decides the form of a step: how many GPUs divide matrices or experts, only letters say, and how deep a pipeline is
    whose GPUs have a stage each.

    Args:
        alike: whether the optimizer treats all matrices alike, whatever their shape.
    """
    depth = min(mesh.pipeline, 2) if mesh.schedule in ONE_STAGE else mesh.pipeline
    parts = {"tensor": min(mesh.tensor, 2), "expert": min(mesh.expert, 2), "routing": 1.0} if alike else {}
    return replace(mesh, pipeline=depth, **parts)


#: Fields of a model and of a setup that only letters say, or that `structure` reads by itself; every other is in its key as it stands.
LETTERED = frozenset(
    """name published source layers width heads kv_heads head_width ffn_width vocabulary positions learned_positions embedding_width
    experts experts_per_token expert_width activation""".split()
)
LETTERED_SETUP = frozenset(
    "batch sequence accumulation loss_chunks checkpoint_every dropout gpus replicas mesh adapters".split()
)
_features = attrgetter(*(f.name for f in fields(Model) if f.name not in LETTERED))
_switches = attrgetter(*(f.name for f in fields(Setup) if f.name not in LETTERED_SETUP))


def structure(model, setup):
    """What decides the form of a step; models and setups that agree in it differ in the values of letters alone."""
    sizes = setup.batch, setup.sequence, model.width, model.heads, model.kv_heads, model.ffn_width, model.vocabulary
    trivial = tuple(size == 1 for size in (*sizes, model.experts, model.experts_per_token, model.expert_width))
    if (parts := setup.mesh.tensor) > 1:
        trivial += tuple(size == parts for size in (*sizes[1:], model.expert_width, model.learned_positions))
    head = model.head_width % 8, model.head_width % 4, min(model.head_width, 3), model.heads == model.kv_heads
    features = (
        *_features(model), model.family, model.activation.removesuffix("_tanh"), model.experts > 0, model.positions > 0,
    )  # fmt: skip
    switches = (
        *_switches(setup), setup.dropout > 0, min(setup.shards, 2), min(setup.replicas, 2), setup.gpus > 1, setup.accumulation > 1,
        _form(setup.mesh, setup.optimizer in COMMON_OPTIMIZERS),
    )  # fmt: skip
    return trivial, head, features, switches, _beside(model, setup), _thresholds(model, setup)


def _beside(model, setup):
    """Of adapters: which there are, in which data type over which, and whether the rank is 1 and their inputs are dropped."""
    lora = setup.adapters
    if lora is None:
        return ()
    names = tuple(w.name for w in adapters(model, lora.rank, lora.takes))
    return names, lora.dtype, setup.base_dtype, lora.rank == 1, lora.dropout > 0


def _thresholds(model, setup):
    """Which of an 8-bit optimizer's states are quantized, and which are paged: by the weights' sizes."""
    if OPTIMIZERS[setup.optimizer].algorithm != "adam8bit":
        return ()
    lora = setup.adapters
    trained = adapters(model, lora.rank, lora.takes) if lora else [w for w in weights(model) if w.count]
    numbers = [weight.numbers for weight in trained]
    if setup.sharding == "zero1":  # one share
        numbers = [-(-numbers_of(model, lora) // setup.shards)]
    return tuple(tuple(number >= size for size in (QUANTIZED, PAGED)) for number in numbers)


_COURSES: OrderedDict = OrderedDict()
#: Courses that are remembered: each is some hundreds of operations.
_MOST = 512


def trace(model, setup, make=None, *beside) -> "Course":
    """The course of a step; equal structures share it.

    Args:
        make: makes it, where it is another than `Step`. beside: what decides its form besides.
    """
    plan = Plan(model, setup)

    def step():
        return (make or Step)(
            model, setup, plan.segments, plan.chunks, plan.loops["batch"].turns, plan.loops["layer"].turns
        )

    return _shared((structure(model, setup), plan.key, beside), step, plan.loops)


def stage(model, setup, rank) -> "Course":
    """The course of the step of one GPU of a pipeline, as `trace`; its letters are those of `letters(model, setup, rank=rank)`."""
    plan = StagePlan(model, setup, rank, Blocks, chunked)
    key = structure(part_of(model, setup, rank)[0], setup), plan.key, _cut(setup)
    if setup.mesh.expert == 1:
        return _shared(key, lambda: PipelineStep(model, setup, rank, plan), plan.loops)
    return _shared((*key, _divided(model, setup)), lambda: ExpertPipelineStep(model, setup, rank, plan), plan.loops)


def ring(model, setup, rank) -> "Course":
    """The course of the step of one GPU of those that share sequences, as `trace`."""
    plan, place = Plan(model, setup), setup.mesh.rank(rank, setup.data)["context"]
    kind, beside = (RingExpertStep, _divided(model, setup)) if setup.mesh.expert > 1 else (RingStep, ())
    key = structure(model, setup), plan.key, place, _cut(setup), beside

    def step():
        return kind(
            place, model, setup, plan.segments, plan.chunks, plan.loops["batch"].turns, plan.loops["layer"].turns
        )

    return _shared(key, step, plan.loops)


def _cut(setup):
    """What decides the form of a step besides, where sequences are shared: which pieces of one are trivial."""
    return setup.sequence == 2 * setup.mesh.context, setup.own_sequence == setup.mesh.tensor


def divided(model, setup) -> "Course":
    """The course of the step of a GPU of those that divide experts, as `trace`: all alike."""
    return trace(model, setup, ExpertStep, *_divided(model, setup))


class ExpertPipelineStep(PipelineStep, ExpertStep):
    """The step of one GPU of a pipeline whose stages' GPUs divide experts."""


class RingExpertStep(RingStep, ExpertStep):
    """The step of one GPU of those that share sequences and divide experts."""


def _divided(model, setup):
    """What decides the form of a step besides, where experts are divided."""
    trivial = model.experts == setup.mesh.expert, received(model, setup) == 1
    return *trivial, min(setup.expert_shards, 2), along(model, setup)


@contextmanager
def _uncollected():
    """Within it Python does not look for circles to free: a trace makes few, and looking goes through all courses there are."""
    before = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if before:
            gc.enable()


def _shared(key, make, loops):
    if key not in _COURSES:
        with _uncollected():
            step = make()
            rest, host = step.rest(), step.host()
            _COURSES[key] = Course(nested(stretched(step.run(), loops), loops), rest, host, step.setup.distributed)
        while len(_COURSES) > _MOST:
            _COURSES.popitem(last=False)
    _COURSES.move_to_end(key)
    return _COURSES[key]


@dataclass(frozen=True)
class Found:
    """What a course says of a step, in whole bytes.

    Attributes:
        rest: part -> bytes between steps. moments: moment -> part -> bytes. parts, peak, peak_at: at the peak.
        step: the most that lives in the optimizer's step.
    """

    moments: dict
    parts: dict
    peak: int
    peak_at: str
    step: int


class Course:
    """The operations of a step, what repeats put into `Repeat`s, with sizes as text.

    Attributes:
        items: operations and repeats. rest: pieces that stand between steps. distributed: whether the step communicates.
    """

    def __init__(self, items, rest, host, distributed):
        self.items, self.rest, self._host, self.distributed = items, rest, host, distributed
        self._asked = 0

    @cached_property
    def parts(self):
        """The parts that it speaks of."""
        return PARTS + SHARED_PARTS * self.distributed

    def _pieces(self):
        yield from self.rest
        for operation in flat(self.items):
            yield from operation.taken
            yield from operation.freed

    @cached_property
    def _budget(self):
        return _compiled(self)

    def budget(self, model, setup, rounding=1, rank=0) -> Found:
        """Add up the step for a model and a setup of its structure, each tensor rounded up to a multiple of so many bytes."""
        self._asked += 1
        values = letters(model, setup, rounding, rank)
        found = _walked(self, rounding, values) if self._asked <= OFTEN else self._budget(k=rounding, **values)
        peak, at, parts, marks, step = found
        moments = {name: dict(zip(self.parts, live, strict=True)) for name, live in marks.items()}
        return Found(moments, dict(zip(self.parts, parts, strict=True)), peak, PEAKS[at], step)

    def host(self, model, setup, rank=0):
        """Part -> bytes in the memory of the CPU; empty where nothing is offloaded."""
        names = HELPERS | letters(model, setup, rank=rank)
        found = dict.fromkeys(("parameters", "gradients", "optimizer") if self._host else (), 0)
        for piece in self._host:
            size = _value(f"({factor(piece.numbers)})*({factor(piece.width)})*({text(piece.count)})", names)
            found[piece.part] += size
        return found

    def taken(self, values, rounding=1):
        """(batch, kind) -> bytes that forward and backward take by operations of that kind, "" that of all others, one after another.

        Of batches that are alike one stands here for all: which, `items` say. Each tensor is rounded up to a multiple of so
        many bytes.
        """
        sizes, found = self.sizes(values, rounding), {}

        def add(items, times):
            for item in items:
                if isinstance(item, Repeat):
                    add(item.items, times * (self.times(item, values) if item.loop != "batch" else 1))
                elif item.taken and item.phase != "optimizer step":
                    key = dict(item.place).get("batch", 0), item.kind
                    found[key] = found.get(key, 0) + times * sum(sizes[piece.key] for piece in item.taken)

        add(self.items, 1)
        return found

    def flops(self, values):
        """Floating-point operations of the step's matrix products: a multiplication and an addition each."""
        names = HELPERS | values

        def add(items):
            each = (
                add(item.items) * self.times(item, values) if isinstance(item, Repeat)
                else sum(prod(_value(text(size), names) for size in sizes) for sizes in item.products)
                for item in items
            )  # fmt: skip
            return sum(each)

        return 2 * add(self.items)

    def peak(self, values, rounding=1):
        """(peak, place in `PEAKS`), walked and not compiled: for a structure that is asked once."""
        sizes, top = self.sizes(values, rounding), (0, "")

        def see(live, place):
            nonlocal top
            if live > top[0]:
                top = live, place

        self._walk(self.items, sizes, values, sum(sizes[piece.key] for piece in self.rest), see)
        return top

    def peaks(self, values, rounding=1):
        """(peak, place in `PEAKS`) over numpy arrays of letters, all of one structure."""
        import numpy

        sizes = self.sizes(values, rounding)
        live = sum(sizes[piece.key] for piece in self.rest)
        peak, at = numpy.zeros_like(values["B"]), numpy.zeros(values["B"].shape, "int8")

        def see(live, place):
            higher = live > peak
            peak[higher], at[higher] = numpy.broadcast_to(live, peak.shape)[higher], PEAKS.index(place)

        self._walk(self.items, sizes, values, live, see)
        return peak, at

    def _walk(self, items, sizes, values, live, see):
        """Show the live bytes in all while each operation runs: of what repeats the first and the last turn. Returns them."""
        for item in items:
            if isinstance(item, Repeat):
                times, before = self.times(item, values), live
                live = self._walk(item.items, sizes, values, live, see)
                if not isinstance(times, int) or times > 1:
                    change = live - before
                    live = self._walk(item.items, sizes, values, live + change * (times - 2), see)
                continue
            live = live + sum(sizes[piece.key] for piece in item.taken)
            if item.taken:
                see(live, place_of(item))
            live = live - sum(sizes[piece.key] for piece in item.freed)
        return live

    def sizes(self, values, rounding=1, namespace=None):
        """Piece's key -> bytes, for the values of the letters: numbers, arrays or symbols. `rounding` None: not rounded."""
        found = {}
        names = (namespace or HELPERS) | values
        for piece in self._pieces():
            if piece.key not in found:
                size = _value(f"({factor(piece.numbers)})*({factor(piece.width)})", names)
                if rounding is not None:
                    size = -(-size // rounding) * rounding
                found[piece.key] = size * _value(text(piece.count), names)
        return found

    def times(self, repeat, values, namespace=None):
        """How often it repeats."""
        return _value(text(repeat.times), (namespace or HELPERS) | values)

    def unrolled(self, values, rounding=1):
        """Every operation of the step, one after another: (operation, part -> live bytes, place); whole numbers alone.

        The place says of each loop which turn it is, all of them counted.
        """
        sizes, live = self.sizes(values, rounding), dict.fromkeys(self.parts, 0)
        for piece in self.rest:
            live[piece.part] += sizes[piece.key]
        yield None, dict(live), {}
        stood = {}
        for where, index, repeat in middles(self.items):
            stood.setdefault(where, {})[index] = self.times(repeat, values)
        yield from self._unrolled(self.items, sizes, live, values, {}, stood)

    def _unrolled(self, items, sizes, live, values, shifts, stood):
        for i, item in enumerate(items):
            if isinstance(item, Repeat):
                times, down = self.times(item, values), backwards(item, items[i + 1 :])
                for turn in range(times):
                    moved = times - 1 - turn if down else turn
                    yield from self._unrolled(item.items, sizes, live, values, shifts | {item.loop: moved}, stood)
                continue
            for piece in item.taken:
                live[piece.part] += sizes[piece.key]
            yield item, dict(live), _turns(item, shifts, stood)
            for piece in item.freed:
                live[piece.part] -= sizes[piece.key]


def _turns(operation, shifts, stood):
    """Which turn of each loop it is: a stand-in's own number and how often it has stood, what comes after it moved on."""
    found = {}
    for i, (loop, index) in enumerate(operation.place):
        times = stood.get(operation.place[:i] + (loop,), {})
        found[loop] = index + sum(n - 1 for middle, n in times.items() if middle < index)
        found[loop] += shifts.get(loop, 0) if index in times else 0
    return found


def middles(items):
    """(where, number of the turn, repeat) of each loop's stand-in; where: in which turns of the outer loops, and the loop."""
    for item in items:
        if isinstance(item, Repeat):
            place = next(flat(item.items)).place
            i = [loop for loop, _ in place].index(item.loop)
            yield (*place[:i], item.loop), place[i][1], item
            yield from middles(item.items)


def backwards(repeat, following):
    """Whether the turns go down: by the turn that follows."""
    mine = dict(next(flat(repeat.items)).place)[repeat.loop]
    found = (dict(operation.place).get(repeat.loop) for operation in flat(following))
    return next((index < mine for index in found if index is not None), False)


def _whole(a, b):
    return a // b


def _up(a, b):
    return -(-a // b)


#: What the text of sizes calls.
HELPERS = {"up": _up, "whole": _whole, "least": min, "most": max}


#: So many budgets of one course are walked; then it is compiled, which takes as long as ten of them and makes the others ten times
#: as fast.
OFTEN = 8


@lru_cache(2**14)
def _code(source):
    return compile(source, "<size>", "eval")


def _value(source, names):
    return eval(_code(source), {"__builtins__": {}}, names)  # noqa: S307  text that `letters` wrote


def _walked(course, k, values):
    """What the compiled course returns, walked: of what repeats the first and the last turn."""
    names, index, bytes_of, known = HELPERS | values, course.parts.index, {}, {}
    live = [0] * len(course.parts)
    peak = at = step = 0
    best, marks = (), {}

    def size(piece):
        if (found := known.get(id(piece))) is None:
            key = piece.key
            if (number := bytes_of.get(key)) is None:
                whole = _value(f"({factor(piece.numbers)})*({factor(piece.width)})", names)
                number = bytes_of[key] = -(-whole // k) * k * _value(key[2], names)
            found = known[id(piece)] = index(piece.part), number
        return found

    def change(pieces, sign):
        moved = 0
        for piece in pieces:
            part, number = size(piece)
            live[part] += sign * number
            moved += number
        return sign * moved

    def walk(items):
        nonlocal live, peak, at, best, step, now
        for item in items:
            if isinstance(item, Repeat):
                times, before = _value(text(item.times), names), list(live)
                walk(item.items)
                if times > 1:
                    live = [x + (x - b) * (times - 2) for x, b in zip(live, before, strict=True)]
                    now = sum(live)
                    walk(item.items)
            elif item.name in MARKS:
                marks[item.name] = tuple(live)
                if item.name == "after_backward":
                    step = now
                now += change(item.freed, -1)
            else:
                now += change(item.taken, 1)
                if item.taken:
                    if now > peak:
                        peak, at, best = now, PEAKS.index(place_of(item)), tuple(live)
                    if item.phase == "optimizer step":
                        step = max(step, now)
                now += change(item.freed, -1)

    now = change(course.rest, 1)
    marks["rest"] = tuple(live)
    walk(course.items)
    return peak, at, best, marks, step


def _compiled(course):
    """The course as one function of the letters and the rounding `k`: some hundred additions."""
    parts, lines, numbers = course.parts, [], {}

    def size(piece):
        if piece.key not in numbers:
            numbers[piece.key] = f"s{len(numbers)}"
            total = f"({factor(piece.numbers)})*({factor(piece.width)})"
            count = "" if text(piece.count) == "1" else f"*({text(piece.count)})"
            lines.append(f"{numbers[piece.key]} = -(-{total}//k)*k{count}")
        return numbers[piece.key]

    def sums(pieces):
        by = {}
        for piece in pieces:
            by.setdefault(parts.index(piece.part), []).append(size(piece))
        return {part: "+".join(found) for part, found in by.items()}

    body = [f"x{i} = {rest}" for i in range(len(parts)) for rest in [sums(course.rest).get(i, "0")]]
    everything = ", ".join(f"x{i}" for i in range(len(parts)))
    body += [
        "p = at = step = 0",
        "best = ()",
        "now = " + "+".join(f"x{i}" for i in range(len(parts))),
        f"rest = ({everything})",
    ]
    marks = ["rest"]

    def write(items, indent, depth):
        pad = " " * indent
        for item in items:
            if isinstance(item, Repeat):
                name = f"n{depth}"
                body.append(f"{pad}{name} = {text(item.times)}")
                body.append(f"{pad}b{depth} = ({everything})")
                body.append(f"{pad}for i{depth} in (0, 1) if {name} > 1 else (0,):")
                write(item.items, indent + 1, depth + 1)
                body.append(f"{pad} if not i{depth} and {name} > 2:")
                for i in range(len(parts)):
                    body.append(f"{pad}  x{i} += (x{i} - b{depth}[{i}])*({name}-2)")
                body.append(f"{pad}  now = " + "+".join(f"x{i}" for i in range(len(parts))))
                continue
            if item.name in MARKS:
                body.append(f"{pad}{item.name} = ({everything})")
                if item.name not in marks:
                    marks.append(item.name)
                if item.name == "after_backward":
                    body.append(f"{pad}step = now")
                _give(body, pad, sums(item.freed))
                continue
            for part, found in sums(item.taken).items():
                body.append(f"{pad}d = {found}; x{part} += d; now += d")
            if item.taken:
                where = PEAKS.index(place_of(item))
                body.append(f"{pad}if now > p: p = now; at = {where}; best = ({everything})")
                if item.phase == "optimizer step":
                    body.append(f"{pad}if now > step: step = now")
            _give(body, pad, sums(item.freed))

    write(course.items, 1, 0)
    named = ", ".join(f"'{name}': {name}" for name in marks)
    source = "def program(k, " + ", ".join(LETTERS) + ", **_):\n"
    source += "".join(f" {line}\n" for line in lines) + "".join(
        f" {line}\n" if not line.startswith(" ") else f"{line}\n" for line in body
    )
    source += f" return p, at, best, {{{named}}}, step\n"
    names = dict(HELPERS)
    exec(compile(source, "<course>", "exec"), names)  # noqa: S102  text that `letters` and this function wrote
    return names["program"]


def _give(body, pad, freed):
    for part, found in freed.items():
        body.append(f"{pad}d = {found}; x{part} -= d; now -= d")


def place_of(operation):
    """Where a peak at this operation is, one of `PEAKS`."""
    return f"loss {operation.phase}" if operation.loss and operation.phase != "optimizer step" else operation.phase


LETTERS = (
    "B", "S", "L", "H", "A", "A_kv", "D", "F", "V", "N", "N_max", "W", "E", "E_t", "F_e", "K", "n_c", "n_a", "n_f", "w", "w_s", "c",
    "s_b", "r", "m_w", "G", "R", "C", "C_l", "E_p", "G_e", "X", "P", "Q", "r_A", "w_A", "t",
)  # fmt: skip
