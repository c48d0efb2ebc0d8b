"""Makes what explorers show and do not compute, and stores it beside their code.

That is the courses of steps that they open with, which are read only while the theory that they were traced with is the
present one: a stale file makes an explorer slow, not wrong. And what the allocator makes of steps, or needs of them at most, the segments of one
step moment by moment, and priced layouts.

    tools/explorers.py            # everything, in minutes
    tools/explorers.py courses    # the courses alone, after an edit of what they are traced with: under a minute
"""

import json
import sys
from collections.abc import Mapping
from itertools import pairwise, product
from pathlib import Path

from margins import EXPLORERS, margins
from ran import lengths, llama

from everybyte import explore
from everybyte.allocator import Allocator
from everybyte.answers.epochs import epoch
from everybyte.answers.layouts import layouts
from everybyte.ask.mesh import Mesh
from everybyte.ask.setup import Setup
from everybyte.catalog import gpu, model
from everybyte.dryrun import dry_run
from everybyte.dryrun.requests import requests
from everybyte.explore import allocator, combining, courses, segments
from everybyte.explore.beside import said
from everybyte.explore.peaks import PIECES

NAMES = ("step", "checkpointing", "planning", "sharding", "adapters")
#: Tokens that a step of the layouts sees, and how many layouts are looked for.
TOKENS, MOST = 2**22, 12
#: How many moments of the first step and of the second are kept, between their ends.
BETWEEN = 10
#: Of an epoch one step in so many is kept, and the last.
EVERY = 10
_BARS, _LAYOUTS = (sys.modules[opened.__module__] for opened in (allocator, combining))


def simulate(run: Mapping, configurations: Mapping[str, str]) -> list[list[int]]:
    """[requested, rounded up and not split, kept free] of a step of GPT-2 under each setting, from a dry run."""
    trace, found = dry_run(model("gpt2"), Setup(**run)), []
    for configuration in configurations.values():
        on = trace.on("h200", configuration)
        above = on.rounding + on.unsplit
        found.append([on.requested, above, on.reserved - on.requested - above])
    return found


def priced(name: str, gpus: int, card: str, sequence: int) -> dict:
    """What the picture shows of a run: points (name, seconds, live bytes, reserved ones or None where it does not run), what is usable,
    what binds, how many were tried."""
    groups = gpus // 8  # a step has fewer sequences than the largest runs have GPUs
    setup = Setup(
        gpus=gpus, sequence=sequence, batch=1, accumulation=TOKENS // sequence // groups, precision="bf16-mixed",
        sharding="zero3", mesh=Mesh(tensor=8), optimizer_impl="fused",
    )  # fmt: skip
    found = layouts(model(name, "reference"), setup, card, most=MOST)
    binds = f"memory keeps faster layouts out, of {found.tried} tried"
    if found.binding != "memory":
        binds = f"beside its arithmetic it waits longest for {said('combining')['waits'][found.binding]}"
    looked = zip(found.points(), found.reserved, strict=True)
    points = [[name, round(seconds, 4), size, reserved] for (name, seconds, size), reserved in looked]
    return {"points": points, "usable": found.usable, "binding": binds, "tried": found.tried}


def every() -> dict[str, tuple]:
    """The key of each stored run, the numbers of model, GPUs, card and sequence -> the arguments of `priced`."""
    runs = product(*map(enumerate, (_LAYOUTS.MODELS, _LAYOUTS.GPUS, _LAYOUTS.CARDS, _LAYOUTS.SEQUENCES)))
    return {",".join(str(number) for number, _ in run): tuple(value for _, value in run) for run in runs}


