"""What an out-of-memory message or a memory snapshot says, which part is too large, and which switches help this run, by price."""

import re

from .. import units
from ..allocator import settings
from ..ask.setup import Setup
from ..catalog import Gpu, Model, gpus
from ..common import checks
from ..evidence import Memory, Message, Snapshot, message
from ..evidence.messages import devices
from .advice import CAUSES, SAID, Diagnosis, Suspect, advised, general, ranked, switches
from .headroom import Headroom, find_gpu
from .recorded import recorded

#: What is suspicious: memory of this process outside of PyTorch above a context's and a communicator's; of other processes.
_OUTSIDE, _OTHERS = 2 * units.UNITS["GiB"], units.UNITS["GiB"]
#: A GPU whose memory differs by more than this share is another one than the message's.
_OTHER_GPU = 0.05
#: What a driver that counts it as free may not be able to give in one piece.
_LAST = 256 * units.UNITS["MiB"]
#: Sizes that a message says.
_SIZES = ("asked", "capacity", "free", "allocated", "cached", "allowed")


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
    card = gpu_of_run("doctor", model, setup, gpu)
    if isinstance(evidence, Snapshot | Memory):
        return recorded(evidence.main if isinstance(evidence, Snapshot) else evidence, model, setup, card)
    text = ""
    if not isinstance(evidence, Message):
        checks.kind("doctor", "evidence", evidence, str)
        text, evidence = evidence, message(evidence)
    if evidence.kind in SAID["kinds"] or evidence.kind in SAID["libraries"]:
        return _of_kind(evidence, model, setup, card, text)
    numbers, card = _Numbers(evidence), card or _card(evidence.capacity)
    causes, findings = _causes(numbers)
    hints, more = _hints(text)
    advice = more + _advice(causes[0].cause, numbers, model, setup, card, configuration)
    findings[1:1] = [*_phase(evidence), *_beside(evidence, text), *hints]
    account, caveats = _account(numbers), _caveats(evidence, model, card)
    return Diagnosis(
        message=evidence, findings=findings, causes=causes, account=account, advice=ranked(advice), caveats=caveats
    )


def gpu_of_run(owner: str, model: object, setup: object, gpu: Gpu | str | None) -> Gpu | None:
    """The GPU that is given; None for none. Raise ValueError unless a model and its setup are given together, or neither."""
    if (model is None) != (setup is None):
        missing = "setup" if setup is None else "model"
        raise ValueError(f"{owner}.{missing}: None beside the other; allowed: both, or neither")
    if model is not None:
        checks.kind(owner, "model", model, Model)
        checks.kind(owner, "setup", setup, Setup)
    return None if gpu is None else find_gpu(gpu)


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

    In a container a process does not know its own number: it is the one that holds what PyTorch reserved and a little more; or what
    PyTorch reserved and more, where the GPU has no room for both.
    """
    if said.process is not None or said.reserved is None:
        return said.process, said.others
    both = said.reserved + sum(size for _, size in said.others) + (said.free or 0)
    full = said.capacity is not None and both > 1.01 * said.capacity
    most = float("inf") if full else said.reserved + _OUTSIDE
    mine = [pair for pair in said.others if said.reserved <= 1.01 * pair[1] and pair[1] < most]
    if len(mine) != 1:
        return None, said.others
    return mine[0][1], tuple(pair for pair in said.others if pair != mine[0])


def _account(n):
    """(whose, bytes), to the capacity."""
    said = n.said
    if None in (said.capacity, said.allocated, said.free, said.cached):
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
    "tensor": lambda n: n.asked > n.capacity > 0 or n.asked >= units.UNITS["EiB"],
    "limit": lambda n: n.said.reserved is not None and n.said.reserved + n.asked > n.allowed > 0 and n.free >= n.asked,
    "shared": lambda n: n.allocated > n.capacity > 0,
    "refused": lambda n: n.asked and n.free >= n.asked + _LAST,
    "others": lambda n: n.away >= n.missing and n.away > _OTHERS,
    "fragmentation": lambda n: n.free < n.asked <= n.cached + n.free,
    "outside": lambda n: n.outside is not None and n.outside > _OUTSIDE and n.outside >= n.missing,
    "need": lambda n: True,
}


#: Causes that may hold a part of what is missing -> the bytes that ending them gives.
_GIVES = {"fragmentation": "cached", "others": "away", "outside": "outside"}


def _causes(n):
    """(what it may be, those that can suffice first; findings: of the first, of those that are not enough, and of the message)."""
    also, shows = SAID["also"], SAID["shows"]
    if n.said.kind in ("thc", "rejected"):
        cause = "need" if n.said.kind == "thc" else "limit"
        return [Suspect(cause)], [n.words(also[n.said.kind])]
    found = [also["named"]] if n.said.process is None and n.process is not None else []
    found += [n.words(also["segment"])] if n.asked else []
    cause = next(cause for cause, shown in _SHOWN.items() if shown(n))
    first = [n.words(shows[cause])]
    if cause == "fragmentation" and n.allocated > 0.85 * n.capacity > 0:
        first.append(n.words(also["near"]))
    if cause == "need":
        first = first if n.said.allocated is not None and n.capacity else [CAUSES[cause]]
        first = [f"{text}, and {units.text(n.missing)} is missing" for text in first] if n.asked else first
    gives = {"limit": n.free, "need": n.allocated} | {name: getattr(n, field) or 0 for name, field in _GIVES.items()}
    causes, short = [Suspect(cause, gives.get(cause), True if n.missing and cause in gives else None)], []
    least = {"fragmentation": 1, "others": _LAST, "outside": _OUTSIDE}
    for other in _GIVES:
        if other != cause and gives[other] >= least[other] and n.asked:
            causes.append(Suspect(other, gives[other], gives[other] >= n.missing))
            short += [] if causes[-1].enough else [n.words(SAID["short"][other])]
    return sorted(causes, key=lambda one: (one.cause != cause, one.enough is False)), first + short + found


def _phase(said):
    """In which phase of the run it died, by the traceback, in words."""
    if not said.phase and not said.line:
        return []
    doing = SAID["phases"].get(said.phase, SAID["phases"]["any"])["doing"]
    inside = f", in {said.call}" if said.call and not said.line.endswith(f" {said.call}") else ""
    return [f"it died {doing}" + (f": {said.line}{inside}" if said.line else inside.replace(", in", ":"))]


def _hints(text):
    """(findings, advice) of what else stands in a log, such as a library's warning."""
    found = [one for one in SAID["hints"] if re.search(one["pattern"], text)]
    return [one["finds"] for one in found], [each for one in found for each in advised(*one["advice"])]


