"""Experts on several GPUs, predicted and counted, balanced or not."""

import grid
import pytest
import witnesses
from agreeing import agree

import everybyte as eb
from everybyte.ask.mesh import worst_routing
from everybyte.catalog.weights import ENDS, weights
from everybyte.formulas import formula

MODEL = eb.Model(
    name="mixture", layers=3, width=32, heads=4, kv_heads=2, head_width=8, vocabulary=101, learned_positions=0, ffn_width=56,
    gated=True, fused=False, qkv_bias=False, out_bias=False, ffn_bias=False, norm="rmsnorm", tied=False, experts=8,
    experts_per_token=2, expert_width=24,
)  # fmt: skip
SETUP = eb.Setup(batch=2, sequence=64, precision="bf16")


def _on(parts, routing=1.0, **changes):
    return SETUP.replace(gpus=parts, mesh=eb.Mesh(expert=parts, routing=routing), **changes)


def _among(gpus, parts, **changes):
    """Several GPUs have the same experts."""
    return SETUP.replace(gpus=gpus, mesh=eb.Mesh(expert=parts), **changes)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("precision", ["bf16", "bf16-mixed", "fp32"])
@pytest.mark.parametrize("checkpointing", ["none", "full", "operations"])
@pytest.mark.parametrize("parts", [2, 4, 8])
def test_at_every_operation(parts, checkpointing, precision):
    for routing in (1.0, 1.25, min(parts, 4)):
        setup = _on(parts, routing, precision=precision, checkpointing=checkpointing)
        assert witnesses.first_difference(MODEL, setup) is None
        assert not witnesses.disagreements(MODEL, setup, rank=parts - 1)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("start", range(0, 40, 4))
def test_any_mixture_to_the_byte(start):
    agree(grid.visited, range(start, start + 4))


def test_mixtral_itself():
    setup = eb.Setup(batch=1, sequence=4096, precision="bf16", checkpointing="full", gpus=8, mesh=eb.Mesh(expert=8))
    assert not witnesses.disagreements(eb.model("mixtral-8x7b", code="reference"), setup)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("sharding", ["none", "zero1", "zero2", "zero3"])
@pytest.mark.parametrize("checkpointing", ["none", "full"])
@pytest.mark.parametrize(("gpus", "parts"), [(4, 4), (8, 4), (4, 2), (16, 4), (64, 8)])
def test_beside_data_at_every_operation(gpus, parts, checkpointing, sharding):
    """Experts on every GPU of a group once, twice and more often than there are experts: cut by experts, or by their rows."""
    setup = _among(gpus, parts, sharding=sharding, checkpointing=checkpointing, precision="bf16-mixed")
    assert witnesses.first_difference(MODEL, setup) is None
    for rank in (0, 1):
        assert not witnesses.disagreements(MODEL, setup.replace(precision="bf16", accumulation=2), rank=rank)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("by_tokens", [True, False])
@pytest.mark.parametrize("checkpointing", ["none", "full"])
@pytest.mark.parametrize("sharding", ["zero2", "zero3"])
@pytest.mark.parametrize(("gpus", "parts", "tensor"), [(4, 2, 2), (16, 4, 2), (32, 2, 4), (64, 8, 2)])
def test_whose_matrices_are_divided_too_at_every_operation(gpus, parts, tensor, sharding, checkpointing, by_tokens):
    """Each expert once, or cut among GPUs by experts or by rows; routers balanced or not; tokens gathered, or all there."""
    model = MODEL.replace(vocabulary=104, heads=8, kv_heads=4, expert_width=16 * tensor)
    ways = {"tensor": tensor, "expert": parts, "sequence_parallel": by_tokens, "loss_parallel": by_tokens}
    setup = SETUP.replace(gpus=gpus, sharding=sharding, checkpointing=checkpointing)
    for rank, precision, routing in ((0, "bf16-mixed", 1.25), (tensor - 1, "bf16", min(parts, 4)), (1, "fp32", 1.0)):
        run = setup.replace(precision=precision, mesh=eb.Mesh(**ways, routing=routing))
        assert witnesses.first_difference(model, run, rank=rank) is None
        assert not witnesses.disagreements(model, run, rank=rank)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("start", range(0, 40, 4))
def test_any_mixture_whose_matrices_are_divided_too_to_the_byte(start):
    agree(grid.halved, range(start, start + 4))


