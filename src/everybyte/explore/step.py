"""Explorers of one training step, operation by operation, and of one block."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace

from sympy import Add, Min, ceiling

from .. import draw, units
from ..ask.setup import Setup
from ..catalog import Model
from ..formulas import formula
from ..formulas.compute import BACKWARD, FORWARD
from ..formulas.readings import both, expression, merged, more, reading
from ..formulas.symbols import K, L, segmented
from ..rules.formulas import GPT, refused
from ..step.course import flat, standing
from ..theory import MARKS, PARTS
from ..theory.budget import not_derived
from .beside import said
from .controls import OF_THE_STEP, Choice, Slider, a_gpt, asked, gpts, listed, one_step, opens
from .courses import BY, LONE, UPDATE_BY, Courses, Steps, cases, kinds, only
from .explorer import Explorer, told
from .origins import codes
from .origins import told as told_origins
from .pictures import Kind, labelled, listed_amounts, quantity, shared_out

#: The instants that can be chosen, in the order of the control's options.
LOOKS = ("the slider's place", "the peak", *(mark.replace("_", " ") for mark in MARKS))
#: Steps of the slider from the beginning to the end: more than a step has operations.
PLACES = 10_000


def _sizes(values):
    return f"batch {values['batch']:,}, sequence {values['sequence']:,}"


@dataclass(frozen=True)
class Timeline(Kind):
    """Live bytes by part over the operations of a step, and the parts at one instant.

    The values `look`, a number in `LOOKS`, and `place`, of the slider, choose the instant.

    Attributes:
        courses: the steps that the values choose from. parts: (part of the palette, label), in order.
        places: steps of the slider. code: of the owners, as `codes` gives it.
    """

    courses: Steps
    parts: Sequence[tuple[str, str]] = tuple(labelled(PARTS))
    places: int = PLACES
    code: Mapping[str, str] = field(default_factory=dict)

    kind = "timeline"

    def spec(self):
        found = super().spec()
        return found | {"origins": told_origins(self.courses, found.pop("code"))}

    def marked(self):
        return "look", "place"

    def compute(self, values):
        """The step as `draw.timeline` takes it, with its `operations` and the number `at` of the chosen instant."""
        operations, lines, marks = self.courses.unrolled(values)
        lines = {part: lines.get(part, [0] * len(operations)) for part, _ in self.parts}
        live = [sum(parts) for parts in zip(*lines.values(), strict=True)]
        top, last = live.index(max(live)), len(live) - 1
        looks = [(2 * values["place"] * last + PLACES) // (2 * PLACES), top, *(marks[mark] for mark in MARKS)]
        return SimpleNamespace(
            timeline=lambda: lines, live=live, marks=marks, operations=operations, at=looks[values["look"]],
            peak=live[top], peak_operation=top, peak_at=operations[top][1], parts={p: x[top] for p, x in lines.items()},
        )  # fmt: skip

    def _instant(self, course, values):
        name, moment, owner = course.operations[course.at]
        block = owner.startswith("blocks.")
        where = f", block {int(owner.split('.')[1]) + 1} of {values['layers']}" if block else ""
        what = name.replace("_", " ") if name in ("rest", *MARKS) else f"{moment}{where}, {name}"
        lines = course.timeline()
        parts = [(label, lines[part][course.at]) for part, label in self.parts if lines[part][course.at]]
        return what + (" (the peak)" if course.at == course.peak_operation else ""), parts

    def _beside_peak(self, course, values):
        return "."

    def describe(self, subject, values):
        course = self.compute(values)
        what, parts = self._instant(course, values)
        peak = f"the peak of {units.text(course.peak)} is in {course.peak_at}{self._beside_peak(course, values)}"
        now = f"Operation {course.at + 1:,} of {len(course.live):,}, {what}: {listed_amounts(parts)}"
        return f"{subject}, {_sizes(values)}: {peak} {now}; {units.text(course.live[course.at])} in all."

    def figure(self, title, subject, values, variants):
        course = self.compute(values)
        fig = draw.timeline(course, f"{title}, {subject}, {_sizes(values)}", units.largest(course.peak), at=course.at)
        fig.alt += " " + self.describe(subject, values)
        return fig

    def table(self, subject, values):
        what, parts = self._instant(self.compute(values), values)
        return shared_out(parts, f"{subject}: {what}")


#: The number of segments without the last, which has the remaining blocks. The values below count to two at most.
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
    """A timeline with the peak without checkpointing, and the share of products that backward recomputes.

    The values `segmented`, `selective` and `segment` say how the step is checkpointed.

    Attributes:
        done: FLOPs of the step's products. again: FLOPs that backward recomputes. without: values that switch checkpointing off.
    """

    done: object = FORWARD.expr + BACKWARD.expr
    again: object = formula("checkpoint.flops")
    without: Mapping[str, int] = field(default_factory=WITHOUT.copy)

    kind = "forgetting"

    def compute(self, values):
        """The step with `plain`, the peak without checkpointing, `left`, the activations after forward, and the recomputed `share`."""
        course = super().compute(values)
        without = values | WITHOUT | {"few": 0, "wide": 0, "rest": 0}
        course.plain = super().compute(without).peak if values["segmented"] or values["selective"] else course.peak
        course.left = course.timeline()["activations"][course.marks["after_forward"]]
        course.share = quantity(self.again)(**values) / quantity(self.done)(**values)
        return course

    def _beside_peak(self, course, values):
        left = f"Forward leaves {units.text(course.left)} of activations"
        if not values["segmented"] and not values["selective"]:
            return f". {left}; backward recomputes nothing."
        gain, plain = course.plain - course.peak, f"the {units.text(course.plain)} without checkpointing"
        against = f"{units.text(abs(gain))} {'below' if gain > 0 else 'above'} {plain}"
        blocks = min(values["segment"], values["layers"])
        what = f"{blocks} block{'s' * (blocks > 1)} at a time" if values["segmented"] else "attention"
        again = f"backward recomputes {what}, {100 * course.share:.1f} % more products"
        return f", {against if gain else 'the same as without checkpointing'}. {left}; {again}."


def _controls(model, setup, without_biases=True):
    """(the controls of a step with the plain loss; the deepest model of each kind; rows of `AXES` with fewer numbers).

    They offer all GPTs, or only those with biases; or the given model alone, where it is none of them.
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
    controls = [
        Choice("model", "model", options, start.name),
        *asked(setup, "precision"),
        *one_step(setup, chosen, shortest, dropouts),
        listed("look", "look at", LOOKS, "the peak"),
        Slider("place", "place", 0, PLACES, 0, sets={"look": 0}),
    ]
    return controls, deepest, {"dropout": only("dropout", *dropouts)}


