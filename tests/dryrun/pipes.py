"""What one of several processes sees that train a small model together as a pipeline."""

from contextlib import nullcontext
from pathlib import Path
from runpy import run_path

import torch

import everybyte as eb
from everybyte.ask.schedules import SPLIT, TWO_STAGES
from everybyte.lab.meters import Cpu
from everybyte.reference import FAMILIES, Trainer
from everybyte.reference.mesh.trainer import MeshTrainer, held, undivided
from everybyte.reference.splitting import divided_loss

on_cpus = run_path(str(Path(__file__).parents[1] / "reference" / "rings.py"))["on_cpus"]

STEPS = 3
GPT = eb.Model(name="small", layers=9, width=20, heads=2, vocabulary=101, positions=24, tied=True)
LLAMA = eb.Model(
    name="small llama", layers=9, width=32, heads=4, kv_heads=2, vocabulary=101, positions=0, learned_positions=0, ffn_width=32,
    gated=True, fused=False, tied=False, norm="rmsnorm", qkv_bias=False, out_bias=False, ffn_bias=False,
)  # fmt: skip
#: Rings in fp32 take whole rows of the kernel, and as many key heads as query heads.
LONG = {"gpt": GPT.replace(positions=128, width=16), "llama": LLAMA.replace(kv_heads=4)}
MIXTURE = LLAMA.replace(name="small mixture", experts=4, experts_per_token=2, expert_width=24)
SETUP = eb.Setup(batch=2, sequence=16, attention="eager", optimizer="momentum")


def runs(world):
    """Name -> (model, setup) of the pipelines of so many processes."""
    meshes = {
        "gpipe": {}, "1f1b": {}, "interleaved-1f1b": {"stages": 2}, "looped-bfs": {"stages": 2},
        "interleaved-zero-bubble": {"stages": 2}, "zbv": {"stages": 2}, "dualpipev": {"stages": 2},
        "1f1b-v": {"stages": 2},
    }  # fmt: skip
    found = {}
    for i, (schedule, changes) in enumerate(meshes.items()):
        mesh = eb.Mesh(pipeline=world, schedule=schedule, **changes)
        found[schedule] = (GPT, GPT, LLAMA)[i % 3], SETUP.replace(gpus=world, mesh=mesh, accumulation=2 * world)
    found["1f1b, checkpointed"] = GPT, found["1f1b"][1].replace(checkpointing="full")
    if world == 4:
        found |= beside(found) | OTHERS
    return HALVED if world == 8 else found


def pair(schedule, **changes):
    """Two GPUs in a row, twice."""
    divided = {name: changes.pop(name) for name in ("context", "expert", "rotation") if name in changes}
    stages = {"interleaved-1f1b": 2, "looped-bfs": 2}.get(schedule, 1)
    mesh = eb.Mesh(pipeline=2, schedule=schedule, stages=stages, **divided)
    changes |= {"sequence": 128, "attention": "flash"} if "context" in divided else {}
    return SETUP.replace(gpus=4, mesh=mesh, accumulation=4, **changes)


#: Pipelines of two beside another dimension: a ring of two, experts in two parts, DDP of two, or states that two divide.
OTHERS = {
    "1f1b, ring": (LONG["gpt"], pair("1f1b", context=2)),
    "interleaved-1f1b, ring, zero3": (LONG["llama"], pair("interleaved-1f1b", context=2, rotation="all-to-all", sharding="zero3")),
    "gpipe, averaged": (GPT, pair("gpipe")),
    "1f1b, zero1": (GPT, pair("1f1b", sharding="zero1")),
    "interleaved-1f1b, ring, zero1": (LONG["llama"], pair("interleaved-1f1b", context=2, sharding="zero1")),
    "looped-bfs, averaged in views": (LLAMA, pair("looped-bfs", buckets="views")),
    "1f1b, experts": (MIXTURE, pair("1f1b", expert=2)),
    "interleaved-1f1b, experts, zero3": (MIXTURE, pair("interleaved-1f1b", expert=2, sharding="zero3")),
    "gpipe, experts of a ring": (MIXTURE.replace(kv_heads=4), pair("gpipe", expert=2, context=2)),
}  # fmt: skip