def test_halves_are_drawn_with_all_that_goes_with_them():
    drawn = [grid.halved(seed)[:2] for seed in range(80)]
    assert drawn[:10] == [grid.halved(seed)[:2] for seed in range(10)]
    assert {setup.sharding for _, setup in drawn} == {"zero2", "zero3"}
    assert {setup.checkpointing for _, setup in drawn} >= {"none", "full", "every-k", "selective"}
    assert {setup.mesh.sequence_parallel for _, setup in drawn} == {True, False} and all(
        setup.mesh.tensor > 1 < setup.mesh.expert for _, setup in drawn
    )
    assert any(s.mesh.context > 1 for _, s in drawn) and any(
        s.mesh.routing == worst_routing(m, s.mesh.expert) > 1.25 for m, s in drawn
    )
    assert {s.expert_shards * s.mesh.expert > m.experts for m, s in drawn} == {True, False}


def test_of_each_expert_a_gpu_holds_its_columns_and_rows_and_sends_whole_rows():
    """Eight experts by 4 GPUs, each by 2: an eighth of all their numbers. Rows that travel are as wide as without."""
    setup = _among(8, 4, sharding="zero3", precision="bf16").replace(mesh=eb.Mesh(tensor=2, expert=4, routing=1.25))
    model = MODEL.replace(vocabulary=104, expert_width=48)
    trace = eb.dry_run(model, setup)
    own = [a.bytes for a in trace.allocations if a.part == "parameters" and ".mlp.own." in a.owner and a.birth == 0]
    assert sum(own) == 2 * model.layers * model.experts * 3 * model.expert_width * model.width // 8
    sent = setup.batch * setup.sequence * model.experts_per_token
    came = eb.dry_run(model, setup.replace(gpus=4, mesh=eb.Mesh(expert=4, routing=1.25)))

    def rows(trace):
        """What has the size of the rows that come, while a block's forward runs."""
        size, end = 2 * int(1.25 * sent) * model.width, trace.marks["after_forward"]
        return sum(
            a.bytes == size for a in trace.allocations if 0 < a.birth <= end and a.owner.startswith("blocks.0.mlp")
        )

    assert rows(trace) == rows(came) > 0


