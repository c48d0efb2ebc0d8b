"""What a dry run says that PyTorch's allocator reserves, against the shipped rehearsals of the same steps."""

import pytest

import everybyte as eb
from everybyte.dryrun.requests import requests
from everybyte.rehearsal import shipped
from everybyte.theory import letters
from everybyte.theory.asking import asked, made
from everybyte.theory.budget import course_of

SHELF = shipped("h200")
CUBLAS = 2 * 33_554_432
#: Of a step's reserved bytes: what kernels take for themselves while they run, in blocks that a dry run knows nothing of.
SHARE = 0.01
STEPS = [
    {"precision": "bf16-mixed"},
    {},
    {"precision": "bf16-master"},
    {"precision": "bf16-mixed", "sharding": "zero3", "gpus": 8},
    # Autocast casts the last argument first: the other way round these are off by 5 and by 19 %.
    {"precision": "bf16-mixed", "attention": "eager", "checkpointing": "full"},
    {"precision": "fp16-mixed", "attention": "eager", "checkpointing": "every-k", "checkpoint_every": 3},
]


def rehearsed(changes):
    model, setup = eb.model("gpt2"), eb.Setup(**changes)
    found = SHELF.found.get((model, setup))
    return model, setup, found or pytest.fail(f"{changes} is not among the shipped rehearsals")


@pytest.mark.sampled(3)
@pytest.mark.parametrize("changes", STEPS, ids=str)
def test_reserved_is_the_rehearsals(changes):
    model, setup, found = rehearsed(changes)
    said = eb.dry_run(model, setup).on("h200")
    assert said.requested == found.requested  # to the byte, cuBLAS's workspaces among them
    assert abs(said.reserved - found.reserved) <= SHARE * found.reserved
    assert said.requested <= said.allocated <= said.reserved == max(said.steps)
    assert said.live[-1][0] < said.requested and not said.failed


def test_of_the_shelf_nearly_all_are_within_2_percent():
    """Every eleventh step of GPT-2's on the shelf; `tools/bench.py reserved` looks at all steps of all models."""
    sample = [r for r in SHELF.found.values() if r.model.name == "gpt2" and not r.oom][::11]
    off = [eb.dry_run(r.model, r.setup).on("h200").reserved / r.reserved - 1 for r in sample]
    assert len(sample) >= 20 and sum(abs(share) <= 0.02 for share in off) >= 0.95 * len(sample), off


@pytest.mark.sampled(3)
@pytest.mark.parametrize("changes", STEPS[:4], ids=str)
def test_a_budget_asks_for_the_same_bytes_and_finds_the_same_blocks(changes):
    model, setup, found = rehearsed(changes)
    said = eb.budget(model, setup).on("h200")
    assert said.requested == found.requested
    assert abs(said.reserved - found.reserved) <= SHARE * found.reserved


def test_a_budget_of_several_gpus_reserves_what_they_do():
    """FSDP, DDP and ZeRO: every fifth rehearsed step of the shelf; of all 54, one of prose alone is off, whose batches differ."""
    shared = [r for r in SHELF.found.values() if r.setup.distributed and not r.oom and r.model.name != "prose"][::5]
    off = [eb.budget(r.model, r.setup).on("h200").reserved / r.reserved - 1 for r in shared]
    assert len(shared) >= 10 and max(map(abs, off)) <= 0.005, off


def freed_after(asked):
    """After each tensor that a list of requests asks for: which of the earlier ones are given back before the next, by their number."""
    numbers, found = {}, [[]]
    for request in asked:
        if request.bytes:
            numbers.setdefault(request.key, []).append((len(found), request.bytes, request.stream > 0))
            found.append([])
        else:
            found[-1].append(numbers[request.key].pop(0) if numbers.get(request.key) else ("before",))
    return [sorted(map(str, gone)) for gone in found]


