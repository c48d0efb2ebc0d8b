"""The explorer of a derivation: any model's peak by batch, sequence and GPU, its owners, its timeline, its map."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import SimpleNamespace

from .. import draw, units
from ..catalog import Gpu, gpus
from ..common import checks
from ..common.tables import Table
from ..derivation import Derivation
from ..derivation.course import changes
from ..derivation.picture import axes as map_axes
from ..derivation.picture import label as where
from ..derivation.picture import steps as map_sizes
from ..derivation.printing import at_the_peak
from ..step.course import place_of
from ..step.witness import starred
from .beside import said
from .controls import opens, shared, steps
from .courses import Printer, Steps
from .explorer import Explorer
from .pictures import Kind, Printed, Stack, against, labelled
from .step import Timeline, looking

#: View -> its title.
_TITLES: dict[str, str] = said("model")["titles"]
#: The most owners that are shown by name; the others are one row per part.
_NAMED = 12
#: Letter -> the setup's name for it; name -> where its slider begins. Further letters begin near 224.
_NAMES, _USUAL = {"B": "batch", "S": "sequence"}, {"batch": 8, "sequence": 1024}
#: Sizes that the slider of a further letter may offer.
_SIZES = (
    *(2**k for k in range(14)), *(3 * 2**k for k in range(3, 10)), 28, 56, 112, 160, 224, 240, 299, 320, 336, 448, 518, 640, 896, 1280,
)  # fmt: skip
#: Points of a map, across and up.
_ACROSS, _UP = 48, 24


@opens()
def model(derivation, gpu: Gpu | None = None, view: str = "parts", over: tuple[str, str] | None = None) -> Explorer:
    """The peak of a `Derivation` for every batch, sequence and further letter, computed in the browser from its formula.

    Args:
        derivation: from `everybyte.derive`. gpu: the one that it opens with.
        view: `parts` at the peak; `owners` of what lives there; the `timeline` of the whole step; or the `map`, which instant
            is the peak at which sizes. over: the two letters of the map, across and up; by default those of `Derivation.figure`.

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
    shown = [c.name for c in controls]
    base = {"alone": said("model")["alone"]} | {
        name: 1 for letter, name in _NAMES.items() if letter not in derivation.letters
    }
    title = _TITLES[view].format(name=derivation.name)
    if view == "timeline":
        picture: Kind = Timeline(_Courses(derivation), labelled(derivation.part_names), shown)
        number = at_the_peak(derivation, lambda case, *_: str(derivation.cases.index(case)))
        derived = [("case", _amount(derivation, "case", number))]
        base["layers"] = derivation.layers or 0
        return Explorer(title, [*controls, *looking()], picture, base=base, derived=derived, subject=[])
    controls.append(shared("gpu", gpu and gpu.name))
    if view == "map":
        picture = _map(derivation, over)
    else:
        rows = _owners(derivation) if view == "owners" else _parts(derivation)
        picture = Stack([(part, label, _live(derivation, label, part, owners)) for part, label, owners in rows])
    return Explorer(title, controls, picture, base=base, subject=[], also=shown)


def _names(derivation):
    """Letter -> its name in code."""
    return _NAMES | {letter: letter for letter in derivation.further}


def _sizes(derivation):
    """The sliders of batch, sequence and further letters that the formula has."""
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


def _amount(derivation, name, made):
    """A quantity from a function of a derivation's letters. made: (the function in Python, in JavaScript)."""
    return Printed(name, tuple(_names(derivation).values()), *made)


def _live(derivation, name, part, owners):
    """A quantity: the bytes of a part at the peak, or of some owners' tensors in it."""
    made = at_the_peak(derivation, lambda _, instant, whole: derivation.live(instant, part, owners).text(whole))
    return _amount(derivation, name, made)


@dataclass(frozen=True)
class Regions(Kind):
    """A map over two letters: which instant is the peak, and where the peak fits. Other letters are as the controls have them.

    Attributes:
        x, y: {name, label, values} of a letter. regions: (part of the palette, label) of each instant.
        which: the quantity that gives a number in `regions`; amount: the bytes. others: letters that the figure's title names.
    """

    x: Mapping
    y: Mapping
    which: object
    amount: object
    regions: Sequence[tuple[str, str]]
    others: Sequence[str] = ()

    kind = "regions"

    def compute(self, values):
        """`rows` of the map, one per value of y: (number of the region, bytes) for each x; and the same for `now`."""

        def run(more):
            at = {**values, **more}
            return self.which(**at), self.amount(**at)

        rows = [[run({self.x["name"]: x, self.y["name"]: y}) for x in self.x["values"]] for y in self.y["values"]]
        return SimpleNamespace(rows=rows, now=run({}), names=[name for _, name in self.regions])

    def _counts(self, found):
        """(the number of points, {number of a region: its points})."""
        flat = [which for row in found.rows for which, _ in row]
        return len(flat), Counter(flat)

    def describe(self, subject, values):
        found = self.compute(values)
        which, peak = found.now
        points, counts = self._counts(found)
        alike = f"as at {counts[which]:,} of the {points:,} points of the map."
        fits = against(values, peak, lambda whole, _: f" Its tensors fit {whole}.")
        return f"{subject}: the peak of {units.text(peak)} is in {found.names[which]}, {alike}{fits}"

    def figure(self, title, subject, values, variants):
        found = self.compute(values)
        where, amounts = ([[cell[i] for cell in row] for row in found.rows] for i in (0, 1))
        fixed = "".join(f", {name} {values[name]:,}" for name in self.others)
        limits = {f"{values['capacity_label']}: {units.text(values['capacity'])}": (amounts, values["capacity"])}
        axes = self.x["values"], self.y["values"], where, self.regions, self.x["label"], self.y["label"]
        return draw.regions(*axes, title + fixed, limits, (values[self.x["name"]], values[self.y["name"]]))

    def table(self, subject, values):
        points, counts = self._counts(self.compute(values))
        rows = [(self.regions[i][1], n, f"{n / points:.1%}") for i, n in sorted(counts.items())]
        return Table(("peak in", "points", "share"), rows, subject)


