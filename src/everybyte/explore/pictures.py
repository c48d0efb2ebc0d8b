"""The kinds of picture: each names its formulas, computes, says and draws a state in Python as picture.js does in the browser.

A quantity is the name of a registered formula, or a sympy expression in the book's notation.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

from sympy import Basic

from .. import draw, units
from ..common.tables import Table
from ..draw.palette import PARTS, ink_on
from ..formulas import Formula, formula


def quantity(q):
    """The formula behind a quantity: registered, or made from a sympy expression for an explorer alone; a course's `Size`."""
    if isinstance(q, str):
        return formula(q)
    return _own(q) if isinstance(q, Basic) else q


@lru_cache(maxsize=1024)
def _own(expr):
    """An expression's formula: one, so that it is compiled once."""
    return Formula(str(expr), "", expr, "", "the explorer's own sum", "")


def amount(value: float, unit: str) -> str:
    """`value` as text: bytes where `unit` is "B", else a count of things."""
    return units.text(value) if unit == "B" else f"{units.number(value)} {unit}".rstrip()


def looks() -> dict:
    """The palette as the picture needs it."""
    return {name: {"color": p.color, "hatch": p.hatch, "ink": ink_on(p.color)} for name, p in PARTS.items()}


def _axis(unit, value):
    if unit != "B":
        return unit
    return next((u for u in ("TiB", "GiB", "MiB", "KiB") if value >= units.UNITS[u]), "B")


#: The dashes of curves, in their order.
DASHES = ("", "8 5", "2 4", "10 4 2 4")


def against(values: Mapping, total: float, fits: Callable[[str, float], str]) -> str:
    """Whether so many bytes fit the `capacity` that the values name, where they do. `fits`: what is said then, of it and what is left."""
    if "capacity" not in values:
        return ""
    free, whole = values["capacity"] - total, f"the {units.text(values['capacity'])} of {values['capacity_label']}"
    return f" {units.text(-free)} more than {whole}: it does not fit." if free < 0 else fits(whole, free)


def shared_out(rows: Sequence[tuple], title: str, first=("part",), last=("total",), unit: str = "B") -> Table:
    """A `Table` of rows that end in an amount: each with its share, and the whole below. first: columns; last: what the whole is called."""
    total = sum(row[-1] for row in rows)
    body = [(*row, amount(row[-1], unit), f"{row[-1] / total:.1%}" if total else "") for row in rows]
    columns = *first, "bytes" if unit == "B" else unit, "that is", "share"
    return Table(columns, [*body, (*last, total, amount(total, unit), "100.0%")], title)


class Kind:
    """A kind of picture: what the picture's program calls it is its `kind`.

    `quantities` are those that it evaluates, `spec` is what the program needs to know, `compute` works out a state's values; `describe` says
    them in a sentence, as the program does, `figure` draws them on paper (variants: {label: values} of the bars), `table` lists them.

    Attributes:
        names: of values that it needs beside those of its quantities. bars: the choice of whose options each is a bar; or "".
    """

    names: Sequence[str] = ()
    bars = ""

    def quantities(self):
        """None, where what it shows was decided before."""
        return []


@dataclass(frozen=True)
class Stack(Kind):
    """Amounts stacked in a bar, against the capacity that the values name `capacity`, where they do.

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

    def spec(self):
        parts = [{"part": part, "label": label, "formula": quantity(q).name} for part, label, q in self.parts]
        return self.shape() | {"parts": parts}

    def shape(self):
        """What the picture needs to know beside its parts."""
        return {"unit": self.unit, "bars": self.bars, "shares": self.shares}

    def compute(self, values):
        """[(part, label, amount)] at the symbols' values."""
        return [(part, label, quantity(q)(**values)) for part, label, q in self.parts]

    def describe(self, subject, values):
        rows = self.compute(values)
        total = sum(x for *_, x in rows)
        text = units.text if self.unit == "B" else units.number
        said = ", ".join(f"{label} {text(x)}" for _, label, x in rows if x)
        whole = units.text(total) if self.unit == "B" else f"{total:,} {self.unit}"

        def fits(room, free):
            return f" {100 * total / values['capacity']:.1f} % of {room}; {units.text(free)} are left."

        return f"{subject}: {said}; {whole} in all.{against(values, total, fits)}"

    def figure(self, title, subject, values, variants):
        rows = {label: {} for label in variants}
        for label, row in variants.items():
            for part, _, x in self.compute(row):
                rows[label][part] = rows[label].get(part, 0) + x
        if self.shares:
            return draw.shares(next(iter(rows.values())), title=f"{title}, {subject}", unit=self.unit)
        unit = _axis(self.unit, max(sum(r.values()) for r in rows.values()))
        named = {name: values[name] for name in ("capacity", "capacity_label") if name in values}
        return draw.stacked(rows, title=f"{title}, {subject}", unit=unit, **named)

    def table(self, subject, values):
        """A `Table` of the state: each part's amount and share."""
        return shared_out([(label, x) for _, label, x in self.compute(values)], subject, unit=self.unit)


