"""Which switches make a step fit, and what each costs in time: computed for the run at hand, not by a fixed list."""

import heapq
from collections.abc import Iterator
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from itertools import product
from typing import Any

from .. import units
from ..allocator import Reserved, Settings, settings
from ..ask.choices import DTYPE_BYTES, LIBRARIES, OPTIMIZERS, OWN, PRECISIONS
from ..ask.setup import Setup
from ..catalog import Described, Gpu, Model
from ..catalog.weights import numbers_of
from ..common import checks
from ..common.tables import Shown, Table, picked
from ..theory.budget import budget, course_of, letters, not_derived
from .headroom import PLAYED, PYTORCH, ROUNDING, Headroom, computes, kept_free, takes
from .rates import Load
from .work import Work, made, phase_loads, sent_by, short_of, standing, updated, work

#: Precisions in the order in which they lose digits.
DIGITS = {"fp32": 0, "fp16-mixed": 1, "bf16-mixed": 1, "bf16-master": 2, "bf16": 3} | dict.fromkeys(LIBRARIES, 2)
#: Into how many chunks the loss is cut, where it is not, and how many blocks a checkpointed segment may have.
CHUNKS, SEGMENTS = (8,), (2, 4)
FULL = {"checkpointing": "full"}
#: How FSDP may divide what is offloaded.
OFFLOADED = ("zero2", "zero3")
#: The bytes that a step with nothing recomputed moves are at least this factor times those that it makes.
_MOVED = 1.8


def _more(name):
    """What a rung does more than the setup asked for, of an amount of its work."""
    return property(lambda rung: getattr(rung.work, name) - getattr(rung.first.work, name))


