"""Exercises of chapter 25: what do LoRA and QLoRA really save?"""

from functools import cache

from ...budget import budget
from ...catalog import model
from ...formulas import formula
from ...setup import Lora, Setup
from ..exercise import Exercise
from ..program import Case, Program, small_llamas

LLAMA, QWEN = "llama-3.1-8b", "qwen2.5-7b"
#: QLoRA's step on one card.
QLORA = Setup(
    batch=1, sequence=2048, precision="bf16-mixed", checkpointing="full", optimizer="paged-adamw8bit", quantization="nf4",
    adapters=Lora(16, base="bf16"),
)  # fmt: skip


@cache
def kept(lora=None, **changes) -> int:
    """Bytes that one layer of Qwen2.5-7B keeps of forward for backward, 1 × 2,048 tokens in bf16."""
    setup = Setup(batch=1, sequence=2048, precision="bf16", adapters=lora).replace(**changes)
    phases = [budget(model(QWEN).replace(layers=layers), setup).phases for layers in (3, 2)]
    three, two = (p["after_forward"] - p["rest"] for p in phases)
    return three - two


def _more(lora):
    return 100 * (kept(lora) / kept() - 1)


def _trained(rank=16, targets=("q", "v")):
    """Numbers in adapters of Llama 3.1 8B."""
    m = model(LLAMA)
    inner, keys = m.heads * m.head_width, m.kv_heads * m.head_width
    outputs = {"q": inner, "k": keys, "v": keys}
    return m.layers * rank * sum(m.width + outputs[t] for t in targets)


_MATRIX = 4096 * 14_336


def _frozen(**changes):
    """Bytes of all weights of Llama 3.1 8B under QLoRA, adapters among them."""
    return budget(model(LLAMA), QLORA.replace(**changes)).moments["rest"]["parameters"]


def _lora():
    for case, m in enumerate(small_llamas(25, 6)):
        rank = (1, 2, 4, 8, 16, 3)[case]
        run = Setup(batch=1, sequence=32, precision="bf16", adapters=Lora(rank))
        yield Case(f"{m.name}, rank {rank}", (m, rank), int(budget(m, run).phases["rest"]))


def _at_rest(frozen=2, trained=12, both=True, grouped=True):
    """What it would be with other bytes a frozen or a trained number, with A alone, or without grouped heads."""

    def at_rest(model, rank):
        width, inner = model.width, model.heads * model.head_width
        keys = model.kv_heads * model.head_width if grouped else inner
        pairs = [(width, inner), (width, keys), (width, keys), (inner, width)]
        pairs += 2 * [(width, model.ffn_width)] + [(model.ffn_width, width)]
        adapters = model.layers * sum(rank * (a + b * both) for a, b in pairs)
        return frozen * model.parameters + trained * adapters

    return at_rest


