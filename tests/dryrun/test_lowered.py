"""torchao's optimizers: what Inductor writes for their compiled step, held to rehearsals of it and to the theory's rule."""

from math import prod
from unittest import mock

import pytest
import ran
import torch
import witnesses

import everybyte as eb
from everybyte.ask.choices import OPTIMIZERS
from everybyte.dryrun import lowered
from everybyte.reference.step import make_optimizer
from everybyte.theory import low_bits

GPT = eb.Model(name="a GPT", layers=2, width=64, heads=2, vocabulary=101, positions=32, tied=False)
EIGHT, FOUR, FP8 = "torchao-adamw8bit", "adamw4bit", "adamwfp8"
#: Buffers that one tensor's step asked of the allocator in rehearsals of PyTorch 2.13 on an H200, in the second step, by their bytes.
REHEARSED = {
    (EIGHT, (4096,)): [],
    (EIGHT, (4224,)): [],
    (EIGHT, (16384, 64)): [16384, 16384, 4194304, 4194304],
    (EIGHT, (300, 128, 2)): [307200, 307200],
    (EIGHT, (1000, 256)): [],
    (EIGHT, (64, 64)): [64, 64, 16384, 16384],
    (FOUR, (4096,)): [128, 128, 16384, 16384, 32768, 32768],
    (FOUR, (32, 32, 4)): [16384, 16384, 32768, 32768],
    (FOUR, (1000, 256)): [8000, 8000, 1024000, 1024000, 2048000, 2048000],
    (FP8, (4096,)): [64, 64],
    (FP8, (128, 128)): [256, 256, 16384, 16384],
    (FP8, (128, 320)): [640, 640],
    (FP8, (8192, 768)): [98304, 98304],
    (FP8, (300, 128, 2)): [],
    (FP8, (48, 5, 64)): [240, 240, 15360, 15360],
}


def asked(optimizer, shape, dtype=torch.float32):
    """Bytes of each buffer that a step makes of one tensor, by Inductor's code."""
    weight, sizes, empty = torch.nn.Parameter(torch.empty(shape, dtype=dtype, device="meta")), [], lowered._empty
    weight.grad = torch.empty_like(weight)

    def made(*looks):
        sizes.append((buffer := empty(*looks)).nbytes)
        return buffer

    setup = eb.Setup(optimizer=optimizer)
    with lowered.torchao_compiled(setup), mock.patch.object(lowered, "_empty", made):
        make_optimizer(setup)([weight]).step()
    return sizes


@pytest.mark.sampled(4)
@pytest.mark.parametrize(("optimizer", "shape"), REHEARSED)
def test_inductor_s_code_is_what_rehearsals_ran_and_the_rule_says_it(optimizer, shape):
    pytest.importorskip("torchao")
    said = [numbers * width for numbers, width in low_bits.temporaries(optimizer, shape, prod(shape))]
    assert said == REHEARSED[optimizer, shape] == asked(optimizer, shape)


def test_a_rule_for_each_shape_that_inductor_tells_apart():
    """Of 16 bits as of 32: one dimension or several, whole blocks counted by one of them or more, a row that a block is made of."""
    assert low_bits.made(EIGHT, (2048, 192, 256)) == low_bits.made(EIGHT, (4, 8, 16, 16)) == ()
    assert low_bits.made(EIGHT, (32, 16, 16)) == ("wide",) and low_bits.made(EIGHT, (1, 8192)) == ()
    assert low_bits.made(FOUR, (24, 4, 128)) == low_bits.made(FOUR, (8192, 1)) == ("scales", "wide", "places")
    assert low_bits.made(FOUR, (1, 64, 128)) == ("wide", "places") and low_bits.made(FOUR, (4160,)) == ()
    assert low_bits.made(FP8, (24, 512, 4, 64)) == ("scales",) and low_bits.made(FP8, (32, 8, 32)) == ()
    assert low_bits.made(FP8, (1024, 48, 192)) == ("scales",) and low_bits.made(FP8, (768, 160, 2)) == (
        "scales",
        "codes",
    )


@pytest.mark.parametrize(
    "more",
    [
        {"precision": "fp16-mixed", "accumulation": 2},
        {"precision": "bf16-master", "checkpointing": "full"},
        {"optimizer_in_backward": True},
        {"sharding": "zero1", "gpus": 2},
    ],
)
def test_the_theory_is_the_optimizer_s_own_code(more):
    """In fp8, whose code is written soonest: of fp32 weights, so that four setups share it."""
    pytest.importorskip("torchao")
    assert not witnesses.disagreements(GPT, eb.Setup(batch=1, sequence=8, optimizer=FP8, **more))


@pytest.mark.thorough("Inductor writes code for a minute")
@pytest.mark.parametrize("optimizer", [EIGHT, FOUR, FP8])
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_every_optimizer(optimizer, precision):
    pytest.importorskip("torchao")
    assert not witnesses.disagreements(GPT, eb.Setup(batch=1, sequence=8, optimizer=optimizer, precision=precision))


@pytest.mark.parametrize("optimizer", [name for name, row in OPTIMIZERS.items() if row.package == "torchao"])
@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"sharding": "zero3", "gpus": 2}, "optimizer: .*compiled step over `DTensor`s is not derived, and everybyte rehearse runs"),
        ({"gpus": 2, "mesh": eb.Mesh(context=2)}, "mesh: .*is not derived; allowed: no mesh; everybyte rehearse runs"),
        ({"gpus": 2, "buckets": "views"}, "buckets: 'views' with optimizer .* copies a gradient .*; allowed: 'copies'"),
    ],
)  # fmt: skip
def test_what_does_not_go_together(optimizer, more, said):
    with pytest.raises(ValueError, match=rf"^Setup\.{said}"):
        eb.Setup(optimizer=optimizer, **more)


def test_an_h200_was_asked_for_as_much_less():
    """Requested bytes at the peak of a Llama's third step with each optimizer, and with AdamW (`tools/beside/scripts/methods.py`)."""
    llama = eb.model("llama-3.1-8b").replace(
        layers=3, width=1024, heads=16, kv_heads=4, head_width=64, ffn_width=2816, vocabulary=32003, tied=False
    )
    setup = eb.Setup(batch=4, sequence=1024, precision="bf16", optimizer_impl="loop")
    there = {row["name"]: row["printed"]["FOUND"][2][0] for row in ran.scripts().values() if row["group"] == "methods"}
    usual = eb.budget(llama, setup).peak
    for name, optimizer in (("8bit", EIGHT), ("4bit", FOUR), ("fp8", FP8)):
        here = eb.budget(llama, setup.replace(optimizer=optimizer, optimizer_impl=None)).peak
        assert there["foreach"] - there[name] == usual - here > 0
