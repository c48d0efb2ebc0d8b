"""The explorer of a derived formula: any model's peak, by batch, sequence and GPU; its owners; its timeline."""

from types import SimpleNamespace

from .. import draw, units
from ..catalog import Gpu, gpus
from ..common import checks
from ..common.tables import Table
from ..derivation import Derivation
from ..derivation.course import changes
from ..derivation.picture import axes, label
from ..derivation.picture import steps as sizes_of
from ..derivation.printing import at_the_peak
from ..step.course import place_of
from ..step.witness import starred
from .controls import opens, shared, steps
from .courses import Printer, Steps
from .explorer import Explorer
from .pictures import Kind, Stack, against
from .step import Timeline, looking

_TITLES = {
    "parts": "What a step of {name} takes at its peak",
    "owners": "Whose the bytes are at the peak of {name}",
    "timeline": "The bytes of one step of {name}",
    "map": "Where the peak of {name} is",
}
#: So many owners are named; the others are one.
_NAMED = 12
#: What the setup calls a letter, and where its slider begins; further ones begin near 224.
_NAMES, _USUAL = {"B": "batch", "S": "sequence"}, {"batch": 8, "sequence": 1024}
#: Sizes that the slider of a further letter offers, where the formula holds.
_SIZES = (
    *(2**k for k in range(14)), *(3 * 2**k for k in range(3, 10)), 28, 56, 112, 160, 224, 240, 299, 320, 336, 448, 518, 640, 896, 1280,
)  # fmt: skip
#: So many points a map has across, and up.
_ACROSS, _UP = 48, 24


@opens()
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
        picture = Timeline(_Courses(derivation), derivation.part_names, said)
        derived = [("case", _Amount(derivation, "case"))]
        base["layers"] = derivation.layers or 0
        return Explorer(title, [*controls, *looking()], picture, base=base, derived=derived, subject=[])
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
            sizes = [2**k for k in range(18) if low <= 2**k <= most] or [low]
        else:
            sizes = sorted(n for n in _SIZES if any(n in r for r in ranges)) or ranges[0].some([], 1)
        near = _USUAL.get(name, 224)
        controls.append(steps(name, _labelled(name), sizes, min(sizes, key=lambda n, near=near: abs(n - near))))
    return controls


class _Amount:
    """A function of a derivation's letters as a formula for pictures: by default the bytes of a part at the peak, the case's number of none.

    Args:
        made: (in Python, in JavaScript).
    """

    def __init__(self, derivation, name, part=None, owners=None, made=None):
        self.name, names = name, _names(derivation).values()

        def said(case, instant, whole):
            if part is None:
                return str(derivation.cases.index(case))
            return derivation.live(instant, part, owners).text(whole)

        self._call, self.javascript = made or at_the_peak(derivation, said)
        self.symbols = [SimpleNamespace(name=name) for name in names]

    def __call__(self, **values):
        return self._call(*(values[s.name] for s in self.symbols))