def play_step(configuration: str) -> list[segments.Moment]:
    """The segments of GPT-2's first two steps, bf16 autocast, 8 × 1,024 tokens, on an H200: from a dry run."""
    asked = requests(dry_run(model("gpt2"), Setup(precision="bf16-mixed")), gpu("h200").cublas_workspace)
    allocator, here, found = Allocator(configuration), {}, []
    for name, part in (("weights", asked.beginning), ("first step", asked.first), ("second step", asked.steady)):
        between = range(1, BETWEEN + 1) if name != "weights" else ()
        places = sorted({len(part), *(round(i * len(part) / (BETWEEN + 1)) for i in between)})
        for begin, number in pairwise([0, *places]):
            serve(allocator, here, part[begin:number])
            done = number == len(part)
            label = f"the end of the {name}" if done else f"{name}, request {number:,} of {len(part):,}"
            found.append(segments.standing(label, allocator, {}, merge=True))
    return found


def play_epoch(order: str, configuration: str) -> list[segments.Moment]:
    """The segments when a step has the most, of the 150 steps of many lengths that an H200 ran (`beside/scripts/epoch.py`)."""
    found = epoch(llama(3), Setup(batch=4, sequence=4096, precision="bf16"), lengths(), order="given", gpu="h200")
    steps = list(found.steps)
    if order == "largest":
        steps.insert(0, steps.pop(max(range(len(steps)), key=lambda i: steps[i][0].sequence)))
    elif order == "shortest":
        steps = found.with_(order="ascending").steps
    allocator, here, told = Allocator(configuration), {}, []
    serve(allocator, here, found.source.shaped(steps[0][0]).beginning)
    for number, step in enumerate(steps):
        asked = found.source.asked(step, number == 0)
        place = most_of(asked) if number % EVERY == 0 or number == len(steps) - 1 else 0
        serve(allocator, here, asked[:place])
        if place:
            label = f"step {number + 1}, 4 × {step[0].sequence:,} tokens"
            told.append(segments.standing(label, allocator, {}, merge=True))
        serve(allocator, here, asked[place:])
    return told


def serve(allocator, here, asked):
    """Serve requests. here: key -> addresses."""
    for key, size, stream in asked:
        if size:
            here.setdefault(key, []).append(allocator.malloc(size, stream))
        elif here.get(key):
            allocator.free(here[key].pop(0))


def most_of(asked):
    """After how many requests of a step the most bytes live."""
    sizes, live, most, place = {}, 0, 0, 0
    for number, (key, size, _) in enumerate(asked, 1):
        if size:
            sizes.setdefault(key, []).append(size)
            live += size
        elif sizes.get(key):
            live -= sizes[key].pop(0)
        if live > most:
            most, place = live, number
    return place


def epochs(label):
    """An epoch's moments as the file has them."""
    return json.dumps([vars(m) for m in play_epoch(*segments.EPOCHS[label])], separators=(",", ":"))


def moments(configuration):
    """A step's moments as the file has them."""
    return json.dumps([vars(m) for m in play_step(configuration)], separators=(",", ":"))


def store(name, rows):
    """Write a file of explorers, a line for each row: a key, and its JSON."""
    lines = ",\n".join(f"{json.dumps(key)}: {row}" for key, row in rows.items())
    Path(courses.__file__).with_name(name).write_text(f"{{\n{lines}\n}}\n", encoding="utf-8")


def traced():
    """Write the file of courses."""
    courses._stored = dict
    tables = {name: getattr(explore, name)().kind.courses.tables for name in NAMES}
    store(courses.FILE, {name: json.dumps(table, separators=(",", ":")) for name, table in tables.items()})


def main(only: list[str]) -> None:
    """Write the files, or that of courses."""
    traced()
    if only == ["courses"]:
        return
    store(_BARS.FILE, {label: json.dumps(simulate(run, _BARS.SETTINGS)) for label, run in _BARS.RUNS.items()})
    store(_LAYOUTS.FILE, {key: json.dumps(priced(*run)) for key, run in every().items()})
    store(PIECES, {name: json.dumps(margins(name)) for name in EXPLORERS})
    store(segments.EPOCHS_FILE, {label: epochs(label) for label in segments.EPOCHS})
    store(segments.FILE, {label: moments(configuration) for label, configuration in segments.PLAYED.items()})


if __name__ == "__main__":
    main(sys.argv[1:])
