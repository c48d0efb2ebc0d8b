"""Which switches make a step fit, and what each costs in time: computed for the run at hand, not by a fixed list."""

import heapq
from dataclasses import dataclass, field
from functools import cached_property
from itertools import product
from typing import Any, cast

from .. import units
from ..allocator import Reserved
from ..ask.setup import DTYPE_BYTES, LIBRARIES, OPTIMIZERS, OWN, PRECISIONS, Setup
from ..catalog import Described, Gpu, Model
from ..catalog.weights import numbers_of
from ..common import checks
from ..common.tables import Shown, Table
from ..theory.budget import budget, course_of, letters, not_derived
from .headroom import CONFIGURATION, ROUNDING, Headroom, check_headroom, check_precision, check_rates, find_gpu, takes
from .work import Work, made, matrix_flops, sent_by, short_of, standing, updated, work

#: Precisions in the order in which they lose digits.
DIGITS = {"fp32": 0, "fp16-mixed": 1, "bf16-mixed": 1, "bf16-master": 2, "bf16": 3} | dict.fromkeys(LIBRARIES, 2)
#: Into how many chunks the loss is cut, where it is not, and how many blocks a checkpointed segment may have.
CHUNKS, SEGMENTS = (8,), (2, 4)
#: How FSDP may divide what is offloaded.
OFFLOADED = ("zero2", "zero3")


