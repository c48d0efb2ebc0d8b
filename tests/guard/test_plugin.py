"""pytest's fixture `memory`, in runs of pytest of their own."""

import os
import subprocess
import sys

import pytest

TRAIN = """
import torch
weight = torch.nn.Parameter(torch.ones(256, device="cuda"))
for step in range(3):
    x = torch.randn({rows}, 256, device="cuda")
    (weight * x).sum().backward()
"""
TESTS = """
def test_fits(memory):
    assert memory.rehearse("python train.py").peak < "{limit}"

def test_it_has_not_moved(memory):
    memory.rehearse("python train.py").baseline("train")
"""
BUDGET = """
def test_budget(memory):
    memory.budget("gpt2", batch={batch}, sequence=64).baseline("gpt2"{more})
"""


@pytest.fixture
def run(tmp_path):
    def ran(text, *options, **environment):
        (tmp_path / "test_train.py").write_text(text)
        command = [
            sys.executable,
            "-m",
            "pytest",
            "-p",
            "everybyte_pytest",
            "-p",
            "no:cacheprovider",
            "-rs",
            "--color=no",
            *options,
        ]
        done = subprocess.run(
            command, cwd=tmp_path, env=os.environ | environment, capture_output=True, text=True, timeout=300
        )
        return done.stdout

    (tmp_path / "pytest.ini").write_text("[pytest]")
    return ran


def test_a_baseline_is_kept_where_it_is_asked_for_and_then_held(run, tmp_path):
    assert "`pytest --memory-update` keeps this one" in run(BUDGET.format(batch=2, more=""))
    assert not list(tmp_path.glob("*.json"))
    assert "1 passed" in run(BUDGET.format(batch=2, more=""), "--memory-update")
    assert [path.name for path in tmp_path.glob("*.json")] == ["test_train.gpt2.memory.json"]
    assert "1 passed" in run(BUDGET.format(batch=2, more=""))
    moved = run(BUDGET.format(batch=3, more=""))
    assert (
        "1 failed" in moved
        and "activations" in moved
        and "Not the same: what ran: gpt2 batch=2 sequence=64 before" in moved
    )
    assert "1 passed" in run(BUDGET.format(batch=3, more=', within="1 GiB"'))


def test_where_no_script_can_be_rehearsed_it_skips_with_the_reason_or_fails(run, tmp_path):
    text, nowhere = TESTS.format(limit="1 GiB"), {"EVERYBYTE_REHEARSAL_VENV": str(tmp_path / "nowhere")}
    skipped = run(text, **nowhere)
    assert "2 skipped" in skipped and "there is no environment for it in nowhere" in skipped
    assert "2 failed" in run(text, "--memory-strict", **nowhere)


def test_a_script_s_peak(here, run, tmp_path):
    (tmp_path / "train.py").write_text(TRAIN.format(rows=1024))
    assert "2 passed" in run(TESTS.format(limit="8 MiB"), "--memory-update", EVERYBYTE_REHEARSAL_VENV=str(here.folder))
    (tmp_path / "train.py").write_text("# one more line\n" + TRAIN.format(rows=4096))
    said = run(TESTS.format(limit="8 MiB"), EVERYBYTE_REHEARSAL_VENV=str(here.folder))
    assert "2 failed" in said and "train.py:6" in said and "< '8 MiB': +" in said
    assert f"{3 * 1024 * 256 * 4:+,}  train.py:6" in said  # the input; the line was line 5
