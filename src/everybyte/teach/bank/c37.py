"""Exercises of chapter 37: how are the dimensions chosen together?"""

from math import prod

from ...answers.layouts import layouts, priced
from ...formulas.symbols import B, C, H, L, S, t
from . import Case, Mesh, answers, gpu, model, program, run

LLAMA = run("llama-3.1-70b", gpus=64, sequence=8192, batch=1, accumulation=8, precision="bf16-mixed", sharding="zero3")

KEPT = 34 * B * S * H


def fastest(card="h200"):
    """The peak of the first layout on 64 GPUs, by the computed time."""
    return layouts(LLAMA.model, LLAMA.setup, card, most=1).found[0].peak


def states(gpus=1024, each=16):
    return each * model("llama-3.1-405b", code="reference").parameters // gpus


def sent(tensor):
    """Seconds that tensor parallelism sends in a step, the same tokens on each group."""
    some = LLAMA.having(gpus=tensor, accumulation=1, mesh=Mesh(tensor=tensor), sharding="none")
    return priced(LLAMA.model, some.setup, gpu("h100-80gb"))["tensor"]


def meshes():
    import torch

    asked = (
        ({"pipeline": 2, "data": 2, "tensor": 4}, "tensor"),
        ({"pipeline": 2, "data": 2, "tensor": 4}, "data"),
        ({"pipeline": 4, "data": 2, "tensor": 2}, "pipeline"),
        ({"data": 8, "tensor": 1}, "data"),
        ({"pipeline": 2, "data": 3, "context": 2, "tensor": 2}, "context"),
        ({"data": 2, "context": 4, "tensor": 8}, "data"),
    )
    for mesh, name in asked:
        ranks = torch.arange(prod(mesh.values())).view(*mesh.values())
        right = ranks.movedim(list(mesh).index(name), -1).reshape(-1, mesh[name]).tolist()
        yield Case(f"{name} of {mesh}", (mesh, name), sorted(right))


def groups(mesh, name, *, inner=True, chunks=False):
    names = list(mesh) if inner else list(mesh)[::-1]
    step = 1 if chunks else prod(mesh[other] for other in names[names.index(name) + 1 :])
    size, count = mesh[name], prod(mesh.values())
    starts = [rank for rank in range(count) if rank // step % size == 0]
    return [[start + step * i for i in range(size)] for start in starts]


def agree(given, right):
    return sorted(map(list, given)) == right


ANSWERS = {
    "37.1": answers(states(), fsdp=states(128), tensor=states(8), optimizer=states(each=8)),
    "37.2": answers(L * KEPT / (t * C), one_block=KEPT / (t * C), undivided=L * KEPT, tensor=L * KEPT / C),
    "37.3": answers(fastest, card="h100-80gb"),
    "37.4": answers(sent(8) / sent(2), divided=0.25, same=1),
    "37.5": program(groups, meshes, agree, inner=False, chunks=True),
}
