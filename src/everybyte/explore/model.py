"""The explorer of a derived formula: any model's peak, by batch, sequence and GPU; its owners; its timeline."""

import re
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

from .. import checks, draw
from ..catalog import Gpu, gpus
from ..formulas import SYMBOLS
from .controls import Choice, Slider, shared
from .courses import Size
from .explorer import Explorer
from .pictures import Stack
from .step import LOOKS, PLACES, Timeline

_TITLES = {
    "parts": "What a step of {name} takes at its peak",
    "owners": "Whose the bytes are at the peak of {name}",
    "timeline": "The bytes of one step of {name}",
}
#: So many owners are named; the others are one.
_NAMED = 12


def model(derivation, gpu: Gpu | None = None, view: str = "parts") -> Explorer:
    """The peak of a `Derivation`, for every batch and sequence, computed in the browser from its formula.

    Args:
        derivation: what `everybyte.derive` returns. gpu: the one that it opens with.
        view: `parts` at the peak; `owners` of what lives there; the `timeline` of the whole step.

    Raises:
        ValueError: for what is no derivation, an unknown view, or a GPU that is not in the catalog.
    """
    if not hasattr(derivation, "cases"):
        raise ValueError(f"explore.model: a {type(derivation).__name__}; allowed: what everybyte.derive returns")
    checks.one_of("explore.model", "view", view, _TITLES)
    if gpu is not None:
        checks.one_of("explore.model", "gpu", gpu.name, gpus())
    controls = _sizes(derivation)
    said = [c.name for c in controls]
    base = {name: 1 for name, letter in (("batch", "B"), ("sequence", "S")) if letter not in derivation.letters}
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
    parts = _owners(derivation) if view == "owners" else _parts(derivation)
    return Explorer(title, controls, Stack(parts), base=base, subject=[], also=said)


def _sizes(derivation):
    """The sliders of batch and sequence, as far as the formula has them."""
    controls: list = []
    for name, letter, start in (("batch", "B", 8), ("sequence", "S", 1024)):
        if letter not in derivation.letters:
            continue
        low, high = derivation.range(name)
        most = min(high, 512 if name == "batch" else 2**17)
        steps = [2**k for k in range(18) if low <= 2**k <= most] or [low]
        label = "batch" if name == "batch" else "sequence (tokens)"
        first = f"{min(steps, key=lambda n: abs(n - start)):,}"
        controls.append(Choice(name, label, {f"{n:,}": {name: n} for n in steps}, first, "slider"))
    return controls


class _Amount:
    """Bytes of a part at a derivation's peak, as a formula for pictures; of no part, the number of the case."""

    def __init__(self, derivation, name, part=None, owners=None):
        self.name = name
        self._call, self.javascript = derivation.at_the_peak(part, owners)
        self.symbols = [SYMBOLS[field] for field in ("batch", "sequence")]

    def __call__(self, **values):
        return self._call(values["batch"], values["sequence"])


def _parts(derivation):
    used = {c.part for c in derivation.columns if not c.host}
    found = [part for part in derivation.part_names if part in used]
    return [(part, draw.part(part).label, _Amount(derivation, part, part)) for part in found]


def _owners(derivation):
    """(part, label, amount) of what may live at the peak, by owner: the largest ones at the opening, and the others by part."""
    case = derivation.main
    at = [r.some([n], 1)[0] for r, n in ((case.batch, 8), (case.sequence, 1024))]
    named = [row[:2] for row in derivation.at(*at).by_owner()][:_NAMED]
    rows = [(part, f"{owner or 'the model'}, {part}", [owner]) for owner, part in named]
    rest = sorted({(c.part, c.owner) for c in derivation.columns if not c.host and (c.owner, c.part) not in named})
    for part in dict.fromkeys(part for part, _ in rest):
        rows.append((part, f"others, {part}", [owner for p, owner in rest if p == part]))
    return [(part, label, _Amount(derivation, label, part, owners)) for part, label, owners in rows]


class _Courses:
    """The operations of a derivation's cases as the picture runs them; sizes are those of its tensors."""

    names = ("case",)

    def __init__(self, derivation):
        self._d = derivation
        self._sizes: dict[str, int] = {"0": 0}
        self._operations: dict[tuple, int] = {}
        self._steps = [self._step(case) for case in derivation.cases] + [{"rest": [], "items": []}]
        self._bodies = [[[i], [0, None], [0, None]] for i in range(len(self._operations))]
        self.sizes = [Size(f"size {i}", text) for i, text in enumerate(self._sizes)]

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
            found = name, case.course.places[numbers[k]], _starred(owner), _frozen(taken), _frozen(freed)
            items.append(self._operations.setdefault(found, len(self._operations)))
        return {"rest": rest, "items": items}

    def _pieces(self, changed, sign):
        """[part, number of the size] of each column that grows, or with -1 shrinks."""
        found = []
        for c, n in sorted(changed.items()):
            column = self._d.columns[c]
            if n * sign > 0 and not column.host:
                text = self._d.forms[column.form].text(whole="whole({0}, {1})")
                text = text if abs(n) == 1 else f"{abs(n)}*({text})"
                found.append([column.part, self._sizes.setdefault(text, len(self._sizes))])
        return found


_MARKS = ("after_forward", "after_backward", "after_step")


def _starred(owner):
    return re.sub(r"(?<=\.)\d+(?=\.|$)", "*", owner)


def _frozen(pairs):
    return tuple(map(tuple, pairs))


@dataclass(frozen=True)
class _Derived(Timeline):
    """The timeline of a derivation."""

    derivation: object = None

    def spec(self):
        """What the picture needs to know."""
        labels = {name: draw.part(name).label for name in self.derivation.part_names}
        return {"courses": self.courses.spec(), "labels": labels, "places": PLACES}

    def compute(self, values):
        """The step, as `draw.timeline` takes it, with `operations` and the number `at` of the instant looked at."""
        point = self.derivation.at(values["batch"], values["sequence"])
        places = self.derivation.places(values["batch"], values["sequence"])
        operations = [
            (name, place, _starred(owner)) for (name, _, owner), place in zip(point.operations, places, strict=True)
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