@dataclass(frozen=True)
class Lines(Kind):
    """Curves over one symbol, with a mark at its value now.

    Attributes:
        x: the symbol's name. label: in words. values: where the curves are evaluated, ascending; None: sixteen whole numbers in equal
            steps, up to twice the symbol's value now, so that the curves part wherever the slider stands.
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

    def spec(self):
        curves = [
            {"part": part, "label": label, "formula": quantity(q).name, "dash": DASHES[i % 4]}
            for i, (part, label, q) in enumerate(self.curves)
        ]
        x = {"name": self.x, "label": self.label, "values": self.values and list(self.values)}
        return {"x": x, "curves": curves, "unit": self.unit, "log": self.log}

    def describe(self, subject, values):
        said = ", ".join(f"{label} {amount(quantity(q)(**values), self.unit)}" for _, label, q in self.curves)
        return f"{subject + ': ' if subject else ''}at {self.label} {values[self.x]:,}, {said}."

    def _across(self, values):
        return self.values or [max(1, values[self.x] // 8) * i for i in range(1, 17)]

    def _over(self, q, values):
        return [quantity(q)(**{**values, self.x: x}) for x in self._across(values)]

    def figure(self, title, subject, values, variants):
        curves = {label: (part, self._over(q, values)) for part, label, q in self.curves}
        now = [quantity(q)(**values) for *_, q in self.curves]
        unit = _axis(self.unit, max(now if self.log else (max(ys) for _, ys in curves.values())))
        title = f"{title}, {subject}" if subject else title
        return draw.lines(self._across(values), curves, self.label, title, unit=unit, mark=values[self.x], log=self.log)

    def table(self, subject, values):
        """A `Table` of the curves at the state's value, its half and its double."""
        at = [values[self.x] // 2 or 1, values[self.x], values[self.x] * 2]
        rows = [
            (label, *(amount(quantity(q)(**{**values, self.x: x}), self.unit) for x in at))
            for _, label, q in self.curves
        ]
        return Table((self.label, *(f"{x:,}" for x in at)), rows, subject)


def rounded(x: float, spacing: float, largest: float) -> float:
    """`x` > 0 as a number format holds it: round to nearest, ties to even (IEEE 754); infinity above the largest.

    Args:
        spacing: between the format's numbers around `x`.
    """
    value = round(x / spacing) * spacing
    return math.inf if value > largest else value


@dataclass(frozen=True)
class Ranges(Kind):
    """The ranges of number formats on a logarithmic axis, with a number marked in them.

    Attributes:
        rows: {label: {symbol: value}}, the formats to compare with. own: the label of the one that the controls make.
        bounds: {"smallest", "normal", "largest", "epsilon", "spacing"}: quantities, all positive numbers.
        mark: the name of the symbol that holds the number's base-2 logarithm. thing: what that number is.
    """

    rows: Mapping[str, Mapping[str, object]]
    own: str
    bounds: Mapping[str, object]
    mark: str
    thing: str

    kind = "ranges"

    def quantities(self):
        return list(self.bounds.values())

    def spec(self):
        rows = [{"label": label, "values": dict(values)} for label, values in self.rows.items()]
        bounds = {name: quantity(q).name for name, q in self.bounds.items()}
        return {"rows": rows, "own": self.own, "bounds": bounds, "mark": self.mark, "thing": self.thing}

    def compute(self, values):
        """{label: {each of `bounds`: its value}}, the controls' own format first."""
        every = {self.own: values} | {label: {**values, **more} for label, more in self.rows.items()}
        return {label: {name: float(quantity(q)(**v)) for name, q in self.bounds.items()} for label, v in every.items()}

    def _fate(self, x, f):
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

    def describe(self, subject, values):
        rows = self.compute(values)
        x = 2.0 ** values[self.mark]
        own = rows.pop(self.own)
        others = ", ".join(f"{label} {self._fate(x, f)[0]}" for label, f in rows.items())
        span = f"spans {_power(own['smallest'])} to {_plain(own['largest'])}, steps of {_power(own['epsilon'])} above 1"
        verdict = self._fate(x, own)[1]
        return (
            f"{self.own} ({subject}) {span}: a {self.thing} of 2^{values[self.mark]:g} {verdict}. The others: {others}."
        )

    def figure(self, title, subject, values, variants):
        rows = {
            label: {name: math.log2(f[name]) for name in ("smallest", "normal", "largest")}
            for label, f in self.compute(values).items()
        }
        return draw.ranges(rows, mark=values[self.mark], title=f"{title}, {subject}")

    def table(self, subject, values):
        """A `Table` of the formats: smallest, smallest normal, largest, step above one, and what becomes of the number."""
        x = 2.0 ** values[self.mark]
        rows = [
            (
                label,
                *(_power(f[n]) for n in ("smallest", "normal", "epsilon")),
                _plain(f["largest"]),
                self._fate(x, f)[0],
            )
            for label, f in self.compute(values).items()
        ]
        number = f"{self.thing} of 2^{values[self.mark]:g}"
        return Table(("format", "smallest", "smallest normal", "step above 1", "largest", number), rows, subject)


def _power(x):
    return f"2^{round(math.log2(x), 3):g}"


def _plain(x):
    return f"{x:,.6g}" if x < 1e6 else f"{x:.2e}"
