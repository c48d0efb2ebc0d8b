"""The largest value with which a script fits, and what its switches save: on made-up peaks, and on a script."""

import json
from types import SimpleNamespace

import pytest

import everybyte as eb
from everybyte.answers import scripts
from everybyte.answers.scripts import Switch, filled, largest, tried
from everybyte.catalog.outside import context
from everybyte.command import main

MIB, GIB = 2**20, 2**30
CARD = eb.gpu("rtx-4090")
ROOM = 4 * GIB


def pretended(monkeypatch, allocated, kept=1.1, fails=lambda batch: False):
    """A rehearsal that takes `allocated(batch)` at its peak and keeps `kept` times that where it may; returns the values that were tried."""
    seen = []

    def rehearse_script(command, gpu, memory, environment, hidden, steps=5):
        batch = int(command[-1])
        seen.append(batch)
        need, room = allocated(batch), memory - context(gpu).most
        oom = {"requested": need, "at": "forward", "line": "x.py:1"} if need > room else None
        counts = {
            "allocated": min(need, room),
            "reserved": min(round(kept * need), room),
            "retries": int(kept * need > room),
        }
        return SimpleNamespace(
            oom=bool(oom), death=oom, caught="", short=bool(oom), died="out of memory", status=1 if oom or fails(batch) else 0, most=counts.__getitem__,
            phase=lambda name: allocated(0), peak=need, processes=[], said_peak="peak", failure="the script ended with KeyError",
        )  # fmt: skip

    monkeypatch.setattr(scripts, "rehearse_script", rehearse_script)
    return seen


def sought(values):
    return largest(["python", "train.py", "{batch}"], "batch", values, CARD, memory=ROOM + context(CARD).most)


@pytest.mark.parametrize(
    ("allocated", "runs"),
    [
        (lambda b: 100 * MIB + 37 * MIB * b, 4),
        (
            lambda b: 100 * MIB + 37 * MIB * b - 20 * MIB * (b > 0),  # what stays between steps is no point of the line
            4,
        ),
        (lambda b: max(3 * GIB, 90 * MIB * b), 8),  # the optimizer's peak, then activations'
        (lambda b: 100 * MIB + MIB * b * b, 15),
        (lambda b: (100 + 80 * (b // 8)) * MIB, 8),
    ],
)
def test_the_last_that_fits_and_the_first_that_does_not(monkeypatch, allocated, runs):
    seen = pretended(monkeypatch, allocated)
    found = sought(range(1, 500))
    right = max(b for b in range(1, 500) if allocated(b) <= ROOM)
    assert (found.value, found.next.value) == (right, str(right + 1)) and found.next.found.oom
    assert len(seen) == len(found.runs) <= runs and {right, right + 1} <= set(seen)
    assert f"batch {right} is the largest that fits" in str(found) and f"batch {right + 1}: out of memory" in str(found)
    assert json.loads(json.dumps(found.as_dict()))["value"] == right


def test_steps_and_ends(monkeypatch):
    seen = pretended(monkeypatch, lambda b: 10 * MIB * b)
    assert sought(range(8, 1000, 8)).value == 408  # 409.6 would fit
    assert all(b % 8 == 0 for b in seen)
    found = sought(range(1, 3))
    assert (found.value, found.next) == (2, None) and "is the last that was asked for: more may fit" in str(found)
    found = sought(range(500, 900))
    assert not found.fits and found.next.value == "500" and "No batch fits" in str(found)


def test_no_value_is_passed_over_where_the_script_fails(monkeypatch):
    pretended(monkeypatch, lambda b: 10 * MIB * b, fails=lambda b: b > 300)
    with pytest.raises(
        ValueError,
        match=r"largest: with batch=\d+ the script ended with KeyError; allowed: values with which the script runs",
    ):
        sought(range(1, 1000))


def test_values_stand_in_words_and_in_the_environment(monkeypatch):
    monkeypatch.setenv("SIZE", "b{batch}")
    assert filled(["python", "--b={batch}", "{batch}"], {"batch": "8"}) == (["python", "--b=8", "8"], {"SIZE": "b8"})
    assert filled(["x", "{flag}", "y"], {"flag": "--a --b=1"}, ["flag"])[0] == ["x", "--a", "--b=1", "y"]
    assert filled(["x", "{flag}", "y"], {"flag": ""}, ["flag"])[0] == ["x", "y"]
    assert filled(["x"], {"flag": "--a"}, ["flag"])[0] == ["x", "--a"]
    with pytest.raises(ValueError, match=r"rehearse.lr: no \{lr\} in the command or in an environment variable"):
        filled(["x"], {"lr": "1"})


def test_switches_as_typed():
    assert Switch.read("batch=8,16") == ("batch", Switch(("8", "16")))
    assert Switch.read("conf=,expandable_segments:True") == ("conf", Switch(("", "expandable_segments:True")))
    assert Switch.read("flag:--attention=eager,x") == ("flag", Switch(("", "--attention=eager,x"), words=True))
    for text in ("batch", "batch=8", "batch=8,8", "=1,2", "flag:", "a b=1,2"):
        with pytest.raises(ValueError, match="--try: "):
            Switch.read(text)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("--largest batch=8:1", "--largest: 'batch=8:1'; allowed: NAME=A:B or NAME=A:B:STEP"),
        ("--largest batch=1:8:0", "--largest: 'batch=1:8:0'"),
        ("--largest a=1:8 --try b=1,2", "--largest with --try; allowed: one of --largest and --try"),
        ("--try b=1,2 --snapshot x", "--try with --snapshot"),
    ],
)
def test_bad_input_is_one_line(capsys, words, said):
    assert main(["rehearse", *words.split(), "--", "python", "train.py"]) == 2
    assert said in capsys.readouterr().err


SCRIPT = """
import os, sys, torch
from torch import nn
net = nn.Linear(1024, 1024, bias=False).cuda()
optimizer = torch.optim.SGD(net.parameters(), 0.1)
for step in range(3):
    x = torch.ones(int(os.environ["ROWS"]) * 8192, 1024, device="cuda")  # 32 MiB a row
    kept = [torch.tanh(x)] if "--keep" in sys.argv else []
    net(x).sum().backward()
    optimizer.step()
    del x
"""


def test_a_script_s_largest_and_what_a_switch_of_it_saves(here, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text(SCRIPT)
    monkeypatch.setenv("ROWS", "{rows}")
    # A row and its product are 64 MiB. Beside them: weight and gradient of 4 MiB, and two workspaces of 8 MiB and 128 KiB.
    room = 1016 * MIB
    found = largest(["python", "train.py"], "rows", range(1, 40), "rtx-4090", memory=context(CARD).most + room, steps=2)
    assert (found.value, found.next.value) == (15, "16") and len(found.runs) <= 4
    assert 15 * 64 * MIB < found.peak <= room and found.next.found.death["at"] in ("forward", "backward")
    many = tried(
        ["python", "train.py"], {"rows": ["4", "2"], "keep": Switch(("", "--keep"), words=True)}, "rtx-4090", steps=2
    )
    saves = {
        name: run["saves"]["allocated"] for name, run in zip(("rows", "keep"), many.as_dict()["tried"], strict=True)
    }
    assert saves == {"rows": 2 * 64 * MIB, "keep": -4 * 32 * MIB}
    assert "keep: --keep" in str(many) and "rows=2" in str(many)
