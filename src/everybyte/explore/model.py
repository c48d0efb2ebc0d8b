"""The explorer of a derived formula: any model's peak, by batch, sequence and GPU; its owners; its timeline."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from types import SimpleNamespace
from typing import Any

from .. import checks, draw, units
from ..catalog import Gpu, gpus
from ..derivation import Derivation
from ..tables import Table
from ..witness import starred
from .controls import Choice, Slider, opens, shared
from .explorer import Explorer
from .pictures import Stack
from .step import LOOKS, PLACES, Timeline

_TITLES = {
    "parts": "What a step of {name} takes at its peak",
    "owners": "Whose the bytes are at the peak of {name}",
    "timeline": "The bytes of one step of {name}",
    "map": "Where the peak of {name} is",
}
#: So many owners are named; the others are one.
_NAMED = 12
#: What the setup calls a letter.
_NAMES = {"B": "batch", "S": "sequence"}
#: Sizes that the slider of a further letter offers, where the formula holds.
_SIZES = (
    *(2**k for k in range(14)), *(3 * 2**k for k in range(3, 10)), 28, 56, 112, 160, 224, 240, 299, 320, 336, 448, 518, 640, 896, 1280,
)  # fmt: skip
#: So many points a map has across, and up.
_ACROSS, _UP = 48, 24


@opens
def model(derivation, gpu: Gpu | None = None, view: str = "parts", over: tuple[str, str] | None = None) -> Explorer:
    """The peak of a `Derivation`, for every batch, sequence and further letter, computed in the browser from its formula.

    Args:
        derivation: what `everybyte.derive` returns. gpu: the one that it opens with.
        view: `parts` at the peak; `owners` of what lives there; the `timeline` of the whole step; the `map` of which instant
            is the peak where. over: the two letters of the map, across and up; by default as `Derivation.figure`'s.

    Raises:
        ValueError: for what is no derivation, an unknown view, a map of one letter, or a GPU that is not in the catalog.
    """
    if not isinstance(derivation, Derivation):
        raise ValueError(f"explore.model: a {type(derivation).__name__}; allowed: what everybyte.derive returns")
    checks.one_of("explore.model", "view", view, _TITLES)
    if gpu is not None:
        checks.one_of("explore.model", "gpu", gpu.name, gpus())
    if over is not None and view != "map":
        raise ValueError(f"explore.model.over: {over!r} with view {view!r}; allowed: with view 'map'")
    controls = _sizes(derivation)
    said = [c.name for c in controls]
    base = {name: 1 for letter, name in _NAMES.items() if letter not in derivation.letters}
    title = _TITLES[view].format(name=derivation.name)
    if view == "timeline":
        controls += [
            Choice("look", "look at", {label: {"look": i} for i, label in enumerate(LOOKS)}, "the peak"),
            Slider("place", "place (\u2030)", 0, PLACES, 0, sets={"look": 0}),
        ]
        courses: Any = _Courses(derivation)
        picture = _Derived(courses, derivation)
        base |= {"layers": derivation.layers or 0}
        return Explorer(
            title, controls, picture, base=base, derived=[("case", _Amount(derivation, "case"))], subject=[]
        )
    controls.append(shared("gpu", gpu and gpu.name))
    if view == "map":
        return Explorer(title, controls, _Map(derivation, over), base=base, subject=[], also=said)
    parts = _owners(derivation) if view == "owners" else _parts(derivation)
    return Explorer(title, controls, Stack(parts), base=base, subject=[], also=said)


def _names(derivation):
    """Letter -> its name in code."""
    return _NAMES | {letter: letter for letter in derivation.further}


def _sizes(derivation):
    """The sliders of batch, sequence and further letters, as far as the formula has them."""
    controls: list = []
    for letter in derivation.letters:
        name = _names(derivation)[letter]
        low, high = derivation.range(name)
        ranges = [case.ranges[letter] for case in derivation.cases]
        if letter in _NAMES:
            most = min(high, 512 if name == "batch" else 2**17)
            steps = [2**k for k in range(18) if low <= 2**k <= most] or [low]
        else:
            steps = sorted(n for n in _SIZES if any(n in r for r in ranges)) or ranges[0].some([], 1)
        start = {"batch": 8, "sequence": 1024}.get(name, 224)
        label = {"batch": "batch", "sequence": "sequence (tokens)"}.get(name, name)
        first = f"{min(steps, key=lambda n, start=start: abs(n - start)):,}"
        controls.append(Choice(name, label, {f"{n:,}": {name: n} for n in steps}, first, "slider"))
    return controls


def _at(derivation, values):
    """The sizes of all letters, in their order."""
    return [values[name] for name in _names(derivation).values()]


class _Amount:
    """Bytes of a part at a derivation's peak, as a formula for pictures; of no part, the number of the case."""

    def __init__(self, derivation, name, part=None, owners=None):
        self.name, self._derivation = name, derivation
        self._call, self.javascript = self._made(part, owners)
        self.symbols = [SimpleNamespace(name=name) for name in _names(derivation).values()]

    def _made(self, part, owners):
        return self._derivation.at_the_peak(part, owners)

    def __call__(self, **values):
        return self._call(*_at(self._derivation, values))


