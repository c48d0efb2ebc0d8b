"""Histories of PyTorch's own allocator, for the tests of `everybyte.allocator`: steps rehearsed on a GPU that does nothing.

    .venv/bin/python tools/histories.py                       # all of STEPS, into tests/allocator/histories
    .venv/bin/python tools/histories.py NAME...               # these
    .venv/bin/python tools/histories.py replayed 200          # so many steps of the labs' grid, rehearsed, replayed, and not kept

Each file holds what was asked of the allocator in three training steps, from the process's first request on, what it did about
each, and the blocks that stood at the end. It needs the environment of rehearsals (`make rehearsal`).
"""

import gzip
import json
import random
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path

from everybyte.allocator import ACTIONS, replay

OUT = Path(__file__).resolve().parents[1] / "tests" / "allocator" / "histories"
#: Name -> (changes to the setup, `PYTORCH_ALLOC_CONF`, bytes of the GPU or None for an H200's); and bytes that the process may have.
STEPS = {
    "plain": ({"precision": "bf16-mixed"}, "", None),
    "expandable": ({"precision": "bf16-mixed"}, "expandable_segments:True", None),
    "zero3": ({"precision": "bf16-mixed", "sharding": "zero3", "gpus": 8}, "", None),
    "zero3-expandable": (
        {"precision": "bf16-mixed", "sharding": "zero3", "gpus": 8, "offload": "cpu"}, "expandable_segments:True", None,
    ),
    "unsplit": ({"precision": "bf16-mixed", "batch": 4}, "max_split_size_mb:64", 6 * 2**30),
    "rounded": ({"precision": "bf16", "batch": 2}, "roundup_power2_divisions:[16:8,256:2,>:4],large_segment_size_mb:32", None),
    "tight": ({"precision": "bf16-mixed", "attention": "eager"}, "", 17_600 * 2**20),
    "tight-expandable": ({"precision": "bf16-mixed", "attention": "eager"}, "expandable_segments:True", 33 * 2**29),
    "collected": ({"precision": "bf16-mixed"}, "garbage_collection_threshold:0.6", None),
    "dies": ({"precision": "bf16-mixed", "attention": "eager"}, "", 12 * 2**30),
}  # fmt: skip
LIMITS = {"collected": 10 * 2**30}
#: Of the grid's steps: every third runs under one of these, the others under PyTorch's defaults.
CONFIGURATIONS = [
    "expandable_segments:True", "expandable_segments:True,roundup_power2_divisions:8", "max_split_size_mb:128",
    "roundup_power2_divisions:[64:2,256:4,>:8]", "large_segment_size_mb:64", "expandable_segments:True,large_segment_size_mb:40",
]  # fmt: skip
INSIDE = """
import json, sys
import torch
import everybyte as eb
from everybyte.lab import run
said, out, limit = json.loads(sys.argv[1]), sys.argv[2], json.loads(sys.argv[3])
if isinstance(said, int):
    from everybyte.lab.grid import grid
    model, setup = grid()[said].model, grid()[said].setup
else:
    model, setup = eb.model("gpt2"), eb.Setup(**said)
memory = torch.cuda.memory
torch.cuda.init()
memory._record_memory_history(enabled="all", context=None, max_entries=2_000_000)
kept = {}
def keep():
    snapshot = memory._snapshot()
    events = [[e["action"], e.get("addr", 0), e["size"], e["stream"]] for e in snapshot["device_traces"][0]]
    blocks = [[s["address"], s["is_expandable"], [[b["size"], b["requested_size"], b["state"]] for b in s["blocks"]]]
              for s in snapshot["segments"]]
    kept.update(events=events, segments=blocks, settings=snapshot["allocator_settings"]["PYTORCH_CUDA_ALLOC_CONF"],
                total=torch.cuda.get_device_properties(0).total_memory)
ended = run._Session.time
def time(session, steps, seconds):
    keep()
    return ended(session, steps, seconds)
run._Session.time = time
from everybyte.lab.ranks import run_as_rank
found, _ = run_as_rank(model, setup, torch.device("cuda", 0), warm_up=3, steps=0, points=0, limit=limit)
if not kept:
    keep()
if limit:
    kept["settings"] += f",per_process_memory_fraction:{limit / kept['total']!r}"
peaks = {name: found.get(name + "_peak") for name in ("requested", "allocated", "reserved")}
with open(out, "w") as file:
    json.dump(kept | {"setup": said, "peaks": peaks, "status": found["status"]}, file)
"""


