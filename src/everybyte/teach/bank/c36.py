"""Exercises of chapter 36: how are the dimensions chosen together?"""

from functools import cache
from math import prod

from ...answers.headroom import find_gpu
from ...answers.layouts import layouts, priced
from ...ask.mesh import Mesh
from ...ask.setup import Setup
from ...catalog import model
from ...formulas.symbols import B, C, H, L, S, t
from ..asking import parameters
from ..program import Case
from . import answers, program

LARGE = "llama-3.1-405b"
_ASKED = Setup(gpus=64, sequence=8192, batch=1, accumulation=8, precision="bf16-mixed", sharding="zero3")


@cache
def _fastest(gpu: str = "h200", **changes):
    """The peak of the fastest layout of Llama 3.1 70B on 64 GPUs."""
    return layouts(model("llama-3.1-70b"), _ASKED.replace(**changes), gpu, most=1).found[0].peak


def _states(gpus: int = 1024, each: int = 16) -> int:
    return each * parameters(LARGE) // gpus


def _sent(tensor: int) -> float:
    """Seconds that tensor parallelism sends in a step, the same tokens on each group."""
    setup = _ASKED.replace(gpus=tensor, accumulation=1, mesh=Mesh(tensor=tensor), sharding="none")
    return priced(model("llama-3.1-70b"), setup, find_gpu("h100-80gb"))["tensor"]


def _meshes():
    import torch

    sizes = (
        ({"pipeline": 2, "data": 2, "tensor": 4}, "tensor"), ({"pipeline": 2, "data": 2, "tensor": 4}, "data"),
        ({"pipeline": 4, "data": 2, "tensor": 2}, "pipeline"), ({"data": 8, "tensor": 1}, "data"),
        ({"pipeline": 2, "data": 3, "context": 2, "tensor": 2}, "context"), ({"data": 2, "context": 4, "tensor": 8}, "data"),
    )  # fmt: skip
    for mesh, name in sizes:
        ranks = torch.arange(prod(mesh.values())).view(*mesh.values())
        right = ranks.movedim(list(mesh).index(name), -1).reshape(-1, mesh[name]).tolist()
        yield Case(f"{name} of {mesh}", (mesh, name), sorted(right))


def _groups(mesh, name, *, inner=True, chunks=False):
    """The answer, or what it would be with the first dimension the nearest, or with groups of neighbors whatever the dimension."""
    names = list(mesh) if inner else list(mesh)[::-1]
    step = 1 if chunks else prod(mesh[other] for other in names[names.index(name) + 1 :])
    size, count = mesh[name], prod(mesh.values())
    starts = [rank for rank in range(count) if rank // step % size == 0]
    return [[start + step * i for i in range(size)] for start in starts]


ANSWERS = {
    "36.1": answers(_states, fsdp=lambda: _states(128), tensor=lambda: _states(8), optimizer=lambda: _states(each=8)),
    "36.2": answers(
        34 * B * S * H * L / (t * C),
        one_block=34 * B * S * H / (t * C),
        undivided=34 * B * S * H * L,
        tensor=34 * B * S * H * L / C,
    ),
    "36.3": answers(_fastest, h100=lambda: _fastest("h100-80gb")),
    "36.4": answers(lambda: _sent(8) / _sent(2), divided=0.25, same=1),
    "36.5": program(_groups, _meshes, lambda given, right: sorted(map(list, given)) == right, inner=False, chunks=True),
}
