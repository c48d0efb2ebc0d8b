"""The explorer of layouts shows what `everybyte.layouts` says today."""

import sys

import pytest
from explorers import every, priced

from everybyte import explore
from everybyte.explore.beside import table

combining = sys.modules["everybyte.explore.layouts"]


def test_every_run_is_stored():
    assert table(combining.FILE).keys() == every().keys()
    names = {name for run in table(combining.FILE).values() for name, *_ in run["points"]}
    assert any("TP 8" in name for name in names) and any("FSDP alone" in name for name in names)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("key", ["0,0,0,0", "0,1,0,0", "1,1,0,0", "2,3,1,1"])
def test_what_is_stored_is_what_is_said_today(key):
    found = priced(*every()[key])
    stored = table(combining.FILE)[key]
    assert found.pop("points") == stored["points"]
    assert found == {name: value for name, value in stored.items() if name != "points"}


def test_where_nothing_fits_it_says_so():
    explorer = explore.combining()
    state = explorer.state | {"model": 2, "gpus": 0}
    assert "none of" in explorer.describe(state) and "runs" in explorer.table(state).rows[0][0]


def test_what_runs_is_simulated():
    """Of some layouts the tensors fit, and the allocator runs out; what runs reserves at least its peak."""
    every_point = [(*point[2:], run["usable"]) for run in table(combining.FILE).values() for point in run["points"]]
    assert any(reserved is None and peak < 0.97 * usable for peak, reserved, usable in every_point)
    assert all(reserved is None or peak <= reserved for peak, reserved, _ in every_point)
