"""Ring attention, predicted and counted: any GPU of the ring, both rotations, whatever else is saved or shared."""

import grid
import pytest
import witnesses
from agreeing import agree

import everybyte as eb
from everybyte.formulas import formula
from everybyte.theory.budget import heavy
from everybyte.theory.expert_parallel import received

GPT = eb.Model(name="gpt", layers=3, width=32, heads=4, vocabulary=101, positions=128)
LLAMA = eb.Model(
    name="llama", layers=3, width=32, heads=4, kv_heads=2, head_width=8, vocabulary=101, learned_positions=0, ffn_width=56,
    gated=True, fused=False, qkv_bias=False, out_bias=False, ffn_bias=False, norm="rmsnorm", tied=False,
)  # fmt: skip
SETUP = eb.Setup(batch=2, sequence=128, precision="bf16-mixed")


@pytest.mark.sampled(4)
@pytest.mark.parametrize("checkpointing", ["none", "full", "selective", "operations"])
@pytest.mark.parametrize("rotation", ["all-gather", "all-to-all"])
@pytest.mark.parametrize("parts", [2, 4, 8])
@pytest.mark.parametrize("model", [GPT, LLAMA])
def test_any_gpu_of_a_ring_at_every_operation(model, parts, rotation, checkpointing):
    setup = SETUP.replace(gpus=parts, mesh=eb.Mesh(context=parts, rotation=rotation), checkpointing=checkpointing)
    for rank in {0, 1, parts - 1}:
        assert witnesses.first_difference(model, setup, rank=rank) is None
        assert not witnesses.disagreements(model, setup, rank=rank)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("start", range(0, 40, 4))
def test_any_ring_to_the_byte(start):
    agree(grid.ring, range(start, start + 4), refused=True)


def test_a_padded_head_keeps_what_it_was_cast_from():
    """Queries normed in fp32, cast by autocast, and padded: of 600 random rings one."""
    model, setup, rank = grid.ring(313)
    assert model.qk_norm and model.head_width % 8
    assert not witnesses.disagreements(model, setup, rank=rank)


@pytest.mark.parametrize(
    ("name", "sharding"), [("llama-3.1-8b", "zero3"), ("mixtral-8x7b", "zero3"), ("gpt2-xl", "zero1")]
)
def test_real_models_on_two_rings(name, sharding):
    setup = eb.Setup(batch=1, precision="bf16-mixed", sharding=sharding, gpus=8, mesh=eb.Mesh(context=4))
    for rank in (0, 5):
        assert not witnesses.disagreements(eb.model(name, code="reference").replace(layers=2), setup, rank=rank)


def _attention(model, setup, rank, phase):
    """Most bytes while ring attention runs, beside what lived before; counted."""
    trace = eb.dry_run(model, setup, rank=rank)
    inside = [i for i, (_, at, owner) in enumerate(trace.operations) if at == phase and owner == "blocks.0.attention"]
    kernels = [i for i in inside if "flash" in trace.operations[i][0]]
    first = next(i for i in inside if all(j in inside for j in range(i, kernels[0])))
    last = next(
        i for i in range(kernels[-1], len(trace.live)) if i + 1 not in inside or trace.operations[i][0] == "clone"
    )
    before = sum(a.bytes for a in trace.allocations if a.birth < first and (a.death is None or a.death >= first))
    return max(trace.live[first:last]) - before


@pytest.mark.sampled(3)
@pytest.mark.parametrize("rotation", ["all-gather", "all-to-all"])
@pytest.mark.parametrize("parts", [3, 4, 8])
@pytest.mark.parametrize("kv_heads", [1, 2])
def test_what_a_ring_takes_in_closed_form(kv_heads, parts, rotation):
    model = LLAMA.replace(kv_heads=kv_heads)
    setup = eb.Setup(
        batch=2, sequence=192 * parts, precision="bf16", gpus=parts, mesh=eb.Mesh(context=parts, rotation=rotation)
    )
    assert _attention(model, setup, 1, "forward") == formula("context.forward").at(model, setup)
    assert _attention(model, setup, 1, "backward") == formula("context.backward").at(model, setup)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("parts", [2, 4, 8])
