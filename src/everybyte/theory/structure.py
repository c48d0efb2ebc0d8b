"""The structure of a step: what decides which operations it has. Steps that agree in it share one course.

The step is run once for each structure (`trace`): what is switched on, which dimensions are trivial, how many blocks are worth
telling apart. Sizes are text in the letters of the notation, so another batch, sequence or width of it is arithmetic.
"""

import gc
from collections import OrderedDict
from contextlib import contextmanager
from dataclasses import fields, replace
from functools import lru_cache
from math import prod
from operator import attrgetter

from ..ask.choices import COMMON_OPTIMIZERS, DTYPE_BYTES, LIBRARIES, OPTIMIZERS
from ..ask.schedules import ONE_STAGE
from ..ask.setup import Setup
from ..catalog import Model
from ..catalog.weights import adapters, buffered, layers, learned, numbers_of, summed, weights
from .attention import MASK_MULTIPLE
from .buckets import buckets
from .context import own_sequence
from .course import PARTS, SHARED_PARTS, Course
from .expert_parallel import OWN, along, received
from .flat import layouts
from .letters import Letter, over, text, up
from .loops import LoopStep
from .losses import is_thin
from .low_bits import made, quantized
from .optimizers import PAGED, QUANTIZED, rounds
from .pipelines import PipelineStep, StagePlan, modules_of, part_of
from .schedule import Loop, left, nested, one_after_another, stretched
from .tape import Type
from .training import Fields, Step, occurrences


def letters(model, setup, rounding=1, rank=0) -> dict[str, int]:
    """The value of each letter that a course uses. `rounding`: for Q, the bytes of DDP's buckets. `rank`: of a pipeline's GPUs."""
    dtypes, whole, (model, without) = setup.dtypes, model, part_of(model, setup, rank)
    return {
        letter: getattr(model, field) for field, letter in Fields.LETTERS.items()
    } | {
        "B": setup.batch, "S": setup.sequence, "K": setup.segment or 1, "n_c": setup.loss_chunks, "n_a": setup.accumulation, "n_f": setup.mesh.pipeline - setup.mesh.rank(rank, setup.data)["pipeline"],
        "w": DTYPE_BYTES[dtypes.compute if setup.fsdp else setup.base_dtype], "w_s": DTYPE_BYTES[setup.base_dtype],
        "c": DTYPE_BYTES[dtypes.compute], "s_b": DTYPE_BYTES[setup.state_dtype], "r": DTYPE_BYTES[setup.reduced_dtype],
        "m_w": DTYPE_BYTES[dtypes.master] if dtypes.master else 0, "G": setup.shards, "R": setup.replicas,
        "C": setup.mesh.context, "C_l": rows_at_once(model, setup) if setup.loss == "linear-cross-entropy" else 0, "E_p": setup.mesh.expert, "G_e": setup.expert_shards, "G_r": setup.resharding_gpus, "X": received(model, setup) if setup.mesh.expert > 1 else 0, **_flat(model, setup, without), "Q": _bucketed(whole, setup, rounding, rank),
        "t": setup.mesh.tensor, "r_A": setup.adapters.rank if setup.adapters else 0, "w_A": DTYPE_BYTES[setup.trained_dtype] if setup.adapters else 0,
    }  # fmt: skip


