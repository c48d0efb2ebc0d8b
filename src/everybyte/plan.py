"""Which switches make a step fit, and what each costs in time: computed for the run at hand, not by a fixed list."""

from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import product

from . import units
from .budget import budget, not_derived, sections_of
from .catalog import Gpu, Model
from .fit import BLOCK, Headroom, find_gpu
from .setup import DTYPE_BYTES, Setup
from .tables import Table

#: Precisions in the order in which they lose digits, and whether the GPU must know bf16.
DIGITS = {
    "fp32": (0, False),
    "fp16-mixed": (1, False),
    "bf16-mixed": (1, True),
    "bf16-master": (2, True),
    "bf16": (3, True),
}
#: Into how many chunks the loss is cut, where it is not, and how many blocks a checkpointed segment may have.
CHUNKS, SEGMENTS = (8,), (2, 4)
#: How FSDP may divide what is offloaded.
OFFLOADED = ("zero2", "zero3")
#: Numbers that the optimizer's step reads and writes for each parameter, operation by operation, and fused in one kernel.
#: Source: PyTorch, torch/optim/adam.py, adamw.py, sgd.py; aten/src/ATen/native/cuda/fused_adam_utils.cuh.
PASSES = {"sgd": (3, 3), "momentum": (8, 5), "adam": (18, 7), "adamw": (20, 7)}


@dataclass(frozen=True)
class Work:
    """What a step does on each GPU.

    Every tensor that the step makes is written once and read once; the optimizer reads and writes its numbers as often as
    its implementation does; each batch after the first adds its gradients to those that are there.

    Attributes:
        flops: of its matrix products, and compute: in which data type. moved: bytes to and from the GPU's memory.
        sent: bytes to the other GPUs, by collectives that go round a ring. copied: bytes over the bus, from the host and to it.
        hosted: bytes to and from the host's memory, where gradients add up and the optimizer works there.
    """

    flops: int
    moved: int
    sent: int = 0
    copied: int = 0
    hosted: int = 0
    compute: str = "bf16"

    def seconds(self, gpu: Gpu) -> float:
        """At the data sheet's rates, one after the other: with whatever overlaps, a step that reached them would take less.

        What is sent takes the link to the other GPUs, as if all of them were on it; where there is none, the host's. What the
        host does is not in it, as no GPU's data sheet says how fast that is.
        """
        links = self.sent / (gpu.peer_link or gpu.host_link) + self.copied / gpu.host_link
        return self.flops / gpu.flops(self.compute) + self.moved / gpu.bandwidth + links


def made(model: Model, setup: Setup) -> int:
    """Bytes of all tensors that forward and backward make on a GPU, one after another."""
    return _made(model, setup.replace(optimizer_impl="foreach"))


@lru_cache(4096)
def _made(model, setup):
    from .formulas.sharding import Kind
    from .formulas.walking import LAST, LATER, MARKS, Shape

    ledger, copies, more = sections_of(model, setup, 1), (), 0
    if setup.fsdp:  # of what is copied and cast to be gathered, one after another, the ledger has the most that lives
        gathered, types = _gathered(model, setup), setup.dtypes
        away, cast = setup.offload == "cpu", types.autocast
        more = gathered * (away and cast)
        if Kind.of(setup).alone:
            copies = ("root cast", "block cast", "model cast")
            more = gathered * away + gathered * DTYPE_BYTES[types.compute] // DTYPE_BYTES[types.weights] * cast
    sizes = {
        section: sum(size for _, name, taken, _ in lines if name not in copies for _, size in taken)
        for section, lines in ledger.items()
    }
    plan = Shape.of(model, setup).plan(whole=False)
    other = {*MARKS, "optimizer"}
    return more + sum(
        n * sizes[name] for name, _, n in plan if name.removeprefix(LATER).removeprefix(LAST) not in other
    )


def _again(setup):
    """What a formula for units of blocks has to be told of one unit: it gathers nothing again."""
    return {"sharded_weights": 0} if setup.sharding_units == "model" else {}


def _gathered(model, setup):
    """Bytes of a GPU's shares, as they are stored, each time FSDP gathers a unit."""
    from .formulas import formula

    return int(formula("fsdp.to_gpu").at(model, setup, **_again(setup)))


def work(model: Model, setup: Setup) -> Work:
    """What one step does.

    Raises:
        ValueError: where the setup does not fit the model, or its step is not derived.
    """
    from .formulas import formula

    def at(*names, **values):
        return sum(int(formula(name).at(model, setup, **values)) for name in names)

    batch = at("flops.forward", "flops.backward", "flops.again.loss", "checkpoint.flops")
    weights = DTYPE_BYTES[setup.dtypes.weights]
    own = DTYPE_BYTES[setup.dtypes.master or setup.dtypes.weights]
    held = added = int(model.parameters)  # numbers that the optimizer has, and that gradients are
    sent = copied = 0
    if setup.fsdp:
        held = added = at("fsdp.model.share")
        sent = at("fsdp.sent", **_again(setup))
        copied = _gathered(model, setup) + at("fsdp.to_host") if setup.offload == "cpu" else 0
    elif setup.distributed:
        held = -(-held // setup.gpus) if setup.sharding == "zero1" else held
        sent = at("zero.sent")  # once, whatever the number of batches
    adding = setup.accumulation - (setup.sharding != "zero1")  # there the first batch, too, finds a buffer
    # Beside the new gradient, the sum is read and written.
    states = own * PASSES[setup.optimizer][setup.optimizer_impl == "fused"] * held + 2 * weights * adding * added
    here, there = (0, states) if setup.offload == "cpu" else (states, 0)
    moved = 2 * made(model, setup) + here
    return Work(setup.accumulation * batch, moved, sent, copied, there, setup.dtypes.compute)


@dataclass(frozen=True, eq=False)
class Rung:
    """A set of switches: the setup, what it needs and what it does.

    Attributes:
        switches: the fields that differ from the setup asked for. peak: bytes, and peak_at: where. host: bytes in the memory
            of the CPU, for each GPU. work: a `Work`.
        saved: bytes under the peak asked for. flops, moved, sent, copied, seconds: what it does more than the setup asked for;
            negative for less. share: `seconds` over those of the step asked for.
    """

    setup: Setup
    switches: dict
    peak: int
    peak_at: str
    host: int
    work: Work
    saved: int
    flops: int
    moved: int
    sent: int
    copied: int
    seconds: float
    share: float

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
    "buckets": "sharding",
}  # fmt: skip


