"""Flows: a layer's tensors with adapters, and an offloaded step's streams in time."""

import doctest

import pytest

from everybyte.draw import flows


def test_examples():
    assert doctest.testmod(flows) == doctest.TestResults(0, 3)


def test_a_layer_draws_every_tensor_with_its_bytes():
    ways = flows.layer_tensors(64, 128, 32, 5_000, rank=4)
    alt = flows.layer(ways, "a layer").alt
    for way, boxes in ways.items():
        assert way in alt
        for box in boxes:
            assert f"{box.name} " in alt
    assert ways["QLoRA"][0].bytes == 5_000


def test_squares_are_to_scale():
    fig = flows.layer(flows.layer_tensors(64, 128, 32, 5_000, rank=4))
    sides = [patch.get_width() for patch in fig.axes[0].patches]
    weight, entered = sides[0] ** 2, sides[3] ** 2
    assert weight / entered == pytest.approx(64 * 128 / (64 * 32))


def test_nothing_to_draw_is_refused():
    with pytest.raises(ValueError, match="no way to train"):
        flows.layer({})
    with pytest.raises(ValueError, match="bytes; allowed: more than 0"):
        flows.layer({"none": [flows.Box("x", 0, "activations", flows.SAVED)]})
    with pytest.raises(ValueError, match="has no run"):
        flows.streams({})


def test_paths_names_all_panels():
    alt = flows.paths({"one": ("W", "x", "no copy"), "two": ("W in NF4", "x", "W in bf16")}).alt
    assert "2 panels" in alt and "two: W in NF4 / x / W in bf16" in alt


@pytest.mark.parametrize("forward", (0.1, 1.0, 5.0))
def test_no_stream_does_two_things_at_once_and_nothing_before_its_weights(forward):
    turns = flows.offloaded(6, 1.0, forward, 0.5, 2.0)
    for stream in flows.STREAMS:
        mine = [turn for turn in turns if turn.stream == stream]
        assert all(a.end <= b.start for a, b in zip(mine, mine[1:], strict=False))
    arrived = {turn.block: turn.end for turn in turns[:-1] if turn.kind == "weights" and turn.start < turns[-1].start}
    for turn in (t for t in turns if t.kind == "backward"):
        assert turn.start >= arrived[turn.block] or turn.block == 5
    down = [turn for turn in turns if turn.kind == "gradients"]
    assert len(down) == 6 and turns[-1].start == down[-1].end


def test_much_work_hides_the_bus_and_little_waits_for_it():
    slow, quick = (flows.offloaded(8, 1.0, forward, 1.0, 0.0) for forward in (0.01, 10.0))
    assert flows.waits(slow) > 14  # 15 fetches
    assert flows.waits(quick) == pytest.approx(2.0)  # the first fetch and the last gradient


def test_streams_says_how_long_the_gpu_waits():
    alt = flows.streams({"a batch": flows.offloaded(2, 1.0, 1.0, 1.0, 3.0)}, "two blocks").alt
    assert "11.00 s; the GPU waits 45% of it, of which 3.00 s for the host's update" in alt
