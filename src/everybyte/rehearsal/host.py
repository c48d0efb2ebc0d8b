"""What a rehearsed process takes of the CPU's memory: resident, pinned for the GPU, shared, and its workers'."""

import ctypes
import os
from contextlib import suppress
from pathlib import Path

from ..common import files
from ..units import text
from . import reads

COUNTS = ("resident", "imported", "pinned", "shared", "workers")


#: Bytes of this process by the names that Linux gives them: VmHWM, the most that was resident; VmRSS; RssShmem.
_STATUS = "/proc/self/status"


class Host:
    """The most of each count that was seen: resident as the kernel keeps it, pinned as the driver was asked, the others at each look."""

    def __init__(self):
        self.most = dict.fromkeys(COUNTS, 0) | {"imported": files.kilobytes(_STATUS)["VmRSS"]}

    def look(self) -> dict[str, int]:
        """Look again, and return them."""
        now = files.kilobytes(_STATUS)
        seen = {
            "resident": now["VmHWM"],
            "shared": now["RssShmem"],
            "pinned": pinned(),
            "workers": sum(map(_share, _children())),
        }
        self.most |= {name: max(size, self.most[name]) for name, size in seen.items()}
        return self.most


def pinned() -> int:
    """The most bytes that were pinned at once: taken from CUDA, or registered with it."""
    if (library := reads.stubs()) is None:
        return 0
    library.rehearsal_most_pinned.restype = ctypes.c_ulonglong
    return library.rehearsal_most_pinned()


def _children():
    """Processes that this one has started, which still run."""
    mine, found = str(os.getpid()), []
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            if path.read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()[1] == mine:
                found.append(path.parent.name)
    return found


def _share(pid):
    """What a process takes, of shared pages its share; 0 where it has ended."""
    try:
        return files.kilobytes(f"/proc/{pid}/smaps_rollup").get("Pss", 0)
    except OSError:
        return 0


def said(processes: list[dict], ranks: int) -> str:
    """In a sentence: of the process that takes the most, and of a node of so many ranks.

    Args:
        ranks: those of a node, of which `processes` may be one.
    """
    hosts = [process["host"] for process in processes]
    most = max(hosts, key=lambda host: host["resident"])
    line = (
        f"The CPU's memory: {text(most['resident'])} resident, {text(most['imported'])} of it when torch was imported"
    )
    for name, what in (("pinned", "pinned"), ("shared", "shared"), ("workers", "in its workers")):
        line += f", {text(most[name])} {what}" if most[name] else ""
    line += "; of CUDA's own nothing"
    if ranks > 1:
        each = sum(host["resident"] + host["workers"] for host in hosts) / len(hosts)
        line += f"; a node of {ranks} ranks at most {text(round(ranks * each))}"
    return line
