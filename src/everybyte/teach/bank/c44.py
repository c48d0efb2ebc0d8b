"""Exercises of chapter 44: what does an engine take of the GPU, and why does it run out as it wakes?"""

from itertools import cycle

from ...answers.serving import cache_bytes, serve, weight_bytes
from . import Case, answers, gpu, model, program, run, small_llamas

QWEN = run("qwen2.5-7b", batch=1, sequence=8192, precision="bf16-master")
LARGE, LLAMA = model("llama-3.1-70b", code="reference"), model("llama-3.1-8b", code="reference")
ONE, LONG = cache_bytes(LARGE, 4096), cache_bytes(LLAMA, 8192)
#: Of exercise 44.5: grouped, one head for all, a window in all layers and in some, latent.
KINDS = (LLAMA, *map(model, ("gemma-2b", "mistral-7b", "deepseek-v3", "gpt-oss-20b")))


def times(checkpointing="full", optimizer_impl="fused"):
    """The ratio of a training step's peak to that of generation, for one sequence of 8,192 tokens of Qwen2.5-7B."""
    return (
        QWEN.peak(checkpointing=checkpointing, optimizer_impl=optimizer_impl) / serve(QWEN.model, "h200", 8192, 1).peak
    )


def served(weights="nf4", cache_dtype="fp8"):
    """Sequences of 10,240 tokens that an RTX 4090 serves of Llama 3.1 8B at once, in pages."""
    return serve(LLAMA, "rtx-4090", 10_240, cache="paged", weights=weights, cache_dtype=cache_dtype).concurrency


def caches():
    windows = zip(small_llamas(44, 4), ((0, 0), (9, 0), (64, 2), (1000, 3)), strict=True)
    models = [*KINDS, *(m.replace(window=w, full_every=every, positions=2**14) for m, (w, every) in windows)]
    for m, tokens, page in zip(models, cycle((5000, 17, 300, 64, 700)), cycle((16, 1, 16, 32, 16)), strict=False):
        tokens = 5000 if m.window > 900 else tokens
        right = cache_bytes(m, tokens, page=page)
        yield Case(f"{m.name}, {tokens:,} tokens, pages of {page}", (m, tokens, page), right)


def kept(model, tokens, page, *, grouped=True, both=2, window=1, layers=True, pages=True, latent=True):
    heads = model.kv_heads if grouped else model.heads
    numbers = both * heads * model.head_width
    if model.latent and latent:
        numbers = model.latent_rank + model.rope_width
    near, last = model.windowed_layers, tokens
    if model.window and not layers:
        near = model.layers
    if model.window and window is not None:
        last = min(tokens, model.window - window)
    if pages:
        tokens, last = (-(-n // page) * page for n in (tokens, last))
    return ((model.layers - near) * tokens + near * last) * numbers * 2


ANSWERS = {
    "44.1": answers(times, states=8, default=times("none", "foreach"), checkpointing="none"),
    "44.2": answers(32 * ONE, heads=8 * 32 * ONE, keys=16 * ONE, one_sequence=ONE, one_layer=32 * ONE // 80),
    "44.3": answers(8 * LONG, article=4 * 8 * LONG, one_sequence=LONG, keys=4 * LONG),
    "44.4": answers(
        served,
        cache_dtype="bf16",
        weights="int8",
        whole=(gpu("rtx-4090").memory - weight_bytes(LLAMA, "nf4")) // cache_bytes(LLAMA, 10_240, "fp8"),
    ),
    "44.5": program(
        kept,
        caches,
        grouped=False,
        both=1,
        whole={"window": None},
        window={"window": 0},
        layers=False,
        pages=False,
        latent=False,
    ),
}
