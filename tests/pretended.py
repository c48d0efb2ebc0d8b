"""A rehearsal's result without a rehearsal: what a script would have been told to hold, line by line."""

import everybyte as eb
from everybyte.guard import Kept, Line
from everybyte.rehearsal import ScriptRehearsal


def result(held, command=("python", "train.py"), status=0, oom=None, stopped=None):
    """A script's rehearsal on an H200. held: (file:line or None, bytes) of what lived at the peak."""
    rows = [{"line": line, "inner": None, "tensors": 1, "bytes": size} for line, size in held]
    total = sum(size for _, size in held)
    device = {"requested": total, "allocated": total, "reserved": 2 * total, "retries": 0, "phases": {}}
    device |= {"peak": {"at": "backward", "held": rows}}
    process = {
        "torch": "2.13.0",
        "packages": {},
        "steps": 5,
        "oom": oom,
        "caught": None,
        "stopped": stopped,
        "devices": [device],
    }
    process |= {"rank": 0, "argv": ["train.py"], "groups": [], "final": True, "ended": not status, "began": 0}
    return ScriptRehearsal(command=list(command), gpu=eb.gpu("h200"), status=status, seconds=1.0, processes=[process])


def kept(*lines, **changes):
    """A kept peak. lines: (where, bytes) or (where, bytes, code, inner)."""
    rows = tuple(Line(where, *more[1:], tensors=1, bytes=more[0]) for where, *more in lines)
    said = {
        "of": "python train.py",
        "witness": "rehearse",
        "gpu": "h200",
        "versions": {"torch": "2.13.0"},
        "at": "backward",
    }
    return Kept(**said | {"peak": sum(line.bytes for line in rows), "lines": rows} | changes)
