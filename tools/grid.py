"""The training steps that the witnesses are held to, byte for byte: the tests take a slice, `make bench` all of it."""

from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import replace
from functools import wraps
from itertools import product
from random import Random
from typing import get_args

from drawn import (
    CHECKPOINTINGS,
    OFFLOADS,
    SMALL,
    WORLDS,
    any_gpt,
    any_llama,
    any_rank,
    any_setup,
    any_stages,
    derived_rank,
)
from witnesses import BLOCKS

import everybyte as eb
from everybyte.ask.choices import (
    ATTENTIONS,
    BUCKETS,
    COMMON_OPTIMIZERS,
    LIBRARIES,
    LIBRARY_OPTIMIZERS,
    LOOPS,
    LOSSES,
    MASTER_GRADIENTS,
    OPTIMIZER_IMPLS,
    OPTIMIZERS,
    PRECISIONS,
    SHARDING_UNITS,
    SHARDINGS,
    TENSOR_OPTIMIZERS,
)
from everybyte.ask.mesh import Schedule, worst_routing
from everybyte.catalog.weights import linears
from everybyte.rules import PIPELINE, broken
from everybyte.theory.budget import not_derived

GPT2_SIZES = ("gpt2", "gpt2-medium", "gpt2-large", "gpt2-xl")
#: (batch, sequence): a round one, and one that no power of two divides.
SHAPES = ((8, 1024), (3, 1000))


def states(
    models: Iterable[eb.Model] = (),
    shapes=SHAPES,
    precisions=tuple(PRECISIONS),
    optimizers=COMMON_OPTIMIZERS,
    impls=OPTIMIZER_IMPLS,
    attentions=ATTENTIONS,
) -> Iterator[tuple[eb.Model, eb.Setup]]:
    """Every choice that decides what stands at rest and after the step; by default of the four GPT-2 sizes."""
    models = list(models) or [eb.model(name) for name in GPT2_SIZES]
    for model, (batch, sequence), precision, optimizer, impl, attention in product(
        models, shapes, precisions, optimizers, impls, attentions
    ):
        for gradients in MASTER_GRADIENTS if precision == "bf16-master" else ("bf16",):
            yield model, eb.Setup(
                batch=batch, sequence=sequence, precision=precision, optimizer=optimizer, optimizer_impl=impl,
                attention=attention, master_gradients=gradients,
            )  # fmt: skip


def steps(
    models: Iterable[eb.Model] = (), shapes=SHAPES, dropouts=(0.0, 0.1), losses=LOSSES, **choices
) -> Iterator[tuple[eb.Model, eb.Setup]]:
    """Every choice that decides what a step takes: those of `states`, dropout and the loss."""
    for (model, setup), dropout, loss in product(states(models, shapes, **choices), dropouts, losses):
        yield model, setup.replace(dropout=dropout, loss=loss)


def anything(seed: int) -> tuple[eb.Model, eb.Setup, int]:
    """A small model of odd sizes, a setup and a block, drawn at random but always the same for one seed."""
    draw = Random(seed).choice
    heads, width, yes = draw([1, 2, 3, 4]), draw([4, 8, 12, 16, 20, 64]), [True, True, False]
    model = eb.Model(
        name=f"seed {seed}", layers=draw([1, 2, 3]), width=heads * width, heads=heads, vocabulary=draw([11, 101, 1000, 5003]),
        positions=draw([33, 64]), ffn_width=draw([None, None, 7 * heads]), tied=draw(yes), norm_bias=draw(yes),
        qkv_bias=draw(yes), out_bias=draw(yes), ffn_bias=draw(yes),
    )  # fmt: skip
    precision = draw(list(PRECISIONS))
    setup = eb.Setup(
        batch=draw([1, 2, 3, 8]), sequence=draw([1, 7, 32, 33]), precision=precision, optimizer=draw(COMMON_OPTIMIZERS),
        optimizer_impl=draw(OPTIMIZER_IMPLS), attention=draw(ATTENTIONS), dropout=draw([0.0, 0.1]),
        master_gradients=draw(MASTER_GRADIENTS) if precision == "bf16-master" else "bf16",
    )  # fmt: skip
    return model, setup, draw(BLOCKS)


