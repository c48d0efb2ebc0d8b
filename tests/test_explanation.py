"""A gap's terms sum to it, name what they are, and say what they do not know."""

import gzip
import json
from functools import cache
from itertools import islice
from pathlib import Path

import pytest
import ran
from hypothesis import given
from hypothesis import strategies as st

import everybyte as eb
from everybyte.answers.explanation import common
from everybyte.answers.sides import STAGES, side
from everybyte.command import main
from everybyte.evidence import example, reports
from everybyte.lab import records
from everybyte.rehearsal import shipped

MODEL = eb.Model(name="small", layers=2, width=48, heads=3, vocabulary=101, positions=40)
SETUP = eb.Setup(batch=2, sequence=8)
ROOT = Path(__file__).parents[1]
RECORDS = ROOT / "labs/records/h200.jsonl"
STATS = {
    f"{name}_bytes.all.peak": size
    for name, size in (("requested", 2**31), ("allocated", 2**31 + 512), ("reserved", 3 * 2**30))
}


def measured(count=5):
    """Some steps that an H200 ran to their end."""
    lines = (json.loads(line) for line in RECORDS.read_text("utf-8").splitlines()[1:])
    return list(islice((m for m in lines if m.get("status") == "measured" and m["setup"]["gpus"] == 1), count))


def script(*held, requested=700):
    """What the command writes of a script's rehearsal that held so many tensors and bytes, each at a line."""
    rows = [{"line": line and f"/a/{line}", "inner": None, "tensors": n, "bytes": size} for line, n, size in held]
    device = {
        "device": 0,
        "requested": requested,
        "allocated": requested + 324,
        "reserved": 2**21,
        "peak": {"held": rows},
    }
    processes = [{"oom": None, "caught": None, "snapshot": None, "devices": [device]}]
    return {"witness": "rehearse", "command": ["python", "train.py"], "processes": processes}


#: One side of each kind, by name.
SIDES = {
    "budget": lambda: eb.budget(MODEL, SETUP),
    "dry run": lambda: eb.dry_run(MODEL, SETUP),
    "model and setup": lambda: (MODEL, SETUP.replace(batch=3)),
    "JSON of a budget": lambda: eb.budget(eb.model("gpt2"), SETUP).as_dict(),
    "rehearsal": lambda: next(iter(shipped("h200").found.values())),
    "its JSON": lambda: next(iter(shipped("h200").found.values())).as_dict(),
    "a script's": lambda: script(("train.py:3", 2, 600), (None, 1, 100)),
    "measured": lambda: measured(1)[0],
    "counts": lambda: STATS,
    "message": lambda: next(iter(reports().values())).text,
    "snapshot": example.left,
    "file": lambda: example.SNAPSHOT,
}


@cache
def of(name):
    return SIDES[name]()


@pytest.mark.sampled(40)
@pytest.mark.parametrize("seen", SIDES)
@pytest.mark.parametrize("predicted", SIDES)
def test_the_terms_of_every_pair_sum_to_its_difference(predicted, seen):
    found = eb.explain(of(predicted), of(seen))
    assert sum(row.bytes for row in found.rows) == found.difference == found.seen - found.predicted
    assert found.seen == side(of(seen)).bytes(found.reach)
    assert [row.stage for row in found.rows] == sorted((row.stage for row in found.rows), key=STAGES.index)
    assert 0 <= found.unexplained and repr(found) and json.dumps(found.as_dict())


def test_what_is_the_same_leaves_nothing():
    found = eb.explain(of("budget"), of("dry run"))
    assert (found.rows, found.difference, found.matched) == ([], 0, len(of("dry run").alive()))


@pytest.mark.parametrize("setup", [SETUP, SETUP.replace(checkpointing="full", precision="bf16-mixed", batch=3)])
@pytest.mark.parametrize("name", ["gpt2", "llama-3.2-1b"])
def test_the_tensors_at_the_peak_sum_to_its_parts(name, setup):
    for witness in (eb.budget(eb.model(name), setup, rounding=512), eb.dry_run(MODEL, setup, rounding=512)):
        parts = dict.fromkeys(witness.parts, 0)
        for alive in witness.alive():
            parts[alive.part] += alive.bytes
        assert parts == witness.parts