def _map(derivation, over):
    axes = [
        {"name": name, "label": _labelled(name), "values": map_sizes(derivation, name, most)}
        for name, most in zip(map_axes(derivation, over), (_ACROSS, _UP), strict=True)
    ]
    names = list(dict.fromkeys(map(where, derivation.instants)))

    def number(instant):
        return names.index(where(instant))

    which = _amount(derivation, "which", at_the_peak(derivation, lambda _, instant, __: str(number(instant))))
    peak = _amount(derivation, "peak", (derivation.compiled(), derivation.javascript()))
    regions = list(zip(_looks(derivation, number, len(names)), names, strict=True))
    shown = [axis["name"] for axis in axes]
    others = [name for name in _names(derivation).values() if name in derivation.letters and name not in shown]
    return Regions(*axes, which, peak, regions, others)


def _looks(derivation, number, count):
    """The part whose look each region has, by number: the one with most tensors at the instant, of those that grow with a step."""
    looks = {}
    places = {"optimizer step": "optimizer", "loss backward": "loss", "loss forward": "loss"}
    for instant in derivation.instants:
        grown = [column.part for column, _ in derivation.there(instant) if column.part in _GROWN]
        most = max(dict.fromkeys(grown), key=grown.count, default="activations")
        looks.setdefault(number(instant), places.get(instant.at, most))
    found = []
    for i in range(count):  # two regions that meet look apart, as far as there are looks
        free = looks[i] not in found
        found.append(looks[i] if free else next((part for part in _LOOKS if part not in found), looks[i]))
    return found


#: Parts that grow with a step; looks for regions that would look like another one.
_GROWN = ("activations", "gradients", "casts", "unsharded")
_LOOKS = (*_GROWN, "buffers", "parameters", "loss", "optimizer")


def _labelled(name):
    return {"sequence": "sequence (tokens)"}.get(name, name)


def _parts(derivation):
    """(part, label, None) of each part that may live at the peak."""
    used = {c.part for c in derivation.columns if not c.host}
    return [(part, draw.part(part).label, None) for part in derivation.part_names if part in used]


def _owners(derivation):
    """(part, label, owners) of what may live at the peak: the largest owners at the opening state, then all others by part."""
    names, ranges = _names(derivation), derivation.main.ranges
    at = {names[x]: r.some([_USUAL.get(names[x], 224)], 1)[0] for x, r in ranges.items()}
    named = [row[:2] for row in derivation.at(**at).by_owner()][:_NAMED]
    rows = [(part, f"{owner or 'the model'}, {part}", [owner]) for owner, part in named]
    rest = sorted({(c.part, c.owner) for c in derivation.columns if not c.host and (c.owner, c.part) not in named})
    for part in dict.fromkeys(part for part, _ in rest):
        rows.append((part, f"others, {part}", [owner for p, owner in rest if p == part]))
    return rows


class _Courses(Steps):
    named = True

    def __init__(self, derivation):
        super().__init__(("case",), (), _Cases(derivation).tables(), _names(derivation))


class _Cases(Printer):
    def __init__(self, derivation):
        super().__init__()
        self._d, self._nothing = derivation, ((derivation.part_names[0], self.put("sizes", "0")),)
        for i, case in enumerate(derivation.cases):
            self.batches[str(i)] = self._case(case)
        self.updates[""] = self.put("steps", ((), ()))

    def _case(self, case):
        (_, first), *inner, (_, last) = changes(case.course)  # the first and the last stand between steps
        rest, items = self._changed(first, 1), []
        following = [more for _, more in inner[1:]]
        for (o, more), then in zip(inner, [*following, {}], strict=True):
            freed, taken = self._changed(then, -1), self._changed(more, 1) or self._nothing
            operation = self.put("operations", (o.name, place_of(o), starred(o.owner), taken, freed))
            items.append(self.put("bodies", ((operation,), (0, None), (0, None))))
        return self.put("steps", (rest, tuple(items)))

    def _changed(self, changed, sign):
        """(part, number of a size) of each column that grows; with sign -1, that shrinks."""
        found = []
        for c, n in sorted(changed.items()):
            column = self._d.columns[c]
            if n * sign > 0 and not column.host:
                text = self._d.forms[column.form].text(whole="down({0}, {1})")
                found.append((column.part, self.put("sizes", text if abs(n) == 1 else f"{abs(n)}*({text})")))
        return tuple(found)
