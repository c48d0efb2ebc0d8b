"""A reader's evidence as a page asks about it: a snapshot or an error's text, in what JSON holds."""

import os
from pathlib import Path

from ..common import checks
from ..evidence import Memory, Snapshot, snapshot
from ..evidence.pickles import is_pickle
from .diagnosis import doctor

#: The lines of owners that a moment shows.
ROWS = 40


class Reading:
    """What a file says.

    Args:
        path: of a memory snapshot, or of a text with an out-of-memory error in it.

    Attributes:
        said: the doctor's `Diagnosis`. snapshot: None of a text.

    Raises:
        ValueError: where it is neither; the message says what it looks like.
    """

    def __init__(self, path: str | os.PathLike):
        with Path(path).open("rb") as file:
            pickled = is_pickle(file.read(1))
        self.snapshot: Snapshot | None = snapshot(path, progress=False) if pickled else None
        self.said = doctor(self.snapshot or Path(path).read_text(encoding="utf-8", errors="replace"))

    def answer(self) -> dict:
        """What is known at once. `html`: the diagnosis, escaped; `devices`: of a snapshot, each GPU with its events and bytes."""
        found: dict = {"html": self.said._repr_html_(), "devices": [], "main": None}
        if self.snapshot is not None:
            found["main"] = self.snapshot.main.device
            found["devices"] = [
                {
                    "device": memory.device, "events": len(memory.events), "peak": memory.peak, "peak_event": memory.peak_event,
                    "died": memory.died,
                }
                for memory in self.snapshot.devices.values()
            ]  # fmt: skip
        return found

    def crests(self, device: int, first: int, last: int, columns: int) -> dict:
        """A GPU's live bytes in a range of events: `events` and, of each part, `bytes` at each crest (`Memory.crests`)."""
        found = self._memory(device).crests(first, last, columns)
        parts = dict.fromkeys(name for _, sizes in found for name in sizes)
        return {
            "events": [event for event, _ in found],
            "parts": {name: [sizes.get(name, 0) for _, sizes in found] for name in parts},
        }

    def moment(self, device: int, event: int) -> dict:
        """A GPU's owners after a number of events: (line, part, blocks, bytes), most bytes first, and how many more lines there are."""
        memory = self._memory(device)
        rows = memory.held(event)
        return {
            "event": event, "live": memory.live[event], "reserved": memory.reserved_at(event),
            "rows": [[row.where, row.part, row.blocks, row.bytes] for row in rows[:ROWS]], "more": max(0, len(rows) - ROWS),
        }  # fmt: skip

    def _memory(self, device) -> Memory:
        known = {} if self.snapshot is None else self.snapshot.devices
        if device not in known:
            raise ValueError(
                f"reading.device: {checks.shown(device)}; allowed: {', '.join(map(str, known)) or 'none, as it is a text'}"
            )
        return known[device]
