"""`eb.serve` of hybrids, by their Hugging Face configs: against what engines printed, transformers' caches, and arithmetic."""

import json

import pytest
import small_decoders as decoders
from small_decoders import LIKE

import everybyte as eb
from everybyte.answers.serving import cache_bytes
from everybyte.catalog import configs
from everybyte.catalog.hybrids import KINDS, hybrid
from everybyte.command import main

torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
from everybyte.dryrun.hugging_face import decoder_config, weights  # noqa: E402
from everybyte.dryrun.inference import dry_serve  # noqa: E402

GIB = 2**30


def config(kind, **fields):
    return transformers.AutoConfig.for_model(kind, **fields)


def qwen(kind="qwen3_5_text", **fields):
    """A Qwen3.5's text, whose config asks for states in fp32, as the published ones do."""
    return config(kind, mamba_ssm_dtype="float32", max_position_embeddings=262_144, **fields)


NEXT = config("qwen3_next", max_position_embeddings=262_144)
KIMI = config(
    "kimi_linear", linear_attn_config={"full_attn_layers": (4, 8, 12, 16, 20, 24, 27), "kda_layers": [i for i in range(1, 28) if i % 4 and i < 27]}
)  # fmt: skip
NANO = config(
    "nemotron_h", hybrid_override_pattern="M-M-M-MM-M-M-M*-M-M-M*-M-M-M-M*-M-M-M-M*-M-MM-M-M-M-M-M-", hidden_size=4480,
    num_attention_heads=40, num_key_value_heads=8, head_dim=128, mamba_num_heads=128, mamba_head_dim=80, ssm_state_size=128, n_groups=8,
    max_position_embeddings=131_072,
)  # fmt: skip
SMALL = {
    "hidden_size": 1024, "num_hidden_layers": 24, "num_attention_heads": 8, "num_key_value_heads": 2, "linear_num_key_heads": 16,
    "linear_num_value_heads": 16,
}  # fmt: skip
LARGE = {
    "hidden_size": 5120, "num_hidden_layers": 64, "num_attention_heads": 24, "num_key_value_heads": 4, "linear_num_key_heads": 16,
    "linear_num_value_heads": 48,
}  # fmt: skip


@pytest.mark.parametrize(
    ("asked", "engine", "block", "padding"),
    [
        (NEXT, {"tensor_parallel": 2}, 544, "1.49%"),  # vLLM 0.10.2, as `test_engines` has it
        (NEXT, {}, 544, None),  # github.com/vllm-project/vllm/pull/32492, one GPU
        (KIMI, {"tensor_parallel": 2}, 960, "1.89%"),  # github.com/vllm-project/vllm/issues/28228, two RTX 3090
        (qwen("qwen3_5_moe_text"), {"weights": "fp16"}, 1056, "0.76%"),  # github.com/ROCm/ROCm/issues/6055, Qwen3.5-35B-A3B
        (qwen(**LARGE), {}, 784, None),  # docs.lmcache.ai/recipes/qwen3_5.html, Qwen3.6-27B
        (qwen(**SMALL), {}, 544, None),  # docs.lmcache.ai/recipes/qwen3_5.html, Qwen3.5-0.8B
        (NANO, {"state_dtype": "bf16"}, 672, None),  # github.com/vllm-project/vllm/issues/24280, Nemotron-Nano-9B-v2, before it asked for fp32
    ],
    ids=["next-2", "next", "kimi-2", "35b", "27b", "0.8b", "nano"],
)  # fmt: skip
def test_the_blocks_that_vllm_printed(asked, engine, block, padding):
    """'Setting attention block size to N tokens', and 'Padding mamba page size by P'."""
    found = eb.serve(asked, "h100-80gb", 4096, engine=eb.Engine(pages=GIB, **engine))
    assert found.pool.block == block
    layers, state = found.engine.states
    page = block * found.pool.groups[0].token
    assert padding is None or f"{page / state - 1:.2%}" == padding
    assert page - 64 * found.pool.groups[0].token < state <= page and layers == found.hybrid.states.layers