class _Peak(_Amount):
    """Bytes of the peak."""

    def _made(self, part, owners):
        return self._derivation.compiled(), self._derivation.javascript()


class _Which(_Amount):
    """The number of the instant that is the peak, by its label."""

    def __init__(self, derivation, name):
        self.labels = list(dict.fromkeys(map(derivation.label, derivation.instants)))
        super().__init__(derivation, name)

    def number(self, instant) -> int:
        """Which of the labels an instant has."""
        return self.labels.index(self._derivation.label(instant))

    def _made(self, part, owners):
        return self._derivation.number_at_the_peak(self.number)


class _Map:
    """Which instant is the peak, over two letters, the others as the controls have them."""

    kind = "regions"

    def __init__(self, derivation, over):
        self._d = derivation
        self.across, self.up = derivation.map_axes(over)
        self._x, self._y = derivation.map_sizes(self.across, _ACROSS), derivation.map_sizes(self.up, _UP)
        self._which, self._peak = _Which(derivation, "which"), _Peak(derivation, "peak")
        self._looks = self._parts()

    def _parts(self):
        """The part whose look each instant has: what there is most of, of those that grow with a step."""
        looks = {}
        places = {"optimizer step": "optimizer", "loss backward": "loss", "loss forward": "loss"}
        for case in self._d.cases:
            for i in case.rounded:
                instant = case.instants[i]
                columns = [(self._d.columns[c].part, n) for c, n in instant.counts if not self._d.columns[c].host]
                grown = [part for part, _ in columns if part in ("activations", "gradients", "casts", "unsharded")]
                most = max(dict.fromkeys(grown), key=grown.count, default="activations")
                looks.setdefault(self._which.number(instant), places.get(instant.at, most))
        taken, found = set(), []
        for number in range(len(self._which.labels)):  # two regions that meet look apart, as far as there are looks
            look = looks[number]
            if look in taken:
                look = next((p for p in _LOOKS if p not in taken), look)
            taken.add(look)
            found.append(look)
        return found

    def quantities(self):
        """Every quantity that it evaluates."""
        return [self._which, self._peak]

    def spec(self):
        """What the picture needs to know."""
        x, y = (
            {"name": name, "label": _labelled(name), "values": values}
            for name, values in ((self.across, self._x), (self.up, self._y))
        )
        regions = [[look, name] for look, name in zip(self._looks, self._which.labels, strict=True)]
        return {"x": x, "y": y, "which": "which", "amount": "peak", "regions": regions}

    def compute(self, values):
        """The map, a row for each size up: (number of the instant, bytes) each; and the same `now`."""

        def run(more):
            at = {**values, **more}
            return self._which(**at), self._peak(**at)

        rows = [[run({self.across: x, self.up: y}) for x in self._x] for y in self._y]
        return SimpleNamespace(rows=rows, now=run({}), names=self._which.labels)

    def describe(self, subject, values):
        """The sentence for a state, as picture.js says it."""
        found = self.compute(values)
        which, peak = found.now
        count = sum(cell[0] == which for row in found.rows for cell in row)
        said = f"{subject}: the peak of {units.text(peak)} is in {found.names[which]}"
        said += f", as at {count:,} of the {len(self._x) * len(self._y):,} points of the map."
        free, whole = values["capacity"] - peak, f"the {units.text(values['capacity'])} of {values['capacity_label']}"
        return said + (
            f" {units.text(-free)} more than {whole}: it does not fit." if free < 0 else f" It fits {whole}."
        )

    def figure(self, title, subject, values, variants):
        """matplotlib's figure of the same state."""
        found = self.compute(values)
        where = [[cell[0] for cell in row] for row in found.rows]
        limit = [[cell[1] for cell in row] for row in found.rows], values["capacity"]
        regions = list(zip(self._looks, found.names, strict=True))
        others = [n for n in _names(self._d).values() if n in self._d.letters and n not in (self.across, self.up)]
        fixed = "".join(f", {name} {values[name]:,}" for name in others)
        return draw.regions(
            self._x, self._y, where, regions, _labelled(self.across), _labelled(self.up), title + fixed,
            {f"{values['capacity_label']}: {units.text(values['capacity'])}": limit}, (values[self.across], values[self.up]),
        )  # fmt: skip

    def table(self, subject, values):
        """A `Table` of the state: of each instant on how many points of the map it is the peak."""
        found = self.compute(values)
        flat = [cell[0] for row in found.rows for cell in row]
        rows = [
            (name, flat.count(i), f"{flat.count(i) / len(flat):.1%}") for i, name in enumerate(found.names) if i in flat
        ]
        return Table(("peak in", "points", "share"), rows, subject)


