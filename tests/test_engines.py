"""What an engine decides as it starts: against numbers that engines printed, vLLM's own unit tests, and arithmetic."""

import json

import pytest

import everybyte as eb
from everybyte.answers.engines import Kind, Pool
from everybyte.command import main
from everybyte.published import engines

GIB = 2**30
LLAMA = eb.model("llama-3.1-8b")
#: Qwen1.5-7B's layers in vLLM's tests, tests/v1/core/test_kv_cache_utils.py: 32 heads of 128 in fp16, pages of 16 tokens.
QWEN = eb.model("llama-2-7b").replace(positions=32_768)


def kinds(*windows):
    """Groups of vLLM's tests: full attention, or a window."""
    token = 2 * 32 * 128 * 2
    return tuple(Kind("sliding" if w else "full", 32, token, w) for w in windows)


@pytest.mark.parametrize(
    ("blocks", "windows", "most"), [(1536, [0], 1.5), (129 * 3, [1024], 3), ((1024 + 129) * 3, [0, 1024], 3)]
)
def test_requests_at_once_are_those_of_vllms_tests(blocks, windows, most):
    """`test_get_max_concurrency_for_kv_cache_config`: 16,384 tokens a request, steps of 1,024."""
    assert blocks / Pool(kinds(*windows), 1, 16).blocks(16_384, 1024) == most


def test_a_requests_bytes_are_those_of_vllms_tests():
    """`test_estimate_max_model_len`: 8 GiB hold 16,384 tokens of 32 such layers, and not 16,385."""
    for context, fits in ((16_384, True), (16_385, False)):
        found = eb.serve(QWEN, "h100-80gb", context, engine=eb.Engine(pages=8 * GIB))
        assert (found.tokens, found.fits) == (16_384, fits)


def test_what_engines_printed():
    """Each number to its last digit, or the difference that is told; none that is told without a difference."""
    told = {}
    for run in engines.runs():
        apart = {one.what: one.apart for one in run.compared() if one.apart}
        assert bool(apart) == bool(run.cause), run.id
        told |= {(run.id, what): value for what, value in apart.items()}
    counted = {what for _, what in told if what in ("blocks", "requests", "needed")}
    numbers = [one for run in engines.runs() for one in run.compared()]
    assert not counted and len(numbers) == 52 and len(told) == 15
    sizes = {key: value for key, value in told.items() if key[1] != "tokens"}
    assert max(map(abs, sizes.values())) < 0.063  # GiB: the 64 MiB of two GPUs
    assert len({run.source for run in engines.runs()}) >= 8


