"""Exercises of chapter 45: which GPU, how many, and with which switches?"""

from dataclasses import replace

from ...budget import budget
from ...catalog import gpu, model
from ...fit import Headroom, fit
from ...formulas import SYMBOLS
from ...plan import work
from ...setup import Setup
from ..exercise import Exercise
from ..program import Case, Program, small_gpts

B, S, H, F = (SYMBOLS[name].symbol for name in ("batch", "sequence", "width", "ffn_width"))
_MIXED = Setup(gpus=8, sharding="zero3", precision="bf16-mixed", batch=2, sequence=8192, checkpointing="full")


def _usable(context=426 * 2**20, other=2**30, **kept):
    return Headroom(context=context, other=other, **kept).usable(gpu("h100-80gb"))


def _largest(card="h200", **changes):
    return fit(model("llama-3.1-8b"), _MIXED.replace(**changes), card).value


def _gpus(bytes_each):
    return -(-bytes_each * model("llama-2-13b").parameters // Headroom().usable(gpu("a100-80gb")))


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


def _bisection(least=0, scan=False, doubles=False, over=0):
    """What it would be with another answer where nothing fits, one by one, with powers of two, or one too many."""

    def fit(peak, usable):
        if peak(1) > usable:
            return least
        low, high = 1, 2
        while peak(high) <= usable:
            low, high = high, high + 1 if scan else 2 * high
        while high - low > 1 and not doubles:
            middle = (low + high) // 2
            low, high = (middle, high) if peak(middle) <= usable else (low, middle)
        return low + over

    return fit


EXERCISES = [
    Exercise(
        id="45.1",
        title="What is usable of an H100 of which NCCL keeps 1 GiB",
        difficulty=1,
        minutes=4,
        unit="GiB",
        decimals=2,
        answer=_usable,
        mistakes={
            "NCCL's GiB is missing": lambda: _usable(other=0),
            "that is with the default's context": lambda: _usable(context=616 * 2**20),
            "an H100 is a Hopper: its workspaces are 32 MiB each": lambda: _usable(workspace=2 * 8_519_680),
            "there are two workspaces: forward and backward run in threads of their own": lambda: _usable(
                workspace=2**25
            ),
            "the context is missing": lambda: _usable(context=0),
        },
        hints=(
            "Memory less context, two workspaces, the allocator's pages, and what NCCL keeps.",
            "81,090 MiB less 426, less two times 32, less 22, less 1,024.",
        ),
    ),
    Exercise(
        id="45.2",
        title="The operations of a GPT's block in forward, its MLP F wide",
        difficulty=2,
        minutes=5,
        accepts="expression",
        answer=lambda: 2 * B * S * (4 * H**2 + 2 * H * F) + 4 * B * S**2 * H,
        mistakes={
            "a multiplication and an addition are two operations": lambda: (
                B * S * (4 * H**2 + 2 * H * F) + 2 * B * S**2 * H
            ),
            "attention's own two products are missing": lambda: 2 * B * S * (4 * H**2 + 2 * H * F),
            "attention has two products of S by S: queries by keys, and weights by values": lambda: (
                2 * B * S * (4 * H**2 + 2 * H * F) + 2 * B * S**2 * H
            ),
            "the MLP has two matrices": lambda: 2 * B * S * (4 * H**2 + H * F) + 4 * B * S**2 * H,
            "a GPT's MLP has two matrices: the third is a Llama's gate": lambda: (
                2 * B * S * (4 * H**2 + 3 * H * F) + 4 * B * S**2 * H
            ),
        },
        hints=(
            "Which numbers of the block stand in matrices? Each token meets each of them once.",
            "4 H² in the attention's matrices, 2 H F in the MLP's; then 2 B S² H for each of attention's two products.",
        ),
    ),
    Exercise(
        id="45.3",
        title="The largest batch of the chapter's run, checkpointed, on 8 H200s",
        difficulty=1,
        minutes=3,
        unit="sequences",
        answer=_largest,
        mistakes={
            "that is an H100's": lambda: _largest("h100-80gb"),
            "that is without checkpointing": lambda: _largest(checkpointing="none"),
            "that one no longer fits: it is the next": lambda: _largest() + 1,
        },
        hints=(
            "`eb.fit` takes the model, the setup and the GPU's name.",
            "The setup is the chapter's `full`; the answer is the `.value` of what `eb.fit` returns.",
        ),
    ),
    Exercise(
        id="45.4",
        title="How many 80 GB A100s the states of Llama-2-13B need, at 16 bytes a parameter, all divided",
        difficulty=2,
        minutes=4,
        unit="GPUs",
        answer=lambda: _gpus(16),
        mistakes={
            "that is what weights and Adam's states alone need: gradients are four bytes more": lambda: _gpus(12),
            "those are the weights alone": lambda: _gpus(2),
        },
        hints=(
            "13,015,864,320 parameters; what is usable of one GPU says `eb.Headroom().usable(...)`.",
            "193.95 GiB of states, 78.68 GiB usable of each: divide, and round up.",
        ),
    ),
    Exercise(
        id="45.5",
        title="How many percent more operations full checkpointing costs: Llama-3.1-8B, eager, 8,192 tokens",
        difficulty=3,
        minutes=8,
        unit="%",
        decimals=1,
        answer=_more,
        mistakes={
            "that is with flash attention, whose backward has five squares": lambda: _more(attention="flash"),
            "that is selective checkpointing's": lambda: _more(checkpointing="selective"),
            "a third is the limit where head, attention and the spared product count for nothing": lambda: 100 / 3,
        },
        hints=(
            "Take the chapter's `step` and `again`. What is different in backward where the scores were kept?",
            "Without the fifth square the step is `3 * (L * block + 2 * tokens * H * V)`; what is recomputed is the same.",
        ),
    ),
    Program(
        id="45.6",
        title="A function: the largest batch that fits, by asking the peak",
        difficulty=2,
        minutes=10,
        call="fit(peak, usable)",
        cases=_cards,
        answer=_bisection,
        mistakes={
            "where not even one sequence fits, the answer is 0": lambda: _bisection(least=1),
            "one batch after another asks too often: double until it does not fit, then halve the distance": lambda: (
                _bisection(scan=True)
            ),
            "that is a power of two: the largest batch lies between it and the next": lambda: _bisection(doubles=True),
            "that is the first batch that does not fit": lambda: _bisection(over=1),
        },
        hints=(
            "Double the batch until it does not fit. Then the answer lies between the last two.",
            "Keep `low`, which fits, and `high`, which does not; ask in the middle until they are neighbors.",
        ),
    ),
]
