"""Chapter 22's explorer: the step with what its forward forgets, against the step that forgets nothing."""

from dataclasses import dataclass

from .. import units
from ..catalog import Model
from ..formulas.compute import BACKWARD, FORWARD
from ..setup import Setup
from .controls import Choice
from .explorer import Explorer
from .pictures import quantity
from .step import DERIVED, PLAIN, REST, Timeline, controls_of, ledgers, offered


@dataclass(frozen=True)
class Forgetting(Timeline):
    """A timeline with the peak that it would have without checkpointing, and the products that are made again.

    Attributes:
        done: operations of the step's products. again: of those that backward makes again. The values say whether the step
            is `segmented` or `selective`, and the `segment`'s blocks.
    """

    done: object = FORWARD.expr + BACKWARD.expr
    again: object = "checkpoint.flops"

    kind = "forgetting"

    def quantities(self):
        """Every quantity that it evaluates."""
        return [*super().quantities(), self.done, self.again]

    def spec(self):
        """What the picture needs to know."""
        return super().spec() | {"done": quantity(self.done).name, "again": quantity(self.again).name}

    def compute(self, values):
        """The step, with `plain`, the peak without checkpointing, `left` by forward, and the `share` made again."""
        ledger = "segments" if values["segmented"] else "selective" if values["selective"] else "none"
        course = self._walked(values, ledger, values["segment"] if values["segmented"] else 0)
        course.plain = self._walked(values, "none", 0).peak if ledger != "none" else course.peak
        course.left = course.timeline()["activations"][course.marks["after_forward"]]
        course.share = quantity(self.again)(**values) / quantity(self.done)(**values)
        return course

    def _against(self, course, values):
        """What checkpointing changes, in words."""
        gain = course.plain - course.peak
        against = f", {units.text(abs(gain))} {'below' if gain > 0 else 'above'}" if gain else ", the same as"
        against += f" the {units.text(course.plain)} without checkpointing" if gain else " without checkpointing"
        blocks = min(values["segment"], values["layers"])
        what = f"{blocks} block{'s' * (blocks > 1)} at a time" if values["segmented"] else "attention"
        again = f"backward makes {what} again, {100 * course.share:.1f} % more products"
        if not values["segmented"] and not values["selective"]:
            against, again = "", "backward makes nothing again"
        return f"{against}. Forward leaves {units.text(course.left)} of activations; {again}."

    def describe(self, subject, values):
        """The sentence for a state, as picture.js says it."""
        course = self.compute(values)
        return (
            f"{subject}, batch {values['batch']:,}, sequence {values['sequence']:,}: the peak of {units.text(course.peak)} "
            f"is in {course.peak_at}{self._against(course, values)} {self._looked_at(course, values)}"
        )


def checkpointing(model: Model | None = None, setup: Setup | None = None) -> Explorer:
    """One training step of a GPT with the plain loss, in exact tensor bytes: how much its forward forgets is yours.

    Args:
        model, setup: what it opens with, a model of your own too; by default GPT-2 with full checkpointing, and what the
            other explorers show.

    Raises:
        ValueError: a model that is not of GPT-2's architecture; a batch or a sequence that is no power of two.
    """
    controls = controls_of(model, setup)
    deepest = max(values["layers"] for values in controls[0].options.values())
    kept = {"segmented": 0, "selective": 0, "segment": 1}
    options = {"none": kept, "selective": kept | {"selective": 1}, "full": kept | {"segmented": 1}}
    options |= {f"every {k}": kept | {"segmented": 1, "segment": k} for k in range(2, deepest + 1)}
    start = "full"
    if setup:
        start = {"every-k": f"every {setup.segment}"}.get(setup.checkpointing, setup.checkpointing)
        start = "full" if setup.segment == 1 else start
    controls.insert(-2, Choice("checkpointing", "checkpointing", options, start, kind="slider"))
    plain = PLAIN | {"dropout": "(no dropout)"}
    large = plain | {"model": "gpt2-large", "optimizer_impl": "fused"}
    eager = plain | {"model": "gpt2-xl", "precision": "bf16-mixed", "attention": "eager"}
    presets = {
        "XL forgets nothing": plain | {"model": "gpt2-xl", "checkpointing": "none"},
        "XL forgets each block": plain | {"model": "gpt2-xl", "checkpointing": "full"},
        "the root of 36": large | {"checkpointing": "every 6"},
        "XL, eager, selective": eager | {"checkpointing": "selective"},
    }
    return Explorer(
        "The bytes of one training step that forgets", controls, Forgetting(ledgers("none", "segments", "selective"), REST),
        offered(controls, presets), derived=DERIVED,
        subject=("model", "precision", "attention", "dropout", "optimizer", "optimizer_impl", "checkpointing"),
    )  # fmt: skip