@dataclass(frozen=True, eq=False)
class Rung:
    """A set of switches: the setup, what it needs and what it does, worked out when it is asked for.

    Attributes:
        model, setup, gpu: the run. asked: the rung of the setup asked for; None for that one itself.
        switches: the fields that differ from the setup asked for. peak: bytes, and peak_at: where. host: bytes in the memory
            of the CPU, for each GPU. work: a `Work`.
        saved: bytes under the peak asked for. flops, moved, sent, copied, seconds: what it does more than the setup asked for;
            negative for less. share: `seconds` over those of the step asked for.
        counting: dry runs, of a model that the theory does not derive; None where it does.
    """

    model: Described
    setup: Setup
    gpu: Gpu
    asked: "Rung | None" = None
    switches: dict = field(default_factory=dict)
    counting: Any = field(default=None, repr=False)

    @cached_property
    def _top(self):
        if self.counting:
            return self.counting.top(self.setup)
        model, short = cast(Model, self.model), short_of(self.setup)
        found = course_of(model, short).budget(letters(model, short, ROUNDING), ROUNDING)
        return found.peak, found.peak_at

    @property
    def peak(self) -> int:
        return self._top[0]

    @property
    def peak_at(self) -> str:
        return self._top[1]

    @cached_property
    def host(self) -> int:
        if self.counting:
            return 0
        model = cast(Model, self.model)
        return sum(course_of(model, self.setup).host(letters(model, self.setup)).values())

    @cached_property
    def work(self) -> Work:
        if self.counting:
            return _counted_work(self.counting, self.setup)
        return work(cast(Model, self.model), self.setup)

    @property
    def saved(self) -> int:
        return (self.asked or self).peak - self.peak

    @property
    def flops(self) -> int:
        return self._more("flops")

    @property
    def moved(self) -> int:
        return self._more("moved")

    @property
    def sent(self) -> int:
        return self._more("sent")

    @property
    def copied(self) -> int:
        return self._more("copied")

    def _more(self, name):
        return getattr(self.work, name) - getattr((self.asked or self).work, name)

    @cached_property
    def seconds(self) -> float:
        return self.work.seconds(self.gpu) - (self.asked or self).work.seconds(self.gpu)

    @property
    def share(self) -> float:
        return self.seconds / (self.asked or self).work.seconds(self.gpu)

    @property
    def _whole(self):
        """The same with nothing recomputed, and the tokens in one batch."""
        setup = self.setup
        return setup.replace(
            batch=setup.batch * setup.accumulation, accumulation=1, no_sync=False, loss="plain", loss_chunks=8,
            checkpointing="none", checkpoint_every=2, optimizer_impl=None,
        )  # fmt: skip

    @cached_property
    def _at_least(self):
        """Seconds that it takes at least, without tracing it: with nothing recomputed, and the tokens in one batch."""
        setup, whole = self.setup, self._whole
        if self.counting:
            least = Work(
                self.counting.flops(whole), round(1.8 * self.counting.made(whole)), compute=setup.dtypes.compute
            )
        else:
            moved = round(1.8 * made(self.model, whole)) + updated(self.model, setup)[0]
            least = Work(
                matrix_flops(self.model, setup), moved, *sent_by(self.model, whole), compute=setup.dtypes.compute
            )
        return least.seconds(self.gpu) - (self.asked or self).work.seconds(self.gpu)

    @property
    def _states(self):
        """Bytes that stand after backward at least: weights, gradients and states."""
        setup = self.setup
        if self.counting:
            return self.counting.rest(self._whole)
        if setup.offload == "cpu":
            return 0
        if setup.adapters:
            return self._adapted_states
        wide, (states, others) = DTYPE_BYTES[setup.dtypes.weights], standing(setup)
        shards = setup.shards
        numbers = int(self.model.parameters)
        if setup.fsdp:
            return numbers * (states + others) // shards
        return numbers * states // (shards if setup.sharding == "zero1" else 1) + numbers * (
            others - wide * setup.distributed
        )

    @property
    def _adapted_states(self):
        """The same of frozen weights and adapters."""
        setup, model = self.setup, cast(Model, self.model)
        kept = OPTIMIZERS[setup.optimizer].states or 0
        each = 2 * DTYPE_BYTES[setup.trained_dtype] + kept * DTYPE_BYTES[setup.state_dtype]
        frozen = int(model.parameters)
        frozen = frozen // 2 if setup.quantization != "none" else frozen * DTYPE_BYTES[setup.base_dtype]
        return (frozen + numbers_of(model, setup.adapters) * each) // (setup.gpus if setup.sharding != "none" else 1)

    def text(self) -> str:
        """The switches in words."""
        names = {"optimizer_impl": "optimizer", "checkpoint_every": "", "loss_chunks": ""}
        said = []
        for name, value in self.switches.items():
            if name == "checkpointing" and value == "every-k":
                value = f"every {self.setup.checkpoint_every} blocks"
            if name == "loss" and value == "chunked":
                value = f"in {self.setup.loss_chunks} chunks"
            if (shown := names.get(name, name)) and name not in ("batch", "buckets"):
                said.append(f"{shown} {value}" + (f" (batch {self.setup.batch})" if name == "accumulation" else ""))
        return ", ".join(said) or "as asked"

    @property
    def kinds(self) -> set:
        """The switches by kind: a batch and its accumulation are one, a choice and its number, what is divided and offloaded."""
        return {_KINDS.get(n, n) for n in self.switches}


_KINDS = {
    "batch": "accumulation", "checkpoint_every": "checkpointing", "loss_chunks": "loss", "offload": "sharding",
    "buckets": "sharding", "no_sync": "accumulation",
}  # fmt: skip


def _cheapest(rungs, usable):
    """The rung with the least time that fits; None where none does. Looks at no more of them than it has to."""
    waiting = [(r._at_least, 0, len(r.kinds), i, r) for i, r in enumerate(rungs) if r._states <= usable]
    heapq.heapify(waiting)
    while waiting:
        _, known, kinds, i, rung = heapq.heappop(waiting)
        if known:
            return rung
        if rung.peak <= usable:
            heapq.heappush(waiting, (rung.seconds, 1, kinds, i, rung))
    return None


