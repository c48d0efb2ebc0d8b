"""What an out-of-memory message or a memory snapshot says, which part is too large, and which switches help this run, by price."""

import tomllib
from dataclasses import dataclass, field
from html import escape
from importlib import resources

from .. import units
from ..allocator import settings
from ..ask.setup import Setup
from ..catalog import Gpu, Model, gpus
from ..common import checks
from ..common.tables import Table
from ..evidence import Memory, Message, Snapshot, message
from ..theory.budget import not_derived
from .headroom import Headroom, find_gpu
from .plan import Rung, plan

#: Texts of `diagnosis.toml`: causes, what shows them, other kinds of messages, and advice.
SAID = tomllib.loads(resources.files(__package__).joinpath("diagnosis.toml").read_text(encoding="utf-8"))
#: Cause -> what it means.
CAUSES: dict[str, str] = SAID["causes"]
#: What is suspicious: memory of this process outside of PyTorch above a context's and a communicator's; of other processes.
_OUTSIDE, _OTHERS = 2 * units.UNITS["GiB"], units.UNITS["GiB"]
#: What a driver that counts it as free may not be able to give in one piece.
_LAST = 256 * units.UNITS["MiB"]
#: Sizes that a message says.
_SIZES = ("asked", "capacity", "free", "allocated", "cached", "allowed")


@dataclass(frozen=True, kw_only=True)
class Advice:
    """One thing to do. `what`; `saves`: bytes, None where that is not known for this run; `costs`: of the step's time, in words;
    `fits`: whether the run then fits, None where that is not known. `why`: the reason."""

    what: str
    why: str
    saves: int | None = None
    costs: str = ""
    fits: bool | None = None


def _advised(*names, **more):
    return [Advice(**SAID["advice"][name], **more) for name in names]


@dataclass(frozen=True, kw_only=True, eq=False)
class Diagnosis:
    """What is known of a job that ran out of memory.

    Attributes:
        message: the text as numbers; None where a snapshot was given. cause: a key of `CAUSES`. findings: in words, the first decides.
        account: (whose, bytes) of the GPU's memory, summing to its capacity where the message says enough.
        advice: what to do, the cheapest help first. caveats: what this cannot know.
    """

    message: Message | None
    cause: str
    findings: list[str]
    account: list[tuple[str, int]] = field(default_factory=list)
    advice: list[Advice] = field(default_factory=list)
    caveats: list[str] = field(default_factory=list)

    @property
    def title(self) -> str:
        """The cause, in words."""
        said = CAUSES[self.cause]
        return said[0].upper() + said[1:]

    def table(self) -> Table:
        """What to do, the cheapest help first."""
        rows = []
        for number, one in enumerate(self.advice, 1):
            saves = "–" if one.saves is None else units.text(one.saves)
            fits = {True: "fits", False: "not enough alone", None: ""}[one.fits]
            rows.append([str(number), one.what, saves, one.costs or "–", fits, one.why])
        return Table(["", "what to do", "saves", "time", "", "why"], rows, self.title)

    def ledger(self) -> Table:
        """Whose the GPU's memory is."""
        return Table(
            ["the GPU's memory", "bytes", "size"], [[name, size, units.text(size)] for name, size in self.account]
        )

    def as_dict(self) -> dict:
        """As JSON holds it."""
        return {
            "cause": self.cause, "means": CAUSES[self.cause], "findings": self.findings, "account": dict(self.account),
            "advice": [vars(one) for one in self.advice], "caveats": self.caveats,
            "message": vars(self.message) if self.message else None,
        }  # fmt: skip

    def __repr__(self):
        lines = [self.title + ".", *(f"- {text}" for text in self.findings)]
        if self.account:
            lines += ["", repr(self.ledger())]
        if self.advice:
            lines += ["", repr(self.table())]
        return "\n".join([*lines, *([""] if self.caveats else []), *(f"Not known: {text}" for text in self.caveats)])

    def _repr_html_(self):
        said = f"<p><b>{escape(self.title)}.</b></p><ul>"
        said += "".join(f"<li>{escape(text)}</li>" for text in self.findings) + "</ul>"
        said += self.ledger()._repr_html_() if self.account else ""
        said += self.table()._repr_html_() if self.advice else ""
        return said + "".join(f"<p>Not known: {escape(text)}</p>" for text in self.caveats)


