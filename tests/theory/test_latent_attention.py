"""DeepSeek-V3's code at its own dimensions, and the largest open models on clusters."""

import pytest
from agreeing import to_the_byte

import everybyte as eb

CLUSTER = eb.Setup(batch=1, sequence=4096, precision="bf16", gpus=256, sharding="zero3", checkpointing="full")


@pytest.mark.parametrize("name, layers", [("deepseek-v3", 5), ("kimi-k2", 3), ("glm-4.5", 4), ("qwen3-30b-a3b", 2)])
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
