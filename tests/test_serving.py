"""What a GPU serves: the cache's bytes, the most sequences, and what is refused."""

import json

import pytest
from small_decoders import small

import everybyte as eb
from everybyte.answers.headroom import ROUNDING
from everybyte.answers.serving import cache_bytes, serve, weight_bytes
from everybyte.command import main
from everybyte.theory import inference

QWEN = eb.model("qwen2.5-7b", code="reference")


def test_the_cache_of_a_token():
    """Published dimensions: 28 layers, 2 tensors, 4 heads of 128, 2 bytes; DeepSeek-V3 keeps 512 + 64 numbers a layer."""
    assert cache_bytes(QWEN, 1) == 28 * 2 * 4 * 128 * 2 == 57_344
    assert cache_bytes(eb.model("deepseek-v3"), 2048) == 61 * 2048 * (512 + 64) * 2
    assert cache_bytes(eb.model("llama-2-7b", code="reference"), 4096) == 2 * 2**30
    assert cache_bytes(eb.model("mistral-7b", code="reference"), 10_000) == cache_bytes(
        eb.model("mistral-7b", code="reference"), 4095
    )


@pytest.mark.parametrize("name", ["qwen2.5-7b", "deepseek-v3", "gpt2", "mistral-7b", "gemma-3-1b", "gpt-oss-20b"])
@pytest.mark.parametrize("sequence", [77, 777])
def test_the_formula_in_letters(name, sequence):
    model, setup = eb.model(name), eb.Setup(batch=3, sequence=sequence, precision="bf16")
    assert eb.formula("cache.held").at(model, setup) == 3 * cache_bytes(model, sequence)
    assert eb.formula("cache.pages").at(model, setup) == 3 * cache_bytes(model, sequence, page=16)


@pytest.mark.parametrize(
    "name, context, windowed, most",
    [
        ("gpt-oss-20b", 131_072, 12, 13),
        ("gemma-2-2b", 8192, 13, 120),
        ("gemma-3-1b", 8192, 22, 1822),
        ("llama-4-scout", 8192, 36, None),
    ],
)
def test_a_window_that_stands_in_some_layers(name, context, windowed, most):
    """How many sequences an 80 GB H100 holds in pages, where every second, sixth or fourth layer keeps all tokens."""
    model = eb.model(name)
    assert model.windowed_layers == windowed == sum(map(model.windowed, range(model.layers)))
    found = serve(model, "h100-80gb", context, cache="paged")
    assert found.concurrency == most
    assert f"{windowed} of {model.layers} layers" in found.said()[-1]


