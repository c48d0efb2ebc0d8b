"""Exercises of chapter 26: what may live outside the GPU, and what does the bus charge for it?"""

import math

from ...budget import budget
from ...catalog import gpu, model
from ...catalog.weights import layers, weights
from ...formulas import formula
from ...formulas.symbols import P
from ...setup import Setup
from ..exercise import Exercise
from ..program import Case, Program, named_shapes, small_gpts, small_llamas

_AWAY = Setup(sharding="zero3", offload="cpu", precision="bf16-mixed", batch=1, sequence=1024)
_FOUR = _AWAY.replace(precision="bf16-master", batch=2, accumulation=4)
_BILLIONS = 7 * 10**9


def _crosses(setup):
    return sum(int(formula(f"fsdp.{way}").at(model("gpt2-xl"), setup)) for way in ("to_gpu", "to_host"))


def _one_way(way):
    return int(formula(f"fsdp.{way}").at(model("gpt2-xl"), _FOUR))


def _rounded_up(size):
    return 1 << (size - 1).bit_length()


def _pinned():
    """Bytes pinned for GPT-2 XL's fp32 weights: each tensor's, rounded up to a power of two."""
    xl = model("gpt2-xl")
    times = layers(xl)
    return sum(w.count * times[w.group] * _rounded_up(4 * w.numbers) for w in weights(xl) if w.count)


def _tokens(moved, done, gpus=4):
    card = gpu("rtx-4090")
    return math.ceil(moved * card.bf16_flops / (done * gpus * card.host_link))


def _offloaded():
    for case, m in enumerate([*small_gpts(26, 3), *small_llamas(26, 3)]):
        gpus, batches = (1, 2, 3, 8, 4, 1)[case], (1, 3, 2, 1, 4, 2)[case]
        run = _AWAY.replace(precision="fp32", sequence=32, gpus=gpus, accumulation=batches)
        right = sum(int(formula(f"fsdp.{way}").at(m, run)) for way in ("to_gpu", "to_host"))
        name = f"{m.name}, {gpus} GPU{'s' * (gpus > 1)}, {batches} micro-batch{'es' * (batches > 1)}"
        yield Case(name, (named_shapes(m), gpus, batches), right)