@dataclass(frozen=True, eq=False, repr=False)
class Plan(Shown):
    """Every set of switches, with its price, for one run on one GPU.

    Attributes:
        model, setup, gpu: as asked. usable: bytes for tensors. room: bytes for PyTorch's allocator. rungs: one for each set of switches, the one asked for first;
            each is worked out when something of it is asked for.
    """

    model: Described
    setup: Setup
    gpu: Gpu
    usable: int
    rungs: list[Rung]
    room: int | None = None

    @property
    def asked(self) -> Rung:
        """The run as asked."""
        return self.rungs[0]

    @cached_property
    def singles(self) -> list[Rung]:
        """Each switch alone, the best price for a byte first; what saves nothing comes last, the cheapest of it first."""
        alone = [r for r in self.rungs if len(r.kinds) == 1]
        return sorted(alone, key=lambda r: (r.saved <= 0, r.seconds / r.saved if r.saved > 0 else r.seconds))

    def ladder(self, precision: str | None = None) -> list[Rung]:
        """The sets that nothing cheaper beats, in order of price: each needs less memory than all before it.

        Args:
            precision: by default the one asked for.
        """
        found = []
        for rung in sorted(self._in(precision or self.setup.precision), key=lambda r: (r.seconds, len(r.kinds))):
            if not found or rung.peak < found[-1].peak:
                found.append(rung)
        return found

    def _in(self, precision):
        return [r for r in self.rungs if r.setup.precision == precision]

    def cheapest(self, precision: str) -> Rung | None:
        """The cheapest set with that precision that fits; None for none."""
        if precision not in self._found:
            self._found[precision] = _cheapest(self._in(precision), self.usable)
        return self._found[precision]

    @cached_property
    def _found(self):
        return {}

    @cached_property
    def best(self) -> Rung | None:
        """The run as asked where it fits; else the cheapest set that does. Time does not buy back digits: a precision with
        fewer of them is looked at only where none with more fits. And the host's memory comes after all of them."""
        if self.asked.peak <= self.usable:
            return self.asked
        return next((r for p in self.precisions if (r := self.cheapest(p))), None)

    @property
    def precisions(self) -> list[str]:
        """Those looked at, in the order in which they lose digits."""
        return sorted({r.setup.precision for r in self.rungs}, key=lambda p: (DIGITS[p], p != self.setup.precision))

    def show(self, rungs) -> Table:
        """Rungs as a table: peak, what is saved, and the price; of links and the host, what differs."""
        columns = {
            "switches": [r.text() for r in rungs],
            "peak": [units.text(r.peak) for r in rungs],
            "saved": [units.text(r.saved) for r in rungs],
            "FLOPs": [f"{r.flops / self.asked.work.flops:+.1%}" for r in rungs],
            "bytes moved": [_signed(r.moved) for r in rungs],
            "sent": [_signed(r.sent) for r in rungs] if any(r.sent for r in rungs) else None,
            "over the bus": [_signed(r.copied) for r in rungs] if any(r.copied for r in rungs) else None,
            "on the host": [units.text(r.host) for r in rungs] if any(r.host for r in rungs) else None,
            "moved there": [units.text(r.work.hosted) for r in rungs] if any(r.host for r in rungs) else None,
            "time": [f"{r.share:+.1%}" for r in rungs],
            "fits": ["fits" if r.peak <= self.usable else "–" for r in rungs],
        }
        columns = {name: column for name, column in columns.items() if column is not None}
        title = f"{self.model.name} on {self.gpu.name}, {units.text(self.usable)} usable"
        title += "; time without the host's own" * any(r.host for r in rungs)
        return Table(tuple(columns), list(zip(*columns.values(), strict=True)), title)

    def reserved(self, rung: Rung | None = None, configuration: str = CONFIGURATION) -> Reserved | None:
        """What PyTorch's allocator makes of a rung, by default the best, in the memory that context and others leave; None on several
        GPUs, whose streams no formula tells, and where nothing fits.

        A rung is found by its peak. Where `.failed` is set here, it needs more than that: the next one, or a batch less.
        """
        rung = rung or self.best
        if rung is None or rung.setup.distributed:
            return None
        if rung.counting:
            return rung.counting.trace(rung.setup).on(self.gpu, configuration, self.room)
        return budget(cast(Model, rung.model), rung.setup).on(self.gpu, configuration, self.room)

    def table(self) -> Table:
        """The run as asked, and the cheapest set that fits in each precision, with what the allocator makes of those that fit."""
        found = [self.asked] + [r for p in self.precisions if (r := self.cheapest(p)) and r is not self.asked]
        shown = self.show(found)
        played = [self.reserved(rung) if rung.peak <= self.usable else None for rung in found]
        if not any(played):
            return shown
        said = ["–" if p is None else "runs out, in pieces" if p.failed else units.text(p.reserved) for p in played]
        rows = [(*row, text) for row, text in zip(shown.rows, said, strict=True)]
        return Table((*shown.columns, "reserved, simulated"), rows, shown.caption)

    def as_dict(self) -> dict:
        """As JSON holds it."""
        return {
            "usable": self.usable,
            "asked": _rung_as_dict(self.asked),
            "best": _rung_as_dict(self.best) if self.best else None,
            "ladder": [_rung_as_dict(r) for r in self.ladder()],
            "switches": [_rung_as_dict(r) for r in self.singles],
        }


