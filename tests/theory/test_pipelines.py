"""A deep pipeline is traced short: what is folded says the same as a trace of every micro-batch, operation by operation."""

from dataclasses import replace
from random import Random

import grid
import pytest

import everybyte as eb
from everybyte.step.course import Repeat, flat
from everybyte.theory import letters, pipelines, structure
from everybyte.theory.budget import course_of, not_derived
from everybyte.theory.schedule import Loop

LLAMA = eb.model("llama-3.1-8b", code="reference").replace(layers=160)


def deep(seed):
    """One GPU of a pipeline of 2 to 16 with 1F1B or GPipe, beside all that `grid.piped` and `grid.staged` draw: always the same for one seed."""
    draw = Random(16 * 10**6 + seed).choice
    while True:  # what does not go together is drawn again
        model, setup, _ = draw([grid.piped, grid.staged])(draw(range(10**6)))
        places, fsdp = draw([2, 3, 5, 6, 7, 8, 11, 16]), setup.sharding != "none"
        mesh = replace(setup.mesh, pipeline=places, schedule=draw(["1f1b", "1f1b", "gpipe"]), stages=1)
        try:
            data = max(setup.data, 1 + fsdp)
            setup = setup.replace(
                mesh=mesh, gpus=mesh.size * data, accumulation=places + draw([0, 0, 1, 2, 3, 4, 5, 6, 9])
            )
            model = model.replace(layers=draw(range(places, 3 * places + 4)))
            setup.check_model(model)
            rank = draw(range(places)) * (setup.gpus // places) + draw(range(mesh.context)) * mesh.tensor
            part, without = pipelines.part_of(model, setup, rank)
            setup.check_rank("deep", part, rank, without)
        except ValueError:
            continue
        if not not_derived(model, setup):
            return model, setup, rank


def said(model, setup, rank):
    found = eb.budget(model, setup, rank=rank)
    return {
        "peak": (found.peak, found.peak_at, found.parts), "moments": found.moments, "phases": found.phases, "host": found.host,
        "operations": found.operations, "timeline": found.timeline(), "marks": found.marks,
        "flops": course_of(model, setup, rank).at(letters(model, setup, rank=rank)).flops(),
    }  # fmt: skip


@pytest.mark.sampled(4)
@pytest.mark.parametrize("start", range(0, 240, 3))
def test_what_is_folded_is_what_is_traced_whole(start, monkeypatch):
    """And what was traced for a pipeline as deep as another: of courses none knows how deep it is."""
    for seed in range(start, start + 3):
        model, setup, rank = deep(seed)
        structure._COURSES.clear()
        with monkeypatch.context() as patch:
            every = [Loop(2 * setup.accumulation, 1, -1)]
            patch.setattr(pipelines, "_some", lambda setup, place, every=every: (setup.mesh, setup.accumulation, every))
            whole = said(model, setup, rank)
        structure._COURSES.clear()
        more = Random(seed).choice([0, 1, 3])
        other = setup.replace(
            mesh=replace(setup.mesh, pipeline=setup.mesh.pipeline + more),
            gpus=setup.gpus // setup.mesh.pipeline * (setup.mesh.pipeline + more), accumulation=setup.accumulation + more,
        )  # fmt: skip
        eb.budget(model.replace(layers=model.layers + 3 * more), other, rank=rank)
        found = said(model, setup, rank)
        assert {name for name in whole if whole[name] != found[name]} == set(), (model, setup, rank)


def test_what_is_drawn_is_all_that_goes_beside_a_pipeline():
    drawn = [deep(seed) for seed in range(240)]
    assert {setup.sharding for _, setup, _ in drawn} == {"none", "zero1", "zero2", "zero3"}
    assert {setup.no_sync for _, setup, _ in drawn if setup.fsdp} == {True, False}
    assert {setup.mesh.pipeline for _, setup, _ in drawn} == {2, 3, 5, 6, 7, 8, 11, 16}
    assert {"context", "tensor", "expert"} <= {name for _, setup, _ in drawn for name in setup.mesh.divided}
    assert {setup.loss for _, setup, _ in drawn} >= {"plain", "chunked"} and any(s.ddp for _, s, _ in drawn)
    assert len({setup.checkpointing for _, setup, _ in drawn}) >= 4
    assert any(rank and rank < setup.gpus - setup.gpus // setup.mesh.pipeline for _, setup, rank in drawn)


def test_a_deep_pipeline_is_traced_as_a_short_one():
    """Of 16 stages and 256 micro-batches three forwards before the first backward, two pairs, and three backwards after them."""
    of_16 = eb.Setup(
        gpus=64, batch=1, sequence=4096, accumulation=256, precision="bf16-mixed", sharding="zero2", mesh=eb.Mesh(pipeline=16)
    )  # fmt: skip
    short = of_16.replace(gpus=48, accumulation=200, mesh=eb.Mesh(pipeline=12))
    structure._COURSES.clear()
    for rank, depth in ((0, 16), (4, 15), (60, 1)):
        found = course_of(LLAMA, of_16, rank)
        turns = {dict(operation.place)["batch"] for operation in flat(found.items) if operation.place}
        assert turns == set(range(2 + 2 * min(depth, 3)))
        amounts = found.at(letters(LLAMA, of_16, rank=rank)).amounts
        times = [amounts.times(i) for i in found.items if isinstance(i, Repeat) and i.loop == "batch"]
        # The last stage adds up the micro-batches' losses besides.
        assert times == ([depth - 2, 256 - depth - 1, depth - 2] if depth > 1 else [254, 254])
        assert course_of(LLAMA, short, 44 if depth == 1 else rank) is found
    assert len(structure._COURSES) == 3


GPT = eb.Model(name="gpt", layers=5, width=64, heads=8, vocabulary=104, positions=64)
DENSE = GPT.replace(
    name="llama", heads=16, head_width=4, kv_heads=8, positions=0, learned_positions=0, ffn_width=48, gated=True, fused=False, tied=False,
    norm="rmsnorm", qkv_bias=False, out_bias=False, ffn_bias=False,
)  # fmt: skip
MIXTURE = DENSE.replace(name="mixture", experts=16, experts_per_token=2, expert_width=24)


def cut(seed):
    """Two runs that differ in how many GPUs divide matrices or experts, and one GPU of both: always the same for one seed."""
    draw = Random(17 * 10**6 + seed).choice
    while True:  # what does not go together is drawn again
        dimension, context, places = draw(["tensor", "expert"]), draw([1, 1, 2]), draw([1, 2, 4])
        model = draw([GPT, DENSE, MIXTURE]) if dimension == "tensor" else MIXTURE
        sharding, found = draw(["none", "zero2", "zero3"]), []
        changes = {
            "precision": draw(["fp32", "bf16", "bf16-mixed"]), "checkpointing": draw(["none", "full", "every-k"]), "sharding": sharding,
            "accumulation": 5, "batch": draw([1, 2]), "optimizer": draw(["adamw", "sgd"]),
        }  # fmt: skip
        beside = {"sequence_parallel": draw([True, False]), "loss_parallel": draw([True, False])}
        beside |= {"expert": draw([1, 2])} if model is MIXTURE else {}
        try:
            for parts in (2, 4):
                mesh = eb.Mesh(
                    pipeline=places, context=context, **{dimension: parts}, **beside if dimension == "tensor" else {}
                )
                data = 1 if mesh.expert == 1 and sharding == "none" else 8 // context
                setup = eb.Setup(sequence=32, gpus=mesh.size * data, mesh=mesh).replace(**changes)
                setup.check_model(model)
                place = places - 1 if seed % 2 else 0
                found.append((model, setup, place * (setup.gpus // places)))
                if not_derived(model, setup):
                    raise ValueError
        except ValueError:
            continue
        return found


@pytest.mark.sampled(8)
@pytest.mark.parametrize("seed", range(80))
def test_a_course_knows_no_number_of_gpus_that_divide_matrices_or_experts(seed):
    for one, other in (cut(seed), cut(seed)[::-1]):
        structure._COURSES.clear()
        expected = said(*other)
        structure._COURSES.clear()
        shared = course_of(*one)
        assert course_of(*other) is shared
        found = said(*other)
        assert {name for name in expected if expected[name] != found[name]} == set(), other
