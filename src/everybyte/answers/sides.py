"""What one side of a gap says: the tensors that lived when the most did, and what was reserved and taken around them.

A side is a budget, a dry run, a derivation, a rehearsal, a measurement, a snapshot, PyTorch's own counts, or the text of an
out-of-memory error; each as an object, as its JSON, or as a file.
"""

import json
import os
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any

from ..allocator import GIVES, TAKES
from ..ask.setup import Setup
from ..catalog import model, models
from ..common import checks, files
from ..evidence import Memory, Message, Snapshot, message, pickles, snapshot
from ..evidence.naming import NO_FRAME, part, script, where
from ..rehearsal import Rehearsal, ScriptRehearsal, history
from ..step.witness import Alive, Witness, starred
from ..theory.budget import budget
from ..units import text

#: What a gap is made of, from the inside out. A side that says one of them says all before it.
STAGES = ("tensors", "workspaces", "rounding", "reserved", "outside")
ALLOWED = (
    "a budget, dry run, derivation, rehearsal or measurement, (model, setup), a snapshot, torch.cuda.memory_stats(), an "
    "out-of-memory error's text, or a file with one of them"
)
#: Counts of `torch.cuda.memory_stats()`.
_COUNTED = ("requested", "allocated", "reserved")
_COUNTS = tuple(f"{name}_bytes.all.peak" for name in _COUNTED)
_ROUNDED = "blocks that are larger than what was asked for: multiples of 512 B, and rests up to 1 MiB"


@dataclass(frozen=True)
class Block:
    """Memory that was asked for at once, or `tensors` times. `told`: whether it is known which tensors these are.

    Attributes:
        label: in words, what it is or the place that asked for it. named: whether the label says which memory it is.
        apart: whether it is told from the others even where these are not told.
    """

    bytes: int
    part: str
    label: str
    tensors: int = 1
    told: bool = True
    named: bool = True
    apart: bool = False


@dataclass(frozen=True)
class Around:
    """Bytes around the tensors: their `stage`, a `key` by which two sides' are compared, and words."""

    stage: str
    key: str
    what: str
    bytes: int


@dataclass(frozen=True)
class Side:
    """What one side says. `who`: in words; `blocks`: at the peak, in the order of allocation; `around`: what it says besides; `reach`: up
    to which of `STAGES`; `source`: the witness, or the message, that it is of."""

    who: str
    blocks: tuple[Block, ...]
    around: tuple[Around, ...] = ()
    reach: str = "tensors"
    source: Any = None

    def bytes(self, reach: str) -> int:
        """Bytes up to a stage, one of `STAGES`."""
        return sum(b.bytes for b in self.blocks) + sum(a.bytes for a in self.within(reach))

    def within(self, reach: str) -> list[Around]:
        """What stands around the tensors up to a stage."""
        return [a for a in self.around if STAGES.index(a.stage) <= STAGES.index(reach)]


def side(source: Any, field: str = "seen") -> Side:
    """Read one side.

    Raises:
        ValueError: for what says nothing of memory, or a file that cannot be read; `field` is named.
    """
    if isinstance(source, tuple) and len(source) == 2 and isinstance(source[1], Setup):
        source = budget(*source)
    if hasattr(source, "case") and hasattr(source, "at") and not isinstance(source, Witness):
        source = source.at()  # a derivation, at its own setup
    if isinstance(source, Witness):
        return _of_witness(source)
    if isinstance(source, ScriptRehearsal):
        return _of_script(source.as_dict())
    if isinstance(source, Rehearsal):
        return _of_rehearsal(source.as_dict())
    if isinstance(source, Snapshot | Memory):
        name = source.name if isinstance(source, Snapshot) else "snapshot"
        return _of_memory(source.main if isinstance(source, Snapshot) else source, f"snapshot {name}")
    if isinstance(source, Message):
        return _of_message(source)
    if hasattr(source, "requested_peak"):
        return _of_measurement(source)
    if isinstance(source, Mapping):
        return _of_dict(source, field)
    if isinstance(source, os.PathLike) or isinstance(source, str) and "\n" not in source and os.path.exists(source):
        return _of_bytes(files.read(f"explain.{field}", source, pickles.MOST), field, os.path.basename(source))
    if isinstance(source, str | bytes):
        return _of_bytes(source.encode() if isinstance(source, str) else source, field, "snapshot")
    raise ValueError(f"explain.{field}: a {type(source).__name__}; allowed: {ALLOWED}")


