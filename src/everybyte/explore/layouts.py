"""Explorers of many GPUs: a pipeline's schedule, and layouts by memory and time."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from types import SimpleNamespace

from .. import draw, units
from ..ask import schedules
from ..ask.mesh import Mesh, Schedule
from ..ask.setup import Setup
from ..catalog import models
from ..common.tables import Table
from ..draw.palette import ACTIONS
from .beside import said, table
from .controls import Choice, Slider, counted, decided, listed, steps
from .explorer import POINTER, Explorer, told
from .pictures import Kind, Stack

#: The number of GPUs; schedule -> stages on each GPU.
PLACES = 8
SCHEDULES: dict[Schedule, int] = {
    "gpipe": 1, "1f1b": 1, "interleaved-1f1b": 2, "looped-bfs": 2, "interleaved-zero-bubble": 2,
}  # fmt: skip
#: Micro-batches of a step: multiples of the GPUs, as interleaved schedules require.
BATCHES = (8, 16, 32, 64, 128)


@cache
def timed(number: int, batches: int) -> list[list[schedules.Turn]]:
    """The turns of each GPU under the schedule of that number, timed in forwards of a stage."""
    name, stages = list(SCHEDULES.items())[number]
    return schedules.timed(Mesh(pipeline=PLACES, schedule=name, stages=stages), batches)


def packed(gpus: list[list[schedules.Turn]]) -> dict:
    """A schedule for the picture: for each GPU a text with one letter per action, lower case on its second stage, after the wait.

    Micro-batches come in order within each stage and kind; `back`: whether backward takes the last one first.
    """
    rows = []
    for place, turns in enumerate(gpus):
        said, clock = "", 0.0
        for (kind, stage, _), start, end in turns:
            wait = f"{start - clock:.0f}" if start > clock else ""
            said += wait + (kind if stage == place else kind.lower())
            clock = end
        rows.append(said)
    first = next(turn.action for turn in gpus[0] if turn.action.kind != "F")
    return {"back": first.batch > 0, "gpus": rows}


@dataclass(frozen=True)
class Chart(Stack):
    """A schedule over time: a row per GPU, a lane per stage, and under each row the GPU's bytes.

    There are two parts: what lives all the time, and what the most micro-batches in flight save.
    """

    kind = "chart"

    def spec(self):
        runs = {f"{i},{n}": packed(timed(i, n)) for i in range(len(SCHEDULES)) for n in BATCHES}
        kinds = {kind: [*look, schedules.TIMES[kind]] for kind, look in ACTIONS.items()}
        return super().spec() | {"runs": runs, "kinds": kinds}

    def run(self, values: Mapping) -> tuple[list[int], float, float]:
        """(the most micro-batches in flight on each GPU, the step's length, the time that a GPU waits), in forwards of its blocks."""
        gpus, stages = timed(values["schedule_no"], values["accumulation"]), values["pipeline_stages"]
        most = [max(count for _, count in schedules.flying(turns)) for turns in gpus]
        end = max(turn.end for turns in gpus for turn in turns)
        waits = end - sum(turn.end - turn.start for turn in gpus[0])
        return most, end / stages, waits / stages

    def describe(self, subject, values):
        most, end, waits = self.run(values)
        counted = ", counted once a stage" if values["pipeline_stages"] > 1 else ""
        return (
            f"{super().describe(subject, values)} At most {most[values['place']]} micro-batches are in flight{counted}. The step lasts "
            f"{end:g} forwards of a GPU's blocks; each GPU is idle for {waits:g} of them ({100 * waits / end:.1f} %)."
        )

    def figure(self, title, subject, values, variants):
        peaks = {i: sum(x for *_, x in self.compute(row)) for i, row in enumerate(variants.values())}
        gpus = timed(values["schedule_no"], values["accumulation"])
        return draw.schedule(gpus, f"{title}, {subject}", peaks, values["place"])

    def table(self, subject, values):
        most, end, waits = self.run(values)
        rows = []
        for i, count in enumerate(most):
            sizes = [x for *_, x in self.compute({**values, "place": i})]
            stages = ", ".join(str(i + PLACES * turn) for turn in range(values["pipeline_stages"]))
            name = f"{POINTER * (i == values['place'])}GPU {i}"
            rows.append((name, stages, count, *map(units.text, (*sizes, sum(sizes))), f"{waits / end:.1%}"))
        columns = ("", "stages", "in flight at most", *(label for _, label, _ in self.parts), "in all", "idle")
        return Table(columns, rows, subject)


def pipelines() -> Explorer:
    """Chapter 34: a pipeline's schedule on eight GPUs, and the bytes of each GPU without weights, states and logits.

    All blocks are checkpointed. The default is Llama-3.1-70B under 1F1B, with 16 micro-batches of one sequence of 8,192 tokens.
    Only models are offered whose layers 16 stages divide.
    """
    symbols, named = ("pipeline", "pipeline_stages", "hop", "all_first", "divided"), {}
    for i, (name, count) in enumerate(SCHEDULES.items()):
        mesh = Mesh(pipeline=PLACES, schedule=name, stages=count)
        run = Setup(gpus=PLACES, accumulation=PLACES, mesh=mesh)
        named[str(name)] = decided(None, run, *symbols) | {"schedule_no": i}
    divided = [m for m in models("reference").values() if m.family and not m.layers % (2 * PLACES)]
    known = {m.name: decided(m, None, "layers", "width") for m in divided}
    micro = counted("micro-batch", "es")
    batches = {micro(n): {"accumulation": n} for n in BATCHES}
    controls = [
        Choice("model", "model", known, "llama-3.1-70b"),
        Choice("schedule", "schedule", named, "1f1b"),
        Choice("batches", "micro-batches", batches, micro(16)),
        steps("place", "GPU", range(PLACES), 0, said="GPU {}".format),
        Slider("sequence", "tokens of a micro-batch", 512, 65536, 8192, 512),
    ]
    return told("pipelines", controls, Chart(said("pipelines")["parts"], bars="place"))


# -- layouts that were priced beforehand

#: The file of stored layouts, beside this one; `tools/explorers.py` writes it.
FILE = "layouts.json"
MODELS = ("llama-3.1-8b", "llama-3.1-70b", "llama-3.1-405b")
GPUS = (8, 64, 512, 1024)
CARDS = ("h100-80gb", "h200", "b200")
SEQUENCES = (8192, 32768)
BY = ("model_no", "gpus_no", "card_no", "sequence_no")


@dataclass(frozen=True)
class Front(Kind):
    """Layouts as dots, memory over time, with a line through those that no other beats in both.

    Attributes:
        by: names of values. runs: {these values joined by commas: points (name, seconds, live bytes, reserved ones or None where it does
            not run), `usable` bytes, what is the limit (`binding`), how many were `tried`}.
    """

    by: Sequence[str]
    runs: Mapping[str, Mapping]

    kind = "front"

    def compute(self, values: Mapping):
        return SimpleNamespace(**self.runs[",".join(str(values[name]) for name in self.by)])

    def describe(self, subject, values):
        run = self.compute(values)
        first = next((point for point in run.points if point[3] is not None), None)
        if first is None:
            return f"{subject}: none of {run.tried} layouts runs; {units.text(run.usable)} are usable."
        name, seconds, size, reserved = first
        said = f"{seconds:.2f} s a step, {units.text(size)} live of {units.text(run.usable)} usable, {units.text(reserved)} reserved"
        return f"{subject}: first of those that run, by computed time: {name}, {said}; {run.binding}."

    def figure(self, title, subject, values, variants):
        run = self.compute(values)
        points = run.points or [("nothing runs", 1.0, run.usable * 2, None)]
        runs = [reserved for *_, reserved in points]
        return draw.fronts([tuple(point[:3]) for point in points], run.usable, f"{title}, {subject}", runs)

    def table(self, subject, values):
        run = self.compute(values)
        runs = [point for point in run.points if point[3] is not None]
        rows = [(name, f"{time:.2f} s", *map(units.text, sizes)) for name, time, *sizes in runs]
        none = [(f"none of {run.tried} runs", "–", "–", "–")]
        return Table(("layout", "step", "peak", "reserved"), rows or none, subject)


def combining() -> Explorer:
    """Chapter 37: layouts of Llama 3.1 on 8 to 1,024 GPUs: memory against time, and the first of those that run.

    The numbers are stored: `everybyte.layouts` computed them for a step of four million tokens, and simulated PyTorch's allocator
    with its defaults.
    """
    controls = [
        listed("model", "model", MODELS, "llama-3.1-70b", BY[0]),
        listed("gpus", "GPUs", list(map(counted("GPU"), GPUS)), "64 GPUs", BY[1]),
        listed("card", "GPU", CARDS, "h100-80gb", BY[2]),
        listed("sequence", "sequence (tokens)", list(map(counted("token"), SEQUENCES)), "8,192 tokens", BY[3]),
    ]
    return told("combining", controls, Front(BY, table(FILE)))
