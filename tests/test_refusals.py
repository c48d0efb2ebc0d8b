"""What is not meant as it was given is refused in a sentence that names it: by every call, and by the command with status 2."""

import itertools
import subprocess
import sys
from dataclasses import fields

import numpy
import pytest
import torch
from torch import nn

import everybyte as eb
from everybyte import draw
from everybyte.allocator.settings import Settings
from everybyte.answers.alignment import Rollout
from everybyte.ask.mesh import Mesh
from everybyte.ask.setup import Lora
from everybyte.command import main

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
        (lambda: eb.doctor("MemoryError", [], []), r"doctor\.model: \[\]; allowed: a Model"),
        (lambda: eb.doctor("MemoryError", MODEL, {}), r"doctor\.setup: \{\}; allowed: a Setup"),
        (lambda: eb.doctor("MemoryError", gpu=False), r"gpu\.name: False is unknown; allowed: "),
        (lambda: eb.Gpu(memory="8 GiB", source=None), r"Gpu\.source: None; allowed: a str"),
        (lambda: eb.plan(Module, None, "h200"), r"plan\.setup: None; allowed: a Setup"),
        (lambda: eb.dry_serve(None, 1, 2), r"dry_serve\.model: None; allowed: a Model"),
        (lambda: eb.dry_serve(MODEL, 1, 2, steps=(1,)), r"dry_serve\.steps: \(1,\) is not a whole number"),
        (lambda: eb.snapshot(None), r"snapshot\.source: a NoneType; allowed: a file's path"),
        (lambda: eb.settle(None), r"settle\.claim: None; allowed: a Claim"),
        (lambda: eb.serve("gpt2", "h200", context=9), r"serve\.model: 'gpt2'; allowed: a Model; eb\.model\('gpt2'\)"),
        (lambda: eb.layouts("gpt2", SETUP, "h200"), r"layouts\.model: 'gpt2'; allowed: a Model; eb\.model\('gpt2'\)"),
        (lambda: eb.align("dpo", "gpt2", SETUP), r"Objective\.model: 'gpt2'; allowed: a Model; eb\.model\('gpt2'\)"),
        (lambda: eb.layouts(MODEL, SETUP, "h300"), r"gpu\.name: 'h300' is unknown"),
        (lambda: eb.serve(MODEL, "h200", 8, headroom=5), r"serve\.headroom: 5; allowed: a Headroom"),
        (lambda: eb.serve(MODEL, "h200", 8, page=numpy.array(["x", "x"])), r"serve\.page: array.* is not a whole number"),
        (lambda: eb.align("dpo", MODEL, SETUP, headroom="x"), r"align\.headroom: 'x'; allowed: a Headroom"),
        (lambda: eb.doctor("x", configuration=None), r"PYTORCH_ALLOC_CONF: None; allowed: text"),
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


class Odd:
    """Somebody's own, that answers nothing."""

    __hash__ = None

    def __eq__(self, other):
        raise RuntimeError("no")

    __repr__ = __bool__ = __eq__


#: What is asked for as values of a reader's own -> what it cannot do without.
KINDS = {
    eb.Setup: {},
    Mesh: {},
    Lora: {},
    Rollout: {"sequences": 2, "context": 8},
    eb.Headroom: {},
    Settings: {},
    eb.Gpu: {"memory": 10**9},
}
KINDS[eb.Model] = {"name": "m", "layers": 1, "width": 8, "heads": 1, "vocabulary": 11, "positions": 8}
ODD = [
    numpy.array(["fp32", "bf16"]), numpy.array([1, 2]), numpy.float32(3), Odd(), [1], {}, {1}, "x" * 10_000, 10**5000, 1j, float("nan"),
    b"\xff" * 999, object(), None, "\x1b[2J", "\ud800",
]  # fmt: skip


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_whatever_a_field_is_given_it_is_taken_or_named(kind):
    refused = 0
    for field, value in itertools.product(fields(kind), ODD):
        try:
            kind(**KINDS[kind] | {field.name: value})
        except ValueError as error:
            refused += 1
            assert field.name in str(error) and str(error).isprintable() and len(str(error)) < 1500
    assert refused > 5 * len(fields(kind))


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
        ("doctor /dev/full", "doctor.file: /dev/full: a device; allowed: a regular file, or - for standard input"),
        ("measure gpt2 --device mps", "measure.device: 'mps' is no device to measure on"),
        ("snapshot /", "snapshot: /: Is a directory; allowed: a file that can be read"),
    ],
)
def test_the_command_says_it_in_one_line(command, said, capsys):
    assert main(command.split()) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.count("\n") == 1 and err.startswith("everybyte: ") and said[:40] in err


def test_a_disk_that_is_full_is_said_in_one_line():
    with open("/dev/full", "w", encoding="ascii") as full:
        done = subprocess.run(
            [sys.executable, "-m", "everybyte_command", "gpus"],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            timeout=60,
        )
    assert (done.returncode, done.stderr) == (2, "everybyte: No space left on device\n")
