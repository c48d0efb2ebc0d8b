"""The memory of a data set: every step of an epoch, of whatever length, through one allocator."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from .. import units
from ..allocator import Epoch as Played
from ..allocator import Settings, Shaped, composed, play_epoch, settings
from ..ask.lengths import COLLATORS, ORDERS, Batch, Collator, Lengths
from ..ask.objectives import Objective
from ..ask.setup import Setup
from ..catalog import Described, Gpu, Model
from ..common import checks, terminal
from ..common.tables import Shown, Table, sized
from ..derivation import Derivation
from ..theory.budget import Shapes
from .headroom import EXPANDABLE, PYTORCH, Headroom, computes, kept_free

#: The GPU whose workspaces are taken, where none is said.
GPU = "h100-80gb"
#: The number of steps between two calls of `torch.cuda.empty_cache()` that `cures` tries.
CLEARED = 10


@dataclass(frozen=True, eq=False, repr=False)
class Epoch(Shown):
    """An epoch of training as PyTorch's allocator has it, step by step.

    Attributes:
        model, setup, gpu: as asked. lengths: of the data set. collator: how batches are made of them. steps: the micro-batches of each
            step. configuration: `PYTORCH_ALLOC_CONF`. clear: after how many steps the cache is emptied; 0: never.
        memory: bytes that the allocator has; None for no limit. played: what it has in each step.
        source: gives the requests of each shape.
    """

    model: Described
    setup: Setup
    gpu: Gpu
    lengths: Lengths
    collator: Collator
    steps: list[list[Batch]]
    configuration: str
    clear: int
    memory: int | None
    played: Played
    source: "_Source" = field(repr=False)

    @property
    def reserved(self) -> int:
        """The most bytes that are reserved."""
        return max(self.played.reserved)

    @property
    def allocated(self) -> int:
        """The most bytes in blocks that serve requests."""
        return max(self.played.allocated)

    @property
    def largest(self) -> int:
        """The number of the first step in which the most is reserved, from 1 on."""
        return self.played.reserved.index(self.reserved) + 1

    @property
    def failed(self) -> int | None:
        """The number of the step in which the memory runs out, from 1 on; None where it does not."""
        return len(self.played.reserved) if self.played.failed else None

    @cached_property
    def padding(self) -> float:
        """The share of padding among the tokens of the epoch."""
        batches = [batch for step in self.steps for batch in step]
        return 1 - sum(b.tokens for b in batches) / sum(b.batch * b.sequence for b in batches)

    @cached_property
    def shapes(self) -> int:
        """The number of different shapes, (batch, sequence)."""
        return len({(b.batch, b.sequence) for step in self.steps for b in step})

    @cached_property
    def alone(self) -> Played:
        """The step that allocates the most, or that dies, as the only one, again and again, in as much memory as it asks for."""
        place = (self.failed or self.played.allocated.index(self.allocated) + 1) - 1
        return self.source.played([self.steps[place]] * 3, self.gpu, None, self.configuration, 0)

    @property
    def fragmentation(self) -> int:
        """Bytes reserved at most above those of the largest step alone: what the mixture of shapes costs, where all steps run."""
        return max(0, self.reserved - max(self.alone.reserved))

    def with_(self, **changed) -> "Epoch":
        """The same with another `collate`, `order`, `tokens`, `pad_to`, `seed`, `configuration` or `clear`."""
        own = {name: changed.pop(name, getattr(self, name)) for name in ("configuration", "clear")}
        own["configuration"] = settings(own["configuration"]).text()
        checks.whole("epoch", "clear", own["clear"], 0)
        if "pad_to" in changed:
            changed["pad_to"] = _paddings(changed["pad_to"])
        collator = self.collator._replace(**changed)
        steps = collator.steps(self.lengths) if changed else self.steps
        played = self.source.played(steps, self.gpu, self.memory, **own)
        return replace(self, collator=collator, steps=steps, played=played, **own)

    def cures(self) -> Table:
        """What other orders, paddings and settings of the allocator would reserve, and which step dies."""
        rows = [_row("as asked", self)]
        for name, changed in _tried(self):
            try:
                rows.append(_row(name, self.with_(**changed)))
            except ValueError as error:
                rows.append((name, str(error).partition(";")[0], "", "", "", ""))
        columns = ("", "reserved", "allocated", "times", "dies at step", "padding")
        return Table(columns, rows, f"{self._title()}: what else it would reserve")

    def _title(self):
        return f"{self.model.name}, {len(self.steps):,} steps of {self.shapes:,} shapes on {self.gpu.name}"

    def table(self) -> Table:
        """What is reserved at most, and what of it the mixture of shapes costs."""
        most = f"reserved at most, first in step {self.largest:,}, {_said(self.steps[self.largest - 1])}"
        rows = [sized(most, self.reserved), sized("allocated at most", self.allocated)]
        if self.failed is None:
            rows.append(sized("reserved by the step that allocates the most, alone", max(self.alone.reserved)))
            rows.append(sized("what the mixture of shapes costs", self.fragmentation))
        if self.memory is not None:
            rows.append(sized(f"memory of {self.gpu.name} that the allocator has", self.memory))
        return Table((self._title(), "bytes", ""), rows, self.why())

    def why(self) -> str:
        """In words: whether it runs, and how it was found."""
        cut = sum(one > self.collator.longest for one in self.lengths.tokens) if self.collator.collate != "pack" else 0
        more = f", {cut:,} sequences cut to {self.collator.longest:,} tokens" if cut else ""
        how = f"{COLLATORS[self.collator.collate]}; {ORDERS[self.collator.order]}; {self.padding:.0%} of the tokens are padding{more}"
        simulated = f"Simulated with {self.configuration or PYTORCH}; no mask for padding is counted"
        return f"{self._end()}. {how[0].upper()}{how[1:]}. {simulated}"

    def _end(self):
        """Whether all steps run; else which dies, and of what."""
        error = self.played.failed
        if error is None:
            times = self.played.retries[-1]
            given = f"; {times:,} times the cache is given back to go on" if times else ""
            return ("All steps run" if self.memory is not None else "Without a limit of memory") + given
        alone = max(self.alone.reserved)
        runs = f"alone it reserves {units.text(alone)}" + (", and runs" if alone <= (self.memory or alone) else "")
        return (
            f"Step {self.failed:,}, {_said(self.steps[self.failed - 1])}, dies: {units.text(error.segment)} asked of the driver, with "
            f"{units.text(error.allocated)} allocated and {units.text(error.reserved)} reserved; {runs}"
        )

    def figure(self):
        """Reserved and allocated bytes by step: matplotlib's figure, with its text as `alt`."""
        from .. import draw

        unit = units.largest(max(self.reserved, self.memory or 0))
        title = f"{self._title()}, {self.collator.collate}, {self.collator.order}"
        return draw.by_step(self.played.reserved, self.played.allocated, title, unit, self.memory)

    draw = figure

    def __repr__(self):
        end = f", dies in step {self.failed:,}" if self.failed else ""
        return f"Epoch({len(self.steps):,} steps: {units.exact(self.reserved)} reserved, {units.text(self.allocated)} allocated{end})"

    def as_dict(self) -> dict:
        """As JSON holds it: whole bytes, a number for each step that was played."""
        played = self.played
        return {
            "model": {"name": self.model.name, "parameters": int(self.model.parameters)}, "setup": self.setup.as_dict(),
            "gpu": {"name": self.gpu.name, "memory": self.gpu.memory}, "collator": self.collator._asdict(),
            "configuration": self.configuration, "clear": self.clear, "memory": self.memory, "reserved": self.reserved,
            "allocated": self.allocated, "at": self.largest, "failed": self.failed, "fragmentation": self.fragmentation,
            "padding": self.padding, "retries": played.retries[-1],
            "steps": [
                {"batches": [[b.batch, b.sequence] for b in step], "reserved": r, "allocated": a, "requested": q, "kept": k}
                for step, r, a, q, k in zip(self.steps, played.reserved, played.allocated, played.requested, played.kept, strict=False)
            ],
        }  # fmt: skip


