"""Passes of models that generate: the theory's operations beside Hugging Face's own, on tensors without data; 0 bytes."""

import random

import pytest

import everybyte as eb
from everybyte.catalog.decoders import DECODERS, decoder
from everybyte.theory import inference

pytest.importorskip("transformers")
from everybyte.dryrun.inference import _config, dry_serve  # noqa: E402

#: transformers' `model_type` -> a model of the catalog.
LIKE = {
    "llama": "llama-3.1-8b", "mistral": "mistral-7b", "qwen2": "qwen2.5-7b", "qwen3": "qwen3-8b", "gemma": "gemma-2b",
    "phi3": "phi-3-mini", "mixtral": "mixtral-8x7b", "deepseek_v3": "deepseek-v3", "gpt2": "gpt2", "opt": "opt-125m",
    "gpt_neox": "pythia-160m",
}  # fmt: skip


def lived(model, values):
    """Bytes that live while each operation of a pass runs, and before it."""
    reading = inference.course(model, values).at(values)
    lines = [(op, sum(live.values())) for op, live, _ in reading.unrolled()]
    return [live for op, live in lines[1:] if op.taken], lines[0][1]


def differences(model, batch, prompt, steps=2, room=None):
    """Which passes differ, and by how much in the peak; empty where every operation agrees."""
    found = []
    for i, counted in enumerate(dry_serve(model, batch, prompt, steps, room=room)):
        before = prompt + i - 1 if i else 0
        stored = min(before, model.window) if model.window and i > 1 else before
        values = inference.letters(model, batch, 1 if i else prompt, before, stored, room or 0)
        operations, rest = lived(model, values)
        if operations != counted.lived or rest != counted.rest:
            found.append((counted.name, batch, prompt, max(operations) - counted.peak, rest - counted.rest))
        reading = inference.course(model, values).at(values)
        parts = max((live for _, live, _ in reading.unrolled()), key=lambda live: sum(live.values()))
        assert reading.budget().peak == max(operations) and reading.budget().parts == parts
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


def test_one_head_for_all_and_values_as_wide_as_keys():
    """A mask over one key head leaves attention's result in a row; latent heads of one width take flash attention."""
    narrow = small("mistral", 3).replace(heads=4, kv_heads=1, head_width=16, width=64, window=30)
    latent = small("deepseek_v3", 3)
    for model in (narrow, latent.replace(value_width=latent.head_width)):
        assert not differences(model, 2, 61)
        assert not differences(model.replace(window=0), 2, 61, room=70)


@pytest.mark.parametrize("kind", [k for k in DECODERS if k != "opt"])
def test_every_operation_with_a_cache_that_has_room_for_all(kind, sample):
    for seed in sample(range(40), 2):
        draw, model = random.Random(seed), small(kind, seed).replace(window=0)
        prompt = draw.choice([1, 2, 7, 29, 32, 61])
        assert not differences(model, draw.randint(1, 4), prompt, room=prompt + 2 + draw.choice([0, 1, 14, 30]))


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", ["qwen2.5-7b", "gpt2", "llama-3.1-8b", "mixtral-8x7b", "deepseek-v3", "mistral-7b"])
def test_models_of_the_catalog(name):
    assert not differences(eb.model(name), 4, 1000 if name == "gpt2" else 4096, steps=1)


def test_the_data_type_of_a_routers_biases():
    """Counted is the module as it is made from its configuration in 16 bits: a buffer of 2 bytes an expert.

    A published checkpoint has them in fp32, and `from_pretrained` keeps them so (`_keep_in_fp32_modules_strict`): 2 bytes more for
    each of 58 x 256, 29,696 B in all.
    """
    import torch
    import transformers

    model = small("deepseek_v3", 3)
    with torch.device("meta"):
        module = transformers.AutoModelForCausalLM.from_config(_config(model), dtype=torch.bfloat16)
    biases = {n: b for n, b in module.named_buffers() if n.endswith("e_score_correction_bias")}
    assert {b.dtype for b in biases.values()} == {torch.bfloat16} and len(biases) == model.layers - model.dense_layers
    values = inference.letters(model, 1, 8)
    rest = inference.course(model, values).at(values).rest
    assert (
        rest["buffers"] == 2 * model.experts * len(biases) + 2 * 4 * model.rope_width // 2
    )  # and the frequencies, twice
    assert transformers.DeepseekV3PreTrainedModel._keep_in_fp32_modules_strict == ["e_score_correction_bias"]