@dataclass(frozen=True, eq=False)
class Rung:
    """A set of switches: the setup, what it needs and what it does, worked out when it is asked for.

    Attributes:
        model, setup, gpu: the run. asked: the rung of the setup asked for; None for that one itself.
        switches: the fields that differ from the setup asked for.
        peak: bytes, and peak_at: where. host: bytes in the memory of the CPU, for each GPU. work: a `Work`.
        saved: bytes under the peak asked for. flops, moved, sent, copied, seconds: what it does more than the setup asked for;
            negative for less. share: `seconds` over those of the step asked for.
    """

    model: Any
    setup: Setup
    gpu: Gpu
    asked: "Rung | None" = None
    switches: dict = field(default_factory=dict)

    flops, moved, sent, copied = map(_more, ("flops", "moved", "sent", "copied"))
    peak = property(lambda rung: rung._top[0])
    peak_at = property(lambda rung: rung._top[1])
    saved = property(lambda rung: rung.first.peak - rung.peak)
    share = property(lambda rung: rung.seconds / rung.first.work.seconds(rung.gpu))

    @property
    def first(self) -> "Rung":
        """The rung of the setup asked for."""
        return self.asked or self

    @cached_property
    def _top(self):
        short = short_of(self.setup)
        found = course_of(self.model, short).budget(letters(self.model, short, ROUNDING), ROUNDING)
        return found.peak, found.peak_at

    @cached_property
    def host(self) -> int:
        return sum(course_of(self.model, self.setup).host(letters(self.model, self.setup)).values())

    @cached_property
    def work(self) -> Work:
        return work(self.model, self.setup)

    @cached_property
    def seconds(self) -> float:
        return self.work.seconds(self.gpu) - self.first.work.seconds(self.gpu)

    def begin(self) -> None:
        """Raise ValueError where the time of the optimizer's step is not derived."""
        updated(self.model, self.setup)

    @cached_property
    def trace(self) -> Any:
        """What the allocator is played on: of many accumulated batches, a few."""
        return budget(self.model, short_of(self.setup))

    def played(self, configuration: str, room: int | None) -> Reserved:
        """What the allocator makes of it in so many bytes; its weights come as they stay."""
        key = configuration, room
        if key not in self._played:
            self._played[key] = self.trace.on(self.gpu, configuration, room, steps=PLAYED, whole=False)
        return self._played[key]

    @cached_property
    def _played(self):
        return {}

    @property
    def _whole(self):
        """The same with nothing recomputed, and the tokens in one batch."""
        return self._at_once.replace(checkpointing="none", checkpoint_every=2)

    @property
    def _at_once(self):
        """The same with the tokens in one batch, and a plain loss."""
        setup, plain = self.setup, {"loss": "plain", "loss_chunks": 8, "optimizer_impl": None}
        return setup.replace(batch=setup.batch * setup.accumulation, accumulation=1, no_sync=False, **plain)

    @cached_property
    def _at_least(self):
        """Seconds that it takes at least, without tracing its own step."""
        return self._least.seconds(self.gpu) - self.first.work.seconds(self.gpu)

    @property
    def _least(self):
        """What it does at least."""
        moved = round(_MOVED * made(self.model, self._whole)) + updated(self.model, self.setup)[0]
        rings, copied = sent_by(self.model, self._whole)
        load = sum(phase_loads(self.model, self._at_once), Load(moved=moved))
        return Work(load, rings, copied, compute=self.setup.dtypes.compute, gpus=self.setup.gpus)

    @property
    def _states(self):
        """Bytes that stand after backward at least: weights, gradients and states."""
        setup, numbers, shards = self.setup, int(self.model.parameters), self.setup.shards
        if setup.offload == "cpu":
            return 0
        if setup.adapters:
            kept = OPTIMIZERS[setup.optimizer].states or 0
            each = (2 - setup.optimizer_in_backward) * DTYPE_BYTES[setup.trained_dtype]
            each += kept * DTYPE_BYTES[setup.state_dtype]
            frozen = numbers // 2 if setup.quantization != "none" else numbers * DTYPE_BYTES[setup.base_dtype]
            whole = frozen + numbers_of(self.model, setup.adapters) * each
            return whole // (setup.gpus if setup.sharding != "none" else 1)
        wide, (states, others) = DTYPE_BYTES[setup.dtypes.weights], standing(setup)
        if setup.fsdp:
            return numbers * (states + others) // shards
        own = numbers * states // (shards if setup.sharding == "zero1" else 1)
        return own + numbers * (others - wide * setup.distributed)

    def takes(self, setup: Setup) -> bool:
        """Whether the step is derived with other switches: not with heads that no flash kernel takes, for one."""
        try:
            setup.check_model(self.model)
            return not not_derived(self.model, setup)
        except ValueError:
            return False

    def sets(self, precisions: list[dict]) -> Iterator[list]:
        """Switches, each with its settings; then, where none of these fits, with weights divided among GPUs, or offloaded.

        There the fused optimizer reads and writes the host's memory least, and blocks checkpointed whole leave the
        fewest activations.
        """
        setup, settings = self.setup, _settings(self.setup, self.model.layers)
        yield [precisions, *settings.values()]
        settings["optimizer"] = settings["optimizer"][-1:]
        settings["checkpointing"] = [one for one in settings["checkpointing"] if one in ({}, FULL)]
        resorts = []
        if setup.gpus > setup.replicas and setup.sharding != "zero3":
            resorts.append([{"sharding": "zero3", "buckets": "copies"}])
        if setup.offload == "none":
            resorts.append([{"sharding": s, "buckets": "copies", "offload": "cpu"} for s in OFFLOADED])
        for resort, precision in product(resorts, precisions):
            yield [[precision], resort, *settings.values()]

    def text(self) -> str:
        """The switches in words."""
        said = []
        for name, value in self.switches.items():
            match name, value:
                case "batch" | "buckets" | "checkpoint_every" | "loss_chunks", _:
                    continue
                case "checkpointing", "every-k":
                    said.append(f"checkpointing every {self.setup.checkpoint_every} blocks")
                case "loss", "chunked":
                    said.append(f"loss in {self.setup.loss_chunks} chunks")
                case "accumulation", _:
                    said.append(f"accumulation {value} (batch {self.setup.batch})")
                case _:
                    said.append(f"{'optimizer' if name == 'optimizer_impl' else name} {value}")
        return ", ".join(said) or "as asked"

    @property
    def kinds(self) -> set:
        """The switches by kind: a batch and its accumulation are one, a choice and its number, what is divided and offloaded."""
        return {_KINDS.get(n, n) for n in self.switches}


_KINDS = {
    "batch": "accumulation", "checkpoint_every": "checkpointing", "loss_chunks": "loss", "offload": "sharding",
    "buckets": "sharding", "no_sync": "accumulation",
}  # fmt: skip


class Counted(Rung):
    """The same of a model that the theory does not derive: `model` is a `Counting`, whose dry runs are asked."""

    host = 0

    @cached_property
    def _top(self):
        return self.model.top(self.setup)

    @cached_property
    def work(self) -> Work:
        return self._does(self.setup, 2 * self.model.made(self.setup) + self.model.updated(self.setup))

    def _does(self, setup, moved):
        return Work(Load(plain=self.model.flops(setup), moved=moved), compute=self.setup.dtypes.compute)

    @cached_property
    def trace(self):
        return self.model.trace(self.setup)

    def begin(self):
        """What a dry run refuses, it refuses here."""
        self.model.trace(self.setup)

    @property
    def _least(self):
        return self._does(self._whole, round(_MOVED * self.model.made(self._whole)))

    @property
    def _states(self):
        return self.model.rest(self._whole)

    def takes(self, setup):
        return self.model.takes(setup)

    def sets(self, precisions):
        settings = _settings(self.setup) | {"loss": [{}], "checkpointing": [{}, FULL]}
        computed = [named for named in precisions if self.model.computes(self.setup.replace(**named))]
        yield [computed, *settings.values()]