#: Eight: of each two stages two GPUs have half of the experts each, and of each expert two GPUs have half of its matrices.
HALVED = {
    f"{schedule}, halved experts, {sharding}": (
        MIXTURE.replace(vocabulary=102),
        SETUP.replace(
            gpus=8, accumulation=4, sharding=sharding,
            mesh=eb.Mesh(pipeline=2, tensor=2, expert=2, schedule=schedule, stages=stages, sequence_parallel=tokens, loss_parallel=tokens),
        ),
    )
    for schedule, stages, sharding, tokens in (("1f1b", 1, "zero2", True), ("interleaved-1f1b", 2, "zero3", False))
}  # fmt: skip


def beside(found):
    """The same of pipelines of two, whose stages two GPUs each divide."""
    sharded = {}
    for name, (model, setup) in found.items():
        for sharding in ("zero2", "zero3"):
            schedule = setup.mesh.schedule
            if schedule in TWO_STAGES and model.tied or schedule in SPLIT and sharding == "zero3":
                continue
            mesh = eb.Mesh(pipeline=2, schedule=setup.mesh.schedule, stages=setup.mesh.stages)
            sharded[f"{name}, {sharding}"] = model, setup.replace(sharding=sharding, mesh=mesh, accumulation=4)
    return sharded


def tokens(step, model, setup):
    """Tokens and targets of all micro-batches of a step, of all GPUs that train on batches of their own."""
    generator = torch.Generator().manual_seed(step)
    batches = setup.accumulation * setup.data * setup.batch
    drawn = torch.randint(model.vocabulary, (batches, setup.sequence + 1), generator=generator)
    return drawn[:, :-1].clone(), drawn[:, 1:].clone()


def whole(model, setup):
    """The model with random weights, the same everywhere."""
    torch.manual_seed(0)
    module = FAMILIES[model.family](model, undivided(setup))
    for p in module.parameters():
        torch.nn.init.normal_(p, 0.0 if p.dim() > 1 else 1.0, 0.02)
    return module


def alone(model, setup):
    """The losses of one process that trains the whole model."""
    batches = setup.accumulation * setup.data
    setup, losses = undivided(setup).replace(accumulation=batches), []
    trainer = Trainer(whole(model, setup), setup)
    trainer.optimizer.param_groups[0]["lr"] = 0.1
    for step in range(STEPS):
        pairs = zip(*(x.chunk(setup.accumulation) for x in tokens(step, model, setup)), strict=True)
        losses.append(trainer.step(lambda pairs=pairs: next(pairs)).item())
    return losses


def together(model, setup, rank):
    """The losses of one process of a pipeline, where it has the last stage, and its live bytes at each moment of a steady step."""
    everything = dict(whole(model, setup).named_parameters(remove_duplicate=False))
    meter = Cpu(torch.device("cpu"), None)
    with meter.watching():
        place = setup.mesh.rank(rank, setup.data)
        module = held(model, setup, place["pipeline"])
        with torch.no_grad():
            for name, parameter in module.named_parameters(remove_duplicate=False):
                if name in everything:
                    parameter.copy_(everything[name])
                    continue
                parts = everything[name.replace(".own", "")].chunk(
                    setup.mesh.expert
                )  # of a mixture's experts this GPU's
                parameter.copy_(parts[setup.sharer(rank) % setup.mesh.expert])
        trainer = MeshTrainer(module, setup, model=model)
        getattr(trainer.optimizer, "optimizer", trainer.optimizer).param_groups[0]["lr"] = 0.1
        losses, counts = [], []
        for step in range(STEPS):
            given, count = tokens(step, model, setup), {}
            given = tuple(x.chunk(setup.data)[place["data"]] for x in given)
            drawn = tuple(
                x if mine else None
                for x, mine in zip(given, (trainer.pipeline.first, trainer.pipeline.last), strict=True)
            )
            del given
            if setup.mesh.context > 1:
                drawn = *drawn, torch.arange(setup.sequence)
            meter.restart()
            standing = sum(x.nbytes for x in drawn if x is not None)
            count["rest"] = meter.now()["allocated"] - standing
            with on_cpus() if setup.mesh.context > 1 else nullcontext(), divided_loss(setup):
                loss = trainer.step(
                    lambda drawn=drawn: drawn, lambda at, c=count: c.update({at: meter.now()["allocated"]})
                )
            losses.append(loss if loss is None else getattr(loss, "full_tensor", lambda loss=loss: loss)().item())
            del loss
            counts.append(count | {"peak": meter.most()["allocated"]})
    return losses, {moment: min(count[moment] for count in counts[1:]) for moment in counts[0]}


def seen(rank, world, *names):
    """By the name of a run, what `together` gives."""
    return {name: together(*runs(world)[name], rank) for name in names}