def saving(seed: int, chunks: bool = True) -> tuple[eb.Model, eb.Setup, int]:
    """`anything(seed)` with more blocks and with switches that save memory: checkpointing, accumulation, the chunked loss."""
    model, setup, block = anything(seed)
    draw = Random(-1 - seed).choice
    model = model.replace(layers=draw([1, 2, 3, 4, 5, 7]))
    changes = {"checkpointing": draw(CHECKPOINTINGS), "accumulation": draw([1, 1, 2, 3])}
    if changes["checkpointing"] == "every-k":
        changes["checkpoint_every"] = draw(range(1, model.layers + 1))
    if chunks and draw([True, False]):
        changes |= {"loss": "chunked", "loss_chunks": draw(range(1, min(9, setup.batch * setup.sequence) + 1))}
    return model, setup.replace(**changes), block


def llama(seed: int) -> tuple[eb.Model, eb.Setup, int]:
    """`saving(seed)`, but of a Llama: turned positions, grouped heads of a width of their own, three matrices in the MLP."""
    model, setup, block = saving(seed)
    draw = Random(2 * 10**6 + seed).choice
    kv_heads, groups = draw([1, 1, 2, 3]), draw([1, 1, 2, 3])
    model = eb.Model(
        name=f"llama {seed}", layers=model.layers, width=draw([1, 5, 8, 24, 36, 64]), heads=groups * kv_heads, kv_heads=kv_heads,
        head_width=draw([2, 4, 6, 8, 12, 20, 64]), vocabulary=model.vocabulary, positions=draw([0, 33]), learned_positions=0,
        ffn_width=draw([1, 7, 24, 56, 88]), gated=True, fused=False, tied=draw([True, False]), qkv_bias=draw([True, False]),
        out_bias=False, ffn_bias=False, norm="rmsnorm",
    )  # fmt: skip
    part = Random(5 * 10**6 + seed).choice([100, 100, 50, 25])  # of each head turns
    if model.head_width * part // 100 % 2 == 0 < model.head_width * part // 100:
        model = model.replace(rotary_percent=part)
    narrow = model.head_width % 4 and setup.dtypes.compute == "fp32"  # no kernel takes these
    return model, setup.replace(dropout=0.0, attention="eager" if narrow else setup.attention), block


def shared(seed: int) -> tuple[eb.Model, eb.Setup, int]:
    """`saving(seed)` on several GPUs: DDP, or a stage of ZeRO."""
    model, setup, block = saving(seed)
    draw = Random(10**6 + seed).choice
    sharding = draw(SHARDINGS)
    changes = {"sharding": sharding, "gpus": draw(WORLDS), "master_gradients": "bf16"}
    if sharding != "none" and setup.precision == "fp16-mixed":
        changes["precision"] = "bf16-mixed"
    if sharding == "none":
        changes |= {"gpus": draw(WORLDS[1:]), "buckets": draw(BUCKETS)}
    if sharding in ("zero2", "zero3"):
        changes["sharding_units"] = draw(SHARDING_UNITS)
        if draw([True, False, False]):
            changes |= {"gpus": 2 * changes["gpus"], "replicas": 2}
        changes["offload"] = draw(OFFLOADS)
    return model, setup.replace(**changes), block


#: Ways around a ring.
RINGS = ("all-gather", "all-to-all")


def _again(salt: int):
    """Makes of what draws once, and raises ValueError or gives nothing where that does not go together, what draws until it does.

    It takes a seed, and gives always the same for one. salt: sets its draws apart from the others'.
    """

    def until(once):
        @wraps(once)
        def drawn(seed: int):
            draw = Random(salt * 10**6 + seed).choice
            while True:
                with suppress(ValueError):
                    if found := once(seed, draw):
                        return found

        return drawn

    return until


@_again(3)
def everything(seed: int, draw) -> tuple[eb.Model, eb.Setup, int]:
    """Any architecture of the two families, any way to save memory, any way to share it: small, odd."""
    model = draw([any_gpt, any_llama])(f"everything {seed}", draw)
    setup = any_setup(model, draw)
    setup.check_model(model)
    return model, setup, draw(BLOCKS)


def one_function(seed: int) -> tuple[eb.Model, eb.Setup, int]:
    """`everything` with head and loss in PyTorch's one function, where the two go together: always the same for one seed."""
    for number in range(1000 * seed, 1000 * (seed + 1)):
        model, setup, block = everything(number)
        try:
            setup = setup.replace(loss="linear-cross-entropy", loss_chunks=eb.Setup().loss_chunks)
            setup.check_model(model)
        except ValueError:
            continue
        return model, setup, block
    raise AssertionError(seed)


