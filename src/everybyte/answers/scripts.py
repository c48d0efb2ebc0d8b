"""What a script of one's own can take on a GPU, and what each of its switches saves: decided from rehearsals of it.

A value stands in the command, or in an environment variable, as a placeholder in braces: `python train.py --batch {batch}`.
"""

import os
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from .. import units
from ..catalog import Gpu
from ..common import checks, terminal
from ..common.tables import Shown, Table
from ..rehearsal import ScriptRehearsal, outside, rehearse_script
from .headroom import Headroom, find_gpu

#: Bytes of a GPU on which a script's peak is seen where no GPU of the catalog has room for it: the most that a rehearsal pretends.
WIDE = 2**40
#: The first value that is tried is at most this multiple of the least.
FIRST = 16
#: The most values of one search; every so many guesses one halves what is left, for scripts whose peak is no straight line.
VALUES, HALVES = 10**6, 5
#: Where guesses die one after another, a peak is looked at there, unless one has been within this share of it.
NEAR = 0.8


def filled(
    command: Sequence[str], values: Mapping[str, str], words: Sequence[str] = ()
) -> tuple[list[str], dict[str, str]]:
    """(the command, the environment variables that change) with values in place of their placeholders.

    Args:
        words: names whose value is words of the command, or none: they stand at its end where it has no placeholder for them.

    Raises:
        ValueError: where a name has no placeholder in either.
    """
    variables = {name: _put(text, values) for name, text in os.environ.items()}
    changed = {name: text for name, text in variables.items() if text != os.environ[name]}
    found: list[str] = []
    for word in command:
        name = word[1:-1] if word[:1] + word[-1:] == "{}" else ""
        found += shlex.split(values[name]) if name in words else [_put(word, values)]
    for name, value in values.items():
        place = f"{{{name}}}"
        if not any(place in text for text in (*command, *os.environ.values())):
            if name not in words:
                raise ValueError(
                    f"rehearse.{name}: no {place} in the command or in an environment variable; allowed: {place} where the value stands, "
                    f"such as --{name} {place}"
                )
            found += shlex.split(value)
    return found, changed


def _put(text, values):
    for name, value in values.items():
        text = text.replace(f"{{{name}}}", value)
    return text


@dataclass(frozen=True, eq=False, kw_only=True)
class Run:
    """A rehearsal of a script with some value.

    Attributes:
        value: in words. found: the rehearsal. wide: whether the GPU had 1 TiB, so that the peak is seen. room: bytes that PyTorch's
            allocator may reserve on the GPU that was asked for.
    """

    value: str
    found: ScriptRehearsal
    room: int
    wide: bool = False

    @property
    def allocated(self) -> int:
        """The most bytes in the blocks of one device."""
        return self.found.most("allocated")

    @property
    def reserved(self) -> int:
        """The most bytes reserved on one device."""
        return self.found.most("reserved")

    @property
    def fits(self) -> bool | None:
        """Whether it ran in that room, as it was asked to: a script that catches the error and goes on with less has not; None where it had
        more, reserved more, and may do with less as free blocks are given back.
        """
        if self.found.short:
            return False
        if self.reserved <= self.room:
            return True
        return False if self.allocated > self.room or not self.wide else None

    def as_dict(self) -> dict:
        """As JSON."""
        said = {"value": self.value, "wide": self.wide, "fits": self.fits, "oom": self.found.death}
        return said | {"peak": self.found.peak, "allocated": self.allocated, "reserved": self.reserved}

    @property
    def how(self) -> str:
        """How it went, in words."""
        if self.found.death:
            return f"dies: {self.found.died}"
        if self.found.caught:
            return self.found.caught
        if self.wide and not self.fits:
            return "seen on 1 TiB: too much" if self.fits is False else "seen on 1 TiB"
        retries = self.found.most("retries")
        return "fits" + (
            f", with {retries:,} retr{'y' if retries == 1 else 'ies'} after blocks were given back" if retries else ""
        )


