"""What a diagnosis is: a cause, what else it might be, and what to do about it, each with whether it can suffice."""

from dataclasses import dataclass, field, replace
from html import escape

from .. import units
from ..ask.setup import Setup
from ..catalog import Gpu, Model
from ..common import files
from ..common.tables import Table
from ..evidence import Message
from ..theory.budget import budget, not_derived
from .headroom import Headroom
from .plan import Rung, plan

#: Texts of `diagnosis.toml`: causes, what shows them, phases, other kinds of messages, and advice.
SAID = files.toml(__package__, "diagnosis.toml")
#: Cause -> what it means.
CAUSES: dict[str, str] = SAID["causes"]


@dataclass(frozen=True, kw_only=True)
class Advice:
    """One thing to do. `what`; `saves`: bytes, None where that is not known for this run; `costs`: of the step's time, in words;
    `fits`: whether the run then fits, None where that is not known. `why`: the reason. `name`: of it in `diagnosis.toml`, "" for a
    switch; `setup`: with that switch; None for others. `rehearsed`: what a rehearsal with it said, in words."""

    what: str
    why: str
    saves: int | None = None
    costs: str = ""
    fits: bool | None = None
    name: str = ""
    setup: Setup | None = None
    rehearsed: str = ""

    def as_dict(self) -> dict:
        """As JSON holds it."""
        return vars(self) | {"setup": self.setup and self.setup.as_dict()}


def advised(*names: str, **more) -> list[Advice]:
    """The advice of these names."""
    return [Advice(name=name, **SAID["advice"][name], **more) for name in names]


@dataclass(frozen=True)
class Suspect:
    """A cause that the evidence allows: `cause`, a key of `CAUSES`; `bytes` that ending it gives; `enough`: whether that is what is missing,
    None where it is not known how much is."""

    cause: str
    bytes: int | None = None
    enough: bool | None = None


@dataclass(frozen=True, kw_only=True, eq=False)
class Diagnosis:
    """What is known of a job that ran out of memory.

    Attributes:
        message: the text as numbers; None where a snapshot was given. findings: in words, the first decides.
        causes: what it may be, those that can suffice first.
        account: (whose, bytes) of the GPU's memory, summing to its capacity where the message says enough.
        advice: what to do: what may suffice, the cheapest help first; then what is not enough alone. caveats: what this cannot know.
    """

    message: Message | None
    findings: list[str]
    causes: list[Suspect]
    account: list[tuple[str, int]] = field(default_factory=list)
    advice: list[Advice] = field(default_factory=list)
    caveats: list[str] = field(default_factory=list)

    @property
    def cause(self) -> str:
        """The first of them, a key of `CAUSES`."""
        return self.causes[0].cause

    @property
    def title(self) -> str:
        """The cause, in words."""
        said = CAUSES[self.cause]
        return said[0].upper() + said[1:]

    def table(self) -> Table:
        """What to do, in the order of `advice`."""
        rehearsed, rows = any(one.rehearsed for one in self.advice), []
        for number, one in enumerate(self.advice, 1):
            saves = "–" if one.saves is None else units.text(one.saves)
            fits = {True: "fits", False: "not enough alone", None: ""}[one.fits]
            row = [str(number), one.what, saves, one.costs or "–", fits, one.why]
            rows.append(row + [one.rehearsed or "–"] * rehearsed)
        return Table(["", "what to do", "saves", "time", "", "why", *["rehearsed"] * rehearsed], rows, self.title)

    def ledger(self) -> Table:
        """Whose the GPU's memory is."""
        return Table(
            ["the GPU's memory", "bytes", "size"], [[name, size, units.text(size)] for name, size in self.account]
        )

    def as_dict(self) -> dict:
        """As JSON holds it."""
        return {
            "cause": self.cause, "means": CAUSES[self.cause], "findings": self.findings, "causes": [vars(one) for one in self.causes],
            "account": dict(self.account), "advice": [one.as_dict() for one in self.advice], "caveats": self.caveats,
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


def general(phase: str = "") -> list[Advice]:
    """What helps most runs that die in a phase, with what is known without the run: the order is of price, not of bytes."""
    return advised(*SAID["phases"].get(phase, SAID["phases"]["any"])["advice"])


def switches(model: Model, setup: Setup, card: Gpu, outside: Headroom, phase: str = "") -> list[Advice]:
    """Of the plan for this run: each rung, with bytes and time."""
    if not setup.mesh.alone or not_derived(model, setup):
        return general(phase)
    chosen = plan(model, setup, card, outside)
    rungs: list[Rung] = [r for r in chosen.singles if r.saved > 0]
    if chosen.best is not None and chosen.best not in rungs:
        rungs = [chosen.best, *rungs]
    found: dict[str, Advice] = {}
    for rung in sorted(rungs, key=lambda r: (r.peak > chosen.usable, r.seconds / max(1, r.saved))):
        what, why = rung.text(), f"peak {units.text(rung.peak)}, in {rung.peak_at}"
        if what not in found and len(found) < 6:
            costs, fits = f"{100 * rung.share:+.1f}%", chosen.runs(rung)
            if not fits and rung.peak <= chosen.usable:
                why += "; its tensors fit, and PyTorch's allocator runs out, in pieces"
            found[what] = Advice(what=what, saves=rung.saved, costs=costs, fits=fits, why=why, setup=rung.setup)
    return _chunked(model, setup, chosen) + list(found.values())


def _chunked(model, setup, chosen):
    """A loss in chunks where the theory has none of a model's code: it saves at most what the loss has of the peak."""
    if setup.loss != "plain" or not not_derived(model, setup.replace(loss="chunked")):
        return []
    asked = budget(model, setup)
    most = asked.parts["loss"]
    (advice,) = advised("chunked loss", saves=most, fits=False if asked.peak - most > chosen.usable else None)
    return [replace(advice, why=f"{advice.why}; at most this much, the loss's part of the peak")] if most else []


def ranked(advice: list[Advice]) -> list[Advice]:
    """Each advice once: what may suffice before what is not enough alone."""
    return sorted(
        {one.what: one for one in advice[::-1]}.values(), key=lambda one: (one.fits is False, advice.index(one))
    )