def record(name, folder=OUT):
    """Rehearse a step of `STEPS`, and keep its history in a file of that name."""
    setup, configuration, memory = STEPS[name]
    folder.mkdir(parents=True, exist_ok=True)
    history = rehearsed(setup, configuration, memory, LIMITS.get(name))
    path = folder / f"{name}.json.gz"
    packed = json.dumps(pack(history), separators=(",", ":")).encode()
    path.write_bytes(gzip.compress(packed, 9, mtime=0))  # the same bytes each time
    return path


def rehearsed(step, configuration="", memory=None, limit=None):
    """The history of a rehearsed step: of GPT-2's, by what its setup changes, or of the labs' grid, by its number."""
    from everybyte.rehearsal import devices, place
    from everybyte.rehearsal.script import surroundings

    where = place.find()
    variables = devices.environment(devices.find("h200", where.manifest["capabilities"]), 1, memory)
    variables |= (
        dict.fromkeys(("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"), configuration) if configuration else {}
    )
    with (
        tempfile.TemporaryDirectory() as folder,
        surroundings(where, variables | {"CUDA_VISIBLE_DEVICES": "0"}) as (environment, _),
    ):
        out = Path(folder) / "history.json"
        command = [str(where.python), "-c", INSIDE, json.dumps(step), str(out), json.dumps(limit)]
        subprocess.run(command, env=environment, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        return json.loads(out.read_text(encoding="utf-8"))


def replayed(count):
    """Rehearse so many steps of the labs' grid, drawn at random, and decide each again: how many there were of each kind, and
    (number in the grid, configuration, what is wrong) of each that the simulator decides otherwise."""
    from tqdm.auto import tqdm

    from everybyte.lab.grid import grid

    steps, kinds, wrong = grid(), Counter(), []
    drawn = random.Random(count).sample(range(len(steps)), count)
    for place, number in enumerate(tqdm(drawn, unit="step")):
        configuration = CONFIGURATIONS[place // 3 % len(CONFIGURATIONS)] if place % 3 == 0 else ""
        history = unpack(pack(rehearsed(number, configuration)))
        found = replay(history["events"], history["settings"], history["total"])
        kinds["steps"] += 1
        kinds["decisions"] += found.decisions
        kinds["sharded"] += steps[number].setup.sharding != "none"
        kinds["expandable segments"] += "expandable" in configuration
        if found.wrong or found.strays or blocks(found.allocator) != stood(history):
            wrong.append((number, configuration, found.wrong or "another block at the end"))
    return kinds, wrong


def blocks(allocator):
    """(address, bytes, bytes asked for or None where it is free) of each block with memory behind it."""
    found = []
    for block in allocator.segments.values():
        while block is not None:
            if block.mapped:
                found.append((block.address, block.size, None if block.state == "free" else block.requested))
            block = block.after
    return sorted(found)


def stood(history):
    """The same, as the snapshot at the end of a history has it."""
    found = []
    for address, _, inside in history["segments"]:
        for size, asked, state in inside:
            found.append((address, size, None if state == "inactive" else asked))
            address += size
    return sorted(found)


def pack(history):
    """A history with addresses from the lowest on, in units of 512 bytes, and actions by number."""
    low = min(address for action, address, *_ in history["events"] if action in ACTIONS and address)

    def unit(address):
        return (address - low) // 512

    streams = sorted({e[3] for e in history["events"]})
    events = [
        [ACTIONS.index(a), unit(at), size, streams.index(s)] for a, at, size, s in history["events"] if a in ACTIONS
    ]
    segments = [[unit(at), *rest] for at, *rest in history["segments"]]
    return history | {"events": events, "segments": segments}


def unpack(history):
    """A packed history, or the one that a file holds, with its events as `replay` takes them."""
    if isinstance(history, Path):
        history = json.loads(gzip.decompress(history.read_bytes()))
    history["events"] = [(ACTIONS[a], 512 * at, size, stream) for a, at, size, stream in history["events"]]
    history["segments"] = [(512 * at, *rest) for at, *rest in history["segments"]]
    return history


if __name__ == "__main__":
    if sys.argv[1:2] == ["replayed"]:
        kinds, wrong = replayed(int(sys.argv[2]))
        print(", ".join(f"{count:,} {kind}" for kind, count in kinds.items()) + f": {len(wrong)} decided otherwise")
        print(*wrong, sep="\n", end="\n" if wrong else "")
        sys.exit(bool(wrong))
    for wanted in sys.argv[1:] or STEPS:
        print(record(wanted).name)
