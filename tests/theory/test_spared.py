"""What saves memory besides: held to PyTorch's own code, byte for byte."""

import grid
import pytest
from agreeing import agree

import everybyte as eb

GPT2 = eb.model("gpt2", code="reference")


@pytest.mark.sampled(2)
@pytest.mark.parametrize("start", range(0, 48, 2))
def test_any_way_to_the_byte(start):
    pytest.importorskip("peft")
    agree(grid.spared, range(start, start + 2))


@pytest.mark.sampled(2)
@pytest.mark.parametrize("start", range(0, 40, 2))
def test_muon_s_owners_to_the_byte(start):
    agree(grid.owned, range(start, start + 2), "")


def test_an_optimizer_in_backward_has_no_gradients_at_once():
    """Of weights in bf16 with 4 bytes of states 2 bytes of gradients are gone; what is left is the largest, one at a time."""
    setup = eb.Setup(batch=1, sequence=64, precision="bf16", checkpointing="full")
    after, inside = (eb.budget(GPT2, setup.replace(optimizer_in_backward=on)) for on in (False, True))
    assert after.parts_at("after_backward")["gradients"] == 2 * GPT2.parameters
    assert (
        not inside.parts_at("after_backward")["gradients"] and inside.phases["step"] == inside.phases["after_backward"]
    )
    assert after.phases["rest"] == inside.phases["rest"] == 6 * GPT2.parameters
    assert inside.peak < after.peak


def test_every_second_product_is_saved_and_attention():
    """Of a Llama's seven products q, v, gate and down; q's and k's turned, norms and what the gate is given are recomputed."""
    llama = eb.model("llama-3.2-1b", code="reference").replace(layers=4)
    setup = eb.Setup(batch=1, sequence=256, precision="bf16")
    kept = {}
    for how in ("full", "second-products", "operations"):
        kept[how] = eb.budget(llama, setup.replace(checkpointing=how)).parts_at("after_forward")["activations"]
    query, key, wide = llama.heads * llama.head_width, llama.kv_heads * llama.head_width, llama.ffn_width
    attention = 2 * query + 4 * llama.heads  # its result, and the log-sum-exp of each head
    saved = attention + 2 * (query + key + wide + llama.width)
    assert 0 <= (kept["second-products"] - kept["full"]) - 256 * 4 * saved < 4 * 64
    others = 2 * (key + llama.width + wide)
    assert kept["operations"] - kept["second-products"] == 256 * 4 * others


def test_of_each_k_blocks_the_last_is_recomputed():
    setup = eb.Setup(batch=1, sequence=64, precision="bf16")
    none, full = (
        eb.budget(GPT2, setup.replace(checkpointing=how)).parts_at("after_forward")["activations"]
        for how in ("none", "full")
    )
    for k in (1, 2, 3, 5, 12):
        kept = eb.budget(GPT2, setup.replace(checkpointing="one-in-k", checkpoint_every=k)).parts_at("after_forward")[
            "activations"
        ]
        assert kept == none - (none - full) * (12 // k) // 12


def test_states_are_made_where_backward_first_asks_for_them():
    """The allocator is asked in the dry run's order, and reserves the same."""
    setup = eb.Setup(batch=1, sequence=64, precision="bf16", optimizer_in_backward=True)
    predicted, counted = eb.budget(GPT2, setup), eb.dry_run(GPT2, setup)
    assert predicted.on("h100-80gb").reserved == counted.on("h100-80gb", whole=True).reserved


@pytest.mark.parametrize("few", [2, 4])
def test_units_in_groups_keep_a_share_of_few_gpus(few):
    """From forward to backward each of 16 GPUs holds the weights' `few`-th part in bf16; after backward its own share alone."""
    model = GPT2.replace(layers=3, width=64, heads=4, vocabulary=256, positions=64)
    setup = eb.Setup(batch=1, sequence=32, precision="bf16", sharding="zero3", gpus=16, resharding="root")
    apart, held = (eb.budget(model, s) for s in (setup, setup.replace(resharding="group", resharding_gpus=few)))
    assert apart.parts_at("after_forward")["unsharded"] == 0
    assert held.parts_at("after_forward")["unsharded"] == 2 * model.parameters // few
    assert held.phases["after_backward"] == apart.phases["after_backward"]


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"resharding_gpus": 8}, r"^Setup\.resharding_gpus: 8 do not part the 8 GPUs"),
        ({"resharding_gpus": 3}, r"^Setup\.resharding_gpus: 3 do not part the 8 GPUs"),
        ({"resharding_gpus": 2, "mesh": eb.Mesh(tensor=2)}, r"^Setup\.resharding: 'group' with mesh .*DTensor"),
        ({"resharding": "root", "resharding_gpus": 2}, r"^Setup\.resharding_gpus: 2 needs resharding 'group'"),
    ],
)
def test_groups_that_are_none_are_refused(changes, why):
    with pytest.raises(ValueError, match=why):
        eb.Setup(**{"gpus": 8, "sharding": "zero3", "resharding": "group"} | changes)


@pytest.mark.parametrize(("checkpointing", "held"), [("none", 0), ("full", 2 * 256 * 64 * 2)])
def test_what_is_saved_on_the_host_takes_nothing_of_the_gpu_s(checkpointing, held):
    """After forward the step's inputs and its loss are left; of a checkpoint's inputs a tuple, the angles, stays on the GPU."""
    llama = eb.model("llama-3.2-1b", code="reference").replace(layers=4)
    setup = eb.Setup(batch=16, sequence=256, precision="bf16", checkpointing=checkpointing)
    here, away = (eb.budget(llama, setup.replace(offload=where)) for where in ("none", "activations"))
    kept = [one.parts_at("after_forward") for one in (here, away)]
    tokens = targets = 8 * 16 * 256
    assert (
        sum(kept[1][part] for part in ("activations", "loss")) == tokens + targets + 2 + held < kept[0]["activations"]
    )
    assert away.phases["rest"] == here.phases["rest"] and away.phases["after_backward"] == here.phases["after_backward"]
    assert away.peak < here.peak


