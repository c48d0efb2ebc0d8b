"""What the articles claim against what is so: numbers computed when asked for, and a verdict that follows from them.

The rule, first match:

1. a call of PyTorch's that runs without complaint holds; one that is refused, warned of or gone is an outdated API;
   of hardware and of other packages a document is quoted, with its address and date, and the verdict is written beside it;
2. a claim with nothing to set beside it is not settled here;
3. what was stated holds where the value, rounded as the article rounds, is what it says; or it holds if the condition
   is met, where it is so with the condition and not without;
4. it contradicts the article's own figures, or another article's, where the two have no number in common;
5. else it is off by the factor between the value and the nearest number stated.

A stated number is right to half of its last digit other than zero, and never to more than a tenth: "28 GB" is 27.5 to 28.5,
"30 GB" is 27 to 33. A rule is right to one part in a hundred, which is what the smallest tensors of a block may add.
"""

import ast
import math
import operator
from dataclasses import dataclass
from fractions import Fraction
from functools import cache

from .. import units
from ..allocator import Allocator, OutOfMemory
from ..ask.setup import Setup
from ..catalog import Claim, Gpu, Model, claims, gpu, gpus, model
from ..catalog.claims import Stated
from ..common import checks
from ..theory.budget import budget as predict
from ..theory.budget import heaviest


@dataclass(frozen=True)
class Settled:
    """A claim with what is so.

    Attributes:
        stated: the span that the article states or implies, in `claim.unit`; None where there is none.
        computed: the value in the same unit; what PyTorch says of a call, "" for nothing, or a document; None where nothing settles it.
        under: the value with the condition met, for what holds if.
        verdict: in full, with the condition or the factor.
        ratio: the nearest stated number over the value; None where one of them is missing or zero, or where only a
            comparison was implied.
    """

    claim: Claim
    stated: Stated | None
    computed: Fraction | str | None
    under: Fraction | str | None
    verdict: str
    ratio: float | None

    @property
    def factor(self) -> float | None:
        """How far off, 1 or more, whichever way."""
        return None if self.ratio is None else max(self.ratio, 1 / self.ratio)

    @property
    def text(self) -> str:
        """The computed number with its unit; then the one with the condition met."""
        said = [_shown(value, self.claim.unit) for value in (self.computed, self.under) if value is not None]
        return ", or ".join(dict.fromkeys(said)) or "–"

    @property
    def stated_text(self) -> str:
        """What was stated, as text: the article's number, what its rule gives, or the comparison that it implies."""
        if self.claim.recipe and self.stated:
            return _shown(self.stated.low, self.claim.unit)
        return self.claim.stated or self.claim.expects or "–"

    def as_dict(self) -> dict:
        """As JSON holds it: `stated` a number or [least, most], null for an open end; `computed` a number, text or null."""
        span = None if self.stated is None else [_plain(self.stated.low), _plain(self.stated.high)]
        computed = _plain(self.computed) if isinstance(self.computed, Fraction) else self.computed
        return {
            "id": self.claim.id, "article": self.claim.article, "claim": self.claim.claim,
            "stated": span[0] if span and span[0] == span[1] else span, "unit": self.claim.unit,
            "computed": computed, "verdict": self.verdict, "chapter": self.claim.chapter,
        }  # fmt: skip


def settle(claim: Claim) -> Settled:
    """What is so of a claim.

    Raises:
        ValueError: naming the claim and the field: an expression that does not read, a name that is unknown, a verdict
            that does not follow, evidence that is no evidence.
    """
    checks.kind("settle", "claim", claim, Claim)
    plain, special = _Reader(claim), _Reader(claim, claim.given) if claim.given else None
    stated = _stated(claim, plain)
    if claim.source:
        return Settled(claim, stated, claim.found, None, claim.verdict, None)
    if claim.sample:
        computed, under = plain.sample(), special.sample() if special else None
    else:
        computed, under = (plain.read("value") if claim.value else None), special.read("value") if special else None
    own = plain.read("own") if claim.own else None
    if claim.against and not disagree(claim, claims()[claim.against]):
        raise ValueError(f"claim {claim.id}.against: it agrees with {claim.against}")
    verdict = _sample_kind(claim, computed, under) if claim.sample else _kind(claim, stated, computed, under, own)
    if verdict != claim.verdict:
        raise ValueError(f"claim {claim.id}.verdict: {claim.verdict!r}, but the numbers say {verdict!r}")
    if verdict == "contradicts itself":
        computed = own
    comparable = stated is not None and isinstance(computed, Fraction) and computed > 0 and not claim.expects
    nearest = stated.nearest(computed) if comparable else 0
    if verdict == "off by a factor of":
        low, high = sorted((computed, stated.nearest(computed)))
        verdict += f" {_digits(float(high / low))}"
    elif verdict == "holds if":
        verdict += f" {claim.condition}"
    return Settled(claim, stated, computed, under, verdict, float(nearest / computed) if nearest else None)


