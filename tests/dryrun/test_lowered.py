"""torchao's optimizers: what Inductor writes for their compiled step, held to rehearsals of it and to the theory's rule."""

from math import prod
from unittest import mock

import pytest
import ran
import torch
import witnesses
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard

import everybyte as eb
from everybyte.ask.choices import OPTIMIZERS
from everybyte.dryrun import lowered
from everybyte.dryrun.parallel import as_rank
from everybyte.dryrun.tracker import Tracker
from everybyte.reference.step import make_optimizer
from everybyte.theory import low_bits

LLAMA = eb.model("llama-3.1-8b", code="reference").replace(
    layers=3, width=256, heads=8, kv_heads=4, head_width=32, ffn_width=512, vocabulary=1003
)
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
#: Buffers of rank 0's step in rehearsals of FSDP2, by the shape of the whole tensor and the GPUs.
SHARED = {
    (EIGHT, (128, 128), 2): [128, 128, 32768, 32768],
    (EIGHT, (300, 256), 2): [],
    (EIGHT, (129, 64), 2): [],
    (EIGHT, (64, 64), 2): [],
    (FOUR, (8192,), 2): [128, 128, 16384, 16384, 32768, 32768],
    (FOUR, (128, 128), 2): [32768, 32768, 65536, 65536],
    (FOUR, (300, 256), 2): [1200, 1200, 153600, 153600, 307200, 307200],
    (FOUR, (130, 256), 8): [136, 136, 17408, 17408, 34816, 34816],
    (FOUR, (1000, 192), 8): [],
    (FP8, (128, 128), 2): [128, 128, 8192, 8192],
    (FP8, (8192,), 2): [64, 64],
    (FP8, (200, 256), 2): [],
}

#: Requested bytes of rank 0's third step under FSDP2 in rehearsals: at rest, after backward, at the most in the optimizer's step.
STEPS = [
    (FOUR, {"sharding": "zero3", "gpus": 2}, (5793856, 10364740, 13457060)),
    (EIGHT, {"sharding": "zero2", "gpus": 8, "precision": "bf16-mixed"}, (1772896, 2916834, 3048418)),
    (FOUR, {"sharding": "zero3", "gpus": 3, "precision": "bf16-master"}, (5410060, 6940354, 12064026)),
    (FP8, {"sharding": "zero3", "gpus": 4, "precision": "bf16-master"}, (4591152, 5734066, 8020402)),
    (EIGHT, {"sharding": "zero3", "gpus": 4, "optimizer_in_backward": True}, (3495600, 3495860, 3495860)),
]


def asked(optimizer, shape, dtype=torch.float32, among=lambda x: x):
    """Bytes of each buffer that a step makes of one tensor, by Inductor's code. among: divides it."""
    weight = nn.Parameter(among(torch.empty(shape, dtype=dtype, device="meta")))
    weight.grad, sizes, empty = torch.empty_like(weight), [], lowered._empty

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


