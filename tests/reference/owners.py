"""What one of several processes sees that train a small GPT by Muon together, and what a process alone sees."""

import torch

import everybyte as eb
from everybyte.ask.choices import CHOICES
from everybyte.reference import GPT
from everybyte.reference.loops.running import trainer_of
from everybyte.reference.saving import muon

#: Three matrices of each shape, and rows that two do not share evenly.
MODEL = eb.Model(name="small", layers=3, width=20, heads=2, vocabulary=101, positions=24, ffn_width=25)
SETUP = eb.Setup(batch=2, sequence=16, attention="eager", optimizer="muon")
WAYS = CHOICES["muon_gather"]


def train(setup, steps=3):
    """The losses of some steps on the same tokens, and how many matrices were made orthogonal in each."""
    torch.manual_seed(0)
    trainer, count, made = trainer_of(GPT(MODEL, setup).initialize(), setup), [], muon._zeropower_via_newtonschulz

    def counted(matrix, *rest):
        count.append(matrix.any().item())
        return made(matrix, *rest)

    muon._zeropower_via_newtonschulz = counted
    try:
        torch.manual_seed(1)
        tokens = torch.randint(MODEL.vocabulary, (SETUP.batch, SETUP.sequence + 1))
        inputs, targets = tokens[:, :-1].clone(), tokens[:, 1:].clone()
        losses = [trainer.step(lambda: (inputs, targets)).item() for _ in range(steps)]
    finally:
        muon._zeropower_via_newtonschulz = made
    return losses, sum(count) // steps


def seen(rank, gpus, *names):
    """By the way of gathering, what `train` gives."""
    return {name: train(SETUP.replace(gpus=gpus, sharding="zero3", muon_gather=name)) for name in names}