def test_what_attention_keeps_is_flash_attentions_over_the_gpus(parts):
    """A block's share of what forward keeps, beside the random states: exactly 1 / C on the last GPU. The others' results lie head by
    head, so that the next linear layer keeps a copy of them."""
    alone = eb.Setup(batch=1, sequence=512, precision="bf16")
    ring = alone.replace(gpus=parts, mesh=eb.Mesh(context=parts))

    def block(setup, rank=0):
        kept = [eb.dry_run(LLAMA.replace(layers=n), setup, rank=rank).phases for n in (3, 2)]
        return (kept[0]["after_forward"] - kept[0]["rest"]) - (kept[1]["after_forward"] - kept[1]["rest"])

    shard = 2 * 512 // parts * LLAMA.width
    assert parts * (block(ring, parts - 1) - 24) == block(alone) - 24
    assert {block(ring, rank) for rank in range(parts - 1)} == {block(ring, parts - 1) + shard}
    kept = formula("context.kept")
    assert parts * (kept.at(LLAMA, ring) - 24) == kept.at(LLAMA, alone) - 24


DIVIDED = LLAMA.replace(vocabulary=104)
MIXTURE = LLAMA.replace(experts=4, experts_per_token=2, expert_width=24)
BESIDE = [
    (DIVIDED, {"tensor": 2}, "zero3"), (GPT.replace(vocabulary=104), {"tensor": 4}, "zero2"),
    (DIVIDED, {"tensor": 2, "sequence_parallel": False, "loss_parallel": False}, "zero3"), (MIXTURE, {"expert": 2}, "none"),
    (MIXTURE, {"expert": 4, "routing": 1.25}, "zero3"), (MIXTURE, {"expert": 2}, "zero2"),
]  # fmt: skip


@pytest.mark.sampled(3)
@pytest.mark.parametrize("rotation", ["all-gather", "all-to-all"])
@pytest.mark.parametrize(("model", "beside", "sharding"), BESIDE)
def test_rings_of_divided_heads_and_of_divided_experts_at_every_operation(model, beside, sharding, rotation):
    mesh = eb.Mesh(context=2, rotation=rotation, **beside)
    setup = SETUP.replace(precision="bf16", gpus=4 * mesh.tensor, sharding=sharding, mesh=mesh)
    for rank in (0, mesh.tensor + 1):
        assert witnesses.first_difference(model, setup.replace(accumulation=2), rank=rank) is None
        assert not witnesses.disagreements(model, setup.replace(checkpointing="full"), rank=rank)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("start", range(0, 40, 4))
def test_any_ring_beside_another_dimension_to_the_byte(start):
    agree(grid.crossed, range(start, start + 4))


def test_llama_on_rings_of_tensor_parallel_nodes():
    mesh = eb.Mesh(context=4, tensor=8)
    setup = eb.Setup(
        batch=1, sequence=32768, precision="bf16-mixed", checkpointing="full", sharding="zero3", gpus=64, mesh=mesh
    )
    assert not witnesses.disagreements(eb.model("llama-3.1-8b", code="reference").replace(layers=4), setup, rank=24)


REFUSED = [
    ({"attention": "eager"}, "no ring forms the scores; allowed: 'flash'"),
    ({"dropout": 0.1}, "random state of its last part alone; allowed: 0.0"),
    ({"sequence": 129}, "1 tokens are left; allowed: a multiple of 8, as 128 or 136"),
    ({"gpus": 6}, "no multiple of the 4 GPUs of the mesh"),
    ({"gpus": 16, "sharding": "zero3", "replicas": 2}, "Setup.replicas: 2 with mesh context=4: .* allowed: 1"),
    ({"mesh": eb.Mesh(context=2, tensor=2, pipeline=2), "gpus": 8, "accumulation": 2}, None),
    (
        {"mesh": eb.Mesh(context=2, tensor=2), "gpus": 4},
        "Setup.sharding: 'none' .* DDP takes no weights that are divided",
    ),
    (
        {"mesh": eb.Mesh(context=2, tensor=3), "gpus": 6, "sharding": "zero3"},
        "Mesh.tensor: 3 does not divide the heads of 4",
    ),
    ({"mesh": eb.Mesh(context=2, expert=2)}, "Mesh.expert: 2, and gpt has no experts"),
]


