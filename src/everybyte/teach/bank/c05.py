"""Exercises of lab 5: optimizers and adapters."""

from ...budget import budget
from ...catalog import model
from ...setup import Lora, Setup
from ..exercise import Exercise

_FULL = Setup(precision="bf16-mixed", optimizer_impl="fused")
_LORA = _FULL.replace(adapters=Lora(16, base="bf16"))
_QLORA = _LORA.replace(quantization="nf4")


def _peak(setup):
    return budget(model("gpt2"), setup).peak


def _states(setup):
    return budget(model("gpt2"), setup).parts_at("rest")["optimizer"]


EXERCISES = [
    Exercise(
        id="05.1",
        title="What AdamW keeps for GPT-2's adapters of rank 16",
        difficulty=2,
        minutes=5,
        unit="MiB",
        decimals=0,
        answer=lambda: 8 * 16 * 12 * (4 * 768 + 2 * 768 + 5 * 768 + 5 * 768),
        mistakes={
            "that is one of Adam's two states": lambda: _states(_LORA) / 2,
            "that is full fine-tuning's": lambda: _states(_FULL),
            "these are the adapters' own bytes, with gradients and states": lambda: 2 * _states(_LORA),
        },
        hints=(
            "A target of n inputs and m outputs has r (n + m) numbers; GPT-2's block has four targets.",
            "768 + 2,304, 768 + 768, 768 + 3,072 and 3,072 + 768, times rank 16 and 12 blocks; eight bytes a number.",
        ),
    ),
    Exercise(
        id="05.2",
        title="How much more QLoRA takes than LoRA at the peak of GPT-2",
        difficulty=2,
        minutes=4,
        unit="MiB",
        decimals=1,
        answer=lambda: _peak(_QLORA) - _peak(_LORA),
        mistakes={
            "that is what stands between steps, and there QLoRA takes less": lambda: (
                budget(model("gpt2"), _LORA).phases["rest"] - budget(model("gpt2"), _QLORA).phases["rest"]
            ),
            "that is against full fine-tuning": lambda: _peak(_FULL) - _peak(_QLORA),
        },
        hints=(
            "The table of peaks has both.",
            "Under autocast a layer in 4 bits gives its result back in its input's type, fp32 behind a norm.",
        ),
    ),
    Exercise(
        id="05.3",
        title="What 8-bit AdamW saves against AdamW at the peak of GPT-2",
        difficulty=1,
        minutes=3,
        unit="MiB",
        decimals=1,
        answer=lambda: _peak(_FULL) - _peak(_FULL.replace(optimizer="adamw8bit")),
        mistakes={
            "that is what Lion saves": lambda: (
                _peak(_FULL) - _peak(_FULL.replace(optimizer="lion", optimizer_impl="loop"))
            ),
            "these are 8-bit AdamW's states": lambda: _states(_FULL.replace(optimizer="adamw8bit")),
        },
        hints=(
            "The peak is in the loss's backward, and states stand there as they do at every other moment.",
            "The difference of both states: 8 bytes a parameter against 2.037.",
        ),
    ),
]