@_again(4)
def adapted(seed: int, draw) -> tuple[eb.Model, eb.Setup, int]:
    """Any architecture of the two families with adapters, any way to save memory on one GPU."""
    model = draw([any_gpt, any_llama])(f"adapted {seed}", draw)
    names = [path.rpartition(".")[2] for path, _ in linears(model)]
    targets = draw(["all-linear", tuple(name for name in names if draw([True, False])), (draw(names),)])
    setup = any_setup(model, draw).replace(sharding="none", gpus=1, sharding_units="block", replicas=1, offload="none",
                                            no_sync=False, buckets="copies")  # fmt: skip
    rank, dtype, base = draw([1, 2, 3, 8]), draw(["fp32", "bf16"]), draw([None, "bf16"])
    lora = eb.Lora(min(rank, model.width), targets, dtype, base, draw([0.0, 0.05]))
    setup = setup.replace(adapters=lora, quantization=draw(["none", "none", "nf4"]))
    setup.check_model(model)
    return model, setup, draw(BLOCKS)


def apart(seed: int) -> tuple[eb.Model, eb.Setup, int]:
    """`adapted` on several GPUs, by DDP or a stage of ZeRO: always the same for one seed."""
    draw = Random(12 * 10**6 + seed).choice
    for number in range(1000 * seed, 1000 * (seed + 1)):  # what does not go together is drawn again
        model, setup, block = adapted(number)
        sharding = draw(SHARDINGS)
        fsdp = sharding in ("zero2", "zero3")
        gpus = draw(WORLDS[sharding == "none" :])
        changes = {"sharding": sharding, "gpus": gpus, "master_gradients": "bf16"}
        changes |= {"buckets": draw(BUCKETS)} if sharding == "none" else {}
        changes |= {"sharding_units": draw(SHARDING_UNITS), "no_sync": draw([True, False])} if fsdp else {}
        changes |= {"gpus": 2 * gpus, "replicas": 2} if fsdp and draw([True, False, False]) else {}
        changes |= {"offload": draw(OFFLOADS)} if fsdp else {}
        try:
            changes["no_sync"] = changes.get("no_sync", False) and setup.accumulation > 1
            setup = setup.replace(**changes)
            setup.check_model(model)
            return model, setup, block
        except ValueError:
            continue
    raise AssertionError(seed)


@_again(13)
def lean(seed: int, draw) -> tuple[eb.Model, eb.Setup, int] | None:
    """A stage of ZeRO, beside adapters or other dimensions of a mesh or neither, with an optimizer of small states, and one of the
    GPUs."""
    kinds = [shared, shared, shared, apart, visited, ring, divided, piped, staged, crossed]
    kind = draw(kinds)
    model, setup, rank = kind(draw(range(10**5)))
    setup = setup.replace(optimizer=draw(SMALL))
    setup = setup.replace(optimizer_impl=draw(OPTIMIZERS[setup.optimizer].impls))
    setup.check_model(model)
    if setup.sharding != "none" and not_derived(model, setup) is None:
        return model, setup, 0 if kind in (shared, apart) else rank


@_again(15)
def spared(seed: int, draw) -> tuple[eb.Model, eb.Setup, int] | None:
    """One GPU of any architecture, any way to save memory and to share it, beside one that `everything` does not draw."""
    alone, meshes = [everything, everything, adapted, apart, one_function], [ring, divided, piped, staged, crossed]
    way, kind = draw(list(SPARED)), draw([*alone, *alone, *meshes])
    model, setup, rank = kind(draw(range(10**6)))
    setup = setup.replace(**SPARED[way](setup, draw))
    setup.check_model(model)
    setup.check_rank("grid", model, rank if kind in meshes else 0)
    if not_derived(model, setup) is None:
        return model, setup, rank if kind in meshes else 0


