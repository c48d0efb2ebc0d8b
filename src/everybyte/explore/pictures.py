"""The kinds of picture. Each lists its formulas, and computes, describes and draws a state in Python as picture.js does.

A quantity is the name of a registered formula, or a sympy expression in the book's notation.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from types import SimpleNamespace

from sympy import Basic

from .. import draw, units
from ..common.tables import Table
from ..draw.palette import PARTS, ink_on
from ..formulas import Formula, formula


def quantity(q):
    """The formula of a quantity: a registered one, one made from a sympy expression, or the `Size` or `Printed` that it is."""
    if isinstance(q, str):
        return formula(q)
    return _own(q) if isinstance(q, Basic) else q


@dataclass(frozen=True)
class Printed:
    """A quantity given as two functions of the same names: in Python, and in JavaScript as an arrow function of one object."""

    name: str
    names: Sequence[str]
    python: Callable
    javascript: str

    @property
    def symbols(self):
        """The names whose values it needs, as objects with a `name`."""
        return [SimpleNamespace(name=name) for name in self.names]

    def __call__(self, **values):
        return self.python(*(values[name] for name in self.names))


def _is_one(value):
    return isinstance(value, Basic) or hasattr(value, "javascript")


def _spec_of(value):
    """A picture's field as JSON: a quantity by its name, an object with a `spec()` by that."""
    if hasattr(value, "spec"):
        return value.spec()
    if isinstance(value, Mapping):
        return {name: _spec_of(each) for name, each in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return list(map(_spec_of, value))
    return quantity(value).name if _is_one(value) else value


def _found(value):
    if isinstance(value, Mapping):
        value = list(value.values())
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [q for each in value for q in _found(each)]
    return list(value.sizes) if hasattr(value, "sizes") else [value] if _is_one(value) else []


@lru_cache(maxsize=1024)
def _own(expr):
    return Formula(str(expr), "", expr, "", "the explorer's own sum", "")


def amount(value: float, unit: str) -> str:
    """`value` as text: bytes where `unit` is "B", else a count of things."""
    return units.text(value) if unit == "B" else f"{units.number(value)} {unit}".rstrip()


def listed_amounts(rows: Sequence[tuple], unit: str = "B") -> str:
    """A sentence's list of the (label, amount) rows that are not 0: bytes, or counts of things."""
    return ", ".join(f"{label} {units.text(x) if unit == 'B' else units.number(x)}" for label, x in rows if x)


def before(subject: str) -> str:
    """The subject and a colon; empty without a subject."""
    return f"{subject}: " if subject else ""


def labelled(parts: Sequence[str]) -> list[tuple[str, str]]:
    """[(part of the palette, its label)]."""
    return [(part, draw.part(part).label) for part in parts]


def looks() -> dict:
    """The palette as the picture needs it."""
    return {name: {"color": p.color, "hatch": p.hatch, "ink": ink_on(p.color)} for name, p in PARTS.items()}


def _axis(unit, value):
    return units.largest(value) if unit == "B" else unit


def _against(values, total):
    """A sentence whether `total` bytes fit the values' `capacity`; empty without one."""
    if "capacity" not in values:
        return ""
    free, whole = values["capacity"] - total, f"the {units.text(values['capacity'])} of {values['capacity_label']}"
    if free < 0:
        return f" {units.text(-free)} more than {whole}: it does not fit."
    share = 100 * total / values["capacity"]
    return f" {share:.1f} % of {whole}; {units.text(free)} are left.{_in_pieces(values, total)}"


def may_run_out(values: Mapping, total: float) -> bool:
    """Whether so many live bytes fit the values' `capacity`, and do not with the values' `margin` %, which PyTorch's allocator may need."""
    return total <= values.get("capacity", 0) < total * (1 + values.get("margin", 0) / 100)


def _in_pieces(values, total):
    """A sentence on what PyTorch's allocator needs beside `total` live bytes; where `values` have no `margin`, what they say is `alone`."""
    if "margin" not in values:
        return f" {values['alone']}" if "alone" in values else ""
    said = f" In {values['simulated']} such steps simulated, PyTorch's default allocator needed up to {values['margin']} % more than live bytes: "
    return said + ("more than is left, it may run out." if may_run_out(values, total) else "less than is left.")


def shared_out(rows: Sequence[tuple], title: str, first=("part",), last=("total",), unit: str = "B") -> Table:
    """A `Table` of rows that end in an amount, each with its share, and the total. first: columns before it; last: the total's labels."""
    total = sum(row[-1] for row in rows)
    body = [(*row, amount(row[-1], unit), f"{row[-1] / total:.1%}" if total else "") for row in rows]
    columns = *first, "bytes" if unit == "B" else unit, "that is", "share"
    return Table(columns, [*body, (*last, total, amount(total, unit), "100.0%")], title)


class Kind:
    """A kind of picture. `kind` is its name in the picture's program.

    Its fields are the data that the program needs. `compute` gives a state's numbers; `describe` puts them into the sentence that
    the program shows; `figure` draws them with matplotlib (variants: {label: values} of the bars); `table` lists them.

    Attributes:
        bars: the name of the choice with a bar for each option; "" for none.
    """

    bars = ""

    def marked(self) -> tuple[str, ...]:
        """The names of the controls whose state is marked in the picture."""
        return (self.bars,) if self.bars else ()

    def quantities(self):
        """The quantities that it evaluates; empty where all numbers are stored."""
        return _found(vars(self))

    def spec(self):
        """The data for the picture's program."""
        return _spec_of(vars(self))


@dataclass(frozen=True)
class Stack(Kind):
    """Amounts stacked in a bar, against the values' `capacity`, where there is one.

    Attributes:
        parts: [(part of the palette, label, quantity)]. unit: "B" for bytes, else what is counted.
        bars: the name of a choice: a bar for each of its options, the chosen one marked; "" for one bar.
        shares: name each part's share of the whole.
    """

    parts: Sequence[tuple]
    unit: str = "B"
    bars: str = ""
    shares: bool = False

    kind = "stack"

    def quantities(self):
        return [q for _, _, q in self.parts]

    def compute(self, values):
        """[(part, label, amount)] at the symbols' values."""
        return [(part, label, quantity(q)(**values)) for part, label, q in self.parts]

    def describe(self, subject, values):
        rows = [(label, x) for _, label, x in self.compute(values)]
        total = sum(x for _, x in rows)
        whole = units.text(total) if self.unit == "B" else f"{total:,} {self.unit}"
        return f"{subject}: {listed_amounts(rows, self.unit)}; {whole} in all.{_against(values, total)}"

    def figure(self, title, subject, values, variants):
        rows = {label: {} for label in variants}
        for label, row in variants.items():
            for part, _, x in self.compute(row):
                rows[label][part] = rows[label].get(part, 0) + x
        title = f"{title}, {subject}"
        if self.shares:
            return draw.shares(next(iter(rows.values())), title=title, unit=self.unit)
        unit = _axis(self.unit, max(sum(r.values()) for r in rows.values()))
        named = {name: values[name] for name in ("capacity", "capacity_label") if name in values}
        return draw.stacked(rows, title=title, unit=unit, **named)

    def table(self, subject, values):
        return shared_out([(label, x) for _, label, x in self.compute(values)], subject, unit=self.unit)


@dataclass(frozen=True)
class Lines(Kind):
    """Curves over one symbol, with a mark at its value now.

    Attributes:
        x: the symbol's name. label: in words. values: where the curves are evaluated, ascending; None for sixteen equal steps up
            to twice the symbol's present value.
        curves: [(part of the palette, label, quantity)]. unit: "B" or what is counted. log: both axes logarithmic.
    """

    x: str
    label: str
    values: Sequence[float] | None
    curves: Sequence[tuple]
    unit: str = "B"
    log: bool = False

    kind = "lines"

    def quantities(self):
        return [q for _, _, q in self.curves]

    def _across(self, values):
        return self.values or [max(1, values[self.x] // 8) * i for i in range(1, 17)]

    def _over(self, q, values, across=None):
        return [quantity(q)(**{**values, self.x: x}) for x in across or self._across(values)]

    def _now(self, values, *across):
        """(label, amounts in words) of each curve at the values `across`; by default at the present one."""
        return [
            (label, *(amount(y, self.unit) for y in self._over(q, values, across or [values[self.x]])))
            for _, label, q in self.curves
        ]

    def describe(self, subject, values):
        said = ", ".join(map(" ".join, self._now(values)))
        return f"{before(subject)}at {self.label} {values[self.x]:,}, {said}."

    def figure(self, title, subject, values, variants):
        curves = {label: (part, self._over(q, values)) for part, label, q in self.curves}
        if self.log:
            most = max(quantity(q)(**values) for *_, q in self.curves)
        else:
            most = max(max(ys) for _, ys in curves.values())
        title, unit = ", ".join(filter(None, (title, subject))), _axis(self.unit, most)
        return draw.lines(self._across(values), curves, self.label, title, unit=unit, mark=values[self.x], log=self.log)

    def table(self, subject, values):
        """A `Table` of the curves at the state's value, at half and at twice that."""
        at = [values[self.x] // 2 or 1, values[self.x], values[self.x] * 2]
        return Table((self.label, *(f"{x:,}" for x in at)), self._now(values, *at), subject)


def rounded(x: float, spacing: float, largest: float) -> float:
    """`x` > 0, rounded by a number format to nearest, ties to even (IEEE 754); infinity above the largest number.

    Args:
        spacing: between the format's numbers around `x`.
    """
    value = round(x / spacing) * spacing
    return math.inf if value > largest else value


@dataclass(frozen=True)
class Ranges(Kind):
    """The ranges of number formats on a logarithmic axis, with a number marked in them.

    Attributes:
        rows: [(label, {symbol: value})] of the formats to compare with. own: the label of the one that the controls make.
        bounds: quantities of "smallest", "normal", "largest", "epsilon" and "spacing", all positive.
        mark: the symbol of the marked number's base-2 logarithm. thing: what that number is, in words.
    """

    rows: Sequence[tuple[str, Mapping[str, object]]]
    own: str
    bounds: Mapping[str, object]
    mark: str
    thing: str

    kind = "ranges"

    def quantities(self):
        return list(self.bounds.values())

    def compute(self, values):
        """{label: {each of `bounds`: its value}}, the controls' own format first."""
        every = {self.own: values} | {label: {**values, **more} for label, more in self.rows}
        return {label: {name: float(quantity(q)(**v)) for name, q in self.bounds.items()} for label, v in every.items()}

    def _fate(self, values, f):
        """What a format does to the marked number: (in short, in a sentence)."""
        x = 2.0 ** values[self.mark]
        value = rounded(x, f["spacing"], f["largest"])
        if math.isinf(value):
            return "overflows", "overflows: it is above the largest"
        if value == 0:
            return "loses it", "underflows: it becomes 0"
        if value == x:
            return "keeps it", "is kept exactly"
        percent = 100 * abs(value - x) / x
        error = "under 0.01 % off" if percent < 0.01 else f"{percent:.2f} % off"
        exponent = math.floor(math.log2(x))
        return f"rounds it, {error}", f"is rounded to {value / 2.0**exponent:.6g} × 2^{exponent}, {error}"

    def _number(self, values):
        return f"{self.thing} of 2^{values[self.mark]:g}"

    def describe(self, subject, values):
        rows = self.compute(values)
        own = rows.pop(self.own)
        others = ", ".join(f"{label} {self._fate(values, f)[0]}" for label, f in rows.items())
        span = f"spans {_power(own['smallest'])} to {_plain(own['largest'])}, steps of {_power(own['epsilon'])} above 1"
        verdict = self._fate(values, own)[1]
        return f"{self.own} ({subject}) {span}: a {self._number(values)} {verdict}. The others: {others}."

    def figure(self, title, subject, values, variants):
        rows = {
            label: {name: math.log2(f[name]) for name in ("smallest", "normal", "largest")}
            for label, f in self.compute(values).items()
        }
        return draw.ranges(rows, mark=values[self.mark], title=f"{title}, {subject}")

    def table(self, subject, values):
        """A `Table` of the formats: smallest, smallest normal, largest, step above one, and what becomes of the number."""
        rows = []
        for label, f in self.compute(values).items():
            bounds = (_power(f[name]) for name in ("smallest", "normal", "epsilon"))
            rows.append((label, *bounds, _plain(f["largest"]), self._fate(values, f)[0]))
        columns = "format", "smallest", "smallest normal", "step above 1", "largest", self._number(values)
        return Table(columns, rows, subject)


def _power(x):
    return f"2^{round(math.log2(x), 3):g}"


def _plain(x):
    return f"{x:,.6g}" if x < 1e6 else f"{x:.2e}"