#: Looks of regions that would have another's.
_LOOKS = ("activations", "gradients", "casts", "unsharded", "buffers", "parameters", "loss", "optimizer")


def _labelled(name):
    return {"sequence": "sequence (tokens)"}.get(name, name)


def _parts(derivation):
    used = {c.part for c in derivation.columns if not c.host}
    found = [part for part in derivation.part_names if part in used]
    return [(part, draw.part(part).label, _Amount(derivation, part, part)) for part in found]


def _owners(derivation):
    """(part, label, amount) of what may live at the peak, by owner: the largest ones at the opening, and the others by part."""
    names, ranges = _names(derivation), derivation.main.ranges
    at = {names[x]: r.some([{"B": 8, "S": 1024}.get(x, 224)], 1)[0] for x, r in ranges.items()}
    named = [row[:2] for row in derivation.at(**at).by_owner()][:_NAMED]
    rows = [(part, f"{owner or 'the model'}, {part}", [owner]) for owner, part in named]
    rest = sorted({(c.part, c.owner) for c in derivation.columns if not c.host and (c.owner, c.part) not in named})
    for part in dict.fromkeys(part for part, _ in rest):
        rows.append((part, f"others, {part}", [owner for p, owner in rest if p == part]))
    return [(part, label, _Amount(derivation, label, part, owners)) for part, label, owners in rows]


