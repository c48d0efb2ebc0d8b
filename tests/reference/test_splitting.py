"""Two and four processes that divide a model's matrices train as one that has them whole, and hold what the dry run counts."""

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest

import everybyte as eb

SCRIPT = Path(__file__).with_name("split_ranks.py")
_spec = importlib.util.spec_from_file_location("split_ranks", SCRIPT)
ranks = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(ranks)


def run(folder, processes, names):
    """What each of so many processes saw, by the name of the run."""
    there = [
        subprocess.Popen(
            [sys.executable, str(SCRIPT), str(folder), str(rank), str(processes), *names],
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(processes)
    ]
    try:
        errors = [process.communicate(timeout=300)[1] for process in there]
    finally:
        for process in there:
            process.kill()
            process.wait()
    assert [process.returncode for process in there] == [0] * processes, errors
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(processes)]


def check(seen, name):
    """Against one process, and against the dry run."""
    model, setup = ranks.RUNS[name]
    groups = setup.data
    alone = setup.replace(gpus=1, sharding="none", mesh=eb.Mesh(), batch=groups * setup.batch)
    expected, _, whole = ranks.train(model, alone, groups, lambda all: all.flatten(0, 1))
    leaders = [rank for rank in range(setup.gpus) if setup.mesh.rank(rank, groups)["tensor"] == 0]
    for rank in range(setup.gpus):
        leader = leaders[setup.mesh.rank(rank, groups)["data"]]
        assert seen[rank][name][0] == seen[leader][name][0]  # GPUs of one group have one loss
    together = [sum(losses) / groups for losses in zip(*(seen[rank][name][0] for rank in leaders), strict=True)]
    assert together == pytest.approx(expected, rel=5e-6)  # sums in another order, in fp32
    assert abs(expected[-1] - expected[0]) > 1e-3
    trace = eb.dry_run(model, setup)
    for rank in range(setup.gpus) if model.norm == "layernorm" else ():  # a CPU's RMS norm is many small operations
        counted = seen[rank][name][1]
        # Each dimension of a device mesh, and each group of it, is a list of its GPUs, which a GPU machine has on the CPU.
        other = counted["rest"] - trace.phases["rest"]
        assert 0 <= other < 200
        for moment in ("after_forward", "after_backward"):  # after the step Gloo may still hold a sum of gradients
            assert counted[moment] == trace.phases[moment] + other
    return whole, seen[0][name][2]


def test_two_processes_train_as_one(tmp_path):
    names = ["gpt", "gpt, whole tokens", "llama", "qwen"]
    seen = run(tmp_path, 2, names)
    for name in names:
        whole, parts = check(seen, name)
        model = ranks.RUNS[name][0]
        assert parts["blocks.0.attention.out.weight"] == [model.width, model.heads * model.head_width // 2]
        # DTensor's tables are divided, and their gradients are not, unless they are added to the head's.
        assert parts["token.weight"] == ([48, model.width] if model.tied else whole["token.weight"])
        assert parts.get("position.weight") == whole.get("position.weight")


@pytest.mark.thorough("four processes; two of them run at every change")
def test_four_processes_divide_data_too(tmp_path):
    names = ["gpt, data", "llama, data"]
    seen = run(tmp_path, 4, names)
    for name in names:
        check(seen, name)
