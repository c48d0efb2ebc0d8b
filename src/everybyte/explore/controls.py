"""The controls: sliders, steps and choices, and those that all explorers of a kernel share."""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cache, reduce, wraps
from inspect import getdoc, signature
from operator import getitem
from typing import ParamSpec

import ipywidgets as widgets
import traitlets

from ..answers.headroom import Headroom
from ..ask.choices import COMMON_OPTIMIZERS, OPTIMIZER_IMPLS
from ..ask.setup import Setup
from ..catalog import Gpu, Model, gpus, models
from ..common import checks
from ..formulas import SYMBOLS, bindings
from ..rules.formulas import DENSE, GPT, LLAMA, refused
from .courses import PRECISIONS_OF_UPDATES, numbers_of
from .explorer import Explorer
from .pictures import Printed

_P = ParamSpec("_P")
_LOOK = {"style": {"description_width": "10.5em"}, "layout": {"width": "31em", "max_width": "100%"}}


class _Last:
    """A trait that ignores None and NaN and keeps its last value, so that no reader of a control meets them."""

    def _validate(self, obj, value):
        nothing = value is None or isinstance(value, float) and value != value
        return super()._validate(obj, obj._trait_values.get(self.name) if nothing else value)


def _keeping(kind, synced, **others):
    """The widget class `kind` with these traits as `_Last` traits; those in `synced` are synced with the page."""
    traits = {name: type(trait.__name__, (_Last, trait), {})().tag(sync=True) for name, trait in synced.items()}
    traits |= {name: type(trait.__name__, (_Last, trait), {})() for name, trait in others.items()}
    return type(kind.__name__, (kind,), traits)


_SELECTED = {"synced": {"index": traitlets.Int}, "value": traitlets.Any, "label": traitlets.Unicode}
_Dropdown = _keeping(widgets.Dropdown, **_SELECTED)
_SelectionSlider = _keeping(widgets.SelectionSlider, **_SELECTED)
_IntSlider = _keeping(widgets.IntSlider, {"value": traitlets.CInt})
_FloatSlider = _keeping(widgets.FloatSlider, {"value": traitlets.CFloat})


@dataclass(frozen=True)
class Slider:
    """A number from `low` to `high`, typed or dragged. It gives the value of the symbol `name`.

    Attributes:
        name: a symbol's name in code. label: in words. start: the first value. step: between values, may be a fraction.
        divides: the name of another control; only divisors of its value are offered.
        sets: {another control's name: its state}, which moving the slider sets.
    """

    name: str
    label: str
    low: float
    high: float
    start: float
    step: float = 1
    divides: str = ""
    sets: Mapping[str, object] = field(default_factory=dict)

    trait = "value"
    instead_of = ""

    def __post_init__(self):
        self._offers(self.start, f"{self.name}: {self.start!r} is not in the slider's range")

    def widget(self):
        whole = all(isinstance(n, int) for n in (self.low, self.high, self.start, self.step))
        ends = {"value": self.start, "min": self.low, "max": self.high, "step": self.step}
        return (_IntSlider if whole else _FloatSlider)(**ends, description=self.label, **_LOOK)

    def _offers(self, state, said):
        if not (isinstance(state, int | float) and self.low <= state <= self.high):
            raise ValueError(f"{said}; allowed: {self.low} to {self.high}")

    def check(self, owner: str, state: object) -> None:
        """Raise ValueError where the slider has no such state."""
        self._offers(state, f"{owner}.{self.name}: {state!r}")

    def state(self, value, owner="preset"):
        """The state that a preset names, which is the value."""
        self._offers(value, f"{owner}.{self.name}: {value!r} is out of range")
        return value

    def said(self, state) -> str:
        """A state in words."""
        return f"{state:,.12g}"

    def values(self, state):
        """The symbols that the control gives at `state`."""
        return {self.name: state}

    def usual(self, opening, asked):
        """The state that needs no words where the control is hidden: the opening one, or None where the caller `asked` for it."""
        return None if asked else opening

    def moves(self, state):
        """{another control's name: the state that this one set}; empty, as a sentence does not mention what a slider set."""
        return {}

    def spec(self):
        ends, sets = [self.low, self.high], dict(self.sets)
        return {
            "name": self.name, "label": self.label, "ends": ends, "step": self.step, "divides": self.divides, "sets": sets,
        }  # fmt: skip