def _cheapest(rungs, usable, runs):
    """The rung with the least time that fits and that `runs`; None where none does. Looks at no more of them than it has to."""
    waiting = [(r._at_least, 0, len(r.kinds), i, r) for i, r in enumerate(rungs) if r._states <= usable]
    heapq.heapify(waiting)
    while waiting:
        _, known, kinds, i, rung = heapq.heappop(waiting)
        if known and runs(rung):
            return rung
        if not known and rung.peak <= usable:
            heapq.heappush(waiting, (rung.seconds, 1, kinds, i, rung))
    return None


@dataclass(frozen=True, eq=False, repr=False)
class Plan(Shown):
    """Every set of switches, with its price, for one run on one GPU.

    Attributes:
        model, setup, gpu: as asked. usable: bytes for tensors. room: bytes for PyTorch's allocator; None where it is not simulated.
        rungs: one for each set of switches, the one asked for first; each is worked out when something of it is asked for.
        configuration: `PYTORCH_ALLOC_CONF`, "" for PyTorch's defaults.
    """

    model: Described
    setup: Setup
    gpu: Gpu
    usable: int
    rungs: list[Rung]
    room: int | None = None
    configuration: str = ""

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
            self._found[precision] = _cheapest(self._in(precision), self.usable, self.runs)
        return self._found[precision]

    @cached_property
    def _found(self):
        return {}

    @cached_property
    def best(self) -> Rung | None:
        """The run as asked where it fits; else the cheapest set that does. Time does not buy back digits: a precision with
        fewer of them is looked at only where none with more fits. And the host's memory comes after all of them."""
        if self.runs(self.asked):
            return self.asked
        return next((r for p in self.precisions if (r := self.cheapest(p))), None)

    @property
    def precisions(self) -> list[str]:
        """Those looked at, in the order in which they lose digits."""
        return sorted({r.setup.precision for r in self.rungs}, key=lambda p: (DIGITS[p], p != self.setup.precision))

    def show(self, rungs) -> Table:
        """Rungs as a table: peak, what is saved, and the price; of links and the host, what differs."""
        sent, copied, host = (any(getattr(r, name) for r in rungs) for name in ("sent", "copied", "host"))
        columns = [
            ("switches", True, lambda r: r.text()),
            ("peak", True, lambda r: units.text(r.peak)),
            ("saved", True, lambda r: units.text(r.saved)),
            ("FLOPs", True, lambda r: f"{r.flops / self.asked.work.flops:+.1%}"),
            ("bytes moved", True, lambda r: units.signed(r.moved)),
            ("sent", sent, lambda r: units.signed(r.sent)),
            ("over the bus", copied, lambda r: units.signed(r.copied)),
            ("on the host", host, lambda r: units.text(r.host)),
            ("moved there", host, lambda r: units.text(r.work.hosted)),
            ("time", True, lambda r: f"{r.share:+.1%}"),
            (
                "fits",
                True,
                lambda r: "fits" if self.runs(r) else "–" if r.peak > self.usable else "runs out, in pieces",
            ),
        ]
        shown = [(name, said) for name, told, said in columns if told]
        title = f"{self.model.name} on {self.gpu.name}, {units.text(self.usable)} usable"
        title += "; time without the host's own" * host
        title += f". {owned}" if (owned := self.setup.owned()) else ""
        return Table([name for name, _ in shown], [tuple(said(r) for _, said in shown) for r in rungs], title)

    def runs(self, rung: Rung) -> bool:
        """Whether a rung fits by its peak, and PyTorch's allocator does not run out, in the memory that context and others leave."""
        if rung.peak > self.usable:
            return False
        return self.room is None or not rung.played(self.configuration, self.room).failed

    def reserved(self, rung: Rung | None = None, configuration: str | None = None) -> Reserved | None:
        """What PyTorch's allocator makes of a rung, by default the best, in the memory that context and others leave; None where nothing
        fits.

        Args:
            configuration: `PYTORCH_ALLOC_CONF`, by default the plan's.
        """
        rung, chosen = rung or self.best, self.configuration if configuration is None else configuration
        return rung.played(chosen, self.room) if rung else None

    def table(self) -> Table:
        """The run as asked, and the cheapest set that fits in each precision, with what the allocator makes of those that fit."""
        found = [self.asked] + [r for p in self.precisions if (r := self.cheapest(p)) and r is not self.asked]
        shown = self.show(found)
        played = [self.reserved(rung) if rung.peak <= self.usable else None for rung in found]
        if not any(played):
            return shown
        said = ["–" if p is None or p.failed else units.text(p.reserved) for p in played]
        rows = [(*row, text) for row, text in zip(shown.rows, said, strict=True)]
        chosen = f"; simulated with {self.configuration or PYTORCH}"
        return Table([*shown.columns, "reserved, simulated"], rows, shown.caption + chosen)

    def as_dict(self) -> dict:
        """As JSON holds it."""
        ends = {"asked": _rung_as_dict(self.asked), "best": _rung_as_dict(self.best) if self.best else None}
        ladder, singles = ([_rung_as_dict(r) for r in rungs] for rungs in (self.ladder(), self.singles))
        return picked(self, "usable configuration") | ends | {"ladder": ladder, "switches": singles}


