"""Two processes train as one would on the whole batch, and each holds the bytes that the dry run counts."""

from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from processes import loaded, together

import everybyte as eb
from everybyte.reference import GPT, Trainer
from everybyte.reference.parallel import units

SCRIPT = Path(__file__).with_name("ranks.py")
ranks = loaded(SCRIPT)


@pytest.fixture(scope="module")
def seen(request):
    """What each of two processes saw, by the name of its setup: of those that a test asks for."""
    here = [item.callspec for item in request.session.items if item.path == request.path and hasattr(item, "callspec")]
    return together(SCRIPT, ranks.GPUS, *sorted({case.params["name"] for case in here if "name" in case.params}))


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", ranks.SETUPS)
def test_two_processes_train_as_one_on_the_whole_batch(seen, name):
    setup = ranks.SETUPS[name]
    alone = ranks.SETUP.replace(batch=ranks.GPUS * ranks.SETUP.batch, accumulation=setup.accumulation)
    expected, _ = ranks.train(alone, lambda all: all.flatten(0, 1), model=ranks.model(setup))
    together = [sum(losses) / ranks.GPUS for losses in zip(*(rank[name][0] for rank in seen), strict=True)]
    assert together == pytest.approx(expected, rel=2e-6)  # sums in another order, in fp32
    assert seen[0][name][0] != seen[1][name][0]  # each on tokens of its own
    assert abs(expected[-1] - expected[0]) > 1e-3


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", ranks.SETUPS)
def test_each_process_holds_what_the_dry_run_counts(seen, name):
    setup = ranks.SETUPS[name]
    # Where there is no GPU the two memories are one, and FSDP copies nothing between them.
    trace = eb.dry_run(ranks.model(setup), setup.replace(offload="none"))
    expected = {moment: trace.phases[moment] for moment in ("rest", "after_forward", "after_backward", "after_step")}
    expected["peak"] = trace.peak
    for rank, (_, count) in enumerate(seen[name] for seen in seen):
        # FSDP's mesh is a list of the GPUs, 4 bytes each, which a GPU machine has in the CPU's memory.
        other = 4 * ranks.GPUS if setup.fsdp else 0
        if setup.fsdp and setup.replicas == 1 and rank == 1:
            tables = 1 if ranks.model(setup).tied else 2
            other -= (
                4 * ranks.MODEL.width * tables
            )  # 101 tokens: the second has a row of states less; its weights are padded
        assert count == {moment: size + other for moment, size in expected.items()}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", ranks.SHORT)
def test_two_processes_train_as_one_in_16_bits(seen, name):
    alone = ranks.SHORT[name].replace(gpus=1, sharding="none", batch=ranks.GPUS * ranks.SETUP.batch)
    expected, _ = ranks.train(alone, lambda all: all.flatten(0, 1))
    together = [sum(losses) / ranks.GPUS for losses in zip(*(rank[name][0] for rank in seen), strict=True)]
    assert together == pytest.approx(expected, rel=1e-2)


def test_the_blocks_are_the_units():
    with torch.device("meta"):
        gpt = GPT(ranks.MODEL, ranks.SETUP)
    assert units(gpt) == list(gpt.blocks)
    assert units(torch.nn.Linear(2, 2)) == []


def test_as_many_gpus_as_there_are_processes():
    setup = ranks.SETUPS["zero3"].replace(gpus=4)
    with pytest.raises(
        ValueError, match=r"^Setup\.gpus: 4, and there is no process group; allowed: as many as torchrun"
    ):
        Trainer(GPT(ranks.MODEL, setup), setup)
    dist.init_process_group("fake", rank=0, world_size=2, store=dist.HashStore())
    try:
        for sharding in ("none", "zero1", "zero3"):
            with pytest.raises(ValueError, match=r"^Setup\.gpus: 4, and the process group has 2"):
                Trainer(GPT(ranks.MODEL, setup), setup.replace(sharding=sharding))
    finally:
        dist.destroy_process_group()
