"""Two and four processes that divide a model's matrices train as one that has them whole, and hold what the dry run counts."""

from pathlib import Path

import pytest
from processes import loaded, together

import everybyte as eb

SCRIPT = Path(__file__).with_name("split_ranks.py")
ranks = loaded(SCRIPT)


def check(seen, name):
    """Against one process, and against the dry run."""
    model, setup = ranks.RUNS[name]
    groups = setup.data
    alone = setup.replace(gpus=1, sharding="none", mesh=eb.Mesh(), batch=groups * setup.batch, no_sync=False)
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


def test_two_processes_train_as_one():
    names = ["gpt", "gpt, whole tokens", "llama", "llama, operations", "qwen", "mixture", "mixture, whole tokens"]
    seen = together(SCRIPT, 2, *names)
    for name in names:
        whole, parts = check(seen, name)
        model = ranks.RUNS[name][0]
        assert parts["blocks.0.attention.out.weight"] == [model.width, model.heads * model.head_width // 2]
        # DTensor's tables are divided, and their gradients are not, unless they are added to the head's.
        assert parts["token.weight"] == ([48, model.width] if model.tied else whole["token.weight"])
        assert parts.get("position.weight") == whole.get("position.weight")
        if model.experts:
            mine, inner = "blocks.1.mlp.", model.expert_width // 2
            assert parts[f"{mine}gate_up"] == [model.experts, 2 * inner, model.width]
            assert parts[f"{mine}down"] == [model.experts, model.width, inner]
            assert parts[f"{mine}router.weight"] == whole[f"{mine}router.weight"]


@pytest.mark.thorough("four processes; two of them run at every change")
def test_four_processes_divide_data_too():
    names = ["gpt, data", "llama, data", "gpt, data, synced once", "mixture, data"]
    seen = together(SCRIPT, 4, *names)
    for name in names:
        check(seen, name)