def _in_backward(setup, draw):
    alone = {"gpus": 1, "buckets": "copies", "sharding": "none"} if setup.sharding in ("none", "zero1") else {}
    narrow = {"precision": draw(["bf16", "bf16-mixed", "fp32"]), "master_gradients": "bf16"}
    narrow = narrow if setup.dtypes.loss_scaling or setup.dtypes.master else {}
    changes = {"accumulation": 1, "no_sync": False, "offload": "none", "optimizer_in_backward": True}
    return changes | alone | narrow


def _one_in_k(setup, draw):
    return {"checkpointing": "one-in-k", "checkpoint_every": draw([1, 2, 3, 4])}


def _resharded(setup, draw):
    how = draw(["root", "ends", "ends", "not-last", "group"])
    few = {"resharding_gpus": draw([2, 2, 4, 8])} if how == "group" else {}
    sharded = few | {"sharding": "zero3", "resharding": how, "buckets": "copies", "master_gradients": "bf16"}
    sharded |= {"sharding_units": "block+ends"} if how == "ends" else {}
    return sharded | ({"precision": "bf16-mixed"} if setup.dtypes.loss_scaling else {})


def _on_host(setup, draw):
    return {"offload": "activations"}


def _in_buffers(setup, draw):
    fields = {
        "precision": "bf16-megatron",
        "sharding": "zero1",
        "gpus": draw([1, 2, 3, 8, 48]),
        "master_gradients": "bf16",
    }
    fields |= {"optimizer": draw(LIBRARY_OPTIMIZERS), "optimizer_impl": "fused", "buckets": "copies", "no_sync": False}
    return fields | {
        "adapters": None,
        "quantization": "none",
        "offload": "none",
        "replicas": 1,
        "sharding_units": "block",
    }


#: Fields that they change.
SPARED = {
    "resharding": _resharded, "activations on the host": _on_host, "in buffers": _in_buffers,
    "optimizer in backward": _in_backward, "one in k": _one_in_k,
    "second products": lambda *_: {"checkpointing": "second-products", "checkpoint_every": 2},
}  # fmt: skip


@_again(16)
def flat(seed: int, draw) -> tuple[eb.Model, eb.Setup, int]:
    """`everything` under FSDP1, whose units are flat, in any loop that clips nothing."""
    model, setup, block = everything(draw(range(10**6)))
    usual = ("replicas", "sharding_units", "offload", "buckets", "master_gradients")
    fields = {name: getattr(eb.Setup(), name) for name in usual} | {"sharding": draw(["zero2", "zero3"])}
    fields |= {"fsdp_version": 1, "gpus": draw([2, 3, 5, 7, 8, 64]), "optimizer": draw(COMMON_OPTIMIZERS)}
    fields |= {"no_sync": setup.accumulation > 1 and draw([True, False])}
    fields |= {"precision": draw(["fp32", "bf16-mixed", "bf16"])}
    fields |= {"outputs": draw(["dropped", "dropped", "kept"]), "zero_grad": draw(["end", "end", "start", "backward"])}
    setup = setup.replace(**fields)
    setup.check_model(model)
    return model, setup, block


@_again(17)
def owned(seed: int, draw) -> tuple[eb.Model, eb.Setup, int]:
    """`everything` under FSDP with Muon, whose matrices are each made orthogonal on one GPU, in any loop."""
    model, setup, block = everything(draw(range(10**6)))
    gpus, replicas = draw([(2, 1), (3, 1), (4, 1), (5, 1), (7, 1), (8, 1), (8, 2)])
    setup = setup.replace(
        optimizer="muon", optimizer_impl=draw(OPTIMIZERS["muon"].impls), muon_gather=draw(["owner", "all-to-all"]),
        sharding=draw(["zero2", "zero3"]), gpus=gpus, replicas=replicas, buckets="copies", offload=draw(["none", "none", "activations"]),
        precision=draw(["fp32", "bf16", "bf16-mixed", "bf16-master"]), master_gradients="bf16", no_sync=False,
        loop=draw(["plain", "plain", *LOOPS]),
    )  # fmt: skip
    setup.check_model(model)
    return model, setup, block


@_again(9)
def library(seed: int, draw) -> tuple[eb.Model, eb.Setup, int]:
    """Any architecture of the two families in a library's own loop, any way to save memory."""
    model = draw([any_gpt, any_llama])(f"library {seed}", draw)
    setup = any_setup(model, draw).replace(sharding="none", gpus=1, sharding_units="block", replicas=1, offload="none",
                                            no_sync=False, buckets="copies", master_gradients="bf16")  # fmt: skip
    setup = setup.replace(optimizer=draw(LIBRARY_OPTIMIZERS), optimizer_impl="fused", precision=draw(list(LIBRARIES)))
    setup.check_model(model)
    return model, setup, draw(BLOCKS)