def _advice(cause, n, model, setup, card, configuration):
    found = advised(cause) if cause in SAID["advice"] else []
    phase = _kind_of(n.said)
    if n.cached and "expandable_segments:True" not in configuration and cause in ("fragmentation", "need"):
        found += advised("expandable", saves=n.cached, fits=None if n.cached + n.free >= n.asked else False)
        found += advised("split") if cause == "fragmentation" else []
    if model is not None and card is not None and cause in ("need", "fragmentation", "others", "outside", "shared"):
        special = general(phase) if SAID["phases"].get(phase, {}).get("special") else []
        found += special + switches(model, setup, card, _outside(n), phase)
    elif cause in ("need", "fragmentation", "shared"):
        found += general(phase)
    return found


def _kind_of(said):
    """A phase of `diagnosis.toml`: the loss is one of its own."""
    return "loss" if said.phase == "forward" and said.part == "loss" else said.phase


def _outside(n):
    return Headroom() if n.outside is None else Headroom(context=max(0, n.outside), other=n.away)


def _beside(said, text):
    """Whose messages stand in a text beside the one that was read, in words."""
    others = [str(n) for n in devices(text) if n != said.gpu]
    if not others:
        return []
    return [
        f"this is the last message in the text, GPU {said.gpu}'s: GPU {', '.join(others)} ran out too, maybe of another cause: give its lines alone"
    ]


def _caveats(said, model, card):
    left = [name for name in _SIZES if getattr(said, name) is not None and name not in said.exact]
    rounded = f": {', '.join(left)}" if said.exact else ""
    found = [f"the message rounds to two decimals: each number is right to 0.01 of its unit{rounded}"] if left else []
    if model is None:
        found.append("which of the bytes are weights, states or activations: give model and setup, or a snapshot")
    elif card is None:
        found.append("which GPU it is: name it, and the switches are ranked for it")
    if card is not None and said.capacity and abs(card.memory - said.capacity) > _OTHER_GPU * said.capacity:
        found.append(
            f"which GPU it was: the message's has {units.text(said.capacity)}, {card.name} {units.text(card.memory)}"
        )
    if said.graphs:
        found.append("how much of the private pools is free: the message counts their free blocks as allocated")
    return found


def _of_kind(said, model, setup, card, text):
    """Of a message that is not of PyTorch's allocator on a GPU."""
    library, n = SAID["libraries"].get(said.kind), _Numbers(said)
    kind = SAID["kinds"]["library" if library else said.kind]
    finds = [library, *kind["finds"]] if library else list(kind["finds"])
    # Apple's GPUs share the host's memory; PyTorch may have a share of it, which a variable sets.
    if said.kind == "mps" and said.process is not None and said.allowed is not None:
        finds.append(SAID["also"]["mps"])
    if said.kind in ("mps", "engine", "nccl") and said.asked is not None:
        finds.append(SAID["also"]["asked"])
    hints, more = _hints(text)
    advice = more + advised(*kind.get("phases", {}).get(said.phase, kind["advice"]))
    if library and model is not None and card is not None:
        advice += switches(model, setup, card, _outside(n))
    found, causes = [n.words(text) for text in finds] + _phase(said) + hints, [Suspect(kind["cause"])]
    return Diagnosis(message=said, findings=found, causes=causes, advice=ranked(advice), caveats=[kind["unknown"]])
