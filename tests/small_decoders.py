"""Random small models of the kinds that Hugging Face's decoders are."""

import random

import everybyte as eb
from everybyte.catalog.decoders import untrained

#: transformers' `model_type` -> a model of the catalog.
LIKE = {
    "llama": "llama-3.1-8b", "mistral": "mistral-7b", "ministral": "mistral-7b", "qwen2": "qwen2.5-7b", "qwen3": "qwen3-8b", "gemma": "gemma-2b",
    "phi3": "phi-3-mini", "mixtral": "mixtral-8x7b", "qwen3_moe": "qwen3-30b-a3b", "deepseek_v3": "deepseek-v3", "gpt2": "gpt2", "opt": "opt-125m",
    "gpt_neox": "pythia-160m", "glm4_moe": "glm-4.5", "gemma2": "gemma-2-2b", "gemma3": "gemma-3-1b", "gpt_oss": "gpt-oss-20b", "llama4_text": "llama-4-scout",
}  # fmt: skip
#: Those whose training steps are derived.
TRAINED = [kind for kind, like in LIKE.items() if not untrained(eb.model(like))]
#: Those whose configuration says of each layer whether it has the window.
SWITCHED = ("qwen2", "qwen3")


def small(kind, seed):
    """A random small model of a decoder's kind."""
    draw, like = random.Random(f"{kind} {seed}"), eb.model(LIKE[kind])
    heads, head = draw.choice([2, 4, 6]), 8 * draw.randint(1, 4)
    grouped = heads // draw.choice([1, 2]) if like.kv_heads < like.heads else heads
    sizes = {
        "layers": draw.randint(1, 9), "heads": heads, "kv_heads": grouped, "width": heads * head, "head_width": head,
        "vocabulary": draw.randint(50, 3000), "positions": 400, "ffn_width": 8 * draw.randint(2, 40), "embedding_width": heads * head,
        "window": draw.choice([0, 30, 32, 60]) if like.window or kind in SWITCHED else 0,
    }  # fmt: skip
    if kind == "ministral":
        sizes |= {"window": draw.choice([30, 32, 60]), "full_every": draw.randint(2, 4)}
    if kind in SWITCHED and sizes["window"]:
        sizes["full_every"] = draw.choice([0, 2, 3, 6])
    if kind in ("gemma2", "gemma3", "gpt_oss", "llama4_text"):
        sizes |= {"window": draw.choice([30, 32, 60]), "full_every": draw.choice([0, 2, 3, 6])}
    if like.chunked:
        sizes["full_every"] = sizes["full_every"] or 4
    if like.has_positions:
        sizes["learned_positions"] = 402 if kind == "opt" else 400
    if like.experts:
        sizes |= {
            "experts": draw.choice([4, 8, 16]),
            "experts_per_token": draw.randint(1, 3),
            "expert_width": 8 * draw.randint(1, 9),
        }
    if like.shared_experts and not like.chunked:
        sizes["dense_layers"] = draw.randint(0, sizes["layers"] - 1)
    if kind == "glm4_moe":
        sizes |= {
            "rotary_percent": draw.choice([25, 50, 75]),
            "qk_norm": draw.random() < 0.7,
            "qkv_bias": draw.random() < 0.7,
            "shared_experts": draw.randint(1, 2),
        }
    if like.latent:
        groups = draw.choice([(8, 4), (4, 1), (0, 0)])
        sizes |= {"experts": draw.choice([16, 24, 32]), "expert_groups": groups[0], "groups_per_token": groups[1], "rope_width": 8,
                  "head_width": 8 + head, "value_width": 8 * draw.randint(1, 4), "query_rank": 16, "latent_rank": 24, "kv_heads": heads}  # fmt: skip
    if every := sizes.get("full_every"):  # so many that some stand for others
        sizes["layers"] += draw.choice([0, 0, 4]) * every
    return like.replace(**sizes)
