"""The results of rehearsals: of the book's step, and of a script."""

import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, fields

from .. import units
from ..ask.setup import Setup
from ..catalog import Gpu, Model
from ..common import children
from ..common.tables import Shown, Table, sized
from ..evidence import snapshot
from . import history, host, known, outside, reports
from .timeline import Owned, Timeline, of_peak, owned

#: What no rehearsal can know, said beside its numbers.
UNKNOWN = (
    "no time means anything",
    "what CUDA and NCCL take outside PyTorch's allocator is not in these numbers",
    "off: cuDNN (its attention and convolutions are asked for by rule, its recurrent cells are not), and what a CUDA graph does as it is replayed",
    "all that kernels would compute is read as 0: losses, norms, and what a script decides by them",
)


@dataclass(frozen=True, eq=False, kw_only=True)
class Rehearsal(Shown):
    """One training step on a pretended GPU: PyTorch's CUDA code and allocator ran, no kernel did.

    Attributes:
        model, setup: what ran. gpu: the pretended GPU. rounding: 1, because bytes count as they were requested.
        requested, allocated, reserved: the most bytes requested by tensors and kernels, in the blocks that served them, and in
            the allocator's segments. segments: the most segments at once.
        workspace: bytes of the requested ones that are cuBLAS's workspaces.
        phases: requested bytes at the phases of one steady step, above those before the model. peak_at: where the peak is.
        out_of_memory: bytes asked for, bytes free, and at what stage, where the step did not fit; None where it did.
        attention_kernel: PyTorch's kernel for attention, `math` where the GPU has no fused one; None for eager.
        versions: of PyTorch and CUDA. fingerprint: of the reference step.
    """

    model: Model
    setup: Setup
    gpu: Gpu
    requested: int
    allocated: int
    reserved: int
    segments: int | None = None
    workspace: int = 0
    phases: dict[str, int] = field(default_factory=dict)
    peak_at: str | None = None
    out_of_memory: dict | None = None
    attention_kernel: str | None = None
    versions: dict
    fingerprint: str
    rounding: int = 1

    @property
    def peak(self) -> int:
        """The most bytes asked for."""
        return self.requested

    @property
    def oom(self) -> bool:
        """Whether it ran out of memory."""
        return self.out_of_memory is not None

    def as_dict(self) -> dict:
        """As JSON. An allocator does not know parts of memory, so `parts` is empty."""
        apart = ("rounding", "model", "setup", "gpu")
        model = {"name": self.model.name, "parameters": int(self.model.parameters)}
        head = {"witness": "rehearse", "gpu": self.gpu.name, "model": model, "setup": self.setup.as_dict()}
        said = {f.name: getattr(self, f.name) for f in fields(self) if f.name not in apart}
        return head | {"oom": self.oom} | said | {"parts": {}, "peak": self.peak}

    def table(self) -> Table:
        """The three peaks, the phases, and what a rehearsal cannot know."""
        rows: list[Sequence] = [
            sized(f"requested: the peak{_at(self.peak_at)}", self.requested),
            sized("of it cuBLAS's workspaces", self.workspace),
            *(sized(*phase) for phase in self.phases.items()),
            sized("allocated: in the blocks that were found", self.allocated),
            sized("reserved: with what the allocator keeps", self.reserved),
        ]
        if self.attention_kernel == "math":
            rows.append(["attention by the math kernel: this GPU has no other for it", "", "the scores are stored"])
        if self.out_of_memory:
            asked = self.out_of_memory["requested"]
            rows.append([f"out of memory in {self.out_of_memory['at']}: asked for", asked, units.text(asked or 0)])
        caption = f"Rehearsed as on {self.gpu.title}, PyTorch {self.versions['torch']}; no GPU: {UNKNOWN[0]}"
        return Table(["rehearse", "bytes", ""], rows, caption)

    def __repr__(self):
        out = ", out of memory" if self.oom else ""
        return f"Rehearsal({self.model.name} as on {self.gpu.name}: {self.requested:,} B requested, {self.reserved:,} B reserved{out})"


def _death(oom):
    """An out-of-memory error in words."""
    return f"out of memory{_at(oom['at'])}: asked for {units.text(oom['requested'])}; {_place(oom)}"


