"""What one of several processes sees that train a small model, its matrices divided."""

import torch

import everybyte as eb
from everybyte.lab.meters import Cpu
from everybyte.reference import FAMILIES, Trainer
from everybyte.reference.splitting import divided_loss

STEPS = 5
GPT = eb.Model(name="gpt", layers=2, width=24, heads=4, vocabulary=96, positions=16)
LLAMA = eb.Model(
    name="llama", layers=2, width=20, heads=4, kv_heads=2, head_width=6, vocabulary=96, learned_positions=0, gated=True,
    fused=False, tied=False, ffn_width=28, activation="silu", qkv_bias=False, out_bias=False, ffn_bias=False, norm="rmsnorm",
)  # fmt: skip
MIXTURE = LLAMA.replace(name="mixture", experts=4, experts_per_token=2, expert_width=24)
SETUP = eb.Setup(batch=2, sequence=16, attention="eager")
#: Name -> (model, setup). The batch is that of a group of GPUs that divide the model.
RUNS = {
    "gpt": (GPT, SETUP.replace(gpus=2, mesh=eb.Mesh(tensor=2))),
    "gpt, whole tokens": (
        GPT.replace(fused=False, tied=False),
        SETUP.replace(gpus=2, mesh=eb.Mesh(tensor=2, sequence_parallel=False, loss_parallel=False)),
    ),
    "llama": (LLAMA, SETUP.replace(gpus=2, mesh=eb.Mesh(tensor=2), accumulation=2, checkpointing="full")),
    "qwen": (
        LLAMA.replace(qk_norm=True, fused=True, tied=True),
        SETUP.replace(gpus=2, mesh=eb.Mesh(tensor=2, loss_parallel=False)),
    ),
    "llama, operations": (LLAMA, SETUP.replace(gpus=2, mesh=eb.Mesh(tensor=2), checkpointing="operations")),
    "mixture": (MIXTURE, SETUP.replace(gpus=2, mesh=eb.Mesh(tensor=2))),
    "mixture, whole tokens": (
        MIXTURE,
        SETUP.replace(gpus=2, mesh=eb.Mesh(tensor=2, sequence_parallel=False), accumulation=2, checkpointing="full"),
    ),
    "gpt, data": (GPT, SETUP.replace(gpus=4, sharding="zero3", mesh=eb.Mesh(tensor=2))),
    "llama, data": (LLAMA, SETUP.replace(gpus=4, sharding="zero2", mesh=eb.Mesh(tensor=2, sequence_parallel=False))),
    "gpt, data, synced once": (
        GPT, SETUP.replace(gpus=4, sharding="zero3", mesh=eb.Mesh(tensor=2), accumulation=2, no_sync=True, checkpointing="operations")
    ),
    "mixture, data": (MIXTURE, SETUP.replace(gpus=4, sharding="zero3", mesh=eb.Mesh(tensor=2))),
}  # fmt: skip
PROCESSES = 4


def tokens(setup, groups, step):
    """Tokens and targets of a step: (micro-batch, group, B, S) each."""
    generator = torch.Generator().manual_seed(step)
    shape = setup.accumulation, groups, SETUP.batch, SETUP.sequence + 1
    drawn = torch.randint(GPT.vocabulary, shape, generator=generator)
    return drawn[..., :-1], drawn[..., 1:]


def make(model, setup):
    """The model, alike in every process."""
    torch.manual_seed(0)
    module = FAMILIES[model.family](model, setup)
    for weight in module.parameters():
        torch.nn.init.normal_(weight, 1.0 if weight.dim() == 1 else 0.0, 0.1)
    return module


def train(model, setup, groups, share):
    """The losses; and the live bytes at each moment of a steady step, and what each gradient was, by its name.

    The bytes are the least of several steps: Gloo's threads may let go of what they have sent a moment late.

    Args:
        groups: of GPUs that divide a batch each. share: of all groups' batches, what this process takes.
    """
    meter, losses, counts, gradients = Cpu(torch.device("cpu"), None), [], [], {}
    with meter.watching(), divided_loss(setup):
        trainer = Trainer(make(model, setup), setup)
        for step in range(STEPS):
            inputs, targets = tokens(setup, groups, step)
            batches = ((share(i).clone(), share(t).clone()) for i, t in zip(inputs, targets, strict=True))
            everybodys = inputs.untyped_storage().nbytes()
            meter.restart()
            counts.append({"rest": meter.now()["allocated"] - everybodys})

            def at(moment, count=counts[-1], everybodys=everybodys):
                count[moment] = meter.now()["allocated"] - everybodys
                if moment == "after_backward":
                    for name, weight in trainer.module.named_parameters():
                        local = getattr(weight.grad, "_local_tensor", weight.grad)
                        if local is not None:  # FSDP's own, whole, until the last batch
                            gradients[name] = list(local.shape)

            loss = trainer.step(lambda batches=batches: next(batches), at)
            losses.append(getattr(loss, "full_tensor", lambda loss=loss: loss)().item())
    return losses, {moment: min(count[moment] for count in counts[1:]) for moment in counts[0]}, gradients


def seen(rank, processes, *names):
    """By the name of a run, what `train` gives on the batches of this process's group."""
    found = {}
    for name in names:
        model, setup = RUNS[name]
        group = setup.mesh.rank(rank, setup.data)["data"]
        found[name] = train(model, setup, setup.data, lambda all, group=group: all[group])
    return found
