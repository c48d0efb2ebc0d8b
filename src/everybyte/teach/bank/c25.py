"""Exercises of chapter 25: what do LoRA and QLoRA really save?"""

from functools import cache, partial

from ...ask.setup import Lora, Setup
from ...catalog import model
from ...formulas import formula
from ...theory.budget import budget
from ..asking import parameters, peak, step
from ..program import Case, small_llamas
from . import answers, program

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
    return step(LLAMA, QLORA, **changes).moments["rest"]["parameters"]


def _lora():
    for case, m in enumerate(small_llamas(25, 6)):
        rank = (1, 2, 4, 8, 16, 3)[case]
        run = Setup(batch=1, sequence=32, precision="bf16", adapters=Lora(rank))
        yield Case(f"{m.name}, rank {rank}", (m, rank), int(budget(m, run).phases["rest"]))


def _at_rest(model, rank, *, frozen=2, trained=12, both=True, grouped=True):
    """The answer, or what it would be with other bytes a frozen or a trained number, with A alone, or without grouped heads."""
    width, inner = model.width, model.heads * model.head_width
    keys = model.kv_heads * model.head_width if grouped else inner
    pairs = [(width, inner), (width, keys), (width, keys), (inner, width)]
    pairs += 2 * [(width, model.ffn_width)] + [(model.ffn_width, width)]
    adapters = model.layers * sum(rank * (a + b * both) for a, b in pairs)
    return frozen * model.parameters + trained * adapters


ANSWERS = {
    "25.1": answers(
        lambda: _more(Lora(16)), bf16=lambda: _more(Lora(16, dtype="bf16")), share=lambda: 100 + _more(Lora(16))
    ),
    "25.2": answers(
        _trained,
        one_layer=lambda: _trained() // 32,
        heads=32 * 16 * 4 * 4096,
        one_matrix=32 * 16 * 2 * 4096,
        keys=lambda: _trained(targets=("q", "k", "v")),
    ),
    "25.3": answers(
        lambda: formula("nf4.weight")(parameters=_MATRIX),
        scales=_MATRIX // 2,
        fp32_scales=_MATRIX // 2 + _MATRIX // 64 * 4,
        bf16=2 * _MATRIX,
    ),
    "25.4": answers(
        _frozen,
        everything=lambda: 4.127 / 8 * parameters(LLAMA),
        half_byte=lambda: parameters(LLAMA) / 2,
        fp32=lambda: _frozen(adapters=Lora(16)),
    ),
    "25.5": answers(
        lambda: peak(QWEN, QLORA, sequence=8192),
        short=lambda: peak(QWEN, QLORA),
        four_times=lambda: 4 * peak(QWEN, QLORA),
        fp32=lambda: peak(QWEN, QLORA, sequence=8192, adapters=Lora(16)),
    ),
    "25.6": program(
        _at_rest, _lora, frozen=6, trained=6, states=partial(_at_rest, trained=4), both=False, grouped=False
    ),
}
