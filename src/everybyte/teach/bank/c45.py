"""Exercises of chapter 45: which GPU, how many, and with which switches?"""

from ...catalog import gpu, model
from ...fit import Headroom, fit
from ...formulas import SYMBOLS
from ...plan import work
from ...setup import Setup
from ..exercise import Exercise

B, S, H, F = (SYMBOLS[name].symbol for name in ("batch", "sequence", "width", "ffn_width"))
_MIXED = Setup(precision="bf16-mixed")


def _usable(**kept):
    return Headroom(**kept).usable(gpu("l4"))


def _largest(card="rtx-4090", **changes):
    return fit(model("gpt2-medium"), _MIXED.replace(**changes), card).value


def _gpus(bytes_each):
    return -(-bytes_each * model("llama-2-13b").parameters // Headroom().usable(gpu("a100-80gb")))


def _more(**changes):
    run = Setup(attention="eager").replace(**changes)
    plain = run.replace(checkpointing="none", checkpoint_every=2)
    return 100 * (work(model("gpt2"), run).flops / work(model("gpt2"), plain).flops - 1)


EXERCISES = [
    Exercise(
        id="45.1",
        title="What is usable of an L4 on which a desktop keeps 1 GiB",
        difficulty=1,
        minutes=4,
        unit="GiB",
        decimals=2,
        answer=lambda: _usable(other=2**30),
        mistakes={
            "the desktop's GiB is missing": _usable,
            "an L4 is not a Hopper: its workspaces are 8.125 MiB each": lambda: _usable(
                other=2**30, workspace=2 * 2**25
            ),
            "there are two workspaces: forward and backward run in threads of their own": lambda: _usable(
                other=2**30, workspace=8_519_680
            ),
            "the context is the largest term, and it is missing": lambda: _usable(other=2**30, context=0),
        },
        hints=(
            "Memory less context, two workspaces, the allocator's pages, and what the desktop keeps.",
            "22,563 MiB less 616, less two times 8.125, less 22, less 1,024.",
        ),
    ),
    Exercise(
        id="45.2",
        title="The operations of one block's forward, its MLP F wide",
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
        },
        hints=(
            "Which numbers of the block stand in matrices? Each token meets each of them once.",
            "4 H² in the attention's matrices, 2 H F in the MLP's; then 2 B S² H for each of attention's two products.",
        ),
    ),
    Exercise(
        id="45.3",
        title="The largest batch of GPT-2 medium under autocast on an RTX 4090, 1,024 tokens a sequence",
        difficulty=1,
        minutes=3,
        unit="sequences",
        answer=_largest,
        mistakes={
            "that is fp32's": lambda: _largest(precision="fp32"),
            "that is with eager attention": lambda: _largest(attention="eager"),
            "that one no longer fits: it is the next": lambda: _largest() + 1,
        },
        hints=(
            "`eb.fit` takes the model, the setup and the GPU's name.",
            'The setup is `eb.Setup(precision="bf16-mixed")`; the answer is the `.value` of what `eb.fit` returns.',
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
        title="How many percent more operations full checkpointing costs: GPT-2 124M, eager, 1,024 tokens",
        difficulty=3,
        minutes=8,
        unit="%",
        decimals=1,
        answer=lambda: _more(checkpointing="full"),
        mistakes={
            "that is with flash attention, whose backward has five squares": lambda: _more(
                checkpointing="full", attention="flash"
            ),
            "that is selective checkpointing's": lambda: _more(checkpointing="selective"),
            "a third is the limit where head, attention and the spared product count for nothing": lambda: 100 / 3,
        },
        hints=(
            "Take the chapter's `step` and `again`. What is different in backward where the scores were kept?",
            "Without the fifth square the step is `3 * (L * block + head)`; what is made again is the same.",
        ),
    ),
]
