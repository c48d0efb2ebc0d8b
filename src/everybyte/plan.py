"""Which switches make a step fit, and what each costs in time: computed for the run at hand, not by a fixed list."""

from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import product

from . import units
from .budget import budget, sections_of
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
#: Numbers that the optimizer's step reads and writes for each parameter, operation by operation, and fused in one kernel.
#: Source: PyTorch, torch/optim/adam.py, adamw.py, sgd.py; aten/src/ATen/native/cuda/fused_adam_utils.cuh.
PASSES = {"sgd": (3, 3), "momentum": (8, 5), "adam": (18, 7), "adamw": (20, 7)}


@dataclass(frozen=True)
class Work:
    """What a step does. `flops`: of its matrix products. `moved`: bytes to and from the GPU's memory.

    Every tensor that the step makes is written once and read once; the optimizer reads and writes its numbers as often as
    its implementation does; each batch after the first adds its gradients to those that are there. What GPUs send each other
    is not counted.
    """

    flops: int
    moved: int

    def seconds(self, gpu: Gpu) -> float:
        """At the data sheet's rates, one after the other: products at the dense 16-bit one, which fp32 does not reach."""
        return self.flops / gpu.bf16_flops + self.moved / gpu.bandwidth


def made(model: Model, setup: Setup) -> int:
    """Bytes of all tensors that a GPT's forward and backward make, one after another."""
    return _made(model, setup.replace(optimizer_impl="foreach"))


@lru_cache(4096)
def _made(model, setup):
    from .formulas.walking import LATER, MARKS, Shape

    ledger = sections_of(model, setup, 1)
    sizes = {name: sum(size for *_, taken, _ in lines for _, size in taken) for name, lines in ledger.items()}
    plan = Shape.of(model, setup).plan(whole=False)
    return sum(times * sizes[name] for name, _, times in plan if name.removeprefix(LATER) not in (*MARKS, "optimizer"))


def work(model: Model, setup: Setup) -> Work:
    """FLOPs and bytes moved of one step of a GPT.

    Raises:
        ValueError: where the setup does not fit the model, or its step is not derived.
    """
    from .formulas import formula

    done = ("flops.forward", "flops.backward", "flops.again.loss", "checkpoint.flops")
    batch = sum(int(formula(name).at(model, setup)) for name in done)
    weights = DTYPE_BYTES[setup.dtypes.weights]
    own = DTYPE_BYTES[setup.dtypes.master or setup.dtypes.weights]
    shares = 1 if setup.sharding == "none" else setup.gpus // setup.replicas
    passes = own * PASSES[setup.optimizer][setup.optimizer_impl == "fused"] // shares
    added = 2 * weights * (setup.accumulation - 1)  # beside the new gradient, the sum is read and written
    return Work(setup.accumulation * batch, 2 * made(model, setup) + int(model.parameters) * (passes + added))


@dataclass(frozen=True, eq=False)
class Rung:
    """A set of switches: the setup, what it needs and what it does.

    Attributes:
        switches: the fields that differ from the setup asked for. peak: bytes, and peak_at: where. work: a `Work`.
        saved: bytes under the peak asked for. flops, moved, seconds: what it does more than the setup asked for; negative
            for less. share: `seconds` over those of the step asked for.
    """

    setup: Setup
    switches: dict
    peak: int
    peak_at: str
    work: Work
    saved: int
    flops: int
    moved: int
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
            if (shown := names.get(name, name)) and name != "batch":
                said.append(f"{shown} {value}" + (f" (batch {self.setup.batch})" if name == "accumulation" else ""))
        return ", ".join(said) or "as asked"

    @property
    def kinds(self) -> set:
        """The switches by kind: a batch and its accumulation are one, and so are a choice and its number."""
        return {
            {"batch": "accumulation", "checkpoint_every": "checkpointing", "loss_chunks": "loss"}.get(n, n)
            for n in self.switches
        }


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
        fewer of them is looked at only where none with more fits."""
        if self.asked.peak <= self.usable:
            return self.asked
        return next((r for p in self.precisions if (r := self.cheapest(p))), None)

    @property
    def precisions(self) -> list[str]:
        """Those looked at, in the order in which they lose digits."""
        return sorted({r.setup.precision for r in self.rungs}, key=lambda p: (DIGITS[p], p != self.setup.precision))

    def show(self, rungs) -> Table:
        """Rungs as a table: peak, what is saved, and the price."""
        rows = [
            (
                r.text(), units.text(r.peak), units.text(r.saved), f"{r.flops / self.asked.work.flops:+.1%}",
                _signed(r.moved), f"{r.share:+.1%}", "fits" if r.peak <= self.usable else "–",
            )
            for r in rungs
        ]  # fmt: skip
        title = f"{self.model.name} on {self.gpu.name}, {units.text(self.usable)} usable"
        return Table(("switches", "peak", "saved", "FLOPs", "bytes moved", "time", "fits"), rows, title)

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
    said = {name: getattr(rung, name) for name in ("switches", "peak", "peak_at", "saved", "flops", "moved")}
    return said | {"time": round(rung.share, 6)}


def plan(model: Model, setup: Setup, gpu: Gpu | str, headroom: Headroom | None = None) -> Plan:
    """Every set of switches for a run, with what it needs and what it costs in time, tokens in a step unchanged.

    The switches: the optimizer's implementation, attention, the loss in chunks, checkpointing, smaller batches with
    accumulation, and a precision with fewer digits. Those that the setup has thrown already stay thrown.

    Raises:
        ValueError: an unknown GPU, a setup that does not fit the model, a model whose step is not derived.
    """
    if unlike := model.unlike_gpt():
        raise ValueError(unlike)
    setup.check_model(model)
    gpu = find_gpu(gpu)
    asked = budget(model, setup, BLOCK)
    first = work(model, setup)
    rungs = []
    for changed in _sets(model, setup, gpu):
        try:
            found, does = budget(model, changed, BLOCK), work(model, changed)
        except ValueError:  # a set that has no formula
            continue
        switches = {n: v for n, v in changed.as_dict().items() if v != getattr(setup, n)}
        seconds = does.seconds(gpu) - first.seconds(gpu)
        more = does.flops - first.flops, does.moved - first.moved
        share = seconds / first.seconds(gpu)
        rungs.append(
            Rung(changed, switches, found.peak, found.peak_at, does, asked.peak - found.peak, *more, seconds, share)
        )
    return Plan(model, setup, gpu, (headroom or Headroom()).usable(gpu), rungs)


def _sets(model, setup, gpu):
    """Every set of switches, the setup itself first."""
    for precision, attention, impl, loss, checkpointing, batches in product(
        _precisions(setup, gpu),
        _attentions(setup),
        _implementations(setup),
        _losses(setup),
        _checkpointings(model, setup),
        _batches(setup),
    ):
        try:
            changed = setup.replace(**precision, **attention, **impl, **loss, **checkpointing, **batches)
            changed.check_model(model)
        except ValueError:  # more chunks than tokens, or heads that no flash kernel takes
            continue
        yield changed


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
