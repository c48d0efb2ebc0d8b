"""Chapter 17's explorer: one training step, operation by operation, with any of its instants named and taken apart."""

from collections.abc import Sequence
from dataclasses import dataclass
from types import SimpleNamespace

from .. import draw, units
from ..ask.setup import Setup
from ..catalog import Model
from ..rules.formulas import GPT, refused
from ..theory import MARKS, PARTS
from ..theory.budget import not_derived
from .beside import said
from .controls import OF_THE_STEP, Choice, Slider, asked, check_setup, gpts, listed, of_the_step, opens
from .courses import BY, LONE, UPDATE_BY, Courses, Steps, batches_of, kinds, updates_of
from .explorer import Explorer, told
from .pictures import Kind, shared_out

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


def started(model: Model | None) -> tuple[Model, dict]:
    """The model that an explorer of steps opens with, and all that it offers, by name: the GPTs; else that one alone.

    Raises:
        ValueError: where its step is not derived.
    """
    known = gpts()
    start = model or known["gpt2"]
    if unlike := not_derived(start, Setup(batch=1, sequence=2)):
        raise ValueError(unlike)
    return start, known | {start.name: start} if refused(GPT, start) is None else {start.name: start}


def controls_of(
    owner: str, model: Model | None, setup: Setup | None, *also: str, without_biases: bool = True
) -> tuple[list, list]:
    """The controls of a step with the plain loss, the instant to look at last; and the deepest model of each kind that they offer.

    Args:
        owner: the explorer. also: fields of a setup that it shows beside these. without_biases: whether models without biases are offered.

    Raises:
        ValueError: a model whose step is not derived; a batch or a sequence that is no power of two; what is not shown.
    """
    check_setup(owner, setup, *OF_THE_STEP, *also)
    start, known = started(model)
    known = {n: m for n, m in known.items() if without_biases or m.qkv_bias or m == start}
    shortest = min(m.positions or 2**17 for m in known.values())
    chosen = setup or Setup(batch=8, sequence=min(1024, shortest))
    options, deepest = kinds(known)
    return [
        Choice("model", "model", options, start.name),
        *asked(setup, "precision"),
        *of_the_step(setup, chosen, shortest, dropouts_of(deepest)),
        *looking(),
    ], deepest


def looking() -> list:
    """The controls of the instant that a timeline looks at."""
    return [listed("look", "look at", LOOKS, "the peak"), Slider("place", "place (‰)", 0, PLACES, 0, sets={"look": 0})]


def dropouts_of(models) -> tuple:
    """The values of `dropout` that all these models take: a Llama has none."""
    return (0, 1) if all(model.family == "gpt" for model in models) else (0,)


def offered(name: str, controls: Sequence) -> dict:
    """No presets, where a model of one's own has made the sequence's slider too short for them, or is none of theirs."""
    options, usual = {c.name: c.options for c in controls if isinstance(c, Choice)}, said(name)["usual"]
    return {} if all(usual[each] in options[each] for each in ("sequence", "model")) else {"presets": {}}


@opens
def step(model: Model | None = None, setup: Setup | None = None) -> Explorer:
    """One training step with the plain loss, in exact tensor bytes: the instant to look at is yours.

    Args:
        model, setup: what it opens with, a Llama or a model of your own too; by default GPT-2, and what the other explorers show.

    Raises:
        ValueError: a model whose step is not derived; a batch or a sequence that is no power of two.
    """
    controls, deepest = controls_of("step", model, setup)
    courses = Courses("step", BY, batches_of(deepest, dropouts_of(deepest)), UPDATE_BY, updates_of(deepest))
    return told("step", controls, Timeline(courses), derived=[LONE], **offered("step", controls))
