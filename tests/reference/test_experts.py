"""Two, four and eight processes that divide experts train as one does on everything."""

from pathlib import Path

import pytest
from processes import loaded, together

SCRIPT = Path(__file__).with_name("visitors.py")
visitors = loaded(SCRIPT)


def check(gpus, cut):
    """Processes whose setups cut each expert's matrices, or do not, against one process."""
    setups = {name: run for name, run in visitors.setups(gpus).items() if (run[1].mesh.tensor > 1) == cut}
    seen = together(SCRIPT, gpus, *setups)
    for name, (model, setup) in setups.items():
        expected = visitors.alone(model, setup)
        mean = [sum(losses) / gpus for losses in zip(*(rank[name] for rank in seen), strict=True)]
        assert mean == pytest.approx(expected, rel=2e-6), name  # sums in another order, in fp32
        assert len({rank[name][0] for rank in seen}) == setup.data  # each group on tokens of its own
        assert abs(expected[-1] - expected[0]) > 1e-3


@pytest.mark.sampled(1)
@pytest.mark.parametrize("gpus", [2, 4])
def test_processes_that_divide_experts_train_as_one(gpus):
    check(gpus, False)


def test_processes_that_cut_each_expert_too_train_as_one():
    check(4, True)


@pytest.mark.thorough("eight processes; four of them run at every change")
def test_processes_that_have_the_same_parts_of_experts_train_as_one():
    """FSDP cuts what two GPUs have the same parts of: by experts, or where there are fewer than GPUs, by the rows of those parts."""
    check(8, True)
