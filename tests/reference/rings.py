"""The losses of one of some processes that share every sequence.

PyTorch sends the CPU's attention kernel around no ring. The ring itself is written for any kernel, so here it is given that one.
"""

from contextlib import contextmanager
from unittest import mock

import torch
from torch.distributed.tensor import DTensor, Shard
from torch.distributed.tensor.experimental._context_parallel import _attention as ring

import everybyte as eb
from everybyte.reference import FAMILIES
from everybyte.reference.mesh.context import placed
from everybyte.reference.mesh.trainer import MeshTrainer
from everybyte.reference.splitting import divided_loss
from everybyte.reference.step import Trainer

STEPS = 4
MODELS = {
    "gpt": eb.Model(name="small", layers=2, width=16, heads=2, vocabulary=101, positions=256),
    "llama": eb.Model(
        name="small", layers=2, width=16, heads=2, kv_heads=2, head_width=8, vocabulary=101, learned_positions=0, ffn_width=24,
        gated=True, fused=False, qkv_bias=False, out_bias=False, ffn_bias=False, norm="rmsnorm", tied=False,
    ),
}  # fmt: skip
#: Of a vocabulary that two GPUs can halve.
MODELS["even"] = MODELS["llama"].replace(vocabulary=102)
#: Of fewer key heads than four GPUs.
MODELS["few keys"] = MODELS["llama"].replace(heads=4, width=32)
MODELS["halved"] = MODELS["even"].replace(heads=4, kv_heads=4, width=32)
#: The batch is a ring's own.
SETUP = eb.Setup(batch=2, sequence=16, optimizer="momentum")
aten = torch.ops.aten


def setups(gpus):
    """Name -> (model, setup)."""
    return {
        f"{family}, {name}": (MODELS[family], SETUP.replace(gpus=gpus, **changes))
        for family, name, size, changes in CASES
        if size == gpus
    }


def _ring(parts, rotation="all-gather"):
    return {"sequence": 64 * parts, "mesh": eb.Mesh(context=parts, rotation=rotation)}


def _halved(parts, rotation="all-gather", **more):
    """The same rings twice: each of two GPUs has half of every matrix."""
    return {"sequence": 64 * parts, "mesh": eb.Mesh(context=parts, tensor=2, rotation=rotation, **more)}


#: (model, name, processes, what the setup says).
CASES = [
    ("gpt", "one ring of 2", 2, _ring(2)),
    ("llama", "one ring of 2", 2, _ring(2, "all-to-all") | {"sharding": "zero3", "checkpointing": "full"}),
    ("gpt", "zero1", 2, _ring(2, "all-to-all") | {"sharding": "zero1", "checkpointing": "selective"}),
    ("gpt", "one ring of 4", 4, _ring(4, "all-to-all")),
    ("llama", "one ring of 4", 4, _ring(4) | {"sharding": "zero3"}),
    ("even", "two rings of 2 that halve matrices", 4, _halved(2, "all-to-all") | {"sharding": "zero3"}),
    (
        "even",
        "the same, whole tokens, a whole loss",
        4,
        _halved(2, sequence_parallel=False, loss_parallel=False) | {"sharding": "zero2"},
    ),
    ("gpt", "heads for tokens", 2, _ring(2, "ulysses")),
    ("llama", "heads for tokens, zero3", 2, _ring(2, "ulysses") | {"sharding": "zero3", "checkpointing": "full"}),
    ("few keys", "heads for tokens, keys on several", 4, _ring(4, "ulysses") | {"checkpointing": "selective"}),
    ("halved", "heads for tokens, of halved matrices", 4, _halved(2, "ulysses") | {"sharding": "zero3"}),
    ("llama", "two rings of 2", 4, _ring(2) | {"batch": 1, "sharding": "zero3", "accumulation": 2, "no_sync": True}),
]


@contextmanager
def on_cpus():
    """Within it, the CPU's kernel goes around the ring."""
    forward, backward = (
        aten._scaled_dot_product_flash_attention_for_cpu.default,
        aten._scaled_dot_product_flash_attention_for_cpu_backward.default,
    )

    def handler(op, args, kwargs):
        mesh = args[0].device_mesh
        local = [x.to_local() if isinstance(x, DTensor) else x for x in args]
        if op is forward:
            q, k, v, _, causal = local
            made = ring._templated_ring_attention(mesh.get_group(), 2, op, q, k, v, is_causal=causal)
        else:
            grad, q, k, v, out, lse, dropout, causal = local
            made = ring._templated_ring_attention_backward(
                mesh.get_group(), 2, op, grad, "grad_out", q, k, v, out, lse, is_causal=causal, dropout_p=dropout
            )
        return tuple(DTensor.from_local(x, mesh, [Shard(2)], run_check=False) for x in made)

    with mock.patch.dict(ring.custom_ops, {forward: handler, backward: handler}):
        yield


def batches(step, model, setup):
    """Of each micro-batch all tokens and targets: (data, B, S) each."""
    generator = torch.Generator().manual_seed(step)
    for _ in range(setup.accumulation):
        drawn = torch.randint(model.vocabulary, (setup.data, setup.batch, setup.sequence + 1), generator=generator)
        yield drawn[..., :-1], drawn[..., 1:]


def train(model, setup, make, kind, share, drawn=None):
    """The losses of some steps. `drawn`: whose batches, where they are another's."""
    torch.manual_seed(0)
    module = make(model, setup)
    if hasattr(module, "initialize"):
        module.initialize()
    trainer = kind(module, setup)
    inner = trainer.optimizer
    while not isinstance(inner, torch.optim.Optimizer):
        inner = inner.optimizer
    inner.param_groups[0]["lr"] = 0.1
    losses = []
    for step in range(STEPS):
        given = batches(step, model, drawn or setup)
        loss = trainer.step(lambda given=given: share(*next(given)))
        losses.append(getattr(loss, "full_tensor", lambda loss=loss: loss)().item())
    return losses


def seen(rank, gpus):
    """By the name of a setup, the losses."""
    found = {}
    for name, (model, setup) in setups(gpus).items():
        place = setup.mesh.rank(rank, setup.data)["data"]

        def share(tokens, targets, place=place):
            return placed(lambda: (tokens[place].clone(), targets[place].clone()))()

        with on_cpus(), divided_loss(setup):
            found[name] = train(model, setup, FAMILIES[model.family], MeshTrainer, share)
    return found


def alone(model, setup):
    """The losses of one process on everything."""
    from everybyte.reference import FAMILIES

    whole = setup.replace(gpus=1, sharding="none", no_sync=False, mesh=eb.Mesh(), batch=setup.batch * setup.data)

    def share(tokens, targets):
        return tokens.flatten(0, 1).clone(), targets.flatten(0, 1).clone()

    return train(model, whole, FAMILIES[model.family], Trainer, share, setup)