def test_a_leak_is_named_by_its_lines():
    """The script of chapter 42 keeps each step's loss, and so its graph: three of them, when the most lives."""
    from torch import nn

    class Script(nn.Module):
        def __init__(self):
            super().__init__()
            ns = {}
            source = example.script().partition("torch.cuda.memory._record")[0]
            exec(compile(source, "train.py", "exec"), ns)
            blocks = [ns["Block"]() for _ in range(ns["LAYERS"])]
            self.body = nn.Sequential(nn.Embedding(8192, 512), *blocks, nn.Linear(512, 8192))

        def forward(self, tokens, targets):
            return nn.functional.cross_entropy(self.body(tokens).flatten(0, 1).float(), targets.flatten())

    import torch

    shape = (8, 512), torch.int64
    setup = eb.Setup(precision="bf16-mixed", optimizer="adamw")
    found = eb.explain(eb.dry_run(Script, setup, batch={"tokens": shape, "targets": shape}), example.left())
    largest = [row for row in found.rows if row.stage == "tensors"][:3]
    assert [row.what.split(" ")[2] for row in largest] == ["train.py:18", "train.py:24", "train.py:23"]
    assert [(row.tensors, row.bytes) for row in found.rows if row.stage == "workspaces"] == [(2, 2 * 32 * 2**20)]
    assert found.unexplained == 0 and abs(sum(row.bytes for row in largest)) > 180 * 2**20
    assert repr(found) in (ROOT / "README.md").read_text("utf-8")


def test_a_place_that_both_know_is_one_term():
    first = script(("train.py:3", 1, 1024), ("train.py:9", 1, 512), requested=1536)
    (row, reserved) = eb.explain(first, script(("train.py:3", 1, 4096), ("train.py:9", 1, 512), requested=4608)).rows
    assert (row.what, row.bytes) == ("train.py:3: 4.00 KiB, predicted 1.00 KiB", 3072)
    assert (reserved.stage, reserved.bytes) == ("reserved", -3072)
    (row, _) = eb.explain(first, script(("train.py:3", 3, 3072), ("train.py:9", 1, 512), requested=3584)).rows
    assert row.what == "train.py:3: 3.00 KiB in 3 tensors, predicted 1.00 KiB"
    node = {
        "line": None,
        "forward": "/a/train.py:7",
        "inner": None,
        "node": "MulBackward0",
        "tensors": 1,
        "bytes": 2048,
    }
    held = script(("train.py:9", 1, 512), requested=2560)
    held["processes"][0]["devices"][0]["peak"]["held"].append(node)
    (row, gone) = [row for row in eb.explain(first, held).rows if row.stage == "tensors"]
    assert row.what == "only seen: MulBackward0 of train.py:7, in backward, 2.00 KiB each" and gone.bytes == -1024


@pytest.mark.sampled(3)
@pytest.mark.parametrize("said", measured(), ids=lambda said: said["model"]["name"])
def test_a_measured_step_is_explained_from_its_budget(said):
    m = records.measurement(json.dumps(said))
    found = eb.explain((m.model, m.setup), said)
    assert found.reach == "outside" and found.unexplained < 0.001 * found.seen
    assert {row.stage for row in found.rows} >= {"workspaces", "rounding", "reserved", "outside"}


def recorded(name):
    return eb.snapshot(gzip.decompress((ROOT / f"tests/evidence/recorded/{name}.pickle.gz").read_bytes()))


def test_snapshots_of_one_script_differ_in_what_the_script_did():
    healthy = recorded("healthy")
    for other in ("healthy-all-stacks", "begun-late"):  # frames of C++ as well; a recording that begins in the middle
        found = eb.explain(healthy, recorded(other))
        assert (found.difference, found.unexplained) == (0, 0)
        assert not [row for row in found.rows if row.stage == "tensors"]
    (kept, *_) = eb.explain(healthy, recorded("kept-losses")).rows
    assert kept.bytes > 0 and "train.py" in kept.what and ".cpp" not in kept.what


DIED = {"llama-1b bf16": (11, {"precision": "bf16", "sequence": 4096}, True)}
DIED["llama-1b mixed full"] = 18, {"precision": "bf16-mixed", "checkpointing": "full", "sequence": 4096}, False


@pytest.mark.parametrize("name", DIED)
def test_an_error_of_a_real_gpu_says_where_in_the_step_it_died(name):
    batch, setup, first = DIED[name]
    line = ran.scripts()[f"{name} batch {batch}"]
    asked = eb.model("llama-3.2-1b"), eb.Setup(batch=batch, **setup)
    found = eb.explain(asked, line["told"]["error"])
    assert "it died in loss backward, at log-softmax backward" in found.names[1] and found.unexplained == 0
    assert sum(row.bytes for row in found.rows) == found.difference
    assert any("first step" in row.what for row in found.rows) == first
    other = eb.explain((asked[0], asked[1].replace(batch=batch - 2)), line["told"]["error"])
    assert "died" not in other.names[1] and other.unexplained > 2**29


