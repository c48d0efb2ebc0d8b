"""What an out-of-memory message or a memory snapshot says, which part is too large, and which switches help this run, by price."""

from dataclasses import dataclass, field
from html import escape

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

#: Causes, the order in which they are looked for: each with what ends it.
CAUSES = {
    "tensor": "one tensor is larger than the GPU",
    "limit": "the process may not have more, by its own setting",
    "refused": "the driver says that enough is free, and gave none",
    "shared": "more is allocated than the GPU has: it runs in the host's memory already",
    "others": "other processes hold what is missing",
    "fragmentation": "enough is kept free, in pieces that are too small",
    "outside": "memory of this process outside of PyTorch is what is missing",
    "need": "the job needs more than there is",
    "host": "the host's memory ran out, not the GPU's",
    "library": "a library asked the driver beside PyTorch's allocator, which had taken what there was",
}
#: What is suspicious: memory of this process outside of PyTorch above a context's and a communicator's; of other processes.
_OUTSIDE, _OTHERS = 2 * units.UNITS["GiB"], units.UNITS["GiB"]
#: What a driver that counts it as free may not be able to give in one piece.
_LAST = 256 * units.UNITS["MiB"]
_LIBRARIES = {
    "cublas": "cuBLAS could not have its workspace or handle (up to 32 MiB for each thread)",
    "cudnn": "cuDNN could not have its workspace",
    "nccl": "NCCL could not have its buffers (some hundred MiB for each communicator)",
    "driver": "CUDA itself could not have memory: a context, a kernel's stack, or a library's own",
}


@dataclass(frozen=True, kw_only=True)
class Advice:
    """One thing to do. `what`; `saves`: bytes, None where that is not known for this run; `costs`: of the step's time, in words;
    `fits`: whether the run then fits, None where that is not known. `why`: the reason."""

    what: str
    why: str
    saves: int | None = None
    costs: str = ""
    fits: bool | None = None


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
    if (model is None) != (setup is None):
        missing = "setup" if setup is None else "model"
        raise ValueError(f"doctor.{missing}: None beside the other; allowed: both, or neither")
    if model is not None:
        checks.kind("doctor", "model", model, Model)
        checks.kind("doctor", "setup", setup, Setup)
    card = None if gpu is None else find_gpu(gpu)
    if isinstance(evidence, Snapshot | Memory):
        return _of_snapshot(
            evidence.main if isinstance(evidence, Snapshot) else evidence, model, setup, gpu, configuration
        )
    if not isinstance(evidence, Message):
        checks.kind("doctor", "evidence", evidence, str)
    said = evidence if isinstance(evidence, Message) else message(evidence)
    if said.kind in ("host", "cgroup"):
        return _host(said)
    if said.kind == "pinned":
        return _pinned(said)
    if said.kind == "mps":
        return _mps(said)
    if said.kind in _LIBRARIES:
        return _library(said, model, setup, gpu, configuration)
    card = card or _card(said.capacity)
    cause, findings = _cause(said)
    advice = _advice(cause, said, model, setup, card, configuration)
    return Diagnosis(
        message=said,
        cause=cause,
        findings=findings,
        account=_account(said),
        advice=advice,
        caveats=_caveats(said, model, card),
    )


def _card(capacity):
    """The catalog's GPU of that capacity; None where it has none, or several."""
    if not capacity:
        return None
    near = [
        g for g in gpus().values() if abs(g.memory - capacity) <= 0.006 * capacity and g.memory_source == "reported"
    ]
    return near[0] if len(near) == 1 else None


def _mine(said: Message) -> tuple[int | None, tuple[tuple[int, int], ...]]:
    """(what the driver counts for this process, the others). In a container a process does not know its own number: the one that
    holds what PyTorch reserved and a little is this one."""
    if said.process is not None or said.reserved is None:
        return said.process, said.others
    mine = [pair for pair in said.others if said.reserved <= 1.01 * pair[1] and pair[1] < said.reserved + _OUTSIDE]
    if len(mine) != 1:
        return None, said.others
    return mine[0][1], tuple(pair for pair in said.others if pair != mine[0])


