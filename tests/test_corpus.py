"""What others published: the records are whole, predictions are kept and found again, here and over a cluster."""

import json
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from everybyte.published import harvest, predicting
from everybyte.published.harvest import Predicted, Record, Run, corpus

RUN = Run(gpu="h100-80gb", model="gpt2", setup={"sequence": 64})


def record(id="mine", **said):
    usual = {
        "source": "example.org, table 1",
        "stated": "82.4 GiB",
        "quantity": "reserved",
        "fidelity": "exact",
        "run": RUN,
    }
    return Record(id=id, **usual | said)


def predicted(run=RUN, **said):
    usual = {
        "witness": "dry_run",
        "torch": "2.13.0",
        "allocated": 2**30,
        "reserved": 2**31,
        "states": 2**29,
        "oom": False,
    }
    return Predicted(key=run.key, seconds=1.0, **usual | said)


@pytest.fixture
def mine(monkeypatch, tmp_path):
    """Six records of small runs in the corpus' place; their store's path."""
    runs = [replace(RUN, setup={"sequence": 8 * n}) for n in range(1, 7)]
    found = {f"run-{n}": record(f"run-{n}", run=run) for n, run in enumerate(runs)}
    monkeypatch.setattr(predicting, "corpus", lambda: found)
    return tmp_path / "predicted.jsonl"


def test_every_record_is_whole():
    assert corpus() and all(r.commit or r.source for r in corpus().values())


@pytest.fixture(scope="module")
def shipped():
    return predicting.published(run=False)


def test_every_run_of_a_record_has_been_predicted_as_it_is_now(shipped):
    """The key is of the run and of its script: an edit of either makes a prediction stale, and `make published` makes it anew."""
    assert not [
        id for id, record in shipped.records.items() if any(shipped.there[run.key] is None for run in record.runs)
    ]


