"""What fits a GPU: the largest batch or sequence, or the fewest GPUs, by the budget that predicts the step."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import lcm

from .. import units
from ..allocator import Reserved, Settings, settings
from ..ask.choices import LIMITS, OPTIMIZERS
from ..ask.objectives import Objective
from ..ask.setup import Setup
from ..catalog import Described, Gpu, Model, gpus
from ..common import checks
from ..common.search import beyond, fewest, largest_below, most
from ..common.tables import Shown, Table, picked, sized
from ..derivation import Derivation
from ..derivation.growing import largest as largest_size
from ..derivation.ranges import Range
from ..theory.budget import Budget, budget, heaviest, not_derived
from .headroom import EXPANDABLE, PLAYED, PYTORCH, ROUNDING, Headroom, computes, kept_free, left, takes
from .plan import Rung, plan

#: What `fit` may vary, beside the reader's own letters of a derivation; of gpus it wants the fewest, of the others the most.
VARY = ("batch", "sequence", "gpus")


@dataclass(frozen=True, eq=False, repr=False)
class Fit(Shown):
    """The most (of gpus the fewest) with which a step fits a GPU, and what keeps it from more.

    Attributes:
        model, gpu, vary: as asked. setup: as asked, with `vary` at the value found, or where nothing fits at the least
            (of gpus, where the least is missing). headroom: what is kept free of tensors; usable: bytes that are left for them.
        value: what was found; None where nothing fits.
        witness: what the step with `setup` takes, each tensor rounded up as CUDA's allocator does.
        next: the same for the next value, which does not fit; None where there is no next value.
        configuration: `PYTORCH_ALLOC_CONF`, with which the allocator is simulated: "" for PyTorch's defaults. reserved: what it makes of
            the step with `setup` in the memory that context and others leave; None where it is not simulated: of a derivation that does
            not know its model any more, and where `headroom` says what fragmentation takes.
        failed: the same of `next`, where its peak fits and the allocator runs out. again: a value beyond `next` that runs; None where none
            of those looked at does.
        expandable: the same with `expandable_segments:True`, where the reader says no configuration; else None.
    """

    model: Described
    setup: Setup
    gpu: Gpu
    vary: str
    headroom: Headroom
    usable: int
    value: int | None
    witness: Budget
    next: Budget | None
    configuration: str = ""
    reserved: Reserved | None = None
    failed: Reserved | None = None
    again: int | None = None
    expandable: "Fit | None" = None
    _steps: "_Steps" = field(default=None, kw_only=True)  # type: ignore[assignment]

    @property
    def fits(self) -> bool:
        """Whether anything fits: by its peak, and by the allocator where it is simulated."""
        return self.value is not None

    def takes(self, value: int) -> bool:
        """Whether the step with another value of `vary` fits too: by its peak, and by the allocator where it is simulated.

        Raises:
            ValueError: a value that `vary` cannot have, or that the model does not take.
        """
        steps = self._steps
        runs = self.headroom.fragmentation is not None or not steps.ends(value, self.configuration)
        return runs and steps.at(value).peak <= steps.usable(value)

    @property
    def peak(self) -> int:
        """Bytes of the peak of the step with `setup`."""
        return self.witness.peak

    @property
    def free(self) -> int:
        """Bytes between the peak and what is usable; negative where nothing fits."""
        return self.usable - self.peak

    @property
    def limit(self) -> dict:
        """What keeps it from more: the bytes that the next value, or the step itself, has too many, `at` where, and the
        largest `part` there. Of a value that ends the range, the `bound`."""
        if self.fits and self.next is None:
            return {"bound": self._bound()}
        wanted = self.next or self.witness
        parts = {name: size for name, size in wanted.parts.items() if size}
        over = self._missing if self._ended else wanted.peak - self.headroom.usable(self.gpu, wanted.setup)
        return {"over": over, "at": wanted.peak_at, "part": max(parts, key=parts.__getitem__), "parts": parts}

    @property
    def _reserves(self):
        """What the allocator reserves; None where it was not simulated, or ran out."""
        return self.reserved.reserved if self.reserved and not self.reserved.failed else None

    @property
    def _ended(self):
        """The out-of-memory error that keeps it from more, where it is the allocator's, and not the peak's."""
        played = self.failed if self.fits else self.reserved
        return played and played.failed

    @property
    def _driver_has(self):
        """Bytes that the driver has left when the allocator runs out."""
        return self.headroom.room(self.gpu, (self.next or self.witness).setup) - self._ended.reserved

    @property
    def _missing(self):
        """Bytes that the driver then has too few of."""
        return max(0, self._ended.segment - self._driver_has)

    def _bound(self):
        if self.vary == "gpus":
            return "no fewer are possible"
        if not isinstance(self.model, Model | Objective):
            return f"{self.model.name} was derived up to {self.vary} {self.value:,}"
        model = _dimensions(self.model)
        after = self._size(self.witness) + _step(self.setup, self.vary)
        if self.vary == "sequence" and self.value <= model.positions < after:
            return f"{self.model.name} ends at {model.positions:,} positions"
        if self.vary == "sequence" and self.value == _window(model):
            return (
                f"{self.model.name} has a window of {self.value:,} tokens, for which the book's reference has no mask"
            )
        return f"Setup.{self.vary} ends at {self.value:,}"

    @cached_property
    def nearest_gpu(self) -> Gpu | None:
        """The GPU of the catalog with the least memory that `setup` fits; None where there is none."""
        for gpu in sorted(gpus().values(), key=lambda gpu: gpu.memory):
            known = takes(gpu, self.setup.precision) and not gpu.unified
            if known and self.headroom.usable(gpu, self.setup) >= self.peak:
                played = self.reserved and _played(self.witness, gpu, self.configuration, self.headroom)
                if not (played and played.failed):
                    return gpu
        return None

    @cached_property
    def nearest_setup(self) -> Rung | None:
        """The cheapest `Rung` of `plan` that fits this GPU; None where there is none, or no such step is derived."""
        return plan(self.model, self.setup, self.gpu, self.headroom, self.configuration).best if self._planned else None

    @property
    def _planned(self):
        """Whether `plan` prices the step; `layouts` prices meshes."""
        if not isinstance(self.model, Model) or OPTIMIZERS[self.setup.optimizer].passes is None:
            return False
        known = self.gpu.rated and (self.gpu.network or self.setup.gpus <= self.gpu.node)
        return known and self.setup.mesh.alone and not not_derived(self.model, self.setup)

    @cached_property
    def nearest_gpus(self) -> int | None:
        """The fewest GPUs of this kind that `setup` fits with all states and weights divided; None where none do, or where
        it is divided already or such a step is not derived."""
        if self.setup.sharding != "none" or not isinstance(self.model, Model):
            return None
        try:
            whole, conf = self.setup.replace(sharding="zero3"), self.configuration
            return fit(self.model, whole, self.gpu, "gpus", self.headroom, configuration=conf).value
        except ValueError:
            return None

    def why(self) -> str:
        """In words: what limits it; where nothing fits, what is too large, and what would do."""
        said = self.limit
        if "bound" in said:
            return f"{said['bound']}; {units.text(self.free)} are left"
        if self._ended:
            return self._pieces() + (f"; {self.vary} {self.again:,} runs again" if self.again else "")
        at, over, parts = said["at"], units.text(said["over"]), said["parts"]
        share = f"{parts[said['part']] / sum(parts.values()):.0%}"
        largest = f"the largest part is {said['part']}, {units.text(parts[said['part']])} ({share})"
        if self.value is not None:
            return f"{self._after(self.value)} {over} too much, in {at}: {largest}"
        alone = [p for p, size in parts.items() if size > self.usable]
        what = f"{alone[0]} alone take {units.text(parts[alone[0]])}" if alone else largest
        return f"{self._least()} is {over} more than the {units.text(self.usable)} usable, in {at}: {what}"

    def _pieces(self):
        error = self._ended
        asked, free = units.text(error.segment), units.text(self._driver_has)
        kept, dies = units.text(error.reserved - error.allocated), self.next if self.fits else self.witness
        return (
            f"{self.vary} {self._size(dies):,} fits by its peak, and the allocator runs out: {asked} asked of the driver, "
            f"which has {free}; {kept} is kept free in pieces"
        )

    def _after(self, value):
        """The next value, with its verb."""
        step = _step(self.setup, self.vary)
        if self.vary == "gpus":
            return f"{value - step:,} GPUs are" if value - step > 1 else "1 GPU is"
        return f"{self.vary} {self._size(self.next):,} is"

    def _least(self):
        if self.vary == "gpus" and self.setup.gpus > 1:
            return f"the least that {self.setup.gpus:,} GPUs have each"
        return f"{self.vary} {self._size(self.witness):,}"

    def _size(self, step):
        """The value of `vary` in a step; a letter of a derivation's own is no field of its setup."""
        sizes = getattr(step, "sizes", {})
        return sizes[self.vary] if self.vary in sizes else getattr(step.setup, self.vary)

    def instead(self) -> list[str]:
        """In words, where nothing fits: the nearest GPU and the nearest setup that would."""
        card, rung = self.nearest_gpu, self.nearest_setup
        named = f"{card.name} ({units.text(card.memory)})" if card else "no single GPU of the catalog"
        said = [f"nearest GPU that the step would fit: {named}"]
        if self._planned:
            switches = rung.text() if rung else "none of the switches is enough"
            host = f", {units.text(rung.host)} in the host's memory" if rung and rung.host else ""
            said.append(f"nearest setup on {self.gpu.name}: {switches}{host}")
        return said

    def table(self) -> Table:
        """What was found, and why it is no more."""
        title = f"{self.model.name} on {self.gpu.name}: {self._found()}"
        kept = [(f"− {t.name}", t.bytes) for t in self.headroom.terms(self.gpu, self.setup)]
        rows = [("memory", self.gpu.memory), *kept, ("usable", self.usable)]
        rows += [(f"peak, in {self.witness.peak_at}", self.peak), left(self.free)]
        rows += [] if self._reserves is None else [("reserved, simulated", self._reserves)]
        if self.expandable and self.expandable._reserves is not None:
            more = self.expandable
            rows.append((f"reserved, {self.vary} {more.value:,} with expandable segments", more._reserves))
        return Table((title, "bytes", ""), [sized(*row) for row in rows])

    def _found(self):
        """What fits, and what expandable segments are worth."""
        said = f"{self.vary} {self.value:,} fits" if self.fits else "does not fit"
        more = self.expandable
        if more is None or more.value == self.value:
            return said + ", by its peak alone" * (self.fits and self.reserved is None)
        return f"{said}; {more.value:,} with PYTORCH_ALLOC_CONF={EXPANDABLE}"

    def said(self) -> list[str]:
        """The lines under the table: why it is no more and, where nothing fits, what would do."""
        own = [owned] if (owned := self.setup.owned()) else []
        return [self.why(), *([] if self.fits else self.instead()), *own, *self._simulated()]

    def _simulated(self):
        if self.reserved is not None:
            said = [f"Simulated with {self.configuration or PYTORCH}; not in it: what kernels take for themselves"]
            again = {"": self.reserved.allocator.retries}
            if (more := self.expandable) and more.fits and more.reserved:
                again[", with expandable segments"] = more.reserved.allocator.retries
            each = "in the steps simulated the allocator gives back what it keeps to go on, and waits for the GPU"
            many = {named: "once" if times == 1 else f"{times} times" for named, times in again.items() if times}
            return said + [f"{times} {each}{named}" for named, times in many.items() if self.fits]
        why = "the witness has no requests"
        if self.headroom.fragmentation is not None:
            why = "Headroom.fragmentation says what it keeps"
        elif self.witness.witness == "derive":
            why = f"{self.model.name} is known by its formula alone, which does not keep the order of requests"
        return [f"The allocator is not simulated: {why}"] if self.fits else []

    def as_dict(self) -> dict:
        """As JSON holds it: whole bytes."""
        said = {
            "model": {"name": self.model.name, "parameters": int(self.model.parameters)},
            "setup": self.setup.as_dict(),
            "gpu": picked(self.gpu, "name memory"),
            **picked(self, "vary fits value"),
            "headroom": {t.name: t.bytes for t in self.headroom.terms(self.gpu, self.setup)},
            **picked(self, "usable peak"),
            "peak_at": self.witness.peak_at,
            "configuration": self.configuration,
            "reserved": self._reserves,
            **picked(self, "free limit"),
            "why": self.why(),
        }
        if more := self.expandable:
            near = {"value": more.value, "peak": more.peak, "reserved": more._reserves}
            said["expandable"] = {"configuration": more.configuration} | near
        if sizes := getattr(self.witness, "sizes", {}):
            said["sizes"] = sizes
        if not self.fits:
            card, rung = self.nearest_gpu, self.nearest_setup
            near = {"gpu": card and card.name, "setup": rung and rung.setup.as_dict(), "gpus": self.nearest_gpus}
            said["nearest"] = near
        return said


