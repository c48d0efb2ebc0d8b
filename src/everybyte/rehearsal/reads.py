"""Reads from the GPU of what no kernel had written: how many, and by which lines of the script."""

import ctypes
import os
import sys
import time
import traceback
from collections import Counter

from . import history
from .known import KINDS, NOBODY

#: Seconds without an optimizer step, and reads by one line, after which a loop is taken to wait for the GPU; lines that are told.
PATIENCE, MANY, TOLD = 60.0, 1000, 5
_OURS = os.path.dirname(__file__)
_stubs: list[ctypes.CDLL] = []


def stubs() -> ctypes.CDLL | None:
    """The library of the stubs that this process has loaded; None where it has not."""
    if not _stubs:
        with open("/proc/self/maps", encoding="utf-8") as maps:
            paths = {line.split()[-1] for line in maps if "libeverybyte-rehearsal" in line}
        _stubs.extend(ctypes.CDLL(path) for path in sorted(paths)[:1])
    return _stubs[0] if _stubs else None


def unknown() -> tuple[int, int]:
    """(number, bytes) of reads from the GPU whose content is unknown, and was read as zeros."""
    if (library := stubs()) is None:
        return 0, 0
    size = ctypes.c_ulonglong()
    library.rehearsal_unknown_reads.restype = ctypes.c_uint
    return library.rehearsal_unknown_reads(ctypes.byref(size)), size.value


def stream_differences() -> int:
    """How often it was asked whether a stream has come so far, of which a GPU that is slow would have said no."""
    library = stubs()
    return library.rehearsal_stream_differences() if library else 0


def catch_up() -> None:
    """Let all that the GPU was given be done."""
    if library := stubs():
        library.rehearsal_catch_up()


def knows(address: int, size: int) -> bool:
    """Whether the content of an address of the GPU is known: it was sent there, and not written since."""
    library = stubs()
    return bool(library and library.rehearsal_knows(ctypes.c_void_p(address), ctypes.c_size_t(size)))


def here() -> tuple[str | None, str | None]:
    """(the innermost line of the script that runs, the innermost of a library)."""
    try:
        stack = traceback.walk_stack(sys._getframe(2))
    except ValueError:  # a thread of C's, in which no Python runs
        return None, None
    frames = history.told(pair for pair in stack if not pair[0].f_code.co_filename.startswith(_OURS))
    return history.line(frames), history.inner(frames)


class Lines:
    """The lines of the script that read what is not known, each with its count."""

    def __init__(self):
        self.counts: Counter[tuple[str | None, str | None]] = Counter()
        #: Of lines whose sizes data decide: how often, and the most that was found.
        self.sizes: dict[tuple[str, str], dict] = {}
        self.since, self._warned = time.monotonic(), False
        self._call = ctypes.CFUNCTYPE(None)(self._read)  # kept: C has no reference of its own
        if library := stubs():
            library.rehearsal_on_read(self._call)

    def stop(self) -> None:
        """Count no more: Python ends, and C calls nothing of it."""
        if library := stubs():
            library.rehearsal_on_read(None)

    def stepped(self) -> None:
        """An optimizer has taken a step."""
        self.since = time.monotonic()

    def sized(self, found: int | None, of: int | None, by: str) -> None:
        """Data decided a size: so many were `found` of so many, None where that was read; by what, of `known.KINDS` or `NOBODY`."""
        line, inner = here()
        at = inner or line or "backward"
        empty = {"line": at, "by": by, "times": 0, "found": found, "of": of}
        told = self.sizes.setdefault((at, by), empty)
        told["times"] += 1
        if found is not None and found >= (told["found"] or 0):
            told["found"], told["of"] = found, of

    def sized_at(self) -> list[dict]:
        """The lines at which data decided most sizes, so many for each kind of data."""
        ordered = sorted(self.sizes.values(), key=lambda told: -told["times"])
        return [told for kind in (*KINDS, NOBODY) for told in [one for one in ordered if one["by"] == kind][:TOLD]]

    def told(self) -> list[dict]:
        """The lines with the most reads."""
        return [
            {"line": line, "inner": inner, "reads": reads} for (line, inner), reads in self.counts.most_common(TOLD)
        ]

    def _read(self):
        place = here()
        self.counts[place] += 1
        if self.counts[place] % MANY == 0 and not self._warned and time.monotonic() - self.since > PATIENCE:
            self._warned = True
            where = ", in ".join(filter(None, place)) or "backward"
            print(f"everybyte: {where} has read {self.counts[place]:,} zeros, and no optimizer has stepped for {PATIENCE:.0f} s: a loop "
                  "that ends when the GPU says so does not end here. Stop it, and what it took until then is reported.", file=sys.stderr, flush=True)  # fmt: skip
