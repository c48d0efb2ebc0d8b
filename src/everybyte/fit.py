"""What fits a GPU: the largest batch or sequence, or the fewest GPUs, by the budget that predicts the step."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from html import escape
from math import lcm

from . import checks, units
from .allocator import Reserved, Settings, settings
from .budget import Budget, budget, heaviest, not_derived
from .catalog import Described, Gpu, Model, gpus
from .derivation import Derivation
from .headroom import CONFIGURATION, ROUNDING, Headroom, check_headroom, check_precision, find_gpu, takes
from .objectives import Objective
from .plan import Rung, plan
from .setup import LIMITS, OPTIMIZERS, Setup
from .tables import Table

#: What `fit` may vary, beside the reader's own letters of a derivation; of gpus it wants the fewest, of the others the most.
VARY = ("batch", "sequence", "gpus")


@dataclass(frozen=True, eq=False)
class Fit:
    """The most (of gpus the fewest) with which a step fits a GPU, and what keeps it from more.

    Attributes:
        model, gpu, vary: as asked. setup: as asked, with `vary` at the value found, or where nothing fits at the least
            (of gpus, where the least is missing). headroom: what is kept free of tensors; usable: bytes that are left for them.
        value: what was found; None where nothing fits.
        witness: what the step with `setup` takes, each tensor rounded up as CUDA's allocator does.
        next: the same for the next value, which does not fit; None where there is no next value.
        configuration: `PYTORCH_ALLOC_CONF`, with which the allocator is simulated. reserved: what it makes of the step with `setup`
            in the memory that context and others leave; None where it is not simulated: on several GPUs by formula alone, of a
            derivation, and where `headroom` says what fragmentation takes.
        failed: the same of `next`, where its peak fits and the allocator runs out.
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

    @property
    def fits(self) -> bool:
        """Whether anything fits."""
        return self.value is not None

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
        wanted = self.next if self.fits and self.next else self.witness
        parts = {name: size for name, size in wanted.parts.items() if size}
        largest = max(parts, key=parts.__getitem__)
        over = self._missing(self._ended) if self._ended else wanted.peak - self.usable
        return {"over": over, "at": wanted.peak_at, "part": largest, "parts": parts}

    @property
    def _ended(self):
        """The out-of-memory error that keeps it from more, where it is the allocator's, and not the peak's."""
        played = self.failed if self.fits else self.reserved
        return played and played.failed

    def _missing(self, error):
        """Bytes that the driver had too few of."""
        return max(0, error.segment - (self.headroom.room(self.gpu) - error.reserved))

    @property
    def _after(self):
        """The next value."""
        sizes = getattr(self.next, "sizes", {})
        return sizes.get(self.vary, self.value and self.value + _step(self.setup, self.vary))

    def _bound(self):
        if self.vary == "gpus":
            return "no fewer are possible"
        if not isinstance(self.model, Model | Objective):
            return f"{self.model.name} was derived up to {self.vary} {self.value:,}"
        if self.vary == "sequence" and self.value == _dimensions(self.model).positions:
            return f"{self.model.name} ends at {self.value:,} positions"
        return f"Setup.{self.vary} ends at {self.value:,}"

    @cached_property
    def nearest_gpu(self) -> Gpu | None:
        """The GPU of the catalog with the least memory that `setup` fits; None where there is none."""
        known = (g for g in sorted(gpus().values(), key=lambda g: g.memory) if takes(g, self.setup.precision))
        return next((g for g in known if self.headroom.usable(g) >= self.peak), None)

    @cached_property
    def nearest_setup(self) -> Rung | None:
        """The cheapest `Rung` of `plan` that fits this GPU; None where there is none, or no such step is derived."""
        if not isinstance(self.model, Model) or not self._planned:
            return None
        return plan(self.model, self.setup, self.gpu, self.headroom).best

    @property
    def _planned(self):
        priced = OPTIMIZERS[self.setup.optimizer].passes is not None
        known = self.gpu.rated and (self.gpu.network or self.setup.gpus <= self.gpu.node)
        divided = not self.setup.mesh.alone  # `layouts` prices meshes
        return (
            isinstance(self.model, Model)
            and priced
            and known
            and not divided
            and not not_derived(self.model, self.setup)
        )

    @cached_property
    def nearest_gpus(self) -> int | None:
        """The fewest GPUs of this kind that `setup` fits with all states and weights divided; None where none do, or where
        it is divided already or such a step is not derived."""
        if self.setup.sharding != "none" or not isinstance(self.model, Model):
            return None
        try:
            return fit(self.model, self.setup.replace(sharding="zero3"), self.gpu, "gpus", self.headroom).value
        except ValueError:
            return None

    def why(self) -> str:
        """In words: what limits it; where nothing fits, what is too large, and what would do."""
        said = self.limit
        if "bound" in said:
            return f"{said['bound']}; {units.text(self.free)} are left"
        if self._ended:
            return self._pieces()
        at, over, parts = said["at"], units.text(said["over"]), said["parts"]
        share = f"{parts[said['part']] / sum(parts.values()):.0%}"
        largest = f"the largest part is {said['part']}, {units.text(parts[said['part']])} ({share})"
        if self.value is not None:
            step = f"{self.vary} {self._after:,} is"
            if self.vary == "gpus":
                less = self.value - _step(self.setup, self.vary)
                step = f"{less:,} GPUs are" if less > 1 else "1 GPU is"
            return f"{step} {over} too much, in {at}: {largest}"
        alone = [p for p, size in parts.items() if size > self.usable]
        what = f"{alone[0]} alone take {units.text(parts[alone[0]])}" if alone else largest
        return f"{self._least()} is {over} more than the {units.text(self.usable)} usable, in {at}: {what}"

    def _pieces(self):
        error = self._ended
        step = f"{self.vary} {getattr(self.setup, self.vary) + self.fits:,}"
        free = self.headroom.room(self.gpu) - error.reserved
        return (
            f"{step} fits by its peak, and the allocator runs out: {units.text(error.segment)} asked of the driver, which has "
            f"{units.text(free)}; {units.text(error.reserved - error.allocated)} is kept free in pieces"
        )

    def _least(self):
        if self.vary == "gpus" and self.setup.gpus > 1:
            return f"the least that {self.setup.gpus:,} GPUs have each"
        sizes = getattr(self.witness, "sizes", {})
        return f"{self.vary} {sizes[self.vary] if self.vary in sizes else getattr(self.setup, self.vary):,}"

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
        title = f"{self.model.name} on {self.gpu.name}: "
        title += f"{self.vary} {self.value:,} fits" if self.fits else "does not fit"
        rows = [("memory", self.gpu.memory, units.text(self.gpu.memory))]
        rows += [(f"− {t.name}", t.bytes, units.text(t.bytes)) for t in self.headroom.terms(self.gpu)]
        peak = f"peak, in {self.witness.peak_at}"
        rows += [("usable", self.usable, units.text(self.usable)), (peak, self.peak, units.text(self.peak))]
        rows.append(
            ("free", self.free, units.text(self.free))
            if self.free >= 0
            else ("missing", -self.free, units.text(-self.free))
        )
        if self.reserved and not self.reserved.failed:
            rows.append(("reserved, simulated", self.reserved.reserved, units.text(self.reserved.reserved)))
        return Table((title, "bytes", ""), rows)

    def said(self) -> list[str]:
        """The lines under the table: why it is no more and, where nothing fits, what would do."""
        return [self.why(), *([] if self.fits else self.instead()), *self._simulated()]

    def _simulated(self):
        if self.reserved is None and self.witness.witness == "derive":
            return [
                "The allocator is not simulated: a formula does not keep the order of requests; .at(batch, sequence).on(gpu) does"
            ]
        if self.reserved is None:
            return []
        chosen = self.configuration or "PyTorch's defaults"
        said = f"Simulated with {chosen}; not in it: what kernels take for themselves"
        formula = isinstance(self.witness, Budget)
        return [said + ", and which of several equal tensors goes first" * formula]

    def as_dict(self) -> dict:
        """As JSON holds it: whole bytes."""
        said = {
            "model": {"name": self.model.name, "parameters": int(self.model.parameters)},
            "setup": self.setup.as_dict(),
            "gpu": {"name": self.gpu.name, "memory": self.gpu.memory},
            "vary": self.vary,
            "fits": self.fits,
            "value": self.value,
            "headroom": {t.name: t.bytes for t in self.headroom.terms(self.gpu)},
            "usable": self.usable,
            "peak": self.peak,
            "peak_at": self.witness.peak_at,
            "reserved": self.reserved.reserved if self.reserved and not self.reserved.failed else None,
            "free": self.free,
            "limit": self.limit,
            "why": self.why(),
        }
        if sizes := getattr(self.witness, "sizes", {}):
            said["sizes"] = sizes
        if not self.fits:
            card, rung = self.nearest_gpu, self.nearest_setup
            said["nearest"] = {
                "gpu": card.name if card else None, "setup": rung.setup.as_dict() if rung else None,
                "gpus": self.nearest_gpus,
            }  # fmt: skip
        return said

    def __repr__(self):
        return "\n".join([repr(self.table()), *self.said()])

    def _repr_html_(self):
        return self.table()._repr_html_() + "".join(f"<p>{escape(line)}</p>" for line in self.said())


