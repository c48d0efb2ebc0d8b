"""Exercises of chapter 15: when, within a step, is the peak?"""

from functools import cache

from ...formulas.symbols import H
from . import Case, Setup, answers, each, formula, model, program, run, small_models

STEP = run("gpt2-medium", batch=1, sequence=512)
XL, FUSED = run("gpt2-xl"), run("gpt2-xl", batch=1, sequence=128, optimizer_impl="fused")
MIXED = run("gpt2", precision="bf16-mixed")
LOSS = "instant.log_softmax_backward"


def change(precision="bf16", each=2):
    kept = formula("activations.block").for_model(model("gpt2"), Setup(precision=precision))
    return each * (12 * H**2 + 13 * H) - kept


def tables(copies):
    return copies * 4 * XL.model.vocabulary * XL.model.width


def accumulating(times=1):
    return XL.at(LOSS) + times * XL.at("gradients")


@cache
def steps():
    """Small models' steps as PyTorch runs them: what is taken and freed, and where the most is live."""
    from ...dryrun import dry_run

    found = []
    for m, batch in zip(small_models(17, 3), (1, 4, 16, 1, 4, 16), strict=True):
        trace = dry_run(m, Setup(batch=batch, sequence=32, precision="bf16-mixed"))
        number = {id(tensor): i for i, tensor in enumerate(trace.allocations)}
        events = [("take", number[id(t)], t.bytes) for t in trace.allocations if t.birth == 0]
        for change in (c for c in trace.changes if c.allocation):
            tensor = number[id(change.allocation)]
            events.append(("take", tensor, change.allocation.bytes) if change.what == "birth" else ("free", tensor))
        right = ledger(events)
        if right[0] != trace.peak:
            raise AssertionError(f"{m.name}: {right[0]} in the events, {trace.peak} in the trace")
        found.append(Case(f"a step of {m.name}, {batch} x 32 tokens", (events,), right))
    return found


def ledger(events, *, frees=True, end=False):
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
    "15.1": answers(
        STEP.phase("step"), loss=lambda: STEP.at(LOSS), **each(STEP.phase, after_backward="after_backward", rest="rest")
    ),
    "15.2": answers(
        change(), fp32=change("fp32", 4), sign=-change(), mixed=change(each=4), gradients=2 * (12 * H**2 + 13 * H)
    ),
    "15.3": answers(
        lambda: FUSED.at("instant.end_of_backward") - FUSED.phase("after_backward"),
        **each(tables, one=1, three=3),
        all_gradients=FUSED.at("gradients"),
    ),
    "15.4": answers(
        lambda: MIXED.at("instant.nll_backward"),
        gradients=lambda: MIXED.at("instant.nll_backward") + MIXED.at("gradients"),
        after_forward=MIXED.phase("after_forward"),
        fp32=lambda: MIXED.at(LOSS, precision="fp32"),
    ),
    "15.5": answers(accumulating, first={"times": 0}, three={"times": 3}, four={"times": 4}),
    "15.6": program(ledger, steps, frees=False, end=True),
}
