"""Exercises of chapter 45: which GPU, how many, and with which switches?"""

from dataclasses import replace

from ...answers.fit import Headroom, fit
from ...answers.plan import work
from ...ask.setup import Setup
from ...catalog import gpu, model
from ...formulas.symbols import B, F, H, S
from ...theory.budget import budget
from ..asking import parameters
from ..program import Case, small_gpts
from . import answers, program

_MIXED = Setup(gpus=8, sharding="zero3", precision="bf16-mixed", batch=2, sequence=8192, checkpointing="full")


def _usable(context=426 * 2**20, other=2**30, **kept):
    return Headroom(context=context, other=other, **kept).usable(gpu("h100-80gb"))


def _largest(card="h200", **changes):
    return fit(model("llama-3.1-8b"), _MIXED.replace(**changes), card).value


def _gpus(bytes_each):
    return -(-bytes_each * parameters("llama-2-13b") // Headroom().usable(gpu("a100-80gb")))


def _more(**changes):
    run = _MIXED.replace(**{"attention": "eager"} | changes)
    flops = [work(model("llama-3.1-8b"), x).flops for x in (run, run.replace(checkpointing="none"))]
    return 100 * (flops[0] / flops[1] - 1)


_SHORT = Setup(batch=1, sequence=32, precision="bf16-mixed")


class _Peak:
    """The peak of a model's step by its batch; it may be asked fifty times."""

    def __init__(self, model):
        self.model, self.asked = model, 0

    def __call__(self, batch):
        self.asked += 1
        if self.asked > 50:
            raise ValueError("peak was asked more than 50 times")
        return budget(self.model, _SHORT.replace(batch=batch), rounding=512).peak


def _cards():
    for case, m in enumerate(small_gpts(45, 6)):
        peak = _Peak(m)
        usable = peak((1, 2, 37, 512, 4000, 70_001)[case]) + case - (case == 0)
        card = replace(gpu("rtx-4090"), memory=usable)
        right = fit(m, _SHORT, card, headroom=Headroom(context=0, workspace=0, fragmentation=0)).value or 0
        yield Case(f"{m.name}, {usable:,} bytes", (_Peak(m), usable), right)


def _bisection(peak, usable, *, least=0, scan=False, doubles=False, over=0):
    """The answer, or what it would be with another answer where nothing fits, one by one, with powers of two, or one too many."""
    if peak(1) > usable:
        return least
    low, high = 1, 2
    while peak(high) <= usable:
        low, high = high, high + 1 if scan else 2 * high
    while high - low > 1 and not doubles:
        middle = (low + high) // 2
        low, high = (middle, high) if peak(middle) <= usable else (low, middle)
    return low + over


ANSWERS = {
    "45.1": answers(
        _usable,
        other=lambda: _usable(other=0),
        default_context=lambda: _usable(context=616 * 2**20),
        workspace=lambda: _usable(workspace=2 * 8_519_680),
        one_workspace=lambda: _usable(workspace=2**25),
        context=lambda: _usable(context=0),
    ),
    "45.2": answers(
        2 * B * S * (4 * H**2 + 2 * H * F) + 4 * B * S**2 * H,
        half=B * S * (4 * H**2 + 2 * H * F) + 2 * B * S**2 * H,
        products=2 * B * S * (4 * H**2 + 2 * H * F),
        one_product=2 * B * S * (4 * H**2 + 2 * H * F) + 2 * B * S**2 * H,
        one_matrix=2 * B * S * (4 * H**2 + H * F) + 4 * B * S**2 * H,
        gate=2 * B * S * (4 * H**2 + 3 * H * F) + 4 * B * S**2 * H,
    ),
    "45.3": answers(
        _largest,
        h100=lambda: _largest("h100-80gb"),
        kept=lambda: _largest(checkpointing="none"),
        next=lambda: _largest() + 1,
    ),
    "45.4": answers(lambda: _gpus(16), twelve=lambda: _gpus(12), weights=lambda: _gpus(2)),
    "45.5": answers(
        _more, flash=lambda: _more(attention="flash"), selective=lambda: _more(checkpointing="selective"), third=100 / 3
    ),
    "45.6": program(_bisection, _cards, least=1, scan=True, doubles=True, over=1),
}