@dataclass(frozen=True, eq=False, repr=False)
class Largest(Shown):
    """The largest of some values with which a script fits a GPU.

    Attributes:
        command: with its placeholder. name: of the placeholder. values: that were asked for. gpu: the GPU. room: bytes that PyTorch's
            allocator may reserve there: without the driver's, CUDA's context and NCCL's buffers.
        last: the run with the largest value that fits; None where none does. next: the run with the value after it, which dies; None
            where the last of the values fits. runs: every run, in order.
    """

    command: list[str]
    name: str
    values: range
    gpu: Gpu
    room: int
    last: Run | None
    next: Run | None
    runs: list[Run]

    @property
    def value(self) -> int | None:
        """The largest value that fits; None where none does."""
        return int(self.last.value) if self.last else None

    @property
    def fits(self) -> bool:
        """Whether any value fits."""
        return self.last is not None

    @property
    def peak(self) -> int | None:
        """The most bytes that were requested with it."""
        return self.last.found.peak if self.last else None

    def as_dict(self) -> dict:
        """As JSON."""
        ends = {name: run and run.as_dict() for name, run in (("last", self.last), ("next", self.next))}
        return {
            "witness": "rehearse", "gpu": self.gpu.name, "command": self.command, "vary": self.name, "value": self.value,
            "peak": self.peak, "room": self.room, **ends, "runs": [run.as_dict() for run in self.runs],
        }  # fmt: skip

    def table(self) -> Table:
        """Each run."""
        runs = sorted(self.runs, key=lambda run: int(run.value))
        rows = [[int(run.value), run.allocated, run.reserved, run.how] for run in runs]
        ends = f"{self.name} {self.values[0]:,} to {self.values[-1]:,}"
        many = f"{len(self.runs)} rehearsal{'s' * (len(self.runs) > 1)}"
        said = f"{self.name} {self.value:,} is the largest that fits" if self.fits else f"No {self.name} fits"
        caption = (
            f"{said}, of {ends}, on {self.gpu.title}: {units.text(self.room)} for PyTorch's allocator. {many}, no GPU"
        )
        return Table([self.name, "allocated", "reserved", ""], rows, caption)

    def said(self) -> list[str]:
        """What the last that fits takes, and how the next dies."""
        lines = []
        if last := self.last:
            lines = [f"{self.name} {last.value}: {last.found.said_peak}, {units.text(last.reserved)} reserved"]
        if self.next:
            return [*lines, f"{self.name} {self.next.value}: {self.next.found.died}"]
        return [*lines, f"{self.name} {self.values[-1]:,} is the last that was asked for: more may fit"]


def largest(
    command: Sequence[str],
    name: str,
    values: range,
    gpu: Gpu | str = "h200",
    *,
    headroom: Headroom | None = None,
    **asked: Any,
) -> Largest:
    """The largest value with which a script fits a GPU; the next one does not.

    Where the peak grows in a straight line it takes some four rehearsals: of a value where there is room for it, which tells the line; of
    what comes of it; of the last that fits; of the next, which dies. Elsewhere it goes on between the two, and in halves.

    Args:
        command: with `{name}` where the value stands; it may stand in an environment variable instead.
        values: ascending, such as `range(1, 65)`. gpu: of the catalog. headroom: what is kept free; by default the GPU's own driver,
            CUDA's context, and NCCL's buffers by the groups that the script makes.
        asked: of `everybyte.rehearsal.rehearse_script`: memory, gpus, alone, steps, ...

    Raises:
        ValueError: for values that do not ascend, a command without the placeholder, or where the script fails otherwise than by memory.
    """
    if not isinstance(values, range) or len(values) == 0 or values.step < 1 or values[0] < 0 or len(values) > VALUES:
        raise ValueError(
            f"largest.values: {checks.shown(values)}; allowed: a range of 1 to {VALUES:,} numbers of 0 or more that ascends"
        )
    filled(command, {name: str(values[0])})
    search = _Search(command, name, values, gpu, headroom, asked)
    with terminal.bar(desc=f"{name}={values[0]}:{values[-1]}", unit=" rehearsals") as search.bar:
        last, after = search.found()
    return Largest(list(command), name, values, search.gpu, search.room, last, after, search.runs)


