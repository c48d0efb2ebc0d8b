"""A pipeline: prediction and dry run say the same of every rank, and real processes train as one would."""

from itertools import groupby
from pathlib import Path

import grid
import pytest
import witnesses
from processes import loaded, together

import everybyte as eb
from everybyte.ask import schedules
from everybyte.reference.mesh.pipeline import SCHEDULES
from everybyte.theory.budget import not_derived

SCRIPT = Path(__file__).with_name("pipes.py")
pipes = loaded(SCRIPT)

GPT = eb.Model(name="deep", layers=10, width=64, heads=2, vocabulary=101, positions=33)
LLAMA = pipes.LLAMA.replace(layers=9)
PREDICTED = [name for name, row in schedules.SCHEDULES.items() if row.predicted]


def pipeline(schedule, places=4, batches=8, **changes):
    stages = 1 if schedule in schedules.ONE_STAGE else 2
    mesh = eb.Mesh(pipeline=places, schedule=schedule, stages=stages)
    return eb.Setup(batch=2, sequence=16, gpus=places, accumulation=batches, mesh=mesh).replace(**changes)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("seed", range(220))
def test_prediction_and_dry_run_say_the_same_of_any_rank(seed):
    model, setup, rank = grid.piped(seed)
    if why := not_derived(model, setup):
        pytest.skip(why)
    assert witnesses.disagreements(model, setup, rank=rank) == []


@pytest.mark.parametrize("positions", [33, 4000])
def test_a_stage_that_fsdp_takes_whole_sends_its_gradients_in_the_models_order(positions):
    """The last of them still has its name while their sum comes: a block's small bias, and not the large table of positions."""
    setup = pipeline("1f1b", 2, gpus=4, sharding="zero2", sharding_units="model", precision="bf16-mixed")
    model = GPT.replace(positions=positions, learned_positions=positions, layers=4)
    assert not witnesses.disagreements(model, setup)
    assert witnesses.first_difference(model, setup) is None


def test_what_is_gathered_for_the_next_stages_forward_is_no_backwards():
    """Of two stages on a GPU all forwards of one come before those of the other, whose weights FSDP gathers in between."""
    setup = pipeline("looped-bfs", 2, gpus=4, sharding="zero3", sharding_units="model")
    phases = [phase for phase, _ in groupby(phase for _, phase, _ in eb.dry_run(LLAMA, setup).operations)]
    assert phases == ["rest", "forward", "backward", "optimizer step", "rest"]


@pytest.mark.sampled(4)
@pytest.mark.parametrize("model", [GPT, LLAMA], ids=["gpt", "llama"])
@pytest.mark.parametrize("schedule", PREDICTED)
def test_every_place_says_the_same_operation_by_operation(model, schedule):
    """Ten blocks on four GPUs: of 2, 3, 3 and 2, or of two stages each."""
    for rank in (0, 3):
        assert witnesses.first_difference(model, pipeline(schedule, batches=4), rank=rank) is None


@pytest.mark.sampled(1)
@pytest.mark.parametrize("model", [GPT, LLAMA], ids=["gpt", "llama"])
@pytest.mark.parametrize("schedule", PREDICTED)
@pytest.mark.parametrize("sharding", ["none", "zero2", "zero3"])
def test_stages_of_divided_matrices_say_the_same(model, schedule, sharding):
    """Pipeline 2, tensor 2, and with FSDP data 2 besides: the first and the last stage."""
    model, fsdp = model.replace(vocabulary=102, positions=model.positions and 32, tied=False), sharding != "none"
    model = model.replace(learned_positions=model.positions)
    mesh = eb.Mesh(pipeline=2, tensor=2, schedule=schedule, stages=1 if schedule in schedules.ONE_STAGE else 2)
    setup = eb.Setup(batch=2, sequence=16, gpus=8 if fsdp else 4, accumulation=4, sharding=sharding, mesh=mesh)
    setup = setup.replace(precision="bf16-mixed" if fsdp else "bf16")
    for rank in (0, setup.gpus - setup.data * 2):
        assert witnesses.disagreements(model, setup, rank=rank) == []


