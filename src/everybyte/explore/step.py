"""Chapter 17's explorer: one training step, operation by operation, with any of its instants named and taken apart."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import SimpleNamespace

from .. import draw, units
from ..budget import not_derived
from ..catalog import Model
from ..rules.formulas import GPT, refused
from ..setup import Setup
from ..tables import Table
from ..theory import MARKS, PARTS
from .controls import OF_THE_STEP, Choice, Slider, check_setup, gpts, of_the_step, opens, precision_label, shared
from .courses import BY, LONE, UPDATE_BY, Courses, batches_of, kinds, updates_of
from .explorer import Explorer

#: What the picture may look at, in the order of the control's options.
LOOKS = ("the slider's place", "the peak", *(mark.replace("_", " ") for mark in MARKS))
#: The slider's steps from the step's beginning to its end.
PLACES = 1000


@dataclass(frozen=True)
class Timeline:
    """Live bytes by part over the operations of a step, which it goes through itself, with one instant taken apart.

    Attributes:
        courses: the steps that the values choose from. The values name the `place` of the slider and the `look`, a number in
            `LOOKS`.
    """

    courses: Courses

    kind = "timeline"

    @property
    def names(self):
        """The names of values that choose a course."""
        return self.courses.names

    def quantities(self):
        """Every quantity that it evaluates."""
        return list(self.courses.sizes)

    def spec(self):
        """What the picture needs to know."""
        labels = [(name, draw.part(name).label) for name in PARTS]  # a list: a stored state sorts keys
        return {"courses": self.courses.spec(), "labels": labels, "places": PLACES}

    def compute(self, values):
        """The step, as `draw.timeline` takes it, with `operations` and the number `at` of the instant looked at."""
        operations, lines, marks = self.courses.unrolled(values)
        lines = {part: lines.get(part, [0] * len(operations)) for part in PARTS}
        live = [sum(parts) for parts in zip(*lines.values(), strict=True)]
        top = live.index(max(live))
        last = len(live) - 1
        looks = [(2 * values["place"] * last + PLACES) // (2 * PLACES), top, *(marks[mark] for mark in MARKS)]
        return SimpleNamespace(
            timeline=lambda: lines, live=live, marks=marks, operations=operations, at=looks[values["look"]],
            peak=live[top], peak_operation=top, peak_at=operations[top][1], parts={p: x[top] for p, x in lines.items()},
        )  # fmt: skip

    def _instant(self, course, layers):
        name, moment, owner = course.operations[course.at]
        where = f", block {int(owner.split('.')[1]) + 1} of {layers}" if owner.startswith("blocks.") else ""
        what = name.replace("_", " ") if name == moment else f"{moment}{where}, {name}"
        parts = {p: line[course.at] for p, line in course.timeline().items() if line[course.at]}
        return what + (" (the peak)" if course.at == course.peak_operation else ""), parts

    def _looked_at(self, course, values):
        what, parts = self._instant(course, values["layers"])
        inside = ", ".join(f"{draw.part(p).label} {units.text(x)}" for p, x in parts.items())
        all_of_it = units.text(course.live[course.at])
        return f"Operation {course.at:,} of {len(course.live) - 1:,}, {what}: {inside}; {all_of_it} in all."

    #: What says how large the step is.
    sizes = ("batch", "sequence")

    def _sizes(self, values):
        return ", ".join(f"{name} {values[name]:,}" for name in self.sizes)

    def describe(self, subject, values):
        """The sentence for a state, as picture.js says it."""
        course = self.compute(values)
        return (
            f"{subject}, {self._sizes(values)}: the peak of {units.text(course.peak)} "
            f"is in {course.peak_at}. {self._looked_at(course, values)}"
        )

    def figure(self, title, subject, values, variants):
        """matplotlib's figure of the same state."""
        course = self.compute(values)
        fig = draw.timeline(
            course,
            ", ".join(filter(None, (title, subject, self._sizes(values)))),
            units.largest(course.peak),
            at=course.at,
        )
        fig.alt += " " + self.describe(subject, values)
        return fig

    def table(self, subject, values):
        """A `Table` of the state: each part's bytes at the instant looked at."""
        course = self.compute(values)
        what, parts = self._instant(course, values["layers"])
        total = course.live[course.at]
        rows = [(draw.part(p).label, x, units.text(x), f"{x / total:.1%}") for p, x in parts.items()]
        rows.append(("total", total, units.text(total), "100.0%"))
        return Table(("part", "bytes", "that is", "share"), rows, f"{subject}: {what}")


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
        shared("precision", setup and precision_label(setup)),
        *of_the_step(setup, chosen, shortest, dropouts_of(deepest)),
        Choice("look", "look at", {label: {"look": i} for i, label in enumerate(LOOKS)}, "the peak"),
        Slider("place", "place (‰)", 0, PLACES, 0, sets={"look": 0}),
    ], deepest  # fmt: skip


def dropouts_of(models) -> tuple:
    """The values of `dropout` that all these models take: a Llama has none."""
    return (0, 1) if all(model.family == "gpt" for model in models) else (0,)


#: What the controls of a step are set to where all eyes are on the loss.
PLAIN = {"model": "gpt2", "precision": "fp32", "attention": "flash", "optimizer": "adamw", "optimizer_impl": "foreach",
         "batch": "8", "sequence": "1,024", "look": "the peak"}  # fmt: skip


def offered(controls: Sequence, presets: Mapping) -> Mapping:
    """The presets, where a model of one's own has not made the sequence's slider too short for them, or is none of theirs."""
    options = {c.name: c.options for c in controls if isinstance(c, Choice)}
    return presets if PLAIN["sequence"] in options["sequence"] and PLAIN["model"] in options["model"] else {}


@opens
def step(model: Model | None = None, setup: Setup | None = None) -> Explorer:
    """One training step with the plain loss, in exact tensor bytes: the instant to look at is yours.

    Args:
        model, setup: what it opens with, a Llama or a model of your own too; by default GPT-2, and what the other explorers show.

    Raises:
        ValueError: a model whose step is not derived; a batch or a sequence that is no power of two.
    """
    controls, deepest = controls_of("step", model, setup)
    large = {"model": "gpt2-xl", "batch": "1"}
    presets = {
        "the loss wins": PLAIN,
        "the optimizer wins": PLAIN | large,
        "backward wins": PLAIN | large | {"optimizer_impl": "fused", "sequence": "128"},
        "autocast, eager": PLAIN | {"precision": "bf16-mixed", "attention": "eager"},
    }
    courses = Courses("step", BY, batches_of(deepest, dropouts_of(deepest)), UPDATE_BY, updates_of(deepest))
    return Explorer(
        "The bytes of one training step", controls, Timeline(courses), offered(controls, presets),
        derived=[LONE], subject=("model", "precision", "attention", "dropout", "optimizer", "optimizer_impl"),
    )  # fmt: skip