def _of_bytes(read, field, name):
    """A file's: a pickle, JSON, or an error's text."""
    if pickles.is_pickle(read):
        return _of_memory(snapshot(read).main, f"snapshot {checks.printable(name, checks.SHOWN)}")
    said = read.decode(errors="replace")
    if said.lstrip()[:1] == "{":
        try:
            return _of_dict(files.parsed(said), field)
        except ValueError as error:
            if str(error).startswith("explain."):
                raise
            raise ValueError(f"explain.{field}: {error}; allowed: {ALLOWED}") from None
    return _of_message(message(said))


def _of_dict(said, field):
    """JSON of a witness or of PyTorch's counts."""
    witness = said.get("witness")
    reads: dict[str, Any] = dict.fromkeys(("predict", "dry run", "derive"), _of_parts) | {"measure": _of_record}
    reads["rehearse"] = _of_script if "processes" in said else _of_record if "schema" in said else _of_rehearsal
    requested, *others = map(said.get, _COUNTS)
    if isinstance(requested, int | None) and all(isinstance(count, int) for count in others):
        return _of_stats(said)
    if not isinstance(witness, str) or witness not in reads:
        keys = checks.shown(sorted(key for key in said if isinstance(key, str))[:4])
        raise ValueError(f"explain.{field}: a dict of {keys}; allowed: {ALLOWED}")
    try:
        found = reads[witness](said)
        found.bytes(found.reach)  # they are numbers
        return found
    except (LookupError, TypeError, AttributeError) as error:  # somebody else's, or edited
        what = f"{type(error).__name__} {checks.shown(str(error))}"
        raise ValueError(
            f"explain.{field}: JSON of {witness!r} that is not as it was written, {what}; allowed: {ALLOWED}"
        ) from error


def _of_record(said):
    """A measurement as JSON, or a record's line with its checksum."""
    from ..lab import Measurement, records

    said = dict(said)
    return _of_measurement(records.measurement(json.dumps(said)) if "check" in said else Measurement.from_dict(said))


def _of_parts(said):
    """A budget's, where the catalog has its model; a derivation's, at its own setup; else the tensors as the JSON has them, or their parts."""
    if "forms" in said:
        from ..derivation import Derivation

        return _of_witness(Derivation.from_dict(dict(said)).at())
    name = said.get("model", {}).get("name", "").partition(",")[0]
    if said["witness"] == "predict" and name in models():
        found = (model(name, code=code) for code in ("transformers", "reference"))
        named = said["model"]["name"], said["model"]["parameters"]
        for one in (m for m in found if m.name == named[0] or int(m.parameters) == named[1]):
            made = budget(one, Setup(**said["setup"]))
            if made.peak == said.get("peak"):
                return _of_witness(made)
    blocks = [_block(Alive(*row)) for row in said.get("alive") or ()]
    blocks = blocks or [Block(size, name, name, told=False) for name, size in said["parts"].items() if size]
    return Side(f"{_WHO.get(said['witness'], said['witness'])} of {said['model']['name']}", tuple(blocks))


#: Part of memory -> what of it stands between steps.
_STANDS = {"parameters": "weights", "optimizer": "states", "activations": "outputs kept from the step before"}
_WHO = {"predict": "budget", "derive": "derivation"}


def _block(alive):
    """A witness's tensor. What a dry run makes empty, and outside of all modules, is the batch."""
    of = ", ".join(filter(None, (starred(alive.owner), alive.operation)))
    of = "the batch" if of == "empty" else of
    return Block(alive.bytes, alive.part, of or _STANDS.get(alive.part, alive.part))