MIXTURE = LLAMA.replace(experts=4, experts_per_token=2, expert_width=24)
WIDER = MIXTURE.replace(expert_width=32)
#: What is beside a pipeline of two: model, mesh, GPUs of data, and other switches.
BESIDE = {
    "a ring": (GPT, {"context": 2}, 1, {"precision": "bf16"}),
    "rings, FSDP": (LLAMA, {"context": 2, "rotation": "all-to-all"}, 2, {"sharding": "zero3", "precision": "bf16-mixed"}),
    "rings of divided matrices": (LLAMA, {"context": 2, "tensor": 2}, 1, {"sharding": "zero2", "precision": "bf16-mixed"}),
    "experts": (MIXTURE, {"expert": 2}, 4, {"precision": "bf16"}),
    "experts, FSDP": (MIXTURE, {"expert": 2, "routing": 1.25}, 4, {"sharding": "zero3", "precision": "bf16-mixed"}),
    "experts of rings, FSDP": (MIXTURE, {"context": 2, "expert": 4}, 2, {"sharding": "zero2", "precision": "bf16-mixed"}),
    "halved experts": (WIDER, {"expert": 2, "tensor": 2}, 4, {"sharding": "zero3", "precision": "bf16-mixed"}),
    "halved experts of rings": (WIDER, {"context": 2, "expert": 4, "tensor": 2}, 2, {"sharding": "zero2", "precision": "bf16-mixed"}),
    "offloaded": (LLAMA, {}, 2, {"sharding": "zero3", "offload": "cpu", "precision": "bf16-mixed"}),
    "averaged": (GPT, {}, 2, {}),
    "divided states": (GPT, {}, 3, {"sharding": "zero1", "precision": "bf16-master"}),
    "divided states of rings": (LLAMA, {"context": 2}, 2, {"sharding": "zero1", "precision": "bf16", "loss": "chunked"}),
    "synced once": (LLAMA, {"tensor": 2}, 2, {"sharding": "zero2", "no_sync": True, "checkpointing": "operations"}),
    "averaged in views": (LLAMA, {}, 3, {"buckets": "views", "precision": "bf16-master"}),
}  # fmt: skip


