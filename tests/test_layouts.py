"""Layouts: the fastest meshes that fit, by their computed time, with the budget's memory."""

import json
import re
from dataclasses import replace

import pytest

import everybyte as eb
from everybyte import draw
from everybyte.answers.layouts import (
    COMPUTED,
    TERMS,
    Layout,
    _refused,
    at_least,
    candidates,
    fsdp_sends,
    priced,
    tokens_of,
)
from everybyte.answers.plan import made, work
from everybyte.answers.rates import MEMORY, TOGETHER
from everybyte.answers.work import phase_work
from everybyte.theory.budget import heaviest, heavy, not_derived

LLAMA = eb.model("llama-3.1-8b", code="reference")
SETUP = eb.Setup(gpus=8, sequence=4096, batch=1, accumulation=4, precision="bf16-mixed", sharding="zero3")
ALONE = {"gpus": 1, "accumulation": 1, "sharding": "none"}


@pytest.fixture(scope="module")
def found():
    return eb.layouts(LLAMA, SETUP, "h100-80gb", most=12)


@pytest.fixture(scope="module")
def piped(found):
    """The first pipeline that fits and has more micro-batches than are played."""
    searched = [
        one for one in candidates(LLAMA, SETUP, found.gpu) if one.mesh.pipeline > 1 and not _refused(LLAMA, one)
    ]
    for setup in sorted(searched, key=lambda one: sum(priced(LLAMA, one, found.gpu).values())):
        kept, terms = eb.Headroom(), priced(LLAMA, setup, found.gpu)
        one = Layout(LLAMA, setup, found.gpu, kept.usable(found.gpu, setup), terms, kept.room(found.gpu, setup))
        if at_least(LLAMA, setup) < one.usable and one.fits and one.beyond:
            return one


def test_what_is_found_fits_and_the_fastest_comes_first(found):
    assert len(found.found) == 12 and found.best is found.found[0]
    assert [one.seconds for one in found.found] == sorted(one.seconds for one in found.found)
    for one in found.found:
        assert one.fits and one.peak == heaviest(LLAMA, one.setup, 512).peak
        assert tokens_of(one.setup) == tokens_of(SETUP)
        assert one.peak < one.reserved <= eb.Headroom().room(found.gpu, one.setup)
        assert one.usable == found.usable - one.nccl < found.usable
    assert all(one.peak > one.usable or one.played.failed for one in found.small)
    assert any(one.peak <= one.usable for one in found.small)  # some fit by their peak alone


def test_a_few_micro_batches_played_reserve_what_all_of_them_would(found, piped):
    """The buffers of a stage that receive the others stand beside."""
    long = piped
    whole = eb.budget(LLAMA, long.setup, rank=long.heaviest.rank).on(found.gpu, "", long.room, whole=False)
    # A thousandth: a buffer ends a segment in which another tensor had gone.
    assert abs(whole.reserved - long.reserved) < long.reserved / 1000 < long.beyond


def test_no_layout_that_fits_is_faster_than_the_first(found):
    best = found.best
    for setup in candidates(LLAMA, SETUP, found.gpu):
        seconds = sum(priced(LLAMA, setup, found.gpu).values())
        if seconds < best.seconds and not not_derived(LLAMA, setup):
            slower = Layout(
                LLAMA,
                setup,
                found.gpu,
                eb.Headroom().usable(found.gpu, setup),
                {},
                eb.Headroom().room(found.gpu, setup),
            )
            assert heaviest(LLAMA, setup, rounding=512).peak > slower.usable or slower.played.failed


def test_pipelines_beside_rings_and_tensor_parallelism_are_searched():
    """On few GPUs of a model that a node does not hold, they are among the first; each stage holds its part."""
    found = eb.layouts(
        eb.model("llama-3.1-70b", code="reference"),
        SETUP.replace(gpus=64, sequence=8192, accumulation=8),
        "h100-80gb",
        most=3,
    )
    all_three = next(one for one in found.found if one.setup.mesh.divided == ["pipeline", "context", "tensor"])
    assert all_three.setup.data == 1 and found.binding == "memory"
    peaks = [
        eb.budget(found.model, all_three.setup, 512, rank).peak for rank in range(0, 64, all_three.setup.mesh.tensor)
    ]
    assert max(peaks) == all_three.peak <= found.usable
    assert any(one.setup.data > 1 < one.setup.mesh.pipeline for one in found.small) and not any(
        "pipeline" in why and "context" in why and "checkpointing" not in why for why in found.refused
    )


