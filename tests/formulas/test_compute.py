"""FLOPs by formula are what PyTorch's own counter finds in the real step."""

from contextlib import ExitStack
from functools import partial

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

import everybyte as eb
from everybyte.dryrun.autocast import autocast_as_on_cuda
from everybyte.dryrun.cuda import Kernels
from everybyte.dryrun.modules import workload

GPT = eb.Model(name="small", layers=5, width=64, heads=4, vocabulary=101, positions=64, ffn_width=192)
LLAMA = eb.model("llama-2-7b", code="reference").replace(
    layers=3, width=64, heads=4, head_width=16, kv_heads=2, ffn_width=96, vocabulary=100
)
CHANGES = [
    {}, {"checkpointing": "full"}, {"checkpointing": "every-k", "checkpoint_every": 2}, {"checkpointing": "selective"},
    {"loss": "chunked"}, {"loss": "chunked", "checkpointing": "full"}, {"accumulation": 3, "checkpointing": "full"},
    {"dropout": 0.1, "checkpointing": "full"}, {"dropout": 0.1, "checkpointing": "selective"},
]  # fmt: skip


def counted(model, setup):
    """FLOPs of one step, by PyTorch's counter, with CUDA's kernels on tensors without data."""
    work = workload(model, setup, None)
    with ExitStack() as stack:
        for mode in (torch.enable_grad(), Kernels(), autocast_as_on_cuda(), torch.device("meta")):
            stack.enter_context(mode)
        trainer = work.trainer(work.module(), setup, autocast=partial(torch.autocast, "cuda"))
        counter = stack.enter_context(FlopCounterMode(display=False))
        trainer.step(lambda: work.batch())
        return counter.get_total_flops()


def predicted(model, setup):
    done = ("flops.forward", "flops.backward", "flops.again.loss", "checkpoint.flops")
    return setup.accumulation * sum(eb.formula(name).at(model, setup) for name in done)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("attention", ["eager", "flash"])
@pytest.mark.parametrize("changes", CHANGES, ids=str)
@pytest.mark.parametrize("precision", ["fp32", "bf16-mixed"])
def test_the_formulas_are_pytorch_s_count(precision, changes, attention):
    setup = eb.Setup(batch=3, sequence=32, precision=precision, attention=attention, **changes)
    found = counted(GPT, setup)
    assert found == predicted(GPT, setup) > 6 * 3 * 32 * 5 * 12 * 64**2 // 2
    if not setup.dropout:
        assert counted(LLAMA, setup) == predicted(LLAMA, setup)


def test_six_times_the_parameters_is_the_first_term():
    gpt2, setup = eb.model("gpt2"), eb.Setup(batch=1, sequence=1, attention="eager")
    step = eb.formula("flops.forward").at(gpt2, setup) + eb.formula("flops.backward").at(gpt2, setup)
    assert step == pytest.approx(6 * 124_439_808, rel=0.01)
