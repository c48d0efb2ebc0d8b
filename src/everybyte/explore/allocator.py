"""Chapter 41's explorer: what the allocator makes of a step, under its settings."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from types import SimpleNamespace

from .controls import Choice
from .explorer import Explorer
from .pictures import Stack

#: The file of what was simulated, beside this one: made by `tools/explorers.py`.
FILE = "allocator.json"
#: Label -> changes to the setup of GPT-2 on an H200.
RUNS: dict[str, dict] = {
    "bf16 autocast, 8 × 1,024": {"precision": "bf16-mixed"},
    "fp32, 8 × 1,024": {},
    "bf16, 8 × 1,024": {"precision": "bf16"},
    "bf16 autocast, 1 × 1,024": {"precision": "bf16-mixed", "batch": 1},
    "bf16 autocast, 32 × 1,024": {"precision": "bf16-mixed", "batch": 32},
    "bf16 autocast, checkpointing": {"precision": "bf16-mixed", "checkpointing": "full"},
    "bf16 autocast, eager attention": {"precision": "bf16-mixed", "attention": "eager"},
    "bf16 autocast, ZeRO-3 on 8 GPUs": {"precision": "bf16-mixed", "sharding": "zero3", "gpus": 8},
}
#: Label -> `PYTORCH_ALLOC_CONF`.
SETTINGS: dict[str, str] = {
    "PyTorch's defaults": "",
    "expandable_segments:True": "expandable_segments:True",
    "max_split_size_mb:128": "max_split_size_mb:128",
    "roundup_power2_divisions:4": "roundup_power2_divisions:4",
    "large_segment_size_mb:64": "large_segment_size_mb:64",
}
#: What is stacked: (part of the palette, label, name in the file).
PARTS = (
    ("requested", "requested", "requested"),
    ("unsplit", "rounded up and not split", "unsplit"),
    ("cached", "kept free", "cached"),
)


def simulate(run: Mapping, configurations: Mapping[str, str]) -> list[list[int]]:
    """[requested, rounded up and not split, kept free] of a step of GPT-2 under each setting, from a dry run."""
    from ..catalog import model
    from ..dryrun import dry_run
    from ..setup import Setup

    trace, found = dry_run(model("gpt2"), Setup(**run)), []
    for configuration in configurations.values():
        said = trace.on("h200", configuration)
        above = said.rounding + said.unsplit
        found.append([said.requested, above, said.reserved - said.requested - above])
    return found


@cache
def stored() -> dict[str, list[list[int]]]:
    """Run's label -> what `simulate` said."""
    return json.loads(resources.files(__package__).joinpath(FILE).read_text(encoding="utf-8"))


@dataclass(frozen=True)
class Entry:
    """A number of the file, as a formula for pictures: by the numbers of the run and of the setting."""

    number: int

    @property
    def name(self):
        return f"allocator {PARTS[self.number][1]}"

    @property
    def symbols(self):
        """The values that it reads."""
        return [SimpleNamespace(name="run"), SimpleNamespace(name="setting")]

    @property
    def javascript(self):
        """An arrow function of one object with these as fields."""
        table = [[row[self.number] for row in rows] for rows in stored().values()]
        return f"(v) => {json.dumps(table)}[v.run][v.setting]"

    def __call__(self, **values):
        return list(stored().values())[values["run"]][values["setting"]][self.number]


def allocator() -> Explorer:
    """What PyTorch's allocator makes of a step of GPT-2: requested, rounded up, kept free, under five settings.

    Simulated by `everybyte.allocator` from dry runs, for an H200; the numbers are stored, and none is computed here.
    """
    runs = {label: {"run": number} for number, label in enumerate(RUNS)}
    chosen = {label: {"setting": number} for number, label in enumerate(SETTINGS)}
    controls = [Choice("run", "step", runs), Choice("setting", "setting", chosen)]
    parts = [(part, label, Entry(number)) for number, (part, label, _) in enumerate(PARTS)]
    presets = {
        "Segments that grow": {"setting": "expandable_segments:True"},
        "One sequence": {"run": "bf16 autocast, 1 × 1,024"},
        "Sharded": {"run": "bf16 autocast, ZeRO-3 on 8 GPUs"},
    }
    return Explorer("Reserved by the allocator, GPT-2", controls, Stack(parts, bars="setting"), presets)
