"""Reports of a rehearsal's processes: one file per process, rewritten during the run, and checked when read."""

import json
import os
from pathlib import Path

from ..common import children, files

_WHOLE = ("pid", "rank", "steps", "reads", "bytes_read")
#: Field of a report -> its type; field of one of its devices -> its type.
_FIELDS = dict.fromkeys(_WHOLE, int) | {
    "torch": str,
    "notes": list,
    "read_at": list,
    "sized_at": dict,
    "devices": list,
    "ended": bool,
    "final": bool,
}
_OF_DEVICE = dict.fromkeys(("device", "memory", "requested", "allocated", "reserved", "segments"), int) | {
    "phases": dict
}


def write(folder: str, began: int, said: dict) -> None:
    """Write this process's report in place of its last one. `began`: when the process started, which orders the files."""
    with files.whole(os.path.join(folder, f"{began}-{os.getpid()}.json")) as file:
        file.write(json.dumps(said).encode())


def read(folder: Path) -> tuple[list[dict], list[str]]:
    """(the reports of a folder in the order in which their processes started, in words what could not be read)."""
    if not folder.is_dir():
        return [], ["the folder of reports is gone: the script has deleted it"]
    found, faults = [], []
    for path in sorted(folder.iterdir()):
        if path.suffix == ".part":  # of who was killed while it wrote: the whole one stands beside it
            continue
        try:
            found.append(_checked(files.parsed(path.read_bytes())))
        except (OSError, ValueError) as error:
            faults.append(f"{path.name[:80]!r} among the reports is none: {error}")
    return found, faults


def _checked(said):
    if not isinstance(said, dict):
        raise ValueError(f"a {type(said).__name__}; allowed: an object")
    _check_fields("", {"packages": {}} | said, _FIELDS | {"packages": dict})
    for line in said["read_at"]:
        _check_fields("read_at.", line if isinstance(line, dict) else {}, {"reads": int})
    for device in said["devices"]:
        _check_fields("devices.", device if isinstance(device, dict) else {}, _OF_DEVICE)
    return {"oom": None, "snapshot": None} | said


def _check_fields(where, said, fields):
    for name, kind in fields.items():
        if type(said.get(name)) is not kind:
            raise ValueError(f"{where}{name}: {said.get(name)!r:.80}; allowed: {kind.__name__}")


def nobody(command: str, status: int, read: list[dict], faults: list[str]) -> str:
    """The message where no process of a command is known to have used a GPU: how it ended, and why nothing is known."""
    how = f"it ended {children.how(status)}"
    if faults:
        return f"rehearse.reports: {command} left none that says of a GPU; {how}; {'; '.join(faults[:3])}"
    if all(said["final"] for said in read) and read:
        return f"rehearse.command: {command} put nothing on a GPU; {how}"
    if read:
        return (
            f"rehearse.command: {command} ended before the first step of an optimizer; {how}: what was on a GPU until then "
            "is not known; allowed: a script that takes a step, or runs to its end"
        )
    return (
        f"rehearse.command: {command} did not import the rehearsal's PyTorch; {how}; allowed: a script, run by the "
        "environment's own python"
    )


def unfinished(processes: list[dict], status: int) -> list[str]:
    """A sentence for each process that ended before its last report: what its numbers leave out."""
    one = len(processes) == 1
    return [
        f"{'the script' if one else 'rank ' + str(said['rank'])} ended {children.how(status) if one and status else 'at once'}, "
        f"without Python's own end: what it did after optimizer step {said['steps']} is not in these numbers"
        for said in processes
        if not said["final"]
    ]