def test_what_is_fully_published_is_predicted(shipped):
    exact = [id for id, record in shipped.records.items() if record.fidelity == "exact"]
    sizes = sorted(abs(share) for id in exact if (share := shipped.off(id)) is not None)
    assert len(shipped.records) >= 200 and len(exact) >= 120
    assert sizes[len(sizes) // 2] < 0.005 and sizes[len(sizes) * 9 // 10] < 0.03
    assert all(shipped.right(id) for id in exact if not shipped.records[id].stated)
    assert all(shipped.records[id].cause for id in exact if abs(shipped.off(id) or 0) > 0.05)


def test_the_readme_has_the_table_of_what_others_measured(shipped):
    rows = {(row[0].removeprefix("github.com/"), row[1]): row for row in shipped.table().rows}
    text = (Path(__file__).resolve().parents[1] / "README.md").read_text(encoding="utf-8")
    for source in ("pytorch/torchtitan", "NVIDIA/Megatron-LM", "linkedin/Liger-Kernel", "Lightning-AI/litgpt"):
        _, _, count, _, _, near, *shares, judged = rows[source, "exact"]
        dies = int(judged.split(" of ")[1]) if judged != "–" else 0
        assert f"| {source} | {count - dies} | {near} | {' | '.join(shares)} |" in text
    assert f"{len(shipped.records)} of their numbers" in text


def test_a_list_says_each_record(shipped):
    only = predicting.measured("titan-8b-2-on-8", "fsdp-16-dies")
    assert {row[0]: row[3:] for row in only.rows} == {
        "titan-8b-2-on-8": ("82.4 GiB", "82.40", "as printed"),
        "titan-qwen3-32b-8-fsdp-16-dies": ("it dies", "the same", ""),
        "titan-qwen3-32b-16-fsdp-16-dies": ("it dies", "the same", ""),
    }


def test_a_number_counts_as_right_where_printing_hides_the_difference():
    there = {RUN.key: predicted(reserved=round(82.44 * 2**30))}
    beside = predicting.Beside({"a": record("a"), "b": record("b", stated="80 GiB")}, there, [])
    assert beside.off("a") == 0 and beside.off("b") == pytest.approx(2.44 / 80)
    assert record(stated="1,234 MB").rounding == 5e5 and record(stated="3 B").rounding == 0.5
    assert [row[0] for row in beside.gaps().rows] == ["b"] and beside.gaps().rows[0][4:6] == ("82.44", "+3.1%")


def test_each_quantity_is_the_one_that_was_measured():
    there = {RUN.key: predicted()}
    assert {q: record(quantity=q).of(there) for q in ("allocated", "active", "reserved", "states")} == {
        "allocated": 2**30, "active": 2**30, "reserved": 2**31, "states": 2**29,
    }  # fmt: skip
    assert record(quantity="device").of(there) > 2**31  # and the CUDA context
    other = replace(RUN, steps=2)
    less = record(less=other)
    assert less.of(there) is None and less.of(there | {other.key: predicted(other, reserved=2**30)}) == 2**30


def test_a_run_out_of_memory_is_right_or_wrong_and_never_a_share():
    there = {RUN.key: predicted(oom=True)}
    dies, fits = (record(q, stated="", quantity=q) for q in ("dies", "fits"))
    beside = predicting.Beside({"dies": dies, "fits": fits, "number": record("number")}, there, [])
    assert beside.right("dies") and beside.right("fits") is False
    assert beside.off("dies") is beside.off("number") is None


@pytest.mark.parametrize(
    ("said", "what"),
    [
        ({"quantity": "most"}, "record mine.quantity: 'most'"),
        ({"fidelity": "near"}, "record mine.differs"),
        ({"differs": "compiled"}, "record mine.differs"),
        ({"stated": "82.4"}, "record mine.stated"),
        ({"stated": ""}, "record mine.stated"),
        ({"quantity": "fits"}, "record mine.stated"),
    ],
)
def test_a_record_that_is_none_is_refused_by_its_field(said, what):
    with pytest.raises(ValueError, match=what):
        record(**said)


def test_a_run_is_a_script_or_a_setup():
    with pytest.raises(ValueError, match="run: script '', model ''"):
        Run(gpu="h200")
    with pytest.raises(ValueError, match="run.script: 'train.py'"):
        Run(gpu="h200", script="train.py")
    with pytest.raises(ValueError, match="h2000"):
        Run(gpu="h2000", model="gpt2")


def test_what_is_there_is_not_run_again_and_a_fault_stops_no_other(mine, monkeypatch):
    ran, said = [], []

    def once(run):
        ran.append(run)
        if run.setup["sequence"] == 16:
            raise ValueError("no such GPU")
        return predicted(run)

    monkeypatch.setattr(predicting, "predict", once)
    beside = predicting.published(store=mine, say=said.append)
    assert len(ran) == len(said) == 6 and len(beside.faults) == 1 and "no such GPU" in beside.faults[0]
    assert len(mine.read_text().splitlines()) == len(predicting.read(mine)) == 5
    assert beside.found["run-1"] is None and beside.found["run-0"] == 2**31
    predicting.published(store=mine, say=said.append)
    assert len(ran) == 7  # the one that failed
    predicting.published(["run-0"], again=True, store=mine, say=said.append)
    assert len(ran) == 8 and len(predicting.read(mine)) == 5
    with pytest.raises(ValueError, match="published.only: nobody is in no record"):
        predicting.published(["nobody"])


def test_dry_runs_of_several_gpus_do_not_meet(mine, monkeypatch):
    shared = {"sharding": "zero3", "gpus": 2, "precision": "bf16-mixed"}
    runs = [replace(RUN, setup=shared | {"batch": 1, "sequence": 8 * n}) for n in range(1, 4)]
    monkeypatch.setattr(
        predicting, "corpus", lambda: {f"run-{n}": record(f"run-{n}", run=run) for n, run in enumerate(runs)}
    )
    assert not predicting.published(workers=3, store=mine, say=lambda line: None).faults


def test_a_line_that_is_no_prediction_is_named(tmp_path):
    path = tmp_path / "predicted.jsonl"
    path.write_text(json.dumps({"key": "x"}))
    with pytest.raises(ValueError, match=r"predicted.jsonl, line 1"):
        predicting.read(path)


def test_a_prediction_goes_with_its_run_and_what_its_script_does(monkeypatch, tmp_path):
    """Words do not count; a file of ours that the script imports does, and is no script itself."""
    (tmp_path / "scripts").mkdir()
    script, shared = (tmp_path / "scripts" / name for name in ("a.py", "_b.py"))
    script.write_text('"""One."""\nfrom _b import x\ny = x')
    shared.write_text("x = 1")
    monkeypatch.setattr(harvest, "HERE", tmp_path)
    run = Run(gpu="h200", script="a.py")
    before = run.key
    script.write_text('"""Two."""\nfrom _b import x\ny = x')
    assert run.key == before != replace(run, options="--more").key
    shared.write_text("x = 2")
    assert run.key != before
    script.write_text("y = 3")
    assert run.key != before
    with pytest.raises(ValueError, match="run.script: '_b.py'"):
        Run(gpu="h200", script="_b.py")


def test_a_cluster_that_loses_a_worker_loses_nothing_and_does_nothing_twice(mine):
    distributed = pytest.importorskip("distributed")
    said = []
    with distributed.LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None, processes=True) as cluster:

        def say(line):
            said.append(line)
            if len(said) == 1:
                psutil.Process(next(iter(cluster.workers.values())).pid).kill()

        beside = predicting.published(scheduler=cluster.scheduler_address, store=mine, say=say)
    assert not beside.faults and len(said) == 6 and len(predicting.read(mine)) == 6
    assert len(mine.read_text().splitlines()) == 6 and all(size > 0 for size in beside.found.values())


def test_nobody_at_a_scheduler_s_address_is_said(mine):
    with pytest.raises(ValueError, match="scheduler"):
        predicting.published(scheduler="nonsense://nowhere", store=mine)