def _of_witness(source):
    who = f"{_WHO.get(source.witness, source.witness)} of {source.model.name}"
    return Side(who, tuple(_block(alive) for alive in source.alive()), source=source)


def _untold(size, who="the allocator's count"):
    return Block(size, "other", who, told=False)


def _of_rehearsal(said):
    """The book's own step, rehearsed: its allocator's counts, and cuBLAS's workspaces."""
    blocks = _untold(said["requested"] - said["workspace"]), _workspaces(said["workspace"])
    return _counted(f"rehearsal of {said['model']['name']}", blocks, *(said[name] for name in _COUNTED))


def _workspaces(size):
    return Block(size, "workspace", "cuBLAS's workspaces", apart=True)


def _counted(who, blocks, requested, allocated, reserved):
    """A side that says the allocator's counts."""
    kept = "reserved above allocated, each at its own peak: what the allocator keeps"
    around = (
        Around("rounding", "rounding", _ROUNDED, allocated - requested),
        Around("reserved", "kept", kept, reserved - allocated),
    )
    return Side(who, tuple(blocks), around, "reserved")


def _outside(inner, size, what):
    """A side that says so many bytes outside the allocator too."""
    return replace(inner, around=(*inner.around, Around("outside", "outside", what, size)), reach="outside")


def _of_stats(said):
    requested, allocated, reserved = (said.get(name) for name in _COUNTS)
    asked = allocated if requested is None else requested
    return _counted("torch.cuda.memory_stats()", [_untold(asked)], asked, allocated, reserved)


def _of_measurement(m):
    if m.requested_peak is None:
        raise ValueError(f"explain: {m.status} of {m.model.name}; allowed: a measurement that ran to its end")
    from .comparison import kernels

    own = kernels(m)
    blocks = [_untold(m.requested_peak - m.baseline - m.workspace - own), _workspaces(m.workspace)]
    blocks.append(Block(own, "workspace", "kernels' own memory, by their sources", apart=True))
    if m.baseline:
        blocks.append(Block(m.baseline, "other", "what lived before the model", apart=True))
    who = f"{m.witness} of {m.model.name} on {m.device['name']}"
    found = _counted(who, blocks, m.requested_peak, m.allocated_peak, m.reserved_peak)
    if m.driver_used is None:
        return found
    used = m.driver_used["cuda"] - (m.reserved_peak if m.reserved_at_end is None else m.reserved_at_end)
    return _outside(found, used, "outside the allocator: context, libraries, other processes")


def _of_message(said):
    """An error's text: it rounds to two decimals, and does not say what was asked for by tensors."""
    if said.allocated is None:
        raise ValueError(
            f"explain: a message of kind {said.kind!r} says no allocated bytes; allowed: PyTorch's own message"
        )
    blocks = [_untold(said.allocated, "allocated, as the message says it")]
    if said.asked:
        blocks.append(Block(said.asked, "other", "what was asked for when it died", apart=True))
    around = (Around("reserved", "kept", "reserved and not allocated, as the message says it", said.cached or 0),)
    found = Side("out-of-memory message", tuple(blocks), around, "reserved", said)
    if said.process is None:
        return found
    beside = said.process - said.allocated - (said.cached or 0)
    return _outside(found, beside, "outside the allocator: context, libraries")


def _of_script(said):
    """A script's rehearsal: by its snapshot where that is there, else by what its report says was held."""
    pairs = [(process, device) for process in said["processes"] for device in process["devices"]]
    if not pairs:
        raise ValueError("explain: a rehearsal without a process that used a GPU; allowed: one that has one")
    process, device = max(pairs, key=lambda pair: (bool(pair[0]["oom"]), pair[1]["requested"]))
    who = f"rehearsal of {' '.join(map(str, said['command']))}"
    if process["snapshot"] and os.path.exists(process["snapshot"]):
        found = snapshot(process["snapshot"])
        of = _of_memory(found.devices.get(device["device"], found.main), who)
        later = device["reserved"] - of.bytes("reserved")
        return replace(of, around=(*of.around, Around("reserved", "later", _LATER, later)))
    blocks = [_held(row) for row in (device["peak"] or {}).get("held", ())]
    return _counted(who, blocks, *(device[name] for name in _COUNTED))


