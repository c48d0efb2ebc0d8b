"""Chapter 17's explorer: one training step, operation by operation, with any of its instants named and taken apart."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from types import SimpleNamespace

from .. import draw, units
from ..catalog import Model
from ..formulas import Formula, bindings
from ..formulas.ledger import Ledger, exact
from ..formulas.symbols import adam, foreach, loop
from ..formulas.walking import MARKS, PARTS, Shape, unroll
from ..setup import Setup
from ..tables import Table
from .controls import Choice, Slider, of_the_step, precision_label, shared
from .explorer import Explorer
from .pictures import quantity

#: What is there between steps.
REST = {"parameters": "weights", "buffers": "buffers", "optimizer": "optimizer", "gradients": "gradients.buffer"}
#: What the picture may look at, in the order of the control's options.
LOOKS = ("the slider's place", "the peak", *(mark.replace("_", " ") for mark in MARKS))
#: The slider's steps from the step's beginning to its end.
PLACES = 1000


@dataclass(frozen=True)
class Timeline:
    """Live bytes by part over the operations of a step, which it walks itself, with one instant taken apart.

    Attributes:
        ledgers: checkpointing -> section -> [(moment, name, [(part, quantity taken)], [(part, quantity gone)])].
        rest: part -> quantity. The values name the layers, the `place` of the slider and the `look`, a number in `LOOKS`.
    """

    ledgers: Mapping[str, Mapping[str, Sequence[tuple]]]
    rest: Mapping[str, object]

    kind = "timeline"

    def quantities(self):
        """Every quantity that it evaluates."""
        found = list(self.rest.values())
        for sections in self.ledgers.values():
            for lines in sections.values():
                found += [q for _, _, taken, gone in lines for _, q in (*taken, *gone)]
        return list(dict.fromkeys(found))

    def spec(self):
        """What the picture needs to know."""
        ledgers = {
            checkpointing: {
                section: [
                    [moment, name, [[p, quantity(q).name] for p, q in taken], [[p, quantity(q).name] for p, q in gone]]
                    for moment, name, taken, gone in lines
                ]
                for section, lines in sections.items()
            }
            for checkpointing, sections in self.ledgers.items()
        }
        rest = {name: quantity(q).name for name, q in self.rest.items()}
        sizes = [quantity(q).name for q in self.quantities()]
        labels = {name: draw.part(name).label for name in PARTS}
        return {
            "ledgers": ledgers,
            "rest": rest,
            "sizes": sizes,
            "labels": labels,
            "marks": list(MARKS),
            "places": PLACES,
        }

    def compute(self, values):
        """The step, as `draw.timeline` takes it, with `operations` and the number `at` of the instant looked at."""
        return self._walked(values, "none", 0)

    def _walked(self, values, checkpointing, segment):
        amounts = {q: quantity(q)(**values) for q in self.quantities()}
        sections = {
            section: [
                (moment, name, [(p, amounts[q]) for p, q in taken], [(p, amounts[q]) for p, q in gone])
                for moment, name, taken, gone in lines
            ]
            for section, lines in self.ledgers[checkpointing].items()
        }
        rest = {name: amounts[q] for name, q in self.rest.items()}
        operations, lines, marks = unroll(sections, Shape(values["layers"], segment=segment), rest)
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
        where = f", block {int(owner.split('.')[1]) + 1} of {layers}" if owner else ""
        what = name.replace("_", " ") if name == moment else f"{moment}{where}, {name}"
        parts = {p: line[course.at] for p, line in course.timeline().items() if line[course.at]}
        return what + (" (the peak)" if course.at == course.peak_operation else ""), parts

    def _looked_at(self, course, values):
        what, parts = self._instant(course, values["layers"])
        inside = ", ".join(f"{draw.part(p).label} {units.text(x)}" for p, x in parts.items())
        all_of_it = units.text(course.live[course.at])
        return f"Operation {course.at:,} of {len(course.live) - 1:,}, {what}: {inside}; {all_of_it} in all."

    def describe(self, subject, values):
        """The sentence for a state, as picture.js says it."""
        course = self.compute(values)
        return (
            f"{subject}, batch {values['batch']:,}, sequence {values['sequence']:,}: the peak of {units.text(course.peak)} "
            f"is in {course.peak_at}. {self._looked_at(course, values)}"
        )

    def figure(self, title, subject, values, variants):
        """matplotlib's figure of the same state."""
        course = self.compute(values)
        unit = next((u for u in ("TiB", "GiB", "MiB", "KiB") if course.peak >= units.UNITS[u]), "B")
        where = f"batch {values['batch']:,}, sequence {values['sequence']:,}"
        fig = draw.timeline(course, f"{title}, {subject}, {where}", unit, at=course.at)
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