def _flat(model, setup, without):
    """P: numbers that lie side by side in one buffer. P_e: those of experts that several GPUs divide, in a buffer of their own."""
    if setup.precision == "bf16-megatron" and setup.sharding == "zero1":
        return {"P": buffered(model, setup.gpus), "P_e": 0}
    if setup.sharding != "zero1" and setup.precision not in LIBRARIES:
        return {"P": 0, "P_e": 0}
    found = [w for w in weights(model) if w.name.endswith(OWN) and w.group not in without]
    own = summed(model, lambda w: w.numbers, found) if setup.mesh.expert > 1 else 0
    return {"P": numbers_of(model, setup.adapters, without) - own, "P_e": own // setup.mesh.expert}


def _bucketed(model, setup, rounding, rank):
    if not setup.ddp:
        return 0
    alone, found = OWN if setup.mesh.expert > 1 else (), []
    for part, ends in modules_of(model, setup, rank):
        found += buckets(part, DTYPE_BYTES[setup.trained_dtype], alone, setup.dtypes.autocast, ends, setup.adapters)
    return sum(-(-size // rounding) * rounding for size in found)


class Blocks:
    """How many blocks are traced, in how many segments, and which of them stands for how many.

    Args:
        every: blocks that stand in one turn of the loop, of which no two need be alike; what is left over comes last.
        dense: how many blocks, the first, have a dense MLP where others have experts: a loop of their own.

    Attributes:
        dense: how many of those are traced. segments: blocks that are traced in each segment. segment: the loop of segments, if any; block: place -> its loop.
        stretched: which turns stand for others.
    """

    def __init__(self, blocks, setup, every=1, dense=0):
        few = (3, 1)
        if setup.fsdp:  # it gathers a block while its neighbor is at work
            few = (5, 2)
        elif setup.adapters:  # the first block may hold no rotary angles: then the second lets them go
            few = (4, 2)
        self.segment, self.dense = None, 0
        if setup.segment and every == 1 and not dense:
            size = Letter(setup.segment, "K")
            full = up(blocks, size) - 1  # all but the last segment, which has what is left
            last = blocks - full * size
            self.segment = Loop.of(full, 3, 1)
            inner, final = Loop.of(size, *few), Loop.of(last, *few)
            count = self.segment.turns
            self.block = lambda place: final if place.get("segment") == count else inner
            self.segments = (inner.turns,) * count + (final.turns,)
            self.stretched = self.segment.middle, inner.middle, final.middle
        elif dense:
            loops = [Loop.of(number, *few) for number in (dense, blocks - dense)]
            self.dense, self.block = loops[0].turns, one_after_another("block", loops)
            self.segments = (sum(loop.turns for loop in loops),)
            self.stretched = tuple((loop.turns, loop.middle) for loop in loops)
        else:
            loop = Loop.of(over(blocks, every) if every > 1 else blocks, *few)
            self.block = lambda place: loop
            self.segments, self.stretched = (every * loop.turns + blocks % every,), (loop.middle, every)


class Plan:
    """How many blocks, segments, chunks and batches are traced, and which of them stands for how many."""

    def __init__(self, model, setup):
        layers, dense = Letter(model.layers, "L"), Letter(model.dense_layers, "L_d") if model.experts else 0
        blocks = Blocks(layers, setup, max(model.period, setup.cycle), dense)
        stepped = [Loop.of(number, 3, 1) for number in ((dense, layers - dense) if dense else (layers,))]
        self.dense, self.stepped = blocks.dense, tuple(loop.turns for loop in stepped)
        self.loops = {
            "batch": Loop.of(Letter(setup.accumulation, "n_a"), 3, 1), "layer": one_after_another("layer", stepped),
            "block": blocks.block,
        }  # fmt: skip
        if blocks.segment:
            self.loops["segment"] = blocks.segment
        exchanged = exchanges(model, setup)
        self.loops["round"] = one_after_another("round", [loop for _, loop in exchanged])
        self.segments = blocks.segments
        self.chunks, stretched = chunked(setup, self.loops, blocks.stretched, model)
        self.key = (
            self.segments, len(self.chunks), stretched, self.loops["batch"].turns, self.loops["batch"].middle,
            self.stepped, tuple((row[0].name, row[0].group, text(loop.times), loop.turns) for row, loop in exchanged),
        )  # fmt: skip


def exchanges(model, setup):
    """What `rounds` says of a setup's exchanges: which weights share a shape decides the form."""
    if setup.muon_gather == "each":
        return []
    fields = Fields(model)
    times = occurrences(fields)
    rows = [(w, 0, w.count * times[w.group]) for w in learned(fields) if w.count and layers(model)[w.group]]
    return rounds(model, rows, setup)


def rows_at_once(model, setup):
    """Tokens in a chunk of `linear_cross_entropy`: a power of two, with about half as many logits as the head has inputs in all.

    Source: `torch/nn/modules/linear_cross_entropy_options.py`, `_compute_batch_chunk_size`, of "aspect_ratio:2".
    """
    tokens = setup.batch * setup.sequence
    each = -(-tokens // -(-model.vocabulary // model.width))
    return max(1, min(2 ** (each - 1).bit_length() // 2, tokens))


def chunked(setup, loops, stretched, model=None):
    """(tokens of each traced chunk of the loss, what else decides the form). Adds the loop of chunks to `loops`."""
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
    """The part of a mesh that decides the form of a step. Three sizes are letters only: how many GPUs divide matrices, how many divide
    experts, and the depth of a pipeline with one stage a GPU.

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
    "batch sequence accumulation loss_chunks checkpoint_every dropout gpus resharding_gpus replicas mesh adapters".split()
)
_features = attrgetter(*(f.name for f in fields(Model) if f.name not in LETTERED))
_switches = attrgetter(*(f.name for f in fields(Setup) if f.name not in LETTERED_SETUP))


def structure(model, setup, without=()):
    """The key of a step's form. Steps with equal keys differ only in the values of their letters.

    without: groups of weights that other stages have.
    """
    sizes = setup.batch, setup.sequence, model.width, model.heads, model.kv_heads, model.ffn_width, model.vocabulary
    trivial = tuple(size == 1 for size in (*sizes, model.experts, model.experts_per_token, model.expert_width))
    if (parts := setup.mesh.tensor) > 1:
        trivial += tuple(size == parts for size in (*sizes[1:], model.expert_width, model.learned_positions))
    head = (
        model.head_width % 8,
        model.head_width % 4,
        min(model.head_width, 3),
        min(model.turning, 3),
        model.heads == model.kv_heads,
        masked := not model.family and 0 < model.window <= setup.sequence,
        masked and setup.sequence % MASK_MULTIPLE > 0,
    )
    features = (
        *_features(model), model.family, model.activation.removesuffix("_tanh"), model.experts > 0, model.positions > 0,
    )  # fmt: skip
    switches = (
        *_switches(setup), setup.dropout > 0, min(setup.shards, 2), min(setup.replicas, 2), setup.gpus > 1, setup.accumulation > 1,
        _form(setup.mesh, setup.optimizer in COMMON_OPTIMIZERS), _laid(model, setup),
    )  # fmt: skip
    return trivial, head, features, switches, _beside(model, setup), _thresholds(model, setup, without)


def _laid(model, setup):
    """Which gaps there are between the weights of FSDP1's units, and which of the weights the GPU has a part of."""
    if setup.fsdp_version != 1:
        return ()
    rows = [(weight,) for weight in learned(model) if weight.count and layers(model)[weight.group]]
    return tuple(layout.form for _, layout in layouts(model, rows, DTYPE_BYTES[setup.dtypes.compute], setup.shards))


def _beside(model, setup):
    """What adapters decide: their names and data types, whether the rank is 1, whether there is dropout."""
    lora = setup.adapters
    if lora is None:
        return ()
    names = tuple(w.name for w in adapters(model, lora.rank, lora.takes))
    return names, lora.dtype, setup.base_dtype, lora.rank == 1, lora.dropout > 0


def _thresholds(model, setup, without):
    """Which states of an 8-bit optimizer are quantized and which are paged, by the sizes of the weights."""
    algorithm = OPTIMIZERS[setup.optimizer].algorithm
    if algorithm not in ("adam8bit", "torchao"):
        return ()
    lora = setup.adapters
    trained = adapters(model, lora.rank, lora.takes) if lora else [w for w in learned(model) if w.count]
    shapes = [weight.shape for weight in trained]
    if setup.sharding == "zero1":  # one share, and one of experts that are divided
        flat = _flat(model, setup, without)
        shapes = [
            (-(-flat["P"] // setup.shards),),
            *[(-(-flat["P_e"] // setup.expert_shards),)] * (setup.mesh.expert > 1),
        ]
    elif setup.fsdp:
        shapes = [(-(-shape[0] // setup.shards), *shape[1:]) for shape in shapes]
    if algorithm == "torchao":
        name = setup.optimizer
        return tuple((quantized(name, prod(shape)), made(name, shape)) for shape in shapes)
    return tuple(tuple(prod(shape) >= size for size in (QUANTIZED, PAGED)) for shape in shapes)


_COURSES: OrderedDict = OrderedDict()
#: Courses that are remembered: each is some hundreds of operations.
_MOST = 512


def trace(model, setup, rank=0, make=None, beside=()) -> Course:
    """The course of one GPU's step, to be read with `letters(model, setup, rank=rank)`. Equal structures share one.

    Args:
        make: makes the step; by default a `Step`, or of a loop of its own a `LoopStep`. beside: what decides its form besides.
    """
    mesh = setup.mesh
    if mesh.pipeline > 1:
        stages = StagePlan(model, setup, rank, Blocks, chunked)
        part, without = part_of(model, setup, rank)
        key = structure(part, setup, without), stages.key, _divided(model, setup)
        return _shared(key, lambda: PipelineStep(model, setup, rank, stages), stages.loops)
    plan, place = Plan(model, setup), mesh.rank(rank, setup.data)["context"]

    def step():
        turns = plan.loops["batch"].turns, plan.stepped
        kind = make or (LoopStep if setup.looped else Step)
        return kind(model, setup, plan.segments, plan.chunks, *turns, place, plan.dense)

    return _shared((structure(model, setup), plan.key, place, _divided(model, setup), beside), step, plan.loops)


def _divided(model, setup):
    """What else decides the form where GPUs share sequences, stages or experts: which pieces have one element."""
    mesh, found = setup.mesh, ()
    if mesh.context * mesh.pipeline > 1:
        found = setup.sequence == 2 * mesh.context, setup.own_sequence == mesh.tensor
    if mesh.rotation == "ulysses":
        heads, keys, parts = model.heads // mesh.tensor, model.kv_heads // mesh.tensor, mesh.context
        found += heads == parts, (keys > parts) - (keys < parts), heads == max(keys, parts), setup.own_sequence == 1
    if mesh.expert > 1:
        trivial = model.experts == mesh.expert, received(model, setup) == 1
        found += *trivial, min(setup.expert_shards, 2), along(model, setup)
    return found


@contextmanager
def _uncollected():
    """Switch off Python's cycle collector: a trace makes few cycles, and each search goes through all courses."""
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
            rest, host, operations = step.rest(), step.host(), step.run()
            rest += left(operations[: step.first], loops)
            items = nested(stretched(operations, loops)[step.first :], loops)
            _COURSES[key] = Course(items, rest, host, PARTS + SHARED_PARTS * step.setup.distributed)
        while len(_COURSES) > _MOST:
            _COURSES.popitem(last=False)
    _COURSES.move_to_end(key)
    return _COURSES[key]