@dataclass(frozen=True)
class _Bytes:
    """Bytes of a tensor, as a formula for pictures: `text` in the letters of a derivation, `letters` with their names in code."""

    name: str
    text: str
    letters: Sequence[tuple[str, str]]

    @property
    def symbols(self):
        """What it needs a value of."""
        return [SimpleNamespace(name=name) for letter, name in self.letters if re.search(rf"\b{letter}\b", self.text)]

    @cached_property
    def javascript(self):
        """An arrow function of an object with the names as fields; what it calls is the picture's `helpers`."""
        names = dict(self.letters)
        source = re.sub(r"\b[A-Z]\b", lambda found: f"v.{names[found[0]]}", self.text)
        return "(v) => " + source.replace("down(", "helpers.down(")

    @cached_property
    def _code(self):
        return compile(self.text, self.name, "eval")

    def __call__(self, **values):
        """The bytes."""
        at = {letter: values[name] for letter, name in self.letters}
        return eval(self._code, {"__builtins__": {}, "down": lambda a, b: a // b}, at)  # noqa: S307  a form's own text


class _Courses:
    """The operations of a derivation's cases as the picture runs them; sizes are those of its tensors."""

    names = ("case",)

    def __init__(self, derivation):
        self._d = derivation
        self._sizes: dict[str, int] = {"0": 0}
        self._operations: dict[tuple, int] = {}
        self._steps = [self._step(case) for case in derivation.cases] + [{"rest": [], "items": []}]
        self._bodies = [[[i], [0, None], [0, None]] for i in range(len(self._operations))]
        self.sizes = [
            _Bytes(f"size {i}", text, tuple(_names(derivation).items())) for i, text in enumerate(self._sizes)
        ]

    def spec(self):
        """What the picture needs to know."""
        last = len(self._steps) - 1
        return {
            "by": ["case"], "update_by": [], "batches": {str(i): i for i in range(last)}, "updates": {"": last},
            "steps": self._steps, "operations": list(self._operations), "bodies": self._bodies,
            "sizes": [size.name for size in self.sizes], "marks": list(_MARKS), "named": True,
        }  # fmt: skip

    def _step(self, case):
        numbers, changes = case.course.every_change()
        rest = self._pieces(changes[0], 1)
        items = []
        for k in range(1, len(numbers) - 1):  # the first and the last stand between steps
            name, _, owner = case.course.operations[numbers[k]]
            freed = self._pieces(changes[k + 1], -1) if k + 2 < len(numbers) else []
            taken = self._pieces(changes[k], 1) or [[self._d.part_names[0], 0]]
            found = name, case.course.places[numbers[k]], starred(owner), _frozen(taken), _frozen(freed)
            items.append(self._operations.setdefault(found, len(self._operations)))
        return {"rest": rest, "items": items}

    def _pieces(self, changed, sign):
        """[part, number of the size] of each column that grows, or with -1 shrinks."""
        found = []
        for c, n in sorted(changed.items()):
            column = self._d.columns[c]
            if n * sign > 0 and not column.host:
                text = self._d.forms[column.form].text(whole="down({0}, {1})")
                text = text if abs(n) == 1 else f"{abs(n)}*({text})"
                found.append([column.part, self._sizes.setdefault(text, len(self._sizes))])
        return found


_MARKS = ("after_forward", "after_backward", "after_step")


def _frozen(pairs):
    return tuple(map(tuple, pairs))


@dataclass(frozen=True)
class _Derived(Timeline):
    """The timeline of a derivation."""

    derivation: Any = None

    def spec(self):
        """What the picture needs to know."""
        labels = [
            (name, draw.part(name).label) for name in self.derivation.part_names
        ]  # a list: a stored state sorts keys
        return {"courses": self.courses.spec(), "labels": labels, "places": PLACES, "sizes": self.sizes}

    @property
    def sizes(self):
        """What says how large the step is."""
        return [name for letter, name in _names(self.derivation).items() if letter in self.derivation.letters]

    def compute(self, values):
        """The step, as `draw.timeline` takes it, with `operations` and the number `at` of the instant looked at."""
        at = {name: values[name] for name in _names(self.derivation).values()}
        point, places = self.derivation.at(**at), self.derivation.places(**at)
        operations = [
            (name, place, starred(owner)) for (name, _, owner), place in zip(point.operations, places, strict=True)
        ]
        last, top = len(operations) - 1, point.peak_operation
        looks = [(2 * values["place"] * last + PLACES) // (2 * PLACES), top, *(point.marks[m] for m in _MARKS)]
        return SimpleNamespace(
            timeline=point.timeline, live=point.live, marks=point.marks, operations=operations, at=looks[values["look"]],
            peak=point.peak, peak_operation=top, peak_at=operations[top][1], parts=point.parts,
        )  # fmt: skip

    def describe(self, subject, values):
        """The sentence for a state, as picture.js says it."""
        return super().describe(subject, values).removeprefix(", ")

    def _instant(self, course, layers):
        name, moment, owner = course.operations[course.at]
        where = f", module {owner}" if owner else ""
        what = name.replace("_", " ") if name in ("rest", *_MARKS) else f"{moment}{where}, {name}"
        parts = {p: line[course.at] for p, line in course.timeline().items() if line[course.at]}
        return what + (" (the peak)" if course.at == course.peak_operation else ""), parts
