"""The price of each switch: what a step does, by hand and as the dry run counts it; and which set of them is the answer."""

import bisect
import json
from dataclasses import replace
from functools import cache, wraps
from random import Random

import grid
import pytest
import torch
import torch.distributed as dist
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import everybyte as eb
from everybyte import units
from everybyte.answers.headroom import ROUNDING
from everybyte.answers.plan import DIGITS, Rung, Work, _cheapest, made, phase_loads, work
from everybyte.answers.rates import PRODUCTS, TOGETHER
from everybyte.ask.choices import COMMON_OPTIMIZERS, OPTIMIZERS
from everybyte.command import main
from everybyte.reference import parallel
from everybyte.reference.step import make_optimizer
from everybyte.theory import trace
from everybyte.theory.budget import course_of, letters, not_derived

GPT2, XL = eb.model("gpt2"), eb.model("gpt2-xl")
plan = cache(eb.plan)  # several tests look at one plan, and none changes it
TINY = eb.Model(name="tiny", layers=3, width=40, heads=5, vocabulary=331, positions=64)
LLAMA = eb.model("llama-3.1-8b", code="reference").replace(
    name="tiny llama", layers=3, width=48, heads=6, kv_heads=3, head_width=8, ffn_width=88, vocabulary=331
)


#: Few sets of switches, of which what is sent takes most of the time.
SENT = eb.Setup(batch=2, sequence=64, precision="bf16", optimizer_impl="fused", sharding="zero3", gpus=8)


def test_every_rung_is_what_the_budget_says_of_the_same_tokens():
    setup = eb.Setup(batch=4, attention="eager", precision="bf16-mixed")
    found = plan(GPT2, setup, "rtx-3090")
    assert found.asked.setup == setup and found.asked.switches == {} and found.asked.seconds == 0
    assert len({r.setup for r in found.rungs}) == len(found.rungs) > 100
    for rung in found.rungs:
        run = rung.setup
        assert run.batch * run.accumulation * run.sequence == 4 * 1024
        assert rung.switches == {n: v for n, v in vars(run).items() if v != getattr(setup, n)}
        assert DIGITS[run.precision] >= DIGITS["bf16-mixed"]
    for rung in found.rungs[::23]:
        assert rung.peak == eb.budget(GPT2, rung.setup, ROUNDING).peak == found.asked.peak - rung.saved
        assert rung.work == work(GPT2, rung.setup) and rung.flops == rung.work.flops - found.asked.work.flops
    kinds = set().union(*(r.kinds for r in found.rungs))
    assert kinds == {"precision", "attention", "loss", "checkpointing", "accumulation", "optimizer_impl"}


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    "model, setup, card",
    [
        (GPT2, eb.Setup(batch=8, precision="bf16-mixed", optimizer_impl="fused"), "rtx-3090"),
        (GPT2, eb.Setup(batch=3, attention="eager", optimizer_impl="loop"), "t4"),
        (LLAMA, eb.Setup(batch=2, sequence=64, precision="bf16"), "rtx-4090"),
        (LLAMA, SENT.replace(accumulation=3, no_sync=True), "h100-80gb"),
        (LLAMA, SENT.replace(offload="cpu"), "h100-80gb"),
    ],
    ids=lambda x: getattr(x, "name", None),
)  # fmt: skip
def test_the_best_is_what_looking_at_every_set_finds(model, setup, card):
    """The search passes over sets by what they take at least; whatever is usable, it finds what all of them together say."""
    found = plan(model, setup, card)
    for precision in found.precisions:
        mine = sorted(
            (r for r in found.rungs if r.setup.precision == precision), key=lambda r: (r.seconds, len(r.kinds))
        )
        for rung in mine:
            assert rung._at_least <= rung.seconds and rung._states <= rung.peak
        peaks = sorted(r.peak for r in mine)
        for usable in (found.usable, *peaks[::7], peaks[0] - 1):
            right = next((r for r in mine if r.peak <= usable), None)
            assert _cheapest(mine, usable, lambda rung: True) is right
        assert found.cheapest(precision) is next((r for r in mine if found.runs(r)), None)
    ladder = found.ladder()
    for rung, after in zip(ladder, ladder[1:], strict=False):  # nothing that is left out is as cheap and as small
        assert after.seconds >= rung.seconds and after.peak < rung.peak
        assert not [r for r in found._in(setup.precision) if r.seconds < after.seconds and r.peak <= after.peak]
    alone = found.singles
    assert all(len(r.kinds) == 1 for r in alone) and {r.kinds.pop() for r in alone} >= {"checkpointing", "loss"}
    saving = [r.seconds / r.saved for r in alone if r.saved > 0]
    assert saving == sorted(saving) and all(r.saved <= 0 for r in alone[len(saving) :])