def fit(
    model,
    setup: Setup,
    gpu: Gpu | str,
    vary: str = "batch",
    headroom: Headroom | None = None,
    witness: Callable = budget,
    configuration: Settings | str = CONFIGURATION,
) -> Fit:
    """As `own.fit`, of a `Model`, an `Objective` or a `Derivation`."""
    checks.kind("fit", "setup", setup, Setup)
    check_headroom("fit", headroom)
    if not isinstance(configuration, str):
        checks.kind("fit", "configuration", configuration, Settings)
    configuration = settings(configuration) if isinstance(configuration, str) else configuration
    further = getattr(model, "further", "")
    checks.one_of("fit", "vary", vary, [*VARY, *further])
    if isinstance(model, Derivation):
        _check_derived(model, setup)
        witness = _at
    gpu = find_gpu(gpu)
    check_precision(setup, gpu)
    headroom = headroom or Headroom()
    usable, counted = headroom.usable(gpu), {}

    def count(value):
        if value not in counted:
            if vary in further:
                counted[value] = model.at(setup.batch, setup.sequence, ROUNDING, **{vary: value})
            else:
                counted[value] = heaviest(model, setup.replace(**{vary: value}), ROUNDING, witness)
        return counted[value]

    def over(value):
        return count(value * each).peak - usable

    each = _step(setup, vary)
    low, high = _range(model, setup, vary)
    low, high = -(-low // each), max(high // each, -(-low // each))
    if vary in further:
        value, after, least = model.largest_size(setup, vary, over)
        shown = least if value is None else value
    elif vary == "gpus":
        shown, enough = _fewest(over, low, high, usable // 64)
        value, after = (shown, None if shown == low else shown - 1) if enough else (None, None)
    else:
        value = _most(over, low, high)
        if setup.loss == "chunked":
            value = _beyond(over, value, low, high, 1024 * setup.loss_chunks)
        elif vary == "sequence" and isinstance(model, Derivation):  # a longer one may have less to pad
            ahead = range(high if value is None else value + 1, min(high, (value or low) + _PADDED) + 1)
            value = max((v for v in ahead if over(v) <= 0), default=value)
        shown, after = low if value is None else value, None if value in (None, high) else value + 1
    shown, value, after = (n and n * each for n in (shown, value, after))
    found, reserved, failed = count(shown), None, None
    if value is not None and headroom.fragmentation is None:
        room = headroom.room(gpu)
        played = {value: _played(found, gpu, configuration, room)}

        def ends(n):
            if n not in played:
                played[n] = _played(count(n), gpu, configuration, room)
            return played[n].failed

        if vary != "gpus" and played[value] and played[value].failed:
            value = _largest(ends, low, value)
            shown, after = (low, None) if value is None else (value, value + 1)  # on one GPU, where `each` is 1
            found, failed = count(shown), played.get(after)
        reserved = played[shown]
    following = None if after is None else count(after)
    changed = setup if vary in further else setup.replace(**{vary: shown})
    return Fit(
        getattr(model, "described", model),
        changed,
        gpu,
        vary,
        headroom,
        usable,
        value,
        found,
        following,
        configuration.text(),
        reserved,
        failed,
    )


def _played(witness, gpu, configuration, room):
    """What the allocator makes of a step; None where it is not simulated."""
    derived = witness.witness == "derive"  # whose step a dry run has to count first, in seconds
    if derived or not hasattr(witness, "on") or (isinstance(witness, Budget) and witness.setup.distributed):
        return None
    return witness.on(gpu, configuration, room, steps=2)  # a third finds the second's blocks again


def _largest(ends, low, high):
    """The largest value below `high` that does not end, of those that end from some value on; None where all do."""
    step, bad = 1, high
    while ends(value := max(low, bad - step)):
        if value == low:
            return None
        bad, step = value, 2 * step
    while bad - value > 1:
        middle = (value + bad) // 2
        value, bad = (value, middle) if ends(middle) else (middle, bad)
    return value


#: Kernels pad sequences to multiples of less than so many.
_PADDED = 64


def _check_derived(derivation, setup):
    """A derivation is of one setup."""
    same = derivation.setup.replace(batch=setup.batch, sequence=setup.sequence)
    for field, value in vars(same).items():
        if value != getattr(setup, field):
            raise ValueError(
                f"fit.setup: {field} {getattr(setup, field)!r}, but {derivation.name} was derived with {value!r}; allowed: the "
                "setup that it was derived with, or another derivation"
            )


def _at(derivation, setup, rounding):
    """What a derivation says, as a witness is asked."""
    return derivation.at(setup.batch, setup.sequence, rounding)


def _dimensions(model):
    """The model that an objective trains; a model itself."""
    return model.model if isinstance(model, Objective) else model


def _step(setup, vary):
    """What the values of `vary` are multiples of: of GPUs those of a mesh and of replicas, of tokens what a mesh divides."""
    mesh = setup.mesh
    if vary == "gpus":
        return setup.replicas * mesh.size
    if vary == "sequence":
        return lcm(mesh.tensor if mesh.sequence_parallel else 1, 2 * mesh.context if mesh.context > 1 else 1)
    return 1


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
    low, high = LIMITS[vary]
    if vary == "gpus" and setup.sharding == "none":
        return low, low  # each of them would hold everything
    if vary == "sequence" and isinstance(model, Model) and model.positions:
        high = min(high, model.positions)
    if setup.loss == "chunked" and vary != "gpus":  # no more chunks than tokens
        low = -(-setup.loss_chunks // (setup.sequence if vary == "batch" else setup.batch))
        if low > high:
            setup.replace(**{vary: high}).check_model(model)  # says what is wrong
    return low, high


def _most(over, low, high):
    """The largest value that is not over, of a measure that grows; None for none.

    Peaks are nearly straight lines, or two with a bend: a line through two values guesses the border, and every third
    guess halves what is left, for those that are not.
    """
    below = over(low)
    if below > 0:
        return None
    slope, bracketed, guess, guesses = 0, False, low + 1, 0
    while low + bracketed < high:
        guess = max(low + 1, min(guess, high - bracketed))
        found, guesses = over(guess), guesses + 1
        if found <= 0:
            slope, low, below = (found - below) / (guess - low), guess, found
        else:
            slope, high, bracketed = (found - below) / (guess - low), guess, True
        guess = low + (int(-below / slope) if slope > 0 else 3 * low)
        if bracketed and guesses % 3 == 0:
            guess = (low + high) // 2
    return low


def _fewest(over, low, high, slack):
    """The smallest value that is not over, and whether there is one; else the value that is the least over.

    More GPUs have less each, but for two things: a single one needs no buffers to talk to others, and each tensor is
    filled up to a multiple of the GPUs. So it doubles the value until it is enough, halves what is between, and looks
    further down until a value is over by more than `slack`.
    """
    seen, value = {}, low
    while value <= high:
        seen[value] = over(value)
        if seen[value] <= 0:
            break
        value *= 2
    else:
        return min(seen, key=seen.get), False
    below = value // 2 if value > low else low - 1
    while value - below > 1:
        middle = (below + value) // 2
        below, value = (below, middle) if over(middle) <= 0 else (middle, value)
    ahead = value - 1
    while ahead >= low and (more := over(ahead)) <= slack:
        value, ahead = (ahead if more <= 0 else value), ahead - 1
    return value, True


def _beyond(over, value, low, high, slack):
    """The largest value that is not over, from `value` or the `low` one on, of a peak that may fall by `slack` bytes.

    With the tokens, the number of chunks of the loss goes up and down, and with it what rounding adds: less than two
    blocks a chunk, for its share of the loss and of the input's gradient. Everything else only grows.
    """
    ahead = value or low
    while ahead < high and over(ahead) <= slack:
        ahead += 1
        if over(ahead) <= 0:
            value = ahead
    return value
