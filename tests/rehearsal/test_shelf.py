"""The rehearsals that are shipped: read with distrust, of today's reference step, and what PyTorch's dry run counts."""

import json
import os
import signal
import threading
import time
from functools import cache
from pathlib import Path

import pytest

import everybyte as eb
from everybyte.answers.comparison import rehearsed
from everybyte.catalog.outside import context
from everybyte.formulas.workspaces import requested
from everybyte.lab import Configuration, Worker, fingerprint, gpt2_for, grid
from everybyte.rehearsal import read, shelf, shipped, steps

FOLDER = Path(__file__).resolve().parents[2] / "labs" / "rehearsals"
#: cuBLAS's workspaces, forward's thread's and backward's (PyTorch 2.13, aten/src/ATen/cuda/CublasHandlePool.cpp).
WORKSPACES = {"h200": 2 * 33_554_432, "a100-80gb": 2 * 8_519_680, "rtx-4090": 2 * 8_519_680}
FP32 = {"batch": 8, "sequence": 1024, "precision": "fp32"}
BASE = FP32 | {"precision": "bf16-mixed"}
#: A few of everything; each is counted again.
SAMPLE = [
    ("gpt2", BASE),
    ("gpt2", BASE | {"attention": "eager"}),
    ("gpt2", BASE | {"checkpointing": "full"}),
    ("gpt2", BASE | {"checkpointing": "selective"}),
    ("gpt2", BASE | {"loss": "chunked"}),
    ("gpt2", BASE | {"batch": 2, "accumulation": 4}),
    ("gpt2", BASE | {"precision": "bf16-master"}),
    ("gpt2", BASE | {"precision": "fp16-mixed"}),
    ("gpt2", BASE | {"batch": 1, "sequence": 128, "optimizer": "sgd", "optimizer_impl": "fused"}),
    ("gpt2", FP32),
    ("gpt2", FP32 | {"checkpointing": "full"}),
    ("gpt2", FP32 | {"batch": 1, "sequence": 128}),
    ("gpt2", FP32 | {"attention": "eager", "dropout": 0.1}),
    ("gpt2", BASE | {"attention": "eager", "checkpointing": "full"}),
    ("gpt2", FP32 | {"attention": "eager", "checkpointing": "full"}),
    ("gpt2", FP32 | {"attention": "eager", "checkpointing": "every-k", "checkpoint_every": 3}),
    ("gpt2", BASE | {"batch": 1, "sequence": 8192, "attention": "eager"}),
    ("gpt2", BASE | {"gpus": 8}),
    ("gpt2", BASE | {"gpus": 8, "sharding": "zero1"}),
    ("gpt2", BASE | {"gpus": 64, "sharding": "zero2"}),
    ("gpt2", BASE | {"gpus": 1024, "sharding": "zero3"}),
    ("gpt2-medium", BASE | {"precision": "bf16"}),
]


@cache
def there(name):
    found = shipped(name, FOLDER)
    if found is None:
        pytest.skip(f"no rehearsals of {name} are shipped: `make rehearsal GPU={name}` makes them")
    return found


@pytest.mark.parametrize("name", shelf.GPUS)
def test_what_is_shipped_is_all_of_the_grid_and_of_today_s_step(name):
    found = there(name)
    assert not found.stale, f"the reference step has changed since: make rehearsal GPU={name}"
    assert found.head["memory"] == eb.gpu(name).memory and found.head["torch"].startswith("2.13")
    assert set(found.found) == {(c.model, c.setup) for c in shelf.peaks()}
    for rehearsal in found.found.values():
        assert rehearsal.requested <= rehearsal.allocated <= rehearsal.reserved <= eb.gpu(name).memory
        assert rehearsal.oom or rehearsal.workspace == WORKSPACES[name]
        assert rehearsal.oom or rehearsal.requested >= max(rehearsal.phases.values())
    assert sum(r.oom for r in found.found.values()) == 0 or name != "h200"


@pytest.mark.sampled(6)
@pytest.mark.parametrize(("size", "fields"), SAMPLE, ids=[" ".join(map(str, f.values())) for _, f in SAMPLE])
def test_what_was_asked_for_is_what_the_dry_run_counts_and_cublas_s_workspaces(size, fields):
    setup = eb.Setup(**fields)
    shape = gpt2_for(setup) if size == "gpt2" else eb.model(size, code="reference")
    found, counted = there("h200").found[shape, setup], eb.dry_run(shape, setup)
    assert found.requested == counted.peak + WORKSPACES["h200"]
    assert {name: size - WORKSPACES["h200"] for name, size in found.phases.items()} == counted.phases
    assert found.peak_at == counted.peak_at


