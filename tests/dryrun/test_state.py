"""A dry run that is interrupted, anywhere, leaves nothing behind."""

import gc

import pytest
import torch

import everybyte as eb
from everybyte.dryrun import cuda
from everybyte.reference import GPT, Trainer
from everybyte.reference.gpt import Block

SMALL = eb.Model(name="small", layers=2, width=48, heads=3, vocabulary=101, positions=40)
SETUP = eb.Setup(batch=2, sequence=8, precision="fp16-mixed", dropout=0.1)


def raising(error):
    def raise_(*_, **__):
        raise error

    return raise_


def in_backward(monkeypatch, error):
    forward = Block.forward

    def hooked(self, x):
        y = forward(self, x)
        y.register_hook(raising(error))
        return y

    monkeypatch.setattr(Block, "forward", hooked)


PLACES = {
    "factory": lambda patch, error: patch.setattr(GPT, "__init__", raising(error)),
    "first update": lambda patch, error: patch.setattr(Trainer, "update", raising(error)),
    "forward": lambda patch, error: patch.setattr(Block, "forward", raising(error)),
    "autocast": lambda patch, error: patch.setattr(cuda.Autocast, "_lower", raising(error)),
    "backward": in_backward,
    "optimizer": lambda patch, error: patch.setattr(torch.optim.AdamW, "zero_grad", raising(error)),
}


@pytest.mark.sampled(6)
@pytest.mark.parametrize("collecting", [True, False])
@pytest.mark.parametrize("error", [KeyboardInterrupt, MemoryError])
@pytest.mark.parametrize("place", PLACES)
def test_an_interruption_leaves_no_global_state(monkeypatch, state, place, error, collecting):
    expected = eb.dry_run(SMALL, SETUP)
    (gc.enable if collecting else gc.disable)()
    try:
        before = state()
        with monkeypatch.context() as patch:
            PLACES[place](patch, error)
            with pytest.raises(error):
                eb.dry_run(SMALL, SETUP)
        assert state() == before
    finally:
        gc.enable()
    after = eb.dry_run(SMALL, SETUP)
    assert after.operations == expected.operations
    assert after.as_dict() == expected.as_dict()


def test_a_dry_run_leaves_no_global_state_and_draws_no_random_number(state):
    before = state()
    eb.dry_run(SMALL, SETUP)
    assert state() == before


def test_where_gradients_are_switched_off_the_dry_run_has_them_and_leaves_them_off():
    expected = eb.dry_run(SMALL, SETUP)
    with torch.no_grad():
        assert eb.dry_run(SMALL, SETUP).as_dict() == expected.as_dict()
        assert not torch.is_grad_enabled()


def test_a_default_data_type_of_the_callers_changes_nothing():
    expected = eb.dry_run(SMALL, SETUP)
    torch.set_default_dtype(torch.float64)
    try:
        assert eb.dry_run(SMALL, SETUP).as_dict() == expected.as_dict()
    finally:
        torch.set_default_dtype(torch.float32)


def test_what_lives_is_gathered_by_owner():
    trace = eb.dry_run(eb.model("gpt2"), eb.Setup(batch=1, sequence=64), rounding=512)
    rows = trace.by_owner()
    assert sum(size for *_, size in rows) == trace.peak
    assert [size for *_, size in rows] == sorted((size for *_, size in rows), reverse=True)
    found = {(owner, part): (count, size) for owner, part, count, size in trace.by_owner(trace.marks["after_forward"])}
    assert found["blocks.*.mlp.up", "activations"] == (12, 12 * 64 * 4 * 768 * 4)
    assert found["blocks.*.mlp.up.weight", "parameters"] == (12, 12 * 4 * 768 * 768 * 4)
    assert not any(part == "activations" and owner.startswith("blocks") for owner, part, *_ in trace.by_owner(0))
