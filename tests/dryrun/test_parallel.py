"""Rank 0 of many GPUs: FSDP against FSDPMemTracker, all shardings against what they must hold between steps."""

import sys
from math import ceil

import pytest
import referee
import torch
import torch.distributed as dist
from torch.distributed.fsdp._fully_shard._fsdp_param_group import FSDPParamGroup

import everybyte as eb
from everybyte.dryrun import parallel, tracker
from everybyte.reference import GPT

SMALL = eb.Model(name="small", layers=2, width=48, heads=3, vocabulary=1001, positions=40)
LLAMA = eb.Model(
    name="llama", layers=2, width=48, heads=6, kv_heads=3, vocabulary=1001, learned_positions=0, gated=True, fused=False,
    tied=False, qkv_bias=False, out_bias=False, ffn_bias=False, norm="rmsnorm",
)  # fmt: skip
SETUP = eb.Setup(batch=3, sequence=31)
WORLDS = (1, 2, 8, 64, 1024)


def shapes(model, setup=SETUP):
    """Of each weight tensor, shared ones once."""
    with torch.device("meta"):
        return [p.shape for p in GPT(model, setup).parameters()]


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("changes", "model"),
    [
        ({"gpus": 8, "sharding": "zero2"}, SMALL),
        ({"gpus": 7, "sharding": "zero3"}, SMALL.replace(tied=False)),
        ({"gpus": 8, "sharding": "zero3", "optimizer": "momentum"}, SMALL),
        ({"gpus": 8, "sharding": "zero3", "replicas": 4, "checkpointing": "full"}, SMALL),
        ({"gpus": 1, "sharding": "zero3", "checkpointing": "every-k"}, SMALL.replace(layers=3)),
        ({"gpus": 4, "sharding": "zero2", "sharding_units": "model"}, SMALL),
        ({"gpus": 64, "sharding": "zero3", "loss": "chunked"}, SMALL),
    ],
)
def test_fsdp_mem_tracker_counts_the_same_bytes(monkeypatch, changes, model):
    if "loss" in changes:  # there gradients meet, and a dispatch mode keeps autograd from adding them in place
        monkeypatch.setattr(tracker, "sole_holder", lambda: None)
    setup = eb.Setup(batch=3, sequence=31, attention="eager", optimizer_impl="loop", **changes)
    trace = eb.dry_run(model, setup)
    phases, peak = referee.fsdp_mem_tracker(model, setup)
    counters = 4 * len(shapes(model)) if setup.optimizer == "adamw" else 0  # on CUDA they stay in the CPU's memory
    assert phases == {moment: trace.phases[moment] + counters for moment in phases}
    assert peak == trace.peak + counters


@pytest.mark.sampled(1)
@pytest.mark.parametrize(("gpus", "replicas", "rank"), [(5, 1, 4), (6, 2, 5), (64, 1, 63)])
def test_another_rank_than_0_is_what_fsdp_mem_tracker_counts(gpus, replicas, rank):
    """1,001 rows and 48: the last ranks have a part of a share, or nothing."""
    setup = eb.Setup(
        batch=3, sequence=31, attention="eager", optimizer_impl="loop", sharding="zero3", gpus=gpus, replicas=replicas
    )
    trace, first = eb.dry_run(SMALL, setup, rank=rank), eb.dry_run(SMALL, setup)
    phases, peak = referee.fsdp_mem_tracker(SMALL, setup, rank)
    counters = 4 * len(shapes(SMALL))
    assert phases == {moment: trace.phases[moment] + counters for moment in phases}
    assert peak == trace.peak + counters
    assert trace.parts_at("rest")["optimizer"] < first.parts_at("rest")["optimizer"]
    assert (
        trace.parts_at("rest")["parameters"] == first.parts_at("rest")["parameters"]
    )  # shares are padded, states are not
    assert trace.as_dict()["rank"] == rank and "rank" not in first.as_dict()
    with pytest.raises(ValueError, match=f"compare.rank: 0 is not the first witness's {rank}"):
        eb.compare(trace, first)


def test_all_ranks_together_hold_the_states_once():
    setup = SETUP.replace(gpus=5, sharding="zero3")
    held = [eb.dry_run(SMALL, setup, rank=rank).parts_at("rest")["optimizer"] for rank in range(5)]
    assert sum(held) == 8 * sum(s.numel() for s in shapes(SMALL)) and len(set(held)) > 1
    for sharding in ("none", "zero1"):
        same = [eb.dry_run(SMALL, setup.replace(sharding=sharding), rank=rank).timeline() for rank in (0, 4)]
        assert same[0] == same[1]
    for rank in (5, -1, True):
        with pytest.raises(ValueError, match=r"^dry_run\.rank: .* is not a whole number from 0 to 4"):
            eb.dry_run(SMALL, setup, rank=rank)