@pytest.mark.parametrize(("changes", "said"), REFUSED)
def test_what_no_ring_takes_is_refused_by_name(changes, said):
    asked = {"gpus": 4, "mesh": eb.Mesh(context=4)} | changes
    with pytest.raises(ValueError, match=said or "is not derived"):
        eb.budget(GPT, SETUP.replace(**asked))


def test_in_fp32_a_ring_takes_whole_rows_of_the_kernel_and_no_fewer_key_heads():
    setup = SETUP.replace(precision="fp32", gpus=4, mesh=eb.Mesh(context=4))
    for witness in (eb.budget, eb.dry_run):
        with pytest.raises(ValueError, match="multiple of 256, as 256"):
            witness(GPT, setup)
        with pytest.raises(ValueError, match="no ring takes fewer key heads than query heads in fp32"):
            witness(LLAMA, setup.replace(sequence=256))
    assert not witnesses.disagreements(GPT.replace(positions=256), setup.replace(sequence=256), rank=2)


ASKED = {
    "plan": lambda setup: eb.plan(GPT, setup, "h200"),
    "derive": lambda setup: eb.derive(GPT, setup),
    "formula": lambda setup: formula("activations").at(GPT, setup),
}


@pytest.mark.parametrize("name", ASKED)
def test_who_knows_no_ring_says_so(name):
    with pytest.raises(ValueError, match="mesh:? context=4"):
        ASKED[name](SETUP.replace(gpus=4, mesh=eb.Mesh(context=4)))


def test_a_gpu_with_less_of_the_weights_than_the_first_is_counted_and_not_predicted():
    setup = SETUP.replace(sharding="zero3", gpus=8, mesh=eb.Mesh(context=4))
    with pytest.raises(ValueError, match=r"budget.rank: 7 has less than 13 of the 101 rows of token.weight"):
        eb.budget(GPT, setup, rank=7)
    assert eb.dry_run(GPT, setup, rank=7).peak


def test_plan_says_who_finds_meshes():
    with pytest.raises(ValueError, match="plan.setup: mesh context=4 .* eb.layouts finds meshes"):
        eb.plan(GPT, SETUP.replace(gpus=4, mesh=eb.Mesh(context=4)), "h200")


SWAPPED = LLAMA.replace(width=64, heads=8)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("checkpointing", ["none", "full", "selective", "operations"])
@pytest.mark.parametrize("parts", [2, 4, 8])
@pytest.mark.parametrize("kv_heads", [1, 2, 4, 8])
def test_heads_swapped_for_tokens_at_every_operation(kv_heads, parts, checkpointing):
    setup = SETUP.replace(gpus=parts, mesh=eb.Mesh(context=parts, rotation="ulysses"), checkpointing=checkpointing)
    model = SWAPPED.replace(kv_heads=kv_heads)
    assert witnesses.first_difference(model, setup) is None
    assert not witnesses.disagreements(model, setup, rank=parts - 1)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("start", range(0, 40, 4))
def test_any_heads_swapped_for_tokens_to_the_byte(start):
    agree(grid.swapped, range(start, start + 4), refused=True)


def _swapping(model, setup, phase):
    """(bytes before, most bytes) while one block's attention swaps heads for tokens; as predicted."""
    found = eb.budget(model, setup)
    inside = [i for i, (_, at, owner) in enumerate(found.operations) if at == phase and owner == "blocks.1.attention"]
    names = {i: found.operations[i][0] for i in inside}
    if phase == "forward":
        first = next(i for i in inside if names[i] == "q for each GPU" or names[i] == "k repeated")
        return found.live[first - 1], max(found.live[i] for i in inside if i >= first)
    first = next(i for i in inside if names[i].startswith("result's gradient"))
    kernel = next(i for i in inside if names[i] == "flash attention backward")
    return found.live[first - 1], max(found.live[first : kernel + 1])


