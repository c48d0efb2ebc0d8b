"""Exercises of chapter 26: what may live outside the GPU, and what does the bus charge for it?"""

import math

from ...catalog.weights import summed
from ...formulas.symbols import P
from . import Case, Run, answers, each, gpu, named_shapes, program, run, small_models

XL = run("gpt2-xl", sharding="zero3", offload="cpu", precision="bf16-mixed", batch=1, sequence=1024)
FOUR = XL.having(precision="bf16-master", batch=2, accumulation=4)
BILLIONS = 7 * 10**9


def crosses(some=FOUR, ways=("to_gpu", "to_host"), **changes):
    return sum(int(some.at(f"fsdp.{way}", **changes)) for way in ways)


def rounded_up(size):
    return 1 << (size - 1).bit_length()


def pinned(copies=2):
    """Bytes pinned for `copies` copies of GPT-2 XL's fp32 weights: each tensor's, rounded up to a power of two."""
    return copies * summed(XL.model, lambda w: rounded_up(4 * w.numbers))


def tokens(moved=8, done=8, gpus=4):
    card = gpu("rtx-4090")
    return math.ceil(moved * card.bf16_flops / (done * gpus * card.host_link))


def offloaded():
    for m, gpus, batches in zip(small_models(26, 3), (1, 2, 3, 8, 4, 1), (1, 3, 2, 1, 4, 2), strict=True):
        run = Run(m, XL.setup).having(precision="fp32", sequence=32, gpus=gpus, accumulation=batches)
        name = f"{m.name}, {gpus} GPU{'s' * (gpus > 1)}, {batches} micro-batch{'es' * (batches > 1)}"
        yield Case(name, (named_shapes(m), gpus, batches), crosses(run))


def bus(weights, gpus, batches, *, block_ups=2, root_ups=1, each=True, rows=True):
    up = down = 0
    for name, shape in weights:
        share = math.prod(shape[1:]) * (-(-shape[0] // gpus) if rows else shape[0] / gpus)
        up += 4 * share * (block_ups if name.startswith("blocks.") else root_ups)
        down += 4 * share
    return up * batches + down * (batches if each else 1)


ANSWERS = {
    "26.1": answers(12 * BILLIONS, bf16=6 * BILLIONS, once=8 * BILLIONS, one=4 * BILLIONS, states=(12 + 16) * BILLIONS),
    "26.2": answers(4 * P, fp32=8 * P, one_way=2 * P, twice=6 * P, states=16 * P, left=12 * P),
    "26.3": answers(
        crosses(),
        **each(crosses, one_batch={"accumulation": 1}, mixed={"precision": "bf16-mixed"}, zero2={"sharding": "zero2"}),
        **each(crosses, up={"ways": ["to_gpu"]}, down={"ways": ["to_host"]}),
        root=4 * 6 * XL.parameters,
    ),
    "26.4": answers(
        pinned(),
        asked=sum(XL.step().host[part] for part in ("parameters", "gradients")),
        weights=pinned(1),
        total=2 * rounded_up(4 * XL.parameters),
        states=pinned(4),
    ),
    "26.5": answers(tokens, gpus=1, done=6, bf16={"moved": 4}, rounded_down=tokens() - 1, both_ways={"moved": 12}),
    "26.6": program(bus, offloaded, block_ups=1, root_ups=2, each=False, rows=False),
}
