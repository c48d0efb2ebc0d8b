"""Several steps for a notebook: measured here, read from the record, or plainly not there."""

import copy
import os
import signal
import threading

import pytest
import torch

import everybyte as eb
from everybyte.answers import comparison
from everybyte.lab import Measurement, Worker, process, runs, several
from everybyte.lab.measurement import model_as_dict
from everybyte.lab.records import append
from everybyte.lab.several import Runs

SETUPS = {"one": eb.Setup(batch=1, sequence=8), "two": eb.Setup(batch=2, sequence=8, checkpointing="full")}


@pytest.fixture(autouse=True)
def no_gpu(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)


def recorded(folder, said, name, batches, **changes):
    """A record of made-up measurements."""
    folder.mkdir(exist_ok=True)
    for setup in SETUPS.values():
        if setup.batch in batches:
            line = copy.deepcopy(said) | {"setup": setup.as_dict(), "peak": 1000 * setup.batch} | changes
            line["device"] = line["device"] | {"name": name}
            append(folder / f"{name}.jsonl", Measurement.from_dict(line))


def test_with_no_record_it_says_so(tmp_path, small, monkeypatch):
    monkeypatch.chdir(tmp_path)
    found = runs(small, SETUPS)
    assert repr(found) == "Not yet recorded on a GPU: none of these 2 steps" and not found.live
    assert found.measured == {} and found.found == {"one": None, "two": None} and found._repr_html_() is None


def test_the_record_that_has_most_of_them(tmp_path, small, said, monkeypatch):
    recorded(tmp_path / "records", said, "made up a", (1,))
    recorded(tmp_path / "records", said, "made up b", (1, 2))
    recorded(tmp_path / "records", said, "made up c", (1, 2), fingerprint=64 * "0")  # of another step
    monkeypatch.chdir(tmp_path)
    found = runs(small, SETUPS)
    assert found.said == "Recorded on made up b, 2001-01-01, PyTorch 0, CUDA None" and not found.live
    assert {name: m.peak for name, m in found.measured.items()} == {"one": 1000, "two": 2000}
    text, html = repr(found), found._repr_html_()
    for shown in ("made up b", "2,000", "4,096", "1.5", "25.0%"):
        assert shown in text and shown in html
    for folder in ("labs", "notebooks"):  # from the repository's folder, and from a chapter's
        (tmp_path / "book" / folder).mkdir(parents=True)
    recorded(tmp_path / "book" / "labs" / "records", said, "made up d", (1,))
    for folder in ("", "notebooks", "labs"):
        monkeypatch.chdir(tmp_path / "book" / folder)
        assert "made up d" in runs(small, SETUPS).said


def test_a_part_of_them(tmp_path, small, said):
    recorded(tmp_path, said, "made up", (2,))
    found = runs(small, SETUPS, records=tmp_path)
    assert list(found.measured) == ["two"] and found.found["one"] is None
    assert found.table().rows[0][:3] == ["one", "–", "not yet recorded"]


@pytest.mark.parametrize(
    ("changes", "shown"),
    [
        ({"status": "skipped", "reason": "it needs more"}, "skipped: it needs more"),
        (
            {"status": "oom", "out_of_memory": {"requested": 2**30, "free": None, "at": "backward"}},
            "out of memory in backward: 1.00 GiB asked for, ? free",
        ),
    ],
)
def test_what_did_not_fit_is_shown(tmp_path, small, said, changes, shown):
    recorded(tmp_path, said | {"oom": changes["status"] == "oom"}, "made up", (1,), **changes)
    found = runs(small, SETUPS, records=tmp_path)
    assert shown in repr(found) and found.measured == {}


