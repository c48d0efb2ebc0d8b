"""Passes of models that generate: the theory's operations beside Hugging Face's own, on tensors without data; 0 bytes."""

import random

import pytest
from small_decoders import small

import everybyte as eb
from everybyte.answers.serving import cache_bytes
from everybyte.catalog.decoders import DECODERS, decoder
from everybyte.theory import inference

pytest.importorskip("transformers")
from everybyte.dryrun.hugging_face import decoder_config  # noqa: E402
from everybyte.dryrun.inference import dry_serve  # noqa: E402


def lived(model, values, dtype="bf16"):
    """Bytes that live while each operation of a pass runs, and before it."""
    reading = inference.course(model, values, dtype).at(values)
    lines = [(op, sum(live.values())) for op, live, _ in reading.unrolled()]
    return [live for op, live in lines[1:] if op.taken], lines[0][1]


def differences(model, batch, prompt, steps=2, room=None, dtype="bf16"):
    """Which passes differ, and by how much in the peak; empty where every operation agrees."""
    found = []
    for i, counted in enumerate(dry_serve(model, batch, prompt, steps, dtype, room)):
        before = prompt + i - 1 if i else 0
        stored = min(before, model.window) if model.window and i > 1 else before
        values = inference.letters(model, batch, 1 if i else prompt, before, stored, room or 0)
        operations, rest = lived(model, values, dtype)
        if operations != counted.lived or rest != counted.rest:
            found.append((counted.name, batch, prompt, max(operations) - counted.peak, rest - counted.rest))
        reading = inference.course(model, values, dtype).at(values)
        parts = max((live for _, live, _ in reading.unrolled()), key=lambda live: sum(live.values()))
        assert reading.budget().peak == max(operations) and reading.budget().parts == parts
    return found


@pytest.mark.parametrize("kind", [kind for kind in DECODERS if kind != "llama4_text"])  # its cache is refused
def test_every_operation_of_both_passes(kind, sample):
    for seed in sample(range(40), 2):
        draw, model = random.Random(seed), small(kind, seed)
        assert decoder(model) == kind or not model.window
        assert not differences(model, draw.randint(1, 4), draw.choice([1, 2, 7, 29, 30, 32, 61, 96]))


@pytest.mark.parametrize("kind", ["llama", "mixtral", "deepseek_v3", "gemma2", "gpt_oss"])
def test_scores_in_fp16_are_not_cast_before_a_softmax(kind):
    """PyTorch reads fp16 and writes fp32 in one kernel; bf16 it casts. Where scores exist, a prefill takes that much less."""
    model = small(kind, 5).replace(vocabulary=50, ffn_width=16)
    assert not differences(model, 2, 96, dtype="fp16")
    most = [eb.serve(model, "h100-80gb", 97, 2, weights=dtype).peak for dtype in ("fp16", "bf16")]
    assert (most[0] < most[1]) if kind == "gemma2" else (most[0] == most[1])


def test_a_window_of_one_token_is_refused():
    """transformers slices [1 - 1:] off it, and so keeps all tokens."""
    for kind in ("mistral", "gemma2"):
        model = small(kind, 3).replace(window=1)
        with pytest.raises(
            ValueError, match=r"Model\.window: 1 of .* keeps all tokens, is not derived; allowed: 0, or"
        ):
            eb.serve(model, "h100-80gb", 64, 2)
        counted = dry_serve(model, 1, 20, 4)
        assert counted[-1].cache > counted[1].cache
        assert eb.serve(model, "h100-80gb", 64, 2, cache="paged").fits


def test_one_head_for_all_and_values_as_wide_as_keys():
    """A mask over one key head leaves attention's result in a row; latent heads of one width take flash attention."""
    narrow = small("mistral", 3).replace(heads=4, kv_heads=1, head_width=16, width=64, window=30)
    latent = small("deepseek_v3", 3)
    for model in (narrow, latent.replace(value_width=latent.head_width)):
        assert not differences(model, 2, 61)
        assert not differences(model.replace(window=0), 2, 61, room=70)


@pytest.mark.parametrize(
    "kind", [k for k in DECODERS if k not in ("opt", "gemma2", "gemma3", "gpt_oss", "llama4_text")]
)
def test_every_operation_with_a_cache_that_has_room_for_all(kind, sample):
    for seed in sample(range(40), 2):
        draw, model = random.Random(seed), small(kind, seed).replace(window=0)
        prompt = draw.choice([1, 2, 7, 29, 32, 61])
        assert not differences(model, draw.randint(1, 4), prompt, room=prompt + 2 + draw.choice([0, 1, 14, 30]))


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    "name",
    [
        "qwen2.5-7b",
        "gpt2",
        "llama-3.1-8b",
        "mixtral-8x7b",
        "deepseek-v3",
        "mistral-7b",
        "glm-4.5-air",
        "gemma-2-2b",
        "gemma-3-1b",
        "gpt-oss-20b",
    ],
)
def test_models_of_the_catalog(name):
    assert not differences(eb.model(name), 4, 1000 if name == "gpt2" else 4096, steps=1)


@pytest.mark.parametrize("name", ["gemma-2-2b", "gemma-3-1b", "gpt-oss-20b", "llama-4-scout"])
def test_what_a_window_in_some_layers_keeps(name):
    """Of passes that are not derived the dry run counts the cache: a layer with a window holds the prompt, then W tokens; others all."""
    model = eb.model(name).replace(layers=7, full_every=3, window=32, experts=4 * (eb.model(name).experts > 0))
    full, token = 2, 2 * 2 * 2 * model.kv_heads * model.head_width  # two sequences, keys and values, two bytes
    prefill, first, second = dry_serve(model, 2, 90, 2)
    assert prefill.cache == 7 * 90 * token
    assert first.cache == (2 * 91 + 5 * 32) * token and second.cache == (2 * 92 + 5 * 32) * token
    assert second.cache - 5 * token == 2 * cache_bytes(model, 92) and model.layers - model.windowed_layers == full


def test_the_data_type_of_a_routers_biases():
    """Counted is the module as it is made from its configuration in 16 bits: a buffer of 2 bytes an expert.

    A published checkpoint has them in fp32, and `from_pretrained` keeps them so (`_keep_in_fp32_modules_strict`): 2 bytes more for
    each of 58 x 256, 29,696 B in all.
    """
    import torch
    import transformers

    model = small("deepseek_v3", 3)
    with torch.device("meta"):
        module = transformers.AutoModelForCausalLM.from_config(decoder_config(model), dtype=torch.bfloat16)
    biases = {n: b for n, b in module.named_buffers() if n.endswith("e_score_correction_bias")}
    assert {b.dtype for b in biases.values()} == {torch.bfloat16} and len(biases) == model.layers - model.dense_layers
    values = inference.letters(model, 1, 8)
    rest = inference.course(model, values).at(values).rest
    assert (
        rest["buffers"] == 2 * model.experts * len(biases) + 2 * 4 * model.rope_width // 2
    )  # and the frequencies, twice
    assert transformers.DeepseekV3PreTrainedModel._keep_in_fp32_modules_strict == ["e_score_correction_bias"]