@pytest.mark.sampled(8)
@pytest.mark.parametrize("seed", range(40))
def test_a_rung_is_the_budget_and_the_whole_step_s_work(seed):
    """Of many batches it traces few."""
    model, setup, _ = grid.everything(seed)
    setup = setup.replace(accumulation=max(setup.accumulation, 2) + seed % 4)
    if not_derived(model, setup):
        setup = setup.replace(loss="plain", loss_chunks=8)
    rung, predicted = Rung(model, setup, eb.gpu("h200")), eb.budget(model, setup, ROUNDING)
    assert (rung.peak, rung.peak_at, rung.host) == (predicted.peak, predicted.peak_at, sum(predicted.host.values()))
    values = letters(model, setup)
    course = trace(model, setup)
    if course_batches(course) == setup.accumulation:
        assert made(model, setup) == sum(course.at(values).taken().values())


def course_batches(course):
    return 1 + max(batch for batch, *_ in course.at(dict.fromkeys(letters(eb.model("gpt2"), eb.Setup()), 8)).taken())


SETUPS = {
    "plain": {}, "dropout": {"dropout": 0.1}, "mixed, full": {"precision": "bf16-mixed", "checkpointing": "full"},
    "FSDP": {"gpus": 8, "sharding": "zero3"}, "ZeRO-1": {"gpus": 4, "sharding": "zero1"}, "DDP": {"gpus": 2},
}  # fmt: skip


@pytest.mark.sampled(120)
@pytest.mark.parametrize("changes", SETUPS.values(), ids=SETUPS)
@pytest.mark.parametrize("name", eb.models())
def test_what_is_not_derived_has_no_price(name, changes):
    """Never a number of another architecture: `work` raises exactly where `not_derived` speaks."""
    model, setup = eb.model(name, code="reference"), eb.Setup(batch=2, sequence=64, **changes)
    why = not_derived(model, setup)
    if why is None:
        setup.check_model(model)
        assert min(made(model, setup), work(model, setup).flops) > 0
        return
    for call in (made, work):
        with pytest.raises(ValueError) as error:
            call(model, setup)
        assert str(error.value) == why


@pytest.mark.parametrize("name", ["gpt2", "llama-3.1-8b", "qwen3-8b", "gemma-2b", "opt-1.3b"])
def test_flops_are_the_registry_s(name):
    for changes in (
        {}, {"attention": "eager"}, {"checkpointing": "full"}, {"checkpointing": "every-k", "checkpoint_every": 5},
        {"checkpointing": "selective"}, {"loss": "chunked"}, {"checkpointing": "selective", "attention": "eager", "accumulation": 3},
    ):  # fmt: skip
        model, setup = eb.model(name, code="reference"), eb.Setup(batch=2, sequence=128, **changes)
        names = ("flops.forward", "flops.backward", "flops.again.loss", "checkpoint.flops")
        counted = sum(eb.formula(n).at(model, setup) for n in names)
        assert work(model, setup).flops == setup.accumulation * (counted - eb.formula("flops.masked").at(model, setup))