def exact(model, setup, gpu, *more):
    """Whether what was asked for is the formula, phase by phase, and the workspaces that have a name: 0 bytes off."""
    found = there(gpu).found[model, setup]
    predicted = eb.budget(model, setup)
    phases = {name: size + WORKSPACES[gpu] for name, size in predicted.phases.items()}
    assert found.phases == phases
    if found.requested == predicted.peak + WORKSPACES[gpu]:
        assert found.peak_at == predicted.peak_at
    if more or found.requested != predicted.peak + WORKSPACES[gpu]:
        return found.requested == requested(predicted, eb.gpu(gpu))[0]
    return True


@pytest.mark.parametrize("name", shelf.GPUS)
def test_every_step_is_the_formula_and_named_workspaces(name, sample):
    steps = [step for step, rehearsal in there(name).found.items() if not rehearsal.oom]
    off = [(model.name, setup) for model, setup in sample(steps, 130) if not exact(model, setup, name)]
    assert off == [] and len(steps) > 360
    assert all(exact(model, setup, name, "each operation") for model, setup in steps[::100])


@pytest.mark.parametrize("name", shelf.GPUS)
def test_what_did_not_fit_could_not_fit(name):
    """The allocator keeps at most so much beside what is asked for: no step ran out that a GPU would have had room for."""
    found, gpu = there(name).found, eb.gpu(name)
    out = [(model, setup) for (model, setup), rehearsal in found.items() if rehearsal.oom]
    for model, setup in out:
        assert 1.2 * (eb.budget(model, setup).peak + WORKSPACES[name]) > gpu.memory - context(gpu).most
    assert bool(out) == (gpu.memory < 80 * 10**9 or name == "a100-80gb")


def lines(**changes):
    head = shelf.head_of("h200", {"torch": "2.13.0", "cuda": "13.0"})
    line = {
        "model": "gpt2", "setup": {"batch": 1}, "requested": 10, "allocated": 512, "reserved": 2048, "segments": 1,
        "workspace": 2, "phases": [1, 2, 3, 4, 5], "at": "backward",
    } | changes  # fmt: skip
    return head, line


def write(path, *said):
    path.write_text("".join(json.dumps(line) + "\n" for line in said))
    return path


def test_a_line_comes_back_as_it_went(tmp_path):
    odd = eb.Model(name="odd", layers=2, width=48, heads=3, vocabulary=1001, positions=40)
    head, line = lines()
    (first,) = read(write(tmp_path / "h200.jsonl", head, line)).found.values()
    assert first.setup == eb.Setup(batch=1) and first.phases["step"] == 4 and first.fingerprint == fingerprint()
    assert shelf.line_of(first) == line
    out = {"requested": 5, "free": 1, "at": "forward", "of": "PyTorch"}
    second = read(write(tmp_path / "a.jsonl", head, shelf.line_of(shelf.Rehearsal(
        model=odd, setup=eb.Setup(batch=2, sequence=8), gpu=eb.gpu("h200"), requested=1, allocated=2, reserved=3,
        out_of_memory=out, versions={"torch": "2.13.0", "cuda": "13.0"}, fingerprint=fingerprint(),
    )))).found[odd, eb.Setup(batch=2, sequence=8)]  # fmt: skip
    assert second.oom and second.out_of_memory == out and second.phases == {}


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"requested": -1}, "Rehearsal.requested"), ({"requested": True}, "Rehearsal.requested"), ({"phases": [1, 2]}, "Rehearsal.phases"),
        ({"model": "gpt3"}, "gpt3"), ({"setup": {"batch": 0}}, "Setup.batch"), ({"setup": {"heads": 3}}, "heads"),
    ],
)  # fmt: skip
def test_a_line_that_is_not_as_it_must_be_is_refused_with_its_number(tmp_path, changes, said):
    with pytest.raises(ValueError, match=r"^h200\.jsonl, line 2: ") as error:
        read(write(tmp_path / "h200.jsonl", *lines(**changes)))
    assert said in str(error.value)
    with pytest.raises(ValueError, match=r"^h200\.jsonl, line 1: "):
        read(write(tmp_path / "h200.jsonl", {"rehearsals": 2}))


def test_stale_is_what_is_of_another_step(tmp_path):
    head, line = lines()
    assert not read(write(tmp_path / "h200.jsonl", head, line)).stale
    assert read(write(tmp_path / "h200.jsonl", head | {"fingerprint": 64 * "0"}, line)).stale
    assert shipped("h200", tmp_path / "nowhere") is None