@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    ("gpus", "precision", "weight", "states"),
    [(n, "fp32", 4, 8) for n in WORLDS] + [(7, "bf16-mixed", 4, 8), (7, "bf16-master", 2, 12), (8, "bf16", 2, 4)],
)
def test_what_each_sharding_holds_between_steps(gpus, precision, weight, states):
    sizes = shapes(SMALL)
    numbers = sum(s.numel() for s in sizes)
    even = gpus * ceil(numbers / gpus)
    rows = sum(ceil(s[0] / gpus) * (s.numel() // s[0]) for s in sizes)  # rank 0's, of every tensor
    expected = {
        "none": {"parameters": weight * numbers, "optimizer": states * numbers},
        "zero1": {"parameters": weight * even, "gradients": weight * even, "optimizer": states * even // gpus},
        "zero2": {"parameters": weight * rows, "optimizer": states * rows},
        "zero3": {"parameters": weight * rows, "optimizer": states * rows},
    }
    if gpus > 1:
        expected["none"]["communication"] = weight * numbers  # the buckets
    for sharding, parts in expected.items():
        trace = eb.dry_run(SMALL, SETUP.replace(gpus=gpus, sharding=sharding, precision=precision))
        assert {name: size for name, size in trace.parts_at("rest").items() if size} == parts
        gradients = trace.parts_at("after_backward")["gradients"]
        assert gradients == weight * {"none": numbers, "zero1": even}.get(sharding, rows)


def test_replicas_divide_among_fewer():
    for replicas in (2, 8):
        divided = SETUP.replace(gpus=8, sharding="zero3", replicas=replicas)
        alone = SETUP.replace(gpus=8 // replicas, sharding="zero3")
        assert eb.dry_run(SMALL, divided).timeline() == eb.dry_run(SMALL, alone).timeline()


@pytest.mark.parametrize("precision", ["fp32", "bf16-mixed"])
def test_zero3_has_a_block_whole_only_while_it_works(precision):
    """Whole weights at work: the root's and one block's, and of the next block nothing but the flat buffer."""
    model, setup = SMALL.replace(layers=5), SETUP.replace(gpus=3, precision=precision)
    size = 2 if precision == "bf16-mixed" else 4
    with torch.device("meta"):
        gpt = GPT(model, setup)
    block = sum(3 * ceil(p.shape[0] / 3) * (p.numel() // p.shape[0]) for p in gpt.blocks[0].parameters())
    root = sum(3 * ceil(s[0] / 3) * (s.numel() // s[0]) for s in shapes(model)) - 5 * block
    zero2, zero3 = (eb.dry_run(model, setup.replace(sharding=sharding)) for sharding in ("zero2", "zero3"))
    assert max(zero3.timeline()["unsharded"]) == size * (root + block)
    assert max(zero2.timeline()["unsharded"]) == size * (root + 5 * block)
    assert zero3.parts_at("after_forward")["unsharded"] == size * root
    assert zero3.parts_at("after_backward")["unsharded"] == zero2.parts_at("after_backward")["unsharded"] == 0
    whole = eb.dry_run(model, setup.replace(sharding="zero3", sharding_units="model"))
    assert max(whole.timeline()["unsharded"]) == size * (root + 5 * block)
    # Through the loss's backward the last block's flat buffer waits already.
    head = [i for i, (_, phase, owner) in enumerate(zero3.operations) if phase == "backward" and owner == "head"]
    assert {zero3.timeline()["communication"][i] for i in head} == {size * block}


OFFLOADED = [
    {"gpus": 8, "sharding": "zero3"},
    {"gpus": 7, "sharding": "zero2", "precision": "bf16-mixed", "accumulation": 2},
    {"gpus": 4, "sharding": "zero3", "replicas": 2, "precision": "bf16-master"},
    {"gpus": 1, "sharding": "zero3", "precision": "bf16"},
    {"gpus": 8, "sharding": "zero3", "sharding_units": "model", "optimizer_impl": "fused"},
]


@pytest.mark.sampled(2)
@pytest.mark.parametrize("changes", OFFLOADED, ids=str)
def test_what_is_offloaded_stands_on_the_host_alone(changes):
    """Shares, states and gradients have gone from the GPU, none of them is lost, and nothing else has moved."""
    here = eb.dry_run(SMALL, SETUP.replace(**changes))
    away = eb.dry_run(SMALL, SETUP.replace(offload="cpu", **changes))
    there = ("parameters", "gradients", "optimizer")
    assert not any(size for part in ("parameters", "optimizer") for size in away.timeline()[part])
    assert away.parts_at("after_backward")["gradients"] == 0
    standing = here.parts_at("after_backward")
    assert away.host == {part: standing[part] for part in there} and here.host == {}
    for part in ("buffers", "activations", "loss", "unsharded"):
        assert max(away.timeline()[part]) == max(here.timeline()[part])
    assert away.peak < here.peak and away.as_dict()["host"] == away.host


@pytest.mark.sampled(2)
@pytest.mark.parametrize("changes", OFFLOADED[:4], ids=str)
def test_what_crosses_the_bus(changes):
    """Weights go up as they are stored, for every gathering; gradients come down once a batch."""
    setup = SETUP.replace(offload="cpu", **changes)
    copies = [a for a in eb.dry_run(SMALL, setup).allocations if a.operation == "clone" and a.birth]
    up, down = (sum(a.bytes for a in copies if a.host is host) for host in (False, True))
    assert up == eb.formula("fsdp.to_gpu").at(SMALL, setup) and down == eb.formula("fsdp.to_host").at(SMALL, setup)


def test_a_module_that_asks_for_the_cpu_is_refused_as_before():
    """Only FSDP's own copies may leave the GPU."""

    def make():
        body = torch.nn.Linear(16, 16)
        module = torch.nn.Sequential(body)
        module.forward = lambda x: body(x).cpu().sum()
        return module

    with pytest.raises(ValueError, match="needs the values in a tensor"):
        eb.dry_run(make, eb.Setup(gpus=4, sharding="zero3", offload="cpu"), batch=((2, 16), torch.float32))


def test_a_gradient_in_a_bucket_is_not_there_twice():
    setup = SETUP.replace(gpus=2)
    copies, views = (eb.dry_run(SMALL, setup.replace(buckets=b)) for b in ("copies", "views"))
    alone, numbers = eb.dry_run(SMALL, SETUP), 4 * sum(s.numel() for s in shapes(SMALL))
    assert copies.phases == {name: size + numbers for name, size in alone.phases.items()}
    assert views.phases["after_backward"] == alone.phases["after_backward"]
    assert views.phases["rest"] == copies.phases["rest"] == alone.phases["rest"] + numbers


@pytest.mark.parametrize("sharding", ["none", "zero1"])
def test_the_world_size_changes_nothing_else(sharding):
    first, *others = (eb.dry_run(SMALL, SETUP.replace(gpus=n, sharding=sharding)) for n in (2, 8, 1024))
    for other in others:
        assert [o[0] for o in other.operations] == [o[0] for o in first.operations]
        for part in {"none": first.timeline()}.get(sharding, ("activations", "loss")):
            assert other.timeline()[part] == first.timeline()[part]


@pytest.mark.sampled(3)
@pytest.mark.parametrize("sharding", ["none", "zero1", "zero2", "zero3"])
@pytest.mark.parametrize(
    "changes",
    [{"gpus": 100}, {"gpus": 6, "checkpointing": "selective", "precision": "bf16"}, {"gpus": 2, "accumulation": 3}],
    ids=lambda c: f"{c['gpus']} gpus",
)
def test_a_trace_is_whole(sharding, changes):
    setup = SETUP.replace(sharding=sharding, **changes)
    for model in (SMALL, LLAMA):
        trace = eb.dry_run(model, setup)
        assert sum(trace.parts.values()) == trace.peak == max(trace.live)
        assert trace.parts["unsharded"] >= 0 and set(trace.parts) == set(eb.dryrun.PARTS + eb.dryrun.SHARED_PARTS)
        assert trace.live[-1] == trace.phases["rest"] == trace.live[0]  # the next step starts where this one did
        assert {a.owner for a in trace.owners(0) if a.part == "parameters"} - {""}


@pytest.mark.parametrize("sharding", ["none", "zero1", "zero2", "zero3"])
def test_the_process_is_as_before(state, sharding):
    before, hook, methods = (
        state(),
        sys.excepthook,
        [FSDPParamGroup.unshard, FSDPParamGroup.post_backward, torch.UntypedStorage.resize_],
    )
    eb.dry_run(SMALL, SETUP.replace(gpus=4, sharding=sharding))
    with pytest.raises(RuntimeError):
        eb.dry_run(lambda: torch.nn.Linear(3, 4), eb.Setup(gpus=4, sharding=sharding), batch=((2, 5), torch.float32))
    assert state() == before and sys.excepthook is hook and not dist.is_initialized()
    assert [FSDPParamGroup.unshard, FSDPParamGroup.post_backward, torch.UntypedStorage.resize_] == methods


def test_in_a_process_group_there_is_no_dry_run_of_another():
    dist.init_process_group("fake", rank=0, world_size=2, store=dist.HashStore())
    try:
        with pytest.raises(ValueError, match=r"dry_run\.setup: 8 gpus in a process that has a process group"):
            eb.dry_run(SMALL, SETUP.replace(gpus=8, sharding="zero3"))
    finally:
        dist.destroy_process_group()


def test_a_module_of_ones_own_is_divided_too():
    def make():
        body = torch.nn.ModuleList(torch.nn.Linear(16, 16) for _ in range(3))
        module = torch.nn.Sequential(torch.nn.Sequential(*body), torch.nn.Linear(16, 1))
        module.blocks = body
        module.forward = lambda x: module[1](module[0](x)).sum()
        return module

    trace = eb.dry_run(make, eb.Setup(gpus=4, sharding="zero3"), batch=((2, 16), torch.float32))
    assert trace.parts_at("rest")["parameters"] == 4 * (3 * (4 * 16 + 4) + 16 + 1)
    assert max(trace.timeline()["unsharded"]) < 4 * 4 * (3 * (4 * 16 + 4) + 16 + 1)


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    "changes",
    [
        {}, {"buckets": "views", "accumulation": 2}, {"sharding": "zero1", "precision": "bf16-master"},
        {"sharding": "zero2", "optimizer": "momentum"}, {"sharding": "zero3", "precision": "bf16-mixed", "replicas": 2},
        {"sharding": "zero3", "checkpointing": "every-k", "optimizer_impl": "fused"},
    ],
    ids=str,
)  # fmt: skip
def test_the_third_step_is_as_the_second(monkeypatch, changes):
    setup = SETUP.replace(gpus=4, **changes)
    second = eb.dry_run(SMALL, setup)
    once = parallel.make_steady

    def twice(trainer, run, tracker):
        once(trainer, run, tracker)
        run()

    monkeypatch.setattr(parallel, "make_steady", twice)
    third = eb.dry_run(SMALL, setup)
    assert third.operations == second.operations and third.timeline() == second.timeline()


#: Of sizes that four GPUs divide.
EVEN = eb.Model(layers=3, width=64, heads=4, vocabulary=332, positions=64, tied=False)
MIXTRAL = eb.Model(
    layers=3, width=64, heads=4, kv_heads=2, vocabulary=332, positions=64, learned_positions=0, ffn_width=96, gated=True,
    fused=False, tied=False, qkv_bias=False, out_bias=False, ffn_bias=False, norm="rmsnorm", qk_norm=True, experts=4,
    experts_per_token=2, expert_width=96,
)  # fmt: skip
FOUR = eb.Setup(batch=2, sequence=32, gpus=4, sharding="zero3", optimizer="sgd")


@pytest.mark.sampled(2)
@pytest.mark.parametrize("model", [EVEN, MIXTRAL], ids=lambda m: m.family)
@pytest.mark.parametrize("offload", ["none", "cpu"])
@pytest.mark.parametrize(("precision", "bytes"), [("fp32", 4), ("bf16-mixed", 4), ("bf16", 2)])
def test_without_synchronization_whole_gradients_add_up(model, precision, bytes, offload):
    setup = FOUR.replace(precision=precision, offload=offload, accumulation=2)
    once, each = (eb.dry_run(model, setup.replace(no_sync=no)) for no in (True, False))
    assert once.parts_at("after_forward")["gradients"] == bytes * model.parameters
    divided = 0 if offload == "cpu" else bytes * model.parameters // 4
    assert each.parts_at("after_forward")["gradients"] == divided
    assert once.phases["after_backward"] == each.phases["after_backward"]


@pytest.mark.parametrize("sharding", ["zero2", "zero3"])
@pytest.mark.parametrize("model", [EVEN, MIXTRAL], ids=lambda m: m.family)
def test_ends_are_units_of_their_own(model, sharding):
    table, positions = model.vocabulary * model.width, model.learned_positions * model.width
    norm = model.width * (1 + model.norm_bias)
    left = {}
    for units in ("block", "block+ends"):
        trace = eb.dry_run(model, FOUR.replace(sharding=sharding, sharding_units=units))
        left[units] = trace.parts_at("after_forward")["unsharded"]
    if sharding == "zero2":
        assert left["block"] == left["block+ends"] == 4 * model.parameters
    else:  # the root keeps what it has, and so does the unit that backward needs first
        assert left == {"block": 4 * (2 * table + positions + norm), "block+ends": 4 * (table + positions + norm)}


def test_more_gpus_than_experts_gather_empty_ones():
    """PyTorch cuts stacked experts along the first dimension: each of 8 GPUs has one of 4, and half of what is gathered is padding."""
    few, many = (eb.dry_run(MIXTRAL, FOUR.replace(gpus=gpus)) for gpus in (4, 8))
    experts = {
        a.bytes for t in (few, many) for a in t.allocations if a.owner.endswith("mlp.gate_up") and a.part == "unsharded"
    }
    assert experts == {4 * n * 2 * 96 * 64 for n in (4, 8)}