def fit(
    model,
    setup: Setup,
    gpu: Gpu | str,
    vary: str = "batch",
    headroom: Headroom | None = None,
    witness: Callable = budget,
    configuration: Settings | str | None = None,
    whole: bool = False,
) -> Fit:
    """As `own.fit`, of a `Model`, an `Objective` or a `Derivation`."""
    checks.kind("fit", "setup", setup, Setup)
    headroom = kept_free("fit", headroom)
    if configuration is not None and not isinstance(configuration, str):
        checks.kind("fit", "configuration", configuration, Settings)
    chosen = settings(configuration or "")
    checks.one_of("fit", "vary", vary, [*VARY, *getattr(model, "further", "")])
    setup = setup.of(model.own)
    if isinstance(model, Derivation):
        _check_derived(model, setup)
    gpu = computes(setup, gpu)
    checks.flag("fit", "whole", whole)
    steps = _Steps(model, setup, gpu, vary, headroom, witness, whole)
    found = _found(steps, chosen.text())
    if configuration is None and found.reserved is not None:
        found = replace(found, expandable=_found(steps, EXPANDABLE))
    return found


def _found(steps, configuration):
    """The `Fit` with one configuration of the allocator."""
    shown, value, after = steps.by_peak
    reserved = failed = again = None
    if value is not None and steps.headroom.fragmentation is None:
        search = steps.fewest_that_run if steps.vary == "gpus" else steps.most_that_run
        if steps.ends(value, configuration):
            value, after, again = search(value, configuration)
            shown = value or (shown if steps.vary == "gpus" else steps.low * steps.each)
            failed = after and steps.played(after, configuration)
        reserved = steps.played(shown, configuration)
    setup = steps.setup if steps.lettered else steps.setup.replace(**{steps.vary: shown})
    return Fit(
        getattr(steps.model, "described", steps.model), setup, steps.gpu, steps.vary, steps.headroom, steps.usable(shown), value, steps.at(shown),
        None if after is None else steps.at(after), configuration, reserved, failed, again, _steps=steps,
    )  # fmt: skip