@dataclass(frozen=True)
class Choice:
    """One of several options, each of which gives values to several symbols. Its state is the option's index.

    Attributes:
        name: of the control. label: in words. options: {label: {symbol's name in code: value}}.
        start: an option's label; None for the first, or for what the shared control shows now.
        kind: `dropdown` or `slider` (options in order). shared: one control for all explorers of this kernel.
        sets: {option's label: {another control's name: its state}}, which choosing the option sets.
        instead_of: another choice that this one overrides. An option in parentheses overrides nothing and is not named.
    """

    name: str
    label: str
    options: Mapping[str, Mapping[str, object]]
    start: str | None = None
    kind: str = "dropdown"
    shared: bool = False
    sets: Mapping[str, Mapping[str, object]] = field(default_factory=dict)
    instead_of: str = ""

    trait = "index"

    def __post_init__(self):
        if self.start is not None and self.start not in self.options:
            raise ValueError(f"{self.name}: {self.start!r} is unknown; allowed: {', '.join(self.options)}")

    def widget(self):
        """The ipywidgets control: a new one, or the one that all explorers share."""
        control = _SHARED.get(self.name) if self.shared else None
        if control is None:
            kind = _SelectionSlider if self.kind == "slider" else _Dropdown
            control = kind(options=list(self.options), index=0, description=self.label, **_LOOK)
        if self.shared:
            if list(control.options) != list(self.options):
                raise ValueError(f"{self.name}: a shared control has the same options everywhere: {control.options!r}")
            _SHARED[self.name] = control
        if self.start is not None:
            control.index = list(self.options).index(self.start)
        return control

    def usual(self, opening, asked):
        """The opening state; of a shared control a fresh kernel's, where the caller or other explorers chose it."""
        if self.shared and (asked or self.start is None):
            return self.state(_SHARES[self.name][2])
        return None if asked else opening

    def check(self, owner: str, state: object) -> None:
        checks.whole(owner, self.name, state, 0, len(self.options) - 1)

    def state(self, value, owner="preset"):
        labels = list(self.options)
        if value not in labels:
            raise ValueError(f"{owner}.{self.name}: {value!r} is unknown; allowed: {', '.join(labels)}")
        return labels.index(value)

    def said(self, state) -> str:
        return list(self.options)[state]

    def values(self, state):
        return list(self.options.values())[state]

    def moves(self, state):
        return self.sets.get(self.said(state), {})

    def spec(self):
        options = [
            {"label": label, "values": dict(values), "sets": dict(self.moves(i))}
            for i, (label, values) in enumerate(self.options.items())
        ]
        return {"name": self.name, "label": self.label, "options": options, "instead_of": self.instead_of}


#: The shared controls of this kernel, by name: one widget each, which every explorer displays.
_SHARED: dict[str, widgets.Widget] = {}


def reset() -> None:
    """Reset the shared model, precision, optimizer, batch, sequence and GPU to the values of a fresh kernel."""
    for name, control in _SHARED.items():
        control.index = list(control.options).index(_SHARES[name][2])


def shared(name: str, start: str | None = None) -> Choice:
    """A control of the shared state: `model`, `precision`, `optimizer`, `batch`, `sequence` or `gpu`.

    Raises:
        ValueError: where there is no such control or option.
    """
    checks.one_of("explore", "control", name, _SHARES)
    label, options, usual, kind = _SHARES[name]
    if start is None and name not in _SHARED:
        start = usual
    return Choice(name, label, options(), start, kind, shared=True)


#: Fields of a setup that decide a model's states; that decide activations alone; that a step's controls show.
OF_STATES = ("precision", "master_gradients", "optimizer", "optimizer_impl")
OF_ACTIVATIONS = (
    "batch", "sequence", "accumulation", "attention", "dropout", "loss", "loss_chunks", "checkpointing", "checkpoint_every",
)  # fmt: skip
OF_THE_STEP = (*OF_STATES, "batch", "sequence", "attention", "dropout", "loss_chunks", "checkpoint_every")

_OPENS = """
An explorer opens with the `model`, `setup` and `gpu` that it is given; without them with its own, or with what the
notebook's other explorers show.

Raises:
    ValueError: where one of them says what no control offers and the explorer does not show.
"""


