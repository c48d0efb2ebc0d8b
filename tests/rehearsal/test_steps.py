"""The book's own step on stubs: requested is what the dry run counts, and cuBLAS's workspaces."""

import pytest

import everybyte as eb
from everybyte.lab import Configuration
from everybyte.rehearsal import read, recheck, rehearse, rehearse_grid, steps

SMALL = eb.Model(name="small", layers=2, width=64, heads=2, vocabulary=1001, positions=64)
SETUP = eb.Setup(batch=2, sequence=64, precision="bf16-mixed")
HOPPER, OTHERS = 2 * 33_554_432, 2 * 8_519_680


@pytest.fixture(scope="module")
def plain(here):
    return rehearse(SMALL, SETUP, "h200")


def test_what_is_asked_for_is_counted_to_the_byte(plain):
    counted = eb.dry_run(SMALL, SETUP)
    assert plain.workspace == HOPPER and plain.requested == counted.peak + HOPPER
    assert {name: size - HOPPER for name, size in plain.phases.items()} == counted.phases
    assert plain.peak_at == counted.peak_at and plain.attention_kernel == "flash"
    assert plain.requested <= plain.allocated <= plain.reserved and plain.segments > 0
    assert eb.compare(eb.budget(SMALL, SETUP), counted, plain).differences["peak"] == HOPPER


def test_segments_that_grow_have_no_block_that_is_not_split(here):
    found = rehearse(SMALL, SETUP, "h200", expandable=True)
    assert found.allocated == eb.dry_run(SMALL, SETUP, rounding=512).peak + HOPPER


def test_a_100_has_smaller_workspaces_and_a_t4_no_flash_kernel(here):
    assert rehearse(SMALL, SETUP, "a100-80gb").workspace == OTHERS
    turing = rehearse(SMALL, SETUP.replace(precision="fp16-mixed"), "t4")
    assert turing.attention_kernel == "memory-efficient" and turing.workspace == OTHERS
    assert rehearse(SMALL, SETUP, "t4").attention_kernel == "math"


def test_rank_0_of_many_in_a_fresh_process_has_no_weights_too_many(here):
    """The first `fully_shard` of a process imports what keeps a block's whole weights, unless what nothing uses is collected."""
    setup = SETUP.replace(gpus=4, sharding="zero3")
    found = rehearse(SMALL, setup)
    assert found.requested - HOPPER == eb.dry_run(SMALL, setup).peak
    assert found.phases["rest"] - HOPPER == eb.dry_run(SMALL, setup).phases["rest"]


@pytest.mark.parametrize(
    "changes",
    [
        {"precision": "fp32"},
        {"sharding": "zero2"},
        {"checkpointing": "full", "accumulation": 3},
        {"accumulation": 3, "no_sync": True},
    ],
)
def test_fsdp1_asks_for_what_formula_and_dry_run_say(here, changes):
    """What another stream has used is given back when the next block is asked for: as backward ends, the root's flat gradient is not yet."""
    setup = SETUP.replace(gpus=4, **{"sharding": "zero3", "fsdp_version": 1} | changes)
    found, counted = rehearse(SMALL, setup), eb.dry_run(SMALL, setup)
    assert found.requested - HOPPER == counted.peak == eb.budget(SMALL, setup).peak
    late = (1001 + 64 + 2) * 64 * (4 if setup.precision == "fp32" else 2) * (setup.accumulation == 1)
    ended = counted.phases["after_backward"] + late
    said = counted.phases | {"after_backward": ended, "step": max(ended, counted.phases["step"])}
    assert {name: size - HOPPER for name, size in found.phases.items()} == said


@pytest.mark.parametrize(
    ("gpus", "changes"),
    [
        (4, {"mesh": eb.Mesh(tensor=2), "sharding": "zero3"}),
        (2, {"mesh": eb.Mesh(tensor=2, loss_parallel=False)}),
        (2, {"mesh": eb.Mesh(context=2)}),
        (2, {"mesh": eb.Mesh(context=2, rotation="all-to-all"), "checkpointing": "full"}),
    ],
)
def test_matrices_and_sequences_divided_ask_for_what_formula_and_dry_run_say(here, gpus, changes):
    model = SMALL.replace(heads=4, vocabulary=1008, positions=256)
    setup = SETUP.replace(sequence=256, precision="bf16", gpus=gpus, **changes)
    found, counted = rehearse(model, setup), eb.dry_run(model, setup)
    assert found.requested - HOPPER == counted.peak == eb.budget(model, setup).peak
    assert {name: size - HOPPER for name, size in found.phases.items()} == counted.phases


