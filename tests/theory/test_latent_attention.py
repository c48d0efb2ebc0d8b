"""DeepSeek-V3's code at its own dimensions, and the largest open models on clusters."""

import pytest
import ran
from agreeing import to_the_byte

import everybyte as eb

CLUSTER = eb.Setup(batch=1, sequence=4096, precision="bf16", gpus=256, sharding="zero3", checkpointing="full")


@pytest.mark.parametrize(
    "name, layers", [("deepseek-v3", 5), ("kimi-k2", 3), ("glm-4.5", 4), ("qwen3-30b-a3b", 2), ("llama-4-scout", 4)]
)
def test_published_dimensions_agree(name, layers):
    pytest.importorskip("transformers")
    model = eb.model(name).replace(layers=layers)
    to_the_byte(model, CLUSTER)
    to_the_byte(model, eb.Setup(batch=1, sequence=512, precision="bf16-mixed"))


def test_routers_biases_are_buffers_and_no_weights():
    model = eb.model("deepseek-v3")
    found = eb.budget(model, eb.Setup(batch=1, sequence=4096, precision="bf16"))
    assert found.parts_at("rest")["parameters"] == 2 * (model.parameters - 58 * 256) == 2 * 671_026_404_352
    assert found.parts_at("rest")["buffers"] == 58 * 256 * 2 + 2 * 32 * 2
    for name in ("weights", "optimizer"):
        with pytest.raises(
            ValueError, match=rf"formula {name}: Model.corrected: True of deepseek-v3.*eb.budget answers"
        ):
            eb.formula(name).at(model, CLUSTER)


def test_the_largest_are_priced_on_a_cluster():
    """As many GPUs as experts: FSDP cuts experts' matrices by experts, and twice as many gather twice as many rows, half of them padding."""
    assert eb.layouts(eb.model("deepseek-v3"), CLUSTER, "h200").best.setup.gpus == 256
    kimi = CLUSTER.replace(gpus=384)
    assert eb.layouts(eb.model("kimi-k2"), kimi, "b200").best
    one, two = (eb.budget(eb.model("kimi-k2"), kimi.replace(gpus=gpus)) for gpus in (384, 768))
    assert two.parts["communication"] > 1.98 * one.parts["communication"] and two.peak > 1.5 * one.peak


def test_what_nobody_derives_names_nobody():
    with pytest.raises(ValueError, match=r"^Setup.mesh: tensor=2 with glm-4.5, .* is not derived; allowed: no mesh$"):
        eb.budget(eb.model("glm-4.5"), CLUSTER.replace(mesh=eb.Mesh(tensor=2)))


def test_what_a_layer_of_latent_attention_keeps():
    """The formula beside the tensors that a dry run of Hugging Face's class has after forward, by the modules that made them."""
    pytest.importorskip("transformers")
    model = eb.model("deepseek-v3").replace(layers=1, dense_layers=0)
    setup = eb.Setup(batch=2, sequence=80, precision="bf16")
    trace, formula = eb.dry_run(model, setup), eb.formula("attention.latent")
    kept = trace.owners(trace.marks["after_forward"])
    found = formula.at(model, setup)
    assert found == sum(a.bytes for a in kept if "self_attn" in a.owner and a.part == "activations")
    grouped = (
        setup.batch * setup.sequence * (2 * (2 * 128 + 2 * 8) * 128 + 4 * 128)
    )  # 128 heads of 128 over 8 key and value heads
    assert 3 * grouped < found < 3.1 * grouped
    for precision in ("bf16-mixed", "fp32"):
        with pytest.raises(
            ValueError, match=f"Setup.precision: '{precision}' .*; allowed: bf16, bf16-master; eb.budget answers"
        ):
            formula.at(model, setup.replace(precision=precision))


#: Runs of an H200, with PyTorch 2.11 and transformers 5.23 -> (a model of the catalog, what its configuration is told, bytes that the GPU kept in each layer beyond the theory's).
#: cuDNN's attention runs there: 16 bytes of random state in place of flash attention's 24; and its output lies otherwise than the
#: memory-efficient kernel's, which has no state on the GPU, so that a copy of it is kept.
SMALL = {
    "width": 1024,
    "embedding_width": 1024,
    "ffn_width": 2816,
    "layers": 3,
    "heads": 16,
    "vocabulary": 32003,
    "kv_heads": 4,
    "head_width": 64,
}
MIXTURE = SMALL | {"expert_width": 512, "experts": 16, "experts_per_token": 4}
SHARED = MIXTURE | {"dense_layers": 1, "qk_norm": False, "qkv_bias": False}
LATENT = MIXTURE | {
    "kv_heads": 16, "head_width": 192, "value_width": 128, "rope_width": 64, "latent_rank": 256, "query_rank": 512, "dense_layers": 1,
    "expert_groups": 4, "groups_per_token": 2,
}  # fmt: skip
#: What Qwen 3's router keeps of a token where it divides weights by their sum, which the record's does not: weights before, and the sum.
DIVIDED = 2048 * (4 + 1) * 4
RUNS = {
    "glm4_moe": ("glm-4.5", SHARED, -8),
    "deepseek_v3": ("deepseek-v3", LATENT, 2048 * 16 * 128 * 2 + 16),
    "qwen3_moe": ("qwen3-30b-a3b", MIXTURE, -8 - DIVIDED),
    "llama4_text": ("llama-4-scout", SMALL | {"expert_width": 2816, "experts": 4}, -8),
}


@pytest.mark.parametrize("kind", RUNS)
def test_an_h200_asked_for_as_many_bytes(kind):
    """Beside two workspaces of cuBLAS: 4 bytes, and in bf16 rotary frequencies, which stay in fp32."""
    name, sizes, kept = RUNS[kind]
    model = eb.model(name).replace(**sizes)
    for words, changes, beside in (
        ("bf16,sdpa", {"precision": "bf16"}, 4 + 128 + 3 * kept),
        ("mixed,sdpa,full", {"precision": "bf16-mixed", "checkpointing": "full"}, 4),
    ):
        asked = ran.scripts()[f"{kind} {words}"]["told"]["end"]["requested_bytes"][1]
        assert asked - eb.budget(model, eb.Setup(batch=4, sequence=512, **changes)).peak == 2 * 2**25 + beside