def sizes(asked):
    """What each request takes; of one that gives back, what it gives back, below 0."""
    taken = {}
    return [
        taken.setdefault(request.key, request.bytes) if request.bytes else -taken.pop(request.key, 0)
        for request in asked
    ]


FOLLOWED = [
    {"precision": "bf16-mixed"},
    {"precision": "bf16-mixed", "optimizer_impl": "fused", "checkpointing": "full"},
    {"precision": "bf16-master", "checkpointing": "selective", "attention": "eager"},
    {"precision": "bf16-mixed", "checkpointing": "every-k", "checkpoint_every": 2, "attention": "eager"},
    {"precision": "bf16-mixed", "accumulation": 3},
    {"loss": "chunked"},
    {"precision": "bf16-mixed", "sharding": "zero3", "gpus": 8},
    {"precision": "bf16-mixed", "sharding": "zero2", "gpus": 8, "replicas": 2},
    {"sharding": "zero1", "gpus": 8},
    {"precision": "bf16-mixed", "gpus": 2, "accumulation": 2},
    # Weights are whole and narrow before they are divided; eager makes its masks within the blocks.
    {"precision": "bf16", "sharding": "zero3", "gpus": 2},
    {"precision": "bf16-master", "sharding": "zero1", "gpus": 2},
    {"precision": "bf16-master", "sharding": "zero2", "gpus": 2, "attention": "eager"},
    {"precision": "bf16", "attention": "eager", "accumulation": 3},
]