@pytest.mark.parametrize(
    ("gpus", "routing", "changes"),
    [
        (2, 1.0, {}),
        (4, 2.0, {"sharding": "zero1"}),
        (4, 0.5, {"sharding": "zero3", "precision": "bf16-mixed", "checkpointing": "full"}),
    ],
)
def test_divided_experts_ask_for_what_formula_and_dry_run_say(here, gpus, routing, changes):
    """Of rows that are large beside what the kernels take for themselves."""
    model = eb.model("mixtral-8x7b", code="reference").replace(
        layers=2, width=256, heads=4, kv_heads=2, head_width=64, vocabulary=1008, expert_width=512
    )
    setup = SETUP.replace(
        sequence=512, gpus=gpus, mesh=eb.Mesh(expert=2, routing=routing), **{"precision": "bf16"} | changes
    )
    found, counted = rehearse(model, setup), eb.dry_run(model, setup)
    assert found.requested - HOPPER == counted.peak == eb.budget(model, setup).peak
    assert {name: size - HOPPER for name, size in found.phases.items()} == counted.phases


@pytest.mark.parametrize("changes", [{"gpus": 2}, {"gpus": 4, "sharding": "zero3", "precision": "bf16-mixed"}])
def test_a_mixture_whose_experts_are_each_divided_asks_for_what_formula_and_dry_run_say(here, changes):
    model = eb.model("mixtral-8x7b", code="reference").replace(
        layers=2, width=64, heads=4, kv_heads=2, head_width=16, vocabulary=128, expert_width=128
    )
    setup = SETUP.replace(sequence=64, mesh=eb.Mesh(tensor=2), **{"precision": "bf16"} | changes)
    found, counted = rehearse(model, setup), eb.dry_run(model, setup)
    assert found.requested - HOPPER == counted.peak == eb.budget(model, setup).peak
    assert {name: size - HOPPER for name, size in found.phases.items()} == counted.phases


def test_out_of_memory_as_it_would_be(here):
    large = SETUP.replace(batch=1024)
    found = rehearse(SMALL, large, memory=2**30)
    assert found.oom and found.out_of_memory["at"] in ("forward", "backward") and found.reserved <= 2**30
    assert not rehearse(SMALL, large, memory=2**34).oom


def test_the_grid_goes_on_where_it_stopped(here, tmp_path):
    wanted = [Configuration("test", SMALL, SETUP.replace(batch=b)) for b in (1, 2, 3)]
    said = []
    first = rehearse_grid("h200", tmp_path, configurations=wanted[:2], workers=2, say=said.append)
    assert len(first.found) == 2 and "2 of them now, 0 failed" in said[-1]
    (tmp_path / "h200.jsonl").rename(tmp_path / "h200.jsonl.part")  # as an interruption leaves it
    again = rehearse_grid("h200", tmp_path, configurations=wanted, workers=1, say=said.append)
    assert "1 of them now, 0 failed" in said[-1] and set(again.found) == {(SMALL, c.setup) for c in wanted}
    assert read(tmp_path / "h200.jsonl").found.keys() == again.found.keys() and not again.stale
    assert not (tmp_path / "h200.jsonl.part").exists()


def test_a_file_of_another_reference_is_rechecked_or_refused(here, tmp_path):
    wanted = [Configuration("test", SMALL, SETUP.replace(batch=b)) for b in (1, 2)]
    path = rehearse_grid("h200", tmp_path, configurations=wanted, workers=1, say=lambda _: None).path
    today = path.read_text()
    old = today.replace(read(path).head["fingerprint"], 64 * "0")
    path.write_text(old)
    assert read(path).stale
    found = recheck("h200", tmp_path, count=2, workers=1, say=lambda _: None)
    assert (
        not found.stale and found.head["rechecked"] == 2 and path.read_text().splitlines()[1:] == today.splitlines()[1:]
    )
    more = [*wanted, Configuration("test", SMALL, SETUP.replace(batch=3))]
    added = rehearse_grid("h200", tmp_path, configurations=more, workers=1, say=lambda _: None)
    assert added.head["rechecked"] == 2 and len(added.found) == 3  # what was only rechecked still says so
    wrong = old.replace(f'"requested": {next(iter(found.found.values())).requested}', '"requested": 5')
    path.write_text(wrong)
    with pytest.raises(ValueError, match=r"^rehearse\.recheck: 1 of 2 steps come out otherwise"):
        recheck("h200", tmp_path, count=2, workers=1, say=lambda _: None)
    assert path.read_text() == wrong


def test_what_ran_on_no_rehearsal_s_device_is_refused(monkeypatch):
    measured = type("Measured", (), {"witness": "measure", "device": {"name": "a real one"}})
    monkeypatch.setattr(steps, "ask", lambda *args, **options: (measured, True))
    with pytest.raises(steps.Failed, match="it ran on a real one, which is no rehearsal's device"):
        steps.one(None, SMALL, SETUP, eb.gpu("h200"), 1.0)


@pytest.mark.parametrize("changes", [{"memory": 5}, {"expandable": 1}, {"gpu": "h2000"}, {"gpu": "mi300x"}])
def test_bad_input(here, changes):
    with pytest.raises(ValueError, match=r"^(rehearse|gpu)\."):
        rehearse(SMALL, SETUP, **changes)
