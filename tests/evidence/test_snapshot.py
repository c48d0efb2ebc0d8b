"""Snapshots: hostile ones are refused with nothing run, others are read, whole or from the middle."""

import pickle
import struct
import sys
from pathlib import Path

import histories
import pytest
from pickled import block, event, frame, plain, segment
from timing import ends

import everybyte as eb
from everybyte.allocator import replay
from everybyte.command import main
from everybyte.evidence import Refused

KIB, MIB = 2**10, 2**20
HERE = Path(__file__).parent


class Evil:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return open, (str(self.path), "w")


def test_the_peak_and_whose_it_was():
    memory = eb.snapshot(pickle.dumps(plain())).main
    assert (memory.peak, memory.peak_event, memory.live) == (
        14 * MIB,
        1,
        [4 * MIB, 14 * MIB, 4 * MIB, 4 * MIB, 6 * MIB],
    )
    assert memory.parts() == {"activations": 10 * MIB, "before": 4 * MIB}
    assert [(row.where, row.bytes) for row in memory.held()][0] == ("train.py:12 main", 10 * MIB)
    assert memory.parts(4) == {"optimizer": 2 * MIB, "before": 4 * MIB}
    assert (memory.requested, memory.allocated, memory.reserved) == (6 * MIB, 6 * MIB, 20 * MIB)
    assert "14.00 MiB" in repr(memory.table())


def test_a_moment_that_the_history_does_not_have_is_refused():
    memory = eb.snapshot(pickle.dumps(plain())).main
    count = len(memory.events)
    for ask in (memory.made, memory.held, memory.parts, memory.reserved_at):
        for moment in (-1, count + 1, "1"):
            with pytest.raises(ValueError, match="moment.event"):
                ask(moment)
    with pytest.raises(ValueError, match=f"moment.event: 0 is not a whole number from 1 to {count}"):
        list(memory.sums([1, 0]))


def test_two_gpus_and_one_that_has_nothing():
    said = plain()
    said["segments"].append(segment(2**40, [block(30 * MIB)], device=2))
    said["device_traces"] += [[], []]
    found = eb.snapshot(pickle.dumps(said))
    assert list(found.devices) == [0, 2] and found.main.device == 2 and found.peak == 30 * MIB
    assert len(found.as_dict()["devices"]) == 2


def test_a_history_that_begins_in_the_middle_is_decided_again():
    memory = eb.snapshot(pickle.dumps(plain())).main
    again = memory.replayed()
    assert again.wrong is None and again.allocations == 2 and again.strays == 0


def test_what_was_freed_and_never_allocated_was_there_before():
    said = plain()
    said["device_traces"][0].insert(0, event("free_requested", 2**41, 3 * MIB))
    memory = eb.snapshot(pickle.dumps(said)).main
    assert memory.live[0] == 7 * MIB and memory.live[1] == 4 * MIB


@pytest.mark.parametrize("protocol", [2, 4, 5])
def test_a_class_ends_it_and_nothing_runs(tmp_path, protocol):
    mark = tmp_path / "ran"
    said = plain() | {"more": Evil(mark)}
    with pytest.raises(Refused, match=r"names \w+\.open"):
        eb.snapshot(pickle.dumps(said, protocol))
    assert not mark.exists()


def test_pickles_own_numbers_can_be_read_only_where_they_are_plain():
    with pytest.raises(Refused, match="names .*set|names builtins"):
        eb.snapshot(pickle.dumps({"segments": [], "x": {1}}, 2))


LARGE = struct.pack("<Q", 10 * 2**30)
HOSTILE = {
    "text of 10 GB": b"\x80\x04\x8d" + LARGE + b"a.",
    "bytes of 10 GB": b"\x80\x04\x8e" + LARGE + b"a.",
    "a byte array of 10 GB": b"\x80\x05\x96" + LARGE + b"a.",
    "a frame of 10 GB": b"\x80\x04\x95" + LARGE + b"a.",
    "a list of two thousand million names": b"\x80\x04]r" + struct.pack("<I", 2**31 - 1) + b".",
    "a name by text": b"\x80\x02cos\nsystem\n(S'x'\ntR.",
    "a registered extension": b"\x80\x02\x82\x01.",
    "something outside": b"\x80\x04X\x01\x00\x00\x00aQ.",
    "an old instance": b"\x80\x02(ios\nsystem\n.",
    "marks alone": b"\x80\x02" + b"(" * 10_000 + b".",
    "nothing on the stack": b"\x80\x02.",
}