@_again(5)
def piped(seed: int, draw) -> tuple[eb.Model, eb.Setup, int] | None:
    """One GPU, by its rank, of a pipeline over any architecture of the two families."""
    model = draw([any_gpt, any_llama])(f"piped {seed}", draw)
    schedule, places = draw(get_args(Schedule)), draw([2, 2, 3, 4])
    stages = any_stages(schedule, draw)
    mesh = eb.Mesh(pipeline=places, schedule=schedule, stages=stages)
    model = model.replace(layers=draw(range(places * stages, 3 * places * stages + 4)))
    sharding, data = draw(SHARDINGS), draw([1, 2, 3, 5, 64])
    fsdp, accumulation = sharding in ("zero2", "zero3"), draw([1, 2, 3, 4, 5, 6, 8, 9])
    setup = any_setup(model.replace(layers=2), draw).replace(
        sharding=sharding, gpus=places * (data if sharding != "none" else 1), replicas=1, offload="none",
        no_sync=draw([True, False]) and fsdp and accumulation > 1,
        sharding_units=draw(["block", "block", "model"]) if fsdp else "block", buckets="copies",
        master_gradients="bf16", mesh=mesh, accumulation=accumulation,
    )  # fmt: skip
    setup.check_model(model)
    if not broken(PIPELINE, setup):
        return model, setup, draw(range(places)) * setup.data


def staged(seed: int) -> tuple[eb.Model, eb.Setup, int]:
    """One GPU of a pipeline beside other dimensions: sequences, matrices or experts that the GPUs of a stage share, and data that they
    average (DDP) or divide (FSDP). Always the same for one seed."""
    draw = Random(10 * 10**6 + seed).choice
    context, expert, tensor = draw(
        [(1, 1, 1), (2, 1, 1), (3, 1, 1), (4, 1, 1), (1, 2, 1), (1, 3, 1), (2, 2, 1), (2, 4, 1), (1, 1, 2), (2, 1, 2), (1, 2, 2), (2, 4, 2)]
    )  # fmt: skip
    while True:  # what does not go together is drawn again
        model, setup, _ = piped(draw(range(10**6)))
        data = draw([1, 2, 2, 3]) * (expert if expert > context else 1)
        sharding = draw(["none", "none", "zero2", "zero3"] if tensor == 1 else ["zero2", "zero3"])
        sharding = draw(["none", "zero1"]) if sharding == "none" else sharding
        longest = 0 if model.family == "llama" else 1536
        sizes = {"positions": longest, "learned_positions": longest, "window": 0} if context > 1 else {}
        if expert > 1:
            sizes |= {
                "experts": expert * draw([1, 2, 3]),
                "experts_per_token": draw([1, 2]),
                "expert_width": tensor * draw([8, 24]),
            }
            model = any_llama(model.name, draw).replace(layers=model.layers, fused=False)
        if tensor > 1:
            sizes |= {name: tensor * getattr(model, name) for name in ("heads", "kv_heads", "vocabulary")}
            sizes |= {"ffn_width": tensor * draw([1, 7, 24]), "tied": False}
            sizes |= {"width": tensor * model.width} if model.family == "gpt" else {}
        beside = {"context": context, "expert": expert, "tensor": tensor}
        beside |= {"rotation": draw(RINGS)} if context > 1 else {}
        beside |= {"routing": draw([1.0, 1.25, 0.3, expert])} if expert > 1 else {}
        try:
            model = model.replace(**sizes)
            beside |= {"routing": min(beside["routing"], worst_routing(model, expert))} if expert > 1 else {}
            mesh = replace(setup.mesh, **beside)
            changes = {"loss": "plain", "loss_chunks": 8, "sharding": sharding, "gpus": data * mesh.size, "mesh": mesh}
            changes |= {"attention": "flash", "dropout": 0.0} if context > 1 else {}
            if context > 1 or tensor > 1:
                changes["sequence"] = 2 * context * tensor * draw([1, 2, 3, 8, 32])
            if sharding in ("zero2", "zero3"):
                changes["offload"] = draw(["none", "none", *OFFLOADS]) if tensor == 1 else "none"
            else:
                changes |= {"sharding_units": "block", "no_sync": False}
                changes["precision"] = draw(["bf16", "bf16", "bf16-master", "fp32"])
                changes |= (
                    {"buckets": draw(BUCKETS)} if sharding == "none" and data * context > 1 and expert == 1 else {}
                )
            setup = setup.replace(**changes)
            rank = derived_rank(model, setup, draw)
        except ValueError:
            continue
        if mesh.size > mesh.pipeline or setup.ddp:
            return model, setup, rank