def share(shape, gpus):
    return -(-shape[0] // gpus), *shape[1:]


def asked_of_a_share(optimizer, shape, gpus, dtype=torch.float32):
    """As `asked`, of rank 0's share of a tensor under FSDP2: a `DTensor`."""
    pytest.importorskip("torchao")
    stride = torch.empty(shape, device="meta").stride()
    with as_rank(eb.Setup(optimizer=optimizer, gpus=gpus, sharding="zero3"), Tracker()):
        mesh = init_device_mesh("meta", (gpus,))

        def among(local):
            return DTensor.from_local(local, mesh, [Shard(0)], run_check=False, shape=torch.Size(shape), stride=stride)

        return asked(optimizer, share(shape, gpus), dtype, among)


@pytest.mark.parametrize(("optimizer", "shape", "gpus"), SHARED)
def test_a_share_s_step_is_that_of_a_tensor_of_its_shape(optimizer, shape, gpus):
    local = share(shape, gpus)
    said = [numbers * width for numbers, width in low_bits.temporaries(optimizer, local, prod(local))]
    assert said == SHARED[optimizer, shape, gpus]


@pytest.mark.parametrize(("optimizer", "shape", "gpus"), [(FP8, (128, 128), 2), (EIGHT, (129, 64), 2)])
def test_inductor_s_code_for_a_share_is_what_rehearsals_ran(optimizer, shape, gpus):
    assert asked_of_a_share(optimizer, shape, gpus) == SHARED[optimizer, shape, gpus]


def test_torchao_s_states_of_shares_in_bf16_raise():
    """Which is why a setup says so before."""
    with pytest.raises(
        Exception, match=r"unimplemented operator/function: func=<OpOverload\(op='aten.view', overload='dtype'\)>"
    ):
        asked_of_a_share(FP8, (128, 128), 2, torch.bfloat16)


@pytest.mark.parametrize(("optimizer", "more", "phases"), STEPS)
def test_a_step_under_fsdp_is_what_a_rehearsal_asked_for(optimizer, more, phases):
    """But for two workspaces of cuBLAS, of 32 MiB each."""
    budget = eb.budget(LLAMA, eb.Setup(batch=1, sequence=16, optimizer=optimizer, **more))
    assert tuple(budget.phases[name] for name in ("rest", "after_backward", "step")) == phases


def test_gradients_that_start_off_16_bytes_are_refused_by_rule_and_by_dry_run():
    """The compiled step copies one where it was written for another that starts at 16: a rehearsal asked for it so."""
    odd = eb.Setup(batch=1, sequence=8, optimizer=FP8, sharding="zero3", gpus=3)
    with pytest.raises(
        ValueError,
        match=r"^Setup\.gpus: 3 with .* norm1\.weight each has 22 numbers, 88 bytes, .*; allowed: GPUs whose",
    ):
        eb.budget(GPT, odd)
    eb.budget(GPT, odd.replace(precision="bf16-master"))  # whose copies have storages of their own
    with pytest.raises(
        ValueError, match=r"^Setup\.gpus: 2 with optimizer .*: a gradient starts at no multiple of 16 bytes"
    ):
        eb.dry_run(Vectors, eb.Setup(optimizer=FP8, sharding="zero3", gpus=2), batch=(torch.empty(1, 8),))


class Vectors(nn.Module):
    """Of two weights each GPU has three numbers."""

    def __init__(self):
        super().__init__()
        self.one, self.other = (nn.Parameter(torch.empty(6)) for _ in range(2))

    def forward(self, x):
        return (x.sum() * self.one * self.other).sum()


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


@pytest.mark.thorough("Inductor writes code for a minute")
@pytest.mark.parametrize("optimizer", [EIGHT, FOUR, FP8])
@pytest.mark.parametrize(("gpus", "precision"), [(4, "fp32"), (3, "bf16-master")])
def test_every_optimizer_under_fsdp(optimizer, gpus, precision):
    pytest.importorskip("torchao")
    setup = eb.Setup(batch=1, sequence=8, optimizer=optimizer, precision=precision, sharding="zero3", gpus=gpus)
    assert not witnesses.disagreements(GPT, setup)


@pytest.mark.parametrize("optimizer", [name for name, row in OPTIMIZERS.items() if row.package == "torchao"])
@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"sharding": "zero3", "gpus": 2, "precision": "bf16"}, "precision: 'bf16' with optimizer .* raises .*; allowed: fp32,"),
        ({"sharding": "zero3", "gpus": 2, "offload": "cpu"}, "offload: 'cpu' .* compiled for the CPU; allowed: 'none' or"),
        ({"gpus": 2, "mesh": eb.Mesh(context=2)}, "mesh: .*is not derived; allowed: no mesh; everybyte rehearse runs"),
        ({"gpus": 2, "buckets": "views"}, "buckets: 'views' with optimizer .* copies a gradient .*; allowed: 'copies'"),
    ],
)  # fmt: skip
def test_what_does_not_go_together(optimizer, more, said):
    with pytest.raises(ValueError, match=rf"^Setup\.{said}"):
        eb.Setup(optimizer=optimizer, **more)


def test_an_h200_was_asked_for_as_much_less():
    """Requested bytes at the peak of a Llama's third step with each optimizer, and with AdamW (`tools/beside/scripts/methods.py`)."""
    setup = eb.Setup(batch=4, sequence=1024, precision="bf16", optimizer_impl="loop")
    there = {row["name"]: row["printed"]["FOUND"][2][0] for row in ran.scripts().values() if row["group"] == "methods"}
    llama, usual = ran.llama(3), eb.budget(ran.llama(3), setup).peak
    for name, optimizer in (("8bit", EIGHT), ("4bit", FOUR), ("fp8", FP8)):
        here = eb.budget(llama, setup.replace(optimizer=optimizer, optimizer_impl=None)).peak
        assert there["foreach"] - there[name] == usual - here > 0