@pytest.mark.parametrize("data", HOSTILE.values(), ids=HOSTILE)
def test_a_hostile_file_is_refused_at_once(data):
    with ends(), pytest.raises(Refused):
        eb.snapshot(data)


def test_the_same_where_memory_cannot_be_limited(monkeypatch, sample):
    monkeypatch.setitem(sys.modules, "resource", None)
    for data in sample(HOSTILE.values(), 4):
        with pytest.raises(Refused):
            eb.snapshot(data)
    assert eb.snapshot(pickle.dumps(plain())).peak == 14 * MIB


def test_cut_short_anywhere_it_is_refused():
    data = pickle.dumps(plain())
    for length in (0, 1, 2, 10, len(data) // 2, len(data) - 1):
        with pytest.raises(Refused):
            eb.snapshot(data[:length])


@pytest.mark.parametrize(
    ("said", "message"),
    [
        ([1], "without a address|segment"),
        ({"segments": 3}, "segments"),
        ({"a": 1}, "a dict of"),
        ("text", "a str"),
        ({"segments": [], "device_traces": []}, "no segment and no event"),
        ({"segments": [segment(0, [{"size": 1, "state": "odd"}])]}, "odd"),
        ({"segments": [], "device_traces": [[{"action": "alloc"}]]}, "without bytes"),
        ({"segments": [], "device_traces": [[3]]}, "without an action"),
    ],
)
def test_what_is_no_snapshot_is_said(said, message):
    with pytest.raises(ValueError, match=message):
        eb.snapshot(pickle.dumps(said))


def test_other_files_are_named(tmp_path):
    for start, what in ((b"PK\x03\x04", "zip"), (b'{"a": 1}', "JSON"), (b"\x1f\x8b", "gzip"), (b"", "no pickle")):
        with pytest.raises(Refused, match=what):
            eb.snapshot(start)
    with pytest.raises(Refused, match="No such file"):
        eb.snapshot(tmp_path / "none.pickle")


def test_a_hundred_thousand_events_are_read_and_drawn_in_five_seconds(tmp_path):
    frames = [[frame(f"/x/{i % 13}.py", i % 100, f"f{i % 7}") for _ in range(12)] for i in range(200)]
    events = []
    for i in range(50_000):
        events.append(event("alloc", i % 400 * MIB, MIB) | {"frames": frames[i % 200]})
        events.append(event("free_requested", (i - 300) % 400 * MIB, MIB) if i > 300 else event("free_completed", 0, 0))
    path = tmp_path / "large.pickle"
    path.write_bytes(pickle.dumps({"segments": [segment(0, [block(MIB)] * 300)], "device_traces": [events]}))
    with ends():
        memory = eb.snapshot(path).main
        eb.draw.png(memory.figure())
        memory.table()
    assert len(memory.events) == 100_000


def test_text_of_a_snapshot_is_never_markup():
    said = plain()
    said["device_traces"][0][0]["frames"] = [frame("<b>.py", 1, "<script>")]
    assert "<script>" not in eb.snapshot(pickle.dumps(said))._repr_html_()


def test_on_the_command_line(tmp_path, capsys):
    path = tmp_path / "s.pickle"
    path.write_bytes(pickle.dumps(plain()))
    assert main(["snapshot", str(path), "--figure", str(tmp_path / "s.png")]) == 0
    assert "train.py:12" in capsys.readouterr().out and (tmp_path / "s.png").stat().st_size > 1000
    (tmp_path / "bad.pickle").write_bytes(pickle.dumps(Evil(tmp_path / "x")))
    assert main(["snapshot", str(tmp_path / "bad.pickle")]) == 2
    assert "names" in capsys.readouterr().err


def rehearsed(name):
    """(a shipped history, what a snapshot of it in PyTorch's form says)."""
    kept = histories.unpack(HERE.parent / "allocator" / "histories" / f"{name}.json.gz")
    events = [{"action": a, "addr": at, "size": n, "stream": s} for a, at, n, s in kept["events"]]
    segments = []
    for address, expandable, inside in kept["segments"]:
        blocks = [{"size": size, "requested_size": asked, "state": state} for size, asked, state in inside]
        small = all(asked <= MIB for _, asked, state in inside if state != "inactive")
        segments.append(
            segment(address, blocks) | {"is_expandable": expandable, "segment_type": "small" if small else "large"}
        )
    return kept, eb.snapshot(pickle.dumps({"segments": segments, "device_traces": [events]})).main


def test_a_rehearsed_history_as_pytorch_writes_it():
    """The shipped one, in PyTorch's form: the requests' peak is what the allocator itself counted."""
    kept, memory = rehearsed("plain")
    assert memory.peak == kept["peaks"]["requested"] and memory.reserved == kept["peaks"]["reserved"]
    assert memory.live[0] == 0


def mapped(memory, *events):
    return [[(at, size, [(b, asked) for b, asked, _ in inside]) for at, size, inside in m] for m in memory.maps(events)]


def test_segments_and_their_blocks_at_any_moment():
    said = plain()
    said["device_traces"][0].insert(0, event("segment_free", 2**30, 2 * MIB))
    said["device_traces"][0].insert(1, event("segment_alloc", 0, 20 * MIB))
    memory = eb.snapshot(pickle.dumps(said)).main
    before, after, peak, end = mapped(memory, 0, 2, 3, 6)
    weight = (0, 4 * MIB)
    assert before == [(2**30, 2 * MIB, [])]  # the weight's segment is not there yet
    assert after == [(0, 20 * MIB, [weight])]
    assert peak == [(0, 20 * MIB, [weight, (4 * MIB, 10 * MIB)])] and end == [
        (0, 20 * MIB, [weight, (4 * MIB, 2 * MIB)])
    ]
    with pytest.raises(ValueError, match=r"moment\.event: 1"):
        list(memory.maps([2, 1]))


@pytest.mark.parametrize("name", ["expandable", "tight-expandable", "plain"])
def test_maps_of_a_rehearsed_history_hold_what_the_allocator_reserved(name):
    """Growing segments too: what stands by the events is what the allocator itself said that it had, at the end and at the most."""
    kept, memory = rehearsed(name)
    count = len(kept["events"])
    places = [0, *range(count // 7, count, count // 7), count]
    totals, blocks = [], []
    for found in memory.maps(places):
        totals.append(sum(size for _, size, _ in found))
        blocks.append(sum(asked for *_, inside in found for _, asked, _ in inside))
    taken = {"segment_alloc": 1, "segment_map": 1, "segment_free": -1, "segment_unmap": -1}
    assert totals == [sum(taken.get(a, 0) * n for a, _, n, _ in kept["events"][:place]) for place in places]
    assert blocks == [memory.live[place] for place in places] and totals[0] == 0 and totals[-1] == memory.reserved


@pytest.mark.parametrize(
    ("names", "found"),
    [
        (["linear", "forward", "compute_loss", "main"], "activations"),  # a model within a function that is called so
        (["cross_entropy", "compute_loss", "main"], "loss"), (["float", "compute_loss"], "loss"), (["main"], "activations"),
        (["linear", "forward", "step"], "activations"),
    ],
)  # fmt: skip
def test_what_is_innermost_says_whether_it_is_the_loss(names, found):
    files = {
        "linear": "/v/site-packages/torch/nn/modules/linear.py",
        "forward": "/me/model.py",
        "float": "/v/site-packages/torch/x.py",
    }
    files["cross_entropy"] = "/v/site-packages/torch/nn/functional.py"
    frames = [frame(files.get(name, "/me/train.py"), 1, name) for name in names]
    assert eb.evidence.naming.part(frames) == found


@pytest.mark.parametrize("name", ["plain", "expandable", "tight", "zero3", "collected", "zero3-expandable"])
def test_what_empty_cache_gives_back_is_what_the_allocator_gives_back(name):
    kept, memory = rehearsed(name)
    allocator = replay(kept["events"], kept["settings"], kept["total"]).allocator
    before = allocator.reserved
    allocator.empty_cache()
    assert memory.emptied == before - allocator.reserved and memory.reserved == before


def test_too_large_a_file_is_refused_unread(monkeypatch):
    monkeypatch.setattr(eb.evidence.pickles, "MOST", 100)
    with pytest.raises(Refused, match=r"bytes; allowed: 100 or fewer"):
        eb.snapshot(pickle.dumps(plain()))


def test_a_large_file_shows_how_far_it_is(capsys):
    assert eb.snapshot(pickle.dumps(plain()), progress=True).peak == 14 * MIB
    assert "100%" in capsys.readouterr().err
