"""Reports of a rehearsal's processes: one file per process, rewritten during the run, and checked when read."""

import json
import os
from pathlib import Path

from ..common import children, files
from . import host

#: Field of a report -> its type.
_FIELDS: dict[str, type] = dict.fromkeys(("pid", "rank", "steps", "reads", "bytes_read", "streams", "backwards"), int)
_FIELDS |= dict.fromkeys(("notes", "read_at", "sized_at", "groups", "devices"), list)
_FIELDS |= {"torch": str, "host": dict, "ended": bool, "final": bool, "packages": dict}
#: Field of a report that is a list -> field of each of its objects -> its type.
_OF_EACH = {
    "read_at": {"reads": int},
    "sized_at": {"line": str, "by": str, "times": int},
    "groups": {"ranks": int, "apart": int, "does": list},
    "devices": dict.fromkeys(("device", "memory", "requested", "allocated", "reserved", "segments"), int)
    | {"phases": dict, "stages": dict},
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
            found.append(_checked(files.parsed(path.read_bytes())) | {"began": len(found)})
        except (OSError, ValueError) as error:
            faults.append(f"{path.name[:80]!r} among the reports is none: {error}")
    return found, faults


def _checked(said):
    if not isinstance(said, dict):
        raise ValueError(f"a {type(said).__name__}; allowed: an object")
    _check_fields("", {"packages": {}} | said, _FIELDS)
    _check_fields("host.", said["host"], dict.fromkeys(host.COUNTS, int))
    for name, fields in _OF_EACH.items():
        for each in said[name]:
            _check_fields(f"{name}.", each if isinstance(each, dict) else {}, fields)
    for group in said["groups"]:
        if min(group["ranks"], group["apart"]) < 1:
            raise ValueError(f"groups: {group!r:.80}; allowed: 1 or more ranks, 1 or more apart")
    return {"oom": None, "caught": None, "snapshot": None, "stopped": None, "lost": None} | said


def _check_fields(where, said, fields):
    for name, kind in fields.items():
        if type(said.get(name)) is not kind:
            raise ValueError(f"{where}{name}: {said.get(name)!r:.80}; allowed: {kind.__name__}")


#: What puts a package where a script is rehearsed.
INSTALL = "everybyte rehearse --install NAME, for a package that is missing there"


def nobody(command: str, status: int, read: list[dict], faults: list[str]) -> str:
    """The message where no process of a command is known to have used a GPU: how it ended, and why nothing is known."""
    how = f"it ended {children.how(status)}"
    if faults:
        return f"rehearse.reports: {command} left none that says of a GPU; {how}; {'; '.join(faults[:3])}"
    if all(said["final"] for said in read) and read:
        how = next((f"it ended {said['stopped']}" for said in read if said["stopped"]), how)
        allowed = f"; allowed: {INSTALL}" if ": no " in how else ""
        return f"rehearse.command: {command} put nothing on a GPU; {how}{allowed}"
    if read:
        return (
            f"rehearse.command: {command} ended before the first step of an optimizer; {how}: what was on a GPU until then "
            "is not known; allowed: a script that takes a step, or runs to its end"
        )
    return (
        f"rehearse.command: {command} did not import the rehearsal's PyTorch; {how}; allowed: a script, run by the "
        f"environment's own python, with all that it imports before PyTorch: {INSTALL}"
    )


class Lost(RuntimeError):
    """A rehearsal could not follow a script: what it knows is of a part of it, and nothing is said of the whole."""


def check_followed(read: list[dict]) -> None:
    """Raise `Lost` where one of the processes could not be followed."""
    for said in read:
        if said["lost"]:
            raise Lost(f"rehearse could not follow {_who(said, read)}: {said['lost']}")


def ends(processes: list[dict], status: int) -> list[str]:
    """A sentence for each way in which processes ended before their end: which run or rank it was, where it stood, and what is left out."""
    found: dict[str, list[dict]] = {}
    for said in processes:
        if said["stopped"]:
            how = f"ended {said['stopped']}: what would have come is not here"
        elif not said["final"]:
            how = f"ended {children.how(status) if len(processes) == 1 and status else 'at once'}, without Python's own end: what it did after "
            how += f"optimizer step {said['steps']} is not in these numbers"
        else:
            continue
        found.setdefault(how, []).append(said)
    return [
        f"{', '.join(dict.fromkeys(_who(said, processes) for said in whose))} {how}" for how, whose in found.items()
    ]


def _who(said, processes):
    """A process among others: by its command, where these differ, by its rank, where it has one of its own."""
    runs = list(dict.fromkeys(" ".join(one["argv"]) for one in sorted(processes, key=lambda one: one["began"])))
    if len(runs) > 1:
        own = " ".join(said["argv"])
        return f"run {runs.index(own) + 1} of {len(runs)} ({own:.60})"
    return f"rank {said['rank']}" if len({one["rank"] for one in processes}) > 1 else "the script"


def survived(said: dict, status: int) -> dict:
    """A process's report: where its command ended in order, an out-of-memory error of which it did not die is one that it caught."""
    if status or not said["oom"] or not said["final"] or said["oom"].get("died"):
        return said
    return said | {"oom": None, "caught": said["oom"] | {"last": True}}


#: Errors of those who started others, which say their own.
_OF_OTHERS = ("ChildFailedError", "ProcessRaisedException", "ProcessExitedException", "CalledProcessError")


def with_a_gpu(read: list[dict]) -> tuple[list[dict], list[dict]]:
    """(the reports of those that used a GPU, by rank, those of others that ended with an error of their own)."""
    using = sorted((said for said in read if said["devices"]), key=lambda said: said["rank"])
    stopped = (said for said in read if said["stopped"] and not said["devices"])
    return using, [said for said in stopped if not any(error in said["stopped"] for error in _OF_OTHERS)]
