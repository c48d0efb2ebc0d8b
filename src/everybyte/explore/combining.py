"""Chapter 36's explorer: the layouts of a model on many GPUs, memory against time, and which of them fit."""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import product
from types import SimpleNamespace

from .. import draw, units
from ..answers.layouts import layouts
from ..ask.mesh import Mesh
from ..ask.setup import Setup
from ..catalog import model
from ..common.tables import Table
from .beside import said, table
from .controls import counted, listed
from .explorer import Explorer, told
from .pictures import Kind

#: The file of what was priced, beside this one: made by `tools/explorers.py`.
FILE = "layouts.json"
MODELS = ("llama-3.1-8b", "llama-3.1-70b", "llama-3.1-405b")
GPUS = (8, 64, 512, 1024)
CARDS = ("h100-80gb", "h200", "b200")
SEQUENCES = (8192, 32768)
#: Tokens that a step sees, and how many layouts are looked for.
TOKENS, MOST = 2**22, 12
BY = ("model_no", "gpus_no", "card_no", "sequence_no")


def priced(name: str, gpus: int, card: str, sequence: int) -> dict:
    """What the picture shows of a run: (name, seconds, bytes) of layouts, what is usable, what binds, how many were tried."""
    groups = gpus // 8  # a step has fewer sequences than the largest runs have GPUs
    setup = Setup(
        gpus=gpus, sequence=sequence, batch=1, accumulation=TOKENS // sequence // groups, precision="bf16-mixed",
        sharding="zero3", mesh=Mesh(tensor=8), optimizer_impl="fused",
    )  # fmt: skip
    found = layouts(model(name), setup, card, most=MOST)
    binds = f"memory keeps faster layouts out, of {found.tried} tried"
    if found.binding != "memory":
        binds = f"beside its arithmetic it waits longest for {said('combining')['waits'][found.binding]}"
    points = [[name, round(seconds, 4), size] for name, seconds, size in found.points()]
    return {"points": points, "usable": found.usable, "binding": binds, "tried": found.tried}


def stored() -> dict[str, dict]:
    """The numbers of model, GPUs, card and sequence -> what `priced` said."""
    return table(FILE)


def every() -> dict[str, tuple]:
    """The key of each run that is stored -> the arguments of `priced`."""
    axes = (enumerate(axis) for axis in (MODELS, GPUS, CARDS, SEQUENCES))
    runs = (tuple(zip(*row, strict=True)) for row in product(*axes))
    return {",".join(map(str, numbers)): values for numbers, values in runs}


@dataclass(frozen=True)
class Front(Kind):
    """Layouts as dots, memory over time, with a line through those that none beats in both."""

    kind = "front"
    names = BY

    def spec(self):
        return {"by": list(BY), "runs": stored()}

    def compute(self, values: Mapping):
        """The run at the controls' values."""
        return SimpleNamespace(**stored()[",".join(str(values[name]) for name in BY)])

    def describe(self, subject, values):
        run = self.compute(values)
        first = next((point for point in run.points if point[2] <= run.usable), None)
        if first is None:
            return f"{subject}: none of {run.tried} layouts fits {units.text(run.usable)}."
        name, seconds, size = first
        return (
            f"{subject}: the fastest that fits is {name}: {seconds:.2f} s a step, {units.text(size)} of {units.text(run.usable)}; "
            f"{run.binding}."
        )

    def figure(self, title, subject, values, variants):
        run = self.compute(values)
        points = [tuple(point) for point in run.points] or [("nothing fits", 1.0, run.usable * 2)]
        return draw.fronts(points, run.usable, f"{title}, {subject}")

    def table(self, subject, values):
        """A `Table` of the layouts that fit."""
        run = self.compute(values)
        rows = [
            [name, f"{seconds:.2f} s", units.text(size)] for name, seconds, size in run.points if size <= run.usable
        ]
        rows = rows or [[f"none of {run.tried} fits {units.text(run.usable)}", "–", "–"]]
        return Table(("layout", "step", "peak"), rows, subject)


def combining() -> Explorer:
    """Layouts of Llama 3.1 on 8 to 1,024 GPUs, a step of four million tokens: memory against time, and the fastest that fits.

    Priced by `everybyte.layouts`; the numbers are stored, and none is computed here.
    """
    controls = [
        listed("model", "model", MODELS, "llama-3.1-70b", BY[0]),
        listed("gpus", "GPUs", list(map(counted("GPU"), GPUS)), "64 GPUs", BY[1]),
        listed("card", "GPU", CARDS, "h100-80gb", BY[2]),
        listed("sequence", "sequence (tokens)", list(map(counted("token"), SEQUENCES)), "8,192 tokens", BY[3]),
    ]
    return told("combining", controls, Front())
