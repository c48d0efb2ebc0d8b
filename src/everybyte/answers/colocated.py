"""Trainer and inference engine on the same GPUs, as a timeline: what each phase of an iteration holds, on a GPU and in the host's memory.

Sources: vLLM, docs/features/sleep_mode.md: level 1 keeps weights in the host's memory, level 2 drops them, both discard the cache, and what
wakes is chosen by tag; `vllm/device_allocator/cumem.py`: what is tagged, which captured graphs are not. huggingface/trl#4296: weights wake
first, are replaced, and the cache wakes then. vllm-project/vllm#15254: all at once, beside the gathered weights, runs out of memory.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from .. import units
from ..ask.choices import DTYPE_BYTES
from ..catalog import Gpu
from ..catalog.weights import weights
from ..common.tables import Shown, Table

#: What is held by the engine, among the models of an `Alignment`.
ENGINE = "rollout engine"


@dataclass(frozen=True)
class Phase:
    """A phase: `name`; part -> bytes on each GPU, at its largest moment; part -> bytes in the host's memory, for each GPU."""

    name: str
    parts: Mapping[str, int] = field(compare=False)
    host: Mapping[str, int] = field(compare=False)

    @property
    def bytes(self) -> int:
        """On each GPU."""
        return sum(self.parts.values())


@dataclass(frozen=True, eq=False, repr=False)
class Timeline(Shown):
    """The phases of one iteration, in order. gpu: or None. model: its name."""

    phases: tuple[Phase, ...]
    gpu: Gpu | None
    model: str

    @property
    def peak(self) -> Phase:
        """The phase that holds most."""
        return max(self.phases, key=lambda phase: phase.bytes)

    @property
    def rows(self) -> dict[str, Mapping[str, int]]:
        """Phase -> parts on the GPU, as `draw.stacked` takes them."""
        return {phase.name: phase.parts for phase in self.phases}

    def table(self) -> Table:
        """Each phase by part."""
        names = list(dict.fromkeys(name for phase in self.phases for name, size in phase.parts.items() if size))
        sizes = {p.name: (*(p.parts.get(n, 0) for n in names), p.bytes, sum(p.host.values())) for p in self.phases}
        rows = [(name, *map(units.gib, said)) for name, said in sizes.items()]
        return Table((f"{self.model}, phase", *names, "on the GPU", "in the host"), rows)

    def said(self) -> list[str]:
        """The phase that holds most, and what is not in it."""
        most = self.peak
        return [
            f"Peak: {units.text(most.bytes)}, {most.name}.",
            "Tensors alone: what PyTorch's allocator has cached from another phase is not free for an engine that wakes, until empty_cache().",
        ]

    def as_dict(self) -> dict:
        """As JSON holds it: whole bytes."""
        found = [{"name": p.name, "bytes": p.bytes, "parts": dict(p.parts), "host": dict(p.host)} for p in self.phases]
        return {"phases": found, "peak": self.peak.bytes, "peak_at": self.peak.name, "said": self.said()}


def _sum(*held):
    """Part -> bytes of several models together."""
    found: Counter[str] = Counter()
    for parts in held:
        found.update(parts)
    return {name: size for name, size in found.items() if size}


def phases(said: Any) -> Iterator[Phase]:
    """The phases of an iteration. said: an `Alignment` with a `Rollout`."""
    rollout, model = said.rollout, said.objective.model
    engine = said.held[ENGINE]
    decided = rollout.decided(model, said.gpu) if said.gpu is not None else None
    models = [parts for name, parts in said.between.items() if name != ENGINE]
    trainer, standing = _sum(*models), {"other": engine.get("other", 0)}
    loaded = {"parameters": engine["parameters"]} | standing
    cached = {"cache": engine["cache"]}
    width = DTYPE_BYTES[said.setup.base_dtype]
    bucket = {"unsharded": rollout.bucket or max(width * w.numbers for w in weights(model) if w.count)}
    bucket = {} if rollout.weights == "shared" else bucket  # the engine's are the trainer's own
    kept = {"weights of the engine": engine["parameters"]} if rollout.asleep and rollout.level == 1 else {}

    stays, moved = ({}, trainer) if rollout.offloaded else (trainer, {})
    passes = {"activations": decided.profiled if decided else 0}
    yield Phase("generate", _sum(stays, loaded, cached, passes), moved)
    for name, size in said.scoring.items():
        own = _sum(*said.between.values())
        yield Phase(f"score: {name}", _sum(own, {"activations": size - sum(own.values())}), kept)
    yield Phase("train", _sum(*said.parts.values()), kept)
    policy = {"parameters": said.between["policy"]["parameters"]} if rollout.offloaded else trainer
    rest = {name: size - policy.get(name, 0) for name, size in trainer.items()} if rollout.offloaded else {}
    if not rollout.asleep:
        yield Phase("sync weights", _sum(policy, loaded, cached, bucket), rest)
    elif rollout.staged:
        yield Phase("wake: weights", _sum(policy, loaded), rest)
        yield Phase("sync weights", _sum(policy, loaded, bucket), rest)
        yield Phase("wake: cache", _sum(stays, loaded, cached), moved)
    else:
        yield Phase("wake: all", _sum(policy, loaded, cached), rest)
        yield Phase("sync weights", _sum(policy, loaded, cached, bucket), rest)