@pytest.mark.sampled(2)
@pytest.mark.parametrize("beside", BESIDE)
@pytest.mark.parametrize("schedule", PREDICTED)
def test_a_pipeline_beside_another_dimension_says_the_same_operation_by_operation(schedule, beside):
    """The first and the last stage, and where GPUs of a stage differ, another of them."""
    model, mesh, data, changes = BESIDE[beside]
    mesh = eb.Mesh(pipeline=2, schedule=schedule, stages=1 if schedule in schedules.ONE_STAGE else 2, **mesh)
    model = model.replace(layers=5, vocabulary=104, tied=False)
    setup = eb.Setup(batch=2, sequence=16, gpus=data * mesh.size, accumulation=4, mesh=mesh).replace(**changes)
    for rank in (0, setup.gpus // 2 + (mesh.context > 1) * mesh.tensor):
        if setup.offload == "none":  # operations on the host take nothing of the GPU's
            assert witnesses.first_difference(model, setup, rank=rank) is None
        assert witnesses.disagreements(model, setup, rank=rank) == []


@pytest.mark.parametrize("seed", [92, 1753])
def test_a_stage_that_begins_with_a_norm_updates_vectors_before_matrices(seed):
    """Adafactor's groups come in the order of their first weights."""
    model, setup, rank = grid.staged(seed)
    assert setup.optimizer == "adafactor" and setup.optimizer_impl == "foreach" and rank >= setup.gpus // 2
    assert witnesses.disagreements(model, setup, rank=rank) == []


@pytest.mark.sampled(2)
@pytest.mark.parametrize("seed", range(200))
def test_any_pipeline_beside_other_dimensions_to_the_byte(seed):
    model, setup, rank = grid.staged(seed)
    assert witnesses.disagreements(model, setup, rank=rank) == []


def test_ddp_has_buckets_of_each_stages_own():
    """Closed in the order in which the stage's gradients come, the first at 1 MiB, the others at 25 MiB."""
    model = GPT.replace(layers=4, width=512, heads=8, vocabulary=20000)
    setup = eb.Setup(batch=1, sequence=16, gpus=4, accumulation=2, mesh=eb.Mesh(pipeline=2))
    table, each = 4 * 20000 * 512, 2 * (12 * 512 + 13) * 512 * 4  # bytes of the head, and of two blocks
    for rank, own in ((0, each + table + 4 * 33 * 512), (2, each + table + 2 * 4 * 512)):
        trace = eb.dry_run(model, setup, rank=rank)
        sizes = [a.bytes for a in trace.allocations if a.owner == "buckets" and a.death is None]
        assert sum(sizes) == own and len(sizes) > 1 and trace.parts_at("rest")["communication"] >= own
        assert eb.budget(model, setup, rank=rank).parts_at("rest") == {
            part: size for part, size in trace.parts_at("rest").items() if part != "workspace"
        }


@pytest.mark.sampled(1)
@pytest.mark.parametrize("schedule", ["1f1b", "interleaved-1f1b", "gpipe"])
def test_many_micro_batches_are_counted_as_they_run(schedule):
    """A few of them are traced: the others are like them."""
    model, setup = GPT.replace(layers=4), pipeline(schedule, 2, 14, sharding="zero3", gpus=4)
    for rank in (0, 2):
        assert witnesses.disagreements(model.replace(vocabulary=100), setup, rank=rank) == []


def test_1f1b_on_a_v_keeps_as_much_on_every_gpu():
    """PyTorch's runtime runs its order, and what forward keeps is even; 1F1B's first GPU keeps more than twice its third."""
    model = GPT.replace(layers=16)
    kept = {
        s: [eb.dry_run(model, pipeline(s, batches=16), rank=rank).parts["activations"] for rank in range(3)]
        for s in ("1f1b", "1f1b-v")
    }
    assert max(kept["1f1b-v"]) < 0.8 * max(kept["1f1b"]) and max(kept["1f1b-v"]) < 1.25 * min(kept["1f1b-v"])
    assert max(kept["1f1b"]) > 1.9 * min(kept["1f1b"])


def test_what_a_gpu_hands_on_to_itself_stands_until_the_next_step_hands_on():
    """The last GPU of a V receives into no buffers of its own: what it gave in the step before takes their place."""
    setup, each = pipeline("1f1b-v", batches=5), 2 * 16 * 64 * 4
    for rank, sent, handed in ((0, 10, 0), (2, 20, 0), (3, 10, 10)):
        rest = eb.budget(GPT, setup, rank=rank).moments["rest"]
        half = handed // 2 * each  # activations one way, their gradients the other
        assert (rest["communication"], rest["activations"], rest["transient"]) == (sent * each, half, half)


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_what_a_gpu_has_of_the_model(schedule):
    """All of it is somewhere, once: but for a tied weight, of which both ends have a copy unless they are on one GPU."""
    setup, names = pipeline(schedule, batches=8 if schedule == "dualpipev" else 4), []
    for rank in range(4):
        trace = eb.dry_run(GPT, setup, rank=rank)
        assert trace.rank == rank
        names += [a.owner for a in trace.allocations if a.part == "parameters"]
    whole = eb.dry_run(GPT, setup.replace(gpus=1, accumulation=1, mesh=eb.Mesh()))
    expected = [a.owner for a in whole.allocations if a.part == "parameters"]
    twice = [] if schedule in schedules.TWO_STAGES else ["head.weight"]
    assert sorted(names) == sorted(expected + twice)


def test_receive_buffers_stand_for_good():
    """One a micro-batch and direction: m at either end, 2 m between, whatever is in flight."""
    setup, each = pipeline("1f1b", batches=5), 2 * 16 * 64 * 4
    for rank, number in enumerate((5, 10, 10, 5)):
        assert eb.dry_run(GPT, setup, rank=rank).parts_at("rest")["communication"] == number * each


def test_gradients_of_inputs_outlive_a_divided_backward():
    """PyTorch leaves them in `.grad` of the buffers until the next step begins: one a micro-batch of each stage but the first."""
    setup, each = pipeline("interleaved-zero-bubble", batches=4), 2 * 16 * 64 * 4
    for rank, number in enumerate((4, 8, 8, 8)):
        assert eb.dry_run(GPT, setup, rank=rank).parts_at("rest")["transient"] == number * each


# Real processes.


@pytest.fixture(scope="module")
def seen(request):
    """What each process of a pipeline saw, by how many there were: of the runs that a test asks for."""
    here = [item.callspec for item in request.session.items if item.path == request.path and hasattr(item, "callspec")]
    asked = {(case.params["world"], case.params["name"]) for case in here if "world" in case.params}
    worlds = sorted({world for world, _ in asked})
    return {world: together(SCRIPT, world, *sorted(name for size, name in asked if size == world)) for world in worlds}


CASES = [(world, name) for world in (2, 4) for name in pipes.runs(world) if name not in pipes.OTHERS]


@pytest.mark.sampled(3)
@pytest.mark.parametrize(("world", "name"), [(4, name) for name in pipes.OTHERS])
def test_a_pipeline_beside_a_ring_experts_or_averaged_trains_as_one_process(seen, world, name):
    test_a_pipeline_trains_as_one_process(seen, world, name)


@pytest.mark.thorough("eight processes")
@pytest.mark.parametrize(("world", "name"), [(8, name) for name in pipes.HALVED])
def test_a_pipeline_beside_halved_experts_trains_as_one_process(seen, world, name):
    test_a_pipeline_trains_as_one_process(seen, world, name)


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("world", "name"), CASES)
def test_a_pipeline_trains_as_one_process(seen, world, name):
    expected = pipes.alone(*pipes.runs(world)[name])
    losses = [rank[name][0] for rank in seen[world] if rank[name][0][0] is not None]
    setup = pipes.runs(world)[name][1]
    many = setup.sharers * setup.mesh.tensor
    assert len(losses) == many  # whoever has the last stage knows the loss of its own tokens
    assert [sum(of) / many for of in zip(*losses, strict=True)] == pytest.approx(expected, rel=1e-5)
    assert len(set(expected)) == pipes.STEPS


@pytest.mark.parametrize(("world", "name"), [(2, "1f1b"), (2, "gpipe")])
def test_each_process_holds_what_the_dry_run_counts(seen, world, name):
    """To the byte, on a CPU: of schedules that wait for what they send, since Gloo holds it until then.

    Under 1F1B the first GPU's first send has a name until backwards are sent, which that GPU sends none of; Gloo's handle, unlike
    NCCL's, holds what it has sent.
    """
    model, setup = pipes.runs(world)[name]
    first_sent = 4 * setup.batch * setup.sequence * model.width if name == "1f1b" else 0
    for rank in range(world):
        trace, (_, count) = eb.dry_run(model, setup, rank=rank), seen[world][rank][name]
        expected = {at: trace.phases[at] for at in ("rest", "after_forward", "after_backward", "after_step")}
        expected["peak"] = trace.peak
        for at in ("after_forward", "peak") if rank == 0 else ():
            expected[at] += first_sent
        assert count == expected
