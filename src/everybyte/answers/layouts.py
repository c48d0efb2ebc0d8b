"""Which meshes of GPUs a model can train on: what each holds, what it sends, and what its step waits for."""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from itertools import product

from .. import units
from ..allocator import Reserved, Settings, settings
from ..ask.choices import DTYPE_BYTES, SHARDINGS
from ..ask.mesh import Mesh, divided
from ..ask.schedules import SCHEDULES, cut
from ..ask.setup import Setup
from ..catalog import Gpu, Model
from ..catalog.weights import ENDS, weights
from ..common import checks
from ..common.tables import Table, picked
from ..rules import LAYOUT, check
from ..theory.budget import Budget, budget, heaviest, heavy, not_derived
from . import throughput
from .communicators import communicators, taken
from .headroom import PLAYED, PYTORCH, ROUNDING, Headroom, computes, kept_free
from .rates import MEMORY, TOGETHER, Load
from .work import held, phase_work, short_of, standing

#: What a step does, one after another, in the order of the table; where there are experts, `expert` too.
TERMS = ("arithmetic", "attention", "memory", "launch", "tensor", "context", "pipeline", "data", "idle")
#: Those that are matrix products.
COMPUTED = ("arithmetic", "attention")
#: Sequences of one micro-batch, what is recomputed, and how far each dimension goes.
BATCHES, CHECKPOINTINGS = (1, 2, 4, 8, 16), ("none", "operations", "full")
MOST_PIPELINE, MOST_CONTEXT = 16, 16
#: Tokens that a part of a sequence has at least: with fewer a GPU waits for keys and values longer than it computes.
LEAST = 4096
#: Layouts that are shown where nobody says how many.
SHOWN = 8


