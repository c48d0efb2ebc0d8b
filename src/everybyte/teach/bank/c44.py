"""Exercises of chapter 44: why does training need ten times what inference needs?"""

from functools import cache, partial

from ...answers.serving import cache_bytes, serve, weight_bytes
from ...ask.setup import Setup
from ...catalog import gpu, model
from ..asking import peak
from ..program import Case, small_llamas
from . import answers, program

QWEN, LARGE, LLAMA = "qwen2.5-7b", "llama-3.1-70b", "llama-3.1-8b"
#: Of exercise 44.5: grouped, one head for all, a window, latent.
KINDS = (LLAMA, "gemma-2b", "mistral-7b", "deepseek-v3")


@cache
def times(**changes) -> float:
    """A training step's peak over generating's, one sequence of 8,192 tokens of Qwen2.5-7B."""
    setup = Setup(batch=1, sequence=8192, precision="bf16-master").replace(**changes)
    return peak(QWEN, setup) / serve(model(QWEN), "h200", 8192, 1).peak


@cache
def served(**asked):
    """What an RTX 4090 serves of Llama 3.1 8B at 16,384 tokens, in pages."""
    return serve(model(LLAMA), "rtx-4090", 16_384, cache="paged", **asked)


def _each():
    return cache_bytes(model(LLAMA), 16_384, "fp8")


def _caches():
    models = [model(name) for name in KINDS]
    models += [m.replace(window=w, positions=2**14) for m, w in zip(small_llamas(44, 4), (0, 9, 64, 1000), strict=True)]
    for case, m in enumerate(models):
        tokens, page = (5000, 17, 300, 64)[case % 4], (16, 1, 16, 32)[case % 4]
        tokens = 5000 if m.window > 1000 else tokens
        yield Case(
            f"{m.name}, {tokens:,} tokens, pages of {page}", (m, tokens, page), cache_bytes(m, tokens, page=page)
        )


def _kept_by(model, tokens, page, *, grouped=True, both=2, window=1, pages=True, latent=True):
    """The answer, or what it would be with every query head, with keys alone, with another window, without pages or latents."""
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
    "44.1": answers(
        lambda: times(optimizer_impl="fused", checkpointing="full"),
        states=8,
        default=times,
        kept=lambda: times(optimizer_impl="fused"),
    ),
    "44.2": answers(
        lambda: 32 * cache_bytes(model(LARGE), 4096),
        heads=lambda: 8 * 32 * cache_bytes(model(LARGE), 4096),
        keys=lambda: 16 * cache_bytes(model(LARGE), 4096),
        one_sequence=lambda: cache_bytes(model(LARGE), 4096),
        one_layer=lambda: 32 * cache_bytes(model(LARGE), 4096) // 80,
    ),
    "44.3": answers(
        lambda: 8 * cache_bytes(model(LLAMA), 8192),
        article=lambda: 4 * 8 * cache_bytes(model(LLAMA), 8192),
        one_sequence=lambda: cache_bytes(model(LLAMA), 8192),
        keys=lambda: 4 * cache_bytes(model(LLAMA), 8192),
    ),
    "44.4": answers(
        lambda: served(weights="nf4", cache_dtype="fp8").concurrency,
        bf16_cache=lambda: served(weights="nf4").concurrency,
        int8=lambda: served(weights="int8", cache_dtype="fp8").concurrency,
        whole=lambda: (gpu("rtx-4090").memory - weight_bytes(model(LLAMA), "nf4")) // _each(),
    ),
    "44.5": program(
        _kept_by,
        _caches,
        grouped=False,
        both=1,
        whole=partial(_kept_by, window=None),
        window=partial(_kept_by, window=0),
        pages=False,
        latent=False,
    ),
}
