"""Exercises of chapter 36: how are the dimensions chosen together?"""

from functools import cache
from math import prod

from ...catalog import model
from ...formulas.symbols import B, C, H, L, S, t
from ...headroom import find_gpu
from ...layouts import layouts, priced
from ...mesh import Mesh
from ...setup import Setup
from ..exercise import Exercise
from ..program import Case, Program

LARGE = "llama-3.1-405b"
_ASKED = Setup(gpus=64, sequence=8192, batch=1, accumulation=8, precision="bf16-mixed", sharding="zero3")


@cache
def _fastest(gpu: str = "h200", **changes):
    """The peak of the fastest layout of Llama 3.1 70B on 64 GPUs."""
    return layouts(model("llama-3.1-70b"), _ASKED.replace(**changes), gpu, most=1).found[0].peak


def _states(gpus: int = 1024, each: int = 16) -> int:
    return each * int(model(LARGE).parameters) // gpus


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


def _groups(inner=True, chunks=False):
    """What it would be with the first dimension the nearest, or with groups of neighbors whatever the dimension."""

    def groups(mesh, name):
        names = list(mesh) if inner else list(mesh)[::-1]
        step = 1 if chunks else prod(mesh[other] for other in names[names.index(name) + 1 :])
        size, count = mesh[name], prod(mesh.values())
        starts = [rank for rank in range(count) if rank // step % size == 0]
        return [[start + step * i for i in range(size)] for start in starts]

    return groups


EXERCISES = [
    Exercise(
        id="36.1",
        title="The states of Llama 3.1 405B on each of 1,024 GPUs",
        difficulty=1,
        minutes=3,
        unit="GiB",
        decimals=2,
        answer=_states,
        mistakes={
            "that is over the 128 GPUs of FSDP alone: tensor parallelism divides them too": lambda: _states(128),
            "that is over the 8 GPUs of tensor parallelism alone": lambda: _states(8),
            "those are the optimizer's 8 bytes: weights and gradients have 4 each": lambda: _states(each=8),
        },
        hints=(
            "Which of the two dimensions divides the states?",
            "Both do, so all 1,024 GPUs. 16 bytes a parameter, and 405,853,388,800 parameters.",
        ),
    ),
    Exercise(
        id="36.2",
        title="The first stage's activations",
        difficulty=2,
        minutes=4,
        accepts="expression",
        answer=lambda: 34 * B * S * H * L / (t * C),
        mistakes={
            "that is one block: the stage has L/p of them, for p micro-batches": lambda: 34 * B * S * H / (t * C),
            "tensor and context parallelism divide a block's activations": lambda: 34 * B * S * H * L,
            "tensor parallelism divides them too, with sequence parallelism": lambda: 34 * B * S * H * L / C,
        },
        hints=(
            "How many blocks has the stage, and how many micro-batches are in flight when its first backward begins?",
            "L/p blocks and p micro-batches: p cancels. Tensor and context parallelism divide what is left.",
        ),
    ),
    Exercise(
        id="36.3",
        title="The peak of the fastest layout of 70B on 64 H200",
        difficulty=2,
        minutes=6,
        unit="GiB",
        decimals=1,
        answer=_fastest,
        mistakes={"that is on H100s": lambda: _fastest("h100-80gb")},
        hints=(
            "Ask the search for the other card.",
            '`eb.layouts(llama, asked, "h200", most=1).best.peak`, in GiB.',
        ),
    ),
    Exercise(
        id="36.4",
        title="What tensor parallelism sends with 8 GPUs over what it sends with 2",
        difficulty=2,
        minutes=5,
        unit="times",
        decimals=2,
        answer=lambda: _sent(8) / _sent(2),
        mistakes={
            "the residual stream is not divided by t before it is gathered: each GPU needs all of it": 0.25,
            "a GPU sends nothing to itself: (t - 1)/t of the stream leaves it": 1,
        },
        hints=(
            "What share of an all-gathered tensor comes from the other GPUs?",
            "(t - 1)/t: 7/8 with 8 GPUs, 1/2 with 2.",
        ),
    ),
    Program(
        id="36.5",
        title="A function: which GPUs talk to each other along one dimension of a mesh",
        difficulty=2,
        minutes=10,
        call="groups(mesh, name)",
        cases=_meshes,
        agree=lambda given, right: sorted(map(list, given)) == right,
        answer=_groups,
        mistakes={
            "the last dimension is the one whose GPUs are neighbors": lambda: _groups(inner=False),
            "only the last dimension's groups are neighbors; the others skip": lambda: _groups(chunks=True),
        },
        hints=(
            "The number of a GPU in mixed radix: the last dimension counts by 1. By how much does the one before it count?",
            "A dimension's step is the product of the sizes after it. A group starts wherever rank // step % size is 0.",
        ),
    ),
]