def _played(step, gpu, configuration, headroom, whole=False):
    """What the allocator makes of a step; None where it is not simulated. whole: as `Budget.on`'s."""
    if not hasattr(step, "on") or getattr(step, "counted", step) is None:
        return None
    return step.on(gpu, configuration, headroom.room(gpu, step.setup), steps=PLAYED, whole=whole)


class _Steps:
    """The steps with each value of what varies, counted and played once.

    Attributes:
        lettered: whether what varies is a letter of a derivation's own.
        each: what values are multiples of; low and high: the least and the most of these. ranges: of a derivation those for which it
            holds.
    """

    def __init__(self, model, setup, gpu, vary, headroom, witness, whole):
        self.model, self.setup, self.gpu, self.vary, self.witness = model, setup, gpu, vary, witness
        self.headroom, self.whole = headroom, whole
        self.lettered = vary in getattr(model, "further", "")
        self.each = _step(setup, vary)
        low, high = _range(model, setup, vary)
        self.low = -(-low // self.each)
        self.high = max(high // self.each, self.low)
        self.ranges = model.ranges(vary, setup) if isinstance(model, Derivation) else [Range(self.low, self.high)]
        self._counted, self._played = {}, {}

    def at(self, value):
        """What the step takes."""
        if value not in self._counted:
            varied = {self.vary: value}
            setup, sizes = (self.setup, varied) if self.lettered else (self.setup.replace(**varied), {})
            if isinstance(self.model, Derivation):
                found = self.model.at(setup.batch, setup.sequence, ROUNDING, **sizes)
            elif sizes:
                found = self.model.at(setup, ROUNDING, **sizes)
            else:
                found = heaviest(self.model, setup, ROUNDING, self.witness)
            self._counted[value] = found
        return self._counted[value]

    def over(self, number):
        """Bytes that are missing where `each` is taken that often."""
        return self.at(number * self.each).peak - self.usable(number * self.each)

    def usable(self, value):
        """Bytes for tensors: with other GPUs there are other communicators."""
        return self.headroom.usable(self.gpu, self.setup.replace(gpus=value) if self.vary == "gpus" else self.setup)

    @cached_property
    def by_peak(self):
        """(the value to show, the one that fits or None, the next or None), as far as peaks say."""
        if self.lettered and isinstance(self.model, Derivation):
            value, after, least = largest_size(self.model, self.setup, self.vary, self.over)
            found = least if value is None else value, value, after
        elif self.vary == "gpus":
            shown, enough = fewest(self.over, self.low, self.high, self.headroom.usable(self.gpu) // 64)
            found = (shown, shown, None if shown == self.low else shown - 1) if enough else (shown, None, None)
        else:
            value = self._most()
            found = self.low if value is None else value, value, None if value in (None, self.high) else value + 1
        return tuple(n and n * self.each for n in found)

    def _most(self):
        """The most of a batch or a sequence."""
        over, low, high, setup = self.over, self.low, self.high, self.setup
        value = most(over, low, high)
        if setup.loss == "chunked":
            return beyond(over, value, low, high, 1024 * setup.loss_chunks)
        if self.vary == "sequence" and isinstance(self.model, Derivation):  # a longer one may have less to pad
            ahead = range(high if value is None else value + 1, min(high, (value or low) + _PADDED) + 1)
            return max((v for v in ahead if over(v) <= 0), default=value)
        return value

    def played(self, value, configuration):
        """What the allocator makes of a step; None where it is not simulated."""
        key = value, configuration
        if key not in self._played:
            self._played[key] = _played(self.at(value), self.gpu, configuration, self.headroom, self.whole)
        return self._played[key]

    def ends(self, value, configuration):
        """Whether the allocator runs out."""
        played = self.played(value, configuration)
        return played is not None and played.failed is not None

    def most_that_run(self, value, configuration):
        """(the largest value below one that runs out of which all that were tried below run, or None; the next; a larger one that runs).

        One value beside the border is tried on each side, as pieces fall otherwise from one to the next.
        """

        def ends(number):
            return self.ends(self.last(number) * self.each, configuration)

        high, least = value // self.each, self.first(self.low)
        border, after, again = largest_below(ends, least, high), None, None
        while border is not None:
            border = self.last(border)
            beside = [n for n in (self.last(border - 1), border) if n is not None]
            if (dead := next(filter(ends, beside), None)) is None:
                after = self.first(border + 1)
                again = self.first(after + 1)
                again = None if again is None or again >= high or ends(again) else again
                break
            border = self.last(dead - 1)
        return tuple(n and n * self.each for n in (border, after, again))

    def last(self, number):
        """The largest number up to one for which the witness holds; None where there is none."""
        return max((n for r in self.ranges if (n := r.last(number)) is not None), default=None)

    def first(self, number):
        """The least from one on."""
        return min((n for r in self.ranges if (n := r.first(number)) is not None), default=None)

    def fewest_that_run(self, value, configuration):
        """The same of GPUs: (the fewest above those that run out, or None; the next fewer; None). Fewer are more where signs are turned."""
        low = largest_below(
            lambda number: self.ends(-number * self.each, configuration), -self.high, -value // self.each
        )
        return (None, None, None) if low is None else (-low * self.each, (-low - 1) * self.each, None)


#: The most that is tried of a letter whose steps are counted.
_COUNTED = 2**24
#: Kernels pad sequences to multiples of less than so many.
_PADDED = 64


def _check_derived(derivation, setup):
    """A derivation is of one setup."""
    same, asked = derivation.setup.replace(batch=setup.batch, sequence=setup.sequence), setup.as_dict()
    for name, value in same.as_dict().items():
        if value != asked[name]:
            raise ValueError(
                f"fit.setup: {name} {asked[name]!r}, but {derivation.name} was derived with {value!r}; allowed: the "
                "setup that it was derived with, or another derivation"
            )


def _dimensions(model):
    """The model that an objective trains; a model itself."""
    return model.model if isinstance(model, Objective) else model


def _window(model):
    """The window of a model that the book's reference runs, which has no mask for a longer sequence; 0 of others."""
    return model.window if model.family is not None else 0


def _step(setup, vary):
    """What the values of `vary` are multiples of: of GPUs those of a mesh, its experts', and those of replicas and groups; of tokens what a
    mesh divides."""
    mesh, group = setup.mesh, setup.resharding_gpus if setup.resharding == "group" else 1
    if vary == "gpus":
        return lcm(setup.replicas * mesh.size, setup.replicas * group, mesh.size // mesh.context * mesh.expert)
    if vary == "sequence":
        ring = (
            mesh.context > 1 and mesh.rotation != "ulysses"
        )  # each place has two pieces, in fp32 of rows that no kernel pads
        pieces = (64 if setup.dtypes.compute == "fp32" else 2) if ring else 1
        return mesh.context * lcm(mesh.tensor if mesh.sequence_parallel else 1, pieces)
    return 1


def _fewest(setup):
    """The fewest GPUs: one step of them, or two where the setup does not take one, as where weights must be divided."""
    step = _step(setup, "gpus")
    try:
        setup.replace(gpus=step)
    except ValueError:
        return 2 * step
    return step


def _range(model, setup, vary):
    """The least and the most value of `vary` that the setup and the model allow."""
    if isinstance(model, Derivation):
        if vary == "gpus":
            raise ValueError(
                f"fit.vary: 'gpus' of a derivation of {model.name}, which is of {setup.gpus:,}; allowed: what it was derived from, a "
                "config or a function that makes a module, of which each number is counted"
            )
        return model.range(vary)
    model = _dimensions(model)
    low, high = LIMITS.get(vary, (1, _COUNTED))
    low = _fewest(setup) if vary == "gpus" else low
    if vary == "gpus" and setup.sharding == "none":
        return low, low  # each of them would hold everything
    if vary == "sequence" and isinstance(model, Model):
        high = min(filter(None, (high, model.positions, _window(model))))
    if setup.loss == "chunked" and vary != "gpus":  # no more chunks than tokens
        low = -(-setup.loss_chunks // (setup.sequence if vary == "batch" else setup.batch))
        if low > high:
            setup.replace(**{vary: high}).check_model(model)  # says what is wrong
    return low, high