def test_weights_that_a_config_stores_in_fewer_bits_are_not_counted_as_whole():
    """Qwen3-Next's FP8 checkpoint is half of 16 bits; where a log says the bytes of weights or pages, the rest follows."""
    stored = config("qwen3_next", quantization_config={"quant_method": "fp8"})
    for more in ({"cache": "paged"}, {"cache": "dynamic"}):
        with pytest.raises(
            ValueError,
            match=r"^serve\.model: a config whose quantization_config .* allowed: a config without it, or an engine",
        ):
            eb.serve(stored, "h200", 4096, **more)
    with pytest.raises(
        ValueError,
        match=r"^Engine\.loaded: None with qwen3_next: weights that its quantization_config stores in fewer bits",
    ):
        eb.serve(stored, "h200", 4096, engine=eb.Engine(profile=GIB))
    for more in ({"pages": GIB}, {"loaded": 80 * GIB, "profile": GIB}):
        found = eb.serve(stored, "h200", 4096, engine=eb.Engine(**more))
        assert found.pages == eb.serve(NEXT, "h200", 4096, engine=eb.Engine(**more)).pages
    with pytest.raises(ValueError, match=r"^Qwen3NextConfig\.quantization_config: "):
        dry_serve(stored, 1, 8)


def test_a_config_generates_with_the_attention_that_it_says():
    """Scores exist in transformers' eager attention, and so take memory; another package's kernel no dry run has."""
    small = {
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "vocab_size": 211,
    }
    peaks = [
        dry_serve(config("llama", **small, **said), 2, 256, 0)[0].peak
        for said in ({}, {"attn_implementation": "sdpa"}, {"attn_implementation": "eager"})
    ]
    assert peaks[0] == peaks[1] < peaks[2] - 2 * 4 * 256**2 * 4
    with pytest.raises(
        ValueError, match=r"^LlamaConfig\.attn_implementation: 'flash_attention_2' .* allowed: sdpa, eager"
    ):
        dry_serve(config("llama", **small, attn_implementation="flash_attention_2"), 2, 256)


def test_qwen3_next_as_vllm_printed_it():
    """Two H200s, vLLM 0.10.2: blocks, tokens, requests; and 'Model loading took 74.28 GiB', of the weights as two GPUs divide them."""
    engine = eb.Engine(pages=47_878_721_024, tensor_parallel=2, loaded="74.28 GiB")
    found = eb.serve(transformers.Qwen3NextConfig(), "h200", 262_144, engine=engine)
    assert (found.pool.block, found.blocks, found.tokens, f"{float(found.most):.2f}") == (544, 7162, 973_760, "14.77")
    assert "VLLM_ALLOW_LONG_MAX_MODEL_LEN=1" in found.said()[-1]
    whole = eb.serve(NEXT, "h200", 262_144, engine=eb.Engine(profile="5.58 GiB", tensor_parallel=2))
    assert f"{(whole.parts['weights'] + whole.parts['rotary table']) / GIB:.2f}" == "74.28"
    assert whole.profiled == round(5.58 * GIB) and whole.pages == whole.requested - sum(whole.parts.values())
    assert whole.as_dict()["model"]["parameters"] == 79_674_391_296


def test_kimi_as_vllm_printed_it():
    """github.com/vllm-project/vllm/issues/28228: 2.30 GiB of pages, 75,840 tokens, 2.48 requests of 120,000; 7 latent layers and 20 states."""
    found = [
        eb.serve(KIMI, "rtx-3090", 120_000, engine=eb.Engine(pages=int(gib * GIB), tensor_parallel=2))
        for gib in (2.296, 2.298, 2.304)
    ]
    assert {one.tokens for one in found} == {75_840}
    assert [f"{float(one.most):.2f}" for one in found] == ["2.48", "2.48", "2.49"]  # of what rounds to 2.30 GiB
    pool = found[0].pool
    assert [group.name for group in pool.groups] == ["latent", "state", "state", "state"] and pool.layers == 7


def test_a_request_has_two_states_where_prefixes_are_cached():
    one, two = (eb.serve(NEXT, "h200", 8192, engine=eb.Engine(pages=GIB, state_pages=n)) for n in (1, 2))
    assert two.each - one.each == 3 and two.blocks == one.blocks