def _account(said):
    """(whose, bytes), to the capacity."""
    if said.capacity is None or said.allocated is None or said.free is None or said.cached is None:
        return []
    process, others = _mine(said)
    rows = [
        ("tensors and workspaces, allocated by PyTorch", said.allocated),
        ("kept by PyTorch and free, in pieces", said.cached),
    ]
    if process is not None:
        rows.append(("this process outside of PyTorch: context, libraries", max(0, process - said.reserved)))
    rows += [(f"process {number}", size) for number, size in others]
    rows.append(("free, by the driver", said.free))
    rest = said.capacity - sum(size for _, size in rows)
    if rest > 0.01 * said.capacity:
        known = "the driver" if process is not None else "context, libraries, other processes and the driver"
        rows.append((f"the rest: {known}", rest))
    return rows


def _cause(said):
    """(cause, findings)."""
    size = units.text
    if said.kind == "thc":
        return "need", [
            "a message of PyTorch before 1.0, which has no numbers: a newer PyTorch says what was asked for, allocated and free"
        ]
    if said.kind == "rejected":
        return "limit", [
            f"the request of {size(said.asked)} was refused before the driver was asked: throw_on_cudamalloc_oom:True and "
            "per_process_memory_fraction say how much this process may have"
        ]
    found = []
    process, others = _mine(said)
    if said.process is None and process is not None:
        found.append("a process named by its number holds just what PyTorch reserved: in a container that is this one")
    if said.asked:
        found.append(
            f"PyTorch asked the driver for {size(said.asked)}: the size of a new segment, which is the tensor's rounded up to 2 MiB, or "
            "20 MiB for one of 1 to 10 MiB"
        )
    missing = max(0, (said.asked or 0) - (said.free or 0))
    if said.capacity and said.asked and said.asked > said.capacity:
        return "tensor", [f"one request of {size(said.asked)} is more than the GPU's {size(said.capacity)}", *found]
    if (
        said.allowed
        and said.reserved is not None
        and said.reserved + (said.asked or 0) > said.allowed
        and (said.free or 0) >= (said.asked or 0)
    ):
        return "limit", [
            f"this process may reserve {size(said.allowed)}, and the GPU still has {size(said.free or 0)}",
            *found,
        ]
    if said.capacity and said.allocated and said.allocated > said.capacity:
        return "shared", [
            f"{size(said.allocated)} is allocated on a GPU of {size(said.capacity)}: Windows' driver moves the rest to the host",
            *found,
        ]
    if said.asked and (said.free or 0) >= said.asked + _LAST:
        return "refused", [
            f"{size(said.free or 0)} is free by the driver's count and {size(said.asked)} was asked for: a limit that the message does not "
            "name (a share set in the program, a virtual GPU, Windows' own), or somebody freed memory in the meantime",
            *found,
        ]
    away = sum(held for _, held in others)
    if away >= missing and away > _OTHERS:
        return "others", [f"other processes hold {size(away)}; without them the request would have been served", *found]
    if said.cached is not None and said.asked and (said.free or 0) < said.asked <= said.cached + (said.free or 0):
        return "fragmentation", [
            f"{size(said.cached)} is kept and free, {size(said.free or 0)} is free by the driver: together enough for {size(said.asked)}, "
            "and no single piece is; whatever was free as a whole segment has been given back before this message",
            *(
                [
                    f"and it is a near miss: tensors have {said.allocated / said.capacity:.0%} of the GPU, so the next request may end it too"
                ]
                if said.allocated and said.capacity and said.allocated > 0.85 * said.capacity
                else []
            ),
            *found,
        ]
    outside = process - said.reserved if process is not None and said.reserved is not None else None
    if outside is not None and outside > _OUTSIDE and outside >= missing:
        return "outside", [
            f"{size(outside)} of this process is not PyTorch's: NCCL, other frameworks, paged optimizers, several contexts",
            *found,
        ]
    if said.allocated is not None and said.capacity:
        used = f"{size(said.allocated)} is in use by tensors, {said.allocated / said.capacity:.0%} of the GPU"
        found.insert(0, f"{used}, and {size(missing)} is missing" if said.asked else used)
    return "need", found


_EXPANDABLE = "PYTORCH_ALLOC_CONF=expandable_segments:True, before the first tensor"