def doctor(
    evidence: str | Message | Snapshot | Memory,
    model: Model | None = None,
    setup: Setup | None = None,
    gpu: Gpu | str | None = None,
    configuration: str = "",
) -> Diagnosis:
    """Say why a job died, and what helps.

    Args:
        evidence: the text of the error, with whatever stands around it; its numbers, as `evidence.Message` has them, `asked` None
            where nothing was refused yet; or a snapshot that `eb.snapshot` read.
        model, setup: the run, where they are known: then switches are ranked for it, with bytes and time. gpu: which; by default the
            catalog's with that capacity, where the message tells one apart. configuration: its `PYTORCH_ALLOC_CONF`.

    Raises:
        ValueError: where the text is no out-of-memory message: it says what it looks like; and for a setup that does not fit the model.
    """
    settings(configuration)  # an unknown setting is refused
    both("doctor", model, setup)
    if model is not None:
        checks.kind("doctor", "model", model, Model)
        checks.kind("doctor", "setup", setup, Setup)
    card = None if gpu is None else find_gpu(gpu)
    if isinstance(evidence, Snapshot | Memory):
        return _of_snapshot(evidence.main if isinstance(evidence, Snapshot) else evidence, model, setup, card)
    if not isinstance(evidence, Message):
        checks.kind("doctor", "evidence", evidence, str)
        evidence = message(evidence)
    if evidence.kind in SAID["kinds"] or evidence.kind in SAID["libraries"]:
        return _of_kind(evidence, model, setup, card)
    numbers, card = _Numbers(evidence), card or _card(evidence.capacity)
    cause, findings = _cause(numbers)
    advice = _advice(cause, numbers, model, setup, card, configuration)
    account, caveats = _account(numbers), _caveats(evidence, model, card)
    return Diagnosis(message=evidence, cause=cause, findings=findings, account=account, advice=advice, caveats=caveats)


def both(owner: str, model: object, setup: object) -> None:
    """Raise ValueError unless a model and its setup are given together, or neither."""
    if (model is None) != (setup is None):
        missing = "setup" if setup is None else "model"
        raise ValueError(f"{owner}.{missing}: None beside the other; allowed: both, or neither")


def _card(capacity):
    """The catalog's GPU of that capacity; None where it has none, or several."""
    found = (g for g in gpus().values() if g.memory_source == "reported")
    near = [g for g in found if capacity and abs(g.memory - capacity) <= 0.006 * capacity]
    return near[0] if len(near) == 1 else None


class _Numbers:
    """A message's sizes, 0 where it says none, and what follows from them.

    Attributes:
        process: bytes that the driver counts for this process; None where that is not known. others: (process, bytes)
            of others.
        missing, away, outside: bytes that the driver has too few of, that others hold, that this process has outside of
            PyTorch.
    """

    def __init__(self, said):
        self.said = said
        for name in _SIZES:
            setattr(self, name, getattr(said, name) or 0)
        self.process, self.others = _mine(said)
        self.missing, self.away = max(0, self.asked - self.free), sum(size for _, size in self.others)
        known = self.process is not None and said.reserved is not None
        self.outside = self.process - said.reserved if known else None

    def words(self, text):
        """A text with these sizes in it."""
        names = (*_SIZES, "process", "away", "outside")
        said = {name: units.text(getattr(self, name) or 0) for name in names}
        share = f"{self.allocated / self.capacity:.0%}" if self.capacity else ""
        held = f": it had {said['process']}" if self.said.process else ""
        held += f", and might have {said['allowed']}" if self.allowed else ""
        return text.format(**said, share=share, held=held, wanted=f" for {said['asked']}" if self.asked else "")


def _mine(said: Message) -> tuple[int | None, tuple[tuple[int, int], ...]]:
    """(what the driver counts for this process, the others).

    In a container a process does not know its own number: it is the one that holds what PyTorch reserved and a little
    more.
    """
    if said.process is not None or said.reserved is None:
        return said.process, said.others
    mine = [pair for pair in said.others if said.reserved <= 1.01 * pair[1] and pair[1] < said.reserved + _OUTSIDE]
    if len(mine) != 1:
        return None, said.others
    return mine[0][1], tuple(pair for pair in said.others if pair != mine[0])


def _account(n):
    """(whose, bytes), to the capacity."""
    said = n.said
    if said.capacity is None or said.allocated is None or said.free is None or said.cached is None:
        return []
    rows = [
        ("tensors and workspaces, allocated by PyTorch", n.allocated),
        ("kept by PyTorch and free, in pieces", n.cached),
    ]
    if n.process is not None:
        rows.append(("this process outside of PyTorch: context, libraries", max(0, n.outside)))
    rows += [(f"process {number}", size) for number, size in n.others]
    rows.append(("free, by the driver", n.free))
    rest = n.capacity - sum(size for _, size in rows)
    if rest > 0.01 * n.capacity:
        known = "the driver" if n.process is not None else "context, libraries, other processes and the driver"
        rows.append((f"the rest: {known}", rest))
    return rows


#: Cause -> when a message shows it, in the order in which they are tried. Of all others the job needs more than there is.
_SHOWN = {
    "tensor": lambda n: n.asked > n.capacity > 0,
    "limit": lambda n: n.said.reserved is not None and n.said.reserved + n.asked > n.allowed > 0 and n.free >= n.asked,
    "shared": lambda n: n.allocated > n.capacity > 0,
    "refused": lambda n: n.asked and n.free >= n.asked + _LAST,
    "others": lambda n: n.away >= n.missing and n.away > _OTHERS,
    "fragmentation": lambda n: n.free < n.asked <= n.cached + n.free,
    "outside": lambda n: n.outside is not None and n.outside > _OUTSIDE and n.outside >= n.missing,
    "need": lambda n: True,
}


