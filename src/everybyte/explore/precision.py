"""Chapter 21's explorer: the peak of one training step, by part, in every precision side by side."""

from dataclasses import dataclass

from .. import checks, draw
from ..catalog import Gpu, Model
from ..setup import Setup
from .controls import OF_THE_STEP, Choice, check_setup, gpts, of_the_step, opens, precision_label, shared
from .courses import BY, LONE, UPDATE_BY, Courses, batches_of, kinds, updates_of
from .explorer import Explorer
from .pictures import Stack

PARTS = ("parameters", "casts", "buffers", "gradients", "optimizer", "activations", "loss")


@dataclass(frozen=True)
class Peak(Stack):
    """A bar for each option: the amounts at the operation of its step at which they are the most in all.

    Attributes:
        parts: [(part of the palette, label, the part)]. courses: the steps that the values choose from.
    """

    courses: Courses | None = None

    kind = "peak"

    @property
    def names(self):
        """The names of values that choose a course."""
        return self.courses.names

    def quantities(self):
        """Every quantity that it evaluates."""
        return self.courses.sizes

    def spec(self):
        """What the picture needs to know."""
        parts = [{"part": part, "label": label, "formula": name} for part, label, name in self.parts]
        return {
            "parts": parts,
            "courses": self.courses.spec(),
            "unit": self.unit,
            "bars": self.bars,
            "shares": self.shares,
        }

    def highest(self, values):
        """(where, {part: amount}) of the operation with the most bytes, the first of equal ones."""
        return self.courses.peak(values)

    def compute(self, values):
        """[(part, label, amount)] at the symbols' values."""
        amounts = self.highest(values)[1]
        return [(part, label, amounts.get(name, 0)) for part, label, name in self.parts]

    def describe(self, subject, values):
        """The sentence for a state, as picture.js says it."""
        return f"{super().describe(subject, values)} The peak is in {self.highest(values)[0]}."


@opens
def precision(model: Model | None = None, setup: Setup | None = None, gpu: Gpu | None = None) -> Explorer:
    """The peak of a GPT's training step with the plain loss, in exact tensor bytes: a bar for every precision.

    Args:
        model, setup, gpu: what it opens with; by default GPT-2, and what the other explorers show.

    Raises:
        ValueError: a model that is not one of the catalog's of GPT-2's architecture; a batch or a sequence that is no
            power of two; a GPU that is not in the catalog.
    """
    known = gpts()
    start, chosen = model or known["gpt2"], setup or Setup()
    checks.one_of("precision", "model", start.name, known)
    check_setup("precision", setup, *OF_THE_STEP)
    shortest = min(m.positions for m in known.values())
    options, kinds_of = kinds(known)
    controls = [
        Choice("model", "model", options, start.name),
        shared("precision", setup and precision_label(setup)),
        *of_the_step(setup, chosen, shortest),
        shared("gpu", gpu and gpu.name),
    ]  # fmt: skip
    large = {"model": "gpt2-xl", "attention": "flash", "dropout": "(no dropout)", "optimizer": "adamw",
             "optimizer_impl": "foreach", "batch": "8", "sequence": "1,024", "precision": "bf16-mixed"}  # fmt: skip
    presets = {
        "XL, autocast, flash": large,
        "XL, autocast, eager": large | {"attention": "eager"},
        "eager with dropout": large | {"attention": "eager", "dropout": "dropout"},
        "XL, one short sequence": large | {"batch": "1", "sequence": "128"},
    }
    parts = [(part, draw.part(part).label, part) for part in PARTS]
    courses = Courses("precision", BY, batches_of(kinds_of), UPDATE_BY, updates_of(kinds_of))
    return Explorer(
        "The peak of one training step, by precision", controls, Peak(parts, bars="precision", courses=courses), presets,
        derived=[LONE],
        subject=("model", "precision", "attention", "dropout", "optimizer", "optimizer_impl"), also=("batch", "sequence"),
    )  # fmt: skip
