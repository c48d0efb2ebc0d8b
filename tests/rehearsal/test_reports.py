"""What is read of a rehearsal's processes, where a script may have written anything."""

import json
import os

import pytest

from everybyte.rehearsal import reports

SAID = {
    "pid": 1, "rank": 0, "steps": 3, "reads": 0, "bytes_read": 0, "read_at": [], "streams": 0, "stopped": None, "lost": None, "began": 0, "argv": ["train.py"], "backwards": 5, "host": dict.fromkeys(("resident", "imported", "pinned", "shared", "workers"), 5), "sized_at": [], "groups": [], "torch": "2", "notes": [], "ended": False, "final": True,
    "devices": [{"device": 0, "memory": 9, "requested": 1, "allocated": 1, "reserved": 1, "segments": 1, "phases": {}, "stages": {}}],
}  # fmt: skip


def test_what_is_written_again_stands_in_place_of_what_stood(tmp_path):
    for steps in (1, 2):
        reports.write(tmp_path, 7, SAID | {"steps": steps})
    (tmp_path / "8-1.json.1.part").write_bytes(b'{"pid"')  # of who was killed while it wrote
    assert [path.name for path in tmp_path.glob("*.json")] == [f"7-{os.getpid()}.json"]
    (found,), faults = reports.read(tmp_path)
    assert found["steps"] == 2 and faults == []


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("[]", "a list; allowed: an object"), ('{"pid": 1', "delimiter"), ("", "Expecting value"), ("[" * 100_000, "within one another"),
        ("\udcff", "can't decode"), ("{}", "pid: None; allowed: int"), (json.dumps(SAID | {"steps": True}), "steps: True; allowed: int"),
        (json.dumps(SAID | {"devices": [5]}), "devices.device: None; allowed: int"),
        (json.dumps(SAID | {"groups": [{"ranks": 2, "apart": 0, "does": []}]}), "allowed: 1 or more ranks"), ("9" * 5000, "integer"),
    ],
)  # fmt: skip
def test_what_is_no_report_is_said_and_the_others_are_read(tmp_path, text, why):
    reports.write(tmp_path, 7, SAID)
    (tmp_path / "odd\x1b[2J.json").write_bytes(text.encode(errors="surrogateescape"))
    (tmp_path / "folder.json").mkdir()
    (found,), faults = reports.read(tmp_path)
    assert found == SAID | {"oom": None, "caught": None, "snapshot": None} and len(faults) == 2
    fault = next(fault for fault in faults if "odd" in fault)
    assert why in fault and len(fault) < 250 and fault.isprintable()


def test_a_folder_that_is_gone_is_said(tmp_path):
    read, faults = reports.read(tmp_path / "gone")
    said = reports.nobody("python train.py", 0, read, faults)
    assert said.startswith("rehearse.reports: python train.py ") and "it ended with exit status 0" in said
    assert said.endswith("the folder of reports is gone: the script has deleted it")


def test_why_there_is_nothing_to_show():
    def said(read, status=1):
        return reports.nobody("python train.py", status, read, [])

    none = SAID | {"devices": []}
    assert "did not import the rehearsal's PyTorch; it ended with exit status 1" in said([])
    assert said([none]) == "rehearse.command: python train.py put nothing on a GPU; it ended with exit status 1"
    missing = none | {"stopped": "with ModuleNotFoundError: no trl at train.py:2, after 0 optimizer steps"}
    assert said([missing]).startswith(
        "rehearse.command: python train.py put nothing on a GPU; it ended with ModuleNotFoundError: no trl at train.py:2"
    )
    assert "allowed: everybyte rehearse --install NAME" in said([missing])
    assert "ended before the first step of an optimizer; it ended by signal SIGKILL" in said(
        [none | {"final": False}], -9
    )


def test_of_several_each_that_was_killed_is_named():
    killed = SAID | {"rank": 1, "final": False, "stopped": None}
    (line,) = reports.ends([SAID, killed], 1)
    assert line.startswith("rank 1 ended at once, without Python's own end")