def _told(name, controls, picture, derived):
    """The explorer; without presets where it offers not their model or their sequence."""
    options, usual = {c.name: c.options for c in controls if isinstance(c, Choice)}, said(name)["usual"]
    more = {} if all(usual[each] in options[each] for each in ("sequence", "model")) else {"presets": {}}
    return told(name, controls, picture, derived=derived, **more)


@opens(*OF_THE_STEP)
def step(model: Model | None = None, setup: Setup | None = None) -> Explorer:
    """Chapter 15: one training step with the plain loss, in exact tensor bytes, at any instant.

    The model may be a Llama or one of your own, whose step is derived; by default it is GPT-2.
    """
    controls, deepest, own = _controls(model, setup)
    courses = Courses("step", *cases(deepest, *BY, **own), *cases(deepest, *UPDATE_BY))
    return _told("step", controls, Timeline(courses, code=codes(deepest[0])), [LONE])


@opens(*OF_THE_STEP, "checkpointing")
def checkpointing(model: Model | None = None, setup: Setup | None = None) -> Explorer:
    """Chapter 22: one training step with the plain loss, in exact tensor bytes, under any kind of checkpointing.

    The model may be a Llama or one of your own, whose step is derived; by default it is GPT-2 with full checkpointing.
    """
    controls, deepest, own = _controls(model, setup, without_biases=False)
    layers = {values["layers"] for values in controls[0].options.values()}
    options = {"none": WITHOUT, "selective": WITHOUT | {"selective": 1}, "full": WITHOUT | {"segmented": 1}}
    options |= {f"every {k}": WITHOUT | {"segmented": 1, "segment": k} for k in range(2, max(layers) + 1)}
    if why := not_derived(deepest[0], Setup(checkpointing="selective").of(deepest[0].own)):
        raise ValueError(f"explore.checkpointing: {why}")
    start = "full"
    if setup and setup.segment != 1:
        start = {"every-k": f"every {setup.segment}"}.get(setup.checkpointing, setup.checkpointing)
    controls.insert(-2, Choice("checkpointing", "checkpointing", options, start, kind="slider"))
    courses = Courses("checkpointing", *_checkpointed(deepest, layers, own), *cases(deepest, *UPDATE_BY))
    return _told("checkpointing", controls, Forgetting(courses, code=codes(deepest[0])), [LONE, *SEGMENTS])