def _signed(size):
    return ("+" if size >= 0 else "−") + units.text(abs(size))


def _rung_as_dict(rung):
    names = ("switches", "peak", "peak_at", "host", "saved", "flops", "moved", "sent", "copied")
    said = {name: getattr(rung, name) for name in names}
    return said | {"hosted": rung.work.hosted, "time": round(rung.share, 6)}


def _counted_work(counting, setup):
    """What one step does on one GPU, by dry runs."""
    moved = 2 * counting.made(setup) + counting.updated(setup)
    return Work(counting.flops(setup), moved, compute=setup.dtypes.compute)


def counted(counting, setup: Setup, gpu: Gpu | str, headroom: Headroom | None = None) -> Plan:
    """As `own.plan`, of any other model: each set of switches that it can take is counted by a dry run.

    Args:
        counting: a `deriving.planning.Counting` of the model.
    """
    if setup.precision in OWN:
        raise ValueError(
            f"plan.setup: precision {setup.precision!r}, of which no rate of a GPU is known; allowed: {', '.join(PRECISIONS)}; eb.fit "
            "asks for the memory alone"
        )
    gpu = find_gpu(gpu)
    check_precision(setup, gpu)
    check_rates(gpu, setup.gpus)
    counting.trace(setup)  # what it refuses, it refuses here
    headroom = headroom or Headroom()
    usable, room, described = headroom.usable(gpu), headroom.room(gpu), counting.described
    first = Rung(described, setup, gpu, counting=counting)
    chosen = product(
        [named for named in _precisions(setup, gpu) if counting.computes(setup.replace(**named))],
        _attentions(setup),
        _implementations(setup),
        [{}, {"checkpointing": "full"}],
        _batches(setup),
    )
    rungs = []
    for switches in chosen:
        try:
            changed = setup.replace(**{name: value for one in switches for name, value in one.items()})
        except ValueError:
            continue
        differs = {n: v for n, v in vars(changed).items() if v != getattr(setup, n)}
        if not differs:
            rungs.append(first)
        elif counting.takes(changed):
            rungs.append(Rung(described, changed, gpu, first, differs, counting))
    return Plan(described, setup, gpu, usable, rungs, room)