EXERCISES = [
    Exercise(
        id="25.1",
        title="What peft's usual adapters keep of a layer's forward, over full fine-tuning",
        difficulty=2,
        minutes=4,
        unit="%",
        decimals=0,
        answer=lambda: _more(Lora(16)),
        mistakes={
            "that is with adapters in bf16: peft makes them in fp32": lambda: _more(Lora(16, dtype="bf16")),
            "that is the share that it keeps in all: how much more is it than full fine-tuning?": lambda: (
                100 + _more(Lora(16))
            ),
        },
        hints=(
            "Each targeted layer has its input cast to fp32 and saved. How many targets share an input in full fine-tuning?",
            "A token costs 4 (5 H + AD + F) + 28 r bytes for the seven inputs and A's results, where full fine-tuning has "
            "2 (2 H + F) for the inputs that nothing else keeps.",
        ),
    ),
    Exercise(
        id="25.2",
        title="Numbers that train: rank 16 on q and v of Llama 3.1 8B",
        difficulty=1,
        minutes=4,
        unit="parameters",
        answer=_trained,
        mistakes={
            "that is one layer's: there are 32": lambda: _trained() // 32,
            "keys and values have 8 heads where queries have 32: v's B is (1,024, r)": 32 * 16 * 4 * 4096,
            "you counted A alone, or B alone: each target has both": 32 * 16 * 2 * 4096,
            "those are the targets k and q and v": lambda: _trained(targets=("q", "k", "v")),
        },
        hints=(
            "A target with n inputs and m outputs has r (n + m) numbers.",
            "q: 4,096 and 4,096. v: 4,096 and 1,024. Then rank 16 and 32 layers.",
        ),
    ),
    Exercise(
        id="25.3",
        title="One MLP matrix of Llama 3.1 8B in NF4",
        difficulty=2,
        minutes=5,
        unit="MiB",
        decimals=2,
        answer=lambda: formula("nf4.weight")(parameters=_MATRIX),
        mistakes={
            "that is half a byte each: the scales are missing": _MATRIX // 2,
            "these are scales in fp32: with double quantization they have 8 bits": _MATRIX // 2 + _MATRIX // 64 * 4,
            "that is the matrix in bf16": 2 * _MATRIX,
        },
        hints=(
            "Four bits a number, eight bits for each block of 64, and an fp32 number for each 256 of those.",
            "58,720,256 / 2 + 917,504 + 4 × 3,584, and 1,092 bytes of tables. A MiB is 1024 × 1024 bytes.",
        ),
    ),
    Exercise(
        id="25.4",
        title="What QLoRA's weights of Llama 3.1 8B take",
        difficulty=2,
        minutes=6,
        unit="GiB",
        decimals=2,
        answer=_frozen,
        mistakes={
            "that is 4.127 bits for every parameter: embedding and head stay in 16": lambda: (
                4.127 / 8 * model(LLAMA).parameters
            ),
            "that is half a byte for every parameter": lambda: model(LLAMA).parameters / 2,
            "those are weights with embedding, head and norms in fp32": lambda: _frozen(adapters=Lora(16)),
        },
        hints=(
            "Only the blocks' linear layers are quantized.",
            "128,256 × 4,096 numbers, twice, stay in bf16; adapters of rank 16 are 41,943,040 numbers in fp32.",
        ),
    ),
    Exercise(
        id="25.5",
        title="The peak of QLoRA with 8,192 tokens, Qwen2.5-7B",
        difficulty=3,
        minutes=8,
        unit="GiB",
        decimals=2,
        answer=lambda: budget(model(QWEN), QLORA.replace(sequence=8192)).peak,
        mistakes={
            "that is the step of 2,048 tokens": lambda: budget(model(QWEN), QLORA).peak,
            "that is four times the step of 2,048 tokens: the weights do not grow": lambda: (
                4 * budget(model(QWEN), QLORA).peak
            ),
            "that is the step with embedding, head and norms in fp32": lambda: (
                budget(model(QWEN), QLORA.replace(sequence=8192, adapters=Lora(16))).peak
            ),
        },
        hints=(
            "What stands does not grow with tokens. What does is the logits, above all.",
            "Ask `eb.budget` for the step of `qlora.replace(sequence=8192)`, and read its peak.",
        ),
    ),
    Program(
        id="25.6",
        title="A function for what LoRA keeps between steps",
        difficulty=2,
        minutes=10,
        call="at_rest(model, rank)",
        cases=_lora,
        answer=_at_rest,
        mistakes={
            "frozen weights have no states: two bytes each, and no more": lambda: _at_rest(frozen=6),
            "peft makes the adapters in fp32, and AdamW's two states beside them: 12 bytes": lambda: _at_rest(
                trained=6
            ),
            "the adapters' own states are missing": lambda: _at_rest(trained=4),
            "an adapter is two matrices: A has rank rows, and B has rank columns": lambda: _at_rest(both=False),
            "keys and values have fewer heads": lambda: _at_rest(grouped=False),
        },
        hints=(
            "Seven linear layers a block. One of a by b numbers gets a matrix of rank by a and one of b by rank.",
            "2 bytes for each of `model.parameters`, 4 + 8 for each number of an adapter. k and v give kv_heads * head_width numbers.",
        ),
    ),
]