def _said(step):
    """The shapes of a step in words."""
    largest = max(step, key=lambda b: b.batch * b.sequence)
    first = f"{largest.batch:,} × {largest.sequence:,} tokens"
    return first if len(step) == 1 else f"{len(step):,} micro-batches of up to {first}"


def _row(name, epoch):
    dies = f"{epoch.failed:,}" if epoch.failed else "none"
    reserved, allocated = units.text(epoch.reserved), units.text(epoch.allocated)
    return name, reserved, allocated, f"{epoch.reserved / epoch.allocated:.2f}", dies, f"{epoch.padding:.0%}"


def _tried(epoch) -> list[tuple[str, dict[str, Any]]]:
    """(name, what is changed) of each cure that is not there yet."""
    collator = epoch.collator
    orders = [name for name in ("random", "grouped", "descending", "largest-first") if name != collator.order]
    found: list[tuple[str, dict[str, Any]]] = [(f"order {order}", {"order": order}) for order in orders]
    if collator.collate != "pack":
        longest = min(max(epoch.lengths.tokens), collator.longest)
        found += [(f"rows padded to a multiple of {n}", {"pad_to": n}) for n in (64, 512) if collator.pad_to != n]
        if collator.collate == "pad":
            buckets = sorted({-(-longest // 2**n) for n in range(4)})
            found.append((f"padded to {', '.join(map(str, buckets))}", {"pad_to": tuple(buckets)}))
    if not epoch.clear:
        found.append((f"empty_cache() every {CLEARED} steps", {"clear": CLEARED}))
        found.append(("empty_cache() after each step", {"clear": 1}))
    if epoch.configuration != EXPANDABLE:
        found.append((EXPANDABLE, {"configuration": EXPANDABLE}))
    return found


class _Source:
    """The requests of a step of each shape, each made once."""

    def __init__(self, model, setup, workspace, whole):
        self.model, self.setup, self.workspace, self.whole = model, setup, workspace, whole
        self._known: dict[tuple[int, int], Shaped] = {}
        self._maker: Any = None

    def played(
        self, steps: Sequence[Sequence[Batch]], gpu: Gpu, memory: int | None, configuration: str, clear: int
    ) -> Played:
        """What the allocator makes of the steps. Raise ValueError where a shape is not derived, or they do not go together."""
        self._prepare(steps)

        def asked():
            for number, step in enumerate(terminal.bar(iterable=steps, desc="steps")):
                name, first = tuple((b.batch, b.sequence) for b in step), number == 0
                yield (first, name), lambda step=step, first=first: self.asked(step, first)

        return play_epoch(self.shaped(steps[0][0]).beginning, asked(), configuration, memory, gpu.memory, clear)

    def shaped(self, batch: Batch) -> Shaped:
        """The requests of a batch of its shape, once it was prepared."""
        return self._known[batch.batch, batch.sequence]

    def asked(self, step: Sequence[Batch], first: bool) -> list:
        """The requests of a step; first: whether states are made in it."""
        return composed(list(map(self.shaped, step)), first)

    def _prepare(self, steps):
        shapes = sorted({(b.batch, b.sequence) for step in steps for b in step} - set(self._known))
        if self._maker is None and isinstance(self.model, Derivation):
            from ..deriving.ordering import Ordered

            self._maker = Ordered(self.model, self.workspace, bool(self.whole), shapes)
        elif self._maker is None:
            self._maker = Shapes(self.model, self.setup, self.workspace, self.whole)
        for shape in terminal.bar(iterable=shapes, desc="shapes"):
            self._known[shape] = self._maker.at(*shape)
        first = next(iter(self._known.values()))
        for shape in shapes:
            if self._known[shape].shared != first.shared:
                raise ValueError(
                    f"epoch: a step of batch {shape[0]:,}, sequence {shape[1]:,} leaves other tensors to the next one than the others do; "
                    "allowed: Setup.loop='plain' with accumulation=1, which leaves none; or no batch or row of one"
                )


def epoch(
    model,
    setup: Setup,
    lengths: Lengths | str | Mapping | Iterable,
    collate: str = "pad",
    order: str = "random",
    gpu: Gpu | str | None = None,
    *,
    tokens: int | None = None,
    pad_to: int | Sequence[int] = 1,
    seed: int = 0,
    clear: int = 0,
    most: int | None = None,
    configuration: Settings | str = "",
    headroom: Headroom | None = None,
    whole: bool | None = None,
    batch=None,
) -> Epoch:
    """What PyTorch's allocator makes of an epoch: each step with the batch that a collator makes of the data set's lengths.

    The requests of each step are those of the model's own step at its batch and sequence; one allocator serves them all. A mask for
    padding is not counted: it makes some attention kernels take more.

    Args:
        model: a `Model` or an `Objective`, by formula; or a Hugging Face config, a function that makes a module, or a `Derivation`, whose
            dry runs say the order of its requests.
        setup: `batch` is how many sequences, or packed rows, a batch has; `sequence` the most tokens of a row, longer sequences are cut;
            `accumulation` the micro-batches of a step.
        lengths: of the data set: whole numbers, columns of tokens, {tokens: how many}, or a file of these, as `Lengths` reads them.
        collate: one of `COLLATORS`. order: one of `ORDERS`; what is shuffled, by `seed`.
        gpu: of the catalog, by name too: its memory is the limit. None: no limit, with the workspaces of an H100.
        tokens: with collate "tokens", padded tokens of a batch at most. pad_to: rows are padded to a multiple of it, or to the least of
            these lengths that holds them.
        clear: after how many steps `torch.cuda.empty_cache()` is called; 0: never. most: the most steps played; by default all.
        configuration: `PYTORCH_ALLOC_CONF`. headroom: what is kept free on the GPU. whole: as `Budget.on`'s. batch: for a function that
            makes a module, the arguments of its forward as `derive` takes them.

    Raises:
        ValueError: what does not go together, by field; a step that is not derived, or dies before the first.
    """
    checks.kind("epoch", "setup", setup, Setup)
    headroom = kept_free("epoch", headroom)
    _check_said(headroom, setup, collate, whole)
    checks.whole("epoch", "clear", clear, 0)
    if most is not None:
        checks.whole("epoch", "most", most, 1)
    chosen = settings(configuration)
    card = computes(setup, GPU if gpu is None else gpu)
    model = _spoken(model, setup, batch)
    setup = setup.of(model.own)
    measured = Lengths(lengths)
    said = setup.batch, setup.sequence, setup.accumulation, tokens, _paddings(pad_to)
    collator = Collator(collate, order, *said, seed)
    steps = collator.steps(measured)[:most]
    source = _Source(model, setup, card.cublas_workspace, whole)
    memory, text = None if gpu is None else headroom.room(card, setup), chosen.text()
    played = source.played(steps, card, memory, text, clear)
    described = getattr(model, "described", model)
    return Epoch(described, setup, card, measured, collator, steps, text, clear, memory, played, source)


def _paddings(pad_to):
    return tuple(pad_to) if isinstance(pad_to, Iterable) else pad_to


def _check_said(headroom, setup, collate, whole):
    """Raise ValueError for what an epoch decides itself, and for GPUs of which one would stand for others that need more."""
    mesh = setup.mesh
    if mesh.pipeline > 1 or mesh.context > 1 and mesh.rotation != "ulysses":
        raise ValueError(
            f"Setup.mesh: {mesh} of an epoch, which plays one GPU's requests, and the stages of a pipeline and the places of a ring need "
            "different ones; allowed: neither; eb.budget(model, setup, rank=...).on(gpu) plays a step of each"
        )
    if whole is not None:
        checks.flag("epoch", "whole", whole)
    if headroom.fragmentation:
        raise ValueError(
            f"Headroom.fragmentation: {headroom.fragmentation} of an epoch, which simulates it; allowed: None or 0; other=... keeps bytes free"
        )
    if collate == "tokens" and setup.batch != (usual := Setup().batch):
        raise ValueError(
            f"Setup.batch: {setup.batch} with collate='tokens', whose batches are as many sequences as the tokens hold; allowed: {usual}, "
            "the default"
        )


def _spoken(model, setup, batch):
    """A model whose steps are said: by formula, or derived."""
    if isinstance(model, Model | Objective | Derivation):
        if batch is not None:
            raise ValueError(
                f"epoch.batch: {checks.shown(batch)} with {model.name}; allowed: None; it is what the forward of a module of one's own is given"
            )
    else:
        from ..deriving import derive

        model = derive(model, setup, batch)
    if isinstance(model, Derivation):
        _check(model, setup.of(model.own))
    return model


def _check(derivation, setup):
    """Raise ValueError for a derivation that is not of this step, or has lost its model."""
    if derivation.again is None:
        raise ValueError(
            f"epoch.model: {derivation.name} is known by its formula alone; allowed: eb.derive(model, setup) of its model"
        )
    if derivation.further:
        raise ValueError(
            f"epoch.model: the letter {derivation.further[0]} of {derivation.name}; allowed: formula.fixed(...) with a size for it"
        )
    if setup.accumulation > 1:
        raise ValueError(
            f"Setup.accumulation: {setup.accumulation} of a model of one's own, whose micro-batches would be of one shape; allowed: 1, or a "
            "Model of the catalog"
        )
    same = derivation.setup.replace(batch=setup.batch, sequence=setup.sequence)
    if same.as_dict() != setup.as_dict():
        raise ValueError(
            f"epoch.setup: another than {derivation.name} was derived with; allowed: that one, or another derivation"
        )