class _Search:
    """The runs of one search, and the room that they have.

    Attributes:
        points: index of a value -> the run that shows its whole peak. low, high: indices of the last value that is known to fit, and of the
            first that is known not to; last, after: their runs. step: how far from the border the next guess is that no line says.
    """

    def __init__(self, command, name, values, gpu, headroom, asked):
        self.command, self.name, self.values, self.asked = command, name, values, dict(asked)
        self.gpu, size = find_gpu(gpu), self.asked.pop("memory", None)
        if size:
            self.gpu = replace(self.gpu, memory=size, memory_source="reported")
        self.headroom, self.nccl = headroom or Headroom(), 0
        self.runs: list[Run] = []
        self.points: dict[int, Run] = {}
        self.bar: Any = None
        self.low, self.high, self.step = -1, len(values), 1
        self.last: Run | None = None
        self.after: Run | None = None

    @property
    def room(self):
        return self.headroom.room(self.gpu) - self.nccl

    def _run(self, index, wide=False):
        """Rehearse one value, on the GPU, or where there is room for all; whether it is decided then if it fits."""
        context = next(term.bytes for term in self.headroom.terms(self.gpu) if term.name == "context")
        command, variables = filled(self.command, {self.name: str(self.values[index])})
        memory = WIDE if wide else self.room + context
        found = rehearse_script(command, self.gpu, memory=memory, environment=variables, hidden=True, **self.asked)
        if self.headroom.nccl is None:
            self.nccl = max(self.nccl, outside.most(self.gpu, found.processes))
        run = Run(value=str(self.values[index]), found=found, room=self.room, wide=memory > self.room + context)
        self.runs.append(run)
        self.bar.set_postfix_str(f"{self.name}={run.value} {run.how[:40]}", refresh=False)
        self.bar.update()
        if found.status and not found.oom:
            if wide:
                return False
            raise ValueError(
                f"largest: with {self.name}={run.value} {found.failure}; allowed: values with which the script runs"
            )
        if not found.short:
            self.points[index] = run
        if run.fits:
            self.low, self.last = index, run
        elif run.fits is False and not (run.wide and index == self.high):
            self.high, self.after = index, None if run.wide else run
        return run.fits is not None

    def found(self):
        """(the last run that fits, the first that does not): None where there is none."""
        top, count = len(self.values) - 1, 0
        first = min(top, (max(1, self.values[0]) * FIRST - self.values[0]) // self.values.step)
        if top and not self._run(first, wide=True) and first in self.points:
            self._run(first)
        while self.high - self.low > 1:
            count += 1
            dying = self.low >= 0 and all(run.found.short and not run.wide for run in self.runs[-2:])
            if dying and all(index < NEAR * self.high for index in self.points):
                self._run(self.high, wide=True)  # the line is a bad one: another point of it
            else:
                self._run(self._guess(count % HALVES == 0 and 0 <= self.low and self.high <= top))
        if self.high <= top and self.after is None:  # known to be too much from afar: here it dies
            self._run(self.high)
        return self.last, self.after

    def _guess(self, halve):
        """An index between those that are known: by the lines; where these say none, away from the border, twice as far each time.

        Reserved bytes reach the room first. By then the allocator gives back what it only keeps, and how much that is worth differs: the
        border is between their line and that of allocated bytes, and near the latter where a run has lived by it.
        """
        lines = [*filter(None, map(self._line, ("reserved", "allocated")))] or [2 * self.low + 1]
        least, most = max(self.low + 1, min(lines)), min(self.high - 1, max(lines))
        if least <= most:
            guess, self.step = most if self.last and self.last.found.most("retries") else (least + most) // 2, 1
        else:
            guess = self.high - self.step if min(lines) >= self.high else self.low + self.step
            self.step *= 2
        if halve or not self.low < guess < self.high:
            guess = (self.low + self.high) // 2
        return guess if self.low >= 0 else min(guess, max(0, self.high // 2))

    def _line(self, count):
        """The index at which a straight line through what was seen of a count reaches the room; None where there is no such line."""
        points = {i: run for i, run in self.points.items() if count == "allocated" or not run.found.most("retries")}
        sizes = {index: getattr(run, count) for index, run in points.items()}
        near = sorted(sizes, key=lambda index: abs(sizes[index] - self.room))
        seen = [(self.values[index], sizes[index]) for index in near[:2]]
        if len(seen) == 1:  # what stays between steps does not grow
            seen.append((0, self.points[near[0]].found.phase("after_step")))
        if len(seen) < 2:
            return None
        (begin, stays), (end, most) = sorted(seen)
        if most <= stays:
            return None
        value = begin + (self.room - stays) * (end - begin) / (most - stays)
        return max(0, int((value - self.values[0]) // self.values.step))


@dataclass(frozen=True)
class Switch:
    """What may be tried of a script: `values` of a placeholder, the first of which is its base; `words`: whether they are words of its own."""

    values: tuple[str, ...]
    words: bool = False

    @classmethod
    def read(cls, text: str) -> tuple[str, "Switch"]:
        """(name, switch) of `batch=8,16`, whose first value is the base, or of `flag:--words`, which the base has not.

        Raises:
            ValueError: for other text.
        """
        name, mark, said = (*re.split("([=:])", text, maxsplit=1), "", "")[:3]
        values = ("", said) if mark == ":" else tuple(said.split(","))
        if not name.isidentifier() or len(set(values)) < 2 or len(set(values)) < len(values):
            raise ValueError(
                f"--try: {checks.shown(text)}; allowed: NAME=VALUE,VALUE,..., the base first, or NAME:--words for a flag"
            )
        return name, cls(values, mark == ":")


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class Tried(Shown):
    """What each switch of a script saves, one at a time.

    Attributes:
        command: with its placeholders. gpu: the GPU. base: the run with each switch's first value. runs: (name, run) of each other value.
    """

    command: list[str]
    gpu: Gpu
    base: Run
    runs: list[tuple[str, Run]] = field(default_factory=list)

    def as_dict(self) -> dict:
        """As JSON: bytes, and what each saves against the base; negative where it takes more."""
        said = [{"name": name} | _amounts(run) | {"saves": self._saves(run)} for name, run in self.runs]
        base = _amounts(self.base)
        return {"witness": "rehearse", "gpu": self.gpu.name, "command": self.command, "base": base, "tried": said}

    def _saves(self, run):
        return {name: getattr(self.base, name) - getattr(run, name) for name in ("allocated", "reserved")}

    def table(self) -> Table:
        """A row for each value."""
        rows: list[Sequence[object]] = [self._row("the base", self.base)]
        rows += [self._row(_said(name, run.value), run) for name, run in self.runs]
        columns = ["tried", "allocated", "saves", "reserved", "saves", "outside", "the CPU's", ""]
        return Table(
            columns, rows, f"Each switch alone, against {self.base.value}. Rehearsed as on {self.gpu.title}: no GPU"
        )

    def _row(self, name, run):
        saves = self._saves(run) if run is not self.base else {"allocated": "", "reserved": ""}
        least, most = map(sum, zip(*outside.taken(self.gpu, run.found.groups).values(), strict=True))
        beside = " to ".join(dict.fromkeys(map(units.text, (least, most))))
        end = run.found.died if run.found.oom else run.found.said_peak
        kept = run.allocated, saves["allocated"], run.reserved, saves["reserved"]
        return [name, *kept, beside, units.text(run.found.resident), end]


def _amounts(run):
    return run.as_dict() | {"outside": outside.taken(run.found.gpu, run.found.groups), "host": run.found.resident}


def _said(name, value):
    return f"{name}={value}" if value[:1] != "-" else f"{name}: {value}"


def tried(
    command: Sequence[str], switches: Mapping[str, Switch | Sequence[str]], gpu: Gpu | str = "h200", **asked: Any
) -> Tried:
    """What each switch of a script saves: it is rehearsed with every base, then with each other value alone.

    Args:
        command: with a placeholder for each switch, `{batch}`; or in an environment variable. A `Switch` of words stands at the end of a
            command that has none for it.
        switches: name -> its values, the base first. gpu: of the catalog. asked: of `rehearse_script`: memory, gpus, alone, steps, ...

    Raises:
        ValueError: for a switch without two values or without a placeholder, or where the script fails otherwise than by memory.
    """
    given = {name: one if isinstance(one, Switch) else Switch(tuple(map(str, one))) for name, one in switches.items()}
    for name, switch in given.items():
        if len(switch.values) < 2:
            raise ValueError(
                f"tried.{name}: {checks.shown(switch.values)}; allowed: two values or more, the base first"
            )
    words = [name for name, switch in given.items() if switch.words]
    base = {name: switch.values[0] for name, switch in given.items()}
    filled(command, base, words)
    others = [(name, value) for name, switch in given.items() for value in switch.values[1:]]
    card, runs = find_gpu(gpu), []
    with terminal.bar(total=1 + len(others), desc="tried", unit=" rehearsals") as bar:
        for name, value in [("", ""), *others]:
            now, variables = filled(command, base | ({name: value} if name else {}), words)
            found = rehearse_script(now, card, environment=variables, hidden=True, **asked)
            if found.status and not found.oom:
                raise ValueError(
                    f"tried: with {_said(name, value) if name else 'the base'} {found.failure}; allowed: values with which the script runs"
                )
            said = ", ".join(_said(one, worth or "off") for one, worth in base.items())
            runs.append((name, Run(value=value if name else said, found=found, room=card.memory)))
            bar.update()
    return Tried(command=list(command), gpu=card, base=runs[0][1], runs=runs[1:])
