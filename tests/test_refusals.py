"""What is not meant as it was given is refused in a sentence that names it: by every call, and by the command with status 2."""

import subprocess
import sys

import pytest
import torch
from torch import nn

import everybyte as eb
from everybyte import cli, draw

MODEL, SETUP = (
    eb.Model(name="small", layers=1, width=8, heads=1, vocabulary=11, positions=8),
    eb.Setup(batch=1, sequence=8),
)


class Module(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x):
        return self.linear(x).sum()


@pytest.mark.parametrize(
    ("call", "named"),
    [
        (lambda: eb.dry_run(MODEL, None), r"dry_run\.setup: None; allowed: a Setup"),
        (lambda: eb.fit(MODEL, None, "h200"), r"fit\.setup: None; allowed: a Setup"),
        (lambda: eb.fit(MODEL, SETUP, "h200", headroom=5), r"fit\.headroom: 5; allowed: a Headroom"),
        (lambda: eb.fit(MODEL, SETUP, "h200", configuration=5), r"fit\.configuration: 5; allowed: a Settings"),
        (lambda: eb.plan(MODEL, None, "h200"), r"plan\.setup: None; allowed: a Setup"),
        (lambda: eb.plan(MODEL, SETUP, "h200", 5), r"plan\.headroom: 5; allowed: a Headroom"),
        (lambda: eb.snapshot(None), r"snapshot\.source: a NoneType; allowed: a file's path"),
        (lambda: eb.settle(None), r"settle\.claim: None; allowed: a Claim"),
        (lambda: eb.serve("gpt2", "h200", context=9), r"serve\.model: 'gpt2'; allowed: a Model; eb\.model\('gpt2'\)"),
        (lambda: eb.layouts("gpt2", SETUP, "h200"), r"layouts\.model: 'gpt2'; allowed: a Model; eb\.model\('gpt2'\)"),
        (lambda: eb.align("dpo", "gpt2", SETUP), r"Objective\.model: 'gpt2'; allowed: a Model; eb\.model\('gpt2'\)"),
        (lambda: eb.layouts(MODEL, SETUP, "h300"), r"gpu\.name: 'h300' is unknown"),
        (lambda: eb.leaks(None), r"leaks\.step: None cannot be called"),
        (lambda: eb.units.parse(5), r"value: 5 is not a number followed by a unit"),
        (lambda: eb.units.to(5, []), r"unit: \[\] is not one of B"),
        (lambda: eb.Gpu(memory="1e999 GiB"), r"more than anybody has"),
        (lambda: MODEL.replace(name="\ud800"), r"Model\.name: '\\ud800'; allowed: 200 characters"),
        (lambda: MODEL.replace(name="a\x00b"), r"Model\.name: 'a\\x00b'; allowed: 200 characters"),
        (lambda: MODEL.replace(name="a" * 201), r"Model\.name: 'a+'; allowed: 200 characters"),
    ],
)  # fmt: skip
def test_another_kind_of_argument_is_named(call, named):
    with pytest.raises(ValueError, match=named):
        call()


@pytest.mark.parametrize("shape", [(-1, 4), (2**70, 4), (2**62, 4), (2.5, 4), "ab", None, (True, 4), 4])
def test_a_shape_that_no_tensor_has_is_named(shape):
    with pytest.raises(ValueError, match=r"^dry_run\.batch: a tensor of shape"):
        eb.dry_run(Module, SETUP, batch={"x": (shape, torch.float32)})


def test_a_step_that_pytorch_cannot_count_is_named():
    setup = eb.Setup(batch=2**24, sequence=131072, attention="eager")
    with pytest.raises(
        ValueError, match=r"^dry_run\.setup: batch 16777216 and sequence 131072 make a tensor of 2\*\*63"
    ):
        eb.dry_run(eb.model("gpt2").replace(positions=2**20, learned_positions=2**20, layers=1), setup)


@pytest.mark.parametrize("name", [r"$\frac{$", "$", "a_b^c$d$", "<b>&amp;", "日本"])
def test_a_name_is_drawn_as_it_is(name):
    fig = draw.timeline(eb.budget(MODEL.replace(name=name), SETUP), f"{name}, a step", "KiB")
    assert draw.png(fig).startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("fit gpt2 --gpu h200 --keep-context 1e999GiB", "--keep-context: value: '1e999GiB' is more than anybody has"),
        ("fit gpt2 --memory 1e999GiB", "--memory: value: '1e999GiB' is more than anybody has"),
        ("doctor /dev/full", "doctor.file: /dev/full: more than 500,000,000 bytes"),
        ("measure gpt2 --device mps", "measure.device: 'mps' is no device to measure on"),
        ("snapshot /", "Is a directory: /"),
    ],
)
def test_the_command_says_it_in_one_line(command, said, capsys, monkeypatch):
    monkeypatch.setattr("everybyte.evidence.pickles.MOST", 500_000_000 if "/dev" not in command else 500_000)
    assert cli.main(command.split()) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.count("\n") == 1 and err.startswith("everybyte: ") and said[:40] in err


def test_a_disk_that_is_full_is_said_in_one_line():
    with open("/dev/full", "w", encoding="ascii") as full:
        done = subprocess.run(
            [sys.executable, "-m", "everybyte.cli", "gpus"], stdout=full, stderr=subprocess.PIPE, text=True, timeout=60
        )
    assert (done.returncode, done.stderr) == (2, "everybyte: No space left on device\n")