#: Small models of each kind: fields of the config beside the usual.
USUAL = {
    "hidden_size": 64,
    "vocab_size": 98,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
DELTA = {
    "num_hidden_layers": 4, "head_dim": 16, "linear_num_value_heads": 4, "linear_num_key_heads": 2, "linear_key_head_dim": 8, "linear_value_head_dim": 24,
    "intermediate_size": 32,
}  # fmt: skip
MIXED = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16, "shared_expert_intermediate_size": 16}
MAMBA = {"mamba_n_heads": 8, "mamba_d_state": 24, "mamba_n_groups": 2, "intermediate_size": 32}
OWN = {
    "qwen3_next": DELTA | MIXED, "qwen3_5_text": DELTA, "qwen3_5_moe_text": DELTA | MIXED,
    "kimi_linear": {
        "num_hidden_layers": 5, "num_key_value_heads": 4, "linear_num_heads": 4, "linear_head_dim": 16, "kv_lora_rank": 24, "qk_nope_head_dim": 16, "qk_rope_head_dim": 8, "v_head_dim": 16,
        "num_local_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16, "intermediate_size": 32,
    },
    "falcon_h1": MAMBA | {"num_hidden_layers": 3, "head_dim": 16, "mamba_d_ssm": 128},
    "bamba": MAMBA | {"num_hidden_layers": 3, "attn_layer_indices": [1]},
    "granitemoehybrid": MAMBA | {
        "num_hidden_layers": 3, "layer_types": ["linear_attention", "full_attention", "linear_attention"], "shared_intermediate_size": 32, "num_local_experts": 2,
    },
    "nemotron_h": {
        "layers_block_type": ["linear_attention", "full_attention", "mlp", "linear_attention"], "head_dim": 16, "mamba_num_heads": 8, "mamba_head_dim": 16,
        "ssm_state_size": 24, "n_groups": 2, "intermediate_size": 32,
    },
    "mamba": {"num_hidden_layers": 2, "state_size": 16}, "falcon_mamba": {"num_hidden_layers": 2, "state_size": 16},
    "mamba2": {"num_hidden_layers": 2, "num_heads": 8, "head_dim": 16, "state_size": 24, "n_groups": 2},
}  # fmt: skip


def small(kind):
    but = ("num_attention_heads", "num_key_value_heads") if "mamba" in kind else ()
    return config(kind, **{name: size for name, size in USUAL.items() if name not in but} | OWN[kind])


def test_every_kind_is_tried():
    assert {*OWN} == {*KINDS}


@pytest.mark.parametrize("kind", OWN)
def test_what_transformers_caches_hold(kind):
    """Keys, values and states after a prompt of 70 tokens, on tensors without data."""
    asked = small(kind)
    with torch.device("meta"), torch.no_grad():
        model = transformers.AutoModelForCausalLM.from_config(asked, dtype=torch.bfloat16).eval()
        cache = transformers.DynamicCache(config=asked)
        name = "cache_params" if "mamba" in kind else "past_key_values"
        model(torch.zeros(3, 70, dtype=torch.int64), use_cache=True, **{name: cache})
    held = [x for layer in cache.layers for x in (getattr(layer, "keys", None), getattr(layer, "values", None))]
    for layer in cache.layers:
        held += [x for name in ("conv_states", "recurrent_states") for x in getattr(layer, name, {}).values()]
    read = hybrid(asked, weights)
    assert sum(x.nbytes for x in held if x is not None) == 3 * cache_bytes(read, 70)
    assert read.parameters == sum(p.numel() for p in model.parameters())
    states = read.states
    sizes = {
        "state_key_heads": states.groups,
        "state_heads": states.heads,
        "state_rows": states.rows,
        "state_columns": states.columns,
    }
    if not states.groups:
        assert states.held() == 4 * 128 * 16 + 2 * 4 * 128
        return
    assert states.held() == eb.formula("state.held")(batch=1, weight_bytes=2, convolved=states.convolved, **sizes)


