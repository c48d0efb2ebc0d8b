"""Read the text of an out-of-memory error into whole bytes. A message has two decimals, so each number is exact to 0.5 %.

`messages.toml` has the patterns.
"""

import re
import tomllib
from dataclasses import dataclass
from importlib import resources

from ..common import checks, terminal
from ..units import UNITS

_SIZE = r"(?<![0-9.])([0-9]+(?:\.[0-9]+)?) (bytes|[KMGT]i?B)"
#: PyTorch's units are powers of 1024, also where its MPS backend wrote KB, MB and GB.
_UNITS = {"bytes": 1} | {f"{letter}{i}B": UNITS[f"{letter}iB"] for letter in "KMGT" for i in ("i", "")}
_PATTERNS = tomllib.loads(
    resources.files(__package__).joinpath("messages.toml").read_text(encoding="utf-8").replace("SIZE", _SIZE)
)
_REJECTED = rf"preemptively rejected.*?Requested size: {_SIZE}"
#: Where a message of PyTorch's own begins, however its lines are broken; how far before and after it is read.
_BEGINS = re.compile(r"Tried\s+to\s+allocate|preemptively\s+rejected|MPS\s+backend\s+out\s+of\s+memory")
_BEFORE, _AFTER = 400, 40_000
#: More text is not read: a message stands at its end.
MOST = 100 * 10**6
#: How far before the end of another message the rest of it is looked for.
_WITHIN = 500
#: How a process ends that the kernel killed for its memory; others are ended so too, as by a launcher whose one rank failed.
_KILLED = r"oom-kill|exit(?:ed with)? ?(?:code|status) ?:? *-?(?:9|137)\b|Signal 9|SIGKILL"
#: Of PyTorch's message, where its words do not follow one another.
_BROKEN = r"OutOfMemoryError|(?s:Tried\b.{1,80}\ballocate\b)"
_IN_PIECES = "PyTorch's message, and not in one piece, as where several ranks write at once: give the log of one"
_NOT_MEMORY = {_IN_PIECES: _BROKEN} | _PATTERNS["not_memory"]


@dataclass(frozen=True, kw_only=True)
class Message:
    """The numbers in a message, in bytes; None where the message lacks one.

    Attributes:
        kind: `pytorch`, `rejected`, `mps`, `thc`, `cublas`, `cudnn`, `nccl`, `pinned`, `driver`, `cgroup` or `host`: whose memory ran
            out. form: of PyTorch's text, 1 or 2.
        asked: of the driver, for a new segment. gpu: its number. capacity, free: of the GPU, as its driver counts them.
        allocated: in blocks that serve tensors. cached: reserved but not allocated, after the allocator freed what it could.
        process: what the driver counts for this process; of `cgroup`, what it had of the host's memory.
        others: (number, bytes) of other processes. allowed: what this one may have.
        graphs: of the allocated, what pools of CUDA graphs hold, free blocks among them.
    """

    kind: str
    form: int = 2
    asked: int | None = None
    gpu: int | None = None
    capacity: int | None = None
    free: int | None = None
    allocated: int | None = None
    cached: int | None = None
    process: int | None = None
    allowed: int | None = None
    graphs: int | None = None
    others: tuple[tuple[int, int], ...] = ()

    @property
    def reserved(self) -> int | None:
        """Bytes that PyTorch's allocator has reserved."""
        return None if self.allocated is None or self.cached is None else self.allocated + self.cached


def message(text: str) -> Message:
    """Read an error's text; other text may stand around it.

    Raises:
        ValueError: where the text is of no out-of-memory error; the message says what it looks like.
    """
    if len(text) > MOST:
        raise ValueError(f"doctor.text: {len(text):,} characters; allowed: {MOST:,}, such as the last lines of a log")
    flat = _one(text)
    if found := re.search(_REJECTED, flat):
        return Message(kind="rejected", asked=_bytes(found))
    if found := re.search(r"MPS backend out of memory", flat):
        said = _said("mps", flat[found.start() :])
        other = said.pop("other", None)
        process = None if other is None or "allocated" not in said else said["allocated"] + other
        return Message(kind="mps", process=process, **said)
    if re.search(r"out of memory\. Tried to allocate", flat):
        return _pytorch(flat[flat.rindex("Tried to allocate") :])
    for other in terminal.bar(iterable=_PATTERNS["others"], desc="reading"):
        for found in re.finditer(other["ends"], text):
            at = found.start()
            if re.search(other.get("before", ""), text[max(0, at - _WITHIN) : at]):
                return Message(kind=other["kind"], **_host(" ".join(text[at : at + _AFTER].split())))
    if re.search(_KILLED, text) and not re.search(_BROKEN, text):
        return Message(kind="host")
    looks = next((what for what, pattern in _NOT_MEMORY.items() if re.search(pattern, text)), None)
    if not text.strip():
        looks = "nothing at all"
    raise ValueError(
        f"doctor.text: no out-of-memory message; it looks like {looks or 'text of another kind'}; allowed: the last lines of an error "
        "of PyTorch's, cuBLAS's, NCCL's or the host's, or a memory snapshot"
    )


def _one(text):
    """PyTorch's last message, in one line; empty where there is none."""
    at = max((found.start() for found in _BEGINS.finditer(text)), default=None)
    return "" if at is None else " ".join(text[max(0, at - _BEFORE) : at + _AFTER].split())


def _pytorch(last):
    """Read the caching allocator's message, from "Tried to allocate" on."""
    two = bool(re.search("total capaci?ty of", last)) or "Of the allocated memory" in last
    said = _said("two" if two else "one", last)
    reserved = said.pop("reserved", None)
    if reserved is not None and "allocated" in said:
        said["cached"] = max(0, reserved - said["allocated"])
    gpu = re.search(r"GPU ([0-9]{1,9})\b", last)
    others = tuple(
        (int(n), _amount(size, unit))
        for n, size, unit in re.findall(rf"Process ([0-9]{{1,19}}) has {_SIZE} memory in use", last)
    )
    return Message(kind="pytorch", form=2 if two else 1, gpu=int(gpu[1]) if gpu else None, others=others, **said)


def _host(flat):
    """Read a message about the host's memory, by the first row of patterns that matches."""
    for row in _PATTERNS["host"]:
        if found := re.search(row["says"], flat):
            if "unit" not in row:
                return {"asked": _bytes(found)}
            return {field: int(n) * UNITS[row["unit"]] for field, n in zip(row["fields"], found.groups(), strict=True)}
    return {}


def _said(form, text):
    return {name: _bytes(found) for name, pattern in _PATTERNS[form].items() if (found := re.search(pattern, text))}


def _amount(number, unit):
    if len(number.partition(".")[0]) > 15:
        raise ValueError(
            f"doctor.text: a size of {checks.printable(number, 40)} {unit}; allowed: 15 digits before the point"
        )
    return round(float(number) * _UNITS[unit])


def _bytes(found):
    return _amount(found[1], found[2])
