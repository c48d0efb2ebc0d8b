"""Thirteen out-of-memory messages that people reported, as exercises."""

from dataclasses import dataclass
from functools import cache

from ..common import files


@dataclass(frozen=True)
class Report:
    """A reported message: `source`, an issue on GitHub as owner/name#number; `text`, PyTorch's message with its numbers."""

    name: str
    source: str
    text: str


def _two(numbers, others, capacity):
    who = "".join(f"Process {number} has {size} memory in use. " for number, size in others.items())
    if "process" in numbers:
        who += f"Including non-PyTorch memory, this process has {numbers['process']} memory in use. "
    graphs = f"with {numbers['graphs']} allocated in private pools (e.g., CUDA Graphs), " if "graphs" in numbers else ""
    return (
        f"CUDA out of memory. Tried to allocate {numbers['asked']}. GPU 0 has a total {capacity} of {numbers['capacity']} of which "
        f"{numbers['free']} is free. {who}Of the allocated memory {numbers['allocated']} is allocated by PyTorch, {graphs}and "
        f"{numbers['cached']} is reserved by PyTorch but unallocated."
    )


def _one(numbers):
    reserved = "reserved" in numbers
    last = f"{numbers['reserved']} reserved in total by PyTorch" if reserved else f"{numbers['cached']} cached"
    return (
        f"CUDA out of memory. Tried to allocate {numbers['asked']} (GPU 0; {numbers['capacity']} total capacity; "
        f"{numbers['allocated']} already allocated; {numbers['free']} free; {last})"
    )


@cache
def reports() -> dict[str, Report]:
    """Name -> report, in the order of the file."""
    said = files.toml(__package__, "reports.toml")
    found = {}
    for name, entry in said.items():
        numbers, version = entry["numbers"], entry["version"]
        spelled = "capacty" if version == 2.1 else "capacity"  # as PyTorch 2.0 and 2.1 wrote it
        text = _two(numbers, entry.get("others", {}), spelled) if version >= 2 else _one(numbers)
        found[name] = Report(name, entry["source"], text)
    return found
