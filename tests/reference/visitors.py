"""The losses of one of some processes that divide experts, and maybe each expert's matrices."""

import torch

import everybyte as eb
from everybyte.reference import Llama
from everybyte.reference.mesh.trainer import MeshTrainer, held
from everybyte.reference.splitting import divided_loss
from everybyte.reference.step import Trainer

STEPS = 4
MODEL = eb.Model(
    name="small mixture", layers=2, width=16, heads=2, kv_heads=1, head_width=8, vocabulary=101, learned_positions=0, ffn_width=24,
    gated=True, fused=False, qkv_bias=False, out_bias=False, ffn_bias=False, norm="rmsnorm", tied=False, experts=8,
    experts_per_token=2, expert_width=24,
)  # fmt: skip
#: Of heads and a vocabulary that two GPUs can halve.
EVEN = MODEL.replace(kv_heads=2, vocabulary=102)
#: The batch is a GPU's own, or of GPUs that divide matrices their own.
SETUP = eb.Setup(batch=2, sequence=16, optimizer="momentum")


def setups(gpus):
    """Name -> (model, setup)."""
    mesh, pairs = {"gpus": gpus, "mesh": eb.Mesh(expert=gpus)}, {"gpus": gpus, "mesh": eb.Mesh(expert=2)}
    found = {
        "plain": (MODEL, SETUP.replace(**mesh)),
        "twice, checkpointed": (MODEL, SETUP.replace(**mesh, accumulation=2, checkpointing="full")),
        "sharded": (MODEL, SETUP.replace(**mesh, sharding="zero3", accumulation=2)),
        "states divided": (MODEL, SETUP.replace(**mesh, sharding="zero1", accumulation=2)),
    }
    if gpus == 2:
        return found
    halved = {"tensor": 2, "expert": 2}
    if gpus == 8:
        return {
            "halves of pairs, sharded by rows": (
                EVEN.replace(experts=2),
                SETUP.replace(gpus=8, mesh=eb.Mesh(**halved), sharding="zero3"),
            ),
            "halves of pairs, sharded": (EVEN, SETUP.replace(gpus=8, mesh=eb.Mesh(**halved), sharding="zero2")),
        }
    few = MODEL.replace(experts=2)  # fewer than GPUs: FSDP cuts their rows
    return found | {
        "in pairs, averaged": (MODEL, SETUP.replace(**pairs)),
        "in pairs, states divided": (MODEL, SETUP.replace(**pairs, sharding="zero1")),
        "in pairs, sharded": (MODEL, SETUP.replace(**pairs, sharding="zero3", accumulation=2, no_sync=True)),
        "in pairs, sharded by rows": (few, SETUP.replace(**pairs, sharding="zero2", checkpointing="full")),
        "halves of pairs": (
            EVEN,
            SETUP.replace(gpus=4, mesh=eb.Mesh(**halved), sharding="zero3", accumulation=2),
        ),
        "halves of pairs, whole tokens, a whole loss": (
            EVEN,
            SETUP.replace(
                gpus=4,
                mesh=eb.Mesh(**halved, sequence_parallel=False, loss_parallel=False),
                sharding="zero2",
                checkpointing="full",
            ),
        ),
    }


def train(model, setup, module, kind, share, drawn):
    """The losses of some steps. `drawn`: sequences in each micro-batch of all GPUs."""
    trainer = kind(module, setup)
    getattr(trainer.optimizer, "optimizer", trainer.optimizer).param_groups[0]["lr"] = 0.5  # ZeRO-1 has it inside
    losses = []
    for step in range(STEPS):
        generator = torch.Generator().manual_seed(step)
        shape = setup.accumulation, drawn, setup.sequence + 1
        given = iter(torch.randint(model.vocabulary, shape, generator=generator))
        loss = trainer.step(lambda given=given: share(next(given)))
        losses.append(getattr(loss, "full_tensor", lambda loss=loss: loss)().item())
    return losses


def of_one(setup):
    """The setup of one process."""
    return setup.replace(gpus=1, mesh=eb.Mesh(), sharding="none", no_sync=False)


def whole(model, setup):
    """The model that one process trains."""
    torch.manual_seed(0)
    return Llama(model, of_one(setup))


def divided(model, setup, rank):
    """The same, with the experts of one GPU."""
    module, state = held(model, setup), whole(model, setup).state_dict()
    for name in [name for name in state if name.endswith(("mlp.gate_up", "mlp.down"))]:
        parts = state.pop(name).chunk(setup.mesh.expert)
        state[name.replace("mlp.", "mlp.own.")] = parts[setup.sharer(rank) % setup.mesh.expert]
    module.load_state_dict(state)
    return module


def seen(rank, gpus, *names):
    """By the name of a setup, the losses."""
    found = {}
    for name in names:
        model, setup = setups(gpus)[name]

        def share(tokens, setup=setup):
            mine = tokens.chunk(setup.data)[setup.sharer(rank)]
            return mine[:, :-1].clone(), mine[:, 1:].clone()

        module = divided(model, setup, rank)
        with divided_loss(setup):
            found[name] = train(model, setup, module, MeshTrainer, share, setup.data * setup.batch)
    return found


def alone(model, setup):
    """The losses of one process on everything."""
    one = of_one(setup).replace(batch=setup.batch * setup.data)
    return train(
        model,
        one,
        whole(model, setup),
        Trainer,
        lambda tokens: (tokens[:, :-1].clone(), tokens[:, 1:].clone()),
        one.batch,
    )
