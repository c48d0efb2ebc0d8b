"""Exercises of chapter 44: why does training need ten times what inference needs?"""

from ...answers.serving import cache_bytes, serve, weight_bytes
from . import Case, answers, gpu, model, program, run, small_llamas

QWEN = run("qwen2.5-7b", batch=1, sequence=8192, precision="bf16-master")
LARGE, LLAMA = model("llama-3.1-70b", code="reference"), model("llama-3.1-8b", code="reference")
ONE, LONG = cache_bytes(LARGE, 4096), cache_bytes(LLAMA, 8192)
#: Of exercise 44.5: grouped, one head for all, a window, latent.
KINDS = (LLAMA, *map(model, ("gemma-2b", "mistral-7b", "deepseek-v3")))


def times(checkpointing="full", optimizer_impl="fused"):
    """The ratio of a training step's peak to that of generation, for one sequence of 8,192 tokens of Qwen2.5-7B."""
    return (
        QWEN.peak(checkpointing=checkpointing, optimizer_impl=optimizer_impl) / serve(QWEN.model, "h200", 8192, 1).peak
    )


def served(weights="nf4", cache_dtype="fp8"):
    """Sequences of 16,384 tokens that an RTX 4090 serves of Llama 3.1 8B at once, in pages."""
    return serve(LLAMA, "rtx-4090", 16_384, cache="paged", weights=weights, cache_dtype=cache_dtype).concurrency


def caches():
    windows = zip(small_llamas(44, 4), (0, 9, 64, 1000), strict=True)
    models = [*KINDS, *(m.replace(window=window, positions=2**14) for m, window in windows)]
    for m, tokens, page in zip(models, 2 * (5000, 17, 300, 64), 2 * (16, 1, 16, 32), strict=True):
        tokens = 5000 if m.window > 1000 else tokens
        right = cache_bytes(m, tokens, page=page)
        yield Case(f"{m.name}, {tokens:,} tokens, pages of {page}", (m, tokens, page), right)


def kept(model, tokens, page, *, grouped=True, both=2, window=1, pages=True, latent=True):
    heads = model.kv_heads if grouped else model.heads
    numbers = both * heads * model.head_width
    if model.latent and latent:
        numbers = model.latent_rank + model.rope_width
    if model.window and window is not None:
        tokens = min(tokens, model.window - window)
    if pages:
        tokens = -(-tokens // page) * page
    return model.layers * numbers * 2 * tokens


ANSWERS = {
    "44.1": answers(times, states=8, default=times("none", "foreach"), checkpointing="none"),
    "44.2": answers(32 * ONE, heads=8 * 32 * ONE, keys=16 * ONE, one_sequence=ONE, one_layer=32 * ONE // 80),
    "44.3": answers(8 * LONG, article=4 * 8 * LONG, one_sequence=LONG, keys=4 * LONG),
    "44.4": answers(
        served,
        cache_dtype="bf16",
        weights="int8",
        whole=(gpu("rtx-4090").memory - weight_bytes(LLAMA, "nf4")) // cache_bytes(LLAMA, 16_384, "fp8"),
    ),
    "44.5": program(
        kept, caches, grouped=False, both=1, whole={"window": None}, window={"window": 0}, pages=False, latent=False
    ),
}
