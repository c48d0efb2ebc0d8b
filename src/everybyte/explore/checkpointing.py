"""Chapter 22's explorer: the checkpointed step, against the step without checkpointing."""

from dataclasses import dataclass

from sympy import Min, ceiling

from .. import units
from ..ask.setup import Setup
from ..catalog import Model
from ..formulas.compute import BACKWARD, FORWARD
from ..formulas.symbols import K, L, segmented
from .controls import Choice, opens
from .courses import BY, LONE, UPDATE_BY, Courses, batches_of, updates_of
from .explorer import Explorer, told
from .pictures import quantity
from .step import Timeline, controls_of, dropouts_of, offered

#: How many segments there are but the last, which has the blocks that are left; where there are more than two, two.
_FULL = ceiling(L / K) - 1
DERIVED = [
    LONE,
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
        return super().spec() | {
            "done": quantity(self.done).name,
            "again": quantity(self.again).name,
            "without": WITHOUT,
        }

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
        gain = course.plain - course.peak
        against = f", {units.text(abs(gain))} {'below' if gain > 0 else 'above'}" if gain else ", the same as"
        against += f" the {units.text(course.plain)} without checkpointing" if gain else " without checkpointing"
        blocks = min(values["segment"], values["layers"])
        what = f"{blocks} block{'s' * (blocks > 1)} at a time" if values["segmented"] else "attention"
        again = f"backward recomputes {what}, {100 * course.share:.1f} % more products"
        if not values["segmented"] and not values["selective"]:
            against, again = "", "backward recomputes nothing"
        return f"{against}. Forward leaves {units.text(course.left)} of activations; {again}."


@opens
def checkpointing(model: Model | None = None, setup: Setup | None = None) -> Explorer:
    """One training step with the plain loss, in exact tensor bytes: how much of it is checkpointed is yours.

    Args:
        model, setup: what it opens with, a Llama or a model of your own too; by default GPT-2 with full checkpointing, and what the
            other explorers show.

    Raises:
        ValueError: a model whose step is not derived; a batch or a sequence that is no power of two.
    """
    controls, models = controls_of("checkpointing", model, setup, "checkpointing", without_biases=False)
    deepest = max(values["layers"] for values in controls[0].options.values())
    options = {"none": WITHOUT, "selective": WITHOUT | {"selective": 1}, "full": WITHOUT | {"segmented": 1}}
    options |= {f"every {k}": WITHOUT | {"segmented": 1, "segment": k} for k in range(2, deepest + 1)}
    start = "full"
    if setup:
        start = {"every-k": f"every {setup.segment}"}.get(setup.checkpointing, setup.checkpointing)
        start = "full" if setup.segment == 1 else start
    controls.insert(-2, Choice("checkpointing", "checkpointing", options, start, kind="slider"))
    layers = {values["layers"] for values in controls[0].options.values()}
    by = (*BY, "selective", "few", "wide", "rest")
    courses = Courses("checkpointing", by, _cases(models, layers), UPDATE_BY, updates_of(models))
    return told("checkpointing", controls, Forgetting(courses), derived=DERIVED, **offered("checkpointing", controls))


def _cases(models, layers):
    """Cases of `BY`, and of how many segments there are, how wide, and with how many blocks left: at most two of each."""
    found, dropouts = {}, dropouts_of(models)
    for saving, more in (((0, 0, 0, 0), {}), ((1, 0, 0, 0), {"checkpointing": "selective"})):
        found |= {(*key, *saving): case for key, case in batches_of(models, dropouts, **more).items()}
    plans = {}
    for depth in sorted(layers):
        for segment in range(1, depth + 1):
            full = -(-depth // segment) - 1
            plan = min(full, 2), min(segment, 2), min(depth - full * segment, 2)
            size = min(segment, 5), min(full, 5), min(depth - full * segment, 5)
            plans[plan] = max(plans.get(plan, size), size)
    for plan, (segment, full, rest) in plans.items():
        deep = [model.replace(layers=full * segment + rest) for model in models]
        setup = {"checkpointing": "every-k", "checkpoint_every": segment} if segment > 1 else {"checkpointing": "full"}
        found |= {(*key, 0, *plan): case for key, case in batches_of(deep, dropouts, **setup).items()}
    return found