def test_what_stands_in_pages():
    found = eb.serve(small("qwen3_next"), "h100-80gb", 100, 5, cache="paged")
    state = 4 * 4 * 8 * 24 + 2 * 4 * (4 * 24 + 2 * 2 * 8)
    assert found.held == 5 * (3 * state + 112 * 2 * 2 * 16 * 2) and found.per_token == 2 * 2 * 16 * 2
    assert found.peak == found.held + 2 * found.model.parameters
    assert f"{3 * state:,} B a sequence" in str(found.table()) and f"of {state:,} B a sequence" in found.said()[-1]
    alone = eb.serve(small("mamba2"), "h100-80gb", 100, 5, cache="paged")
    assert alone.per_token == 0 and alone.as_dict()["cache"]["bytes"] == alone.held
    assert eb.serve(small("mamba2"), "h100-80gb", 10_000, 5, cache="paged").held == alone.held


@pytest.mark.parametrize("kind", OWN)
@pytest.mark.parametrize("cache", ["dynamic", "static"])
def test_the_passes_of_generation_by_dry_run(kind, cache):
    """What stands between passes are weights, buffers, tokens and the cache, whose bytes are `cache_bytes`; the most that fit, and not one more."""
    asked, room = small(kind), {"dynamic": None, "static": 80}[cache]
    prefill, first, second = eb.dry_serve(asked, 2, 77, 2, room=room)
    read = hybrid(asked, weights)
    assert prefill.cache == 2 * cache_bytes(read, room or 77) and second.cache == 2 * cache_bytes(read, room or 79)
    counters = 8 * read.attention.layers if room and read.attention else 0  # of a static cache, one a layer
    assert first.rest - prefill.rest == prefill.cache + counters + 2 * 8  # and a token of each sequence
    gpu = eb.Gpu(memory="900 MiB", capability="9.0")
    found = eb.serve(asked, gpu, 80, prompt=60, cache=cache, headroom=eb.Headroom(context=0))
    assert found.peak <= found.usable < found.next and found.fits
    one = eb.dry_serve(asked, found.concurrency + 1, 60, 0, room=room, rounding=512)[0]
    assert found.next == one.peak and "torch code" in found.said()[0]
    assert all(sum(moment.parts.values()) == moment.bytes for moment in found.moments)


def test_what_gpus_divide():
    """Mamba-2's single group is repeated on each GPU; its heads are divided. vLLM: `extra_groups_for_head_shards`."""
    asked = small("bamba")
    asked.mamba_n_groups = 1
    pages = [
        eb.serve(asked, "h100-80gb", 100, engine=eb.Engine(pages=GIB, tensor_parallel=n)).engine.states[1]
        for n in (1, 2)
    ]
    assert pages == [2 * 8 * 16 * 24 + 2 * 3 * (128 + 2 * 24), 2 * 4 * 16 * 24 + 2 * 3 * (64 + 2 * 24)]
    wide = eb.serve(small("falcon_h1"), "h100-80gb", 100, engine=eb.Engine(pages=GIB, state_dtype="fp32"))
    assert wide.engine.states == (3, 4 * 8 * 16 * 24 + 2 * 3 * (128 + 2 * 2 * 24))
    assert [group.name for group in wide.pool.groups] == ["full", "state"]


def test_weights_in_an_engine():
    """Of one GPU: token tables in whole 64 rows, decay rates in fp32; of Granite no rotary positions."""
    for kind, turning in (("qwen3_next", 4), ("bamba", 8), ("granitemoehybrid", 0)):
        asked = small(kind)
        found = eb.serve(asked, "h100-80gb", 100, engine=eb.Engine(profile=GIB))
        read = hybrid(asked, weights)
        rows = 2 * 30 * 64 * (2 - asked.tie_word_embeddings)
        assert found.parts["weights"] == 2 * read.parameters + rows + 2 * read.states.layers * read.states.heads
        assert found.parts.get("rotary table", 0) == 2 * turning * asked.max_position_embeddings