def _held(row):
    """A row of what a report says was held: the tensors of a line, or of a node of backward and the line that made the node."""
    label = _where(row["line"] or row.get("forward"), row["inner"])
    if row.get("node"):
        label = f"{row['node']}{f' of {label}' if label else ''}, in backward"
    told, of = row["line"] != history.REST, "transient" if row.get("node") else "other"
    return Block(row["bytes"], of, label or NO_FRAME, row["tensors"], told, bool(label))


_LATER = "reserved at another moment than the peak's"


#: Parts of what backward asks for, which runs no line of Python.
_BACKWARD = ("gradients", "transient")


def _of_memory(memory, who):
    """A snapshot's: every block with the line that asked for it, and how the segments were filled when the most lived."""
    alive = [(size, made) for size, made in memory.made().values() if size]
    twins = _twins(memory, {size for size, made in alive if made.part in _BACKWARD})
    blocks = [_named(size, made, twins) for size, made in alive]
    return Side(who, tuple(blocks), tuple(_segments(memory)), "reserved")


def _named(size, made, twins):
    """A snapshot's block. Of backward's, which no line made, it is said what was last made as large."""
    label = _where_made(made)
    if made.part in _BACKWARD and (twin := twins.get(size)):
        label = f"in backward, as large as {twin}"
    return Block(size, made.part, label, named=made.part not in ("before", "other"))


def _where_made(made):
    """The line of a block of a snapshot, and a library's that it called."""
    of_line = made.frames and made.part not in ("workspace", *_BACKWARD)
    return _place(made.frames) if of_line else made.where


def _place(frames):
    """The script's line, and the library's that it called."""
    pythons = [frame for frame in frames if str(frame.get("filename", "")).endswith(".py") or script(frame)]
    own, inner = next(filter(script, pythons), None), history.inner(pythons)
    if own is None:
        return where(pythons)
    return _where(f"{own['filename']}:{own['line']}", inner)


def _where(line, inner):
    return ", in ".join(os.path.basename(said) for said in (line, inner) if said)


def _twins(memory, sizes):
    """Bytes -> the place that last asked for as many, where Python says one; an optimizer's states are as large as much else.

    Args:
        sizes: that are looked for.
    """
    found: dict[int, str] = {}
    for (action, _, size, _), frames in zip(reversed(memory.events), reversed(memory.frames), strict=True):
        if action == "alloc" and frames and size in sizes and size not in found and part(frames) != "optimizer":
            found[size] = _place(frames)
            if len(found) == len(sizes):
                break
    return found


def _segments(memory):
    """What stands around the blocks at the peak: rounding, free pieces beside tensors, whole free segments; and what came later."""
    rounded = memory.rules.rounded
    (ranges,) = memory.maps([memory.peak_event])
    rounding, free, whole, beside = 0, 0, 0, Counter()
    for _, size, inside in ranges:
        used = sum(rounded(asked) for _, asked, _ in inside)
        rounding += used - sum(asked for _, asked, _ in inside)
        if inside:
            free += size - used
            beside[_where_made(max(inside, key=lambda block: block[1])[2])] += size - used
        else:
            whole += size
    most = _most_reserved(memory)
    place, largest = (beside.most_common(1) or [("", 0)])[0]
    pinned = "pinned: free beside tensors" + (f", most beside {place} ({text(largest)})" if largest else "")
    kept = "in segments without a tensor: empty_cache gives them back"
    yield Around("rounding", "rounding", "each rounded up to a multiple of 512 B", rounding)
    yield Around("reserved", "kept", pinned, free)
    yield Around("reserved", "whole", kept, whole)
    yield Around("reserved", "later", _LATER, most - memory.peak - rounding - free - whole)


def _most_reserved(memory):
    """The most bytes of segments in a history."""
    changes = [size * ((action in TAKES) - (action in GIVES)) for action, _, size, _ in memory.events]
    return max(accumulate(changes, initial=memory.reserved - sum(changes)))