@dataclass(frozen=True, eq=False)
class Layout:
    """One way to train on all GPUs.

    Attributes:
        model, gpu: the run. setup: with its mesh, micro-batch and checkpointing. usable: bytes for tensors, beside NCCL's communicators.
        terms: part of `TERMS`, of mixtures `expert` too -> seconds of one optimizer step.
        room: bytes for PyTorch's allocator; None where it is not simulated. configuration: as `PYTORCH_ALLOC_CONF`.
    """

    model: Model
    setup: Setup
    gpu: Gpu
    usable: int
    terms: dict[str, float]
    room: int | None = None
    configuration: str = ""

    @property
    def name(self) -> str:
        """In few words: what divides, the micro-batch, what is recomputed."""
        setup, mesh = self.setup, self.setup.mesh
        sizes = {"PP": mesh.pipeline, "CP": mesh.context, "TP": mesh.tensor, "EP": mesh.expert}
        said = " ".join(f"{short} {size}" for short, size in sizes.items() if size > 1) or "FSDP alone"
        again = "" if setup.checkpointing == "none" else f", {setup.checkpointing}"
        return f"{said}, batch {setup.batch}{again}"

    @property
    def seconds(self) -> float:
        """Of one step as computed (`priced`): what layouts are ordered by."""
        return sum(self.terms.values())

    @property
    def range(self) -> tuple[float, float]:
        """The least and the most seconds that a step may take: `seconds` as far off as real steps were, `throughput.between`."""
        low, high = throughput.between(self.setup, self.terms)
        return low * self.seconds, high * self.seconds

    @property
    def waits_for(self) -> str:
        """The longest part but arithmetic and attention."""
        return max((name for name in self.terms if name not in COMPUTED), key=lambda name: self.terms[name])

    @cached_property
    def heaviest(self) -> Budget:
        """Of the GPU that needs the most, in blocks of 512 bytes."""
        return heaviest(self.model, self.setup, ROUNDING, _counted)

    @property
    def peak(self) -> int:
        """The most that one GPU needs, bytes."""
        return self.heaviest.peak

    @property
    def fits(self) -> bool:
        """Whether every GPU holds its part by its peak, and the allocator of the one with the highest peak does not run out."""
        steps = (_counted(self.model, self.setup, rounding=ROUNDING, rank=r) for r in heavy(self.model, self.setup))
        return all(step.peak <= self.usable for step in steps) and not (self.played and self.played.failed)

    @cached_property
    def _short(self) -> Budget:
        """Of the GPU with the highest peak, a step with as few micro-batches as tell it: in a pipeline that runs one forward and one
        backward in turn, two more than there are stages."""
        setup, stages = self.setup, self.setup.mesh.pipeline
        few = short_of(setup) if stages == 1 else setup.replace(accumulation=min(setup.accumulation, stages + 2))
        return _counted(self.model, few, rounding=ROUNDING, rank=self.heaviest.rank)

    @property
    def beyond(self) -> int:
        """Bytes that stand for the micro-batches that are not played: a stage has a buffer to receive each."""
        return self.peak - self._short.peak

    @cached_property
    def played(self) -> Reserved | None:
        """What the allocator makes of the GPU with the highest peak, `beyond` apart; None where it is not simulated.

        Weights come as they stay. Of many micro-batches a few are played.
        """
        if self.room is None:
            return None
        return self._short.on(self.gpu, self.configuration, self.room - self.beyond, steps=PLAYED, whole=False)

    @property
    def nccl(self) -> int:
        """Bytes that NCCL's communicators take of each GPU."""
        return taken(communicators(self.setup, self.gpu), self.gpu)

    @property
    def reserved(self) -> int | None:
        """Bytes that the allocator reserves; None where it is not simulated, or runs out."""
        return None if self.played is None or self.played.failed else self.played.reserved + self.beyond

    @property
    def tokens(self) -> float:
        """Tokens a second and GPU, in the computed time."""
        return tokens_of(self.setup) / self.setup.gpus / self.seconds

    def torchtitan(self) -> str:
        """The layout as torchtitan's configuration has it: names of its `Parallelism`, `Training` and `ActivationCheckpoint`."""
        setup, mesh = self.setup, self.setup.mesh
        piped, mode = mesh.pipeline > 1, setup.checkpointing.replace("operations", "selective")
        parallelism: dict[str, object] = {
            "data_parallel_replicate_degree": setup.replicas,
            "data_parallel_shard_degree": setup.data // setup.replicas,
            "context_parallel_degree": mesh.context,
            "tensor_parallel_degree": mesh.tensor,
            "pipeline_parallel_degree": mesh.pipeline,
        }
        if self.model.experts:
            parallelism["expert_parallel_degree"] = mesh.expert
        if mesh.expert > 1 and mesh.tensor > 1:
            parallelism["expert_tensor_parallel_degree"] = mesh.tensor
        if piped:
            parallelism["pipeline_parallel_schedule"] = f'"{SCHEDULES[mesh.schedule].pytorch}"'
            parallelism["pipeline_parallel_microbatch_size"] = setup.batch
        tables: dict[str, dict[str, object]] = {
            "training": {
                "local_batch_size": setup.batch * (setup.accumulation if piped else 1),
                "global_batch_size": setup.batch * setup.accumulation * setup.data, "seq_len": setup.sequence,
            },
            "parallelism": parallelism,
            "activation_checkpoint": {"mode": f'"{mode}"'},
        }  # fmt: skip
        lines = ([f"[{name}]", *(f"{key} = {value}" for key, value in said.items())] for name, said in tables.items())
        return "\n\n".join(map("\n".join, lines))

    def deepspeed(self) -> dict:
        """The layout as DeepSpeed's configuration has it; ValueError for a dimension that its file does not name."""
        setup, mesh = self.setup, self.setup.mesh
        for name in ("pipeline", "context", "expert"):
            if (size := getattr(mesh, name)) > 1:
                why = f"{name} {size} is set in DeepSpeed's code, not in its file"
                raise ValueError(f"Layout.deepspeed: {why}; allowed: {name} 1, or Layout.torchtitan")
        said = {
            "train_micro_batch_size_per_gpu": setup.batch, "gradient_accumulation_steps": setup.accumulation,
            "zero_optimization": {"stage": SHARDINGS.index(setup.sharding)}, "bf16": {"enabled": setup.dtypes.compute == "bf16"},
        }  # fmt: skip
        said |= {"fp16": {"enabled": True}} if setup.dtypes.compute == "fp16" else {}
        return said | ({"tensor_parallel": {"autotp_size": mesh.tensor}} if mesh.tensor > 1 else {})

    def as_dict(self) -> dict:
        """As JSON holds it: bytes and seconds."""
        return {
            "setup": self.setup.as_dict(), "peak": self.peak, "reserved": self.reserved, "seconds": round(self.seconds, 6),
            "range": [round(value, 6) for value in self.range],
            "terms": {name: round(value, 6) for name, value in self.terms.items()},
        }  # fmt: skip

    def row(self) -> list:
        """Of the table."""
        setup, mesh = self.setup, self.setup.mesh
        return [
            mesh.pipeline, setup.data, mesh.context, mesh.tensor, *[mesh.expert] * bool(self.model.experts), setup.batch, setup.accumulation, setup.checkpointing,
            units.text(self.peak), "–" if self.reserved is None else units.text(self.reserved), units.text(self.nccl), "{:.1f}–{:.1f} s".format(*self.range), f"{sum(self.terms[name] for name in COMPUTED) / self.seconds:.0%}", self.waits_for,
        ]  # fmt: skip


