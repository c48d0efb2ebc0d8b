"""Exercises of chapter 44: why does training need ten times what inference needs?"""

from functools import cache

from ...budget import budget
from ...catalog import gpu, model
from ...serving import cache_bytes, serve, weight_bytes
from ...setup import Setup
from ..exercise import Exercise
from ..program import Case, Program, small_llamas

QWEN, LARGE, LLAMA = "qwen2.5-7b", "llama-3.1-70b", "llama-3.1-8b"
#: Of exercise 44.5: grouped, one head for all, a window, latent.
KINDS = (LLAMA, "gemma-2b", "mistral-7b", "deepseek-v3")


@cache
def times(**changes) -> float:
    """A training step's peak over generating's, one sequence of 8,192 tokens of Qwen2.5-7B."""
    setup = Setup(batch=1, sequence=8192, precision="bf16-master").replace(**changes)
    return budget(model(QWEN), setup).peak / serve(model(QWEN), "h200", 8192, 1).peak


@cache
def served(**asked):
    """What an RTX 4090 serves of Llama 3.1 8B at 16,384 tokens, in pages."""
    return serve(model(LLAMA), "rtx-4090", 16_384, cache="paged", **asked)


def _each():
    return cache_bytes(model(LLAMA), 16_384, "fp8")


def _kept(page=16, windows=True):
    found = [model(name) if windows else model(name).replace(window=0) for name in KINDS]
    return sum(cache_bytes(m, 5000, page=page) for m in found)


def _expanded():
    """With DeepSeek-V3's keys and values of every head."""
    m = model("deepseek-v3")
    heads = m.layers * m.heads * (m.head_width + m.value_width) * 2
    return _kept() + 5008 * (heads - cache_bytes(m, 1))


def _caches():
    models = [model(name) for name in KINDS]
    models += [m.replace(window=w, positions=2**14) for m, w in zip(small_llamas(44, 4), (0, 9, 64, 1000), strict=True)]
    for case, m in enumerate(models):
        tokens, page = (5000, 17, 300, 64)[case % 4], (16, 1, 16, 32)[case % 4]
        tokens = 5000 if m.window > 1000 else tokens
        yield Case(
            f"{m.name}, {tokens:,} tokens, pages of {page}", (m, tokens, page), cache_bytes(m, tokens, page=page)
        )


def _kept_by(grouped=True, both=2, window=1, pages=True, latent=True):
    """What it would be with every query head, with keys alone, with another window, without pages or latents."""

    def kept(model, tokens, page):
        heads = model.kv_heads if grouped else model.heads
        numbers = both * heads * model.head_width
        if model.latent and latent:
            numbers = model.latent_rank + model.rope_width
        if model.window and window is not None:
            tokens = min(tokens, model.window - window)
        if pages:
            tokens = -(-tokens // page) * page
        return model.layers * numbers * 2 * tokens

    return kept


EXERCISES = [
    Exercise(
        id="44.1",
        title="Training over generating, Qwen2.5-7B: the fused optimizer, every block checkpointed",
        difficulty=1,
        minutes=4,
        unit="times",
        decimals=1,
        answer=lambda: times(optimizer_impl="fused", checkpointing="full"),
        mistakes={
            "those are the states over the weights, 16 bytes over 2": 8,
            "that is the default optimizer, whose update takes copies of its own": times,
            "that is without checkpointing: the peak is in the loss": lambda: times(optimizer_impl="fused"),
        },
        hints=(
            "Sixteen bytes a parameter over two make eight. What else stands at the peak of the step?",
            "The peak is in the optimizer, which makes an fp32 copy of each 16-bit gradient. Divide `eb.budget(qwen, step).peak` by "
            '`eb.serve(qwen, "h200", 8192, 1).peak`.',
        ),
    ),
    Exercise(
        id="44.2",
        title="The cache of 32 sequences of 4,096 tokens, Llama 3.1 70B",
        difficulty=1,
        minutes=4,
        unit="GiB",
        decimals=2,
        answer=lambda: 32 * cache_bytes(model(LARGE), 4096),
        mistakes={
            "queries have 64 heads, keys and values 8": lambda: 8 * 32 * cache_bytes(model(LARGE), 4096),
            "those are the keys: values take as much": lambda: 16 * cache_bytes(model(LARGE), 4096),
            "that is one sequence": lambda: cache_bytes(model(LARGE), 4096),
            "that is one layer: there are 80": lambda: 32 * cache_bytes(model(LARGE), 4096) // 80,
        },
        hints=(
            "80 layers, 8 key and value heads of 128 numbers, two bytes each.",
            "A token takes 80 × 2 × 8 × 128 × 2 = 327,680 bytes, and there are 131,072 tokens.",
        ),
    ),
    Exercise(
        id="44.3",
        title="What article 4's formula says of Llama 3.1 8B, and what its cache is",
        difficulty=2,
        minutes=5,
        unit="GiB",
        decimals=2,
        answer=lambda: 8 * cache_bytes(model(LLAMA), 8192),
        mistakes={
            "that is the article's own: it takes the model's width where keys have 1,024 numbers": lambda: (
                4 * 8 * cache_bytes(model(LLAMA), 8192)
            ),
            "that is one sequence": lambda: cache_bytes(model(LLAMA), 8192),
            "those are the keys: values take as much": lambda: 4 * cache_bytes(model(LLAMA), 8192),
        },
        hints=(
            "The formula has hidden_size where the model has 8 heads of 128.",
            "4,096 over 1,024 is 4. Or: 131,072 B a token, for 8 × 8,192 tokens.",
        ),
    ),
    Exercise(
        id="44.4",
        title="Sequences of 16,384 tokens of Llama 3.1 8B on an RTX 4090: pages in fp8, weights in NF4",
        difficulty=2,
        minutes=5,
        unit="sequences",
        answer=lambda: served(weights="nf4", cache_dtype="fp8").concurrency,
        mistakes={
            "that is with the cache in 16 bits": lambda: served(weights="nf4").concurrency,
            "that is with weights in int8": lambda: served(weights="int8", cache_dtype="fp8").concurrency,
            "that is all of the card's memory: some is not for tensors": lambda: (
                (gpu("rtx-4090").memory - weight_bytes(model(LLAMA), "nf4")) // _each()
            ),
        },
        hints=(
            "What is usable, less the weights, over what one sequence takes.",
            'A sequence takes 16,384 × 65,536 bytes in fp8. Or ask `eb.serve` with cache="paged".',
        ),
    ),
    Program(
        id="44.5",
        title="A function for the cache of any attention, in whole pages",
        difficulty=3,
        minutes=12,
        call="kept(model, tokens, page)",
        cases=_caches,
        answer=_kept_by,
        mistakes={
            "query heads share keys and values: there are `kv_heads` of them": lambda: _kept_by(grouped=False),
            "keys and values: two vectors a head": lambda: _kept_by(both=1),
            "a window keeps its last tokens alone": lambda: _kept_by(window=None),
            "the next token is one of the window's: W - 1 others are kept": lambda: _kept_by(window=0),
            "pages are whole": lambda: _kept_by(pages=False),
            "a latent is kept in place of keys and values": lambda: _kept_by(latent=False),
        },
        hints=(
            "How many numbers does a layer keep of a token: two vectors for each key head, or a latent and one rotary part?",
            "`model.latent` says whether there is one, `model.window` is 0 where there is none; round tokens up to pages last.",
        ),
    ),
]
