"""Snapshots of twelve scripts whose cause is known: parts told apart, what grows and what is pinned found, the first cause right."""

import gzip
import json
import pickle
from dataclasses import replace
from pathlib import Path

import pytest
from pickled import ADAM, TRAIN, event, frame, plain
from recordings import CAUSES

import everybyte as eb
from everybyte.command import main
from everybyte.evidence import Memory, example, naming
from everybyte.teach.bank import c42

MIB = 2**20
HERE = Path(__file__).parent
KEPT = {name: HERE / "recorded" / f"{name}.pickle.gz" for name in CAUSES}
#: Name -> the cause that must come first, by what the script does.
KNOWN = {
    "healthy": "nothing", "healthy-all-stacks": "nothing", "begun-late": "nothing", "kept-losses": "leak", "kept-logits": "leak",
    "kept-varied": "leak", "kept-until-it-dies": "leak", "too-large-a-batch": "need", "states-do-not-fit": "need", "pinned": "kept",
    "in-pieces": "fragmentation", "varied-lengths": "kept",
}  # fmt: skip


def read(name):
    return eb.snapshot(gzip.decompress(KEPT[name].read_bytes())).main


def test_the_first_cause_of_twelve_is_right():
    found = {name: eb.doctor(read(name)).cause for name in KNOWN}
    assert found == KNOWN and set(KNOWN) == set(CAUSES) and len(KNOWN) >= 12


def test_rehearsed_again_a_script_leaves_the_same(here):
    import recordings

    again = eb.snapshot(pickle.dumps(recordings.rehearsed(*CAUSES["pinned"]))).main
    assert [e[:1] + e[2:] for e in again.events] == [e[:1] + e[2:] for e in read("pinned").events]


def test_what_is_from_before_stands_apart_from_what_backward_makes():
    late, whole = read("begun-late"), read("healthy")
    weights = (
        8 * (2 * 512 + 2 * 4 * 512 * 512 + 5 * 512) + 2 * 512 * 8192 + 8192
    )  # in each block a norm and two products; table, head
    workspaces = 2 * 32 * MIB
    assert late.parts()["before"] == 3 * 4 * weights + workspaces  # weights and two states
    assert whole.parts()["gradients"] == late.parts()["gradients"] == whole.parts()["parameters"] == 4 * weights
    assert whole.parts()["workspace"] == workspaces and "before" not in whole.parts()


def test_frames_of_c_name_the_workspaces_and_backward():
    memory = read("healthy-all-stacks")
    named = {made.where for _, made in memory.made().values() if made.part == "workspace"}
    assert memory.parts() == read("healthy").parts() and named == {"cuBLASLt's workspace", "cuBLAS's workspace"}
    for function, said in (("at::cuda::getCUDABlasLtWorkspace()", "cuBLASLt"), ("at::native::Workspace::Workspace(unsigned long)", "cuDNN"),
                           ("ncclMemAlloc", "NCCL")):  # fmt: skip
        assert naming.workspace([frame("??", 0, function), TRAIN]).startswith(said)
        assert naming.part([frame("??", 0, function), TRAIN]) == "workspace"


@pytest.mark.parametrize("file", [
    "site-packages/torch/nn/functional.py", "torch/nn/functional.py", "python3.11/runpy.py", "/src/pytorch/torch/nn/functional.py",
    "venv\\Lib\\site-packages\\torch\\nn\\functional.py", "transformers/trainer.py", "/pytorch/aten/src/ATen/Context.cpp",
])  # fmt: skip
def test_a_librarys_frame_is_known_by_a_trimmed_path_too(file):
    assert naming.where([frame(file, 9, "linear"), TRAIN]) == "train.py:12 main"
    assert naming.part(
        [frame(file.replace("functional", "optim/adam").replace("nn/optim", "optim"), 9, "f"), TRAIN]
    ) in ("activations", "optimizer")


def test_trimmed_paths_tell_the_same_parts():
    assert naming.part([ADAM | {"filename": "torch/optim/adam.py"}, TRAIN]) == "optimizer"
    assert naming.where([frame("train.py", 3, "main")]) == "train.py:3 main"


