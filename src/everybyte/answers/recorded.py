"""What a memory snapshot says of a job: what grows, what is kept and not used, which part is too large."""

from dataclasses import dataclass, replace

from .. import units
from ..ask.setup import Setup
from ..catalog import Gpu, Model
from ..evidence import Memory
from .advice import SAID, Diagnosis, Suspect, advised, general, ranked, switches
from .headroom import Headroom

#: Shares: of the peak that what grows must have reached, to be the cause; of what is reserved that was never needed, or is pinned.
_GROWN, _IDLE = 0.02, 0.15
#: Share of what is reserved: with less in pieces it is full, and the next request would have ended it too.
_NEAR = 0.05
#: Part of memory -> the phase of `diagnosis.toml` whose advice is about it.
_ABOUT = {
    "loss": "loss", "optimizer": "optimizer", "communication": "collective", "activations": "forward", "transient": "backward",
}  # fmt: skip


@dataclass(frozen=True)
class _Seen:
    """What decides, in bytes: `asked` and `free` by the driver where it died, 0 where it did not; `allocated`, `reserved` and what is `kept`
    then, or at the end; what grows with `each` step, and so far; and `idle`: what is kept and was not needed at the peak, or is pinned.
    After a step its activations' memory is free, as it should be."""

    memory: Memory
    event: int | None
    asked: int
    free: int
    allocated: int
    reserved: int

    @classmethod
    def of(cls, memory):
        died = memory.died
        if died is None:
            return cls(memory, None, 0, 0, memory.allocated, memory.reserved)
        _, free, asked, _ = memory.events[died]
        return cls(memory, died, asked, free, memory.live[died], memory.reserved_at(died))

    @property
    def kept(self):
        return self.reserved - self.allocated

    @property
    def missing(self):
        return max(0, self.asked - self.free)

    @property
    def each(self):
        return sum(one.bytes for one in self.memory.leaks)

    @property
    def idle(self):
        return max(self.memory.reserved - self.memory.peak, sum(one.free for one in self.memory.pinned))


def recorded(memory: Memory, model: Model | None, setup: Setup | None, card: Gpu | None) -> Diagnosis:
    """Of one GPU's side of a snapshot."""
    seen = _Seen.of(memory)
    causes, account = _causes(seen), sorted(memory.parts(seen.event).items(), key=lambda pair: -pair[1])
    findings = [_first(seen, causes[0].cause), *_at_the_peak(seen, account), *_kept(memory)]
    advice = _advice(seen, causes[0].cause, account)
    if model is not None and setup is not None and card is not None:
        advice += switches(model, setup, card, Headroom())
    caveats = ["what lies outside of PyTorch's allocator"]
    if dict(account).get("before"):
        caveats.append("what is from before the recording: begin it before the first tensor")
    return Diagnosis(
        message=None, findings=findings, causes=causes, account=account, advice=ranked(advice), caveats=caveats
    )


def _causes(seen):
    """What it may be, the first of which decides: what can suffice, and of that the most bytes."""
    so_far, found = seen.each * len(seen.memory.steps), []
    if so_far >= _GROWN * seen.memory.peak and so_far:
        found.append(Suspect("leak", so_far, so_far >= seen.missing if seen.asked else None))
    if seen.asked and seen.kept >= max(seen.missing, _NEAR * seen.reserved):
        found.append(Suspect("fragmentation", seen.kept, True))
    elif not seen.asked and seen.idle > _IDLE * seen.memory.reserved:
        found.append(Suspect("kept", seen.idle, None))
    if seen.asked:
        found.append(Suspect("need", seen.allocated, True))
        return sorted(found, key=lambda one: one.enough is False)
    return sorted(found, key=lambda one: -one.bytes) or [Suspect("nothing")]


def _first(seen, cause):
    """The finding that decides."""
    memory = seen.memory
    names = ("asked", "free", "each", "reserved", "allocated", "idle")
    words = {name: getattr(seen, name) for name in names}
    words |= {"cached": seen.kept, "peak": memory.peak, "emptied": memory.emptied}
    said = {name: units.text(size) for name, size in words.items()}
    lines = "; ".join(f"{one.where}, {units.text(one.bytes)}" for one in memory.leaks[:3])
    return SAID["recorded"][cause].format(**said, steps=len(memory.steps), lines=lines)


def _at_the_peak(seen, account):
    """What lived when it died, or at the peak."""
    memory, event = seen.memory, seen.memory.peak_event if seen.event is None else seen.event
    lived, when = memory.live[event], "at its peak" if seen.event is None else "when it died"
    place = f"after event {event:,} of {len(memory.events):,}"
    found = [f"{when} {units.text(lived)} lived on GPU {memory.device}, {place}"]
    for name, size in account:
        share = f"{size / max(1, lived):.0%}{' of the peak' if seen.event is None else ''}"
        found.append(f"{SAID['parts'].get(name, name)}: {units.text(size)} ({share})")
    return found


def _kept(memory):
    """What is reserved at the end and not in use, and why it does not go back."""
    if not memory.reserved:
        return []
    kept = memory.reserved - memory.allocated
    found = [f"at the end {units.text(kept)} of {units.text(memory.reserved)} reserved is free, {kept / memory.reserved:.0%}: "
             f"empty_cache() gives back {units.text(memory.emptied)}"]  # fmt: skip
    held = sum(one.free for one in memory.pinned)
    if held:
        first = memory.pinned[0]
        found.append(f"{units.text(held)} of it lies in {sum(p.segments for p in memory.pinned):,} segments that blocks in use keep: the "
                     f"most, {units.text(first.free)}, beside {units.text(first.bytes)} of {'; '.join(first.where[:2])}")  # fmt: skip
    return found


def _advice(seen, cause, account):
    """What to do, with what each can give at most."""
    memory = seen.memory
    if cause == "leak":
        return advised("leak", saves=seen.each * len(memory.steps))
    if cause == "fragmentation":
        return advised("pieces", saves=seen.kept)
    if cause == "kept":
        return advised("pieces", saves=seen.idle) + advised("empty", saves=memory.emptied)
    return [advice for part, size in account for advice in _about(part, size, seen)] if cause == "need" else []


def _about(part, size, seen):
    """Advice about a part of memory, if it is a tenth of all at least; more than the part itself it cannot give."""
    if part not in _ABOUT or size < 0.1 * seen.allocated:
        return []
    return [replace(one, fits=False if size < seen.missing else None) for one in general(_ABOUT[part])]
