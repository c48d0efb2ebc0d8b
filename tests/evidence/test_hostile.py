"""Snapshots made to cost: much to walk in few bytes, text that grows, numbers of no machine; each refused at once, or read at once."""

import pickle
import subprocess
import sys

import pytest
from pickled import block, event, frame, plain, segment
from timing import ends, growth

import everybyte as eb
from everybyte.command import main
from everybyte.evidence import Refused, pickles

MANY = 50_000


def nested(depth=40):
    """Of two to that power parts, in a few hundred bytes."""
    found = []
    for _ in range(depth):
        found = [found, found]
    return found


BLOCKS = [block(512, "inactive") for _ in range(500)]
TRACE = [event("alloc", 512 * i, 512) for i in range(500)]
HOSTILE = {
    "a segment again and again": {"segments": [segment(0, BLOCKS)] * MANY},
    "its blocks again and again": {
        "segments": [{"address": i, "total_size": 1, "blocks": BLOCKS} for i in range(MANY)]
    },
    "a trace again and again": {"segments": [], "device_traces": [TRACE] * MANY},
    "an event again and again": {"segments": [], "device_traces": [[event("alloc", 0, 512)] * 20 * MANY]},
    "a block again and again": {"segments": [segment(0, [block(512)] * 20 * MANY)]},
}
ODD = {
    "a file's name that grows": frame(nested(), 1, "f"),
    "a name that grows": frame("f.py", 1, nested()),
    "a line that grows": frame("f.py", nested(), "f"),
    "a line of many digits": frame("f.py", 10**5000, "f"),
    "a line of many digits below": frame("f.py", -(10**5000), "f"),
    "a file's name of a megabyte": frame("f" * 10**6, 1, "f"),
}
NUMBERS = {
    "bytes of many digits": [event("alloc", 0, 10**5000)],
    "an address of many digits": [event("alloc", 10**5000, 1)],
    "a stream of many digits": [event("alloc", 0, 1) | {"stream": 10**5000}],
}


def at_once(data, match):
    with ends(), pytest.raises(Refused, match=match) as raised:
        eb.snapshot(data)
    assert len(str(raised.value)) < 600
    return str(raised.value)


@pytest.mark.parametrize("said", HOSTILE.values(), ids=HOSTILE)
def test_what_names_the_same_again_is_refused_unwalked(said):
    assert "which name the same ones again" in at_once(pickle.dumps(said), "segments, blocks and events")


@pytest.mark.parametrize("odd", ODD.values(), ids=ODD)
def test_a_frame_is_text_and_a_number(odd):
    at_once(pickle.dumps({"segments": [segment(0, [block(512, frames=[odd])])]}), "a frame whose")


@pytest.mark.parametrize("trace", NUMBERS.values(), ids=NUMBERS)
def test_a_number_is_a_machines(trace):
    at_once(pickle.dumps({"segments": [], "device_traces": [trace]}), "without bytes or address|without a number")


@pytest.mark.parametrize("field", ["address", "total_size", "device", "stream", "allocated_size"])
def test_a_segments_numbers_are_a_machines(field):
    at_once(pickle.dumps({"segments": [segment(0, [block(512)]) | {field: 10**5000}]}), "segment")
    if field == "device":
        at_once(pickle.dumps({"segments": [segment(0, [block(512)]) | {field: -1}]}), "no device")


def test_keys_that_grow_are_not_written_out():
    at_once(pickle.dumps({"a": nested(), **{f"k{i}": nested() for i in range(9)}}), "holds a dict of")


def test_shared_frames_are_honest_and_looked_at_once():
    """PyTorch's events share them: that many, each of a hundred frames, are read in no time."""
    frames = [frame(f"/x/{i}.py", i, "f") for i in range(100)]
    trace = [event("alloc", 512 * i, 512) | {"frames": frames} for i in range(MANY)]
    with ends():
        assert eb.snapshot(pickle.dumps({"segments": [], "device_traces": [trace]})).peak == 512 * MANY


def test_many_devices_are_read_in_one_walk():
    def devices(count):
        return pickle.dumps({"segments": [segment(0, [block(512)], device=i) for i in range(count)]})

    assert len(eb.snapshot(devices(20_000)).devices) == 20_000
    assert growth(eb.snapshot, devices, 500) < 32  # a walk of all segments for each device would take 64 times as long


BYTES = b"\x80\x05\x96" + (10**6).to_bytes(8, "little") + b"a."


@pytest.mark.parametrize("limited", [True, False])
def test_a_byte_array_beyond_the_end_is_refused_with_nothing_beside(limited, monkeypatch):
    wrong = []
    monkeypatch.setattr(sys, "unraisablehook", wrong.append)
    if not limited:
        monkeypatch.setitem(sys.modules, "resource", None)
    with pytest.raises(Refused, match="it says that 1,000,000 bytes follow, and 2 do"):
        pickles.read(BYTES)
    assert not wrong


def test_nor_at_the_command_line(tmp_path):
    path = tmp_path / "s.pickle"
    path.write_bytes(BYTES)
    done = subprocess.run(
        [sys.executable, "-m", "everybyte_command", "snapshot", str(path)], capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stderr.count("\n")) == (2, 1) and "SystemError" not in done.stderr


def test_a_file_tells_how_many_bytes_it_has(tmp_path):
    data = pickle.dumps(plain())
    (tmp_path / "s").write_bytes(data)
    assert pickles.read(tmp_path / "s") == pickles.read(data) == (plain(), len(data))


def test_doctor_reads_it_too(tmp_path, capsys):
    (tmp_path / "s").write_bytes(pickle.dumps(HOSTILE["a segment again and again"]))
    assert main(["doctor", str(tmp_path / "s")]) == 2 and "name the same ones again" in capsys.readouterr().err
