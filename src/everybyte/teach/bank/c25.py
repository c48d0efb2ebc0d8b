"""Exercises of chapter 25: what do LoRA and QLoRA really spare?"""

from . import Case, Lora, Run, Setup, answers, formula, model, program, run, small_llamas

ONE = Setup(batch=1, sequence=2048, precision="bf16")
LLAMA, QWEN = run("llama-3.1-8b", ONE), Run(model("qwen2.5-7b"), ONE)  # Qwen as Hugging Face runs it
#: QLoRA's step on one card.
QLORA = {
    "precision": "bf16-mixed",
    "checkpointing": "full",
    "optimizer": "paged-adamw8bit",
    "quantization": "nf4",
    "adapters": Lora(16, base="bf16"),
}
LLAMA, P = LLAMA.having(**QLORA), LLAMA.parameters
MATRIX = 4096 * 14_336
NF4 = formula("nf4.weight")(parameters=MATRIX)


def more(share=0, **lora):
    """The further bytes that a layer of Qwen2.5-7B saves, compared with full fine-tuning, in percent."""
    return share + 100 * (QWEN.of_block(Run.forward, adapters=Lora(16, **lora)) / QWEN.of_block(Run.forward) - 1)


def trained(rank=16, targets=("q", "v")):
    """Numbers in adapters of Llama 3.1 8B."""
    m = LLAMA.model
    inner, keys = m.heads * m.head_width, m.kv_heads * m.head_width
    outputs = {"q": inner, "k": keys, "v": keys}
    return m.layers * rank * sum(m.width + outputs[t] for t in targets)


def frozen(**changes):
    """Bytes of all weights of Llama 3.1 8B under QLoRA, adapters among them."""
    return LLAMA.part("parameters", "rest", **changes)


def long(sequence=8192, adapters=QLORA["adapters"]):
    """The peak of QLoRA's step of Qwen2.5-7B, as Hugging Face's code runs it."""
    return QWEN.peak(sequence=sequence, **QLORA | {"adapters": adapters})


def adapted():
    for m, rank in zip(small_llamas(25, 6), (1, 2, 4, 8, 16, 3), strict=True):
        run = Setup(batch=1, sequence=32, precision="bf16", adapters=Lora(rank))
        yield Case(f"{m.name}, rank {rank}", (m, rank), int(Run(m, run).phase("rest")))


def at_rest(model, rank, *, frozen=2, trained=12, both=True, grouped=True):
    width, inner = model.width, model.heads * model.head_width
    keys = model.kv_heads * model.head_width if grouped else inner
    pairs = [(width, inner), (width, keys), (width, keys), (inner, width)]
    pairs += 2 * [(width, model.ffn_width)] + [(model.ffn_width, width)]
    adapters = model.layers * sum(rank * (a + b * both) for a, b in pairs)
    return frozen * model.parameters + trained * adapters


ANSWERS = {
    "25.1": answers(more, bf16={"dtype": "bf16"}, share=100),
    "25.2": answers(
        trained, layer=trained() // 32, heads=32 * 16 * 4 * 4096, one_matrix=32 * 16 * 2 * 4096, targets=("q", "k", "v")
    ),
    "25.3": answers(NF4, scales=MATRIX // 2, fp32_scales=MATRIX // 2 + MATRIX // 64 * 4, bf16=2 * MATRIX),
    "25.4": answers(frozen(), everything=4.127 / 8 * P, half_byte=P / 2, fp32=frozen(adapters=Lora(16))),
    "25.5": answers(long, sequence=2048, four_times=4 * long(2048), adapters=Lora(16)),
    "25.6": program(at_rest, adapted, frozen=6, trained=6, states={"trained": 4}, both=False, grouped=False),
}
