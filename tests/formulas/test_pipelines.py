"""The closed forms of pipelines are what the orders give, and what PyTorch's own stages hold."""

from itertools import product

import pytest

import everybyte as eb
from everybyte.ask import schedules
from everybyte.ask.schedules import ONE_STAGE, TWO_STAGES
from everybyte.formulas import formula

SCHEDULES = ("gpipe", "1f1b", "looped-bfs", "interleaved-1f1b", "interleaved-zero-bubble", "zbv")
LLAMA = eb.Model(
    name="llama", layers=16, width=32, heads=4, kv_heads=2, vocabulary=101, positions=0, learned_positions=0, ffn_width=48,
    gated=True, fused=False, tied=False, norm="rmsnorm", qkv_bias=False, out_bias=False, ffn_bias=False,
)  # fmt: skip


def setups(schedule):
    several = (1,) if schedule in ONE_STAGE else (2,) if schedule in TWO_STAGES else (1, 2, 4)
    for places, stages, rounds in product((2, 4, 8), several, (1, 2, 3)):
        mesh = eb.Mesh(pipeline=places, schedule=schedule, stages=stages)
        if schedule != "zbv" or rounds > 1:  # it needs 2 p - 1 micro-batches to fill
            yield eb.Setup(batch=1, sequence=16, gpus=places, accumulation=rounds * places, mesh=mesh)


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_in_flight_is_what_the_orders_give(schedule):
    for setup in setups(schedule):
        for place in range(setup.gpus):
            live = most = 0
            for action in schedules.order(setup.mesh, setup.accumulation, place):
                live += {"F": 1, "I": 0}.get(action.kind, -1)
                most = max(most, live)
            assert formula("pipeline.in_flight").at(None, setup, place=place) == most


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_the_bubble_is_what_the_orders_give(schedule):
    for setup in setups(schedule):
        turns = [turn for gpu in schedules.timed(setup.mesh, setup.accumulation) for turn in gpu]
        busy = 3 * setup.accumulation * setup.mesh.stages
        idle = max(turn.end for turn in turns) - busy
        assert float(formula("pipeline.bubble").at(None, setup)) == pytest.approx(idle / busy)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("schedule", ["gpipe", "1f1b", "interleaved-1f1b", "looped-bfs"])
def test_what_stands_and_what_is_kept_are_the_dry_run_s(schedule):
    """Of GPUs in the middle, as their last forward ends: beside it the rotary tables of each, and what is being sent back."""
    stages = 1 if schedule in ONE_STAGE else 2
    mesh = eb.Mesh(pipeline=4, schedule=schedule, stages=stages)
    setup = eb.Setup(batch=2, sequence=16, gpus=4, accumulation=8, precision="bf16", checkpointing="full", mesh=mesh)
    for place in (1, 2):
        trace = eb.dry_run(LLAMA, setup, rank=place)
        assert trace.parts_at("rest")["communication"] == formula("pipeline.received").at(LLAMA, setup, place=place)
        flying = formula("pipeline.in_flight").at(None, setup, place=place)
        rotary = 2 * setup.sequence * LLAMA.head_width // 2 * 4 * flying
        sent = formula("pipeline.boundary").at(LLAMA, setup) * (schedule == "1f1b")
        kept = formula("pipeline.kept").at(LLAMA, setup, place=place)
        assert trace.parts_at("after_forward")["activations"] == kept + rotary + sent


def test_what_does_not_divide_is_refused():
    setup = eb.Setup(gpus=8, accumulation=8, mesh=eb.Mesh(pipeline=8))
    with pytest.raises(ValueError, match=r"8 stages do not divide the 12 blocks of gpt2"):
        formula("pipeline.kept").at(eb.model("gpt2"), setup, place=1)
    for schedule in ("dualpipev", "1f1b-v"):
        mesh = eb.Mesh(pipeline=2, schedule=schedule, stages=2)
        for name in ("in_flight", "kept", "received", "bubble"):
            with pytest.raises(ValueError, match=schedule):
                formula(f"pipeline.{name}").at(eb.model("gpt2"), setup.replace(gpus=2, mesh=mesh), place=1)