COLUMNS = (
    "pipeline", "data", "context", "tensor", "expert", "micro-batch", "of them", "checkpointing", "peak", "reserved", "NCCL", "step",
    "arithmetic", "then waits for",
)  # fmt: skip


@dataclass(frozen=True, eq=False)
class Layouts:
    """Layouts of one run, in order of their time.

    Attributes:
        model, setup, gpu: as asked. usable: bytes for tensors and NCCL's communicators. found: those that fit, by their computed time.
        tried: how many were priced. configuration: `PYTORCH_ALLOC_CONF`. small: those looked at that do not fit, by their peak or as the
            allocator is simulated; hopeless: those whose weights and kept activations alone
            do not. refused: why -> how many are not derived: the first of them, and others that differ in its numbers.
    """

    model: Model
    setup: Setup
    gpu: Gpu
    usable: int
    found: list[Layout]
    tried: int
    small: list[Layout]
    hopeless: list[Layout]
    refused: dict[str, int]
    configuration: str = ""

    @property
    def best(self) -> Layout | None:
        """The one that fits with the least computed time; None for none."""
        return self.found[0] if self.found else None

    @property
    def rivals(self) -> list[Layout]:
        """Those found that may be as fast as the best: their ranges overlap its own. Without any, it is the fastest."""
        return [one for one in self.found[1:] if one.range[0] <= self.found[0].range[1]]

    @property
    def binding(self) -> str:
        """What keeps the best from being faster: `memory`, where a faster layout does not fit, or what it waits for."""
        faster = (layout for layout in self.small + self.hopeless if self.best and layout.seconds < self.best.seconds)
        return "memory" if not self.best or any(faster) else self.best.waits_for

    def points(self) -> list[tuple[str, float, int]]:
        """(name, seconds, bytes) of all that were looked at, as `draw.fronts` takes them."""
        return [(one.name, one.seconds, one.peak) for one in self._looked]

    @property
    def reserved(self) -> list[int | None]:
        """Bytes that the allocator reserves for each of `points`; None for one that does not run. Not simulated: the peak."""
        return [(one.peak if one.room is None else one.reserved) if one.fits else None for one in self._looked]

    @property
    def _looked(self):
        return sorted(self.found + self.small, key=lambda one: one.seconds)

    def table(self) -> Table:
        """Those that fit; of each the range of its step's time."""
        run = f"{self.model.name} on {self.setup.gpus:,} × {self.gpu.name}, {tokens_of(self.setup):,} tokens a step"
        columns = [name for name in COLUMNS if self.model.experts or name != "expert"]
        run += f", {units.text(self.usable)} usable, NCCL's communicators among it"
        run += f"; reserved as simulated with {self.configuration or PYTORCH}"
        return Table(columns, [one.row() for one in self.found], run)

    def report(self) -> str:
        """The table, and under it what binds and what was left out."""
        lines = [f"none of {self.tried} layouts fits {units.text(self.usable)}"]
        if self.best:
            lines = [repr(self.table()), f"what keeps the first from being faster: {self.binding}", self._fastest()]
        return "\n".join([*lines, *(f"not derived, {n} layouts: {why}" for why, n in self.refused.items())])

    def _fastest(self):
        """Whether the first is the fastest, in words."""
        if not self.rivals:
            return "the first is the fastest" + " of those found" * (len(self.found) > 1)
        low, high = throughput.between(self.found[0].setup, self.found[0].terms)
        return (
            f"which of the first {len(self.rivals) + 1} is the fastest their times do not tell: real steps took {low} to {high} times "
            "what is computed"
        )

    __repr__ = report

    def _repr_html_(self):
        return self.table()._repr_html_() if self.found else None

    def as_dict(self) -> dict:
        """As JSON holds it."""
        found = {"found": [layout.as_dict() for layout in self.found]}
        return picked(self, "usable configuration tried binding refused") | found


def tokens_of(setup: Setup) -> int:
    """Tokens that one optimizer step sees on all GPUs."""
    return setup.batch * setup.accumulation * setup.data * setup.sequence