def test_fsdp_divides_experts_among_those_that_have_the_same():
    """32 GPUs by 8: each has one of eight experts, and a fourth of its rows; of everything else it has the 32nd part."""
    others = sum(-(-w.shape[0] // 32) * w.numbers // w.shape[0] for w in _others())
    for rank in (0, 31):  # the last one has padding, where rows are fewer than GPUs
        trace = eb.dry_run(MODEL, _among(32, 8, sharding="zero3"), rank=rank)
        own = [a.bytes for a in trace.allocations if a.part == "parameters" and ".mlp.own." in a.owner]
        assert sorted(own) == sorted(3 * [2 * 12 * 32, 2 * 8 * 24])
    rest = eb.budget(MODEL, _among(32, 8, sharding="zero3")).parts_at("rest")["parameters"]
    assert rest == 2 * (3 * (12 * 32 + 8 * 24) + others)


def test_a_share_is_refused_for_a_weight_that_is_there():
    """The last of 8 GPUs has fewer of the 28 units of a dense MLP, of which a mixture has none."""
    model = MODEL.replace(vocabulary=128, ffn_width=28)
    setup = _among(8, 2, sharding="zero3")
    assert not witnesses.disagreements(model, setup, rank=7)
    dense = model.replace(experts=0, experts_per_token=0, expert_width=0)
    with pytest.raises(
        ValueError, match=r"budget.rank: 7 has less than 4 of the 28 rows of mlp.gate.weight in mixture"
    ):
        eb.budget(dense, setup.replace(mesh=eb.Mesh(context=2)), rank=7)


def _others():
    names = ("mlp.gate_up", "mlp.down", "mlp.gate.weight", "mlp.up.weight", "mlp.down.weight")
    found = [w for w in weights(MODEL) if w.count and w.name not in names]
    return [w for w in found for _ in range(1 if w.group in ENDS else MODEL.layers)]


def test_mixtral_on_64_with_eight_experts_each_cut_in_four():
    setup = eb.Setup(
        batch=1, sequence=4096, precision="bf16-mixed", checkpointing="full", sharding="zero3", gpus=64,
        mesh=eb.Mesh(tensor=4, expert=8),
    )  # fmt: skip
    assert not witnesses.disagreements(eb.model("mixtral-8x7b", code="reference").replace(layers=4), setup, rank=7)


def test_mixtral_on_64():
    setup = eb.Setup(
        batch=1,
        sequence=4096,
        precision="bf16-mixed",
        checkpointing="full",
        sharding="zero3",
        gpus=64,
        mesh=eb.Mesh(expert=8),
    )
    assert not witnesses.disagreements(eb.model("mixtral-8x7b", code="reference"), setup, rank=7)


@pytest.mark.parametrize("routing", [0.3, 1.0, 1.25, 4.0])
def test_what_a_mixture_keeps_in_closed_form(routing):
    setup = _on(4, routing)
    trace = eb.dry_run(MODEL, setup)
    end = trace.marks["after_forward"]
    kept = sum(
        a.bytes
        for a in trace.allocations
        if a.owner.startswith("blocks.1.mlp") and 0 < a.birth <= end and (a.death is None or a.death > end)
    )
    assert kept == formula("experts.kept").at(MODEL, setup)


def test_weights_and_buffers_in_closed_form():
    setup = _on(4, 1.25)
    trace = eb.dry_run(MODEL, setup)
    weights = sum(a.bytes for a in trace.allocations if a.part == "parameters" and ".mlp.own." in a.owner)
    assert weights == formula("experts.weights").at(MODEL, setup)
    assert formula("experts.rows").at(MODEL, setup) == 320
    sent, came = 2 * 64 * 2, 320
    assert formula("experts.buffers").at(MODEL, setup) == (sent + came) * (32 * 2 + 8)
    assert formula("experts.sent").at(MODEL, setup) == 3 * (2 * (sent + came) * 64 + 8 * sent) // 4


REFUSED = [
    (lambda: _on(3), MODEL, r"mixture has 8 experts, 2 too many for 6 and 1 too few for 9; allowed: 2, 4, 8"),
    (lambda: _on(2), MODEL.replace(experts=0, experts_per_token=0, expert_width=0), r"has no experts; allowed: 1"),
    (
        lambda: _on(4, buckets="views"),
        MODEL,
        r"Setup.buckets: 'views' with mesh expert=4 is not derived; allowed: 'copies'",
    ),
    (lambda: _on(4).replace(gpus=10), MODEL, r"Mesh.expert: 4 does not divide the 10 GPUs of data and context"),
    (
        lambda: _among(24, 4, sharding="zero3").replace(gpus=40),
        MODEL,
        r"10 have the same 2 of mixture's experts, whose 48 rows \(expert_width\) .* 8 left over",
    ),
    (
        lambda: _among(8, 4, sharding="zero3", replicas=2),
        MODEL,
        r"Setup.replicas: 2 with mesh expert=4 is not derived; allowed: 1",
    ),
    (
        lambda: _on(4).replace(gpus=8, mesh=eb.Mesh(tensor=2, expert=4)),
        MODEL.replace(vocabulary=104),
        r"Setup.sharding: 'none' with mesh tensor=2 expert=4 is not derived; DDP takes no weights that are divided; allowed: .*zero3",
    ),
    (
        lambda: _among(24, 4, sharding="zero3").replace(gpus=40, mesh=eb.Mesh(tensor=2, expert=2)),
        MODEL.replace(vocabulary=104),
        r"10 have the same 4 of mixture's experts, whose 24 rows \(expert_width\) .* 4 left over",
    ),
    (
        lambda: _on(8, 5),
        MODEL,
        r"Mesh.routing: 5.0 with mixture, whose tokens visit 2 different ones of 8 experts; allowed: at most 4,",
    ),
    (lambda: _on(4, 4.5), MODEL, r"Mesh.routing: 4.5 is no number above 0 and up to 4"),
    (lambda: SETUP.replace(mesh=eb.Mesh(routing=0.5)), MODEL, r"Mesh.routing: 0.5 needs expert from 2 on"),
]


@pytest.mark.parametrize(("make", "model", "said"), REFUSED)
def test_what_is_not_divided_is_refused_by_name(make, model, said):
    with pytest.raises(ValueError, match=said):
        eb.budget(model, make())