def _cause(n):
    """(cause, findings)."""
    also, shows = SAID["also"], SAID["shows"]
    if n.said.kind in ("thc", "rejected"):
        return "need" if n.said.kind == "thc" else "limit", [n.words(also[n.said.kind])]
    found = [also["named"]] if n.said.process is None and n.process is not None else []
    found += [n.words(also["segment"])] if n.asked else []
    cause = next(cause for cause, shown in _SHOWN.items() if shown(n))
    first = [n.words(shows[cause])]
    if cause == "fragmentation" and n.allocated > 0.85 * n.capacity > 0:
        first.append(n.words(also["near"]))
    if cause == "need":
        first = first if n.said.allocated is not None and n.capacity else []
        first = [f"{text}, and {units.text(n.missing)} is missing" for text in first] if n.asked else first
    return cause, first + found


def _general():
    """What helps most runs, with what is known without the run: the order is of price, not of bytes."""
    return _advised(*SAID["kinds"]["mps"]["advice"][:-1])


def _advice(cause, n, model, setup, card, configuration):
    found = _advised(cause) if cause in SAID["advice"] else []
    if n.cached and "expandable_segments:True" not in configuration and cause in ("fragmentation", "need"):
        found += _advised("expandable", saves=n.cached)
        found += _advised("split") if cause == "fragmentation" else []
    if model is not None and card is not None and cause in ("need", "fragmentation", "others", "outside", "shared"):
        found += _switches(model, setup, card, n)
    elif cause in ("need", "fragmentation", "shared"):
        found += _general()
    return found


def _switches(model, setup, card, n):
    """Of the plan for this run: each rung, with bytes and time."""
    if not setup.mesh.alone or not_derived(model, setup):
        return _general()
    outside = Headroom() if n.outside is None else Headroom(context=max(0, n.outside), other=n.away)
    chosen = plan(model, setup, card, outside)
    rungs: list[Rung] = [r for r in chosen.singles if r.saved > 0]
    if chosen.best is not None and chosen.best not in rungs:
        rungs = [chosen.best, *rungs]
    found: dict[str, Advice] = {}
    for rung in sorted(rungs, key=lambda r: (r.peak > chosen.usable, r.seconds / max(1, r.saved))):
        what, why = rung.text(), f"peak {units.text(rung.peak)}, in {rung.peak_at}"
        if what not in found and len(found) < 6:
            costs, fits = f"{100 * rung.share:+.1f}%", rung.peak <= chosen.usable
            found[what] = Advice(what=what, saves=rung.saved, costs=costs, fits=fits, why=why)
    return list(found.values())


def _caveats(said, model, card):
    found = ["the message rounds to two decimals: each number is right to 0.01 of its unit"]
    if model is None:
        found.append("which of the bytes are weights, states or activations: give model and setup, or a snapshot")
    elif card is None:
        found.append("which GPU it is: name it, and the switches are ranked for it")
    if said.graphs:
        found.append("how much of the private pools is free: the message counts their free blocks as allocated")
    return found


def _of_kind(said, model, setup, card):
    """Of a message that is not of PyTorch's allocator on a GPU."""
    library, n = SAID["libraries"].get(said.kind), _Numbers(said)
    kind = SAID["kinds"]["library" if library else said.kind]
    finds = [library, *kind["finds"]] if library else list(kind["finds"])
    if (
        said.kind == "mps"
    ):  # Apple's GPUs share the host's memory; PyTorch may have a share of it, which a variable sets
        finds += [SAID["also"]["mps"]] if said.process is not None and said.allowed is not None else []
        finds += [SAID["also"]["asked"]] if said.asked is not None else []
    advice = _advised(*kind["advice"])
    if library and model is not None and card is not None:
        advice += _switches(model, setup, card, n)
    found = [n.words(text) for text in finds]
    return Diagnosis(message=said, cause=kind["cause"], findings=found, advice=advice, caveats=[kind["unknown"]])


def _of_snapshot(memory, model, setup, card):
    kept = memory.reserved - memory.allocated
    events = f"after event {memory.peak_event:,} of {len(memory.events):,}"
    found = [f"at its peak {units.text(memory.peak)} lived on GPU {memory.device}, {events}"]
    if memory.reserved:
        of = f"{units.text(memory.reserved)} reserved is free, {kept / memory.reserved:.0%}"
        found.append(f"at the end {units.text(kept)} of {of}")
    parts = sorted(memory.parts().items(), key=lambda pair: -pair[1])
    for name, size in parts:
        share = f"{size / max(1, memory.peak):.0%} of the peak"
        found.append(f"{name}, by the frames: {units.text(size)} ({share})")
    split = kept > 0.15 * memory.reserved and memory.reserved > 0
    advice = _advised("pieces", saves=kept) if split else []
    if model is not None and card is not None:
        advice += _switches(model, setup, card, _Numbers(Message(kind="pytorch")))
    died = any(action == "oom" for action, *_ in memory.events)
    cause = "fragmentation" if split and died else "need"
    frameless = "the part of what has no frames: backward's are taken for gradients"
    caveats = ["what lies outside of PyTorch's allocator", frameless]
    return Diagnosis(message=None, cause=cause, findings=found, account=parts, advice=advice, caveats=caveats)