@pytest.mark.parametrize("kind", [kind for kind in LIKE if kind in configs.KINDS])
def test_a_decoders_config_is_read_back(kind):
    """The config that a `Model` makes is read as that `Model`, in all that a pass or a cache is made of."""
    for seed in range(3):
        model = decoders.small(kind, seed)
        asked = decoder_config(model)
        read = eb.from_config(asked)
        unlike = {name for name, value in vars(model).items() if getattr(read, name) != value}
        unlike -= {"name", "source", "code", "published"} | (
            {"ffn_width"} if model.experts and not model.dense_layers else set()
        )
        assert not unlike - {"full_every"}
        assert all(read.windowed(i) == model.windowed(i) for i in range(model.layers))
    found = eb.serve(asked, "h200", 64, 3, cache="paged")
    assert found.moments == eb.serve(model, "h200", 64, 3, cache="paged").moments


def test_the_configs_that_transformers_makes_by_default():
    counts = {
        "llama": 6_738_415_616,
        "gpt2": 124_439_808,
        "mixtral": 46_702_792_704,
        "deepseek_v3": 671_026_419_200,
    }
    for kind, count in counts.items():
        assert eb.from_config(config(kind)).parameters == count
    found = eb.serve(config("llama"), "h100-80gb", 2048)
    assert found.concurrency == eb.serve(eb.model("llama-2-7b"), "h100-80gb", 2048).concurrency


LONG = {
    "rope_type": "longrope",
    "rope_theta": 1e4,
    "short_factor": [1.0] * 48,
    "long_factor": [1.0] * 48,
    "original_max_position_embeddings": 4096,
}


