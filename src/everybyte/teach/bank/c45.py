"""Exercises of chapter 45: which GPU, how many, and with which switches?"""

from dataclasses import replace

from ...answers.fit import Headroom, fit
from ...answers.plan import work
from ...formulas.symbols import B, F, H, S
from . import MIB, Case, Run, Setup, answers, gpu, model, program, run, small_gpts

LLAMA = run(
    "llama-3.1-8b", gpus=8, sharding="zero3", precision="bf16-mixed", batch=2, sequence=8192, checkpointing="full"
)


def usable(context=426 * MIB, other=2**30, **kept):
    return Headroom(context=context, other=other, **kept).usable(gpu("h100-80gb"))


def largest(card="h200", checkpointing="full", configuration=""):
    return fit(LLAMA.model, LLAMA.having(checkpointing=checkpointing).setup, card, configuration=configuration).value


def gpus(each=16):
    return -(-each * model("llama-2-13b", code="reference").parameters // Headroom().usable(gpu("a100-80gb")))


def more(attention="eager", checkpointing="full"):
    """Operations that checkpointing adds, in percent."""
    kinds = (LLAMA.having(attention=attention, checkpointing=kind).setup for kind in (checkpointing, "none"))
    with_it, without = (work(LLAMA.model, kind).flops for kind in kinds)
    return 100 * (with_it / without - 1)


SHORT = Setup(batch=1, sequence=32, precision="bf16-mixed")


class Peak:
    """The peak of a model's step by its batch; it may be asked fifty times."""

    def __init__(self, model):
        self.model, self.asked = model, 0

    def __call__(self, batch):
        self.asked += 1
        if self.asked > 50:
            raise ValueError("peak was asked more than 50 times")
        return Run(self.model, SHORT).peak(batch=batch, rounding=512)


def cards():
    for case, (m, batch) in enumerate(zip(small_gpts(45, 6), (1, 2, 37, 512, 4000, 70_001), strict=True)):
        memory = Peak(m)(batch) + case - (case == 0)
        card = replace(gpu("rtx-4090"), memory=memory)
        right = fit(m, SHORT, card, headroom=Headroom(context=0, workspace=0, fragmentation=0)).value or 0
        yield Case(f"{m.name}, {memory:,} bytes", (Peak(m), memory), right)


def bisection(peak, usable, *, least=0, scan=False, doubles=False, over=0):
    if peak(1) > usable:
        return least
    low, high = 1, 2
    while peak(high) <= usable:
        low, high = high, high + 1 if scan else 2 * high
    while high - low > 1 and not doubles:
        middle = (low + high) // 2
        low, high = (middle, high) if peak(middle) <= usable else (low, middle)
    return low + over


SQUARE, MLP = 4 * B * S**2 * H, 2 * B * S * H * F
FLOPS = 8 * B * S * H**2 + 2 * MLP + SQUARE

ANSWERS = {
    "45.1": answers(
        usable, other=0, context=748 * MIB, workspace=2 * 8_519_680, one={"workspace": 2**25}, no_context={"context": 0}
    ),
    "45.2": answers(
        FLOPS, half=FLOPS / 2, products=FLOPS - SQUARE, once=FLOPS - SQUARE / 2, matrix=FLOPS - MLP, gate=FLOPS + MLP
    ),
    "45.3": answers(
        largest,
        card="h100-80gb",
        checkpointing="none",
        configuration="expandable_segments:True",
        next=lambda: largest() + 1,
    ),
    "45.4": answers(gpus(), twelve=gpus(12), weights=gpus(2)),
    "45.5": answers(more, attention="flash", checkpointing="selective", third=100 / 3),
    "45.6": program(bisection, cards, least=1, scan=True, doubles=True, over=1),
}