def disagree(one: Claim, other: Claim) -> bool:
    """Whether two claims about one quantity have no number in common.

    Raises:
        ValueError: where they are not in one unit, or one of them states nothing.
    """
    spans = [_stated(claim, _Reader(claim)) for claim in (one, other)]
    if None in spans or one.unit != other.unit:
        raise ValueError(f"claim {one.id}.against: {other.id} states nothing that can be set beside it")
    return not spans[0].meets(spans[1])


def _stated(claim, reader):
    return Stated.about(reader.read("recipe")) if claim.recipe else claim.span


def _sample_kind(claim, said, under):
    if not claim.condition:
        return "outdated API" if said else "holds"
    if not said or under:
        raise ValueError(f"claim {claim.id}.given: the call must run with it and not without")
    return "holds if"


def _kind(claim, stated, computed, under, own):
    if computed is None and own is None and not claim.against:
        return "not settled here"
    if stated is None:
        raise ValueError(f"claim {claim.id}.stated: missing; a value needs a number to stand beside")
    if computed is not None and stated.holds(computed):
        if claim.given or claim.own:
            raise ValueError(f"claim {claim.id}.value: it holds, so neither given nor own may be there")
        return "holds"
    if under is not None:
        if not stated.holds(under):
            raise ValueError(f"claim {claim.id}.given: it does not hold with it either: {_shown(under, claim.unit)}")
        return "holds if"
    if own is not None:
        if stated.holds(own):
            raise ValueError(f"claim {claim.id}.own: it agrees with what is stated")
        return "contradicts itself"
    if computed is None:
        return "contradicts another article"
    if stated.strict:
        return "false"
    if not computed or not stated.nearest(computed) or stated.nearest(computed) == computed:
        raise ValueError(f"claim {claim.id}.value: no factor between {_shown(computed, claim.unit)} and what is stated")
    return "off by a factor of"


class _Reader:
    """Reads the expressions of one claim, with what `changes` puts in place of the claim's own fields."""

    def __init__(self, claim, changes=None):
        self.claim, self.changes = claim, dict(changes or {})
        for name in self.changes:
            checks.one_of(f"claim {claim.id}", "given", name, ("value", "sample", *_SETTING))
        self.setting = {name: self._setting(name) for name in _SETTING}
        self.runs = {name: self._run(name, run) for name, run in self._field("runs").items()}
        self.run = self._run("", {})

    def read(self, name):
        """The value of the expression in a field, an exact number in the claim's unit."""
        text = self._field(name)
        try:
            if len(text) > _LONGEST:
                raise ValueError(f"it has {len(text):,} characters; allowed: {_LONGEST} or fewer")
            found = Fraction(self._value(ast.parse(text, mode="eval").body))
            if abs(found) >= 2**_BITS:
                raise ValueError(f"it is 2**{_BITS} or more")
        except (ValueError, SyntaxError, ArithmeticError, TypeError, RecursionError, MemoryError) as error:
            shown = text if len(text) < 200 else text[:200] + "..."
            raise ValueError(
                f"claim {self.claim.id}.{name}: {shown!r}: {str(error) or 'it is nested too deep'}"
            ) from error
        return found / _scale(self.claim.unit)

    def sample(self):
        """What PyTorch says of the claim's call; "" where it says nothing."""
        from . import samples

        name = self._field("sample")
        checks.one_of(f"claim {self.claim.id}", "sample", name, samples.SAMPLES)
        return samples.outcome(name)

    def _field(self, name):
        return self.changes.get(name, getattr(self.claim, name))

    def _setting(self, name):
        own, change = getattr(self.claim, name), self.changes.get(name)
        return {**own, **(change or {})} if name in ("setup", "symbols", "runs") else own if change is None else change

    def _run(self, name, run):
        where = f"claim {self.claim.id}.runs.{name}" if name else f"claim {self.claim.id}"
        try:
            setup = Setup(**{**self.setting["setup"], **run.get("setup", {})})
            device = run.get("gpu", self.setting["gpu"])
            return _Run(*_model(run.get("model", self.setting["model"])), setup, gpu(device) if device else None,
                        {**_format(self.setting["format"]), **self.setting["symbols"]})  # fmt: skip
        except (ValueError, TypeError) as error:
            raise ValueError(f"{where}: {error}") from error

    def _value(self, node):
        if isinstance(node, ast.Constant) and type(node.value) in (int, float):
            return Fraction(str(node.value))
        if isinstance(node, ast.BinOp) and type(node.op) in _OPERATORS:
            return _OPERATORS[type(node.op)](self._value(node.left), self._value(node.right))
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
            return -self._value(node.operand)
        if isinstance(node, ast.Compare) and isinstance(node.comparators[0], ast.Constant) and len(node.ops) == 1:
            if isinstance(node.ops[0], ast.Eq):
                return Fraction(self._look_up(_dotted(node.left)) == node.comparators[0].value)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and not node.keywords:
            checks.one_of("expression", "function", node.func.id, _FUNCTIONS)
            words = [
                a.value if isinstance(a, ast.Constant) and isinstance(a.value, str) else self._value(a)
                for a in node.args
            ]
            return Fraction(_FUNCTIONS[node.func.id](*words))
        if isinstance(node, ast.Name | ast.Attribute):
            return Fraction(self._look_up(_dotted(node)))
        raise ValueError(f"{ast.unparse(node)!r} is not allowed in an expression")

    def _look_up(self, name):
        first, _, rest = name.partition(".")
        return self.runs[first].look_up(rest) if first in self.runs else self.run.look_up(name)


