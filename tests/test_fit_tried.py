"""What fit tries of a setup that not every number goes with: GPUs in groups, tokens in parts, blocks checkpointed together."""

import pytest

import everybyte as eb
from everybyte.answers.headroom import ROUNDING, Headroom
from everybyte.theory.budget import heaviest

NOTHING = Headroom(driver=0, context=0, workspace=0, fragmentation=0, nccl=0)
GPT2 = eb.model("gpt2")


@pytest.mark.parametrize(
    ("vary", "changed", "wanted"),
    [
        ("gpus", {"gpus": 8, "resharding": "group", "resharding_gpus": 2}, (4, None)),
        ("gpus", {"gpus": 24, "resharding": "group", "resharding_gpus": 3, "replicas": 2}, (12, None)),
        ("gpus", {"gpus": 8, "fsdp_version": 1}, (2, None)),
        ("gpus", {"gpus": 8, "sharding": "none", "buckets": "views"}, (2, None)),
        ("gpus", {"gpus": 8, "mesh": eb.Mesh(expert=4), "precision": "bf16"}, (4, None)),
        ("sequence", {"gpus": 8, "mesh": eb.Mesh(context=2, tensor=4), "precision": "bf16"}, (128, 136)),
        ("sequence", {"gpus": 2, "mesh": eb.Mesh(context=2)}, (128, 256)),
        ("sequence", {"gpus": 2, "mesh": eb.Mesh(context=2, rotation="ulysses"), "precision": "bf16"}, (128, 130)),
    ],
)
def test_only_what_the_setup_can_have_is_tried(vary, changed, wanted):
    sizes = {"layers": 2, "width": 32, "heads": 4, "kv_heads": 4, "head_width": 8, "vocabulary": 96, "ffn_width": 48}
    experts = {"experts": 4, "experts_per_token": 2, "expert_width": 16}
    mixture = "mesh" in changed and changed["mesh"].expert > 1
    small = eb.model("mixtral-8x7b" if mixture else "llama-3.1-8b", code="reference")
    small = small.replace(**sizes, **experts if mixture else {})
    setup = eb.Setup(**{"batch": 2, "sequence": 128, "sharding": "zero3", **changed})
    peak = heaviest(small, setup, ROUNDING).peak
    room = 2**20 if vary == "gpus" else 0
    found = eb.fit(small, setup, eb.Gpu(memory=peak + room), vary, NOTHING)
    assert (found.value, found.next and getattr(found.next.setup, vary)) == wanted


def test_an_objective_with_blocks_checkpointed_together_is_found():
    small = eb.Objective(GPT2.replace(layers=4), "dpo")
    setup = eb.Setup(batch=1, sequence=64, checkpointing="every-k", checkpoint_every=2)
    found = eb.fit(small, setup, "t4", "batch", Headroom(fragmentation=0))
    assert found.peak == eb.budget(small, setup.replace(batch=found.value), ROUNDING).peak <= found.usable
    assert found.next.peak > found.usable


def test_the_last_multiple_of_what_a_mesh_divides_ends_with_the_positions():
    small = eb.Model(name="small", layers=2, width=32, heads=4, vocabulary=96, positions=254, tied=False)
    setup = eb.Setup(batch=1, sequence=64, precision="bf16", gpus=2, sharding="zero3", mesh=eb.Mesh(context=2))
    found = eb.fit(small, setup, "h200", "sequence", Headroom(fragmentation=0))
    assert found.value == 252 and found.limit == {"bound": "small ends at 254 positions"}
