"""Exercises of chapter 17: when, within a step, is the peak?"""

from functools import cache

from ...catalog import model
from ...formulas import SYMBOLS, formula
from ...setup import Setup
from ..exercise import Exercise
from ..program import Case, Program, small_gpts, small_llamas

H = SYMBOLS["width"].symbol

_SMALL_STEP = Setup(batch=1, sequence=512)
_FUSED = Setup(batch=1, sequence=128, optimizer_impl="fused")
_MIXED = Setup(precision="bf16-mixed")


def _of(name, which, setup):
    return formula(name).at(model(which), setup)


def _block_change(precision, bytes_each):
    kept = formula("activations.block").for_model(model("gpt2"), Setup(precision=precision))
    return bytes_each * (12 * H**2 + 13 * H) - kept


def _table(copies):
    xl = model("gpt2-xl")
    return copies * 4 * xl.vocabulary * xl.width


def _above_backward():
    return _of("instant.end_of_backward", "gpt2-xl", _FUSED) - _of("phase.after_backward", "gpt2-xl", _FUSED)


def _mixed_peak():
    return _of("instant.nll_backward", "gpt2", _MIXED)


def _accumulating(times):
    return _of("instant.log_softmax_backward", "gpt2-xl", Setup()) + times * _of("gradients", "gpt2-xl", Setup())


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
        right = _ledger()(events)
        if right[0] != trace.peak:
            raise AssertionError(f"{m.name}: {right[0]} in the events, {trace.peak} in the trace")
        found.append(Case(f"a step of {m.name}, {batch} x 32 tokens", (events,), right))
    return found


def _ledger(frees=True, end=False):
    """What it would be without frees, or with what is live at the end."""

    def ledger(events):
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

    return ledger


EXERCISES = [
    Exercise(
        id="17.1",
        title="The peak of GPT-2 medium in fp32 with AdamW, for one sequence of 512 tokens",
        difficulty=1,
        minutes=4,
        unit="GiB",
        decimals=2,
        answer=lambda: _of("phase.step", "gpt2-medium", _SMALL_STEP),
        mistakes={
            "that is after backward: foreach takes a root of the variance beside it all": lambda: _of(
                "phase.after_backward", "gpt2-medium", _SMALL_STEP
            ),
            "that is the loss's backward: with so few tokens it is not the largest": lambda: _of(
                "instant.log_softmax_backward", "gpt2-medium", _SMALL_STEP
            ),
            "that is between two steps": lambda: _of("phase.rest", "gpt2-medium", _SMALL_STEP),
        },
        hints=(
            "Where is the border for this model? The table of borders says how many tokens it takes for the loss to win.",
            "Below the border the optimizer's step wins: 20 bytes for each of 354,823,168 parameters, and 16 for each token.",
        ),
    ),
    Exercise(
        id="17.2",
        title="What one block's backward adds on balance, all in bf16 with flash attention",
        difficulty=2,
        minutes=8,
        accepts="expression",
        answer=lambda: _block_change("bf16", 2),
        mistakes={
            "that is fp32's": lambda: _block_change("fp32", 4),
            "the sign is the other way: gradients come, activations go": lambda: -_block_change("bf16", 2),
            "what the block kept is in bf16, and so are its gradients: two bytes each": lambda: _block_change(
                "bf16", 4
            ),
            "those are the gradients alone; the block's activations go": lambda: 2 * (12 * H**2 + 13 * H),
        },
        hints=(
            "Two lines: the gradients of one block's parameters, 12 H² + 13 H numbers, less what the block kept.",
            'What the block kept, in the letters of the book: `eb.formula("activations.block").for_model(gpt2, eb.Setup(precision="bf16"))`.',
        ),
    ),
    Exercise(
        id="17.3",
        title="How far the peak is above what stands after backward: GPT-2 XL, fp32, fused, one sequence of 128",
        difficulty=2,
        minutes=6,
        unit="MiB",
        decimals=1,
        answer=_above_backward,
        mistakes={
            "that is one copy in fp32, or two in 16 bits: two more than the gradients have stand there, in fp32": lambda: (
                _table(1)
            ),
            "three copies stand there, but one of them stays: it is the gradient": lambda: _table(3),
            "a fused optimizer takes no root of all variances; look at the end of backward": lambda: _of(
                "gradients", "gpt2-xl", _FUSED
            ),
        },
        hints=(
            "With a fused optimizer nothing is taken in its step. What is the last thing that backward does, with a tied table?",
            "The head's gradient, the table's own, and their sum: V × H numbers each. One of the three stays.",
        ),
    ),
    Exercise(
        id="17.4",
        title="A published peak that adds the gradients to everything else, corrected: GPT-2 under autocast",
        difficulty=2,
        minutes=6,
        unit="GiB",
        decimals=2,
        answer=_mixed_peak,
        mistakes={
            "you added gradients to the activations of the peak: there are none yet": lambda: (
                _mixed_peak() + _of("gradients", "gpt2", _MIXED)
            ),
            "that is after forward: backward of the loss begins by taking another tensor of the logits' shape": lambda: (
                _of("phase.after_forward", "gpt2", _MIXED)
            ),
            "these are fp32's bytes": lambda: _of("instant.log_softmax_backward", "gpt2", Setup()),
        },
        hints=(
            "Which parts have bytes at the peak? Ask the budget for its `parts`.",
            "Weights, casts, states, activations, loss. No gradient: take them out of the published sum.",
        ),
    ),
    Exercise(
        id="17.5",
        title="The peak of GPT-2 XL in fp32 when four batches of 8 are accumulated",
        difficulty=3,
        minutes=8,
        unit="GiB",
        decimals=2,
        answer=lambda: _accumulating(1),
        mistakes={
            "that is the first batch's: from the second on, gradients are there already": lambda: _accumulating(0),
            "gradients of several batches are added into one set": lambda: _accumulating(3),
            "gradients of four batches are added into one set": lambda: _accumulating(4),
        },
        hints=(
            "What is different for the second batch, while its loss goes backward?",
            "The first batch's gradients are still there: four bytes a parameter more, at the same instant.",
        ),
    ),
    Program(
        id="17.6",
        title="A ledger: where the most is live in a step, from what it takes and frees",
        difficulty=1,
        minutes=8,
        call="ledger(events)",
        cases=_steps,
        answer=_ledger,
        mistakes={
            "nothing is freed: that is all that was ever taken": lambda: _ledger(frees=False),
            "that is what is live when the step has ended": lambda: _ledger(end=True),
        },
        hints=(
            "Keep a dictionary of what is live, from tensor to bytes: a freed tensor does not say how large it was.",
            "Add on take, subtract on free, and whenever the sum is larger than any before, remember it with its index.",
        ),
    ),
]