def test_the_same_worker_runs_them_on_the_cpu(small):
    setups = {name: s.replace(optimizer="sgd", attention="eager") for name, s in SETUPS.items()}
    found = runs(small, setups, device="cpu", warm_up=1, steps=2, points=0)
    assert found.live and found.said == "Measured here, on the CPU" and list(found.measured) == list(SETUPS)
    for name, setup in setups.items():
        assert found.measured[name].phases == eb.dry_run(small, setup).phases
    assert found.table().columns == ["", "peak (B)", "size"]  # a CPU's milliseconds say nothing of a GPU's
    table = comparison.side_by_side(small, setups, found)
    assert [row[1] for row in table.rows] == [row[2] for row in table.rows] == [row[3] for row in table.rows]
    assert [row[4] for row in table.rows] == [0, 0]


@pytest.mark.parametrize("changes", [{"settings": {"collectives": "fake"}}, {"witness": "rehearse"}, {"steps": 0}])
def test_no_time_is_shown_that_means_nothing(tmp_path, small, said, changes):
    there = Measurement.from_dict(copy.deepcopy(said) | {"setup": SETUPS["one"].as_dict()} | changes)
    if changes == {"steps": 0}:
        there = Measurement.from_dict(
            {k: v for k, v in there.as_dict().items() if k not in ("step_ms", "tokens_per_s")}
        )
    assert not there.timed and "milliseconds" not in repr(there)
    row = several._row(there, timed=True)
    assert row[2:] == [4096, "–", "–", "–"]


def test_a_rehearsal_is_never_read_as_a_record(tmp_path, small, said):
    recorded(tmp_path, said, "made up", (1, 2), witness="rehearse")
    assert repr(runs(small, SETUPS, records=tmp_path)).startswith("Not yet recorded on a GPU")


def test_a_step_with_another_switch_is_not_read_as_the_plain_one(tmp_path, small, said):
    recorded(tmp_path, said, "made up", (1, 2), settings={"asked": {"tf32": True}})
    assert runs(small, SETUPS, records=tmp_path).measured == {}
    assert list(runs(small, SETUPS, records=tmp_path, tf32=True).measured) == ["one", "two"]
    assert runs(small, SETUPS, records=tmp_path, tf32=True, limit=5).measured == {}


def test_of_two_measurements_of_one_step_the_one_with_more_times_is_read(tmp_path, small, said):
    recorded(tmp_path, said, "made up", (1,), steps=30)
    recorded(tmp_path, said, "made up", (1,), steps=0)
    assert runs(small, SETUPS, records=tmp_path).measured["one"].steps == 30


def test_a_gpu_without_bf16_runs_fp16_in_its_place_and_says_so(small, said, monkeypatch):
    asked = []

    def ask(worker, model, setup, device, timeout, **options):
        asked.append(setup.precision)
        old = said["device"] | {"capability": "7.5"}
        return Measurement.from_dict(said | {"setup": setup.as_dict(), "device": old}), True

    monkeypatch.setattr(process, "ask", ask)
    monkeypatch.setattr(several, "Worker", lambda: Worker(["sleep", "600"]))
    mixed = {name: setup.replace(precision="bf16-mixed") for name, setup in SETUPS.items()}
    found = runs(small, mixed, device="cuda")
    assert asked == ["bf16-mixed", "fp16-mixed", "fp16-mixed"] and "fp16-mixed in place of bf16-mixed" in found.said
    assert {m.setup.precision for m in found.measured.values()} == {"fp16-mixed"}


def test_side_by_side_without_a_record(small):
    table = comparison.side_by_side(small, SETUPS)
    assert [row[3:] for row in table.rows] == [["not yet recorded", "–"]] * 2
    assert [row[1] for row in table.rows] == [row[2] for row in table.rows]


def test_beside_a_gpu_stand_its_tensors_as_asked_for(small, said):
    """Without cuBLAS's workspaces and what was there before, which a formula does not count."""
    counted = eb.dry_run(small, SETUPS["one"]).peak
    more = {"setup": SETUPS["one"].as_dict(), "baseline": 10, "workspace": 500, "requested_peak": counted + 510}
    one = Measurement.from_dict(copy.deepcopy(said) | more)
    table = comparison.side_by_side(small, {"one": SETUPS["one"]}, Runs("recorded", {"one": one}))
    assert table.rows == [["one", counted, counted, counted, 0, 500, one.allocated_peak, one.reserved_peak]]