def test_counts_that_are_a_workspace_more_are_named():
    budget = eb.budget(eb.model("gpt2"), SETUP)
    stats = dict.fromkeys(STATS, budget.peak + 2 * 2**25)
    (row,) = eb.explain(budget, stats).rows
    assert (row.stage, row.tensors, row.explained) == ("workspaces", 2, True)
    other = eb.explain(budget, dict.fromkeys(STATS, budget.peak + 2**25 + 1))
    assert other.unexplained == 2**25 + 1 and "not explained" in repr(other)


@given(st.lists(st.integers(0, 4), max_size=12), st.lists(st.integers(0, 4), max_size=12))
def test_a_common_subsequence_is_a_longest_one(one, other):
    pairs = common(one, other)
    assert all(one[i] == other[j] for i, j in pairs) and pairs == sorted(set(pairs))
    assert all(a[0] < b[0] and a[1] < b[1] for a, b in zip(pairs, pairs[1:], strict=False))
    best = [[0] * (len(other) + 1) for _ in range(len(one) + 1)]
    for i, x in enumerate(one):
        for j, y in enumerate(other):
            best[i + 1][j + 1] = best[i][j] + 1 if x == y else max(best[i][j + 1], best[i + 1][j])
    assert len(pairs) == best[-1][-1]


def test_the_command_explains_files_and_draws(tmp_path, capsys):
    counted, picture = tmp_path / "counted.json", tmp_path / "gap.png"
    counted.write_text(json.dumps(of("dry run").as_dict()), "utf-8")
    stats = tmp_path / "stats.json"
    stats.write_text(json.dumps(STATS), "utf-8")
    assert main(["explain", str(counted), str(stats), "--figure", str(picture), "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["seen"]["bytes"] == 3 * 2**30 and said["predicted"]["bytes"] == of("dry run").peak
    assert sum(row["bytes"] for row in said["rows"]) == said["difference"] and picture.read_bytes()[1:4] == b"PNG"
    assert main(["explain", "gpt2", str(stats), "--batch", "2", "--sequence", "8", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["predicted"]["bytes"] == eb.budget(eb.model("gpt2"), SETUP).peak
    config = tmp_path / "config.json"
    config.write_text(json.dumps({"model_type": "gpt2", "n_embd": 64, "n_layer": 2, "n_head": 2, "vocab_size": 1000}))
    assert main(["explain", str(config), str(stats), "--batch", "2", "--sequence", "8", "--json"]) == 0
    size = eb.budget(eb.from_config(config), eb.Setup(batch=2, sequence=8)).peak
    assert json.loads(capsys.readouterr().out)["predicted"]["bytes"] == size
    assert main(["explain", str(counted), str(stats), "--batch", "2"]) == 2
    assert "explain: --batch beside a file" in capsys.readouterr().err


def test_a_stored_dry_run_tells_its_tensors():
    found = eb.explain(json.loads(json.dumps(of("dry run").as_dict())), of("budget"))
    assert (found.rows, found.matched) == ([], len(of("dry run").alive()))
    derived = eb.derive(MODEL, SETUP)
    for formula in (derived, json.loads(json.dumps(derived.as_dict()))):
        assert eb.explain(formula, of("dry run")).rows == []


@pytest.mark.parametrize(
    ("seen", "said"),
    [
        (3, "explain.seen: a int; allowed: a budget"),
        ({"a": 1}, "explain.seen: a dict of"),
        (script() | {"processes": []}, "explain: a rehearsal without a process that used a GPU"),
        ({"witness": "rehearse", "processes": [{}]}, "explain.seen: JSON of 'rehearse' that is not as it was written"),
        (
            {"witness": "predict", "model": {"name": "?"}, "parts": {"loss": "9"}},
            "explain.seen: JSON of 'predict' that is not as it was written",
        ),
        (STATS | {"requested_bytes.all.peak": "9"}, "explain.seen: a dict of"),
        ({"witness": "dry run", "model": 3, "parts": {}}, "explain.seen: JSON of 'dry run' that is not"),
        ("{not json", "explain.seen: no JSON"),
        ("nothing of memory", "no out-of-memory message"),
        (Path("no-such-file"), "no-such-file"),
    ],
)
def test_what_says_nothing_is_refused(seen, said):
    with pytest.raises(ValueError, match=said):
        eb.explain((MODEL, SETUP), seen)