@dataclass(frozen=True, eq=False)
class Plan:
    """Every set of switches, with its price, for one run on one GPU.

    Attributes:
        model, setup, gpu: as asked. usable: bytes for tensors. rungs: one for each set of switches, the one asked for first.
    """

    model: Model
    setup: Setup
    gpu: Gpu
    usable: int
    rungs: list[Rung]

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
        return next((r for r in self.ladder(precision) if r.peak <= self.usable), None)

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

    def table(self) -> Table:
        """The run as asked, and the cheapest set that fits in each precision."""
        found = [self.asked] + [r for p in self.precisions if (r := self.cheapest(p)) and r is not self.asked]
        return self.show(found)

    def as_dict(self) -> dict:
        """As JSON holds it."""
        return {
            "usable": self.usable,
            "asked": _rung_as_dict(self.asked),
            "best": _rung_as_dict(self.best) if self.best else None,
            "ladder": [_rung_as_dict(r) for r in self.ladder()],
            "switches": [_rung_as_dict(r) for r in self.singles],
        }

    def __repr__(self):
        return repr(self.table())

    def _repr_html_(self):
        return self.table()._repr_html_()


def _signed(size):
    return ("+" if size >= 0 else "−") + units.text(abs(size))


def _rung_as_dict(rung):
    names = ("switches", "peak", "peak_at", "host", "saved", "flops", "moved", "sent", "copied")
    said = {name: getattr(rung, name) for name in names}
    return said | {"hosted": rung.work.hosted, "time": round(rung.share, 6)}


def plan(model: Model, setup: Setup, gpu: Gpu | str, headroom: Headroom | None = None) -> Plan:
    """Every set of switches for a run, with what it needs and what it costs in time, tokens in a step unchanged.

    The switches: the optimizer's implementation, attention, the loss in chunks, checkpointing, smaller batches with
    accumulation, and a precision with fewer digits. Those that the setup has thrown already stay thrown. Where no set of them
    fits, the last resorts: weights divided by FSDP, where there are several GPUs; then weights, gradients and states in the
    memory of the CPU. Of each, no more than the precision with most digits that then fits. Of a Llama these are not derived.

    Raises:
        ValueError: an unknown GPU, a setup that does not fit the model, a model whose step is not derived.
    """
    if why := not_derived(model, setup):
        raise ValueError(why)
    setup.check_model(model)
    gpu = find_gpu(gpu)
    usable = (headroom or Headroom()).usable(gpu)
    asked, first = budget(model, setup, BLOCK), work(model, setup)

    def rungs_of(sets):
        for changed in sets:
            try:
                found, does = budget(model, changed, BLOCK), work(model, changed)
            except ValueError:  # a set that has no formula
                continue
            switches = {n: v for n, v in changed.as_dict().items() if v != getattr(setup, n)}
            more = [getattr(does, name) - getattr(first, name) for name in ("flops", "moved", "sent", "copied")]
            seconds = does.seconds(gpu) - first.seconds(gpu)
            share, host = seconds / first.seconds(gpu), sum(found.host.values())
            yield Rung(
                changed, switches, found.peak, found.peak_at, host, does, asked.peak - found.peak, *more, seconds, share
            )

    precisions = list(_precisions(setup, gpu))
    rungs = list(rungs_of(_sets(model, setup, precisions)))
    for resort, precision in product(_resorts(setup), precisions):
        if any(r.peak <= usable for r in rungs):
            break
        rungs += rungs_of(_last_sets(model, setup, resort, precision))
    return Plan(model, setup, gpu, usable, rungs)


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
    forgotten whole leave least."""
    checkpointings = [c for c in _checkpointings(model, setup) if c in ({}, {"checkpointing": "full"})]
    others = (_attentions(setup), _implementations(setup)[-1:], _losses(setup), checkpointings, _batches(setup))
    return _allowed(model, setup, [precision], resort, *others)


def _allowed(model, setup, *switches):
    """The setup with each combination of one of each switch's settings, where it may be."""
    for chosen in product(*switches):
        try:
            changed = setup.replace(**{name: value for one in chosen for name, value in one.items()})
            changed.check_model(model)
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
    digits = DIGITS[setup.precision][0]
    yield {}
    for name, (fewer, bf16) in DIGITS.items():
        if fewer > digits and (gpu.bf16 or not bf16) and not (gpu.bf16 and name == "fp16-mixed"):
            yield {"precision": name, "master_gradients": "bf16"}


def _attentions(setup):
    return [{}] if setup.attention == "flash" else [{}, {"attention": "flash"}]


def _implementations(setup):
    """`loop` saves what `fused` does, and launches more kernels."""
    return [{}] if setup.optimizer_impl == "fused" else [{}, {"optimizer_impl": "fused"}]


def _losses(setup):
    tokens = setup.batch * setup.sequence
    if setup.loss == "chunked":
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
