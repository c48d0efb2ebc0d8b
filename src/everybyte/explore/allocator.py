"""Chapter 41's explorer: what the allocator makes of a step, under its settings."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from types import SimpleNamespace

from .beside import said, table
from .controls import listed
from .explorer import Explorer, told
from .pictures import Stack

#: The file of what was simulated, beside this one: made by `tools/explorers.py`.
FILE = "allocator.json"
#: Label -> changes to the setup of GPT-2 on an H200; label -> `PYTORCH_ALLOC_CONF`.
RUNS, SETTINGS = said("allocator")["runs"], said("allocator")["settings"]


def simulate(run: Mapping, configurations: Mapping[str, str]) -> list[list[int]]:
    """[requested, rounded up and not split, kept free] of a step of GPT-2 under each setting, from a dry run."""
    from ..ask.setup import Setup
    from ..catalog import model
    from ..dryrun import dry_run

    trace, found = dry_run(model("gpt2"), Setup(**run)), []
    for configuration in configurations.values():
        on = trace.on("h200", configuration)
        above = on.rounding + on.unsplit
        found.append([on.requested, above, on.reserved - on.requested - above])
    return found


def stored() -> dict[str, list[list[int]]]:
    """Run's label -> what `simulate` said."""
    return table(FILE)


@dataclass(frozen=True)
class Entry:
    """A number of the file, as a formula for pictures: by the numbers of the run and of the setting."""

    name: str
    number: int

    #: The values that it reads.
    symbols = (SimpleNamespace(name="run"), SimpleNamespace(name="setting"))

    @property
    def javascript(self):
        """An arrow function of one object with these as fields."""
        numbers = [[row[self.number] for row in rows] for rows in stored().values()]
        return f"(v) => {json.dumps(numbers)}[v.run][v.setting]"

    def __call__(self, **values):
        return list(stored().values())[values["run"]][values["setting"]][self.number]


def allocator() -> Explorer:
    """What PyTorch's allocator makes of a step of GPT-2: requested, rounded up, kept free, under five settings.

    Simulated by `everybyte.allocator` from dry runs, for an H200; the numbers are stored, and none is computed here.
    """
    controls = [listed("run", "step", RUNS), listed("setting", "setting", SETTINGS)]
    parts = said("allocator")["parts"]
    parts = [(part, label, Entry(f"allocator {label}", i)) for i, (part, label) in enumerate(parts)]
    return told("allocator", controls, Stack(parts, bars="setting"))