def _bus(block_ups=2, root_ups=1, each=True, rows=True):
    """What it would be with other numbers of ways up, with gradients once a step, or without padding."""

    def crosses(weights, gpus, batches):
        up = down = 0
        for name, shape in weights:
            share = math.prod(shape[1:]) * (-(-shape[0] // gpus) if rows else shape[0] / gpus)
            up += 4 * share * (block_ups if name.startswith("blocks.") else root_ups)
            down += 4 * share
        return up * batches + down * (batches if each else 1)

    return crosses


EXERCISES = [
    Exercise(
        id="26.1",
        title="7 billion parameters, offloaded under ZeRO-3: what crosses the bus in a step",
        difficulty=1,
        minutes=4,
        unit="GB",
        answer=lambda: 12 * _BILLIONS,
        mistakes={
            "weights and gradients cross as they are stored, 4 bytes: they are cast on the GPU": lambda: 6 * _BILLIONS,
            "under ZeRO-3 the weights go up twice, and then the gradients come down": lambda: 8 * _BILLIONS,
            "that is one crossing: there are three": lambda: 4 * _BILLIONS,
            "the states do not travel: the CPU runs the optimizer": lambda: (12 + 16) * _BILLIONS,
        },
        hints=(
            "How often does each weight go up, how often does each gradient come down, and how wide is what is stored?",
            "Twice up and once down, 4 bytes each.",
        ),
    ),
    Exercise(
        id="26.2",
        title="Master copy and states on the host, weights on the GPU: what crosses the bus in a step",
        difficulty=2,
        minutes=5,
        accepts="expression",
        answer=lambda: 4 * P,
        mistakes={
            "the gradient and the new weight cross in bf16, 2 bytes each": 8 * P,
            "that is one way only": 2 * P,
            "the weights are at home: they come up once, when they are new": 6 * P,
            "the states do not travel: the CPU works on them": 16 * P,
            "that is what has left the GPU, not what crosses": 12 * P,
        },
        hints=(
            "Who needs what: the CPU a gradient, the GPU a new weight.",
            "Both in bf16, once a step.",
        ),
    ),
    Exercise(
        id="26.3",
        title="GPT-2 XL under `bf16-master`, four batches: what crosses the bus in a step",
        difficulty=2,
        minutes=6,
        unit="GiB",
        decimals=2,
        answer=lambda: _crosses(_FOUR),
        mistakes={
            "that is one batch: each of the four pays": lambda: _crosses(_FOUR.replace(accumulation=1)),
            "that is bf16-mixed, which stores fp32": lambda: _crosses(_FOUR.replace(precision="bf16-mixed")),
            "that is ZeRO-2: under ZeRO-3 the blocks go up twice": lambda: _crosses(_FOUR.replace(sharding="zero2")),
            "the gradients come down as well": lambda: _one_way("to_gpu"),
            "the weights go up as well": lambda: _one_way("to_host"),
            "the root goes up once a batch, not twice": lambda: 4 * 6 * model("gpt2-xl").parameters,
        },
        hints=(
            "`fsdp.to_gpu` and `fsdp.to_host` of the setup, or `put` with 2 bytes stored and four batches.",
            "Gradients too have 2 bytes here; put r = 2 in `down`.",
        ),
    ),
    Exercise(
        id="26.4",
        title="What PyTorch pins for GPT-2 XL's fp32 weights and gradients",
        difficulty=2,
        minutes=5,
        unit="GiB",
        decimals=2,
        answer=lambda: 2 * _pinned(),
        mistakes={
            "that is what is asked for: each tensor is rounded up to a power of two": lambda: (
                budget(model("gpt2-xl"), _AWAY).host["parameters"] + budget(model("gpt2-xl"), _AWAY).host["gradients"]
            ),
            "the weights alone: each gradient is pinned as well": _pinned,
            "each tensor is rounded up by itself, not the sum": lambda: (
                2 * _rounded_up(4 * model("gpt2-xl").parameters)
            ),
            "the states are not pinned": lambda: 4 * _pinned(),
        },
        hints=(
            "`pinned(xl)` has the weights'. What else has their shapes, and is copied while the GPU computes?",
            "Twice the second number that `pinned(xl)` gives.",
        ),
    ),
    Exercise(
        id="26.5",
        title="Tokens that hide the bus on four checkpointed RTX 4090s",
        difficulty=3,
        minutes=6,
        unit="tokens",
        answer=lambda: _tokens(8, 8),
        mistakes={
            "that is for one GPU: four bring four links": lambda: _tokens(8, 8, 1),
            "with checkpointing arithmetic has 8 operations, not 6": lambda: _tokens(8, 6),
            "bf16-mixed stores fp32: 8 bytes go up": lambda: _tokens(4, 8),
            "round up: fewer do not hide it": lambda: _tokens(8, 8) - 1,
            "both ways at once: the fuller direction decides, not the sum": lambda: _tokens(12, 8),
        },
        hints=(
            "`tokens(8, 8)`, and the catalog's `bf16_flops` and `host_link`.",
            "The rate of arithmetic over four times the rate of one link.",
        ),
    ),
    Program(
        id="26.6",
        title="A function for what crosses the bus in a step, from the shapes of the weights",
        difficulty=2,
        minutes=10,
        call="crosses(weights, gpus, batches)",
        cases=_offloaded,
        answer=_bus,
        mistakes={
            "ZeRO-3 frees a block after forward and gathers it again in backward": lambda: _bus(block_ups=1),
            "the root is in no block: it is gathered once and stays": lambda: _bus(root_ups=2),
            "each micro-batch sends its gradients down": lambda: _bus(each=False),
            "a share is whole rows: the first dimension over the GPUs, rounded up": lambda: _bus(rows=False),
        },
        hints=(
            "A share of a tensor is its first dimension over the GPUs, rounded up, times the others. fp32 has 4 bytes.",
            "Up: twice for names that begin with `blocks.`, once for the rest. Down: once. All of it for each micro-batch.",
        ),
    ),
]