class _Map(Kind):
    """Which instant is the peak, over two letters, the others as the controls have them."""

    kind = "regions"

    def __init__(self, derivation, over):
        self._d = derivation
        self.across, self.up = axes(derivation, over)
        self._x, self._y = sizes_of(derivation, self.across, _ACROSS), sizes_of(derivation, self.up, _UP)
        self._names = list(dict.fromkeys(map(label, derivation.instants)))
        self._which = _Amount(derivation, "which", made=at_the_peak(derivation, lambda _, i, __: str(self._number(i))))
        self._peak = _Amount(derivation, "peak", made=(derivation.compiled(), derivation.javascript()))
        self._looks = self._parts()

    def _number(self, instant):
        """Which of the labels an instant has."""
        return self._names.index(label(instant))

    def _parts(self):
        """The part whose look each instant has: what there is most of, of those that grow with a step."""
        looks = {}
        places = {"optimizer step": "optimizer", "loss backward": "loss", "loss forward": "loss"}
        for instant in self._d.instants:
            parts = [column.part for column, _ in self._d.there(instant)]
            grown = [part for part in parts if part in ("activations", "gradients", "casts", "unsharded")]
            most = max(dict.fromkeys(grown), key=grown.count, default="activations")
            looks.setdefault(self._number(instant), places.get(instant.at, most))
        taken, found = set(), []
        for number in range(len(self._names)):  # two regions that meet look apart, as far as there are looks
            look = looks[number]
            if look in taken:
                look = next((p for p in _LOOKS if p not in taken), look)
            taken.add(look)
            found.append(look)
        return found

    def quantities(self):
        return [self._which, self._peak]

    def spec(self):
        x, y = (
            {"name": name, "label": _labelled(name), "values": values}
            for name, values in ((self.across, self._x), (self.up, self._y))
        )
        regions = [[look, name] for look, name in zip(self._looks, self._names, strict=True)]
        return {"x": x, "y": y, "which": "which", "amount": "peak", "regions": regions}

    def compute(self, values):
        """The map, a row for each size up: (number of the instant, bytes) each; and the same `now`."""

        def run(more):
            at = {**values, **more}
            return self._which(**at), self._peak(**at)

        rows = [[run({self.across: x, self.up: y}) for x in self._x] for y in self._y]
        return SimpleNamespace(rows=rows, now=run({}), names=self._names)

    def describe(self, subject, values):
        found = self.compute(values)
        which, peak = found.now
        count = sum(cell[0] == which for row in found.rows for cell in row)
        said = f"{subject}: the peak of {units.text(peak)} is in {found.names[which]}, as at {count:,} of the "
        said += f"{len(self._x) * len(self._y):,} points of the map."
        return said + against(values, peak, lambda whole, _: f" It fits {whole}.")

    def figure(self, title, subject, values, variants):
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
    at = {names[x]: r.some([_USUAL.get(names[x], 224)], 1)[0] for x, r in ranges.items()}
    named = [row[:2] for row in derivation.at(**at).by_owner()][:_NAMED]
    rows = [(part, f"{owner or 'the model'}, {part}", [owner]) for owner, part in named]
    rest = sorted({(c.part, c.owner) for c in derivation.columns if not c.host and (c.owner, c.part) not in named})
    for part in dict.fromkeys(part for part, _ in rest):
        rows.append((part, f"others, {part}", [owner for p, owner in rest if p == part]))
    return [(part, label, _Amount(derivation, label, part, owners)) for part, label, owners in rows]


class _Courses(Steps):
    """The operations of a derivation's cases as the picture runs them; sizes are those of its tensors."""

    named = True

    def __init__(self, derivation):
        super().__init__(("case",), (), _Cases(derivation).tables(), _names(derivation))


class _Cases(Printer):
    """Puts the operations of a derivation's cases into tables."""

    def __init__(self, derivation):
        super().__init__()
        self._d, self._nothing = derivation, ((derivation.part_names[0], self.size("0")),)
        for i, case in enumerate(derivation.cases):
            self.batches[str(i)] = self._case(case)
        self.updates[""] = self.put([], [])

    def _case(self, case):
        (_, first), *inner, (_, last) = changes(case.course)  # the first and the last stand between steps
        rest, items = self._changed(first, 1), []
        following = [more for _, more in inner[1:]]
        for (o, more), then in zip(inner, [*following, {}], strict=True):
            freed, taken = self._changed(then, -1), self._changed(more, 1) or self._nothing
            items.append(self.body([self.operation(o.name, place_of(o), starred(o.owner), taken, freed)]))
        return self.put(rest, items)

    def _changed(self, changed, sign):
        """Pairs of a part and the number of a size, of each column that grows, or with -1 shrinks."""
        found = []
        for c, n in sorted(changed.items()):
            column = self._d.columns[c]
            if n * sign > 0 and not column.host:
                text = self._d.forms[column.form].text(whole="down({0}, {1})")
                found.append((column.part, self.size(text if abs(n) == 1 else f"{abs(n)}*({text})")))
        return tuple(found)