@pytest.mark.sampled(4)
@pytest.mark.parametrize("changes", FOLLOWED, ids=str)
def test_a_formula_follows_each_tensor_as_a_dry_run_does(changes):
    model, setup = eb.model("gpt2").replace(layers=6), eb.Setup(batch=2, sequence=128, **changes)
    seen = requests(eb.dry_run(model, setup), CUBLAS // 2)
    said = asked(course_of(model, setup), letters(model, setup), CUBLAS // 2, made(model, setup)).shaped.requests
    assert freed_after(said.steady) == freed_after(seen.steady)
    begun = sizes(said.beginning)
    assert sizes(seen.beginning)[: len(begun)] == begun  # with several GPUs a first step was run
    if setup.gpus == 1:
        assert len(said.beginning) == len(seen.beginning) and freed_after(said.first) == freed_after(seen.first)


@pytest.fixture(scope="module")
def trace():
    return eb.dry_run(eb.model("gpt2"), eb.Setup(precision="bf16-mixed"))


def test_segments_that_grow_reserve_less_and_leave_nothing_unsplit(trace):
    plain, growing = trace.on("h200"), trace.on("h200", "expandable_segments:True")
    assert growing.unsplit == 0 < plain.unsplit and growing.reserved < plain.reserved
    assert growing.allocated == 8_686_671_872  # as rehearsed, by the allocator's own count
    assert plain.requested == growing.requested == trace.peak + CUBLAS
    assert trace.on("a100-80gb").requested == trace.peak + 2 * 8_519_680
    assert trace.reserved == plain.reserved
    assert "Simulated" in repr(plain.table()) and "1.40 GiB" in repr(plain.table())


def test_fragmentation_ends_a_job_that_would_fit_and_three_settings_save_it(trace):
    """9,000 MiB, for 8,283 MiB of requests."""
    memory = 9_000 * 2**20
    dead = trace.on("h200", memory=memory).failed
    assert dead and dead.allocated + dead.segment < memory and dead.reserved - dead.allocated > 2**30
    for cure in ("expandable_segments:True", "max_split_size_mb:128", "max_split_size_mb:256"):
        saved = trace.on("h200", cure, memory=memory)
        assert not saved.failed and saved.reserved <= memory
    assert trace.on("h200", "expandable_segments:True", memory=8_000 * 2**20).failed


def test_the_first_step_reserves_less_than_the_steady_ones(trace):
    """The optimizer's states are made at its end."""
    steps = trace.on("h200").steps
    assert steps[1] < steps[2] == steps[3]


def test_a_module_of_ones_own_has_them_too():
    import torch
    from torch import nn

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = nn.Sequential(nn.Linear(512, 2048), nn.GELU(), nn.Linear(2048, 512))

        def forward(self, x):
            return self.net(x).square().mean()

    trace = eb.dry_run(Net, eb.Setup(), batch={"x": ((64, 512), torch.float32)})
    said = trace.on("h200")
    assert said.requested == trace.peak + CUBLAS and said.reserved >= said.allocated


def standing_at_workspaces(asked):
    """Bytes that live when cuBLAS's workspaces are asked for: forward's, and backward's."""
    live, sizes, found = 0, {}, {}
    for request in (*asked.beginning, *asked.first):
        if request.key < 0 and request.bytes:
            found[request.key] = live
        live += request.bytes - (sizes.pop(request.key, 0) if not request.bytes else 0)
        sizes[request.key] = request.bytes
    return found


@pytest.mark.parametrize("name", ["gpt2", "llama-3.2-1b", "gemma-2b", "mixtral-8x7b"])
@pytest.mark.parametrize("changes", [{"precision": "bf16-mixed"}, {"attention": "eager"}, {"loss": "chunked"}], ids=str)
def test_cublas_s_workspaces_come_with_the_same_products(name, changes):
    """After the first product of each thread: a norm's rows and the attention's heads are none."""
    setup = eb.Setup(batch=1, sequence=128, **changes)
    model = eb.model(name, code="reference").replace(layers=2)
    if name == "mixtral-8x7b":
        model = model.replace(width=256, ffn_width=512)
    traced = requests(eb.dry_run(model, setup), CUBLAS // 2)
    predicted = asked(course_of(model, setup), letters(model, setup), CUBLAS // 2).shaped.requests
    found = standing_at_workspaces(predicted)
    assert found == standing_at_workspaces(traced) and len(found) == 2


@pytest.mark.parametrize(
    "changes",
    [{"precision": "fp32"}, {"precision": "bf16"}, {"precision": "bf16", "gpus": 4, "sharding": "zero3"}],
    ids=str,
)
def test_by_default_weights_begin_as_in_the_steps_own_code(changes):
    """transformers' come as they stay, in bf16 and in shares, for formula, dry run and `fit`; the book's are first made whole, in fp32."""
    sizes = {
        "layers": 4,
        "width": 512,
        "embedding_width": 512,
        "heads": 8,
        "kv_heads": 4,
        "head_width": 64,
        "ffn_width": 1408,
        "vocabulary": 8000,
    }
    setup = eb.Setup(batch=2, sequence=128, **changes)
    for code, whole in (("transformers", False), ("reference", True)):
        model = eb.model("llama-3.2-1b", code=code).replace(**sizes)
        budget, trace = eb.budget(model, setup), eb.dry_run(model, setup)
        for step in (budget, trace):
            usual, said = (step.on("h200", whole=given) for given in (None, whole))
            assert (usual.reserved, usual.live) == (said.reserved, said.live)
        assert whole or budget.on("h200").reserved == trace.on("h200").reserved
    with pytest.raises(ValueError, match="^Model.code: 'transformers' with whole=True: .* allowed: 'reference'"):
        eb.budget(eb.model("llama-3.2-1b").replace(**sizes), setup).on("h200", whole=True)


@pytest.mark.parametrize("loop", ["torchtitan", "nanogpt"])
def test_what_a_step_leaves_is_freed_by_the_next(loop):
    """Gradients or outputs that stand between steps: the sixth step reserves what the third does, as the dry run's."""
    model = eb.model("gpt2").replace(layers=3, vocabulary=5000, name="small")
    setup = eb.Setup(batch=4, sequence=700, precision="bf16", loop=loop)
    said, seen = (witness(model, setup).on("h200", steps=6, whole=False) for witness in (eb.budget, eb.dry_run))
    assert said.steps[3:] == seen.steps[3:] and len(set(said.steps[3:])) == 1
    assert said.live[-1] == seen.live[-1]