@pytest.mark.parametrize("schedule", ["1f1b", "gpipe"])
@pytest.mark.parametrize(
    "changes",
    [
        {"gpus": 20, "sharding": "zero2", "precision": "bf16-mixed"},
        {"gpus": 20, "sharding": "zero3", "precision": "bf16-mixed", "checkpointing": "full"},
        {"checkpointing": "every-k", "checkpoint_every": 2},
    ],
)
@pytest.mark.parametrize("layers", [10, 13])
def test_of_stages_between_the_ends_the_first_needs_the_most(schedule, changes, layers):
    small = LLAMA.replace(layers=layers, width=64, heads=4, kv_heads=2, head_width=16, ffn_width=96, vocabulary=640)
    mesh = eb.Mesh(pipeline=5, schedule=schedule)
    setup = eb.Setup(gpus=5, sequence=256, batch=1, accumulation=6, precision="bf16", mesh=mesh).replace(**changes)
    peaks = [eb.budget(small, setup, rank=rank).peak for rank in range(0, setup.gpus, setup.gpus // 5)]
    asked = []
    one = heaviest(
        small, setup, witness=lambda *given, **names: (asked.append(names["rank"]), eb.budget(*given, **names))[1]
    )
    assert one.peak == max(peaks) and peaks[1] == max(peaks[1:4])
    assert len(asked) == (5 if setup.checkpointing == "every-k" and layers == 13 else 3)


@pytest.mark.parametrize("rotation", ["all-gather", "all-to-all"])
@pytest.mark.parametrize("parts", [3, 5, 8])
def test_of_places_in_a_ring_the_first_two_and_the_last_are_asked(parts, rotation):
    small = LLAMA.replace(layers=3, width=32, heads=4, kv_heads=2, head_width=8, ffn_width=56, vocabulary=101)
    for precision, checkpointing, tokens in (
        ("bf16", "none", 512),
        ("bf16-mixed", "full", 16),
        ("bf16", "selective", 1),
    ):
        mesh = eb.Mesh(context=parts, rotation=rotation)
        setup = eb.Setup(batch=1, sequence=2 * parts * tokens, gpus=parts, mesh=mesh, precision=precision)
        setup = setup.replace(checkpointing=checkpointing)
        peaks = [eb.budget(small, setup, 512, rank).peak for rank in range(parts)]
        assert heaviest(small, setup, 512).peak == max(peaks) and len(set(peaks[1:-1])) == 1
        assert heavy(small, setup) == sorted({0, 1, parts - 1})


def test_what_a_layout_cannot_do_without_is_less_than_its_peak(found):
    for one in found.found + found.hopeless[:8]:
        assert at_least(LLAMA, one.setup) < one.peak


@pytest.mark.parametrize("checkpointing", ["none", "full"])
def test_under_fsdp_no_more_is_kept_than_its_type_keeps(checkpointing):
    """Autocast on one GPU keeps casts and a wide stream, which FSDP's mixed precision has not."""
    setup = SETUP.replace(batch=4, accumulation=1, checkpointing=checkpointing)
    assert at_least(LLAMA, setup) < heaviest(LLAMA, setup).phases["after_forward"]


def test_an_optimizer_without_states_needs_no_room_for_them():
    sgd = SETUP.replace(
        optimizer="sgd", precision="fp32", checkpointing="full", gpus=1, accumulation=1, sharding="none"
    )
    assert at_least(LLAMA, sgd) < heaviest(LLAMA, sgd).phases["after_backward"]


def test_the_price_of_plain_fsdp_is_the_plans_own():
    gpu = eb.gpu("h100-80gb")
    for checkpointing in ("none", "full"):
        setup = SETUP.replace(checkpointing=checkpointing)
        terms, whole = priced(LLAMA, setup, gpu), work(LLAMA, setup)
        assert set(terms) == set(TERMS) and not terms["idle"] and not terms["tensor"]
        same = whole.load.seconds(gpu, "bf16", gpus=8)
        assert [terms[name] for name in COMPUTED] == pytest.approx([same[name] for name in COMPUTED], rel=1e-9)
        # The root's norm is the last of the network, and of 32 blocks' weights none leaves a share that is filled up.
        sent = [sum(phase.sent for phase in whole.phases[n:4:2]) / gpu.ring(8) for n in (0, 1)]
        assert [4 * one for one in fsdp_sends(LLAMA, setup, gpu)] == pytest.approx(sent, rel=1e-3)
        # What FSDP itself copies is in the plan's bytes, and is not in these.
        assert 0.6 < terms["memory"] / same["memory"] < 1


def test_weights_are_cast_and_have_gradients_once_a_micro_batch():
    """So eight sequences at once move fewer bytes than one after another; and parts of a sequence divide no weights."""
    gpu = eb.gpu("h100-80gb")
    standing = 2 * made(LLAMA, SETUP.replace(**ALONE)) - made(LLAMA, SETUP.replace(**ALONE, batch=2))
    seconds = 2 * standing / gpu.bandwidth / MEMORY * TOGETHER
    assert standing > 7 * LLAMA.parameters  # casts, gradients

    def memory(batch, mesh):
        return priced(LLAMA, SETUP.replace(batch=batch, accumulation=8 // batch, mesh=mesh, sequence=8192), gpu)[
            "memory"
        ]

    alone, ring = (memory(1, mesh) - memory(8, mesh) for mesh in (eb.Mesh(), eb.Mesh(context=2)))
    assert (alone, ring) == pytest.approx((7 * seconds, 7 * seconds), rel=1e-3)


def test_a_step_waits_for_what_no_phase_of_it_hides():
    """A forward's gathers hide behind forward alone, a backward's gathers and reductions behind backward alone."""
    fast, few = eb.gpu("h100-80gb"), SETUP.replace(sequence=512)
    gpu = replace(
        fast, peer_link=fast.peer_link // 4, network=fast.network // 4
    )  # slower than Python starts operations
    terms, sends = priced(LLAMA, few, gpu), fsdp_sends(LLAMA, few, gpu)
    loads = phase_work(LLAMA, few.replace(**ALONE))
    forward, backward = (sum(load.seconds(gpu, "bf16", gpus=8).values()) for load in loads)
    assert forward < sends[0] and backward < sends[1]
    assert terms["data"] == pytest.approx(4 * (sends[0] - forward + sends[1] - backward))
    assert priced(LLAMA, SETUP.replace(batch=2), gpu)["data"] == 0  # 16 times as many tokens
    piped = few.replace(gpus=32, mesh=eb.Mesh(pipeline=4), sharding="zero2")
    gathered, reduced = fsdp_sends(LLAMA, piped, gpu)
    assert (gathered, reduced) == pytest.approx(
        (sends[0] / 4, 2 * sends[0] / 4), rel=0.15
    )  # bf16, fp32; a ring of two nodes
    once = gathered - forward / 4 + reduced - backward / 4
    assert priced(LLAMA, piped, gpu)["data"] == pytest.approx(once) and once > 0


def test_each_dimension_has_its_price():
    gpu, base = eb.gpu("h100-80gb"), SETUP.replace(gpus=64)
    plain = priced(LLAMA, base, gpu)
    tensor = priced(LLAMA, base.replace(mesh=eb.Mesh(tensor=8), batch=8), gpu)
    assert tensor["arithmetic"] == pytest.approx(plain["arithmetic"]) and tensor["tensor"] > 0 == plain["tensor"]
    # 2 all-gathers and 2 reduce-scatters a layer and direction of B S H numbers of 2 bytes, 7/8 of which leave a GPU.
    stream = 2 * 8 * 4096 * LLAMA.width
    sent = 4 * LLAMA.layers * (4 + 4) * stream * 7 / 8
    assert tensor["tensor"] == pytest.approx(sent / gpu.peer_link)
    piped = priced(LLAMA, base.replace(mesh=eb.Mesh(pipeline=4), accumulation=8, sharding="zero2"), gpu)
    assert piped["idle"] == pytest.approx(3 / 8 * (sum(piped.values()) - piped["idle"]))
    assert priced(LLAMA, base.replace(mesh=eb.Mesh(context=2)), gpu)["context"] > 0


def test_every_candidate_divides_the_model_the_sequence_and_the_step():
    model, many = (
        eb.model("llama-3.1-70b", code="reference"),
        eb.Setup(gpus=512, sequence=8192, batch=1, accumulation=2),
    )
    found = list(candidates(model, many, eb.gpu("h100-80gb")))
    assert len(found) > 400 and len(set(found)) == len(found)
    for setup in found:
        mesh = setup.mesh
        assert model.layers >= mesh.pipeline and model.kv_heads % mesh.tensor == 0 and mesh.tensor <= 8
        assert tokens_of(setup) == tokens_of(many) and setup.accumulation >= mesh.pipeline


# Mixtures.

MIXTURE = eb.model("mixtral-8x7b", code="reference").replace(layers=4)
EIGHT = SETUP.replace(precision="bf16", mesh=eb.Mesh(expert=8))


def test_of_a_mixture_experts_are_divided_too():
    """By what divides them and the GPUs of data and context; of a dense model nothing more."""
    found = list(candidates(MIXTURE.replace(ffn_width=1), SETUP.replace(gpus=64), eb.gpu("h100-80gb")))
    assert len(set(found)) == len(found) and {one.mesh.expert for one in found} == {1, 2, 4, 8}
    assert all(one.data * one.mesh.context % one.mesh.expert == 0 for one in found)
    assert {one.mesh.tensor for one in found} == {1, 2, 4, 8}  # each expert, whose width it divides
    assert {one.mesh.expert for one in candidates(LLAMA, SETUP, eb.gpu("h100-80gb"))} == {1}


def test_experts_have_their_price():
    gpu = eb.gpu("h100-80gb")
    whole, apart = (priced(MIXTURE, EIGHT.replace(mesh=mesh), gpu) for mesh in (eb.Mesh(), EIGHT.mesh))
    assert set(apart) == {*TERMS, "expert"} and not whole["expert"]
    sent = eb.formula("experts.sent").at(MIXTURE, EIGHT.replace(sharding="none"))
    assert apart["expert"] == pytest.approx(4 * MIXTURE.layers * sent / gpu.peer_link)
    # All of a GPU's experts are its own, and are not gathered. The others' gradients are not made, what travels is.
    experts = MIXTURE.layers * MIXTURE.experts * 3 * MIXTURE.width * MIXTURE.expert_width
    sends = [sum(fsdp_sends(MIXTURE, EIGHT.replace(mesh=mesh), gpu)) for mesh in (eb.Mesh(), EIGHT.mesh)]
    assert sends[0] - sends[1] == pytest.approx(6 * experts * 7 / 8 / gpu.ring(8))
    for checkpointing in ("none", "operations", "full"):
        setups = [EIGHT.replace(checkpointing=checkpointing, mesh=mesh) for mesh in (eb.Mesh(), EIGHT.mesh)]
        one, other = (priced(MIXTURE, setup, gpu)["memory"] * gpu.bandwidth * MEMORY / TOGETHER for setup in setups)
        alone = setups[0].replace(gpus=1, sharding="none")
        counted = made(MIXTURE, setups[1].replace(sharding="none")) - made(MIXTURE, alone)
        assert other - one == pytest.approx(2 * counted, rel=0.01)  # less the places of rows


def test_experts_whose_matrices_are_cut_too_send_whole_rows():
    """As many rows as without, each as wide; of weights each GPU of a tensor group has its part."""
    gpu = eb.gpu("h100-80gb")
    whole, cut = EIGHT.replace(gpus=4, mesh=eb.Mesh(expert=4)), EIGHT.replace(mesh=eb.Mesh(tensor=2, expert=4))
    one, other = (Layout(MIXTURE, setup, gpu, gpu.memory, priced(MIXTURE, setup, gpu)) for setup in (whole, cut))
    assert _refused(MIXTURE, cut) is None and other.terms["expert"] == pytest.approx(one.terms["expert"])
    sends = [sum(fsdp_sends(MIXTURE, setup, gpu)) for setup in (whole, cut)]
    assert sends[1] == pytest.approx(sends[0] / 2)
    assert "\nexpert_parallel_degree = 4\nexpert_tensor_parallel_degree = 2\n" in other.torchtitan()
    assert "expert_tensor" not in one.torchtitan() and other.name.startswith("TP 2 EP 4, ")


def test_beyond_a_node_rows_travel_by_each_gpus_network_card():
    gpu, many = eb.gpu("h100-80gb"), MIXTURE.replace(experts=64)
    setup = EIGHT.replace(gpus=64, mesh=eb.Mesh(expert=64))
    sent = eb.formula("experts.sent").at(many, setup.replace(sharding="none"))
    assert priced(many, setup, gpu)["expert"] == pytest.approx(4 * many.layers * sent * 56 / 63 / gpu.network)


def test_experts_are_searched_in_a_pipeline_too():
    gpu = eb.gpu("h100-80gb")
    both = [one for one in candidates(MIXTURE, SETUP, gpu) if one.mesh.pipeline > 1 < one.mesh.expert]
    taken = [one for one in both if not _refused(MIXTURE, one)]
    assert {tuple(one.mesh.divided) for one in taken} == {("pipeline", "expert"), ("pipeline", "tensor", "expert")}
    assert all(
        "operations" in _refused(MIXTURE, one) or "tensor" in _refused(MIXTURE, one) for one in both if one not in taken
    )
    for one in taken[:2]:
        assert heaviest(MIXTURE, one, 512).peak > at_least(MIXTURE, one)


@pytest.fixture(scope="module")
def mixed():
    """By peaks alone: neither communicators nor what fragments."""
    kept = eb.Headroom(nccl=0, fragmentation=22 * 2**20)
    return eb.layouts(MIXTURE, SETUP, eb.Gpu(**{**_rates("h100-80gb"), "memory": 204 * 10**8}), kept, most=6)


def test_of_a_mixture_what_is_found_fits_and_none_that_fits_is_faster(mixed):
    assert max(one.setup.mesh.expert for one in mixed.found) > 1
    for one in mixed.found:
        assert at_least(MIXTURE, one.setup) < one.peak == heaviest(MIXTURE, one.setup, 512).peak <= mixed.usable
    asked = 0
    for setup in candidates(MIXTURE, SETUP, mixed.gpu):
        if sum(priced(MIXTURE, setup, mixed.gpu).values()) < mixed.best.seconds and not _refused(MIXTURE, setup):
            assert heaviest(MIXTURE, setup, rounding=512).peak > mixed.usable
            asked += 1
    assert asked


def test_what_is_said_of_a_mixtures_layouts(mixed):
    one = next(one for one in mixed.found if one.setup.mesh.expert > 1)
    assert (
        f"EP {one.setup.mesh.expert}" in one.name
        and f"\nexpert_parallel_degree = {one.setup.mesh.expert}\n" in one.torchtitan()
    )
    assert "expert" in repr(mixed.table()).splitlines()[1].split()
    with pytest.raises(ValueError, match=r"Layout\.deepspeed: expert \d is set in DeepSpeed's code"):
        one.deepspeed()
    kinds = [re.sub(r"\d", "", why) for why in mixed.refused]
    assert len(set(kinds)) == len(kinds)
    tried = sum(1 for _ in candidates(MIXTURE, SETUP, mixed.gpu))
    assert sum(mixed.refused.values()) + mixed.tried == tried


@pytest.mark.parametrize("mesh", [eb.Mesh(pipeline=4), eb.Mesh(context=2), eb.Mesh(tensor=2)])
def test_the_heaviest_gpu_is_the_one_with_the_highest_peak_of_all(mesh):
    small = LLAMA.replace(layers=5, width=64, heads=4, kv_heads=2, head_width=16, ffn_width=96, vocabulary=640)
    setup = eb.Setup(gpus=mesh.size, sequence=256, batch=1, accumulation=4, precision="bf16", mesh=mesh)
    peaks = [eb.dry_run(small, setup, rank=rank).peak for rank in range(mesh.size)]
    assert heaviest(small, setup).peak == max(peaks)


def test_the_front_has_less_memory_for_more_time(found):
    front = draw.front_of(found.points())
    assert len(front) > 1 and front[0][1] == min(one.seconds for one in found.found + found.small)
    for (_, seconds, peak), (_, more, less) in zip(front, front[1:], strict=False):
        assert seconds < more and peak > less


def test_what_binds_is_memory_where_something_faster_does_not_fit(found):
    assert found.hopeless and found.binding == "memory"
    roomy = eb.layouts(LLAMA, SETUP, eb.Gpu(**{**_rates("h100-80gb"), "memory": 10**13}), most=1)
    assert (
        not roomy.small + roomy.hopeless
        and roomy.binding in TERMS
        and roomy.binding == roomy.best.waits_for not in COMPUTED
    )


def _rates(name):
    gpu = eb.gpu(name)
    return {field: getattr(gpu, field) for field in ("bandwidth", "bf16_flops", "fp32_flops", "host_link", "peer_link")}


def test_configurations_of_others_say_the_same(found, piped):
    alone = next(one for one in found.found if one.setup.mesh.pipeline == 1)
    for one in (piped, alone):
        said, mesh = one.torchtitan(), one.setup.mesh
        assert f"seq_len = {one.setup.sequence}\n" in said and f"tensor_parallel_degree = {mesh.tensor}\n" in said
        # torchtitan's batch of a pipeline is that of all its micro-batches.
        many = one.setup.accumulation if mesh.pipeline > 1 else 1
        assert f"local_batch_size = {one.setup.batch * many}\n" in said
        assert f"global_batch_size = {SETUP.batch * SETUP.accumulation * 8}\n" in said
    assert 'pipeline_parallel_schedule = "1F1B"\n' in piped.torchtitan()
    with pytest.raises(ValueError, match=r"Layout\.deepspeed: pipeline \d is set in DeepSpeed's code"):
        piped.deepspeed()
    config = alone.deepspeed()
    assert config["zero_optimization"]["stage"] == 3 and config["bf16"]["enabled"] is True
    each = config["train_micro_batch_size_per_gpu"] * config["gradient_accumulation_steps"]
    assert (
        each * alone.setup.data == 32
        and config.get("tensor_parallel", {"autotp_size": 1})["autotp_size"] == alone.setup.mesh.tensor
    )


def test_deepspeed_is_told_of_fp16():
    small = eb.Model(name="small", layers=2, width=64, heads=4, vocabulary=128, positions=128)
    config = eb.layouts(small, eb.Setup(batch=1, sequence=64, precision="fp16-mixed"), "h200", most=1).best.deepspeed()
    assert config["fp16"]["enabled"] is True and config["bf16"]["enabled"] is False


@pytest.mark.parametrize(
    "said",
    [
        {"loss": "linear-cross-entropy"},
        {"loss": "chunked", "loss_chunks": 2000},
        {"dropout": 0.1, "sequence": 8192},
        {"attention": "eager", "sequence": 8192},
        {"optimizer": "adamw8bit"},
    ],
    ids=str,
)
def test_what_some_layouts_do_not_go_with_leaves_the_others(said):
    """Some are refused as they are made, without a model."""
    small = eb.Model(name="small", layers=2, width=64, heads=4, vocabulary=128, positions=8192, tied=False)
    setup = eb.Setup(**{"batch": 4, "sequence": 512, "precision": "bf16", "gpus": 2, **said})
    found = eb.layouts(small, setup, "h200", most=2)
    assert found.best and any(why.startswith("Setup.") for why in found.refused)
    assert all(getattr(one.setup, name) == value for one in found.found for name, value in said.items())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("llama-3.1-8b", SETUP, "h100-80gb"), "layouts.model: 'llama-3.1-8b'"),
        ((LLAMA, SETUP, "h100"), "'h100' is unknown"),
        ((LLAMA, SETUP.replace(gpus=64), "h100-pcie"), "Gpu.network: 0"),
        ((LLAMA, SETUP.replace(replicas=2), "h100-80gb"), "Setup.replicas: 2 is not searched; allowed: 1"),
        ((LLAMA, SETUP.replace(offload="cpu"), "h100-80gb"), "Setup.offload: 'cpu' is not searched"),
        ((LLAMA, SETUP.replace(no_sync=True), "h100-80gb"), "Setup.no_sync: True is not searched"),
        ((LLAMA, SETUP.replace(sharding_units="model"), "h100-80gb"), "Setup.sharding_units: 'model' is not searched"),
        ((LLAMA, SETUP.replace(sequence=2**18), "h100-80gb"), "Setup.sequence: 262144 is more than"),
        ((LLAMA, SETUP.replace(optimizer="muon", sharding="none", gpus=1), "h100-80gb"), "optimizer 'muon'"),
    ],
)
def test_bad_input_is_named(arguments, message):
    with pytest.raises(ValueError, match=message):
        eb.layouts(*arguments)


def test_where_nothing_fits_it_says_so():
    found = eb.layouts(eb.model("llama-3.1-70b", code="reference"), SETUP, "rtx-4090")
    assert found.best is None and found.binding == "memory" and "none of" in repr(found)


def test_by_command(capsys):
    from everybyte.command import main

    words = ["llama-3.1-8b", "--gpus", "8", "--sequence", "4096", "--batch", "1", "--accumulation", "4"]
    words += ["--precision", "bf16-mixed", "--sharding", "zero3", "--gpu", "h100-80gb", "--most", "1"]
    assert main(["layouts", *words, "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert len(said["found"]) == 1 and said["found"][0]["peak"] <= said["usable"]
    assert main(["layouts", *words, "--as", "torchtitan"]) == 0
    assert "[parallelism]" in capsys.readouterr().out
    assert main(["layouts", *words, "--as", "megatron"]) == 2
    assert "layouts.--as: 'megatron'" in capsys.readouterr().err
