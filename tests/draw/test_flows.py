"""Flows: a layer's tensors with adapters, and an offloaded step's streams in time."""

import doctest

import pytest

import everybyte as eb
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
    fetched = [turn for turn in turns if turn.kind == "weights"]
    used = [turn for turn in turns if turn.kind in ("forward", "backward")]
    for before, after in zip(fetched, used, strict=True):  # in one order, each for the work that follows it
        assert (before.block, before.end <= after.start) == (after.block, True)
    down = [turn for turn in turns if turn.kind == "gradients"]
    assert len(down) == 6 and turns[-1].start == down[-1].end


@pytest.mark.parametrize("layers", (2, 5))
def test_as_many_blocks_are_fetched_as_the_dry_run_and_the_formula_count(layers):
    model = eb.model("llama-3.2-1b", code="reference").replace(
        layers=layers, width=64, heads=4, kv_heads=2, head_width=16, ffn_width=160, vocabulary=512
    )
    setup = eb.Setup(
        precision="bf16-mixed", batch=1, sequence=16, checkpointing="full", sharding="zero3", offload="cpu"
    )
    longer = eb.formula("fsdp.to_gpu").at(model.replace(layers=layers + 1), setup)
    moved = eb.formula("fsdp.to_gpu").at(model, setup)
    block, fetches = 4 * (model.replace(layers=layers + 1).parameters - model.parameters), 2 * layers
    root = 4 * model.parameters - layers * block
    assert (moved - root, longer - moved) == (fetches * block, 2 * block)
    went_up = [a for a in eb.dry_run(model, setup).allocations if a.operation == "clone" and a.part == "communication"]
    assert sum(a.bytes for a in went_up if not a.host) == moved
    turns = flows.offloaded(layers, 1.0, 1.0, 1.0, 3.0)
    assert sum(turn.kind == "weights" for turn in turns) == fetches


def test_the_last_block_comes_again_after_its_own_forward():
    turns = [t for t in flows.offloaded(3, 1.0, 5.0, 1.0, 0.0) if t.block == 2 and t.kind != "gradients"]
    assert [turn.kind for turn in turns] == ["weights", "forward", "weights", "backward"]
    assert all(a.end <= b.start for a, b in zip(turns, turns[1:], strict=False))


def test_much_work_hides_the_bus_and_little_waits_for_it():
    slow, quick = (flows.offloaded(8, 1.0, forward, 1.0, 0.0) for forward in (0.01, 10.0))
    assert flows.waits(slow) > 15  # 16 fetches
    assert flows.waits(quick) == pytest.approx(3.0)  # the first fetch, the last block's again, the last gradient


def test_streams_says_how_long_the_gpu_waits():
    alt = flows.streams({"a batch": flows.offloaded(2, 1.0, 1.0, 1.0, 3.0)}, "two blocks").alt
    assert "12.00 s; the GPU waits 50% of it, of which 3.00 s for the host's update" in alt