def _checkpointed(models, layers, own) -> tuple[tuple, dict]:
    """Cases of a checkpointed step, by number of full segments, blocks of a segment, and blocks left over: 0, 1, or 2 for more."""
    none = dict.fromkeys(("few", "wide", "rest"), {0: {}})
    by, found = cases(models, *BY, **own, selective={0: {}, 1: {"checkpointing": "selective"}}, **none)
    plans = {}  # in order
    for depth in sorted(layers):
        for segment in range(1, depth + 1):
            full = -(-depth // segment) - 1
            plans[tuple(min(n, 2) for n in (segment, full, depth - full * segment))] = True
    for wide, few, rest in plans:
        segment, full, left = (n if n < 2 else 5 for n in (wide, few, rest))  # five are enough to see what repeats
        deep = [model.replace(layers=full * segment + left) for model in models]
        setup = {"checkpointing": "every-k", "checkpoint_every": segment} if segment > 1 else {"checkpointing": "full"}
        rows: dict[str, dict] = {"few": {few: setup}, "wide": {wide: {}}, "rest": {rest: {}}}
        found |= cases(deep, *BY, **own, selective={0: {}}, **rows)[1]
    return by, found


# -- a block

#: (operation, {tensor that it saves: [(operation that makes it, which of its tensors; -1 for all)]}, the note where it saves nothing).
OPERATIONS = [
    (o["name"], {tensor: [tuple(made) for made in makers] for tensor, makers in o.get("keeps", {}).items()}, o.get("note", ""))
    for o in said("block")["operations"]
]  # fmt: skip


def kept(tensors):
    """An expression of the bytes of some tensors that a block saves for backward. tensors: {(operation, which of its tensors)}."""

    def read(**on):
        found = reading(**on)
        return found.bytes(p for name, i, p in _standing(found) if (name, i) in tensors or (name, -1) in tensors)

    return expression(merged(read, _MATTERS) + more(read, "dropped", both("eager")))


#: The switches that decide what a block saves, beside precision and dropout.
_MATTERS = ("eager", both("narrow"), both("several", "heads"))


def _standing(found):
    """(operation, which of its tensors, piece) of the second block's activations that live after forward."""
    forward = [o for o in flat(found.course.items) if o.phase == "forward"]
    makers = [o for o in forward if dict(o.place).get("block") == 1]
    return [left for left in standing(makers, forward) if left[2].part == "activations"]


@dataclass(frozen=True)
class Block(Kind):
    """A block's operations, each with the tensors that it saves for backward, drawn as wide as they are large.

    Attributes:
        rows: [(operation, [(tensor, quantity)], the note where it saves nothing)]. whole: the quantity of all blocks.
    """

    rows: Sequence[tuple]
    whole: object

    kind = "block"

    def compute(self, values):
        """[(operation, [(tensor, bytes), ...] of the tensors that exist, bytes in all)] at the symbols' values."""
        rows = []
        for name, tensors, _ in self.rows:
            there = [(t, x) for t, q in tensors if (x := quantity(q)(**values))]
            rows.append((name, there, sum(x for _, x in there)))
        return rows

    def describe(self, subject, values):
        rows = self.compute(values)
        inside = listed_amounts([(name, x) for name, _, x in rows])
        total, every = (units.text(x) for x in (sum(x for *_, x in rows), quantity(self.whole)(**values)))
        one = f"{subject}, {_sizes(values)}: one block keeps {total} for backward: {inside}."
        return f"{one} {values['layers']} blocks keep {every}."

    def figure(self, title, subject, values, variants):
        found = zip(self.compute(values), self.rows, strict=True)
        rows = [("add" if name == "+" else name, there, note) for (name, there, _), (*_, note) in found]
        unit = units.largest(max(sum(size for _, size in there) for _, there, _ in rows))
        fig = draw.saves(rows, f"{title} ({subject}, {_sizes(values)})", unit)
        fig.alt = f"{title}, a bar for each operation. {self.describe(subject, values)}"
        return fig

    def table(self, subject, values):
        rows = [(name, t, x) for name, there, _ in self.compute(values) for t, x in there]
        return shared_out(rows, subject, ("operation", "keeps"), ("block", "all"))


@opens(*OF_THE_STEP, "loss", "accumulation")
def block(model: Model | None = None, setup: Setup | None = None) -> Explorer:
    """Chapter 13: the block of a GPT, and the tensors that each of its operations saves for backward.

    A tensor that two operations save is drawn at the first. Weights and autocast's copies of them are not drawn. The model, by
    default GPT-2, may be any of GPT-2's architecture.
    """
    start, choice = a_gpt(model)
    controls = [choice, *asked(setup, "precision", "attention", "dropout", "batch", "sequence")]
    rows = [(name, [(t, kept(made)) for t, made in tensors.items()], note) for name, tensors, note in OPERATIONS]
    whole = L * Add(*(q for _, tensors, _ in rows for _, q in tensors))
    return told("block", controls, Block(rows, whole), usual={"model": start.name})
