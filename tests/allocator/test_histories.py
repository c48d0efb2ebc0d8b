"""The simulator against PyTorch's own allocator: the histories of rehearsed steps, decided again."""

from pathlib import Path

import histories
import pytest
from histories import blocks, stood

from everybyte.allocator import replay

KEPT = sorted(Path(__file__).with_name("histories").glob("*.json.gz"))
NAMES = [path.name.removesuffix(".json.gz") for path in KEPT]


@pytest.fixture(params=KEPT, ids=NAMES)
def history(request):
    return histories.unpack(request.param)


def test_every_block_is_the_real_allocators(history):
    found = replay(history["events"], history["settings"], history["total"])
    assert found.wrong is None and found.strays == 0 and found.decisions > 500
    assert blocks(found.allocator) == stood(history)
    if history["status"] == "measured":
        assert max(live[0] for live in found.live) == history["peaks"]["requested"]


def test_the_peak_is_allocated_in_blocks_that_were_not_split():
    """Above the requests in multiples of 512 bytes, until segments grow."""
    peaks = {name: histories.unpack(KEPT[NAMES.index(name)])["peaks"] for name in ("plain", "expandable")}
    found = {}
    for name in peaks:
        history = histories.unpack(KEPT[NAMES.index(name)])
        found[name] = max(live[1] for live in replay(history["events"], history["settings"], history["total"]).live)
        assert found[name] == peaks[name]["allocated"]
    assert found["plain"] - found["expandable"] == 23_999_488


def test_all_that_the_tool_records_is_kept_and_more_than_one_kind():
    assert set(NAMES) == set(histories.STEPS)
    actions = {event[0] for path in KEPT for event in histories.unpack(path)["events"]}
    assert actions >= {
        "alloc",
        "free_completed",
        "segment_alloc",
        "segment_free",
        "segment_map",
        "segment_unmap",
        "oom",
    }


def test_a_history_with_one_other_size_is_found_out():
    plain = histories.unpack(KEPT[NAMES.index("plain")])
    events = list(plain["events"])
    number = next(i for i, e in enumerate(events) if i > 3000 and e[0] == "alloc" and e[2] > 2**21)
    action, address, size, stream = events[number]
    events[number] = action, address, size + 3 * 2**20, stream
    found = replay(events, plain["settings"], plain["total"])
    assert found.wrong is not None


def test_other_settings_decide_otherwise():
    plain = histories.unpack(KEPT[NAMES.index("rounded")])
    assert replay(plain["events"], "", plain["total"]).wrong is not None


def test_steps_of_the_labs_grid_are_decided_alike(here):
    """`tools/histories.py replayed 200` looks at so many."""
    kinds, wrong = histories.replayed(2)
    assert kinds["steps"] == 2 and kinds["decisions"] > 1000 and kinds["expandable segments"] == 1 and not wrong


def test_a_new_history_is_decided_alike(here, tmp_path):
    path = histories.record("zero3", tmp_path)
    history = histories.unpack(path)
    found = replay(history["events"], history["settings"], history["total"])
    assert found.wrong is None and blocks(found.allocator) == stood(history)
