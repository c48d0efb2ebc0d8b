"""What a rehearsal says of itself: never that it is a measurement."""

import everybyte as eb
from everybyte import lab
from everybyte.lab.measurement import PHASES
from everybyte.rehearsal import Rehearsal, ScriptRehearsal
from everybyte.rehearsal.result import UNKNOWN

SETUP = eb.Setup(batch=1, sequence=8)
MIB = 2**20


def rehearsal(**changes):
    said = {
        "model": eb.model("gpt2"), "setup": SETUP, "gpu": eb.gpu("h200"), "requested": 100 * MIB, "allocated": 101 * MIB,
        "reserved": 120 * MIB, "segments": 7, "workspace": 64 * MIB, "phases": dict.fromkeys(PHASES, 90 * MIB),
        "peak_at": "backward", "versions": {"torch": "2.13.0", "cuda": "13.0"}, "fingerprint": 64 * "0",
    }  # fmt: skip
    return Rehearsal(**said | changes)


def script(**changes):
    peak = {
        "live": 90, "at": "forward", "line": "/x/train.py:7", "inner": None, "call": "linear",
        "held": [{"line": "/x/train.py:3", "inner": None, "tensors": 2, "bytes": 80}, {"line": None, "inner": None, "tensors": 1, "bytes": 10}],
    }  # fmt: skip
    device = {
        "device": 0, "name": "rehearsed", "memory": 1000, "requested": 90, "allocated": 512, "reserved": 600, "segments": 2,
        "retries": 0, "phases": {"after_forward": 80, "backward_done": 60}, "stages": {"saving": 70}, "peak": peak,
    }  # fmt: skip
    process = {
        "pid": 1, "rank": 0, "argv": ["train.py"], "torch": "2.13.0", "cuda": "13.0", "steps": 5, "reads": 3, "bytes_read": 12, "streams": 0, "began": 0, "stopped": None, "backwards": 5, "host": dict.fromkeys(("resident", "imported", "pinned", "shared", "workers"), 5), "sized_at": [], "groups": [], "read_at": [{"line": "train.py:9", "inner": None, "reads": 3}],
        "oom": None, "caught": None, "snapshot": None, "notes": ["a note"], "ended": True, "final": True, "devices": [device],
    }  # fmt: skip
    said = {
        "command": ["python", "train.py"],
        "gpu": eb.gpu("h200"),
        "status": 0,
        "seconds": 1.0,
        "processes": [process],
    }
    return ScriptRehearsal(**said | changes)


def test_its_face_is_that_of_a_witness():
    said = rehearsal().as_dict()
    assert said["witness"] == "rehearse" and said["gpu"] == "h200" and said["parts"] == {} and said["oom"] is False
    assert said["peak"] == said["requested"] == 100 * MIB and said["peak_at"] == "backward"
    assert set(said["phases"]) == set(PHASES) and "step_ms" not in said and "tokens_per_s" not in said
    assert repr(rehearsal()) == "Rehearsal(gpt2 as on h200: 104,857,600 B requested, 125,829,120 B reserved)"
    for shown in (str(rehearsal().table()), rehearsal()._repr_html_()):
        assert "Rehearsed as on NVIDIA H200" in shown and "no GPU" in shown and "measured" not in shown.lower()


def test_it_stands_beside_the_formula_and_the_dry_run():
    found = rehearsal(requested=eb.budget(eb.model("gpt2"), SETUP).peak + 64 * MIB)
    compared = eb.compare(eb.budget(eb.model("gpt2"), SETUP), found)
    assert list(compared.witnesses) == ["predict", "rehearse"] and compared.differences["peak"] == 64 * MIB


def test_out_of_memory_and_the_math_kernel_are_said():
    out = rehearsal(out_of_memory={"requested": MIB, "free": 0, "at": "forward"}, phases={}, attention_kernel="math")
    assert (
        out.oom and "out of memory in forward: asked for" in str(out.table()) and repr(out).endswith("out of memory)")
    )
    assert "math kernel" in str(out.table())


def test_a_script_s_says_where_and_what_it_cannot_know():
    found = script()
    text = str(found)
    assert "no GPU. ended after 5 optimizer steps" in text and "/x/train.py:7, in linear" in text
    assert "at the peak: 2 tensors" in text and "at the peak: 1 tensor " in text and "backward done" not in text
    assert (
        all(f"- {unknown}" in text for unknown in UNKNOWN)
        and "- 3 times the script read" in text
        and "- a note" in text
    )
    said = found.as_dict()
    assert (said["witness"], said["peak"], said["peak_at"], said["oom"]) == ("rehearse", 90, "forward", False)
    assert (
        repr(found) == "ScriptRehearsal(python train.py as on h200: 90 B requested)"
        and "<table>" in found._repr_html_()
    )


def test_a_peak_in_words_says_backward_once_and_segments_that_grow_are_not_counted():
    (process,) = script().processes
    (device,) = process["devices"]
    told = {"at": "backward", "node": "MmBackward0", "forward": "/x/train.py:7"}
    found = script(processes=[process | {"devices": [device | {"segments": 0, "peak": device["peak"] | told}]}])
    assert found.said_peak == "peak 90 B, MmBackward0 of /x/train.py:7, in backward"
    assert "reserved: expandable segments" in str(found) and "0 segments" not in str(found)
    between = script(
        processes=[process | {"devices": [device | {"peak": device["peak"] | {"at": "between backward and step"}}]}]
    )
    assert between.said_peak.startswith("peak 90 B, between backward and step, ")


def test_of_several_processes_the_worst_is_shown():
    (process,) = script().processes
    larger = process | {"rank": 1, "devices": [process["devices"][0] | {"requested": 95}]}
    assert "rank 1 of 2" in str(script(processes=[process, larger])) and script(processes=[process, larger]).peak == 95
    oom = {
        "device": 0,
        "requested": 50,
        "total": 1000,
        "free": 9,
        "at": "forward",
        "line": "/x/train.py:8",
        "inner": None,
        "call": None,
    }
    shown = str(script(processes=[process | {"oom": oom}, larger]))
    assert (
        "rank 0 of 2" in shown
        and "out of memory, in forward: asked for" in shown
        and "9 B free; /x/train.py:8" in shown
    )


def test_a_rehearsal_s_device_is_marked_in_the_lab_too():
    assert lab.measurement.WITNESSES == ("measure", "rehearse")
