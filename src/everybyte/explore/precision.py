"""Chapter 21's explorer: the peak of one training step, by part, in every precision side by side."""

from collections.abc import Sequence
from dataclasses import dataclass

from .. import draw
from ..ask.setup import Setup
from ..catalog import Gpu, Model
from ..common import checks
from .beside import said
from .controls import OF_THE_STEP, Choice, asked, check_setup, gpts, of_the_step, opens, shared
from .courses import BY, LONE, UPDATE_BY, Courses, Steps, batches_of, kinds, updates_of
from .explorer import Explorer, told
from .pictures import Stack


@dataclass(frozen=True)
class Peak(Stack):
    """A bar for each option: the amounts at the operation of its step at which they are the most in all.

    Attributes:
        parts: [(part of the palette, label, the part)]. courses: the steps that the values choose from.
    """

    courses: Steps | None = None

    kind = "peak"

    @property
    def names(self):
        """The names of values that choose a course."""
        return self.courses.names

    def quantities(self):
        return self.courses.sizes

    def spec(self):
        parts = [{"part": part, "label": label, "formula": name} for part, label, name in self.parts]
        return self.shape() | {"parts": parts, "courses": self.courses.spec()}

    def highest(self, values):
        """(where, {part: amount}) of the operation with the most bytes, the first of equal ones."""
        return self.courses.peak(values)

    def compute(self, values):
        """[(part, label, amount)] at the symbols' values."""
        amounts = self.highest(values)[1]
        return [(part, label, amounts.get(name, 0)) for part, label, name in self.parts]

    def describe(self, subject, values):
        return f"{super().describe(subject, values)} The peak is in {self.highest(values)[0]}."


def labelled(parts: Sequence[str]) -> list[tuple[str, str, str]]:
    """Parts of the palette, with their labels, as `Peak` takes them."""
    return [(part, draw.part(part).label, part) for part in parts]


def peaks(name: str, bars: str, courses: Steps) -> Peak:
    """The picture of an explorer whose parts stand in explorers.toml."""
    return Peak(labelled(said(name)["parts"]), bars=bars, courses=courses)


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
        *asked(setup, "precision"),
        *of_the_step(setup, chosen, shortest),
        shared("gpu", gpu and gpu.name),
    ]
    courses = Courses("precision", BY, batches_of(kinds_of), UPDATE_BY, updates_of(kinds_of))
    return told("precision", controls, peaks("precision", "precision", courses), derived=[LONE])
