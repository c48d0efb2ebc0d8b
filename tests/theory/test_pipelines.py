"""A deep pipeline is traced short: what is folded says the same as a trace of every micro-batch, operation by operation."""

from dataclasses import replace
from random import Random

import grid
import pytest

import everybyte as eb
from everybyte.budget import course_of, not_derived
from everybyte.theory import course, pipelines
from everybyte.theory.schedule import Loop, Repeat, flat

LLAMA = eb.model("llama-3.1-8b").replace(layers=160)


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
            part, first, last = pipelines.part_of(model, setup, rank)
            setup.check_rank("deep", part, rank, ("embeddings",) * (not first) + ("last",) * (not last))
        except ValueError:
            continue
        if not not_derived(model, setup):
            return model, setup, rank


def said(model, setup, rank):
    found = eb.budget(model, setup, rank=rank)
    return {
        "peak": (found.peak, found.peak_at, found.parts), "moments": found.moments, "phases": found.phases, "host": found.host,
        "operations": found.operations, "timeline": found.timeline(), "marks": found.marks,
        "flops": course_of(model, setup, rank).flops(course.letters(model, setup, rank=rank)),
    }  # fmt: skip


@pytest.mark.sampled(4)
@pytest.mark.parametrize("start", range(0, 240, 3))
def test_what_is_folded_is_what_is_traced_whole(start, monkeypatch):
    """And what was traced for a pipeline as deep as another: of courses none knows how deep it is."""
    for seed in range(start, start + 3):
        model, setup, rank = deep(seed)
        course._COURSES.clear()
        with monkeypatch.context() as patch:
            every = [Loop(2 * setup.accumulation, 1, -1)]
            patch.setattr(pipelines, "_some", lambda setup, place, every=every: (setup.mesh, setup.accumulation, every))
            whole = said(model, setup, rank)
        course._COURSES.clear()
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
    assert {setup.sharding for _, setup, _ in drawn} == {"none", "zero2", "zero3"}
    assert {setup.mesh.pipeline for _, setup, _ in drawn} == {2, 3, 5, 6, 7, 8, 11, 16}
    assert {"context", "tensor", "expert"} <= {name for _, setup, _ in drawn for name in setup.mesh.divided}
    assert {setup.loss for _, setup, _ in drawn} >= {"plain", "chunked"} and any(s.ddp for _, s, _ in drawn)
    assert len({setup.checkpointing for _, setup, _ in drawn}) >= 4
    assert any(rank and rank < setup.gpus - setup.gpus // setup.mesh.pipeline for _, setup, rank in drawn)


def test_a_deep_pipeline_is_traced_as_a_short_one():
    """Of 16 stages and 256 micro-batches four forwards before the first backward, four pairs, and four backwards after them."""
    of_16 = eb.Setup(
        gpus=64, batch=1, sequence=4096, accumulation=256, precision="bf16-mixed", sharding="zero2", mesh=eb.Mesh(pipeline=16)
    )  # fmt: skip
    short = of_16.replace(gpus=48, accumulation=200, mesh=eb.Mesh(pipeline=12))
    course._COURSES.clear()
    for rank, depth in ((0, 16), (4, 15), (60, 1)):
        found = course_of(LLAMA, of_16, rank)
        turns = {dict(operation.place)["batch"] for operation in flat(found.items) if operation.place}
        assert turns == set(range(4 + 2 * min(depth, 4)))
        values = course.letters(LLAMA, of_16, rank=rank)
        times = [found.times(i, values) for i in found.items if isinstance(i, Repeat) and i.loop == "batch"]
        assert times == ([depth - 3, 256 - depth - 3, depth - 3] if depth > 1 else [252, 252])
        assert course_of(LLAMA, short, 44 if depth == 1 else rank) is found
    assert len(course._COURSES) == 3