#: Cause -> what ends it, whatever the run; of the others the run decides.
_FIRST = {
    "limit": Advice(
        what="raise the share: set_per_process_memory_fraction, per_process_memory_fraction", why="the GPU has more"
    ),
    "refused": Advice(
        what="look for a limit: set_per_process_memory_fraction, a virtual GPU's share, Windows' page file",
        why="the GPU itself has enough",
    ),
    "shared": Advice(
        what="switch the driver's fallback to host memory off, and see what the GPU alone takes",
        why="beyond the GPU it is slow, and ends anyhow",
    ),
    "others": Advice(
        what="end the other processes, or take another GPU: nvidia-smi names them", why="they hold it", costs="none"
    ),
    "tensor": Advice(
        what="look at the shape of what was asked for", why="an index or a square of the sequence; no switch helps"
    ),
    "outside": Advice(
        what="count contexts and communicators: one process a GPU, fewer process groups", why="none of it is a tensor"
    ),
}


def _advice(cause, said, model, setup, card, configuration):
    found = [_FIRST[cause]] if cause in _FIRST else []
    known = model is not None and setup is not None
    if said.cached and "expandable_segments:True" not in configuration and cause in ("fragmentation", "need"):
        why = "segments that grow leave no pieces between them; at most this much"
        found.append(Advice(what=_EXPANDABLE, saves=said.cached, costs="none in a steady step", why=why))
        if cause == "fragmentation":
            found.append(
                Advice(
                    what="PYTORCH_ALLOC_CONF=max_split_size_mb:128", why="large blocks are not cut up for small tensors"
                )
            )
    if known and card is not None and cause in ("need", "fragmentation", "others", "outside", "shared"):
        found += _switches(model, setup, card, said)
    elif cause in ("need", "fragmentation", "shared"):
        found += _general()
    return found


def _switches(model, setup, card, said):
    """Of the plan for this run: each rung, with bytes and time."""
    if not setup.mesh.alone or not_derived(model, setup):
        return _general()
    outside = Headroom()
    process, others = _mine(said)
    if process is not None and said.reserved is not None:
        outside = Headroom(context=max(0, process - said.reserved), other=sum(size for _, size in others))
    chosen = plan(model, setup, card, outside)
    rungs: list[Rung] = [r for r in chosen.singles if r.saved > 0]
    if chosen.best is not None and chosen.best not in rungs:
        rungs = [chosen.best, *rungs]
    said_, found = set(), []
    for rung in sorted(rungs, key=lambda r: (r.peak > chosen.usable, r.seconds / max(1, r.saved))):
        if rung.text() not in said_ and len(found) < 6:
            said_.add(rung.text())
            found.append(Advice(what=rung.text(), saves=rung.saved, costs=f"{100 * rung.share:+.1f}%", fits=rung.peak <= chosen.usable,
                                why=f"peak {units.text(rung.peak)}, in {rung.peak_at}"))  # fmt: skip
    return found


def _general():
    """What helps most runs, with what is known without the run: the order is of price, not of bytes."""
    return [
        Advice(
            what="free what the script still holds: losses, outputs, the last batch",
            why="losses with a graph keep it",
            costs="none",
        ),
        Advice(
            what="fused kernels: attention (flash), cross-entropy, optimizer",
            why="they leave out tensors",
            costs="less time",
        ),
        Advice(
            what="a smaller micro-batch with as many more accumulated",
            why="activations go with the micro-batch",
            costs="little",
        ),
        Advice(
            what="16 bits: autocast, or pure bf16", why="activations halve; with bf16 states too", costs="less time"
        ),
        Advice(what="checkpointing", why="activations of a block at a time", costs="up to a third more"),
        Advice(what="shard or offload: ZeRO, FSDP", why="states and weights are divided", costs="communication"),
    ]


def _caveats(said, model, card):
    found = ["the message rounds to two decimals: each number is right to 0.01 of its unit"]
    if model is None:
        found.append("which of the bytes are weights, states or activations: give model and setup, or a snapshot")
    elif card is None:
        found.append("which GPU it is: name it, and the switches are ranked for it")
    if said.graphs:
        found.append("how much of the private pools is free: the message counts their free blocks as allocated")
    return found


def _library(said, model, setup, gpu, configuration):
    card = find_gpu(gpu) if gpu is not None else None
    found = [
        _LIBRARIES[said.kind],
        "PyTorch's cache keeps what it has: a library that asks the driver finds nothing left",
    ]
    advice = [
        Advice(
            what="leave room: per_process_memory_fraction:0.95",
            why="the library gets what PyTorch then leaves",
            costs="none",
        ),
        Advice(what=_EXPANDABLE, why="less is reserved for the same tensors", costs="none in a steady step"),
    ]
    if model is not None and setup is not None and card is not None:
        advice += _switches(model, setup, card, said)
    return Diagnosis(
        message=said,
        cause="library",
        findings=found,
        advice=advice,
        caveats=["how much was missing: the text does not say"],
    )


