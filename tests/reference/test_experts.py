"""Two and four processes that divide experts train as one does on everything."""

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).with_name("visitors.py")
_spec = importlib.util.spec_from_file_location("visitors", SCRIPT)
visitors = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(visitors)


@pytest.mark.parametrize("gpus", [2, 4])
def test_processes_that_divide_experts_train_as_one(gpus, tmp_path):
    there = [
        subprocess.Popen(
            [sys.executable, str(SCRIPT), str(tmp_path), str(rank), str(gpus)], stderr=subprocess.PIPE, text=True
        )
        for rank in range(gpus)
    ]
    try:
        errors = [process.communicate(timeout=600)[1] for process in there]
    finally:
        for process in there:
            process.kill()
            process.wait()
    assert [process.returncode for process in there] == [0] * gpus, errors
    seen = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(gpus)]
    for name, setup in visitors.setups(gpus).items():
        expected = visitors.alone(setup)
        together = [sum(losses) / gpus for losses in zip(*(rank[name] for rank in seen), strict=True)]
        assert together == pytest.approx(expected, rel=2e-6), name  # sums in another order, in fp32
        assert len({rank[name][0] for rank in seen}) == gpus  # each on tokens of its own
        assert abs(expected[-1] - expected[0]) > 1e-3