def test_what_stood_on_the_host_does_not_come_back_to_the_gpu():
    """The memory-efficient kernel's random state, where the peak is in its backward."""
    small = eb.model("llama-3-8b", code="reference").replace(
        layers=1, width=16, heads=1, kv_heads=1, head_width=16, ffn_width=16, vocabulary=16
    )
    setup = eb.Setup(batch=2, sequence=64, precision="fp32", optimizer="sgd", offload="activations")
    predicted, counted = eb.budget(small, setup), eb.dry_run(small, setup)
    assert predicted.peak_at == counted.peak_at == "backward" and predicted.peak == counted.peak


def test_weights_that_are_saved_come_back_beside_themselves():
    """A linear layer's weight is saved too: copied out, and copied back while its own backward runs."""
    setup = eb.Setup(batch=1, sequence=1, precision="bf16", offload="activations")
    found = eb.budget(GPT2, setup)
    names = [name for name, phase, _ in found.operations if phase == "backward"]
    assert names.count("saved tensor from the host") > 4 * 3
    table = 2 * GPT2.vocabulary * GPT2.width
    most = max(sum(row) for row in zip(*found.timeline().values(), strict=True))
    assert most >= found.phases["rest"] + 2 * table  # the head's copy, and the gradient of its weight


def test_saved_on_the_host_beside_a_mesh_is_refused_and_takes_time_nobody_knows():
    with pytest.raises(ValueError, match=r"^Setup\.offload: 'activations' with mesh tensor=2"):
        eb.Setup(gpus=2, mesh=eb.Mesh(tensor=2), offload="activations")
    with pytest.raises(ValueError, match=r"^plan\.setup: how long copies of offload 'activations' take"):
        eb.plan(GPT2, eb.Setup(batch=1, sequence=64, offload="activations"), "h100-80gb")


def test_muon_under_fsdp_has_a_whole_matrix_at_a_time():
    """Each of 8 GPUs keeps an eighth of the momentum; its step takes the largest matrix in bf16 three times, and two squares."""
    model = GPT2.replace(layers=3, width=64, heads=4, vocabulary=256, positions=64)
    setup = eb.Setup(batch=1, sequence=8, precision="bf16", optimizer="muon", sharding="zero3", gpus=8)
    alone, found = eb.budget(model, setup.replace(sharding="none", gpus=1)), eb.budget(model, setup)
    assert 8 * found.moments["rest"]["optimizer"] == alone.moments["rest"]["optimizer"]
    matrix, side = 2 * 64 * 4 * 64, 2 * 64 * 64
    taken = found.phases["step"] - found.phases["after_backward"]
    assert taken == 3 * matrix + 2 * side  # what was gathered, what is multiplied, and what comes of it


@pytest.mark.parametrize(("how", "matrices", "batches"), [("owner", 3, 2), ("all-to-all", 4, 2)])
def test_muon_s_owners_have_one_matrix_of_each_batch(how, matrices, batches):
    """Of 9 matrices of a shape 8 GPUs take one each, then one of them the last. What is sent by all-to-all is one matrix more."""
    model = GPT2.replace(layers=9, width=64, heads=4, vocabulary=256, positions=64)
    setup = eb.Setup(batch=1, sequence=8, precision="bf16", optimizer="muon", sharding="zero3", gpus=8)
    each, found = eb.budget(model, setup), eb.budget(model, setup.replace(muon_gather=how))
    assert found.moments["rest"] == each.moments["rest"]
    matrix, side = 2 * 64 * 4 * 64, 2 * 64 * 64
    assert found.phases["step"] - found.phases["after_backward"] == matrices * matrix + 2 * side
    made = [sum(name == "matrix turned" for name, *_ in one.operations) for one in (each, found)]
    assert made == [5 * 4 * 9, 5 * 4 * batches]


def test_which_matrices_share_a_shape_is_the_model_s():
    """A step of another model, alike but for sizes, has exchanges of its own: q, k, v and out, gate and up, down; or k and v apart."""
    sizes = {"layers": 1, "width": 64, "heads": 4, "head_width": 16, "ffn_width": 96}
    llama = eb.model("llama-3.2-1b", code="reference").replace(**sizes, kv_heads=4)
    setup = eb.Setup(batch=1, sequence=8, optimizer="muon", sharding="zero3", gpus=4, muon_gather="all-to-all")
    for model, exchanges in ((llama, 3), (llama.replace(kv_heads=2), 4)):
        names = [name for name, *_ in eb.budget(model, setup).operations]
        assert names.count("rows for all owners") == exchanges


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"optimizer": "adamw"}, r"^Setup\.muon_gather: 'owner' needs optimizer 'muon', not 'adamw'"),
        ({"sharding": "none"}, r"^Setup\.muon_gather: 'owner' needs sharding 'zero2' or 'zero3', not 'none'"),
    ],
)
def test_owners_that_are_none_are_refused(changes, why):
    with pytest.raises(ValueError, match=why):
        eb.Setup(**{"gpus": 8, "sharding": "zero3", "optimizer": "muon", "muon_gather": "owner"} | changes)