def _at(place):
    return f", {place}" if place and place.startswith(("before", "between")) else f", in {place}" if place else ""


#: A stage -> the words after "while".
_DOING = {"evaluation": "evaluating", "generation": "generating"}


def _times(count):
    return "once" if count == 1 else f"{count:,} times"


@dataclass(frozen=True, eq=False, kw_only=True)
class ScriptRehearsal(Shown):
    """A script on pretended GPUs.

    Attributes:
        command: what ran. gpu: the pretended GPU. status: the command's exit status. seconds: that the rehearsal took.
        processes: the report of each process that used a GPU: `rank`, `steps`, `devices` (each with `requested`, `allocated`,
            `reserved`, `segments`, `phases` and `peak`: `at`, `line`, what it `held`), `oom`, `reads`, `snapshot`, and `final`,
            whether it was written at the end: a killed process leaves the report of its last optimizer step.
        faults: in words, the reports that could not be read. rows: the share of the rows that masks found. routing: where routers sent
            tokens. streams: whether the GPU was done at once, `early`, or not before somebody waited, `late`; then `early` may have the
            other one. node: ranks of one node, of which `processes` may be one. others: reports of processes that ended with an error
            before they used a GPU.
    """

    command: Sequence[str]
    gpu: Gpu
    status: int
    seconds: float
    processes: list[dict]
    faults: Sequence[str] = ()
    rows: float = 1.0
    routing: str = "balanced"
    streams: str = "early"
    early: "ScriptRehearsal | None" = None
    node: int = 1
    others: Sequence[dict] = ()

    @property
    def peak(self) -> int:
        """The most bytes that were requested on one device, by the process that needs the most."""
        return self._worst[1]["requested"]

    @property
    def oom(self) -> bool:
        """Whether a process ran out of memory."""
        return any(process["oom"] for process in self.processes)

    @property
    def caught(self) -> str:
        """The last out-of-memory error of which a process did not die, in words; "" where there was none."""
        errors = [process["caught"] for process in self.processes if process["caught"]]
        if not errors:
            return ""
        then = "took no step after it" if errors[-1].get("last") else "went on with less"
        return f"the script caught an error: {_death(errors[-1])}; it {then}"

    @property
    def short(self) -> bool:
        """Whether a process ran out of memory, and died of it or went on with less: the run is not the one that was asked for."""
        return self.oom or bool(self.caught)

    @property
    def streams_differ(self) -> bool:
        """Whether a GPU that is slow, or fast, may have answered otherwise, so that `reserved` may be another."""
        return any(process["streams"] for process in self.processes)

    @property
    def reserved(self) -> tuple[int, int]:
        """The least and the most reserved on the device that needs the most: equal where it was rehearsed in one way."""
        both = self._worst[1]["reserved"], (self.early or self)._worst[1]["reserved"]
        return min(both), max(both)

    def most(self, count: str) -> int:
        """The most of a count of the devices, such as `allocated`, on one of them."""
        return max(device[count] for process in self.processes for device in process["devices"])

    def phase(self, name: str) -> int:
        """Bytes requested at a moment of the last step, on the device that needs the most; 0 where it was not reached."""
        return self._worst[1]["phases"].get(name, 0)

    def timeline(self) -> tuple[Owned, Timeline]:
        """(the history of the device that needs the most, with the owners of its blocks; the step with the peak).

        Raises:
            ValueError: where the rehearsal kept no history: `rehearse_script(owners=True, snapshot=...)` does.
        """
        process, device = self._worst
        told = (device["peak"] or {}).get("history")
        if not told or not process["snapshot"]:
            raise ValueError(
                "rehearse.timeline: the history was not kept; allowed: with owners=True and a snapshot, where something was on a GPU"
            )
        memory = owned(snapshot(process["snapshot"]).devices[device["device"]], told["lost"], told["parts"])
        return memory, of_peak(memory, device["peak"]["at"], told["lost"], told["marks"])

    @property
    def groups(self) -> list[dict]:
        """The groups that communicated, of the process that needs the most."""
        return self._worst[0]["groups"]

    @property
    def resident(self) -> int:
        """The most bytes of the CPU's memory that one process had."""
        return max(process["host"]["resident"] for process in self.processes)

    @property
    def death(self) -> dict | None:
        """The out-of-memory error: what was `requested`, `at` where; None where there was none."""
        return self._worst[0]["oom"]

    @property
    def died(self) -> str:
        """The out-of-memory error in words, one that the script caught too; "" where there was none."""
        return _death(self.death) if self.death else self.caught

    @property
    def said_peak(self) -> str:
        """The peak in words, and where it is."""
        peak = self._worst[1]["peak"] or {}
        at = "" if peak.get("node") else _at(peak.get("at"))  # a node's place says that it is in backward
        return f"peak {units.text(self.peak)}{at}, {_place(peak)}"

    @property
    def failure(self) -> str:
        """How the script failed, in words."""
        ends = reports.ends([*self.processes, *self.others], self.status)
        return ends[0] if ends else f"the script ended {children.how(self.status)}"

    @property
    def _worst(self):
        pairs = [(process, device) for process in self.processes for device in process["devices"]]
        return max(pairs, key=lambda pair: (bool(pair[0]["oom"]), pair[1]["requested"]))

    def as_dict(self) -> dict:
        """As JSON."""
        process, device = self._worst
        peak = device["peak"] or {}
        return {
            "witness": "rehearse", "gpu": self.gpu.name, "command": list(self.command), "status": self.status, "peak": self.peak,
            "peak_at": peak.get("at"), "parts": peak.get("parts", {}), "phases": device["phases"], "reserved": self.reserved,
            "outside": outside.taken(self.gpu, process["groups"]), "oom": self.oom, "processes": self.processes, "unknown": self.unknown,
        }  # fmt: skip

    @property
    def unknown(self) -> list[str]:
        """What this rehearsal could not know."""
        found = [*reports.ends([*self.processes, *self.others], self.status), *UNKNOWN]
        if reads := sum(process["reads"] for process in self.processes):
            found.append(
                f"{_times(reads)} the script read from the GPU what no kernel had written: zeros{self._read_at}"
            )
        if self.streams_differ and not self.early:
            early = ("at once", "least", "late")
            done, end, other = early if self.streams == "early" else ("when waited for", "most", "early")
            found.append(f"streams wait for one another, and all was done {done}: reserved is the {end}, --streams {other} for the other end")  # fmt: skip
        notes = dict.fromkeys(note for process in self.processes for note in process["notes"])
        return [*found, *self._sized_at, *notes, *self.faults]

    @property
    def _read_at(self):
        """Where most was read, in words."""
        lines = Counter()
        for process in self.processes:
            for one in process["read_at"]:
                lines[one.get("inner") or one.get("line") or "backward"] += one["reads"]
        return f", most at {_listed(lines)}" if lines else ""

    @property
    def _sized_at(self):
        """Where data decided a size, in words."""
        took = {0: "no rows", 1: "all rows"}.get(self.rows, f"{self.rows:.0%} of the rows")
        more = ": a GPU finds more, or fewer" if self.rows < 1 else ": a GPU finds no more, and --rows SHARE fewer"
        sent, other = ("as many tokens to each expert", "worst")
        fell = "on each as often"
        if self.routing == "worst":
            sent, other, fell = "all tokens to the first experts", "balanced", "on the first"
        said = {
            known.MASK: f"masks found {took} where data decide, at {{}}{more}",
            known.ROUTER: f"routers sent {sent}, and other choices among few, as a classifier's argmax, fell {fell}, which decides what is read or made at {{}}: --routing {other} for the other",
            known.NOBODY: "counts that only a kernel would know were read as 0, and made tensors of no rows at {}: a GPU makes larger ones",
            known.DATA: "whole numbers that the script brings, and what it computes of them, are as on a GPU: at {}",
        }
        return [text.format(lines) for kind, text in said.items() if (lines := self._sizes(kind))]

    def _sizes(self, kind):
        """Lines at which data of a kind decided sizes, with the most that was found there."""
        found = {}
        for said in (said for process in self.processes for said in process["sized_at"] if said["by"] == kind):
            times, most, of = found.get(said["line"], (0, -1, None))
            if said["found"] is not None and said["found"] > most:
                most, of = said["found"], said["of"]
            found[said["line"]] = times + said["times"], most, of
        ordered = sorted(found.items(), key=lambda item: (not item[1][2], -item[1][0]))[:4]
        counts = (
            f"{_near(line)} ({_times(n)}{f', {most:,} of {of:,}' if of else ''})" for line, (n, most, of) in ordered
        )
        return ", ".join(counts)

    def table(self) -> Table:
        """The worst device of the worst process: its peaks, where the script was, and what lived then."""
        process, device = self._worst
        peak, count = device["peak"] or {}, device["segments"]
        segments = f"{count:,} segment{'s' * (count != 1)}" if count else "expandable segments"
        room = f"of {units.text(device['memory'])}"
        phases = {name: size for name, size in device["phases"].items() if name != "backward_done"}
        rows: list[Sequence] = [
            (f"requested: the peak{_at(peak.get('at'))}", device["requested"], _place(peak)),
            *(sized(f"  of it {part}", size) for part, size in peak.get("parts", {}).items()),
            sized("allocated: in the blocks that were found", device["allocated"]),
            (f"reserved: {segments}", device["reserved"], room),
        ]
        if self.reserved[0] < self.reserved[1]:
            rows.append(sized("reserved at least: what streams wait for is done at once", self.reserved[0]))
        rows += [sized(f"requested {name.replace('_', ' ')}", size) for name, size in phases.items()]
        rows += [
            sized(f"requested while {_DOING.get(name, name)}, at most", size) for name, size in device["stages"].items()
        ]
        if oom := process["oom"]:
            # Its `total` is what the script allows PyTorch, where that is less than there is.
            allowed = f", {units.text(oom['total'])} allowed" if oom["total"] < device["memory"] else ""
            free = f"{units.text(oom['free'])} free{allowed}; {_place(oom)}"
            rows.append((f"out of memory{_at(oom['at'])}: asked for", oom["requested"], free))
        for held in history.shortened(peak.get("held", ())):
            count = held["tensors"]
            rows.append([f"  at the peak: {count:,} tensor{'s' * (count > 1)}", held["bytes"], _place(held)])
        ranks = f", rank {process['rank']} of {len(self.processes)}" if len(self.processes) > 1 else ""
        ended = "ended after " if process["ended"] else "" if process["final"] else "at least "
        ended += f"{process['steps']} optimizer step{'s' * (process['steps'] != 1)}"
        if process["backwards"] not in (0, process["steps"]):
            ended += f", {process['backwards']:,} backward pass{'es' * (process['backwards'] != 1)}"
        ran = ", ".join(
            [f"PyTorch {process['torch']}", *(" ".join(pair) for pair in process.get("packages", {}).items())]
        )
        caption = f"Rehearsed as on {self.gpu.title}{ranks}: no GPU. {ended}, {self.seconds:.1f} s, {ran}"
        return Table(["rehearse", "bytes", "where"], rows, caption)

    def __str__(self):
        files = [process["snapshot"] for process in self.processes if process["snapshot"]]
        beside = outside.said(self.gpu, self._worst[0]["groups"])
        caught = [self.caught[:1].upper() + self.caught[1:]] * bool(self.caught)
        lines = [repr(self.table()), *caught, beside, host.said(self.processes, self.node), "A rehearsal cannot know:"]
        lines += [f"- {text}" for text in self.unknown]
        return "\n".join([*lines, *(f"Snapshot for PyTorch's viewer: {file}" for file in files)])

    def __repr__(self):
        return f"ScriptRehearsal({' '.join(self.command)} as on {self.gpu.name}: {self.peak:,} B requested)"


def _place(said):
    """Where a request came from: the line of the script, of a library, and the function of PyTorch; in backward what ran, and who made it."""
    if said.get("node"):
        made = ", in ".join(filter(None, (_near(said.get("forward")), said.get("forward_inner"))))
        return f"{said['node']}{f' of {made}' if made else ''}, in backward"
    found = [_near(said.get("line")), said.get("inner"), said.get("call")]
    return ", in ".join(text for text in found if text) or "no line of Python: made by backward, or before the history"


def _listed(lines):
    """The lines with the highest counts."""
    return ", ".join(f"{_near(line)} ({_times(count)})" for line, count in lines.most_common(4))


def _near(line):
    """The line with its path relative to the working folder, where it is inside."""
    return line and line.removeprefix(os.getcwd() + os.sep)