def test_what_transformers_caches_keep_of_every_model_with_a_window():
    """Hugging Face's cache of each configuration, fed with a prompt and a token: its keys and values are the formula's bytes."""
    torch, transformers, names = pytest.importorskip("torch"), pytest.importorskip("transformers"), []
    from everybyte.dryrun.hugging_face import decoder_config

    for model in filter(lambda model: model.window, eb.models().values()):
        cache = transformers.DynamicCache(config=decoder_config(model))
        for tokens in (model.window // 2, 2 * model.window):
            for layer in range(model.layers):
                x = torch.empty(1, model.kv_heads, tokens, model.head_width, dtype=torch.bfloat16, device="meta")
                cache.update(x, x, layer)
        kept = sum(2 * x.numel() for layer in cache.layers for x in (layer.keys, layer.values))
        assert kept == cache_bytes(model, model.window // 2 + 2 * model.window)
        names.append(model.name)
    assert names == [
        "llama-4-scout",
        "mistral-7b",
        "gemma-2-2b",
        "gemma-3-1b",
        "phi-3-mini",
        "gpt-oss-20b",
        "gpt-oss-120b",
    ]


@pytest.mark.parametrize("tokens, pages", [(1, 1), (16, 1), (17, 2), (4097, 257)])
def test_whole_pages(tokens, pages):
    assert cache_bytes(QWEN, tokens, page=16) == pages * 917_504


def test_weights_in_fewer_bits():
    assert weight_bytes(QWEN) == 2 * QWEN.parameters == 15_231_233_024
    linear = 28 * (2 * 3584 * 3584 + 2 * 512 * 3584 + 3 * 18944 * 3584)
    rows = 28 * (2 * 3584 + 2 * 512 + 2 * 18944 + 3584)
    assert weight_bytes(QWEN, "int8") == 2 * QWEN.parameters - linear + 4 * rows
    bits = 8 * (weight_bytes(QWEN, "nf4") - 2 * (QWEN.parameters - linear)) / linear
    assert 4.127 < bits < 4.129


@pytest.mark.parametrize("kind", ["llama", "qwen2", "phi3", "mixtral", "deepseek_v3", "glm4_moe"])
def test_weights_in_fp8_are_those_of_transformers_own_modules(kind):
    """A byte a number and a scale in fp32 for each 128 by 128 numbers of a matrix, those at its edges in smaller blocks."""
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    from transformers.integrations.finegrained_fp8 import replace_with_fp8_linear

    from everybyte.dryrun.hugging_face import decoder_config

    sizes = {
        "width": 320,
        "heads": 4,
        "kv_heads": 4,
        "ffn_width": 456,
        "expert_width": 136,
        "layers": 2,
        "dense_layers": 1,
    }
    like = small(kind, 1)
    model = like.replace(
        **{name: size for name, size in sizes.items() if getattr(like, name)},
        embedding_width=320,
        shared_experts=int(like.shared_experts > 0),
    )
    with torch.device("meta"):
        module = transformers.AutoModelForCausalLM.from_config(decoder_config(model), dtype=torch.bfloat16)
    quantized = replace_with_fp8_linear(module, ["lm_head"], transformers.FineGrainedFP8Config())
    kept = {name: x.numel() * x.element_size() for name, x in quantized.named_parameters() if not name.endswith("bias")}
    kept |= {
        name: 2 * x.numel() for name, x in quantized.named_parameters() if name.endswith("bias")
    }  # loaded in 16 bits
    kept |= {name: 2 * x.numel() for name, x in quantized.named_buffers() if name.endswith("e_score_correction_bias")}
    assert weight_bytes(model, "fp8") == sum(kept.values()) < weight_bytes(model)


def test_weights_of_deepseek_v3_in_fp8():
    """Blocks are whole but in one matrix, of 576 rows: 671.03 GB of numbers, of which embeddings, head, routers and norms in 16 bits."""
    found, model = weight_bytes(eb.model("deepseek-v3"), "fp8"), eb.model("deepseek-v3")
    wide = 2 * 129280 * 7168 + 61 * (2 * 7168 + 1536 + 512) + 7168 + 58 * 256 * 7168 + 58 * 256
    scales = (model.parameters - wide) / 128**2 + 61 * 56 * 0.5  # 4.5 blocks of rows are five
    assert found == model.parameters + wide + 4 * scales
    wider = model.replace(
        shared_experts=2, expert_width=100
    )  # their MLP is one, of 200 columns: two blocks, where two of 100 are one each
    assert weight_bytes(wider, "fp8") - weight_bytes(wider.replace(shared_experts=1), "fp8") == 58 * 3 * (
        100 * 7168 + 4 * 56
    )


@pytest.mark.parametrize("name", ["gpt2", "qwen2.5-7b", "mistral-7b", "deepseek-v3"])
@pytest.mark.parametrize("size", [10, 80, 1500])
def test_the_most_that_fit_and_not_one_more(name, size):
    """Held against a walk over whole courses, sequence by sequence, near the answer."""
    model, gpu = eb.model(name), eb.Gpu(memory=f"{size} GB")
    found = serve(model, gpu, 900, prompt=700)
    usable = eb.Headroom().usable(gpu)

    def peak(number):
        passes = [inference.letters(model, number, 700), inference.letters(model, number, 1, 899)]
        return max(inference.course(model, v).at(v, ROUNDING).budget().peak for v in passes)

    if found.concurrency is None:
        assert peak(1) == found.peak > usable and not found.fits
    else:
        assert peak(found.concurrency) == found.peak <= usable < peak(found.concurrency + 1) == found.next
        assert found.fits and found.free == usable - found.peak
    for moment in found.moments:
        assert sum(moment.parts.values()) == moment.bytes


def test_what_was_asked_for():
    found = serve(QWEN, "h200", 8192, 4)
    assert found.concurrency == 4 and found.next is None and found.fits
    assert found.held == 4 * 8192 * 57_344
    assert not serve(QWEN, "24 GiB", 8192, 40).fits
    assert "do not fit" in repr(serve(QWEN, "24 GiB", 8192, 40))
    assert "not one sequence" in repr(serve(eb.model("llama-2-70b", code="reference"), "24 GiB", 512))


def test_a_window_holds_the_whole_prompt_until_the_first_step():
    model = eb.model("mistral-7b", code="reference")
    long, after = serve(model, "h200", 16_001, 1, prompt=16_000), serve(model, "h200", 20_000, 1, prompt=16_000)
    assert (
        long.moments[1].bytes == after.moments[1].bytes > serve(model, "h200", 20_000, 1, prompt=5000).moments[1].bytes
    )


@pytest.mark.parametrize("name", ["qwen2.5-7b", "gpt2", "deepseek-v3"])
def test_room_for_the_whole_context(name):
    """A static cache stands whole from the prefill on; no step holds an old and a new one. Each layer's counter takes 512 B."""
    model = eb.model(name)
    fixed, grows = (
        serve(model, eb.Gpu(memory="2 TB"), 1000, 8, prompt=600, cache=kind) for kind in ("static", "dynamic")
    )
    assert fixed.moments[0].parts["cache"] <= 8 * cache_bytes(model, 1000) + 512 * model.layers
    assert fixed.moments[1].parts["cache"] == 8 * cache_bytes(model, 1000) + 512 * model.layers
    assert fixed.moments[0].bytes > grows.moments[0].bytes
    if not model.latent:  # which expands all the room, taken or not
        assert fixed.moments[1].bytes < grows.moments[1].bytes
    assert "from the prefill on" in fixed.said()[0] and "grows by a copy" in grows.said()[0]


@pytest.mark.parametrize("name, field", [("mistral-7b", "Model.window: 4096"), ("opt-125m", "Model.name: opt-125m")])
def test_static_caches_that_are_not_derived(name, field):
    with pytest.raises(ValueError, match=f"{field} .*allowed: .*cache 'dynamic' or 'paged'"):
        serve(eb.model(name), "h200", 128, cache="static")


def test_pages_for_any_weights():
    found = serve(QWEN, "rtx-4090", 8192, cache="paged", weights="nf4", cache_dtype="fp8")
    each = cache_bytes(QWEN, 8192, "fp8", 16)
    assert found.concurrency == (found.usable - weight_bytes(QWEN, "nf4")) // each
    assert serve(eb.model("gemma-2-2b"), "rtx-4090", 1024, cache="paged").fits


@pytest.mark.parametrize(
    "asked, said",
    [
        ({"context": 200_000}, "serve.context: 200,000 is beyond the 131,072 positions of qwen2.5-7b"),
        ({"context": 1}, "serve.context: 1 is not"),
        ({"context": 10, "prompt": 10}, "serve.prompt: 10 is not a whole number from 1 to 9"),
        ({"context": 10, "concurrency": 0}, "serve.concurrency: 0"),
        ({"context": 10, "cache": "offloaded"}, "serve.cache: 'offloaded' is unknown; allowed: dynamic, static, paged"),
        ({"context": 10, "cache": "static", "weights": "int8"}, "serve.weights: 'int8' with cache 'static'; allowed"),
        ({"context": 10, "weights": "nf4"}, "serve.weights: 'nf4' with cache 'dynamic'; allowed: 'bf16' or 'fp16', or cache 'paged'"),
        ({"context": 10, "cache_dtype": "fp8"}, "serve.cache_dtype: 'fp8' with cache 'dynamic'"),
        ({"context": 10, "cache": "paged", "cache_dtype": "fp4"}, "serve.cache_dtype: 'fp4' is unknown"),
        ({"context": 10, "cache": "paged", "page": 0}, "serve.page: 0"),
        ({"context": 10, "page": 32}, "serve.page: 32 with cache 'dynamic'; allowed: with cache 'paged'"),
        ({"context": 10, "gpu": "h300"}, "gpu.name: 'h300' is unknown"),
    ],
)  # fmt: skip
def test_bad_input_is_named(asked, said):
    gpu = asked.pop("gpu", "h200")
    with pytest.raises(ValueError, match=said.replace("(", r"\(")):
        serve(QWEN, gpu, **asked)


@pytest.mark.parametrize(
    "name, field",
    [("llama-4-scout", "chunked"), ("bert-base", "causal"), ("gpt2-nobias", "qkv_bias")],
)
def test_models_whose_passes_are_not_derived(name, field):
    with pytest.raises(ValueError, match=f"Model.{field}: .* of {name}"):
        serve(eb.model(name), "h200", 128)


def test_every_model_of_the_catalog_is_answered_or_refused():
    for model in eb.models().values():
        try:
            assert serve(model, "h200", 128).peak > model.parameters
        except ValueError as error:
            assert str(error).startswith("Model.")


def test_on_the_command_line(capsys):
    assert main(["serve", "qwen2.5-7b", "--gpu", "h200", "--context", "8192", "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["concurrency"] == serve(QWEN, "h200", 8192).concurrency and said["cache"]["per_token"] == 57_344
    assert (
        main(
            [
                "serve",
                "qwen2.5-7b",
                "--memory",
                "24GiB",
                "--context",
                "8192",
                "--concurrency",
                "2",
                "--keep-other",
                "1GiB",
            ]
        )
        == 0
    )
    assert "2 sequences of 8,192 tokens" in capsys.readouterr().out
    assert main(["serve", "qwen2.5-7b", "--context", "8192"]) == 2
    assert "--gpu and --memory" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("gpu", "asked", "said"),
    [
        ("t4", {}, "serve.weights: 'bf16' on t4, which has no bf16; allowed: 'fp16'"),
        ("t4", {"weights": "fp16"}, "serve.cache_dtype: 'bf16' on t4"),
        ("v100-16gb", {"weights": "fp16", "cache_dtype": "fp16"}, "serve.cache: 'dynamic' on v100-16gb, whose capability 7.0 has no flash"),
    ],
)  # fmt: skip
def test_what_a_gpu_does_not_compute_is_refused(gpu, asked, said):
    with pytest.raises(ValueError, match=said):
        serve(QWEN, gpu, 512, **asked)
    assert serve(QWEN, gpu, 512, cache="paged", weights="nf4", cache_dtype="fp16").fits