@_again(6)
def divided(seed: int, draw) -> tuple[eb.Model, eb.Setup, int] | None:
    """Any architecture whose matrices are divided, with or without FSDP beside, and one of the GPUs."""
    model, parts = draw([any_gpt, any_llama])(f"divided {seed}", draw), draw([2, 2, 3, 4, 8])
    sizes = {"vocabulary": parts * model.vocabulary, "ffn_width": parts * draw([1, 7, 24])}
    sizes |= {"expert_width": parts * draw([4, 8, 24])} if model.experts else {}
    heads = {"heads": parts * model.heads, "kv_heads": parts * model.kv_heads}
    if model.family == "gpt":
        places = parts * draw([8, 33])
        sizes |= {"width": parts * model.width, "positions": places, "learned_positions": places}
    mesh = eb.Mesh(tensor=parts, sequence_parallel=draw([True, True, False]), loss_parallel=draw([True, False]))
    data = draw([1, 1, 2, 5, 64])
    model = model.replace(**sizes, **heads)
    setup = any_setup(model, draw)
    chosen = {"sequence": parts * draw([1, 4, 8])} if mesh.sequence_parallel else {}
    if draw([True, False]):
        optimizer = draw(list(TENSOR_OPTIMIZERS))
        chosen |= {
            "sharding": "none", "sharding_units": "block", "offload": "none", "no_sync": False,
            "optimizer": optimizer, "optimizer_impl": draw(TENSOR_OPTIMIZERS[optimizer]),
        }  # fmt: skip
        data = 1
    setup = setup.replace(**chosen, mesh=mesh, gpus=parts * data, replicas=1, buckets="copies")
    setup.check_model(model)
    if not_derived(model, setup) is None:
        return model, setup, draw(range(parts))


@_again(5)
def ring(seed: int, draw) -> tuple[eb.Model, eb.Setup, int]:
    """Any architecture of the two families whose sequences several GPUs share, any way to save memory, any way to share the rest,
    and one of the GPUs."""
    model = draw([any_gpt, any_llama])(f"ring {seed}", draw)
    parts, pieces = draw([2, 2, 4, 8]), draw([1, 2, 3, 5, 16, 32])
    longest = 0 if model.family == "llama" else 512
    model = model.replace(positions=longest, window=0, learned_positions=longest)
    setup = any_setup(model, draw)
    gpus = parts * (setup.gpus if setup.gpus < 64 else 1)
    if setup.loss == "chunked":
        setup = setup.replace(loss_chunks=1)
    setup = setup.replace(
        sequence=2 * parts * pieces, gpus=gpus, attention="flash", dropout=0.0, master_gradients="bf16",
        mesh=eb.Mesh(context=parts, rotation=draw(RINGS)),
    )  # fmt: skip
    if setup.loss == "chunked":
        setup = setup.replace(loss_chunks=draw(range(1, min(9, 2 * setup.batch * pieces) + 1)))
    return model, setup, any_rank(model, setup, draw)


@_again(9)
def crossed(seed: int, draw) -> tuple[eb.Model, eb.Setup, int]:
    """Any architecture whose sequences several GPUs share, and beside them its matrices or its experts, and one of the GPUs."""
    model, setup, _ = (divided if draw([True, False]) else visited)(draw(range(10**6)))
    mesh, context, pieces = setup.mesh, draw([2, 2, 3, 4]), draw([1, 2, 3, 8, 16])
    longest = 0 if model.family == "llama" else 1536
    places = {"positions": longest, "learned_positions": longest, "window": 0}
    model = model.replace(**places)
    if setup.loss == "chunked":
        setup = setup.replace(loss="plain", loss_chunks=8)
    setup = setup.replace(
        sequence=2 * context * mesh.tensor * pieces, attention="flash", dropout=0.0,
        gpus=context * (mesh.tensor * setup.data if mesh.expert == 1 else mesh.expert * draw([1, 2])),
        sharding=draw(["zero2", "zero3"]) if mesh.tensor > 1 else setup.sharding,
        mesh=replace(mesh, context=context, rotation=draw(RINGS)),
    )  # fmt: skip
    return model, setup, derived_rank(model, setup, draw)