def test_the_whole_start_of_llama():
    found = eb.serve(LLAMA, eb.Gpu(memory="79.18 GiB", capability="9.0"), 16_000, engine=eb.Engine())
    weights = 2 * 8_030_261_248
    rows, tokens = 1024, 8192
    assert found.requested == int(found.gpu.memory * 9 // 10)
    assert found.parts == {
        "weights, bf16": weights,
        "rotary table": 131_072 * 128 * 2,
        "hidden states": 2 * 4096 * (tokens + 2 * rows),
        "logits, sorted": rows * 38 * 128_256,
        "cuBLAS's workspace": 32 * 2**20,
        "outside PyTorch": round(0.13 * GIB),
    }
    assert found.pages == found.requested - sum(found.parts.values())
    assert found.blocks == found.pages // (16 * 131_072) and found.tokens == 16 * found.blocks
    assert float(found.most) == found.blocks / 1000 and found.free == found.gpu.memory - found.requested


def test_layers_of_two_kinds_share_one_pool():
    """gpt-oss: 12 full and 12 with a window of 128 are two groups; Gemma 3: 4 full, and 22 in six groups of 4, two places unused."""
    found = eb.serve(eb.model("gpt-oss-20b"), "h100-80gb", 131_072, engine=eb.Engine(pages=GIB))
    assert found.pool.bytes == 12 * 16 * 2 * 8 * 64 * 2 and found.pool.layers == 12
    assert found.each == 131_072 // 16 + -(-(127 + 8192) // 16) + 1
    assert found.tokens == found.blocks // 2 * 16
    gemma = eb.serve(eb.model("gemma-3-1b"), "h100-80gb", 32_000, engine=eb.Engine(pages=GIB))
    assert [group.name for group in gemma.pool.groups].count("sliding") == 6 and len(gemma.pool.groups) == 7
    scout = eb.serve(eb.model("llama-4-scout"), "h100-80gb", 32_000, engine=eb.Engine(pages=GIB))
    assert [group.name for group in scout.pool.groups] == ["full"] + ["chunked"] * 3
    assert scout.each == 2000 + 3 * -(-(8192 + 8192) // 16)


def test_what_divides_and_what_is_repeated():
    one, two, sixteen = (
        eb.serve(LLAMA, "h100-80gb", 8192, engine=eb.Engine(pages=GIB, tensor_parallel=n)) for n in (1, 2, 16)
    )
    assert one.pool.bytes == 2 * two.pool.bytes == 8 * sixteen.pool.bytes
    assert "2 GPUs hold the same key and value head." in sixteen.said()
    eight = eb.Engine(tensor_parallel=8, loaded="80 GiB", profile="5 GiB")
    latent = eb.serve(eb.model("deepseek-v3"), "h200", 8192, engine=eight)
    assert latent.pool.bytes == 16 * 61 * 576 * 2 and "whole latent cache" in latent.said()[-1]
    half = eb.serve(LLAMA, "h100-80gb", 8192, engine=eb.Engine(cache="fp8"))
    assert half.blocks // 2 == eb.serve(LLAMA, "h100-80gb", 8192, engine=eb.Engine()).blocks


def test_a_draft_has_weights_and_pages_beside():
    small = eb.model("llama-3.2-1b")
    alone = eb.serve(LLAMA, "h100-80gb", 8192, engine=eb.Engine(profile="4.76 GiB"))
    both = eb.serve(LLAMA, "h100-80gb", 8192, engine=eb.Engine(profile="4.76 GiB", draft=small))
    assert alone.pages - both.pages == 2 * small.parameters + small.positions * 64 * 2
    assert both.pool.bytes == 16 * (131_072 + 16 * 2 * 8 * 64 * 2)


def test_a_shared_prefix_is_held_once():
    found = eb.serve(LLAMA, "h100-80gb", 8192, engine=eb.Engine())
    assert found.sharing([1000] * 8) == 8 * 63
    assert found.sharing([1000] * 8, prefix=500) == 31 + 8 * (63 - 31)
    with pytest.raises(ValueError, match="sharing.prefix: 1001"):
        found.sharing([1000], 1001)
    with pytest.raises(ValueError, match="sharing: gpt-oss-20b has layers with a window or a state"):
        eb.serve(eb.model("gpt-oss-20b"), "h100-80gb", 8192, engine=eb.Engine(pages=GIB)).sharing([100])


def test_layers_with_a_state_as_vllm_printed_them():
    """Qwen3-Next 80B on two H200s, vLLM 0.10.2: 47,878,721,024 bytes for pages; 36 of its 48 layers are gated delta nets, in bf16."""
    attention = LLAMA.replace(
        name="qwen3-next's attention",
        layers=12,
        width=2048,
        heads=16,
        kv_heads=2,
        head_width=256,
        vocabulary=151_936,
        positions=262_144,
    )
    state = (
        3 * (2 * 8 * 128 + 16 * 128) * 2 + 16 * 128 * 128 * 2
    )  # of half the heads: the convolution's, and a matrix a head
    engine = eb.Engine(pages=47_878_721_024, tensor_parallel=2, states=(36, state), loaded="74.28 GiB")
    found = eb.serve(attention, "h200", 262_144, engine=engine)
    assert (found.pool.block, found.blocks, found.tokens, f"{float(found.most):.2f}") == (544, 7162, 973_760, "14.77")
    assert f"{sum(found.engine.profiled(attention, found.gpu).values()) / GIB:.2f}" == "5.58"
    assert f"{544 * 1024 / state - 1:.2%}" == "1.49%"  # "Padding mamba page size by 1.49%"
    assert sum(group.name == "state" for group in found.pool.groups) == 3


def test_sglang_has_a_fraction_of_what_is_free_before():
    found = eb.serve(LLAMA, "h100-80gb", 8192, engine=eb.Engine(name="sglang", utilization=0.9))
    weights = 2 * 8_030_261_248 + 131_072 * 128 * 2
    assert found.tokens == (int((found.gpu.memory - 748 * 2**20) * 9 // 10) - weights) // 131_072


def test_where_the_mlp_is_widest_in_the_profile_run():
    found = eb.serve(LLAMA, "rtx-3090", 20_000, engine=eb.Engine(batched=20_000))
    assert found.parts["the widest layer"] == 20_000 * 3 * 14_336 * 2
    assert found.parts["hidden states"] == 20_000 * 3 * 4096 * 2 and "eager" in found.said()[-1]
    assert not eb.serve(LLAMA, "rtx-3090", 131_072, engine=eb.Engine()).fits


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: eb.Engine(name="tgi"), "Engine.name: 'tgi' is unknown; allowed: vllm, sglang"),
        (lambda: eb.Engine(utilization=1.2), "Engine.utilization: 1.2 is not a number"),
        (lambda: eb.Engine(utilization=0), "Engine.utilization: 0; allowed: more than 0"),
        (lambda: eb.Engine(cache="int8"), "Engine.cache: 'int8' is unknown"),
        (lambda: eb.Engine(profile="much"), "Engine.profile: "),
        (lambda: eb.Engine(sequences=-1), "Engine.sequences: -1 is not a whole number"),
        (lambda: eb.Engine(name="sglang", pages=GIB), "Engine.pages: 1073741824 with sglang"),
        (lambda: eb.serve(LLAMA, "h100-80gb", 8192, engine="vllm"), "serve.engine: 'vllm'; allowed: a Engine"),
        (lambda: eb.serve(LLAMA, "h100-80gb", 8192, cache="paged", engine=eb.Engine()), "serve.cache: 'paged' with an engine"),
        (lambda: eb.serve(LLAMA, "t4", 8192, engine=eb.Engine()), "Engine.weights: 'bf16' on t4"),
        (lambda: eb.serve(LLAMA, "h100-80gb", 8192, engine=eb.Engine(tensor_parallel=3)), "Engine.tensor_parallel: 3 does not divide kv_heads 8"),
        (lambda: eb.serve(LLAMA, "h100-80gb", 8192, engine=eb.Engine(tensor_parallel=2, weights="fp8")), "Engine.weights: 'fp8' divided among 2 GPUs"),
        (lambda: eb.serve(eb.model("deepseek-v3"), "h200", 8192, engine=eb.Engine()), "Engine.profile: None with latent attention"),
        (lambda: eb.serve(eb.model("mixtral-8x7b"), "h200", 8192, engine=eb.Engine(tensor_parallel=2)), "Engine.tensor_parallel: 2 with mixtral-8x7b"),
        (lambda: eb.serve(LLAMA, "h200", 8192, engine=eb.Engine(draft=eb.model("llama-3.2-1b"))), "Engine.draft: .* in the profile run is not derived"),
        (lambda: eb.serve(eb.model("bert-base"), "h200", 512, engine=eb.Engine()), "Model.causal: False of bert-base"),
        (lambda: eb.serve(eb.model("gpt-oss-20b"), "h200", 512, engine=eb.Engine(name="sglang")), "Model.window: 128 with sglang"),
        (lambda: eb.Engine(states=3), "Engine.states: 3; allowed: "),
        (lambda: eb.serve(LLAMA, "h200", 512, engine=eb.Engine(states=(3, 9))), "Engine.states: .* without the bytes of its weights"),
        (lambda: eb.serve(eb.model("gpt-oss-20b"), "h200", 512, engine=eb.Engine(pages=1, states=(3, 9))), "Engine.states: .* a draft or windows"),
        (lambda: eb.Engine.read("tokens=4"), "Engine.field: 'tokens' is unknown"),
    ],
)  # fmt: skip
def test_what_is_refused(make, said):
    with pytest.raises(ValueError, match=said):
        make()


def test_the_command(capsys):
    words = [
        "serve",
        "llama-3.1-8b",
        "--gpu",
        "h100-80gb",
        "--context",
        "8192",
        "--engine",
        "utilization=0.8 graphs=0.39GiB",
    ]
    assert main([*words, "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    found = eb.serve(LLAMA, "h100-80gb", 8192, engine=eb.Engine(utilization=0.8, graphs="0.39 GiB"))
    assert said == json.loads(json.dumps(found.as_dict()))
    assert main(words) == 0 and f"{found.tokens:,}" in capsys.readouterr().out


def test_no_option_of_an_engine_is_passed_over():
    """What pages are stated with stands beside them; what a GPU does not have, or an engine does not take, is refused."""
    sizes = {"profile": 5 * GIB, "outside": GIB // 2, "graphs": GIB}
    found = eb.serve(LLAMA, "h100-80gb", 4096, engine=eb.Engine(pages=20 * GIB, **sizes))
    assert (found.profiled, found.beside) == (5 * GIB, GIB // 2 + GIB)
    assert eb.serve(LLAMA, "h100-80gb", 4096, engine=eb.Engine(pages=20 * GIB)).beside == round(0.13 * GIB)
    assert eb.serve(LLAMA, "h100-80gb", 4096, 1024, engine=eb.Engine(pages=20 * GIB)).fits is False
    assert eb.serve(LLAMA, "h100-80gb", 16, 2000, engine=eb.Engine(sequences=2000)).fits
    assert eb.serve(LLAMA, "h100-80gb", 16, 5000, engine=eb.Engine(name="sglang")).fits
    assert eb.serve(LLAMA, "h100-80gb", 16, engine=eb.Engine(utilization=0.99)).fits


@pytest.mark.parametrize(
    ("engine", "number", "words"),
    [
        (
            {"pages": 200 * GIB},
            None,
            r"Engine\.pages: 214,748,364,800 bytes on h100-80gb; allowed: up to 85,029,027,840",
        ),
        ({"pages": 70 * GIB, "loaded": 20 * GIB}, None, r"Engine\.pages: .* allowed: up to 63,554,191,360"),
        (
            {"utilization": 1.0},
            None,
            r"Engine\.utilization: 1 of h100-80gb is more than CUDA's context leaves, .* up to 0\.99$",
        ),
        (
            {},
            1025,
            r"serve\.concurrency: 1,025, and the engine takes 1,024 requests at once; .* or Engine\(sequences=1025\)",
        ),
        ({"name": "sglang", "sequences": 9}, 10, r"serve\.concurrency: 10, and the engine takes 9 requests"),
        ({"name": "sglang", "profile": GIB}, None, r"Engine\.profile: 1073741824 with sglang"),
        ({"name": "sglang", "outside": GIB}, None, r"Engine\.outside: 1073741824 with sglang"),
        ({"name": "sglang", "batched": 8192}, None, r"Engine\.batched: 8192 with sglang"),
    ],
)
def test_what_an_engine_does_not_start_with(engine, number, words):
    with pytest.raises(ValueError, match=words):
        eb.serve(LLAMA, "h100-80gb", 16, number, engine=eb.Engine(**engine))