@pytest.mark.sampled(20)
@pytest.mark.parametrize("seed", range(80))
def test_flops_are_the_traced_step_s_and_the_dry_run_s(seed):
    """Heads that the kernel pads, grouped heads in fp32, which no kernel takes, and all that is recomputed."""
    draw = Random(f"flops {seed}")
    width, groups = draw.choice([12, 16, 20, 24]), draw.choice([1, 2])
    sizes = {
        "layers": draw.randint(2, 6),
        "heads": 4,
        "head_width": width,
        "width": 4 * width,
        "vocabulary": 96,
        "positions": 128,
    }
    gpt = eb.Model(name="gpt", **sizes)
    llama = eb.model("llama-3.1-8b", code="reference").replace(
        **sizes, kv_heads=4 // groups, ffn_width=8 * draw.randint(2, 9)
    )
    model = draw.choice([gpt, llama, llama.replace(code="transformers")])
    setup = eb.Setup(
        batch=draw.randint(1, 3), sequence=draw.choice([8, 33, 64]), precision=draw.choice(["fp32", "bf16", "bf16-mixed"]),
        attention=draw.choice(["flash", "flash", "eager"]), checkpointing=draw.choice(["none", "full", "selective", "every-k"]),
        loss=draw.choice(["plain", "chunked"]), accumulation=draw.choice([1, 3]),
    )  # fmt: skip
    if not_derived(model, setup):
        setup = setup.replace(attention="flash", checkpointing="full", loss="plain")
    one = setup.replace(accumulation=1)
    assert work(model, setup).flops == setup.accumulation * course_of(model, one).at(letters(model, one)).flops()
    assert work(model, setup).flops == eb.dry_run(model, setup).flops


def test_products_of_narrow_values_and_of_gradients_that_forward_makes():
    """DeepSeek-V3's values are narrower than its keys; `linear_cross_entropy` multiplies for the head's gradients in forward."""
    narrow = eb.model("deepseek-v3").replace(
        layers=2, dense_layers=1, experts=16, experts_per_token=2, width=256, heads=4, kv_heads=4, ffn_width=512, expert_width=128,
        vocabulary=1000,
    )  # fmt: skip
    setup = eb.Setup(batch=2, sequence=64, precision="bf16", attention="eager")
    assert work(narrow, setup).flops == eb.dry_run(narrow, setup).flops
    losses = ("plain", "linear-cross-entropy")
    plain, early = (phase_loads(GPT2, setup.replace(loss=loss)) for loss in losses)
    moved = 4 * 2 * 64 * 50257 * 768
    assert early[0].flops - plain[0].flops == plain[1].flops - early[1].flops == moved


def test_a_run_that_fits_needs_no_switch_and_digits_are_given_up_last():
    assert plan(GPT2, eb.Setup(), "h100-80gb").best.switches == {}
    assert plan(XL, eb.Setup(), "rtx-4090").best.setup.precision == "bf16"  # nothing with more digits fits
    assert plan(XL, eb.Setup(), "rtx-4090").precisions == ["fp32", "bf16-mixed", "bf16-master", "bf16"]
    assert plan(XL, eb.Setup(), "v100-32gb").precisions == ["fp32", "fp16-mixed"]  # Volta has no bf16


def test_the_order_of_price_is_the_run_s():
    """Recomputation costs what a batch does, a micro-batch more what Python starts: their order changes with the run."""

    def order(batch, gpu):
        found = plan(GPT2, eb.Setup(batch=batch, precision="bf16-mixed"), gpu).singles
        return [r.text() for r in found if "accumulation" in r.text() or r.text() == "checkpointing full"]

    assert order(4, "h100-80gb")[0] == "checkpointing full" != order(64, "h100-80gb")[0]


