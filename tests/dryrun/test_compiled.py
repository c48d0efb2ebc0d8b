"""What a compiled step keeps: with the whole budget what the formula says of the eager one, with none the inputs alone."""

from random import Random

import pytest
import ran
import torch
from torch import nn
from torch.nn import functional as F

import everybyte as eb
from everybyte.dryrun import saving
from everybyte.dryrun.compiled import partitioned
from everybyte.reference import GPT
from everybyte.reference.llama import Llama

MODEL = eb.Model(name="a GPT", layers=2, width=64, heads=2, vocabulary=101, positions=32)
SETUP = eb.Setup(batch=2, sequence=32)


def test_a_budget_buys_products_for_bytes():
    """The least cut saves as many of the stream's numbers as the eager step. Of a row it saves one number where a norm has two, and two
    of the loss; the loss itself is no saved tensor."""
    phases = eb.budget(MODEL, SETUP).phases
    eager = phases["after_forward"] - phases["rest"] - 2 * 8 * 2 * 32  # tokens and targets
    whole, half, none = (partitioned(MODEL, SETUP, budget) for budget in (1, 0.5, 0))
    forward, backward = (int(eb.formula(f"flops.{name}").at(MODEL, SETUP)) for name in ("forward", "backward"))
    rows = 4 * 2 * 32
    assert whole == (eager - 4 - rows * (2 * MODEL.layers + 1) + 2 * rows, backward)
    assert 0.4 * whole[0] < half[0] < 0.6 * whole[0] and none[0] == 0
    assert backward < half[1] < none[1] == backward + forward  # all of forward once more


def block(made, model, setup, dtype):
    """What one more block saves."""

    def make(layers):
        usual = torch.get_default_dtype()
        torch.set_default_dtype(dtype)
        try:
            return made(model.replace(layers=layers), setup)
        finally:
            torch.set_default_dtype(usual)

    tokens = torch.zeros(setup.batch, setup.sequence, dtype=torch.int64)
    sums = []
    for layers in (2, 3):
        found, _ = saving.compiled(lambda layers=layers: make(layers), tokens, tokens)
        sums.append(sum(one.bytes for one in found if one.made not in ("parameter", "input")))
    return sums[1] - sums[0]


@pytest.mark.sampled(1)
@pytest.mark.parametrize("seed", range(2))
def test_a_compiled_block_saves_what_the_formula_says(seed):
    draw = Random(seed)
    batch, sequence, width = draw.randint(1, 3), draw.randint(5, 70), 16 * draw.randint(2, 6)
    gpt = MODEL.replace(width=width, ffn_width=4 * width, head_width=width // 2, positions=80, embedding_width=width)
    for precision, dtype in (("fp32", torch.float32), ("bf16", torch.bfloat16)):
        setup = eb.Setup(batch=batch, sequence=sequence, precision=precision)
        assert block(GPT, gpt, setup, dtype) == eb.formula("compiled.gpt_block").at(gpt, setup)
    small = {"layers": 1, "width": width, "embedding_width": width, "vocabulary": 101, "heads": 4, "kv_heads": 2}
    wide = {"ffn_width": draw.randint(20, 90), "head_width": 8 * draw.randint(1, 3)}
    llama = eb.model("llama-3.1-8b", code="reference").replace(name="a Llama", **small, **wide)
    compiled = eb.formula("compiled.llama_block").at(llama, setup)
    assert block(Llama, llama, setup, torch.bfloat16) == compiled
    deep = [eb.budget(llama.replace(layers=n), setup).parts_at("after_forward")["activations"] for n in (2, 3)]
    assert deep[1] - deep[0] - compiled == 2 * batch * sequence * llama.ffn_width  # SiLU's result


SHAPES = {"gpt=float32": ("fp32", 0), "gpt=bfloat16": ("bf16", -8)}


@pytest.mark.parametrize("kind", SHAPES)
def test_a_rehearsed_block_saves_as_much(kind):
    """On an H200 cuDNN's attention has 8 bytes less of random state than flash attention."""
    found = ran.scripts("rehearsals/scripts/h200")
    one, two = (found[f"layers compile {kind} layers={n}"]["printed"]["FOUND"][-1][0] for n in (1, 2))
    precision, less = SHAPES[kind]
    model = eb.model("gpt2").replace(width=2048, heads=16, head_width=128, ffn_width=8192, positions=2048)
    setup = eb.Setup(batch=1, sequence=2048, precision=precision)
    assert two - one == eb.formula("compiled.gpt_block").at(model, setup) + less


def test_rehearsed_blocks_of_a_llama_save_as_much():
    """Hugging Face's Llama-3.2-1B, each of its blocks compiled, beside itself as it is written."""
    found = ran.scripts("rehearsals/scripts/h200")
    written, compiled = (found[f"llama-1b bf16{words}"]["printed"]["FOUND"][-1][0] for words in ("", ",blocks"))
    llama, setup = eb.model("llama-3.2-1b"), eb.Setup(batch=2, sequence=4096, precision="bf16")
    two, three = (eb.budget(llama.replace(layers=n), setup).parts_at("after_forward")["activations"] for n in (2, 3))
    block = eb.formula("compiled.llama_block").at(llama.replace(code="reference"), setup)
    assert written - compiled == llama.layers * (three - two - block)


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
    left = ran.scripts()[f"compiled default {words}"]["printed"]["FOUND"].split()[0]
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
