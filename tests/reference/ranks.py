"""What one of two processes sees that train a small GPT together."""

import torch

import everybyte as eb
from everybyte.ask.choices import SHARDINGS
from everybyte.lab.meters import Cpu
from everybyte.reference import GPT, Trainer

GPUS, STEPS = 2, 4
MODEL = eb.Model(name="small", layers=3, width=20, heads=2, vocabulary=101, positions=24)
#: The batch is a GPU's own; a process alone trains on all of them.
SETUP = eb.Setup(batch=2, sequence=16, attention="eager", optimizer="momentum")
SETUPS = {
    name: SETUP.replace(gpus=GPUS, **changes)
    for name, changes in {
        "ddp": {},
        "views": {"buckets": "views"},
        "zero1": {"sharding": "zero1"},
        "zero2": {"sharding": "zero2"},
        "zero3": {"sharding": "zero3"},
        "replicas": {"sharding": "zero3", "replicas": 2},
        "offloaded": {"sharding": "zero3", "offload": "cpu"},
        "whole": {"sharding": "zero3", "sharding_units": "model"},
        "checkpointed": {"sharding": "zero3", "checkpointing": "full"},
        "ddp, twice": {"accumulation": 2},
        "zero1, twice": {"sharding": "zero1", "accumulation": 2},
        "zero2, twice": {"sharding": "zero2", "accumulation": 2},
        "zero2, synced once": {"sharding": "zero2", "accumulation": 2, "no_sync": True},
        "zero3, synced once": {"sharding": "zero3", "accumulation": 2, "no_sync": True},
        "operations": {"sharding": "zero3", "checkpointing": "operations"},
        "ends": {"sharding": "zero3", "sharding_units": "block+ends"},
        "ends, in chunks": {"sharding": "zero3", "sharding_units": "block+ends", "loss": "chunked", "loss_chunks": 3},
        "ends, synced once": {"sharding": "zero2", "sharding_units": "block+ends", "accumulation": 2, "no_sync": True},
    }.items()
}
#: In 16 bits a CPU keeps other statistics than CUDA, and sums round: their losses are compared, coarsely, not their bytes.
SHORT = {
    f"{sharding}, {precision}": SETUP.replace(gpus=GPUS, sharding=sharding, precision=precision, optimizer="adamw")
    for sharding in SHARDINGS
    for precision in ("bf16-mixed", "bf16-master", "bf16")
}


def tokens(step: int, accumulation: int):
    """All GPUs' tokens and targets of a step: (micro-batch, GPU, B, S) each."""
    generator = torch.Generator().manual_seed(step)
    shape = accumulation, GPUS, SETUP.batch, SETUP.sequence + 1
    drawn = torch.randint(MODEL.vocabulary, shape, generator=generator)
    return drawn[..., :-1], drawn[..., 1:]


def model(setup):
    """The model that `setup` trains: where the ends are units of their own, their weights are not tied."""
    return MODEL.replace(tied=setup.sharding_units != "block+ends")


def train(setup, share, steps=STEPS, model=MODEL):
    """The losses, and the live bytes at each moment of a steady step and at its peak.

    These are the least of several steps: Gloo's threads may let go of what they have sent a moment late.

    Args:
        share: of all GPUs' batches, what this process takes.
    """
    torch.manual_seed(0)
    meter = Cpu(torch.device("cpu"), None)
    with meter.watching():
        trainer = Trainer(GPT(model, setup).initialize(), setup)
        inner = trainer.optimizer
        while not isinstance(inner, torch.optim.Optimizer):
            inner = inner.optimizer
        inner.param_groups[0]["lr"] = 0.1 if setup.optimizer == "momentum" else 0.003
        counts, losses = [], []
        for step in range(steps):
            loss, count = one(trainer, meter, *tokens(step, setup.accumulation), share)
            losses.append(loss)
            counts.append(count)
    return losses, {moment: min(count[moment] for count in counts[1:]) for moment in counts[0]}


def one(trainer, meter, inputs, targets, share):
    """The loss of a step, and its live bytes, those of everybody's tokens left out."""
    everybodys = inputs.untyped_storage().nbytes()
    batches = ((share(i).clone(), share(t).clone()) for i, t in zip(inputs, targets, strict=True))
    meter.restart()
    count = {"rest": meter.now()["allocated"] - everybodys}

    def at(moment):
        count[moment] = meter.now()["allocated"] - everybodys

    loss = trainer.step(lambda: next(batches), at).item()
    return loss, count | {"peak": meter.most()["allocated"] - everybodys}


def seen(rank, gpus, *names):
    """By the name of a setup, what `train` gives on this process's own batches."""
    setups = {name: (SETUPS | SHORT)[name] for name in names}
    return {name: train(setup, lambda all: all[rank], model=model(setup)) for name, setup in setups.items()}
