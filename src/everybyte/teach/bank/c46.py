"""Exercises of chapter 46: the questions people are asked."""

from math import sqrt

from ...catalog import model
from ...formulas import formula
from ...formulas.formats import FLOATS
from ...setup import Setup
from ..exercise import Exercise

_TOKENS = 32 * 8_192
_MICRO = Setup(batch=1, sequence=1_024, precision="bf16-mixed")
_SEVEN = 7 * 10**9


def _cache(heads="kv_heads", tensors=2, width=2):
    m = model("llama-3.1-70b")
    return tensors * m.layers * getattr(m, heads) * m.head_width * width * _TOKENS


def _vanishing(new=0.05, share=2, name="smallest"):
    return sqrt(formula(f"formats.{name}")(**FLOATS["fp16"]) / share / new)


def _stage(micro_batches=4, blocks=12, setup=_MICRO):
    return micro_batches * blocks * formula("activations.block").at(model("gpt2-xl"), setup)


EXERCISES = [
    Exercise(
        id="46.1",
        title="The KV cache of Llama-3.1-70B for 32 sequences of 8,192 tokens, in 16 bits",
        difficulty=1,
        minutes=3,
        unit="GiB",
        decimals=2,
        answer=_cache,
        mistakes={
            "heads share keys and values here: count key-value heads": lambda: _cache("heads"),
            "that is keys or values, not both": lambda: _cache(tensors=1),
            "that is in fp32": lambda: _cache(width=4),
        },
        hints=(
            "Two vectors for each token in each layer, each as long as key-value heads times head width.",
            "2 × 80 layers × 8 key-value heads × 128 × 2 bytes for one token; then 32 × 8,192 tokens.",
        ),
    ),
    Exercise(
        id="46.2",
        title="With beta_2 = 0.95, the largest first gradient, in millionths, whose square rounds to zero in fp16",
        difficulty=2,
        minutes=5,
        answer=lambda: 10**6 * _vanishing(),
        decimals=0,
        mistakes={
            "that is for beta_2 = 0.999": lambda: 10**6 * _vanishing(new=0.001),
            "a number over half the smallest rounds up to it": lambda: 10**6 * _vanishing(share=1),
            "below the smallest normal number there are subnormals": lambda: 10**6 * _vanishing(name="smallest_normal"),
            "the state takes a twentieth of the square": lambda: 10**6 * _vanishing(new=1),
        },
        hints=(
            "After the first step the state is (1 - beta_2) times the squared gradient. What does fp16 round to zero?",
            "What is at most half of fp16's smallest number, 2⁻²⁴, does: 0.05 g² = 2⁻²⁵.",
        ),
    ),
    Exercise(
        id="46.3",
        title="What the blocks of a pipeline's first stage keep: GPT-2 XL in four stages, micro-batches of 1 × 1,024",
        difficulty=2,
        minutes=5,
        unit="GiB",
        decimals=2,
        answer=_stage,
        mistakes={
            "that is the last stage: the first waits for as many micro-batches as there are stages": lambda: _stage(1),
            "a stage has a quarter of the 48 blocks": lambda: _stage(4, 48),
            "that is in fp32": lambda: _stage(setup=_MICRO.replace(precision="fp32")),
        },
        hints=(
            "How many micro-batches has the first stage begun before the first gradient comes back to it?",
            'Four micro-batches times 12 blocks times `eb.formula("activations.block")` at a batch of 1.',
        ),
    ),
    Exercise(
        id="46.4",
        title="Find the error: 7 billion parameters, 8 GPUs, ZeRO-2, 56 GB of states on each",
        difficulty=2,
        minutes=4,
        unit="GB",
        decimals=2,
        answer=lambda: _SEVEN * 2 + _SEVEN * 14 / 8,
        mistakes={
            "that is ZeRO-1: gradients are divided too": lambda: _SEVEN * 4 + _SEVEN * 12 / 8,
            "that is ZeRO-3: weights are not divided": lambda: _SEVEN * 16 / 8,
            "that divides Adam's states and gradients, but not the master copy": lambda: _SEVEN * 6 + _SEVEN * 10 / 8,
            "that is the published one": lambda: 56 * 10**9,
        },
        hints=(
            "Two bytes of weight, two of gradient, twelve of optimizer. Which stay whole?",
            "Weights alone: 2 bytes a parameter, and an eighth of the other 14.",
        ),
    ),
]