def test_the_leak_of_the_chapters_script_is_what_was_derived_and_its_lines():
    memory = example.left().main
    assert sum(one.bytes for one in memory.leaks) == c42.left(wide=2, casts=2) and len(memory.steps) == 4
    assert [one.where for one in memory.leaks] == [
        "train.py:18 forward",
        "train.py:24 loss_of",
        "train.py:23 loss_of",
        "train.py:30 train",
    ]
    assert all(one.equal for one in memory.leaks)


def test_portions_that_differ_are_found_too_and_what_does_not_grow_is_not():
    (one,) = read("kept-varied").leaks
    assert not one.equal and one.part == "activations"
    assert all(
        not read(name).leaks
        for name in ("healthy", "healthy-all-stacks", "begun-late", "varied-lengths", "too-large-a-batch")
    )
    (logits,) = read("kept-logits").leaks
    assert logits.bytes == 2 * 128 * 8192 * 4 and logits.equal


def test_which_tensors_keep_segments():
    memory = read("in-pieces")
    (row,) = memory.pinned
    assert (row.segments, row.blocks, row.bytes, row.free) == (
        11,
        11,
        11 * 34 * MIB,
        11 * 26 * MIB,
    ) and memory.emptied == 0
    assert row.where == ("train.py:24 <listcomp>",)
    found = eb.doctor(memory)
    assert (
        "11 segments that blocks in use keep" in repr(found)
        and found.advice[0].saves == 11 * 26 * MIB + memory.allocated - memory.requested
    )


def test_no_frames_are_nobodys():
    said = plain()
    for one in said["device_traces"][0]:
        one["frames"] = []
    said["device_traces"][0].append(event("alloc", 2**30, MIB))
    assert set(eb.snapshot(pickle.dumps(said)).parts()) <= {"other", "before"}


def test_what_grows_and_what_is_pinned_is_printed_and_is_json(tmp_path, capsys):
    path = tmp_path / "left.pickle"
    path.write_bytes(gzip.decompress(KEPT["kept-logits"].read_bytes()))
    assert main(["snapshot", str(path)]) == 0
    said = capsys.readouterr().out
    assert "each of 5 steps leaves 8.00 MiB behind" in said and "empty_cache() gives back 186.00 MiB" in said
    assert main(["snapshot", str(path), "--json"]) == 0
    (device,) = json.loads(capsys.readouterr().out)["devices"]
    assert (
        [row["bytes"] for row in device["leaks"]] == [8 * MIB]
        and device["emptied"] == 186 * MIB
        and len(device["steps"]) == 5
    )
    assert main(["doctor", str(path), "gpt2", "--gpu", "rtx-4090", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (
        found["cause"] == "leak" and found["causes"][0]["bytes"] == 40 * MIB and found["advice"][-1]["setup"]["batch"]
    )


def test_what_is_pinned_saves_no_less_than_nothing_after_the_cache_was_emptied():
    """At the end less is reserved than lived at the peak: what can be saved is what blocks in use pin, as the finding says."""
    held = {"address": 0, "size": 2 * MIB, "requested_size": 2 * MIB, "state": "active_allocated"}
    kept = {"total_size": 4 * MIB, "allocated_size": 2 * MIB, "segment_type": "large", "address": 0, "stream": 0}
    events = [("alloc", 0, 2 * MIB, 0), ("segment_alloc", 2**40, 64 * MIB, 0), ("alloc", 2**40, 64 * MIB, 0)]
    events += [(action, 2**40, 64 * MIB, 0) for action in ("free_requested", "free_completed", "segment_free")]
    free = {"address": 2 * MIB, "size": 2 * MIB, "state": "inactive"}
    memory = Memory(0, [kept | {"blocks": [held, free]}], events, [None] * len(events))
    assert (memory.peak, memory.reserved, eb.doctor(memory).cause) == (66 * MIB, 4 * MIB, "kept")
    assert eb.doctor(memory).advice[0].saves == eb.doctor(memory).causes[0].bytes == 2 * MIB


def test_a_setting_of_another_release_stops_no_reading():
    memory = replace(read("pinned"), settings="a_newer_one:True")
    assert memory.emptied == read("pinned").emptied and eb.doctor(memory).cause == "kept"
    with pytest.raises(ValueError, match="a_newer_one"):  # what it decides is not played
        memory.replayed()
