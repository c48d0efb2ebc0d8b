"""Measure what a learner takes of a server's memory: each notebook's kernel, after Run All and at most.

    python tools/memory.py                              # every notebook, one after another
    python tools/memory.py notebooks/15_the_step.ipynb

Resident set of the kernel's process, from /proc: what is shared with other kernels (the libraries' code) is counted
in each, so thirty learners take somewhat less than thirty times this. Linux only.
"""

import argparse
import re
import sys
from pathlib import Path

import nbformat
from nbclient import NotebookClient

from everybyte import units
from everybyte.common.tables import Table
from notebooks import ROOT


def resident(path: Path, timeout: int = 240) -> tuple[int, int]:
    """(bytes of the kernel's resident set after the notebook's last cell, the most there were)."""
    notebook = nbformat.read(path, as_version=4)
    client = NotebookClient(notebook, timeout=timeout, resources={"metadata": {"path": str(path.parent)}})
    with client.setup_kernel():
        for index, cell in enumerate(notebook.cells):
            client.execute_cell(cell, index)
        status = Path(f"/proc/{client.km.provisioner.pid}/status").read_text(encoding="ascii")
    found = dict(re.findall(r"^(Vm\w+):\s+(\d+) kB$", status, re.M))
    return int(found["VmRSS"]) * 1024, int(found["VmHWM"]) * 1024


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("paths", nargs="*", type=Path, help="notebooks (default: all)")
    paths = parser.parse_args().paths or sorted([*ROOT.glob("notebooks/*.ipynb"), *ROOT.glob("labs/*.ipynb")])
    rows = []
    for path in paths:
        after, most = resident(path.resolve())
        rows.append((path.stem, units.text(after), units.text(most)))
        print(*rows[-1], flush=True, file=sys.stderr)
    print(Table(("notebook", "after Run All", "at most"), rows, "Resident memory of one kernel"))
    return 0


if __name__ == "__main__":
    sys.exit(main())
