"""Five classic leaks are found, with the line and the holder; a step without one is told to have none."""

import gc
from functools import lru_cache
from types import ModuleType

import pytest
import torch
from torch import nn

import everybyte as eb
from everybyte.answers.leaking import _ASKED, _LOOKED


@pytest.fixture(scope="module", autouse=True)
def kept():
    """A script with what a leak may fill. What other tests have left is put aside: each step of each test would search it."""
    gc.collect()
    gc.freeze()
    script = ModuleType("script")
    exec("LOSSES, ERRORS = [], []", vars(script))  # noqa: S102  as a script is run: with a name and builtins
    yield script
    gc.unfreeze()


def model():
    return nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.Linear(64, 1))


def trained(net, optimizer):
    loss = net(torch.randn(8, 32)).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return loss


@pytest.fixture
def parts(kept):
    net = model()
    kept.LOSSES.clear()
    kept.ERRORS.clear()
    return net, torch.optim.AdamW(net.parameters())


def test_a_plain_step_has_none(parts):
    found = eb.leaks(lambda: trained(*parts))
    assert not found.leaking and found.bytes == 0 and len(found.alive) == 4 and "nothing grows" in repr(found)


def test_a_list_of_losses_with_their_graphs(parts, kept):
    net, _ = parts
    found = eb.leaks(lambda: kept.LOSSES.append(net(torch.randn(8, 32)).square().mean()))
    assert found.leaking and found.alive == sorted(found.alive)
    # input, first product, GELU's result, second product, mean: what backward would need, and the loss itself
    assert found.bytes == 4 * (8 * 32 + 8 * 64 + 8 * 64 + 8 * 1 + 1)
    assert any("LOSSES" in holder for row in found.rows for holder in row.holders)


def test_what_autograds_graph_alone_holds_is_said(parts, kept):
    net, _ = parts
    found = eb.leaks(lambda: kept.LOSSES.append(net(torch.randn(8, 32)).square().mean().grad_fn))
    assert found.leaking and found.rows[0].graph and "autograd's graph" in repr(found)


def test_their_numbers_alone_leave_nothing(parts, kept):
    assert not eb.leaks(lambda: kept.LOSSES.append(trained(*parts).item())).leaking


def test_a_hook_that_keeps(parts):
    net, optimizer = parts
    seen = []
    net[0].register_forward_hook(lambda module, inputs, out: seen.append(out.detach()))
    found = eb.leaks(lambda: trained(net, optimizer))
    assert found.bytes == 4 * 8 * 64 and any("hook" in h or "seen" in h or "list" in h for h in found.rows[0].holders)


def test_errors_that_keep_their_frames(parts, kept):
    net, _ = parts

    def fails():
        activation = net(torch.randn(8, 32))
        raise RuntimeError(str(activation.shape))

    def step():
        try:
            fails()
        except RuntimeError as error:
            kept.ERRORS.append(error)

    found = eb.leaks(step)
    assert found.leaking and any(
        "frame" in holder and "activation" in holder for row in found.rows for holder in row.holders
    )
    assert any("fails" in row.where for row in found.rows)


def test_a_cache(parts):
    @lru_cache(None)
    def mask(number):
        return torch.ones(number, 64)

    numbers = iter(range(8, 100))
    found = eb.leaks(lambda: mask(next(numbers)))
    assert found.leaking and "mask" in found.rows[0].where


def test_a_closure_that_grows(parts):
    later = []

    def step():
        batch = torch.randn(16, 16)
        later.append(lambda: batch.sum())

    found = eb.leaks(step)
    assert found.bytes == 4 * 16 * 16 and found.rows[0].holders


def test_a_crowd_of_holders_without_names_is_not_asked_one_by_one(parts, monkeypatch):
    """Each question goes through all that Python knows: thousands of them took minutes in a large process."""
    kept, asked, referrers = [], [], gc.get_referrers
    far = [[kept] for _ in range(3000)]
    monkeypatch.setattr(gc, "get_referrers", lambda *things: asked.append(things) or referrers(*things))
    found = eb.leaks(lambda: kept.append(torch.ones(64, 64)), steps=3)
    assert found.leaking and len(far) == 3000
    assert found.rows[0].holders == ("a list without a name",) and not found.rows[0].graph
    assert 0 < len(asked) <= _LOOKED * _ASKED * len(found.rows)


def test_too_few_steps_are_refused():
    with pytest.raises(ValueError, match="leaks.steps: 2"):
        eb.leaks(lambda: None, steps=2)
