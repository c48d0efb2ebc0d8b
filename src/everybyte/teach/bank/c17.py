"""Exercises of chapter 17: when, within a step, is the peak?"""

from functools import cache

from ...ask.setup import Setup
from ...catalog import model
from ...formulas import formula
from ...formulas.symbols import H
from ..asking import at
from ..program import Case, small_gpts, small_llamas
from . import answers, program

_SMALL_STEP = Setup(batch=1, sequence=512)
_FUSED = Setup(batch=1, sequence=128, optimizer_impl="fused")
_MIXED = Setup(precision="bf16-mixed")


def _block_change(precision, bytes_each):
    kept = formula("activations.block").for_model(model("gpt2"), Setup(precision=precision))
    return bytes_each * (12 * H**2 + 13 * H) - kept


def _table(copies):
    xl = model("gpt2-xl")
    return copies * 4 * xl.vocabulary * xl.width


def _above_backward():
    return at("instant.end_of_backward", "gpt2-xl", _FUSED) - at("phase.after_backward", "gpt2-xl", _FUSED)


def _mixed_peak():
    return at("instant.nll_backward", "gpt2", _MIXED)


def _accumulating(times):
    return at("instant.log_softmax_backward", "gpt2-xl") + times * at("gradients", "gpt2-xl")


@cache
def _steps():
    """Small models' steps as PyTorch runs them: what is taken and freed, and where the most is live."""
    from ...dryrun import dry_run

    found = []
    for m, batch in zip(small_gpts(17, 3) + small_llamas(17, 3), (1, 4, 16, 1, 4, 16), strict=True):
        trace = dry_run(m, Setup(batch=batch, sequence=32, precision="bf16-mixed"))
        number = {id(tensor): i for i, tensor in enumerate(trace.allocations)}
        events = [("take", number[id(t)], t.bytes) for t in trace.allocations if t.birth == 0]
        for change in (c for c in trace.changes if c.allocation):
            tensor = number[id(change.allocation)]
            events.append(("take", tensor, change.allocation.bytes) if change.what == "birth" else ("free", tensor))
        right = _ledger(events)
        if right[0] != trace.peak:
            raise AssertionError(f"{m.name}: {right[0]} in the events, {trace.peak} in the trace")
        found.append(Case(f"a step of {m.name}, {batch} x 32 tokens", (events,), right))
    return found


def _ledger(events, *, frees=True, end=False):
    """The answer, or what it would be without frees, or with what is live at the end."""
    live, total, best = {}, 0, (0, 0)
    for index, (what, tensor, *size) in enumerate(events):
        if what == "take":
            live[tensor] = size[0]
            total += size[0]
        elif frees:
            total -= live.pop(tensor)
        if end or total > best[0]:
            best = total, index
    return best


ANSWERS = {
    "17.1": answers(
        lambda: at("phase.step", "gpt2-medium", _SMALL_STEP),
        after_backward=lambda: at("phase.after_backward", "gpt2-medium", _SMALL_STEP),
        loss=lambda: at("instant.log_softmax_backward", "gpt2-medium", _SMALL_STEP),
        rest=lambda: at("phase.rest", "gpt2-medium", _SMALL_STEP),
    ),
    "17.2": answers(
        lambda: _block_change("bf16", 2),
        fp32=lambda: _block_change("fp32", 4),
        sign=lambda: -_block_change("bf16", 2),
        mixed=lambda: _block_change("bf16", 4),
        gradients=2 * (12 * H**2 + 13 * H),
    ),
    "17.3": answers(
        _above_backward,
        one=lambda: _table(1),
        three=lambda: _table(3),
        all_gradients=lambda: at("gradients", "gpt2-xl", _FUSED),
    ),
    "17.4": answers(
        _mixed_peak,
        gradients=lambda: _mixed_peak() + at("gradients", "gpt2", _MIXED),
        after_forward=lambda: at("phase.after_forward", "gpt2", _MIXED),
        fp32=lambda: at("instant.log_softmax_backward", "gpt2"),
    ),
    "17.5": answers(
        lambda: _accumulating(1),
        first=lambda: _accumulating(0),
        three=lambda: _accumulating(3),
        four=lambda: _accumulating(4),
    ),
    "17.6": program(_ledger, _steps, frees=False, end=True),
}