def layouts(
    model: Model,
    setup: Setup,
    gpu: Gpu | str,
    headroom: Headroom | None = None,
    most: int = SHOWN,
    configuration: Settings | str = "",
) -> Layouts:
    """The meshes, micro-batches and checkpointings with which a model trains on `setup.gpus`, by their computed time.

    A step sees as many tokens as the setup's does. Data parallelism is FSDP: weights are gathered for each micro-batch, or in a
    pipeline once for all. Time is matrix products, attention and bytes through the GPU's memory at measured shares of its data sheet's rates (`rates`), and what each
    dimension sends by the slowest link that it crosses (`Gpu.ring`), one after another, but that what FSDP sends hides behind what its phase
    computes (`priced`); a pipeline is idle for (P − 1) / m of it. Published runs took 0.85 to 1.15 times that, with sequences of more than 4,096
    tokens 0.9 to 1.4 times (`throughput`), so ranges are shown; one of them had tensor parallelism, one a pipeline, none a ring. Tensor
    parallelism stays within a node, and a part of a sequence has `LEAST` tokens. Of mixtures routers are balanced. Memory is
    `budget`'s, of each stage and place of a ring; and the allocator of the GPU that needs the most is simulated.

    Args:
        setup: its mesh, batch, accumulation, checkpointing and sharding say no more than how many tokens a step sees.
        most: how many to find. configuration: `PYTORCH_ALLOC_CONF`, with which the allocator is simulated: by default PyTorch's own.

    Raises:
        ValueError: for bad input, an unknown network, and where no layout of the model's is derived.
    """
    checks.kind("layouts", "model", model, Model)
    checks.kind("layouts", "setup", setup, Setup)
    setup = setup.of(model.own)
    checks.whole("layouts", "most", most, 1, 1000)
    check(LAYOUT, setup)
    headroom = kept_free("layouts", headroom)
    gpu = computes(setup, gpu, rates=True)
    alike, waiting = {}, []
    chosen = settings(configuration).text()

    def left_out(why):
        alike.setdefault(re.sub(r"\d+", "", why), []).append(why)

    for changed in candidates(model, setup, gpu, left_out):
        if why := _refused(model, changed):
            left_out(why)
        else:
            room = headroom.room(gpu, changed) if headroom.fragmentation is None else None
            usable = headroom.usable(gpu, changed)
            waiting.append(Layout(model, changed, gpu, usable, priced(model, changed, gpu), room, chosen))
    refused = {first: 1 + len(others) for first, *others in alike.values()}
    if not waiting:
        first = next(iter(refused), f"no mesh divides {model.name} and {setup.gpus} gpus")
        raise ValueError(f"layouts.setup: {first}")
    sorts: dict[str, list[Layout]] = {"found": [], "small": [], "hopeless": []}
    for layout in sorted(waiting, key=lambda one: (one.seconds, one.setup.mesh.size)):
        hopeless = at_least(model, layout.setup) > layout.usable
        sorts["hopeless" if hopeless else "found" if layout.fits else "small"].append(layout)
        if len(sorts["found"]) == most:
            break
    usable, tried = headroom.usable(gpu), len(waiting)
    return Layouts(model, setup, gpu, usable, tried=tried, refused=refused, configuration=chosen, **sorts)


def _refused(model, setup):
    """Why there is no budget, in words; None where there is one."""
    try:
        setup.check_model(model)
    except ValueError as error:
        return str(error)
    return not_derived(model, setup)


def candidates(model: Model, setup: Setup, gpu: Gpu, left_out: Callable = lambda why: None) -> Iterator[Setup]:
    """Every layout whose dimensions divide the model, the sequence, the GPUs and the tokens of a step.

    Args:
        left_out: is told why, of each that the setup does not go with.
    """
    sequences = setup.batch * setup.accumulation * setup.data
    most = (MOST_PIPELINE, MOST_CONTEXT, gpu.node)
    for pipeline, context, tensor in product(*(_divisors(setup.gpus, each) for each in most)):
        size = pipeline * context * tensor
        pieces = setup.sequence % (2 * context) == 0 and setup.sequence >= LEAST * context
        if setup.gpus % size or model.layers < pipeline or not (context == 1 or pieces):
            continue
        if any(number % tensor for number in divided(model).values()):
            continue
        data = setup.gpus // size
        shared = ("zero2" if pipeline > 1 else "zero3") if data * context > 1 else "none"
        experts = [n for n in _divisors(data * context) if n == 1 or (model.experts and model.experts % n == 0)]
        for expert, batch, checkpointing in product(experts, BATCHES, CHECKPOINTINGS):
            accumulation, left = divmod(sequences, data * batch)
            if left == 0 and accumulation >= pipeline:
                mesh = Mesh(pipeline=pipeline, context=context, tensor=tensor, expert=expert)
                named = {"mesh": mesh, "sharding": shared, "checkpointing": checkpointing, "checkpoint_every": 2}
                try:
                    changed = setup.replace(batch=batch, accumulation=accumulation, **named)
                except ValueError as error:
                    left_out(str(error))
                else:
                    yield changed