@_again(15)
def swapped(seed: int, draw) -> tuple[eb.Model, eb.Setup, int]:
    """Any architecture whose GPUs swap heads for tokens, perhaps beside its matrices or its experts that others have, and one of them."""
    model, setup, _ = (ring if draw([True, True, False]) else crossed)(draw(range(10**6)))
    mesh = replace(setup.mesh, rotation="ulysses")
    sizes = {"heads": mesh.context * model.heads}
    if model.family == "gpt":
        sizes |= {"width": mesh.context * model.width, "kv_heads": mesh.context * model.kv_heads}
    else:
        sizes |= {"kv_heads": draw([mesh.context * model.kv_heads, mesh.tensor, 2 * mesh.tensor])}
    dropout = draw([0.0, 0.1]) if model.family == "gpt" and mesh.tensor == 1 else 0.0
    model, setup = model.replace(**sizes), setup.replace(mesh=mesh, dropout=dropout)
    return model, setup, derived_rank(model, setup, draw)


@_again(7)
def visited(seed: int, draw) -> tuple[eb.Model, eb.Setup, int] | None:
    """Any mixture whose experts are divided among GPUs, balanced or not, any way to save memory, any way to share the rest, and one
    of the GPUs."""
    model, parts, own = any_llama(f"visited {seed}", draw), draw([2, 2, 3, 4, 8]), draw([1, 1, 2, 3])
    if not model.experts:
        return None
    model = model.replace(experts=parts * own, experts_per_token=draw(range(1, min(parts * own, 6) + 1)))
    routing = min(draw([1.0, 1.0, 1.25, 0.3, parts]), worst_routing(model, parts))
    setup = any_setup(model, draw)
    sharding = draw(["none", "zero1", "zero2", "zero3", "zero3"])
    if sharding in ("none", "zero1") or setup.sharding not in ("zero2", "zero3"):
        setup = setup.replace(sharding_units="block", offload="none", no_sync=False)
    setup = setup.replace(sharding=sharding, replicas=1)
    setup = setup.replace(
        gpus=parts * draw([1, 1, 2, 3, 4, 8]), buckets="copies", master_gradients="bf16",
        mesh=eb.Mesh(expert=parts, routing=routing),
    )  # fmt: skip
    return model, setup, derived_rank(model, setup, draw)


@_again(14)
def halved(seed: int, draw) -> tuple[eb.Model, eb.Setup, int]:
    """Any mixture whose experts are divided among GPUs and each expert's matrices among others, under FSDP, beside rings or not, and one
    of the GPUs."""
    model, setup, _ = visited(draw(range(10**6)))
    mesh, tensor, context = setup.mesh, draw([2, 2, 3, 4, 8]), draw([1, 1, 2, 3])
    sizes = {name: tensor * getattr(model, name) for name in ("heads", "kv_heads", "expert_width", "vocabulary")}
    ways = {"tensor": tensor, "context": context} | {
        name: draw([True, True, False]) for name in ("sequence_parallel", "loss_parallel")
    }
    ways |= {"rotation": draw(RINGS)} if context > 1 else {}
    changes = {"attention": "flash", "dropout": 0.0} if context > 1 else {}
    padded = context > 1 and setup.dtypes.compute == "fp32"
    model = model.replace(**sizes, window=0)
    setup = setup.replace(
        **changes, gpus=tensor * context * draw([1, mesh.expert, 2 * mesh.expert, 4 * mesh.expert]),
        mesh=replace(mesh, **ways), sharding=draw(["zero2", "zero3"]), offload="none", loss="plain", loss_chunks=8,
        sequence=context * tensor * (64 if padded else 2) * draw([1, 2, 3, 8]),
        no_sync=draw([True, False]) and setup.accumulation > 1,
    )  # fmt: skip
    return model, setup, derived_rank(model, setup, draw)