def _host(said):
    asked = f" for {units.text(said.asked)}" if said.asked else ""
    found = [f"the CPU's memory ran out{asked}: no setting of the GPU changes that"]
    advice = []
    if said.kind == "cgroup":
        held = f": it had {units.text(said.process)}" if said.process else ""
        held += f", and might have {units.text(said.allowed)}" if said.allowed else ""
        found.append(
            f"the job or container has a limit of its own, below the machine's memory, and the kernel ended a process there{held}"
        )
        advice.append(
            Advice(
                what="ask for more of the host's memory: Slurm's --mem, a container's limit",
                why="the machine may have it",
            )
        )
    else:
        found.append("exit code 137 or -9 is the kernel ending a process for its memory")
    return Diagnosis(
        message=said, cause="host", findings=found,
        advice=[
            *advice,
            Advice(what="load weights on meta, or sharded: one whole copy a process is many on one machine", why="each rank loads all of them"),
            Advice(what="fewer workers of the data loader, and no data set in lists of Python objects", why="each worker copies what it touches"),
            Advice(what="offload less", why="offloaded states stand in the host's memory"),
        ],
        caveats=["what held it: the host's allocator keeps no history"],
    )  # fmt: skip


def _mps(said):
    """Apple's GPUs share the host's memory; PyTorch may have a share of it, which a variable sets."""
    size, found = units.text, []
    if said.process is not None and said.allowed is not None:
        found.append(
            f"PyTorch's tensors have {size(said.allocated)}, and with what else this process has of Metal it is {size(said.process)} of the "
            f"{size(said.allowed)} that it may have"
        )
    if said.asked is not None:
        found.append(f"{size(said.asked)} was asked for")
    limit = Advice(
        what="raise the share: PYTORCH_MPS_HIGH_WATERMARK_RATIO",
        why="it may slow or end the whole machine, whose memory it is",
    )
    return Diagnosis(
        message=said, cause="limit", findings=found, advice=[*_general(), limit],
        caveats=["how much memory the machine has: the text does not say"],
    )  # fmt: skip


def _pinned(said):
    return Diagnosis(
        message=said, cause="host",
        findings=["pinned memory of the host could not be had: PyTorch rounds each such request up to a power of two, and keeps it"],
        advice=[Advice(what="pin less: pin_memory=False, fewer prefetched batches, no pinned offload", why="it cannot be swapped out")],
        caveats=["how much is pinned: torch.cuda.host_memory_stats() says"],
    )  # fmt: skip


def _of_snapshot(memory, model, setup, gpu, configuration):
    found = [
        f"at its peak {units.text(memory.peak)} lived on GPU {memory.device}, after event {memory.peak_event:,} of {len(memory.events):,}"
    ]
    kept = memory.reserved - memory.allocated
    if memory.reserved:
        found.append(
            f"at the end {units.text(kept)} of {units.text(memory.reserved)} reserved is free, {kept / memory.reserved:.0%}"
        )
    parts = sorted(memory.parts().items(), key=lambda pair: -pair[1])
    found += [
        f"{name}, by the frames: {units.text(size)} ({size / max(1, memory.peak):.0%} of the peak)"
        for name, size in parts
    ]
    split = kept > 0.15 * memory.reserved and memory.reserved > 0
    card = find_gpu(gpu) if gpu is not None else None
    advice = (
        [Advice(what=_EXPANDABLE, saves=kept, costs="none in a steady step", why="what is kept free lies in pieces")]
        if split
        else []
    )
    if model is not None and setup is not None and card is not None:
        advice += _switches(model, setup, card, Message(kind="pytorch"))
    account = [(name, size) for name, size in parts]
    died = any(action == "oom" for action, *_ in memory.events)
    cause = "fragmentation" if split and died else "need"
    return Diagnosis(message=None, cause=cause, findings=found, account=account, advice=advice,
                     caveats=["what lies outside of PyTorch's allocator", "the part of what has no frames: backward's are taken for gradients"])  # fmt: skip
