"""What a lab ends in: its steps as the reader's own GPU measured them, or else as the book's record has them."""

import os
from pathlib import Path

from .. import units
from ..common.tables import Table
from .measurement import Measurement
from .recording import asked
from .records import fingerprint, read
from .several import FOLDERS, NOT_YET, Runs

#: The record that comes with the book.
BOOK = "h200.jsonl"
OWN, NOW = "Your own record", "Your own GPU, measured just now"
QUOTED = "No record of your own: `everybyte record` makes one. The book's is quoted"
COLUMNS = ["", "allocated", "reserved", "milliseconds a step"]


def conclusion(runs: Runs, *, records: str | os.PathLike | None = None) -> Table:
    """The steps of a lab as the reader measured them; where that was on no GPU, the book's record of them, and said so.

    Args:
        runs: what `lab.runs` gave for these steps. records: the folder of the records, as of `lab.runs`.

    Returns:
        A row for each step on record: GiB that the allocator had handed out and held at most, and milliseconds where they were taken.
    """
    found = {name: m for name, m in runs.measured.items() if m.device["type"] != "cpu"}
    if not found:
        return Table(COLUMNS, [], NOT_YET)
    if runs.live:
        return _table(NOW, found)
    own = _own(found, records)
    return _table(OWN, own) if own else _table(QUOTED, found)


def _own(found, records) -> dict[str, Measurement]:
    """The same steps out of the reader's record that has most of them; empty where there is none."""
    folder = next((p for p in ([records] if records else FOLDERS) if Path(p).is_dir()), None)
    most: dict[str, Measurement] = {}
    for path in sorted(Path(folder).glob("*.jsonl")) if folder else ():
        if path.name == BOOK:
            continue
        there = [m for m in read(path).measurements if m.fingerprint == fingerprint() and m.status == "measured"]
        steps = {_step(m): m for m in sorted(there, key=lambda m: m.steps or 0) if m.witness == "measure"}
        some = {name: steps[_step(m)] for name, m in found.items() if _step(m) in steps}
        most = some if len(some) > len(most) else most
    return most


def _step(m):
    """What was measured: the model, the setup, and the switches that it was asked for with."""
    said = asked(m)
    return m.model, m.setup, *((said[name] or None) for name in ("tf32", "expandable", "limit", "recipe"))


def _table(said, found):
    first = next(iter(found.values()))
    rows = [
        [name, units.text(m.peak), units.text(m.reserved_peak), f"{m.step_ms:,.1f}" if m.timed else "–"]
        for name, m in found.items()
    ]
    return Table(COLUMNS, rows, f"{said}: {first.device['name']}, {first.date[:10]}")
