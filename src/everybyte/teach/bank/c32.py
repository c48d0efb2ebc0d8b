"""Exercises of chapter 32: when are the sharded weights whole?"""

from ...budget import budget
from ...catalog import model
from ...formulas import SYMBOLS
from ...setup import Setup
from ..exercise import Exercise
from ..program import Case, Program

H = SYMBOLS["width"].symbol

_EIGHT = Setup(gpus=8, sharding="zero3", precision="bf16-mixed")
_SHORT = Setup(gpus=8, sharding="zero3", batch=1, sequence=64)
_GPUS = [2**i for i in range(13)]


def _peak(name, setup):
    return budget(model(name), setup).peak


def _kept_whole():
    return _peak("gpt2-xl", _EIGHT.replace(sharding="zero2")) - _peak("gpt2-xl", _EIGHT)


def _over(setup):
    """How far a peak is above two bytes a parameter."""
    return _peak("gpt2-xl", setup) - 2 * int(model("gpt2-xl").parameters)


def _best(name):
    return min(_GPUS, key=lambda n: _peak(name, _EIGHT.replace(gpus=n)))


def _cut():
    import torch

    for rows, columns, gpus, rank in (
        (10, 4, 4, 3),
        (9, 2, 8, 5),
        (9, 2, 8, 4),
        (50, 8, 4, 0),
        (3, 5, 8, 2),
        (3, 5, 8, 3),
        (64, 1, 8, 7),
    ):
        pieces = torch.arange(rows).chunk(gpus)
        own = pieces[rank].tolist() if rank < len(pieces) else []
        first, last = (own[0], own[-1] + 1) if own else (rows, rows)
        stored = columns * len(pieces[0])
        yield Case(f"{rows} × {columns} on GPU {rank} of {gpus}", (rows, columns, gpus, rank), (first, last, stored))


def _share(up=True, padded=True, clipped=True):
    """What it would be rounded down, without padding, or beyond the last row."""

    def share(rows, columns, gpus, rank):
        each = -(-rows // gpus) if up else rows // gpus
        first, last = rank * each, (rank + 1) * each
        if clipped:
            first, last = min(first, rows), min(last, rows)
        return first, last, columns * (each if padded else last - first)

    return share


EXERCISES = [
    Exercise(
        id="32.1",
        title="GPT-2's token table over 64 GPUs: what the first has of it",
        difficulty=1,
        minutes=3,
        unit="B",
        answer=lambda: 4 * 768 * -(-50257 // 64),
        mistakes={
            "whole rows are dealt out, and each GPU has as many as the largest share: round the rows up": lambda: (
                4 * 768 * (50257 // 64)
            ),
            "that is in bf16, as it is gathered; a shard is fp32": lambda: 2 * 768 * -(-50257 // 64),
            "those are the table's bytes, padded and gathered": lambda: 4 * 768 * 64 * -(-50257 // 64),
        },
        hints=("Tensors are cut by rows, and the rows of a share are rounded up.", "786 rows of 768 numbers in fp32."),
    ),
    Exercise(
        id="32.2",
        title="What is held of blocks, whole, during one block's backward under mixed precision",
        difficulty=2,
        minutes=6,
        accepts="expression",
        answer=lambda: 120 * H**2,
        mistakes={
            "that is the block's weights alone": lambda: 24 * H**2,
            "weights and the prefetched neighbor; gradients are there too, and what the last block sent": lambda: (
                48 * H**2
            ),
            "what the last block sent is still there": lambda: 72 * H**2,
            "gradients are reduced in fp32: 4 bytes for what was sent": lambda: 96 * H**2,
            "that is in fp32: the policy gathers and computes in 2 bytes": lambda: 192 * H**2,
        },
        hints=(
            "Four things: its weights, the neighbor's flat buffer, its gradients, the input of the last reduce-scatter.",
            "Three of them have 2 bytes a number, and what is reduced has 4; a block has 12 H² numbers.",
        ),
    ),
    Exercise(
        id="32.3",
        title="What weights that stay after forward cost GPT-2 XL on 8 GPUs",
        difficulty=1,
        minutes=4,
        unit="GiB",
        decimals=2,
        answer=_kept_whole,
        mistakes={
            "ZeRO-3 has a block's flat buffer at that peak, which ZeRO-2 needs not": lambda: budget(
                model("gpt2-xl"), _EIGHT.replace(sharding="zero2")
            ).parts["unsharded"],
            "that is in fp32": lambda: (
                _peak("gpt2-xl", _EIGHT.replace(sharding="zero2", precision="fp32"))
                - _peak("gpt2-xl", _EIGHT.replace(precision="fp32"))
            ),
        },
        hints=(
            "Two budgets, of zero2 and of zero3, both at the loss's backward.",
            "48 blocks whole instead of one flat buffer.",
        ),
    ),
    Exercise(
        id="32.4",
        title="GPT-2 XL on 8 GPUs in fp32, 1 × 64 tokens: the peak above 2 bytes a parameter",
        difficulty=2,
        minutes=6,
        unit="GiB",
        decimals=2,
        answer=lambda: _over(_SHORT),
        mistakes={
            "that is the peak itself": lambda: _peak("gpt2-xl", _SHORT),
            "that is under mixed precision": lambda: _over(_SHORT.replace(precision="bf16-mixed")),
        },
        hints=(
            'eb.Setup(gpus=8, sharding="zero3", batch=1, sequence=64), and the budget\'s peak.',
            "Subtract 2 × 1,557,611,200 bytes; `peak_at` says where it is, and `parts` what stands there.",
        ),
    ),
    Exercise(
        id="32.5",
        title="The power of two of GPUs with the lowest peak for GPT-2 (124M)",
        difficulty=2,
        minutes=6,
        unit="GPUs",
        answer=lambda: _best("gpt2"),
        mistakes={
            "that is GPT-2 XL's": lambda: _best("gpt2-xl"),
            "past some number the padding grows faster than the shards shrink": max(_GPUS),
        },
        hints=(
            "A budget for each power of two; the least peak.",
            "`gpus=n` for n from 64 to 4,096: they differ by little, and one is the least.",
        ),
    ),
    Program(
        id="32.6",
        title="A function: the rows that FSDP gives a GPU, and what it stores for them",
        difficulty=1,
        minutes=8,
        call="share(rows, columns, gpus, rank)",
        cases=_cut,
        agree=lambda given, right: tuple(given) == right,
        answer=_share,
        mistakes={
            "an equal share of the rows is rounded up": lambda: _share(up=False),
            "every GPU stores as many rows as the first, padding included": lambda: _share(padded=False),
            "there are no rows beyond the last: later GPUs have fewer, or none": lambda: _share(clipped=False),
        },
        hints=(
            "Every GPU has ⌈rows / gpus⌉ rows, until there are none left.",
            "Neither first nor last can be more than `rows`; what is stored does not depend on the rank.",
        ),
    ),
]
