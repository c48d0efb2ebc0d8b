"""What a step does on each GPU: its operations, the bytes that it moves, those that it sends and copies; and how long that takes."""

from collections import Counter
from dataclasses import dataclass
from functools import lru_cache
from math import prod

from ..ask.choices import DTYPE_BYTES, LIBRARIES, OPTIMIZERS
from ..ask.setup import Lora, Setup
from ..catalog import Gpu, Model
from ..catalog.weights import summed, trained
from ..theory.budget import course_of, letters
from .rates import ALIGNED, ASKED, Load


def standing(setup: Setup) -> tuple[int, int]:
    """Bytes a number that stand after backward at least: the optimizer's states, weights and gradients."""
    dtypes, wide = setup.dtypes, DTYPE_BYTES[setup.dtypes.weights]
    states = (OPTIMIZERS[setup.optimizer].states or 0) * DTYPE_BYTES[dtypes.states]
    states += DTYPE_BYTES[dtypes.master] if dtypes.master else 0
    made = setup.kept_gradients != "fp32" and not setup.optimizer_in_backward
    return states, wide + wide * made + 4 * (setup.kept_gradients != "bf16")


@dataclass(frozen=True)
class Work:
    """What a step does on each GPU.

    Every tensor that the step makes is written once and read once; the optimizer reads and writes its numbers as often as
    its implementation does; each batch after the first adds its gradients to those that are there.

    Attributes:
        load: its operations and the bytes to and from the GPU's memory; compute: the data type of its products. gpus: how many train together.
        rings: collectives that go round a ring, together: (bytes to the other GPUs, how many GPUs, how far apart they stand) each.
        copied: bytes over the bus, from the host and to it.
        hosted: bytes to and from the host's memory, where gradients add up and the optimizer works there.
        phases: the same by phase, where GPUs send: of each the part that may run at one time.
    """

    load: Load = Load()
    rings: tuple[tuple[int, int, int], ...] = ()
    copied: int = 0
    hosted: int = 0
    compute: str = "bf16"
    phases: tuple["Work", ...] = ()
    gpus: int = 1

    @property
    def flops(self) -> int:
        """Of its matrix products."""
        return int(self.load.flops)

    @property
    def moved(self) -> int:
        """Bytes to and from the GPU's memory."""
        return int(self.load.moved)

    @property
    def sent(self) -> int:
        """Bytes to the other GPUs."""
        return sum(size for size, *_ in self.rings)

    def seconds(self, gpu: Gpu) -> float:
        """What the GPU does one after another, at measured shares of its rates (`Load.seconds`), and what is sent hidden behind it, in its own
        phase, at the data sheet's rates.

        FSDP gathers behind forward and backward, and reduces behind backward; DDP's all-reduce runs behind the last backward. ZeRO-1
        sends in the optimizer's step, which hides nothing. Of a phase the longer counts: what it computes, or what it sends. What is sent takes the slowest link that it crosses (`Gpu.ring`), GPUs numbered node by node. What the host does is not in
        it, as no GPU's data sheet says how fast that is.

        Raises:
            ValueError: where GPUs of several nodes send, and it is not known how fast the network is.
        """
        if self.phases:
            return sum(phase.seconds(gpu) for phase in self.phases)
        links = sum(size / gpu.ring(*who) for size, *who in self.rings) + self.copied / gpu.host_link
        return max(sum(self.load.seconds(gpu, self.compute, self.gpus).values()), links)


def made(model: Model, setup: Setup) -> int:
    """Bytes of all tensors that forward and backward make on a GPU, one after another. Raises as `work`."""
    return sum(_taken(model, setup.of(model.own)).values())


def phase_work(model: Model, setup: Setup) -> tuple[Load, Load]:
    """What one batch's forward does, and its backward. Raises as `work`."""
    setup = setup.of(model.own)
    found = dict(zip(("forward", "backward"), phase_loads(model, setup), strict=True))
    for (_, phase), (_, taken, started) in _turns(model, setup).items():
        found[phase] += _through(setup, taken, started)
    return found["forward"], found["backward"]


def work(model: Model, setup: Setup) -> Work:
    """What one step does.

    Raises:
        ValueError: where the setup does not fit the model, or its step is not derived.
    """
    setup = setup.of(model.own)
    setup.check_undivided("work")
    rings, copied = sent_by(model, setup)
    phases, there = tuple(_phases(model, setup)), updated(model, setup)[1]
    load, compute, gpus = sum((phase.load for phase in phases), Load()), setup.dtypes.compute, setup.gpus
    return Work(load, rings, copied, there, compute, phases if rings or copied else (), gpus)


def _phases(model, setup):
    """Forward and backward of each batch, of batches that are alike of all together; then what the optimizer's step sends, and does."""
    loads, compute, gpus = phase_loads(model, setup), setup.dtypes.compute, setup.gpus
    for (batch, phase), (times, taken, started) in _turns(model, setup).items():
        rings, copied = sent_by(model, setup, (batch, phase))
        through = _through(setup, taken, started)
        yield Work((loads[phase != "forward"] + through) * times, rings, copied, compute=compute, gpus=gpus)
    rings, _ = sent_by(model, setup, "optimizer step")
    here, there = updated(model, setup)
    yield Work(Load(), rings)
    yield Work(Load(moved=here, steps=1), hosted=there, gpus=gpus)