def test_work_by_hand():
    setup = eb.Setup(batch=8)
    plain = work(GPT2, setup)
    tokens = 8 * 1024
    matrices = 12 * 12 * 768**2 + 768 * 50257
    squares = 12 * 2 * 8 * 12 * 1024**2 * 64  # of one product, all layers
    assert plain.flops == 6 * tokens * matrices + 7 * squares // 2  # of which a causal kernel skips half
    assert work(GPT2, setup.replace(attention="eager")).flops == 6 * tokens * matrices + 6 * squares
    twice = work(GPT2, setup.replace(batch=4, accumulation=2))
    assert twice.flops == plain.flops and twice.moved > plain.moved
    # Each batch after the first reads and writes the sum of the gradients; the rest is what does not shrink with the batch.
    assert (
        twice.moved - plain.moved
        == 2 * (made(GPT2, setup.replace(batch=4, accumulation=2)) - made(GPT2, setup)) + 8 * GPT2.parameters
    )
    full, selective = (work(GPT2, setup.replace(checkpointing=c)) for c in ("full", "selective"))
    assert full.flops - plain.flops == 2 * tokens * (12 * 12 - 12 * 4) * 768**2 + squares
    assert selective.flops - plain.flops == squares
    chunked = work(GPT2, setup.replace(loss="chunked"))
    assert chunked.flops - plain.flops == 2 * tokens * 768 * 50257
    fused = work(GPT2, setup.replace(optimizer_impl="fused"))
    assert plain.moved - fused.moved == 4 * GPT2.parameters * (
        OPTIMIZERS["adamw"].passes[0] - OPTIMIZERS["adamw"].passes[-1]
    )
    gpu = eb.gpu("a100-40gb")
    assert plain.load.attention == squares and plain.load.attention_backward == 5 * squares // 2
    products = (plain.flops - 7 * squares // 2) / 0.72 + 7 * squares / 2 / 0.4
    assert plain.seconds(gpu) == pytest.approx(products / 19.5e12 + plain.moved / 0.75 / 1555e9)
    autocast = work(GPT2, setup.replace(precision="bf16-mixed"))
    head = 6 * tokens * 768 * 50257  # whose rows are no multiple of 16 bytes
    products = (6 * tokens * matrices - head) / 0.75 + head / 0.11
    attention = squares / 0.34 * (1 + 500 / 1024) + 5 * squares / 2 / 0.31 * (1 + 1200 / 1024)
    assert autocast.seconds(gpu) == pytest.approx((products + attention) / 312e12 + autocast.moved / 0.75 / 1555e9)


class Traffic(TorchDispatchMode):
    """Counts the numbers that operations on tensors of more than one number read and write."""

    def __init__(self):
        super().__init__()
        self.numbers = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        read, written = {}, {}
        for argument, value in zip(function._schema.arguments, args, strict=False):
            tensors = {id(t): t.numel() for t in tree_leaves(value) if isinstance(t, torch.Tensor) and t.numel() > 1}
            read |= tensors
            if argument.alias_info is not None and argument.alias_info.is_write:
                written |= tensors
        made = {id(t): t.numel() for t in tree_leaves(result) if isinstance(t, torch.Tensor) and t.numel() > 1}
        self.numbers += sum(read.values()) + sum((written | made).values())
        return result


def traffic(optimizer, impl, bias):
    """Numbers that the second step of a linear layer of 64 by 32 reads and writes."""
    module = torch.nn.Linear(64, 32, bias=bias)
    made = make_optimizer(eb.Setup(optimizer=optimizer, optimizer_impl=impl))(module.parameters())
    for _ in range(2):  # the states exist from the first step on
        for p in module.parameters():
            p.grad = torch.ones_like(p)
        with Traffic() as counted:
            made.step()
    return counted.numbers


@pytest.mark.parametrize("optimizer", COMMON_OPTIMIZERS)
@pytest.mark.parametrize("impl", ["foreach", "loop", "fused"])
def test_the_optimizer_s_passes_are_pytorch_s(optimizer, impl):
    row = OPTIMIZERS[optimizer]
    scaled = int(impl == "fused")  # by its schema it writes gradients too; the kernel does so under a loss scaler alone
    assert traffic(optimizer, impl, True) == (row.passes[row.impls.index(impl)] + scaled) * (64 * 32 + 32)


@pytest.mark.parametrize(
    ("optimizer", "impl"),
    [("rmsprop", "foreach"), ("rmsprop", "loop"), ("lion", "loop"), ("adafactor", "loop"), ("adafactor", "foreach")],
)
def test_the_passes_of_smaller_optimizers_are_their_code_s(optimizer, impl):
    row = OPTIMIZERS[optimizer]
    if row.package:
        pytest.importorskip(row.package.replace("-", "_"))
    passes = row.passes[row.impls.index(impl)]
    # Adafactor also goes through its factors, each a few times.
    assert 0 <= traffic(optimizer, impl, False) - passes * 64 * 32 <= (optimizer == "adafactor") * 10 * (64 + 32)


def test_an_optimizer_of_matrix_products_has_no_price():
    with pytest.raises(ValueError, match=r"^plan\.setup: .*'muon'.*adafactor"):
        eb.plan(GPT2, eb.Setup(optimizer="muon"), eb.gpu("h100-80gb"))
    cheaper = eb.plan(GPT2, eb.Setup(batch=32, optimizer="adamw8bit"), eb.gpu("rtx-4090"))
    assert {rung.setup.optimizer for rung in cheaper.rungs} == {"adamw8bit"}


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"checkpointing": "full"},
        {"loss": "chunked", "loss_chunks": 4},
        {"attention": "eager", "precision": "bf16-mixed"},
        {"gpus": 4, "buckets": "views", "accumulation": 3},
        {"gpus": 4, "sharding": "zero3", "checkpointing": "every-k", "accumulation": 2},
        {"gpus": 4, "sharding": "zero2", "precision": "bf16-mixed", "offload": "cpu"},
        {"gpus": 1, "sharding": "zero3", "offload": "cpu"},
        {"gpus": 1, "sharding": "zero2", "precision": "bf16-mixed"},
        {"gpus": 1, "sharding": "zero3", "precision": "bf16-mixed", "offload": "cpu", "sharding_units": "model"},
    ],
    ids=str,
)
def test_made_is_what_a_trace_sees_born(changes):
    setup = eb.Setup(batch=2, sequence=16, **changes)
    trace = eb.dry_run(TINY, setup)
    born = [
        a for a in trace.allocations if a.birth > 0 and trace.operations[a.birth][1] not in ("optimizer step", "rest")
    ]
    assert made(TINY, setup) == sum(a.bytes for a in born if not a.host)