def opens(*shown: str) -> Callable[[Callable[_P, Explorer]], Callable[_P, Explorer]]:
    """A decorator: the function that opens an explorer refuses a `model`, `setup` or `gpu` of another type.

    Args:
        shown: fields of a setup that its controls show, that it checks itself, or that make no difference there. Where any are
            given, a setup with another field off its default is refused too.
    """

    def decorated(function: Callable[_P, Explorer]) -> Callable[_P, Explorer]:
        arguments, kinds = signature(function), {"model": Model, "setup": Setup, "gpu": Gpu}

        @wraps(function)
        def opened(*args: _P.args, **kwargs: _P.kwargs) -> Explorer:
            given = arguments.bind(*args, **kwargs).arguments
            for name, value in given.items():
                if name in kinds and value is not None:
                    checks.kind(function.__name__, name, value, kinds[name])
            if shown and given.get("setup"):
                _check_setup(function.__name__, given["setup"], shown)
            explorer = function(*args, **kwargs)
            return explorer.asked() if any(value is not None for value in given.values()) else explorer

        said = getdoc(function) or ""
        opened.__doc__ = said if "Raises:" in said else f"{said}\n{_OPENS}"
        return opened

    return decorated


def _check_setup(owner, setup, shown):
    for each in fields(Setup):
        value, usual = getattr(setup, each.name), getattr(Setup(), each.name)
        if each.name not in shown and value != usual:
            raise ValueError(
                f"{owner}.setup.{each.name}: {value!r} is not shown here; allowed: {usual!r}; eb.budget answers for it"
            )


def decided(model: Model | None, setup: Setup | None, *names: str) -> dict[str, int]:
    """{name: value} of these symbols, as far as the model or the setup determines them."""
    return bindings(model, setup, [SYMBOLS[name] for name in names])


#: What the formulas of a dense Llama in the book's code ask of a model.
_DENSE_LLAMA = (*LLAMA, *DENSE)


def gpts() -> dict[str, Model]:
    """The models of the catalog that the formulas of a GPT hold for, by name."""
    return _alike(GPT)


def _alike(rules):
    return {name: model for name, model in models("reference").items() if refused(rules, model) is None}


def a_gpt(model: Model | None) -> tuple[Model, Choice]:
    """(the model, by default GPT-2; the choice among models for which the formulas of a GPT hold).

    Raises:
        ValueError: where they do not hold for `model`.
    """
    return _chosen(model or models("reference")["gpt2"], GPT, gpts())


def a_decoder(model: Model | None, usual: str) -> tuple[Model, Choice]:
    """As `a_gpt`, the choice among dense Llamas of the book's code and GPTs.

    Raises:
        ValueError: where neither's formulas hold for `model`.
    """
    start = model or models("reference")[usual]
    return _chosen(start, _DENSE_LLAMA if start.family == "llama" else GPT, _alike(_DENSE_LLAMA) | gpts())


def _chosen(start, rules, known):
    if unlike := refused(rules, start):
        raise ValueError(unlike)
    every = known | {start.name: start}
    return start, Choice("model", "model", {name: bindings(m, None) for name, m in every.items()}, start.name)


def of_catalog(owner: str, model: Model, known: Mapping[str, Model]) -> None:
    """Raise ValueError unless `model` is one of `known`, in its fields and its code too."""
    checks.one_of(owner, "model", model.name, known)
    if known[model.name] != model:
        code = f"in the code of {model.code!r}" if model.code != "reference" else "with fields of its own"
        raise ValueError(f"{owner}.model: {model.name} {code}; allowed: as the catalog and the book's code have it")


def one_step(setup: Setup | None, chosen: Setup, longest: int, dropouts=(0, 1)) -> list[Choice]:
    """The controls of one step on one GPU, without model and precision.

    Args:
        setup: as the caller gave it; None leaves the shared controls as they are. chosen: where the others start.
        longest: the longest sequence in tokens; the shortest is two. dropouts: the options of dropout, 0 and 1.
    """
    impls = _decided_by(lambda s: s.optimizer_impl, [Setup(optimizer_impl=name) for name in OPTIMIZER_IMPLS])
    masks = [mask for i, mask in enumerate(("(no dropout)", "dropout")) if i in dropouts]
    lengths = steps("sequence", "sequence (tokens)", powers(1, longest.bit_length() - 1), min(chosen.sequence, longest))
    return [
        *asked(chosen, "attention"),
        listed("dropout", "dropout", masks, "dropout" if chosen.dropout else masks[0]),
        *asked(setup, "optimizer"),
        Choice("optimizer_impl", "implementation", impls, chosen.optimizer_impl),
        *asked(setup, "batch"),
        lengths,
    ]


def asked(setup: Setup | None, *names: str) -> list[Choice]:
    """The named controls, set as `setup` has them; with None as they are. They are `attention`, `dropout`, and shared ones."""
    masks = "no dropout", "dropout"  # any above 0 costs the same
    own = {
        "attention": lambda: listed("attention", "attention", ("flash", "eager"), setup and setup.attention, "eager"),
        "dropout": lambda: listed("dropout", "dropout", masks, masks[bool(setup and setup.dropout)]),
    }
    said = {"precision": precision_label, "optimizer": lambda s: s.optimizer}

    def label(name):
        return setup and said.get(name, lambda s: f"{getattr(s, name):,}")(setup)

    return [own[name]() if name in own else shared(name, label(name)) for name in names]


