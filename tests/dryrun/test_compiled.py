"""What a compiled step keeps: with the whole budget what the formula says of the eager one, with none the inputs alone."""

import json
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import everybyte as eb
from everybyte.dryrun import saving
from everybyte.dryrun.compiled import partitioned

MODEL = eb.Model(name="a GPT", layers=2, width=64, heads=2, vocabulary=101, positions=32)
SETUP = eb.Setup(batch=2, sequence=32)


def test_a_budget_buys_products_for_bytes():
    """The least cut saves as many of the stream's numbers as the eager step. Of a row it saves one number where a norm has two, and two
    of the loss; the loss itself is no saved tensor; and of each attention a seed that eager has on the CPU."""
    phases = eb.budget(MODEL, SETUP).phases
    eager = phases["after_forward"] - phases["rest"] - 2 * 8 * 2 * 32  # tokens and targets
    whole, half, none = (partitioned(MODEL, SETUP, budget) for budget in (1, 0.5, 0))
    forward, backward = (int(eb.formula(f"flops.{name}").at(MODEL, SETUP)) for name in ("forward", "backward"))
    rows = 4 * 2 * 32
    assert whole == (eager - 4 + 16 * MODEL.layers - rows * (2 * MODEL.layers + 1) + 2 * rows, backward)
    assert 0.4 * whole[0] < half[0] < 0.6 * whole[0] and none[0] == 0
    assert backward < half[1] < none[1] == backward + forward  # all of forward once more


class Net(nn.Module):
    """The model of `tests/rehearsal/scripts/compiled.py`."""

    def __init__(self, words):
        super().__init__()
        self.embed, self.norm = nn.Embedding(words, 128), nn.LayerNorm(128)
        self.up, self.down, self.head = nn.Linear(128, 512), nn.Linear(512, 128), nn.Linear(128, words)

    def forward(self, tokens, targets):
        x = self.embed(tokens)
        x = x + self.down(F.gelu(self.up(self.norm(x))))
        return F.cross_entropy(self.head(x), targets)


@pytest.mark.parametrize("words", [512, 511])
def test_an_h200s_forward_left_what_is_cut_here(words):
    record = Path(__file__).resolve().parents[2] / "labs/records/scripts/h200.jsonl"
    lines = map(json.loads, record.read_text("utf-8").splitlines())
    left = next(one["printed"]["FOUND"] for one in lines if one["name"] == f"compiled default {words}").split()[0]
    tokens = torch.zeros(2048, dtype=torch.int64)
    cut, _ = saving.compiled(lambda: Net(words), tokens, tokens)
    assert sum(one.bytes for one in cut if one.made not in ("parameter", "input")) + 4 == int(left)  # and the loss


@pytest.mark.parametrize(
    ("changes", "budget", "message"),
    [
        ({"precision": "bf16"}, 1, r"^Setup\.precision: 'bf16' compiled is not followed; allowed: 'fp32'"),
        ({"attention": "eager"}, 1, r"^Setup\.attention: 'eager' compiled"),
        ({}, 1.5, r"^compiled\.budget: 1\.5 is not a number from 0 to 1"),
    ],
)
def test_what_is_not_followed_is_named(changes, budget, message):
    with pytest.raises(ValueError, match=message):
        partitioned(MODEL, SETUP.replace(**changes), budget)
