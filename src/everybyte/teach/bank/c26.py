"""Exercises of chapter 26: what may live outside the GPU, and what does the bus charge for it?"""

import math

from ...ask.setup import Setup
from ...catalog import gpu, model
from ...catalog.weights import layers, weights
from ...formulas import formula
from ...formulas.symbols import P
from ..asking import parameters, step
from ..program import Case, named_shapes, small_gpts, small_llamas
from . import answers, program

_AWAY = Setup(sharding="zero3", offload="cpu", precision="bf16-mixed", batch=1, sequence=1024)
_FOUR = _AWAY.replace(precision="bf16-master", batch=2, accumulation=4)
_BILLIONS = 7 * 10**9


def _crosses(setup, m=None, ways=("to_gpu", "to_host")):
    return sum(int(formula(f"fsdp.{way}").at(m or model("gpt2-xl"), setup)) for way in ways)


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
        right = _crosses(run, m)
        name = f"{m.name}, {gpus} GPU{'s' * (gpus > 1)}, {batches} micro-batch{'es' * (batches > 1)}"
        yield Case(name, (named_shapes(m), gpus, batches), right)


def _bus(weights, gpus, batches, *, block_ups=2, root_ups=1, each=True, rows=True):
    """The answer, or what it would be with other numbers of ways up, with gradients once a step, or without padding."""
    up = down = 0
    for name, shape in weights:
        share = math.prod(shape[1:]) * (-(-shape[0] // gpus) if rows else shape[0] / gpus)
        up += 4 * share * (block_ups if name.startswith("blocks.") else root_ups)
        down += 4 * share
    return up * batches + down * (batches if each else 1)


ANSWERS = {
    "26.1": answers(
        12 * _BILLIONS, bf16=6 * _BILLIONS, once=8 * _BILLIONS, one=4 * _BILLIONS, states=(12 + 16) * _BILLIONS
    ),
    "26.2": answers(4 * P, fp32=8 * P, one_way=2 * P, twice=6 * P, states=16 * P, left=12 * P),
    "26.3": answers(
        lambda: _crosses(_FOUR),
        one_batch=lambda: _crosses(_FOUR.replace(accumulation=1)),
        mixed=lambda: _crosses(_FOUR.replace(precision="bf16-mixed")),
        zero2=lambda: _crosses(_FOUR.replace(sharding="zero2")),
        up=lambda: _crosses(_FOUR, ways=["to_gpu"]),
        down=lambda: _crosses(_FOUR, ways=["to_host"]),
        root=lambda: 4 * 6 * parameters("gpt2-xl"),
    ),
    "26.4": answers(
        lambda: 2 * _pinned(),
        asked=lambda: sum(step("gpt2-xl", _AWAY).host[part] for part in ("parameters", "gradients")),
        weights=_pinned,
        total=lambda: 2 * _rounded_up(4 * parameters("gpt2-xl")),
        states=lambda: 4 * _pinned(),
    ),
    "26.5": answers(
        lambda: _tokens(8, 8),
        one_gpu=lambda: _tokens(8, 8, 1),
        six=lambda: _tokens(8, 6),
        bf16=lambda: _tokens(4, 8),
        rounded_down=lambda: _tokens(8, 8) - 1,
        both_ways=lambda: _tokens(12, 8),
    ),
    "26.6": program(_bus, _offloaded, block_ups=1, root_ups=2, each=False, rows=False),
}