def listed(
    name: str, label: str, labels: Iterable[str], start: str | None = None, symbol: str = "", kind: str = "dropdown"
) -> Choice:
    """A choice whose options give one symbol the option's number; by default the symbol with the control's name."""
    return Choice(name, label, {each: {symbol or name: i} for i, each in enumerate(labels)}, start, kind)


def steps(
    name: str, label: str, values: Sequence[float], start: float, symbol: str = "", said: Callable = "{:,}".format
) -> Choice:
    """A slider over the listed values of one symbol, by default the one with the control's name. said: value -> label."""
    return Choice(name, label, {said(v): {symbol or name: v} for v in values}, said(start), kind="slider")


def powers(least: int, most: int) -> list[int]:
    """2**least, ..., 2**most."""
    return [2**i for i in range(least, most + 1)]


def counted(thing: str, more: str = "s") -> Callable[[int], str]:
    """A function that words a count: 1 -> "1 thing", 2 -> "2 things"."""
    return lambda count: f"{count:,} {thing}{more * (count > 1)}"


gpus_label = counted("GPU")


def precision_label(setup: Setup) -> str:
    """The label of a setup's option in the shared control `precision`."""
    extra = "" if setup.master_gradients == "bf16" else f", {setup.master_gradients} gradients"
    return setup.precision + extra


@cache
def _models():
    return {name: bindings(model, None) for name, model in models("reference").items()}


def cards() -> dict[str, Gpu]:
    """The catalog's GPUs that have memory of their own: what is usable of others depends on their hosts."""
    return {name: card for name, card in gpus().items() if not card.unified}


@cache
def _gpus():
    return {
        name: {
            "card_no": i, "capacity": Headroom().usable(g), "capacity_label": f"{g.title}, usable", "host_link": g.host_link,
            "flop_rate": g.bf16_flops,
        }
        for i, (name, g) in enumerate(cards().items())
    }  # fmt: skip


def usable_of_each(counts: Sequence[int]) -> tuple[str, Printed]:
    """A derived value: what is usable of a card of the catalog where so many GPUs divide the model, NCCL's buffers taken off."""
    several = {n: Setup(gpus=n, sharding="zero3") if n > 1 else Setup() for n in counts}
    usable = [{n: Headroom().usable(card, setup) for n, setup in several.items()} for card in cards().values()]
    return "capacity", looked_up("usable bytes", ("card_no", "shards"), usable)


def looked_up(name: str, symbols: Sequence[str], rows) -> Printed:
    """A quantity that stands in a table. rows: lists by number or mappings by value, one in another, for each of the symbols."""

    def look(*values):
        return reduce(getitem, values, rows)

    return Printed(name, symbols, look, f"(v) => ({json.dumps(rows)})" + "".join(f"[v.{symbol}]" for symbol in symbols))


@cache
def _precisions():
    return _decided_by(precision_label, [Setup(**fields) for fields in PRECISIONS_OF_UPDATES])


@cache
def _optimizers():
    return _decided_by(lambda setup: setup.optimizer, [Setup(optimizer=name) for name in COMMON_OPTIMIZERS])


def _decided_by(label, setups):
    """{label: the symbols' values that differ between the setups}."""
    every = {label(setup): bindings(None, setup) | numbers_of(setup) for setup in setups}
    differ = [name for name in next(iter(every.values())) if len({values[name] for values in every.values()}) > 1]
    return {label: {name: values[name] for name in differ} for label, values in every.items()}


#: Name of a shared control -> (label, function that gives its options, a fresh kernel's option, kind).
_SHARES: dict[str, tuple[str, Callable, str, str]] = {
    "model": ("model", _models, "gpt2", "dropdown"),
    "precision": ("precision", _precisions, "fp32", "dropdown"),
    "optimizer": ("optimizer", _optimizers, "adamw", "dropdown"),
    "batch": ("batch (sequences)", lambda: {f"{n:,}": {"batch": n} for n in powers(0, 10)}, "8", "slider"),
    "sequence": ("sequence (tokens)", lambda: {f"{n:,}": {"sequence": n} for n in powers(0, 20)}, "1,024", "slider"),
    "gpu": ("GPU", _gpus, "h100-80gb", "dropdown"),
}