#: The longest expression, in characters, and the largest number in it, in bits: what a float still holds.
_LONGEST, _BITS = 1000, 1000


def _power(base, exponent):
    """A whole power, of at most so many bits."""
    if exponent.denominator != 1:
        raise ValueError(f"the power {exponent} is not allowed in an expression; allowed: whole ones, and sqrt")
    bits = max(base.numerator.bit_length(), base.denominator.bit_length())
    if abs(exponent) * bits > _BITS:
        raise ValueError(f"a power of more than {_BITS} bits is not allowed in an expression")
    return base ** int(exponent)


_SETTING = ("model", "setup", "gpu", "format", "symbols", "runs")
_OPERATORS = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv, ast.Pow: _power,
}  # fmt: skip


@dataclass(frozen=True)
class _Run:
    """What the names of an expression take their values from."""

    model: Model | None
    parameters: int | None
    setup: Setup
    gpu: Gpu | None
    symbols: dict

    def look_up(self, name):
        """The value of a letter of the notation, spelled out; of a formula; of `budget.peak` and the like,
        or of `heaviest.peak`, the GPU's that needs the most; of `gpu.memory`."""
        from ..formulas import SYMBOLS, registry
        from ..formulas.registry import bindings

        first, _, rest = name.partition(".")
        if first == "gpu":
            return self._of_gpu(rest)
        if first in ("budget", "heaviest", "dry_run"):
            return self._of_witness(first, rest)
        given = self.symbols if self.parameters is None else {"parameters": self.parameters, **self.symbols}
        if name in given:
            return given[name]
        if name in registry():
            return registry()[name].at(self.model, self.setup, **given)
        checks.one_of("expression", "name", name, [*SYMBOLS, *registry(), "budget", "heaviest", "dry_run", "gpu"])
        values = bindings(self.model, self.setup, [SYMBOLS[name]])
        if name not in values:
            raise ValueError(f"no value for {name}; give a {SYMBOLS[name].needs or 'value in symbols'}")
        return values[name]

    def _of_gpu(self, name):
        if self.gpu is None:
            raise ValueError(f"no gpu for gpu.{name}")
        checks.one_of("expression", "gpu", name, ("memory", "advertised_gb", "bandwidth", "host_link"))
        return getattr(self.gpu, name)

    def _of_witness(self, witness, name):
        if self.model is None:
            raise ValueError(f"no model for {witness}.{name}")
        found = _witness(witness, self.model, self.setup)
        group, _, item = name.partition(".")
        if not item:
            simulated = ("requested", "allocated", "reserved") if witness == "dry_run" else ()
            checks.one_of("expression", witness, group, ("peak", "peak_at", *simulated))
            return getattr(found.on("h200") if group in simulated else found, group)
        amounts = getattr(found, group) if group in ("parts", "phases") else found.parts_at(group)
        checks.one_of("expression", f"{witness}.{group}", item, amounts)
        return amounts[item]


@cache
def _witness(witness, model, setup):
    if witness == "budget":
        return predict(model, setup)
    if witness == "heaviest":
        return heaviest(model, setup)
    from ..dryrun import dry_run

    return dry_run(model, setup)


def _model(spec):
    """(model, None) from a name, dimensions, or changes to the model that `like` names; (None, count) from "7B"."""
    if not spec:
        return None, None
    if isinstance(spec, str):
        headline = spec.removesuffix("B")
        return (None, int(headline) * 10**9) if headline.isdecimal() and headline != spec else (model(spec), None)
    changes = dict(spec)
    like = changes.pop("like", "")
    return (model(like).replace(**changes) if like else Model(**changes)), None


def _format(name):
    if not name:
        return {}
    from ..formulas.formats import BLOCKS, FLOATS

    checks.one_of("expression", "format", name, [*FLOATS, *BLOCKS])
    return {**FLOATS, **BLOCKS}[name]