@cache
def ledgers(*checkpointings: str) -> dict:
    """Each ledger's sections with a formula for every size, equal ones shared, and each part once a line."""
    formulas = {}

    def sizes(pairs):
        sums = {}
        for part, size in pairs:
            sums[part] = sums.get(part, 0) + size
        known = {
            p: formulas.setdefault(x, Formula(f"size {len(formulas)}", "", x, "B", "the ledger", ""))
            for p, x in sums.items()
            if x != 0
        }
        return tuple(known.items())

    return {
        checkpointing: {
            section: [(moment, name, sizes(taken), sizes(gone)) for moment, name, taken, gone in lines]
            for section, lines in Ledger(exact, checkpointing=checkpointing).amounts().items()
        }
        for checkpointing in checkpointings
    }


def controls_of(model: Model | None, setup: Setup | None) -> list:
    """The controls of a step of a GPT with the plain loss, the instant to look at last.

    Raises:
        ValueError: a model that is not of GPT-2's architecture; a batch or a sequence that is no power of two.
    """
    from ..catalog import models

    start = model or models()["gpt2"]
    if unlike := start.unlike_gpt():
        raise ValueError(unlike)
    known = {name: m for name, m in models().items() if not m.unlike_gpt()} | {start.name: start}
    chosen = setup or Setup(batch=8, sequence=min(1024, start.positions))
    shortest = min(m.positions for m in known.values())
    return [
        Choice("model", "model", {name: bindings(m, None) for name, m in known.items()}, start.name),
        shared("precision", setup and precision_label(setup)),
        *of_the_step(setup, chosen, shortest),
        Choice("look", "look at", {label: {"look": i} for i, label in enumerate(LOOKS)}, "the peak"),
        Slider("place", "place (‰)", 0, PLACES, 0, sets={"look": 0}),
    ]  # fmt: skip


#: What the controls of a step are set to where all eyes are on the loss; and the formula of a letter that they leave open.
PLAIN = {"model": "gpt2", "precision": "fp32", "attention": "flash", "optimizer": "adamw", "optimizer_impl": "foreach",
         "batch": "8", "sequence": "1,024", "look": "the peak"}  # fmt: skip
DERIVED = [("fused_adam", adam * (1 - foreach - loop))]


def offered(controls: Sequence, presets: Mapping) -> Mapping:
    """The presets, where a model of one's own has not made the sequence's slider too short for them."""
    lengths = next(c.options for c in controls if c.name == "sequence")
    return presets if PLAIN["sequence"] in lengths else {}


def step(model: Model | None = None, setup: Setup | None = None) -> Explorer:
    """One training step of a GPT with the plain loss, in exact tensor bytes: the instant to look at is yours.

    Args:
        model, setup: what it opens with, a model of your own too; by default GPT-2, and what the other explorers show.

    Raises:
        ValueError: a model that is not of GPT-2's architecture; a batch or a sequence that is no power of two.
    """
    controls = controls_of(model, setup)
    large = {"model": "gpt2-xl", "batch": "1"}
    presets = {
        "the loss wins": PLAIN,
        "the optimizer wins": PLAIN | large,
        "backward wins": PLAIN | large | {"optimizer_impl": "fused", "sequence": "128"},
        "autocast, eager": PLAIN | {"precision": "bf16-mixed", "attention": "eager"},
    }
    return Explorer(
        "The bytes of one training step", controls, Timeline(ledgers("none"), REST), offered(controls, presets),
        derived=DERIVED, subject=("model", "precision", "attention", "dropout", "optimizer", "optimizer_impl"),
    )  # fmt: skip