def plan(model: Model, setup: Setup, gpu: Gpu | str, headroom: Headroom | None = None) -> Plan:
    """As `own.plan`, of a `Model` whose step is derived."""
    checks.kind("plan", "setup", setup, Setup)
    setup.check_undivided("plan", "; eb.layouts finds meshes, and eb.budget takes each rank")
    check_headroom("plan", headroom)
    if why := not_derived(model, setup):
        raise ValueError(why)
    setup.check_model(model)
    gpu = find_gpu(gpu)
    check_precision(setup, gpu)
    check_rates(gpu, setup.gpus)
    updated(model, setup)  # refuses an optimizer whose time is not derived
    headroom = headroom or Headroom()
    usable, room, first = headroom.usable(gpu), headroom.room(gpu), Rung(model, setup, gpu)

    def rungs_of(sets):
        for changed in sets:
            switches = {n: v for n, v in vars(changed).items() if v != getattr(setup, n)}
            yield Rung(model, changed, gpu, first, switches) if switches else first

    precisions = list(_precisions(setup, gpu))
    found = Plan(model, setup, gpu, usable, list(rungs_of(_sets(model, setup, precisions))), room)
    for resort, precision in product(_resorts(setup), precisions):
        if found.best:
            break
        found = Plan(
            model, setup, gpu, usable, found.rungs + list(rungs_of(_last_sets(model, setup, resort, precision))), room
        )
    return found


def _sets(model, setup, precisions):
    """Every set of switches, the setup itself first."""
    others = (
        _attentions(setup),
        _implementations(setup),
        _losses(setup),
        _checkpointings(model, setup),
        _batches(setup),
    )
    return _allowed(model, setup, precisions, *others)


def _last_sets(model, setup, resort, precision):
    """A last resort's in one precision. Fused, the optimizer reads and writes the host's memory least; of activations, blocks
    checkpointed whole leave least."""
    checkpointings = [c for c in _checkpointings(model, setup) if c in ({}, {"checkpointing": "full"})]
    others = (_attentions(setup), _implementations(setup)[-1:], _losses(setup), checkpointings, _batches(setup))
    return _allowed(model, setup, [precision], resort, *others)


def _allowed(model, setup, *switches):
    """The setup with each combination of one of each switch's settings, where it may be."""
    for chosen in product(*switches):
        try:
            changed = setup.replace(**{name: value for one in chosen for name, value in one.items()})
            changed.check_model(model)
            if not_derived(model, changed):
                continue
        except ValueError:  # more chunks than tokens, heads that no flash kernel takes, or loss scaling on shares
            continue
        yield changed


def _resorts(setup):
    """The last resorts, each by its settings: weights divided among several GPUs; offloaded, and gathered once or twice."""
    away = [{"sharding": sharding, "buckets": "copies", "offload": "cpu"} for sharding in OFFLOADED]
    if setup.gpus > setup.replicas and setup.sharding != "zero3":
        yield [{"sharding": "zero3", "buckets": "copies"}]
    if setup.offload == "none":
        yield away


def _precisions(setup, gpu):
    yield {}
    for name, fewer in DIGITS.items():
        if name in LIBRARIES:  # which is asked for by name
            continue
        if fewer > DIGITS[setup.precision] and takes(gpu, name) and not (gpu.bf16 and name == "fp16-mixed"):
            yield {"precision": name, "master_gradients": "bf16"}


def _attentions(setup):
    return [{}] if setup.attention == "flash" else [{}, {"attention": "flash"}]


def _implementations(setup):
    """`loop` saves what `fused` does, and launches more kernels."""
    fused = setup.optimizer_impl != "fused" and "fused" in OPTIMIZERS[setup.optimizer].impls
    return [{}, {"optimizer_impl": "fused"}] if fused else [{}]


def _losses(setup):
    tokens = setup.batch * setup.sequence
    if setup.loss != "plain":
        return [{}]
    return [{}, *({"loss": "chunked", "loss_chunks": n} for n in CHUNKS if n <= tokens)]


def _checkpointings(model, setup):
    if setup.checkpointing != "none":
        return [{}]
    segments = [{"checkpointing": "every-k", "checkpoint_every": k} for k in SEGMENTS if k <= model.layers]
    return [{}, {"checkpointing": "selective"}, {"checkpointing": "full"}, *segments]


def _batches(setup):
    sequences = setup.batch * setup.accumulation
    smaller = [n for n in range(setup.batch - 1, 0, -1) if sequences % n == 0]
    return [{}, *({"batch": n, "accumulation": sequences // n} for n in smaller)]
