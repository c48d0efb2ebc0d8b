"""Runs on GPUs in any dimensions, as anybody may ask for them: predicted as they are counted, or refused by name."""

import re

import meshed
import pytest

NAMED = re.compile(r"(Setup|Mesh|budget)\.\w+: ")


@pytest.mark.sampled(2)
@pytest.mark.parametrize("start", range(0, 80, 8))
def test_any_run_is_priced_to_the_byte_or_refused_by_name(start):
    for seed in range(start, start + 8):
        why, wrong = meshed.outcome(seed)
        assert not wrong, meshed.meshed(seed)
        assert not why or NAMED.match(why)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("seed", [101, 192, 150, 52])
def test_matrices_and_experts_are_divided_together(seed):
    """Alone, beside rings, in a pipeline, and both."""
    mesh = meshed.meshed(seed)[1]["mesh"]
    assert mesh["tensor"] > 1 < mesh["expert"] and meshed.outcome(seed) == ("", [])


def test_every_dimension_is_drawn_and_most_of_them_together():
    drawn = [meshed.meshed(seed) for seed in range(300)]
    assert drawn[:20] == [meshed.meshed(seed) for seed in range(20)]
    cut = [{n for n in ("pipeline", "context", "tensor", "expert") if a["mesh"].get(n, 1) > 1} for _, a, _ in drawn]
    assert all(alone in cut for alone in (set(), {"pipeline"}, {"context"}, {"tensor"}, {"expert"}))
    assert {"pipeline", "context", "tensor"} in cut and {"pipeline", "context", "tensor", "expert"} in cut
    assert {"tensor", "expert"} in cut and {"context", "tensor", "expert"} in cut
    assert {a["mesh"]["tensor"] for _, a, _ in drawn} == {*range(1, 9)}
    assert {a["mesh"].get("schedule") for _, a, _ in drawn} >= {"gpipe", "1f1b", "interleaved-1f1b", "looped-bfs"}
    assert any(model.experts for model, _, _ in drawn) and {model.family for model, _, _ in drawn} == {"gpt", "llama"}
    assert all(0 <= rank < a["gpus"] for _, a, rank in drawn)
