"""Passes of models that generate: the theory's operations beside Hugging Face's own, on tensors without data; 0 bytes."""

import random

import pytest

import everybyte as eb
from everybyte.catalog.decoders import DECODERS, decoder
from everybyte.theory import inference

pytest.importorskip("transformers")
from everybyte.dryrun.inference import dry_serve  # noqa: E402

#: transformers' `model_type` -> a model of the catalog.
LIKE = {
    "llama": "llama-3.1-8b", "mistral": "mistral-7b", "qwen2": "qwen2.5-7b", "qwen3": "qwen3-8b", "gemma": "gemma-2b",
    "phi3": "phi-3-mini", "mixtral": "mixtral-8x7b", "deepseek_v3": "deepseek-v3", "gpt2": "gpt2", "opt": "opt-125m",
    "gpt_neox": "pythia-160m",
}  # fmt: skip


def lived(model, values):
    """Bytes that live while each operation of a pass runs, and before it."""
    course = inference.course(model, values)
    lines = [(op, sum(live.values())) for op, live, _ in course.unrolled(values)]
    return [live for op, live in lines[1:] if op.taken], lines[0][1]


def differences(model, batch, prompt, steps=2):
    """Which passes differ, and by how much in the peak; empty where every operation agrees."""
    found = []
    for i, counted in enumerate(dry_serve(model, batch, prompt, steps)):
        before = prompt + i - 1 if i else 0
        stored = min(before, model.window) if model.window and i > 1 else before
        values = inference.letters(model, batch, 1 if i else prompt, before, stored)
        operations, rest = lived(model, values)
        if operations != counted.lived or rest != counted.rest:
            found.append((counted.name, batch, prompt, max(operations) - counted.peak, rest - counted.rest))
        assert inference.course(model, values).peak(values)[0] == max(operations)
    return found


def small(kind, seed):
    """A random small model of a decoder's kind."""
    draw, like = random.Random(f"{kind} {seed}"), eb.model(LIKE[kind])
    heads, head = draw.choice([2, 4, 6]), 8 * draw.randint(1, 4)
    grouped = heads // draw.choice([1, 2]) if like.kv_heads < like.heads else heads
    sizes = {
        "layers": draw.randint(1, 9), "heads": heads, "kv_heads": grouped, "width": heads * head, "head_width": head,
        "vocabulary": draw.randint(50, 3000), "positions": 400, "ffn_width": 8 * draw.randint(2, 40), "embedding_width": heads * head,
        "window": draw.choice([0, 30, 32, 60]) if like.window else 0,
    }  # fmt: skip
    if like.has_positions:
        sizes["learned_positions"] = 402 if kind == "opt" else 400
    if like.experts:
        sizes |= {
            "experts": draw.choice([4, 8, 16]),
            "experts_per_token": draw.randint(1, 3),
            "expert_width": 8 * draw.randint(1, 9),
        }
    if like.latent:
        sizes |= {"experts": draw.choice([16, 24, 32]), "dense_layers": draw.randint(0, sizes["layers"] - 1), "rope_width": 8,
                  "head_width": 8 + head, "value_width": 8 * draw.randint(1, 4), "query_rank": 16, "latent_rank": 24, "kv_heads": heads}  # fmt: skip
    return like.replace(**sizes)


@pytest.mark.parametrize("kind", DECODERS)
def test_every_operation_of_both_passes(kind, sample):
    for seed in sample(range(40), 2):
        draw, model = random.Random(seed), small(kind, seed)
        assert decoder(model) == kind or not model.window
        assert not differences(model, draw.randint(1, 4), draw.choice([1, 2, 7, 29, 30, 32, 61, 96]))


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", ["qwen2.5-7b", "gpt2", "llama-3.1-8b", "mixtral-8x7b", "deepseek-v3", "mistral-7b"])
def test_models_of_the_catalog(name):
    assert not differences(eb.model(name), 4, 1000 if name == "gpt2" else 4096, steps=1)
