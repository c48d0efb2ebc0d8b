"""Courses as the explorers print them: the stored ones are today's, and what is printed is what the theory adds up."""

import json
import re
import sys
from importlib import resources
from pathlib import Path

import pytest

import everybyte as eb
from everybyte import explore
from everybyte.explore import courses
from everybyte.explore.beside import read
from everybyte.explore.courses import Size

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tools"))
from explorers import NAMES  # noqa: E402


@pytest.mark.parametrize("name", NAMES)
def test_what_is_stored_is_what_would_be_traced_today(name):
    """Where this fails, tools/explorers.py writes the file anew."""
    stored = json.loads(resources.files("everybyte.explore").joinpath(courses.FILE).read_text(encoding="utf-8"))
    assert stored.keys() == set(NAMES)
    assert getattr(explore, name)().kind.courses.signature == stored[name]["signature"]


def test_a_stale_file_is_not_read(monkeypatch):
    model, setup = (
        eb.Model(name="small", layers=2, width=48, heads=3, vocabulary=101, positions=64),
        eb.Setup(batch=2, sequence=8),
    )
    cases, updates = {(0,): (model, setup)}, {(0,): (model, setup)}
    fresh = courses.Courses("made up", ("kind",), cases, ("kind",), updates)
    wrong = fresh.tables | {"operations": []}
    monkeypatch.setattr(courses, "_stored", lambda: {"made up": wrong})
    assert courses.Courses("made up", ("kind",), cases, ("kind",), updates).operations == []
    monkeypatch.setattr(courses, "_stored", lambda: {"made up": wrong | {"signature": "another"}})
    assert courses.Courses("made up", ("kind",), cases, ("kind",), updates).operations == fresh.operations


@pytest.mark.parametrize(
    "changes",
    [
        {}, {"gpus": 8, "sharding": "zero3", "checkpointing": "full"}, {"gpus": 2, "accumulation": 5}, {"offload": "cpu", "sharding": "zero2"},
        {"checkpointing": "operations", "precision": "bf16-mixed"}, {"loss": "chunked", "loss_chunks": 5, "accumulation": 3},
    ],
    ids=str,
)  # fmt: skip
@pytest.mark.parametrize("name", ["gpt2", "llama-3.2-1b", "qwen3-8b", "opt-125m"])
def test_any_step_prints_to_its_budget(name, changes):
    model = eb.model(name, code="reference").replace(layers=6, vocabulary=999)
    setup = eb.Setup(batch=2, sequence=64, **changes)
    if setup.ddp:  # its buckets are counted, and not a formula of the notation
        pytest.skip("DDP's buckets have no letters")
    case = {(0,): (model, setup)}
    printed = courses.Courses("one", ("kind",), case, ("kind",), case)
    values = {"kind": 0} | courses.bindings(model, setup)
    budget = eb.budget(model, setup)
    where, parts = printed.peak(values)
    assert (where, sum(parts.values())) == (budget.peak_at, budget.peak)
    assert {p: x for p, x in parts.items() if x} == {p: x for p, x in budget.parts.items() if x}
    operations, lines, marks = printed.unrolled(values)
    assert operations == budget.operations and marks == budget.marks
    assert {p: line for p, line in lines.items() if any(line)} == {
        p: line for p, line in budget.timeline().items() if any(line)
    }


def test_sizes_read_alike(node):
    sources = [
        "(B*S)*(w)",
        "(2*up(S,32)*A)*(4)*(L-2)",
        "(whole(A,A_kv)*least(B,most(S,3)))",
        "7",
        "(N_max*N_max)*(w_s)*(L)",
    ]
    sizes = [Size(f"size {i}", source) for i, source in enumerate(sources)]
    points = [
        courses.bindings(eb.model(m, code="reference"), eb.Setup(batch=b, sequence=s))
        for m in ("gpt2", "llama-3.1-8b")
        for b in (1, 8)
        for s in (1, 100)
    ]
    helpers = re.search(r"const helpers = .*;", read("picture.js"))[0]
    script = (
        helpers
        + "const F = ["
        + ",".join(s.javascript for s in sizes)
        + "];\nexport default (ps) => ps.map((v) => F.map((f) => f(v)));"
    )
    assert node(script, points) == [[size(**point) for size in sizes] for point in points]
    with pytest.raises(ValueError, match="size 0: no value for batch, sequence, weight_bytes"):
        sizes[0]()