@pytest.mark.parametrize("batch", [1, 2])
@pytest.mark.parametrize("parts", [4, 8])
@pytest.mark.parametrize("kv_heads", [1, 4, 8])
def test_what_swapping_takes_in_closed_form(kv_heads, parts, batch):
    model = SWAPPED.replace(kv_heads=kv_heads)
    mesh = eb.Mesh(context=parts, rotation="ulysses")
    setup = eb.Setup(batch=batch, sequence=64 * parts, precision="bf16", gpus=parts, mesh=mesh)
    before, most = _swapping(model, setup, "forward")
    assert most - before == formula("ulysses.forward").at(model, setup)
    before, most = _swapping(model, setup, "backward")
    copy = (
        2 * batch * 64 * model.heads * model.head_width
    )  # of the result, for the output's layer: freed once its weight has a gradient
    assert most - before + copy == formula("ulysses.backward").at(model, setup)


UNSWAPPED = [
    (
        LLAMA,
        {"gpus": 8, "mesh": eb.Mesh(context=8, rotation="ulysses")},
        "Mesh.context: 8 GPUs share heads .* llama has 4; allowed: 2, 4",
    ),
    (
        LLAMA.replace(heads=12, kv_heads=4, width=96),
        {"gpus": 6, "mesh": eb.Mesh(context=6, rotation="ulysses"), "sequence": 12},
        "Mesh.context: 6 GPUs share key heads .* has 4: neither divides the other",
    ),
    (
        LLAMA,
        {"sequence": 126},
        "126 does not make equal pieces for the 4 GPUs .* 2 tokens are left; allowed: a multiple of 4, as 124 or 128",
    ),
    (GPT, {"attention": "eager"}, "Setup.attention: 'eager' .* no heads are swapped; allowed: 'flash'"),
]


@pytest.mark.parametrize(("model", "changes", "said"), UNSWAPPED)
def test_heads_that_cannot_be_swapped_are_refused_by_name(model, changes, said):
    with pytest.raises(ValueError, match=said):
        eb.budget(model, SETUP.replace(**{"gpus": 4, "mesh": eb.Mesh(context=4, rotation="ulysses")} | changes))


def test_formulas_of_one_way_refuse_the_others():
    ring, swapped = (
        SETUP.replace(gpus=4, precision="bf16", mesh=eb.Mesh(context=4, rotation=r)) for r in ("all-to-all", "ulysses")
    )
    for name in ("kept", "forward", "backward", "sent"):
        with pytest.raises(ValueError, match=r"Mesh.rotation: 'ulysses' goes around no ring; .* ulysses\.\* answer"):
            formula(f"context.{name}").at(SWAPPED, swapped)
        with pytest.raises(ValueError, match=r"Mesh.rotation: 'all-to-all' swaps no heads; .* context\.\* answer"):
            formula(f"ulysses.{name}").at(SWAPPED, ring)


def test_all_gpus_that_swap_are_alike():
    setup = SETUP.replace(gpus=4, mesh=eb.Mesh(context=4, rotation="ulysses"), checkpointing="full")
    assert len({eb.dry_run(SWAPPED, setup, rank=rank).peak for rank in range(4)}) == 1 and heavy(SWAPPED, setup) == [0]


def test_rows_that_come_are_rounded_up_once():
    """Of 1.6 times 480 rows 768 come, though 1.6 times 3 times 160 is more in floating point."""
    mesh = eb.Mesh(context=3, expert=8, rotation="ulysses", routing=1.6)
    setup = eb.Setup(batch=3, sequence=96, gpus=24, mesh=mesh)
    assert received(MIXTURE.replace(experts=8, experts_per_token=5), setup) == 768
