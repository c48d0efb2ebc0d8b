"""The explorers of one training step, operation by operation, with any of its instants named and taken apart."""

from collections.abc import Sequence
from dataclasses import dataclass
from types import SimpleNamespace

from sympy import Min, ceiling

from .. import draw, units
from ..ask.setup import Setup
from ..catalog import Model
from ..formulas.compute import BACKWARD, FORWARD
from ..formulas.symbols import K, L, segmented
from ..rules.formulas import GPT, refused
from ..theory import MARKS, PARTS
from ..theory.budget import not_derived
from .beside import said
from .controls import OF_THE_STEP, Choice, Slider, asked, gpts, listed, of_the_step, opens
from .courses import BY, LONE, UPDATE_BY, Courses, Steps, cases, kinds, only
from .explorer import Explorer, told
from .pictures import Kind, quantity, shared_out

#: What the picture may look at, in the order of the control's options.
LOOKS = ("the slider's place", "the peak", *(mark.replace("_", " ") for mark in MARKS))
#: The slider's steps from the step's beginning to its end.
PLACES = 1000


@dataclass(frozen=True)
class Timeline(Kind):
    """Live bytes by part over the operations of a step, which it goes through itself, with one instant taken apart.

    Attributes:
        courses: the steps that the values choose from. The values name the `place` of the slider and the `look`, a number in
            `LOOKS`. parts: of the palette, in their order. sizes: the names of values that say how large the step is.
    """

    courses: Steps
    parts: Sequence[str] = PARTS
    sizes: Sequence[str] = ("batch", "sequence")

    kind = "timeline"

    @property
    def names(self):
        """The names of values that choose a course."""
        return self.courses.names

    def quantities(self):
        return list(self.courses.sizes)

    def spec(self):
        labels = [(name, draw.part(name).label) for name in self.parts]  # a list: a stored state sorts keys
        return {"courses": self.courses.spec(), "labels": labels, "places": PLACES, "sizes": self.sizes}

    def compute(self, values):
        """The step, as `draw.timeline` takes it, with `operations` and the number `at` of the instant looked at."""
        operations, lines, marks = self.courses.unrolled(values)
        lines = {part: lines.get(part, [0] * len(operations)) for part in self.parts}
        live = [sum(parts) for parts in zip(*lines.values(), strict=True)]
        top, last = live.index(max(live)), len(live) - 1
        looks = [(2 * values["place"] * last + PLACES) // (2 * PLACES), top, *(marks[mark] for mark in MARKS)]
        return SimpleNamespace(
            timeline=lambda: lines, live=live, marks=marks, operations=operations, at=looks[values["look"]],
            peak=live[top], peak_operation=top, peak_at=operations[top][1], parts={p: x[top] for p, x in lines.items()},
        )  # fmt: skip

    def _instant(self, course, values):
        name, moment, owner = course.operations[course.at]
        where = f", module {owner}" if owner and self.courses.named else ""
        if owner.startswith("blocks.") and not self.courses.named:
            where = f", block {int(owner.split('.')[1]) + 1} of {values['layers']}"
        what = name.replace("_", " ") if name in ("rest", *MARKS) else f"{moment}{where}, {name}"
        parts = [(draw.part(p).label, line[course.at]) for p, line in course.timeline().items() if line[course.at]]
        return what + (" (the peak)" if course.at == course.peak_operation else ""), parts

    def _of(self, subject, values):
        return ", ".join(filter(None, (subject, *(f"{name} {values[name]:,}" for name in self.sizes))))

    def _beside_peak(self, course, values):
        """What else is said of the peak, to its full stop."""
        return "."

    def describe(self, subject, values):
        course = self.compute(values)
        what, parts = self._instant(course, values)
        inside = ", ".join(f"{label} {units.text(x)}" for label, x in parts)
        return (
            f"{self._of(subject, values)}: the peak of {units.text(course.peak)} is in {course.peak_at}"
            f"{self._beside_peak(course, values)} Operation {course.at:,} of {len(course.live) - 1:,}, {what}: {inside}; "
            f"{units.text(course.live[course.at])} in all."
        )

    def figure(self, title, subject, values, variants):
        course = self.compute(values)
        title = ", ".join(filter(None, (title, self._of(subject, values))))
        fig = draw.timeline(course, title, units.largest(course.peak), at=course.at)
        fig.alt += " " + self.describe(subject, values)
        return fig

    def table(self, subject, values):
        """A `Table` of the state: each part's bytes at the instant looked at."""
        what, parts = self._instant(self.compute(values), values)
        return shared_out(parts, f"{subject}: {what}")


#: How many segments there are but the last, which has the blocks that are left; where there are more than two, two.
_FULL = ceiling(L / K) - 1
SEGMENTS = [
    ("few", segmented * Min(_FULL, 2)),
    ("wide", segmented * Min(K, 2)),
    ("rest", segmented * Min(L - K * _FULL, 2)),
]
#: The values without checkpointing.
WITHOUT = {"segmented": 0, "selective": 0, "segment": 1}


@dataclass(frozen=True)
class Forgetting(Timeline):
    """A timeline with the peak that it would have without checkpointing, and the products that are recomputed.

    Attributes:
        done: operations of the step's products. again: of those that backward recomputes. The values say whether the step
            is `segmented` or `selective`, and the `segment`'s blocks.
    """

    done: object = FORWARD.expr + BACKWARD.expr
    again: object = "checkpoint.flops"

    kind = "forgetting"

    def quantities(self):
        return [*super().quantities(), self.done, self.again]

    def spec(self):
        more = {"done": quantity(self.done).name, "again": quantity(self.again).name, "without": WITHOUT}
        return super().spec() | more

    def compute(self, values):
        """The step, with `plain`, the peak without checkpointing, `left` by forward, and the `share` recomputed."""
        course = super().compute(values)
        without = values | WITHOUT | {"few": 0, "wide": 0, "rest": 0}
        course.plain = super().compute(without).peak if values["segmented"] or values["selective"] else course.peak
        course.left = course.timeline()["activations"][course.marks["after_forward"]]
        course.share = quantity(self.again)(**values) / quantity(self.done)(**values)
        return course

    def _beside_peak(self, course, values):
        """What checkpointing changes, in words."""
        left = f"Forward leaves {units.text(course.left)} of activations"
        if not values["segmented"] and not values["selective"]:
            return f". {left}; backward recomputes nothing."
        gain, plain = course.plain - course.peak, f"the {units.text(course.plain)} without checkpointing"
        against = f"{units.text(abs(gain))} {'below' if gain > 0 else 'above'} {plain}"
        blocks = min(values["segment"], values["layers"])
        what = f"{blocks} block{'s' * (blocks > 1)} at a time" if values["segmented"] else "attention"
        again = f"backward recomputes {what}, {100 * course.share:.1f} % more products"
        return f", {against if gain else 'the same as without checkpointing'}. {left}; {again}."


def looking() -> list:
    """The controls of the instant that a timeline looks at."""
    return [listed("look", "look at", LOOKS, "the peak"), Slider("place", "place (‰)", 0, PLACES, 0, sets={"look": 0})]


def _controls(model, setup, without_biases=True):
    """(the controls of a step with the plain loss, the instant to look at last; the deepest model of each kind; the axes of courses).

    It offers the GPTs, of them where it says so those with biases alone; where the model is none of them, that one alone.
    """
    known = gpts()
    start = model or known["gpt2"]
    if unlike := not_derived(start, Setup(batch=1, sequence=2)):
        raise ValueError(unlike)
    known = known | {start.name: start} if refused(GPT, start) is None else {start.name: start}
    known = {n: m for n, m in known.items() if without_biases or m.qkv_bias or m == start}
    shortest = min(m.positions or 2**17 for m in known.values())
    chosen = setup or Setup(batch=8, sequence=min(1024, shortest))
    options, deepest = kinds(known)
    dropouts = (0, 1) if all(m.family == "gpt" for m in deepest) else (0,)  # a Llama has none
    choice = Choice("model", "model", options, start.name)
    controls = [choice, *asked(setup, "precision"), *of_the_step(setup, chosen, shortest, dropouts), *looking()]
    return controls, deepest, {"dropout": only("dropout", *dropouts)}


def _told(name, controls, picture, derived):
    """The explorer, without presets where a model of one's own makes the sequence too short for them, or is none of theirs."""
    options, usual = {c.name: c.options for c in controls if isinstance(c, Choice)}, said(name)["usual"]
    more = {} if all(usual[each] in options[each] for each in ("sequence", "model")) else {"presets": {}}
    return told(name, controls, picture, derived=derived, **more)


@opens(*OF_THE_STEP)
def step(model: Model | None = None, setup: Setup | None = None) -> Explorer:
    """Chapter 17: one training step with the plain loss, in exact tensor bytes; the instant to look at is yours.

    The model may be a Llama or one of your own, whose step is derived; by default it is GPT-2.
    """
    controls, deepest, own = _controls(model, setup)
    courses = Courses("step", *cases(deepest, *BY, **own), *cases(deepest, *UPDATE_BY))
    return _told("step", controls, Timeline(courses), [LONE])


@opens(*OF_THE_STEP, "checkpointing")
def checkpointing(model: Model | None = None, setup: Setup | None = None) -> Explorer:
    """Chapter 22: one training step with the plain loss, in exact tensor bytes; how much of it is checkpointed is yours.

    The model may be a Llama or one of your own, whose step is derived; by default it is GPT-2 with full checkpointing.
    """
    controls, deepest, own = _controls(model, setup, without_biases=False)
    layers = {values["layers"] for values in controls[0].options.values()}
    options = {"none": WITHOUT, "selective": WITHOUT | {"selective": 1}, "full": WITHOUT | {"segmented": 1}}
    options |= {f"every {k}": WITHOUT | {"segmented": 1, "segment": k} for k in range(2, max(layers) + 1)}
    start = "full"
    if setup and setup.segment != 1:
        start = {"every-k": f"every {setup.segment}"}.get(setup.checkpointing, setup.checkpointing)
    controls.insert(-2, Choice("checkpointing", "checkpointing", options, start, kind="slider"))
    courses = Courses("checkpointing", *_checkpointed(deepest, layers, own), *cases(deepest, *UPDATE_BY))
    return _told("checkpointing", controls, Forgetting(courses), [LONE, *SEGMENTS])


def _checkpointed(models, layers, own):
    """Cases of a step, by how many segments there are, how wide, and with how many blocks left: at most two of each."""
    none = dict.fromkeys(("few", "wide", "rest"), {0: {}})
    by, found = cases(models, *BY, **own, selective={0: {}, 1: {"checkpointing": "selective"}}, **none)
    plans = {}
    for depth in sorted(layers):
        for segment in range(1, depth + 1):
            full = -(-depth // segment) - 1
            size = segment, full, depth - full * segment
            plan = tuple(min(n, 2) for n in size)
            plans[plan] = max(plans.get(plan, (0, 0, 0)), tuple(min(n, 5) for n in size))
    for (wide, few, rest), (segment, full, left) in plans.items():
        deep = [model.replace(layers=full * segment + left) for model in models]
        setup = {"checkpointing": "every-k", "checkpoint_every": segment} if segment > 1 else {"checkpointing": "full"}
        plan = {"few": {few: setup}, "wide": {wide: {}}, "rest": {rest: {}}}
        found |= cases(deep, *BY, **own, selective={0: {}}, **plan)[1]
    return by, found