@pytest.mark.parametrize(
    "changes", [{}, {"checkpointing": "full", "precision": "bf16-mixed"}, {"attention": "eager"}], ids=str
)
def test_so_it_is_of_a_llama(changes):
    setup = eb.Setup(batch=2, sequence=16, **changes)
    trace = eb.dry_run(LLAMA, setup)
    born = [
        a for a in trace.allocations if a.birth > 0 and trace.operations[a.birth][1] not in ("optimizer step", "rest")
    ]
    assert made(LLAMA, setup) == sum(a.bytes for a in born)


def test_a_llama_has_a_plan():
    llama, setup = eb.model("llama-3.1-8b", code="reference"), eb.Setup(batch=2, sequence=4096, precision="bf16")
    found = plan(llama, setup, "h100-80gb")
    assert found.asked.peak > found.usable >= found.best.peak == eb.budget(llama, found.best.setup, ROUNDING).peak
    assert found.best.text() == "optimizer fused, checkpointing full"
    away = plan(llama, setup, "rtx-4090")  # its states alone are too large: the host is the last resort
    assert away.best.setup.offload == "cpu" and away.best.peak <= away.usable < 2 * llama.parameters * 3


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"accumulation": 3},
        {"sharding": "zero1", "accumulation": 2, "precision": "bf16-master"},
        {"sharding": "zero2", "accumulation": 2},
        {"sharding": "zero3", "accumulation": 2, "precision": "bf16-mixed", "checkpointing": "every-k"},
        {"sharding": "zero3", "precision": "bf16-master", "replicas": 2},
        {"sharding": "zero3", "sharding_units": "model", "accumulation": 2},
        {"sharding": "zero3", "precision": "bf16", "replicas": 6},
    ],
    ids=str,
)
def test_what_is_sent_is_what_the_step_gives_its_collectives(changes, monkeypatch):
    """Around a ring of n, each sends n - 1 n-ths of the whole to gather it, as much to reduce it, and both to average it."""
    setup, sent = eb.Setup(batch=2, sequence=16, gpus=6, **changes), []

    def spy(module, name, gpus, rounds):
        if (call := getattr(module, name, None)) is None:
            return

        @wraps(call)
        def counted(*args, **kwargs):
            given = [a.buffer() if isinstance(a, dist.GradBucket) else a for a in (*args, *kwargs.values())]
            whole = max((t for t in given if isinstance(t, torch.Tensor)), key=torch.Tensor.numel)
            sent.append(rounds * (gpus - 1) * -(-whole.numel() // gpus) * whole.element_size())
            return call(*args, **kwargs)

        monkeypatch.setattr(module, name, counted)

    shards = setup.gpus // setup.replicas
    for name in ("all_gather_single", "all_gather_into_tensor", "reduce_scatter_single", "reduce_scatter_tensor"):
        spy(dist, name, shards, 1)  # FSDP's, by PyTorch's names from 2.13 on and before
    spy(dist, "all_reduce", setup.replicas, 2)
    spy(parallel, "all_gather", shards, 1)
    spy(parallel, "reduce_scatter", shards, 1)
    spy(parallel, "at_once", setup.gpus, 2)
    eb.dry_run(TINY, setup)  # which runs two steps
    assert sum(sent) == 2 * work(TINY, setup).sent > 0


@pytest.mark.parametrize(
    "changes",
    [
        {"gpus": 1, "sharding": "zero2", "accumulation": 3},
        {"gpus": 3, "sharding": "zero3", "precision": "bf16-mixed"},
        {"gpus": 2, "sharding": "zero3", "sharding_units": "model"},
        {"gpus": 2, "sharding": "zero3", "precision": "bf16", "adapters": eb.Lora(4)},
        {
            "gpus": 3,
            "sharding": "zero3",
            "precision": "bf16-mixed",
            "adapters": eb.Lora(4, "all-linear", "bf16", "bf16"),
        },
    ],
    ids=str,
)
def test_what_is_copied_is_what_the_step_copies(changes):
    if "adapters" in changes:
        pytest.importorskip("peft")
    setup = eb.Setup(batch=2, sequence=16, offload="cpu", **changes)
    copies = [a for a in eb.dry_run(TINY, setup).allocations if a.operation == "clone" and a.birth]
    found = work(TINY, setup)
    assert found.copied == sum(a.bytes for a in copies) > 0
    assert work(TINY, setup.replace(offload="none")).copied == 0


def test_an_offloaded_optimizer_moves_the_host_s_bytes_instead_of_the_gpu_s():
    here = eb.Setup(batch=2, sequence=16, sharding="zero3", accumulation=3)
    away = here.replace(offload="cpu")
    numbers = 4 * int(TINY.parameters)  # one GPU: nothing is padded
    assert work(TINY, here).hosted == 0
    assert work(TINY, away).hosted == numbers * (OPTIMIZERS["adamw"].passes[0] + 2 * 2)
    assert work(TINY, here).moved - work(TINY, away).moved >= work(TINY, away).hosted - 2 * made(TINY, away)
    with_more = work(TINY, here.replace(gpus=4))
    assert with_more.moved < work(TINY, here.replace(gpus=2)).moved  # each has fewer states and gradients to add


def test_links_are_priced_at_the_data_sheet_s_rates():
    both = Work(rings=((300 * 10**9, 8, 1),))
    assert both.seconds(eb.gpu("a100-40gb")) == 1
    assert both.seconds(eb.gpu("t4")) == 300 / 15.754  # no link but the host's
    assert Work(copied=63_015_000_000).seconds(eb.gpu("h100-80gb")) == 1
    alone, ddp = (work(GPT2, eb.Setup(gpus=n, precision="bf16-mixed")) for n in (1, 8))
    sent = 2 * 7 * -(-int(GPT2.parameters) // 8) * 4
    assert alone.sent == 0 and ddp.sent == sent == work(GPT2, eb.Setup(gpus=8, accumulation=4)).sent


@pytest.mark.parametrize("accumulation", [1, 3])
def test_what_is_sent_hides_behind_its_own_phase(accumulation):
    """DDP's all-reduce behind the last backward alone: so it needs as many tokens as ZeRO-3. What ZeRO-1 sends hides nowhere."""
    gpu = eb.Gpu(memory="80 GiB", bandwidth=10**18, bf16_flops=10**11, host_link=10**8, peer_link=10**8)
    model = eb.model("gpt2-xl", code="reference").replace(vocabulary=64, positions=64)
    base = eb.Setup(precision="bf16", sequence=16, gpus=8, accumulation=accumulation, attention="eager")

    def waits(batch, sharding):
        done = work(model, base.replace(batch=batch, sharding=sharding))
        return (done.seconds(gpu) - replace(done, rings=(), phases=()).seconds(gpu)) * gpu.peer_link / done.sent

    enough = {
        sharding: 16 * bisect.bisect_left(range(1, 200), True, key=lambda batch: waits(batch, sharding) < 1e-3)
        for sharding in ("none", "zero3")
    }
    few = 10**11 / 10**8 * 7 / 8 * PRODUCTS / TOGETHER  # operations a byte, of a ring of eight
    assert all(few * 0.9 < tokens < few * 1.1 for tokens in enough.values()), enough
    assert waits(200, "zero1") == pytest.approx(1, rel=1e-3) and 0.3 < waits(16, "none") < 0.7


def test_across_nodes_every_network_card_carries_its_share():
    """DGX H100: 8 cards of 50 GB/s are nearly the 450 of NVLink; a replica's ring has one card a node."""
    h100 = eb.gpu("h100-80gb")
    assert [h100.ring(n) for n in (1, 2, 8, 9, 16, 1024)] == [450e9, 450e9, 450e9, 400e9, 400e9, 400e9]
    assert (
        h100.ring(2, apart=8) == h100.ring(128, apart=8) == 50e9
        and h100.ring(4, apart=4) == 100e9
        and h100.ring(4, apart=2) == 450e9
    )
    assert eb.Gpu(memory="80 GiB", host_link=10, network=3, node=2).ring(4) == 6
    one, both = (work(GPT2, eb.Setup(gpus=16, sharding="zero3", replicas=r, precision="bf16-mixed")) for r in (1, 2))
    assert [who for _, *who in one.rings] == [[16, 1]] and [who for _, *who in both.rings] == [[8, 1], [2, 8]]
    sent = Work(rings=both.rings).seconds(h100)
    assert sent == pytest.approx(both.rings[0][0] / 450e9 + both.rings[1][0] / 50e9)
    forward, backward = both.phases[:2]  # replicas average what was reduced
    assert [who for size, *who in forward.rings if size] == [[8, 1]]
    assert [who for size, *who in backward.rings if size] == [[8, 1], [2, 8]]


def test_where_nothing_says_how_fast_the_network_is_nothing_is_priced():
    with pytest.raises(ValueError, match="Gpu.network: 0 of the rtx-4090, .* leaving a node of 8 GPUs"):
        eb.plan(GPT2, eb.Setup(gpus=16, sharding="zero3"), "rtx-4090")


def test_accumulation_costs_fsdp_a_round_for_every_batch():
    """Half the batch twice: under DDP nothing more is sent, under FSDP twice as much, and the plan says so."""
    for sharding, times in (("none", 1), ("zero3", 2)):
        found = plan(GPT2, eb.Setup(batch=2, gpus=4, sharding=sharding, precision="bf16-mixed"), "h200")
        half = next(r for r in found.singles if r.text() == "accumulation 2 (batch 1)")
        assert half.work.sent == times * found.asked.work.sent and half.sent == (times - 1) * found.asked.work.sent
        shown = repr(found.show([found.asked, half]))
        assert ("sent" in shown) == (times == 2) and "the bus" not in shown and "host" not in shown


def test_products_in_16_bits_are_faster_by_the_matrix_units():
    found = plan(GPT2, eb.Setup(), "a100-40gb")
    mixed = next(r for r in found.singles if r.text() == "precision bf16-mixed")
    assert found.asked.work.compute == "fp32" and mixed.work.compute == "bf16" and mixed.flops == 0
    moved, (wide, narrow) = (
        mixed.moved / 0.75 / 1555e9,
        (
            sum(replace(r.work.load, moved=0, started=0, steps=0).seconds(eb.gpu("a100-40gb"), r.work.compute).values())
            for r in (found.asked, mixed)
        ),
    )
    assert mixed.seconds == pytest.approx(moved + narrow - wide) and narrow < wide / 4 and mixed.share < -0.6


def test_the_host_is_the_last_resort():
    found = plan(XL, eb.Setup(), "v100-16gb")
    away = [r for r in found.rungs if r.setup.offload == "cpu"]
    assert all(r.peak > found.usable for r in found.rungs if r not in away)
    assert {r.setup.precision for r in away} == {"fp32"} and {"fp32", "fp16-mixed"} == set(found.precisions)
    best = found.best
    assert best in away and best.peak <= found.usable
    assert best.seconds == min(r.seconds for r in away if r.peak <= found.usable)
    predicted = eb.budget(XL, best.setup, ROUNDING)
    assert (best.peak, best.host) == (predicted.peak, sum(predicted.host.values()))
    assert best.host > 16 * XL.parameters - 1 and best.copied == best.work.copied > 0
    assert best.kinds == {"sharding", "accumulation", "optimizer_impl"} and "offload cpu" in best.text()
    shown = repr(found)
    assert units.text(best.host) in shown and "over the bus" in shown and "time without the host's own" in shown


def test_the_last_resort_is_looked_at_where_nothing_else_fits():
    for model, setup, card in (
        (GPT2, eb.Setup(batch=32, precision="bf16-mixed"), "rtx-3090"),
        (XL, eb.Setup(), "rtx-4090"),  # there fewer digits come first
        (XL, eb.Setup(batch=1, precision="fp16-mixed"), "t4"),  # loss scaling does not go with shares
    ):
        assert {r.setup.offload for r in plan(model, setup, card).rungs} == {"none"}
    assert plan(XL, eb.Setup(batch=1, precision="fp16-mixed"), "t4").best is None


@pytest.mark.thorough("three whole plans of GPT-2 XL")
def test_several_gpus_divide_before_they_offload():
    found = plan(XL, eb.Setup(gpus=4, buckets="views"), "v100-16gb")
    assert found.best.setup.sharding == "zero3" and {r.setup.offload for r in found.rungs} == {"none"}
    assert all(r.peak > found.usable for r in found.rungs if r.setup.sharding == "none")
    divided = plan(XL, eb.Setup(gpus=2, sharding="zero3"), "rtx-2080-ti")
    assert divided.best.setup.offload == "cpu" and divided.best.setup.gpus == 2
    assert divided.best.host == sum(eb.budget(XL, divided.best.setup).host.values())
    already = eb.Setup(sharding="zero3", offload="cpu")
    assert plan(GPT2, already, "t4").best.switches == {}


def test_the_command_says_what_the_host_holds(capsys):
    def said(*arguments):
        assert main(["fit", "gpt2-xl", "--gpu", "v100-16gb", "--plan", *arguments]) == 0
        return capsys.readouterr().out

    best = json.loads(said("--json"))["plan"]["best"]
    found = plan(XL, eb.Setup(), "v100-16gb").best
    assert best["switches"] == found.switches and best["switches"]["offload"] == "cpu"
    assert (best["host"], best["copied"], best["hosted"]) == (found.host, found.copied, found.work.hosted)
    table = said()
    assert "on the host" in table and units.text(found.host) in table and "in the host's memory" in table
    assert (
        main(["fit", "gpt2-xl", "--gpu", "rtx-4090", "--plan"]) == 0
    )  # the answer in another precision is shown as well
    assert "precision bf16, optimizer fused" in capsys.readouterr().out