def _rung_as_dict(rung):
    names = ("switches", "peak", "peak_at", "host", "saved", "flops", "moved", "sent", "copied")
    said = {name: getattr(rung, name) for name in names}
    return said | {"hosted": rung.work.hosted, "time": round(rung.share, 6)}


def plan(
    model, setup: Setup, gpu: Gpu | str, headroom: Headroom | None = None, configuration: Settings | str = ""
) -> Plan:
    """As `own.plan`, of a `Model` whose step is derived, or of a `Counting` of another."""
    checks.kind("plan", "setup", setup, Setup)
    setup, derived = setup.of(model.own), isinstance(model, Model)
    if derived:
        setup.check_undivided("plan", "; eb.layouts finds meshes, and eb.budget takes each rank")
    if setup.offload == "activations":
        raise ValueError(
            "plan.setup: how long copies of offload 'activations' take is not derived; allowed: 'none', 'cpu'; eb.fit and eb.budget "
            "answer for its memory"
        )
    headroom = kept_free("plan", headroom)
    if derived:
        if why := not_derived(model, setup):
            raise ValueError(why)
        setup.check_model(model)
    elif setup.precision in OWN:
        raise ValueError(
            f"plan.setup: precision {setup.precision!r}, of which no rate of a GPU is known; allowed: {', '.join(PRECISIONS)}; eb.fit "
            "asks for the memory alone"
        )
    gpu = computes(setup, gpu, rates=True)
    first = (Rung if derived else Counted)(model, setup, gpu)
    first.begin()
    chosen = settings(configuration)
    room = headroom.room(gpu, setup) if headroom.fragmentation is None else None
    described, usable = model if derived else model.described, headroom.usable(gpu, setup)
    found = Plan(described, setup, gpu, usable, [], room, chosen.text())
    for switches in first.sets(list(_precisions(setup, gpu))):
        if found.rungs and found.best:
            break
        found = replace(found, rungs=[*found.rungs, *_rungs(first, switches)])
    return found


def _rungs(first, switches):
    """A rung for each combination of one setting of each switch, where that may be."""
    for chosen in product(*switches):
        try:
            setup = first.setup.replace(**{name: value for one in chosen for name, value in one.items()})
        except ValueError:  # more chunks than tokens, or loss scaling on shares
            continue
        differs = {f.name: v for f in fields(setup) if (v := getattr(setup, f.name)) != getattr(first.setup, f.name)}
        if not differs:
            yield first
        elif first.takes(setup):
            yield type(first)(first.model, setup, first.gpu, first, differs)


def _precisions(setup, gpu):
    """What the precision may become: of a library's, which is asked for by name, none."""
    yield {}
    for name in PRECISIONS:
        if DIGITS[name] > DIGITS[setup.precision] and takes(gpu, name) and not (gpu.bf16 and name == "fp16-mixed"):
            yield {"precision": name, "master_gradients": "bf16"}


def _settings(setup, layers=0):
    """Switch -> its settings, the first as asked. What is thrown already stays thrown."""
    every = [{"checkpointing": "every-k", "checkpoint_every": k} for k in SEGMENTS if k <= layers]
    chunks = [{"loss": "chunked", "loss_chunks": n} for n in CHUNKS if n <= setup.batch * setup.sequence]
    sequences = setup.batch * setup.accumulation
    smaller = [n for n in range(setup.batch - 1, 0, -1) if sequences % n == 0]
    fused = setup.optimizer_impl != "fused" and "fused" in OPTIMIZERS[setup.optimizer].impls
    more = {
        "attention": [{"attention": "flash"}] * (setup.attention != "flash"),
        "optimizer": [{"optimizer_impl": "fused"}] * fused,  # `loop` saves what `fused` does, and launches more kernels
        "loss": chunks * (setup.loss == "plain"),
        "checkpointing": [{"checkpointing": "selective"}, FULL, *every] * (setup.checkpointing == "none"),
        "batch": [{"batch": n, "accumulation": sequences // n} for n in smaller],
    }
    return {switch: [{}, *settings] for switch, settings in more.items()}