def _dotted(node):
    if isinstance(node, ast.Attribute):
        return f"{_dotted(node.value)}.{node.attr}"
    if isinstance(node, ast.Name):
        return node.id
    raise ValueError(f"{ast.unparse(node)!r} is not a name")


@cache
def _grid():
    """Chapter 17's 48 steps: four GPT-2 sizes, three precisions, both kinds of attention, batch 1 and 8."""
    return [
        predict(model(name), Setup(precision=precision, attention=attention, batch=batch))
        for name in ("gpt2", "gpt2-medium", "gpt2-large", "gpt2-xl")
        for precision in ("fp32", "bf16-mixed", "bf16")
        for attention in ("eager", "flash")
        for batch in (1, 8)
    ]


def _share_of_grid(place):
    """Of chapter 17's steps, how many in a hundred have their peak there."""
    return Fraction(100 * sum(step.peak_at == place for step in _grid()), len(_grid()))


def _over_forward():
    """The largest peak over what lives after forward, in chapter 17's steps."""
    return max(Fraction(step.peak, step.phases["after_forward"]) for step in _grid())


def _bf16_from_ampere(vendor):
    """Of the catalog's GPUs of a vendor, how many in a hundred take bf16 exactly where their capability is 8 or more."""
    found = [card for card in gpus().values() if card.title.startswith(vendor)]

    def as_said(card):
        number = card.capability.replace(".", "", 1)
        return card.bf16 == (number.isdecimal() and float(card.capability) >= 8)

    return Fraction(100 * sum(map(as_said, found)), len(found))


@cache
def _simulated(what):
    """A number of the allocator's, by its rules: of fragmentation as chapter 41 builds it, of a process with half of a GPU, of a
    step of GPT-2 under autocast."""
    checks.one_of("simulated", "what", what, _SIMULATED)
    return Fraction(_SIMULATED[what]())


def _fragmented():
    """(the largest free piece, all that is free, what was asked for): 2 MiB in use on a GPU of 100 keep 60 out."""
    mib = units.UNITS["MiB"]
    allocator = Allocator(memory=100 * mib)
    allocator.free(allocator.malloc(60 * mib))
    allocator.malloc(2 * mib)
    try:
        allocator.malloc(60 * mib)
    except OutOfMemory:
        kept, left = allocator.reserved - allocator.allocated, 100 * mib - allocator.reserved
        return max(kept, left), kept + left, 60 * mib
    raise ValueError("simulated: the allocator did not run out of memory; allowed: a request that no piece serves")


def _half():
    """What a process has when it is refused, over its half of the GPU."""
    mib = units.UNITS["MiB"]
    allocator = Allocator("per_process_memory_fraction:0.5", memory=100 * mib, total=100 * mib)
    try:
        while True:
            allocator.malloc(20 * mib)
    except OutOfMemory as error:
        return Fraction(error.reserved, 50 * mib)


def _autocast_step():
    return _witness("dry_run", model("gpt2"), Setup(precision="bf16-mixed"))


def _third_step():
    """What is reserved in the third step over the second's: of steps that are alike."""
    steps = _autocast_step().on("h200").steps
    return Fraction(steps[3], steps[2])


def _cleared():
    """Requests to the driver in three steps with the cache given back after each, over those without."""
    plain, cleared = (_autocast_step().on("h200", clear=clear).allocator.log for clear in (False, True))
    return Fraction(len(cleared), len(plain))


_SIMULATED = {
    "largest free piece over the request": lambda: Fraction(_fragmented()[0], _fragmented()[2]),
    "all that is free over the request": lambda: Fraction(_fragmented()[1], _fragmented()[2]),
    "reserved over a half": _half, "third step over second": _third_step, "driver's requests, cleared over kept": _cleared,
}  # fmt: skip
_FUNCTIONS = {
    "bf16_from_ampere": _bf16_from_ampere, "ceil": math.ceil, "max": max, "min": min, "over_forward": _over_forward,
    "share_of_grid": _share_of_grid, "simulated": _simulated, "sqrt": lambda x: Fraction(math.sqrt(x)),
}  # fmt: skip


def _scale(unit):
    """How many of an expression's units make one of `unit`: expressions are in bytes, or bytes a second."""
    return units.UNITS.get(unit.removesuffix("/s"), 1)


def _shown(value, unit):
    if isinstance(value, str):
        return value or "runs"
    return f"{_digits(float(value))} {unit}".rstrip()


def _digits(value):
    """Four digits that count, and two places after the point where there are more before it."""
    if value == int(value) or abs(value) >= 10_000:
        return f"{value:,.0f}"
    return f"{value:,.{max(2, 3 - math.floor(math.log10(abs(value))))}f}".rstrip("0").rstrip(".")


def _plain(value):
    return value if value is None else int(value) if value.denominator == 1 else float(value)