def _divisors(number, most=None):
    return [n for n in range(1, min(number, most or number) + 1) if number % n == 0]


def priced(model: Model, setup: Setup, gpu: Gpu) -> dict[str, float]:
    """Part of `TERMS`, of mixtures `expert` too -> seconds of one step of a GPU: its own work as `rates` has it, links at the data sheet's rates.

    What FSDP sends hides behind what its own phase computes, all of it: weights gathered in forward and backward, gradients
    reduced in backward. `data` is the rest, for which the step waits. Where weights stay from forward to backward (`zero2`) backward
    gathers none; in a pipeline the first micro-batch gathers, and the last reduces.

    Sources: bytes that sequence parallelism sends, Korthikanti et al. 2022, arXiv:2205.05198, section 4.2.2; the share of a pipeline's
    time that it is idle, Narayanan et al. 2021, arXiv:2104.04473, section 2.2.1.
    """
    mesh, one = setup.mesh, _alone(setup, narrowed=bool(model.experts))  # autocast leaves experts in fp32
    piped, many = mesh.pipeline > 1, setup.accumulation
    layers = max(map(len, cut(model.layers, mesh.pipeline)))  # of the longest stage, which the others wait for
    stage = layers / model.layers
    compute, slower = setup.dtypes.compute, TOGETHER if setup.gpus > 1 else 1.0
    wide = DTYPE_BYTES[compute]
    tokens = setup.batch * setup.sequence
    stream = tokens // mesh.context * model.width * wide
    again = 1 + (setup.checkpointing == "full")  # forward's sends are repeated
    passes = 2 * again + 2  # for attention and the MLP, each an all-gather and a reduce-scatter
    keys = tokens * 2 * model.kv_heads * model.head_width / mesh.tensor * wide
    passed = (again + 2) * keys  # back, gradients are twice as wide
    if mesh.rotation == "ulysses":  # queries, keys, values and results, of its own tokens; back, as many gradients
        each = 2 * model.heads + 2 * max(model.kv_heads, mesh.context * mesh.tensor)
        passed = (again + 1) * tokens // mesh.context * each * model.head_width / mesh.tensor * wide
    numbers, apart = _held(model, setup)
    does = [load.seconds(gpu, compute, setup.gpus) for load in _shares(model, one, mesh, stage)]
    sends, rate = fsdp_sends(model, setup, gpu), gpu.bandwidth * MEMORY / slower

    def ring(size, gpus, apart):
        return size * (gpus - 1) / gpus / gpu.ring(gpus, apart) if gpus > 1 else 0.0

    found = {
        **{name: many * sum(phase[name] for phase in does) for name in does[0]},
        "tensor": many * layers * passes * ring(2 * stream, mesh.tensor, 1),
        "context": many * layers * ring(passed, mesh.context, mesh.tensor),
        "pipeline": many * 2 * (stream / mesh.tensor / gpu.ring(2, setup.gpus // mesh.pipeline) if piped else 0.0),
        "data": (1 if piped else many) * sum(max(0.0, s - sum(d.values())) for s, d in zip(sends, does, strict=True)),
    } | ({"expert": 0.0} if model.experts else {})
    found["memory"] += setup.update_bytes * (numbers + apart) / setup.shards / rate
    if mesh.expert > 1:
        rows, row = tokens // mesh.context * model.experts_per_token, model.width * wide
        forwards = 1 + (setup.checkpointing != "none")  # rows that come are no product's: they come again
        travels = rows * ((2 * row + 8) * forwards + 2 * row)  # with each row, whom it visits
        found["expert"] = many * layers * _exchanged(travels, mesh.expert, mesh.tensor, gpu)
        # Each way rows come, and are put in another order; of weights' gradients those of its own experts are made.
        copies, spared = layers * 4 * rows * row * (forwards + 1), apart * (1 - 1 / mesh.expert) * wide
        found["memory"] += many * 2 * (copies - spared) / rate
    found["idle"] = sum(found.values()) * (mesh.pipeline - 1) / (many * mesh.stages)
    return found


def _shares(model, one, mesh, stage):
    """What a GPU does of a batch's forward, and of its backward: its stage's part, which its group divides, but for what Python starts.

    Parts of a sequence divide what grows with the tokens; weights are cast, and have their gradients, on each GPU of the ring.
    """
    twice = _work(model, one.replace(batch=2 * one.batch)) if mesh.context > 1 else (Load(), Load())
    for load, more in zip(_work(model, one), twice, strict=True):
        standing = max(0, 2 * load.moved - more.moved) if mesh.context > 1 else 0
        moved = ((load.moved - standing) / mesh.context + standing) * stage / mesh.tensor
        yield replace(load * (stage / mesh.context / mesh.tensor), moved=moved, started=load.started * stage)


def _held(model, setup):
    """Numbers of the longest stage's weights, of its part of matrices: (those that all GPUs share, those of experts they have apart)."""
    mesh = setup.mesh
    stage = max(map(len, cut(model.layers, mesh.pipeline))) / model.layers
    apart = _experts(model) * stage / mesh.tensor if mesh.expert > 1 else 0  # of which others are gathered
    return held(model, 1) * stage / mesh.tensor - apart, apart


def fsdp_sends(model: Model, setup: Setup, gpu: Gpu) -> tuple[float, float]:
    """Seconds in which FSDP sends in one forward, and in one backward: in a pipeline in the first, and in the last."""
    mesh, stands = setup.mesh, setup.mesh.pipeline > 1 or setup.sharding == "zero2"
    numbers, apart = _held(model, setup)
    wide, narrow = DTYPE_BYTES[setup.dtypes.compute], DTYPE_BYTES[setup.dtypes.weights]
    # The root, embedding and head, stays from forward to backward.
    ends = sum(w.numbers * w.count for w in weights(model) if w.group in ENDS) / mesh.tensor

    def seconds(each, others):
        both = (each, setup.shards, mesh.tensor), (others, setup.expert_shards, mesh.tensor * mesh.expert)
        return sum(size * (n - 1) / n / gpu.ring(n, far) if n > 1 else 0.0 for size, n, far in both)

    own = apart / mesh.expert
    again = (0.0, 0.0) if stands else (wide * (numbers - ends), wide * own)
    return seconds(wide * numbers, wide * own), seconds(narrow * numbers + again[0], narrow * own + again[1])


def _experts(model):
    """Numbers of all experts' matrices."""
    own = (w.numbers * w.count for w in weights(model) if w.name in ("mlp.gate_up", "mlp.down"))
    return model.mixture_layers * sum(own)


def _exchanged(size, gpus, apart, gpu):
    """Seconds in which each of so many GPUs sends every other its part of so many bytes: to other nodes by its own network card."""
    if gpus == 1:
        return 0.0
    here = min(gpus, max(1, gpu.node // apart))
    outside = size * (gpus - here) / gpus / gpu.network if gpus > here else 0.0
    return max(size * (here - 1) / gpus / gpu.ring(here, apart), outside)


def _alone(setup, narrowed):
    """One micro-batch, on one GPU; `narrowed`: where FSDP casts, in its type, in which less is kept than under autocast."""
    precision = "bf16" if narrowed and setup.fsdp and setup.dtypes.autocast else setup.precision
    return setup.replace(gpus=1, mesh=Mesh(), sharding="none", accumulation=1, precision=precision)


_counted = lru_cache(256)(budget)
_work = lru_cache(4096)(phase_work)


@lru_cache(4096)
def _kept(model, setup):
    """Bytes of activations that one sequence's forward leaves, blocks and loss."""
    few = {"loss_chunks": min(setup.loss_chunks, setup.sequence)} if setup.loss == "chunked" else {}
    return budget(model, setup.replace(batch=1, **few)).moments["after_forward"]["activations"]


def at_least(model: Model, setup: Setup) -> int:
    """Bytes that the first stage cannot do without: its weights, gradients and states, and nine tenths of what forwards leave."""
    mesh = setup.mesh
    numbers = held(model, 1) / (mesh.pipeline * mesh.tensor) / setup.shards
    states = numbers * sum(standing(setup))
    kept = setup.batch * _kept(model, _alone(setup, narrowed=True)) / mesh.size
    return int(0.9 * (states + kept * min(setup.accumulation, mesh.pipeline)))