def test_what_is_rehearsed_is_each_step_of_the_grid_once():
    steps = [(c.model, c.setup) for c in shelf.peaks()]
    assert len(steps) == len(set(steps)) and set(steps) == {(c.model, c.setup) for c in grid() if not c.limit}


def test_the_labs_lay_them_beside_formula_and_dry_run(tmp_path):
    setup = eb.Setup(batch=1, sequence=8, optimizer="sgd")
    head, line = lines(setup={"batch": 1, "sequence": 8, "optimizer": "sgd"}, requested=12)
    write(tmp_path / "h200.jsonl", head, line)
    gpt2 = eb.model("gpt2")
    there, missing = (rehearsed(gpt2, {"it": s}, folder=tmp_path) for s in (setup, setup.replace(batch=2)))
    counted = eb.dry_run(gpt2, setup).peak
    assert there.rows == [["it", counted, counted, 10, 2, 512, 2048]]
    assert (
        "no GPU, and nothing is measured; reserved: what the allocator holds" in there.caption
        and missing.rows[0][3] == "not rehearsed"
    )
    write(tmp_path / "h200.jsonl", head | {"fingerprint": 64 * "0"}, line)
    assert rehearsed(gpt2, {"it": setup}, folder=tmp_path).rows[0][3] == "not rehearsed"
    none = rehearsed(gpt2, {"it": setup}, folder=tmp_path / "none")
    assert none.rows[0][3] == "not rehearsed" and none.caption.startswith(
        "Rehearsed, and nothing is measured. Not rehearsed: it"
    )


@pytest.mark.parametrize("phase", [None, "step"])
def test_a_step_that_is_not_on_the_shelf_is_named_with_what_records_it(tmp_path, phase):
    setup, gpt2 = eb.Setup(batch=1, sequence=8, optimizer="sgd"), eb.model("gpt2")
    head, line = lines(setup={"batch": 1, "sequence": 8, "optimizer": "sgd"})
    write(tmp_path / "h200.jsonl", head, line)

    def caption(**setups):
        return rehearsed(gpt2, setups, folder=tmp_path, phase=phase).caption

    assert "ot rehearsed" not in caption(there=setup)
    said = caption(there=setup, two=setup.replace(batch=2), three=setup.replace(batch=3))
    assert "Not rehearsed: two (gpt2), three (gpt2); none on h200's shelf (labs/rehearsals/h200.jsonl)." in said
    assert "`everybyte rehearse --set-up --grid --gpu h200`" in said and 'eb.rehearse(model, setup, gpu="h200")' in said
    write(tmp_path / "h200.jsonl", head | {"fingerprint": 64 * "0"}, line)
    assert "Not rehearsed: there (gpt2); the reference step has changed since those on h200's shelf" in caption(
        there=setup
    )


def test_a_phase_s_bytes_stand_alone(tmp_path):
    setup = eb.Setup(batch=1, sequence=8, optimizer="sgd")
    write(tmp_path / "h200.jsonl", *lines(setup={"batch": 1, "sequence": 8, "optimizer": "sgd"}))
    gpt2 = eb.model("gpt2")
    setups = {"there": setup, "missing": setup.replace(batch=2)}
    shown = rehearsed(gpt2, setups, folder=tmp_path, phase="after_forward")
    counted = [eb.dry_run(gpt2, s).phases["after_forward"] for s in setups.values()]
    assert shown.columns == ["after forward (B)", "predicted", "dry run", "rehearsed: tensors", "cuBLAS"]
    assert shown.rows == [["there", *2 * counted[:1], 0, 2], ["missing", *2 * counted[1:], "not rehearsed", "–"]]
    with pytest.raises(ValueError, match=r"^rehearsed\.phase: 'forward'"):
        rehearsed(gpt2, setups, folder=tmp_path, phase="forward")


def test_ctrl_c_waits_for_no_step_that_runs(tmp_path, monkeypatch):
    workers = []

    def start():
        workers.append(Worker(["sleep", "300"]))
        return workers[-1]

    def one(running, model, setup, gpu, timeout):
        if len(workers) == 2:
            threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGINT)).start()
        return running.ask(timeout, ask="device", device=None)

    monkeypatch.setattr(steps, "one", one)
    wanted = [Configuration("test", eb.model("gpt2"), eb.Setup(batch=b)) for b in range(1, 9)]
    head = shelf.head_of("h200", {"torch": "2", "cuda": "13"})
    begun = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        shelf._all(start, eb.gpu("h200"), tmp_path / "h200.jsonl.part", head, {}, wanted, 2, print)
    assert time.monotonic() - begun < 30 and workers
    assert all(running.process.returncode is not None for running in workers)
