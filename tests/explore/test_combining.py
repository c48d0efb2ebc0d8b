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
    assert [[name, seconds, size] for name, seconds, size in found.pop("points")] == stored["points"]
    assert found == {name: value for name, value in stored.items() if name != "points"}


def test_where_nothing_fits_it_says_so():
    explorer = explore.combining()
    state = explorer.state | {"model": 2, "gpus": 0}
    assert "none of" in explorer.describe(state) and "fits" in explorer.table(state).rows[0][0]
