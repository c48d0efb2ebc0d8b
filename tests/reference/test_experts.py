"""Two and four processes that divide experts train as one does on everything."""

from pathlib import Path

import pytest
from processes import loaded, together

SCRIPT = Path(__file__).with_name("visitors.py")
visitors = loaded(SCRIPT)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("gpus", [2, 4])
def test_processes_that_divide_experts_train_as_one(gpus):
    seen = together(SCRIPT, gpus)
    for name, (model, setup) in visitors.setups(gpus).items():
        expected = visitors.alone(model, setup)
        mean = [sum(losses) / gpus for losses in zip(*(rank[name] for rank in seen), strict=True)]
        assert mean == pytest.approx(expected, rel=2e-6), name  # sums in another order, in fp32
        assert len({rank[name][0] for rank in seen}) == gpus  # each on tokens of its own
        assert abs(expected[-1] - expected[0]) > 1e-3
