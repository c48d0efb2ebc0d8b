"""The memory of a script over time, by part: as numbers, in a picture, in a page."""

import re

import pytest

from everybyte.command import main
from everybyte.evidence import Memory, snapshot
from everybyte.rehearsal import rehearse_script
from everybyte.rehearsal.timeline import of_peak, owned

EVENTS = [
    ("alloc", 1, 100, 0), ("alloc", 2, 10, 0), ("free_requested", 2, 10, 0),  # a weight, a step
    ("alloc", 2, 30, 0), ("segment_alloc", 9, 2**20, 0), ("alloc", 3, 7, 0), ("free_requested", 2, 30, 0), ("free_requested", 3, 7, 0),  # the next
    ("alloc", 4, 5, 0),
]  # fmt: skip
#: Five allocations after 40 that the history has lost.
MARKS = [("after_forward", 42), ("after_step", 42), ("after_forward", 43), ("backward_done", 44), ("after_step", 44)]
PARTS = {"parameters": [41], "activations": [3, 42, 43], "gradients": [44]}


def test_the_step_with_the_peak():
    left = [{"address": 0, "total_size": 512, "blocks": [
        {"address": at, "size": size, "requested_size": size, "state": "active_allocated"} for at, size in ((1, 100), (4, 5))
    ]}]  # fmt: skip
    memory = owned(Memory(0, left, EVENTS, [None] * len(EVENTS)), 40, PARTS)
    found = of_peak(memory, "backward", 40, MARKS)
    assert found.timeline() == {
        "parameters": [100] * 6,
        "gradients": [0, 0, 0, 7, 7, 0],
        "activations": [0, 30, 30, 30, 0, 0],
    }
    assert (found.peak, found.peak_operation) == (137, 3)
    assert found.parts == {"parameters": 100, "gradients": 7, "activations": 30}
    assert found.marks == {"after_forward": 2, "backward_done": 5, "after_step": 5}  # until the next allocation
    assert {made.part for _, made in memory.made().values()} == {"parameters", "gradients", "activations"}


SCRIPT = """
import torch
net = torch.nn.Linear(1024, 1024, bias=False).cuda()
optimizer = torch.optim.AdamW(net.parameters())
for step in range(3):
    torch.exp(net(torch.ones(2048, 1024, device="cuda"))).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
"""


def test_what_backward_makes_for_itself_is_a_part(here, tmp_path, monkeypatch):
    """The gradient of exp's input, 2,048 by 1,024 numbers of 4 bytes: of a rehearsal by its node, of a snapshot by its frames."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text(SCRIPT)
    found = rehearse_script(["python", "train.py"], snapshot="kept.pickle").as_dict()
    (device,) = found["processes"][0]["devices"]
    kept = snapshot("kept.pickle").devices[0].parts()
    assert device["peak"]["parts"]["transient"] == kept["transient"] == 2048 * 1024 * 4


def test_a_script_in_pictures(here, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text(SCRIPT)
    words = ["--timeline", "step.svg", "--explore", "page.html", "--snapshot", "kept.pickle", "--quiet"]
    assert main(["rehearse", *words, "--", "python", "train.py"]) == 0
    assert "cannot know" not in capsys.readouterr().out  # the table alone
    page = (tmp_path / "page.html").read_text()
    assert (tmp_path / "step.svg").read_bytes().startswith(b"<svg") and (tmp_path / "kept.pickle").exists()
    assert page.count("<svg") == 1 and "of it activations" in page and '"kind":"map"' in page
    assert not re.search(r'(?:src|href)="?https?:|@import|import\(', page)  # nothing is fetched


def test_its_numbers_are_the_report_s(here, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text(SCRIPT)
    found = rehearse_script(["python", "train.py"], snapshot="kept.pickle", owners=True, quiet=True)
    memory, course = found.timeline()
    assert course.peak == found.peak == memory.peak
    assert {name: size for name, size in course.parts.items() if size} == found.as_dict()["parts"]
    assert list(course.marks) == ["after_forward", "backward_done", "after_backward", "after_step"]
    with pytest.raises(ValueError, match="the history was not kept"):
        found.processes[0]["devices"][0]["peak"].pop("history")
        found.timeline()


def test_a_picture_of_no_format_is_refused(capsys):
    assert main(["rehearse", "--timeline", "step.pdf", "--", "python", "x.py"]) == 2
    assert "--timeline: 'step.pdf'; allowed: a file that ends in .png or .svg" in capsys.readouterr().err