def on(asked, gpu="h200", context=100, **engine):
    return lambda: eb.serve(asked, gpu, context, engine=eb.Engine(**engine))


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: eb.serve(NEXT, "h200", 2**16 + 1), "serve.context: 65,537 of qwen3_next, whose passes a dry run counts"),
        (lambda: eb.serve(NEXT, "t4", 8192, weights="fp16", cache_dtype="fp16"), "serve.cache: 'dynamic' on t4"),
        (lambda: eb.serve(NEXT, "h200", 8192, cache_dtype="fp8"), "serve.cache_dtype: 'fp8' with cache 'dynamic'"),
        (lambda: eb.serve(transformers.Qwen3_5Config(), "h200", 8192, cache="paged"), "serve.model: a config of images and text"),
        (lambda: eb.serve(config("qwen3_next", head_dim=44), "h200", 512), "serve.cache: heads of 44 of qwen3_next"),
        (lambda: eb.serve(config("qwen3_next", num_experts=4, num_hidden_layers=4), "h200", 512), "Qwen3NextConfig: its model does not generate"),
        (lambda: eb.serve(config("mamba"), "h200", 2049), "serve.context: 2,049 of mamba, .* up to 2,048"),
        (lambda: eb.serve(config("granitemoehybrid"), "h200", 64), "GraniteMoeHybridConfig: its model does not generate"),
        (lambda: eb.dry_serve(config("bert"), 1, 8), "dry_serve.model: a BertConfig; allowed"),
        (lambda: eb.serve(NEXT, "h200", 8192, cache="paged", weights="fp8"), "serve.weights: 'fp8' with qwen3_next"),
        (lambda: eb.serve(config("falcon"), "h200", 512), "config.model_type: 'falcon'; allowed: gpt2, llama, "),
        (lambda: eb.serve(config("llama", attention_bias=True), "h200", 512), "config.attention_bias: True of llama; allowed: False"),
        (lambda: eb.serve(config("llama", quantization_config={"quant_method": "fp8"}), "h200", 512), "config.quantization_config"),
        (lambda: eb.serve(config("qwen3_moe", norm_topk_prob=False), "h200", 512), "config.norm_topk_prob: False"),
        (lambda: eb.serve(config("phi3", rope_parameters=LONG), "h200", 512), "config.rope_parameters: 'longrope'"),
        (lambda: eb.serve(config("lfm2", layer_types=["conv"] * 32), "h200", 512), "Lfm2Config.layer_types: states of 'lfm2' are not derived"),
        (lambda: eb.serve(config("lfm2", layer_types=["conv"] * 32), "h200", 512, cache="paged"), "Lfm2Config.layer_types: .* 'lfm2'"),
        (lambda: eb.serve("qwen3-next", "h200", 512), "serve.model: 'qwen3-next'; allowed: a Model"),
        (lambda: eb.serve(config("qwen3_5_text", mamba_ssm_dtype="fp8"), "h200", 512), "Qwen3_5TextConfig.mamba_ssm_dtype: 'fp8'"),
        (on(NEXT, name="sglang"), "Engine.name: 'sglang' with qwen3_next"),
        (on(NEXT, states=(36, 9), pages=1), "Engine.states: .* with a configuration, which says them"),
        (on(NEXT, draft=eb.model("llama-3.2-1b")), "Engine.draft: .* beside qwen3_next"),
        (on(NEXT), "Engine.profile: None with layers that have a state"),
        (on(NEXT, loaded="75 GiB"), "Engine.profile: None with layers that have a state"),
        (on(NEXT, profile=1, tensor_parallel=4), "Engine.loaded: None with qwen3_next: weights .* of qwen3_next divided among 4 GPUs"),
        (on(NEXT, profile=1, weights="fp8"), "Engine.loaded: None with qwen3_next: weights in fp8"),
        (on(NANO, profile=1), "Engine.loaded: None with nemotron_h: weights as the engine holds those of nemotron_h"),
        (on(transformers.Qwen3_5Config(), profile=1), "Engine.loaded: None with qwen3_5_text"),
        (on(NEXT, pages=1, tensor_parallel=3), "Engine.tensor_parallel: 3 does not divide the 32 heads of its states"),
        (on(small("bamba"), pages=1, tensor_parallel=4), "Engine.tensor_parallel: 4 does not divide the 2 groups"),
        (on(KIMI, pages=1, state_dtype="bf16"), "Engine.state_dtype: 'bf16' with kimi_linear"),
        (on(NEXT, pages=1, block=128), "Engine.block: 128 holds no state of qwen3_next; allowed: 0, or 544"),
        (on(NEXT, "b200", pages=1), "Engine.block: 0 on b200, where releases of vLLM differ"),
        (on(small("mamba2"), pages=1), "serve.model: mamba2 has no layers with attention"),
        (on(eb.model("llama-3.1-8b"), state_dtype="fp32"), "Engine.state_dtype: 'fp32' with llama-3.1-8b"),
        (on(eb.model("llama-3.1-8b"), state_pages=2), "Engine.state_pages: 2 with llama-3.1-8b"),
        (lambda: eb.Engine(state_dtype="fp8"), "Engine.state_dtype: 'fp8' is unknown"),
        (lambda: eb.Engine(state_pages=0), "Engine.state_pages: 0 is not a whole number"),
    ],
)  # fmt: skip
def test_what_is_refused(make, said):
    with pytest.raises(ValueError, match=said):
        make()


def test_a_block_as_the_log_says_it():
    found = eb.serve(NEXT, "b200", 8192, engine=eb.Engine(pages=GIB, block=576))
    assert found.pool.block == 576 and found.pool.bytes == 12 * 576 * 2048


def test_the_command(tmp_path, capsys):
    small("qwen3_next").save_pretrained(tmp_path)
    words = ["serve", "--hf", str(tmp_path / "config.json"), "--gpu", "h100-80gb", "--context", "100"]
    assert main([*words, "--cache", "paged", "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["cache"]["bytes"] == said["concurrency"] * cache_bytes(
        hybrid(small("qwen3_next"), weights), 100, page=16
    )
    assert main([*words, "--engine", "pages=1GiB"]) == 0 and "layers have a state" in capsys.readouterr().out
    assert main([*words, "--json"]) == 0 and json.loads(capsys.readouterr().out)["cache"]["kind"] == "dynamic"
    assert (
        main([*words, "--cache", "paged", "--weights", "fp8", "--json"]) == 2
        and "serve.weights" in capsys.readouterr().out
    )
    assert main(["serve", "gpt2", *words[1:]]) == 2 and "2 models" in capsys.readouterr().err
    assert main(["serve", *words[3:]]) == 2 and "no model" in capsys.readouterr().err
