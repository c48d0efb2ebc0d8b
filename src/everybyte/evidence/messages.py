"""Read the text of an out-of-memory error into whole bytes. A message has two decimals, so each number is exact to 0.5 %, but for those
that a warning of the allocator's says in bytes.

`messages.toml` has the patterns.
"""

import re
import tomllib
from dataclasses import dataclass, replace
from math import prod

from ..common import checks, files, terminal
from ..units import UNITS
from .tracebacks import traced

_SIZE = r"(?<![0-9.])([0-9]+(?:\.[0-9]+)?) (bytes|[KMGT]i?B)"
#: PyTorch's units are powers of 1024, also where its MPS backend wrote KB, MB and GB.
_UNITS = {"bytes": 1} | {f"{letter}{i}B": UNITS[f"{letter}iB"] for letter in "KMGT" for i in ("i", "")}
_PATTERNS = tomllib.loads(files.text(__package__, "messages.toml").replace("SIZE", _SIZE))
#: What PyTorch 2.13's allocator warns of before the error, in whole bytes.
_EXACT = re.compile(
    r"trying to allocate (?P<asked>[0-9]{1,18}) bytes \(free: (?P<free>[0-9]{1,18}), total: (?P<capacity>[0-9]{1,18})\)"
)
#: An array that NumPy could not have, by its shape and type.
_ARRAY = re.compile(r"array with shape \(([0-9, ]{1,200})\) and data type \w*?([0-9]{1,3})\b")
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
        kind: `pytorch`, `rejected`, `mps`, `thc`, `cublas`, `cudnn`, `nccl`, `library`, `pinned`, `driver`, `engine`, `unified`, `shared`,
            `cgroup` or `host`: whose memory ran out. form: of PyTorch's text, 1 or 2.
        asked: of the driver, for a new segment. gpu: its number. capacity, free: of the GPU, as its driver counts them.
        allocated: in blocks that serve tensors. cached: reserved but not allocated, after the allocator freed what it could.
        process: what the driver counts for this process; of `cgroup`, what it had of the host's memory.
        others: (number, bytes) of other processes. allowed: what this one may have.
        graphs: of the allocated, what pools of CUDA graphs hold, free blocks among them.
        exact: names of the numbers that the text has in whole bytes. phase: of the run, by the traceback: `forward`, `backward`,
            `optimizer`, `collective`, `evaluation`, `generation`, `load` or `save`; "" where nothing tells. line: the script's own
            innermost. call: the innermost function. part: of memory that was asked for, as `naming.part` has it.
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
    exact: tuple[str, ...] = ()
    phase: str = ""
    line: str = ""
    call: str = ""
    part: str = ""

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
    found, end = _found(text)
    if found is not None:
        return replace(found, **traced(text, end))
    if re.search(_KILLED, text) and not re.search(_BROKEN, text):
        return Message(kind="host")
    looks = next((what for what, pattern in _NOT_MEMORY.items() if re.search(pattern, text)), None)
    if not text.strip():
        looks = "nothing at all"
    raise ValueError(
        f"doctor.text: no out-of-memory message; it looks like {looks or 'text of another kind'}; allowed: the last lines of an error "
        "of PyTorch's, cuBLAS's, NCCL's or the host's, or a memory snapshot"
    )


def devices(text: str) -> list[int]:
    """The numbers of the GPUs whose messages of PyTorch's stand in a text, in order: `message` reads the last message."""
    ends = (" ".join(text[found.start() : found.start() + _BEFORE].split()) for found in _BEGINS.finditer(text))
    return sorted({int(n) for end in ends for n in re.findall(r"^Tried to allocate.{1,60}?GPU ([0-9]{1,4})\b", end)})


def _found(text):
    """(the message of a text, where its traceback ends); (None, 0) where no pattern finds one."""
    at = max((found.start() for found in _BEGINS.finditer(text)), default=None)
    flat = "" if at is None else " ".join(text[max(0, at - _BEFORE) : at + _AFTER].split())
    if found := re.search(_REJECTED, flat):
        return Message(kind="rejected", asked=_bytes(found)), at
    if found := re.search(r"MPS backend out of memory", flat):
        said = _said("mps", flat[found.start() :])
        other = said.pop("other", None)
        process = None if other is None or "allocated" not in said else said["allocated"] + other
        return Message(kind="mps", process=process, **said), at
    if re.search(r"out of memory\. Tried to allocate", flat):
        return _exactly(_pytorch(flat[flat.rindex("Tried to allocate") :]), text, at), at
    for other in terminal.bar(iterable=_PATTERNS["others"], desc="reading"):
        for found in re.finditer(other["ends"], text):
            at = found.start()
            if re.search(other.get("before", ""), text[max(0, at - _WITHIN) : at]):
                return Message(kind=other["kind"], **_host(" ".join(text[at : at + _AFTER].split()))), at
    return None, 0


def _exactly(said, text, at):
    """A message with the bytes of the allocator's last warning before it, where they are its own, rounded."""
    warned = list(_EXACT.finditer(text, max(0, at - _AFTER), at))
    if not warned:
        return said
    exact = {name: int(size) for name, size in warned[-1].groupdict().items()}
    same = {name: size for name, size in exact.items() if _rounds(size, getattr(said, name))}
    return replace(said, exact=tuple(same), **same) if "asked" in same else said


def _rounds(size, said):
    """Whether a message says that size, with two decimals of its unit."""
    unit = next((UNITS[u] for u in ("GiB", "MiB", "KiB") if said is not None and said >= UNITS[u]), 1)
    return said is not None and abs(size - said) <= 0.0051 * unit


def _pytorch(last):
    """Read the caching allocator's message, from "Tried to allocate" on."""
    two = bool(re.search("total capaci?ty of", last)) or "Of the allocated memory" in last
    said = _said("two" if two else "one", last)
    if re.match(r"Tried to allocate more than 1EB", last):
        said["asked"] = UNITS["EiB"]
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
    """Read the numbers of a message that is not of PyTorch's allocator, by the first row of patterns that matches."""
    if found := _ARRAY.search(flat):
        shape = [int(number) for number in re.findall("[0-9]{1,15}", found[1])]
        return {"asked": prod(shape) * int(found[2]) // 8, "exact": ("asked",)}
    for row in _PATTERNS["host"]:
        if found := re.search(row["says"], flat):
            if "unit" not in row:
                return {field: _amount(*found.groups()[2 * i : 2 * i + 2]) for i, field in enumerate(row["fields"])}
            exact = {"exact": tuple(row["fields"])} if row["unit"] == "B" else {}
            named = zip(row["fields"], found.groups(), strict=True)
            return exact | {
                field: round(float(n) * UNITS[row["unit"]]) if "." in n else int(n) * UNITS[row["unit"]]
                for field, n in named
            }
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