def test_with_a_gpu_they_run_on_it(small, said, monkeypatch):
    asked = []

    def ask(worker, model, setup, device, timeout, **options):
        asked.append((device, options))
        return Measurement.from_dict(said | {"setup": setup.as_dict(), "model": model_as_dict(model)}), True

    monkeypatch.setattr(process, "ask", ask)
    monkeypatch.setattr(several, "Worker", lambda: Worker(["sleep", "600"]))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.delenv(several.RECORD_ONLY, raising=False)
    found = runs(lambda setup: small, SETUPS, steps=3)
    assert found.live and found.said == "Measured here, on made up" and asked == [(None, {"steps": 3})] * 2
    monkeypatch.setenv(several.RECORD_ONLY, "1")
    assert not runs(small, SETUPS, records="nowhere").live


def test_one_that_dies_leaves_the_others(small, said, monkeypatch):
    workers = []

    def start():
        workers.append(Worker(["sleep", "600"]))
        return workers[-1]

    def ask(worker, model, setup, *_, **__):
        if setup.batch == 1:
            raise several.Failed("the worker ended by signal SIGSEGV; its last lines:\n  …")
        return Measurement.from_dict(said | {"setup": setup.as_dict()}), True

    monkeypatch.setattr(process, "ask", ask)
    monkeypatch.setattr(several, "Worker", start)
    found = runs(small, SETUPS, device="cuda")
    assert list(found.measured) == ["two"] and "failed: the worker ended by signal SIGSEGV: …" in repr(found)
    assert len(workers) == 2 and all(w.process.returncode == -signal.SIGKILL for w in workers)


def test_ctrl_c_in_a_cell_ends_the_worker(small, monkeypatch):
    workers = []

    def start():
        workers.append(Worker(["sleep", "600"]))
        return workers[-1]

    monkeypatch.setattr(several, "Worker", start)
    threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()
    with pytest.raises(KeyboardInterrupt):
        runs(small, SETUPS, device="cpu")
    assert workers[0].process.returncode == -signal.SIGKILL


def test_bad_input(small):
    with pytest.raises(ValueError, match=r"^Setup\.sequence: 1024"):
        runs(small, {"long": eb.Setup(sequence=1024)})
    with pytest.raises(ValueError, match=r"^measure\.device"):
        runs(small, SETUPS, device="cuda:99")


def test_every_gap_has_a_name_and_they_add_up(small, said, tiny):
    predicted = eb.budget(small, tiny, rounding=512).peak
    said |= {"peak": predicted + 70_000, "allocated_peak": predicted + 70_000, "workspace": 65_536}
    exact = eb.budget(small, tiny).peak
    said |= {"requested_peak": exact + 65_536 + 300}  # so that of the rest 300 B have no name
    said |= {"reserved_peak": predicted + 100_000, "driver_used": {"cuda": predicted + 400_000, "nvml": None}}
    said |= {"reserved_at_end": predicted + 90_000}
    rows = {row[0]: row[1] for row in comparison.gaps(Measurement.from_dict(said)).rows}
    *terms, total, kept, context = rows.values()
    assert sum(terms) == total == predicted + 70_000 and rows["without a name"] == 300
    assert rows["blocks that were not split"] == 70_000 - 65_536 - 300
    assert rows["kernels' own memory"] == 0 and kept == 30_000 and context == 310_000
    assert terms[0] == eb.budget(small, tiny).peak and terms[0] + terms[1] == predicted
    table = comparison.gaps(Measurement.from_dict(said))
    assert table.caption == "made up, 2001-01-01"
    for changes in ({"rounding": 1}, {"status": "failed", "oom": False, "reason": "x"}):
        with pytest.raises(ValueError, match=r"^gaps\.measurement"):
            comparison.gaps(Measurement.from_dict(said | changes))