def _through(setup, taken, started):
    """What goes through the GPU's memory: each tensor is written and read."""
    scores = 2 * taken["attention"] if setup.attention == "eager" else 0
    asked = ASKED if setup.checkpointing == "operations" else 1
    return Load(moved=2 * taken.total(), scores=scores, started=asked * started)


@lru_cache(4096)
def _turns(model, setup, rounding=1):
    """(batch, phase) -> (how often it comes, kind of operation -> bytes that it takes by operations of that kind, how many operations).

    The first batch, one that stands for all that are alike, and where it differs the last.
    """
    short, found = short_of(setup), {}
    reading = course_of(model, short).at(letters(model, short), rounding)
    for (batch, phase), started in reading.started().items():
        alike = batch == (1 if short.accumulation > 1 else 0)
        times = setup.accumulation - short.accumulation + 1 if alike else 1
        found[batch, phase] = times, Counter(), started
    for (batch, phase, kind), size in reading.taken().items():
        found[batch, phase][1][kind] += size
    return found


@lru_cache(4096)
def _taken(model, setup, rounding=1, turn=None):
    """Kind of operation -> bytes that forward and backward of all batches take by operations of that kind; or one of `_turns`."""
    found = Counter()
    for where, (times, taken, _) in _turns(model, setup, rounding).items():
        if turn in (None, where):
            for kind, size in taken.items():
                found[kind] += times * size
    return found


def short_of(setup):
    """The step with as few batches as tell it: the first, the later, and where that is another one the last."""
    few = 3 if setup.no_sync or setup.ddp else 2
    return setup.replace(accumulation=few) if setup.accumulation > few else setup


def sent_by(model, setup, turn=None):
    """(the rings of `Work`, bytes copied from the host and to it): of the step, of one of `_turns`, or of the optimizer's step."""
    shards, replicas = setup.shards, setup.replicas
    if not setup.distributed:
        return (), 0
    numbers, wide = held(model, 1, setup.adapters), DTYPE_BYTES[setup.trained_dtype]
    if not setup.fsdp:  # gradients are averaged once, after the last batch
        last = max(batch for batch, _ in _turns(model, setup))
        when = "optimizer step" if setup.sharding == "zero1" else (last, "backward")
        if turn not in (None, when) or not setup.ddp and setup.sharding != "zero1":
            return (), 0
        both = wide + (4 if setup.precision in LIBRARIES else wide)  # weights are gathered, gradients reduced
        return (((shards - 1) * -(-numbers // shards) * both, shards, 1),), 0

    if turn == "optimizer step":
        return (), 0

    def of(*kinds, rounding=1):
        return sum(_taken(model, setup, rounding, turn)[kind] for kind in kinds)

    rings = (((shards - 1) * of("gathered", "sent") // shards, shards, 1),)
    if replicas > 1:  # what was received is averaged among them, cut into as many equal pieces
        averaged = 2 * (replicas - 1) * of("received", rounding=replicas * wide) // replicas
        rings += ((averaged, replicas, shards),)
    narrowed = setup.adapters and setup.reduced_dtype != setup.trained_dtype  # before they are sent
    return rings, of("from the host", "stored" if narrowed else "received") if setup.offload == "cpu" else 0


def held(model: Model, shards: int, lora: Lora | None = None) -> int:
    """Numbers that one GPU holds of the weights, or of adapters: each tensor cut by rows, their last share filled up."""
    return summed(model, lambda w: -(-w.shape[0] // shards) * prod(w.shape[1:]), trained(model, lora))


def updated(model, setup):
    """Bytes that the optimizer's step and the sum of the gradients read and write: on the GPU, in the host's memory."""
    moved = added = held(model, setup.shards if setup.fsdp else 1, setup.adapters)
    if setup.fsdp_version == 1:  # weights side by side, whatever their rows
        moved = added = -(-held(model, 1) // setup.shards)
    if setup.sharding == "zero1":
        moved = -(-moved // setup.gpus)
    adding = setup.accumulation - (setup.sharding != "zero1")  # there the first batch, too, finds a buffer
    # Beside the new gradient, the sum is read and written.
    states = setup.update_bytes * moved + 2 * DTYPE_BYTES[setup.trained_dtype] * adding * added
    return (0, states) if setup.offload == "cpu" else (states, 0)


def matrix_flops(model: Model, setup: Setup) -> int:
    """Floating-point operations of a step's matrix products, in whole numbers."""
    return setup.accumulation * sum(int(load.flops) for load in phase_loads(model, setup))


def phase_loads(model: Model, setup: Setup) -> tuple[Load, Load]:
    """Matrix products of one batch, in forward and in backward; what is recomputed is backward's. Raises as `work`.

    They are `flops.*` and `checkpoint.flops` of the registry less `flops.masked`, what a causal kernel skips.
    """
    return _products(model, setup.of(model.own).replace(accumulation=1, no_sync=False))


@lru_cache(4096)
def _products(model, setup):
    reading, names = course_of(model, setup).at(letters(model, setup)), ("", "head", "attention", "attention backward")
    products = map(reading.products, ("forward", "backward"))
    forward, backward = (_load(model, setup, *(found.get(name, 0) for name in names)) for found in products)
    return forward, backward


def _load(model, setup, blocks, head, attention, backward):
    """Products of blocks and of the head, and those in attention's kernels. The logits have a row of the vocabulary's size a token."""
    ragged = head if model.vocabulary % ALIGNED else 0
    kernels = {"attention": attention, "attention_backward": backward, "sequence": setup.sequence}
    return Load(plain=blocks + head - ragged, ragged=ragged, **kernels)
