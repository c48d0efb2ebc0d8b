"""The reference really trains: on the CPU, with data, in every precision and with every optimizer."""

from contextlib import contextmanager

import pytest
import torch

import everybyte as eb
from everybyte.ask.choices import COMMON_OPTIMIZERS, MASTER_GRADIENTS, OPTIMIZER_IMPLS
from everybyte.reference import GPT, Trainer
from everybyte.reference.step import random_batch

TINY = eb.Model(name="tiny", layers=2, width=32, heads=2, vocabulary=61, positions=24)
SETUP = eb.Setup(batch=4, sequence=16)
CPU = torch.device("cpu")


def gpt(setup=SETUP, model=TINY, seed=0):
    torch.manual_seed(seed)
    return GPT(model, setup).initialize()


def one_batch(setup=SETUP, model=TINY):
    """The same tokens at every step."""
    torch.manual_seed(1)
    inputs = random_batch(model.vocabulary, setup, CPU)()
    return lambda: inputs


def train(setup, steps, model=TINY, rate=None):
    """A trainer after some steps on one batch, and the losses."""
    trainer = Trainer(gpt(setup, model), setup)
    if rate:
        inner = getattr(trainer.optimizer, "optimizer", trainer.optimizer)
        for group in inner.param_groups:
            group["lr"] = rate
    batch = one_batch(setup, model)
    return trainer, [trainer.step(batch).item() for _ in range(steps)]


@pytest.mark.sampled(4)
@pytest.mark.parametrize("precision", ["fp32", "bf16-mixed", "fp16-mixed", "bf16-master", "bf16"])
@pytest.mark.parametrize("attention", ["eager", "flash"])
def test_the_loss_of_a_repeated_batch_falls(precision, attention):
    setup = SETUP.replace(precision=precision, attention=attention)
    trainer, losses = train(setup, 60, rate=3e-3)
    assert abs(losses[0] - torch.tensor(61.0).log()) < 0.2  # at first every token is as likely as any other
    assert losses[-1] < 0.5 * losses[0]
    assert {p.dtype for p in trainer.module.parameters()} == {
        torch.float32 if precision in ("fp32", "bf16-mixed", "fp16-mixed") else torch.bfloat16
    }


@pytest.mark.sampled(4)
@pytest.mark.parametrize("impl", OPTIMIZER_IMPLS)
@pytest.mark.parametrize("optimizer", COMMON_OPTIMIZERS)
def test_every_optimizer_lowers_the_loss(optimizer, impl):
    rate = 0.3 if optimizer == "sgd" else 0.05 if optimizer == "momentum" else 3e-3
    _, losses = train(SETUP.replace(optimizer=optimizer, optimizer_impl=impl), 40, rate=rate)
    assert losses[-1] < losses[0] - 0.7


@pytest.mark.parametrize("precision", ["fp32", "bf16-master"])
@pytest.mark.parametrize("optimizer", COMMON_OPTIMIZERS)
def test_the_implementations_of_an_optimizer_do_the_same_with_the_same_gradients(optimizer, precision):
    weights = {}
    for impl in OPTIMIZER_IMPLS:
        setup = SETUP.replace(optimizer=optimizer, optimizer_impl=impl, precision=precision)
        trainer = Trainer(gpt(setup), setup)
        torch.manual_seed(3)
        for _ in range(4):
            for p in trainer.module.parameters():
                p.grad = torch.randn_like(p)
            trainer.update()
            trainer.optimizer.zero_grad()
        weights[impl] = [p.detach().clone() for p in getattr(trainer.optimizer, "masters", trainer.module.parameters())]
    for impl in ("loop", "fused"):
        for a, b in zip(weights[impl], weights["foreach"], strict=True):
            torch.testing.assert_close(a, b)
    assert not torch.equal(weights["loop"][0], gpt().token.weight)


def test_the_chunked_loss_trains_as_the_plain_one():
    sgd = SETUP.replace(optimizer="sgd")
    plain, losses = train(sgd, 5, rate=0.1)
    for chunks in (1, 3, 8, 64):
        chunked, others = train(sgd.replace(loss="chunked", loss_chunks=chunks), 5, rate=0.1)
        assert others == pytest.approx(losses, rel=1e-5)
        for name, weight in plain.module.state_dict().items():
            torch.testing.assert_close(chunked.module.state_dict()[name], weight)


@pytest.mark.parametrize("optimizer", COMMON_OPTIMIZERS)
def test_wherever_gradients_are_kept_the_master_weights_are_the_same(optimizer):
    setup = SETUP.replace(precision="bf16-master", optimizer=optimizer)
    runs = [train(setup.replace(master_gradients=where), 8, rate=1e-2)[0] for where in MASTER_GRADIENTS]
    first = runs[0]
    for other in runs[1:]:
        for mine, its in zip(first.optimizer.masters, other.optimizer.masters, strict=True):
            torch.testing.assert_close(its, mine)
        for mine, its in zip(first.module.parameters(), other.module.parameters(), strict=True):
            torch.testing.assert_close(its, mine)
    for master, weight in zip(first.optimizer.masters, first.module.parameters(), strict=True):
        assert master.dtype is torch.float32
        assert torch.equal(master.bfloat16(), weight)
    assert not torch.equal(first.module.token.weight, gpt(setup).token.weight.bfloat16())


def test_the_master_copy_keeps_what_16_bits_would_lose():
    """Norms start at 1, where an update under 2**-9 is less than half a unit in bf16's last place."""
    for precision in ("bf16", "bf16-master"):
        setup = SETUP.replace(precision=precision, optimizer="sgd")
        trainer, _ = train(setup, 10, rate=1e-3)
        norms = [(n, p) for n, p in trainer.module.named_parameters() if "norm" in n and n.endswith("weight")]
        assert all(torch.equal(p, torch.ones_like(p)) for _, p in norms)
        if precision == "bf16-master":
            names = [n for n, _ in trainer.module.named_parameters()]
            masters = [trainer.optimizer.masters[names.index(n)] for n, _ in norms]
            assert all((m != 1).any() for m in masters)


@pytest.mark.parametrize("where", MASTER_GRADIENTS)
def test_gradients_stand_where_the_setup_says(where):
    setup = SETUP.replace(precision="bf16-master", master_gradients=where)
    trainer, seen = Trainer(gpt(setup), setup), {}

    def at(moment):
        seen[moment] = [p.grad is not None for p in trainer.module.parameters()]
        assert all(m.grad is None for m in trainer.optimizer.masters)

    trainer.step(one_batch(setup), at)
    assert set(seen["after_forward"]) == {False}
    assert set(seen["after_backward"]) == {where != "fp32"}
    assert all(p.grad is None for p in trainer.module.parameters())
    buffers = trainer.optimizer.buffers
    assert (buffers is None) == (where == "bf16")
    assert all(b.dtype is torch.float32 and not b.any() for b in buffers or ())


def test_the_moments_come_in_order_and_gradients_are_gone_after_them():
    trainer, moments = Trainer(gpt(), SETUP), []
    loss = trainer.step(one_batch(), moments.append)
    assert moments == ["after_forward", "after_backward", "after_step"]
    assert not loss.requires_grad and loss.shape == ()
    assert all(p.grad is None for p in trainer.module.parameters())


def test_an_infinite_gradient_skips_the_step():
    setup = SETUP.replace(precision="fp16-mixed")
    trainer = Trainer(gpt(setup), setup)
    before = [p.detach().clone() for p in trainer.module.parameters()]
    hook = trainer.module.token.weight.register_hook(lambda grad: grad * float("inf"))
    scale = trainer.scaler.get_scale()
    trainer.step(one_batch(setup))
    assert all(torch.equal(a, b) for a, b in zip(before, trainer.module.parameters(), strict=True))
    assert trainer.scaler.get_scale() < (scale or 2.0**16)
    hook.remove()
    for _ in range(30):  # the scale comes down until the gradients fit
        trainer.step(one_batch(setup))
    assert not torch.equal(before[0], trainer.module.token.weight)


def test_autocast_is_what_the_caller_says():
    entered = []

    @contextmanager
    def own(dtype):
        entered.append(dtype)
        yield

    for precision in ("fp32", "bf16-mixed", "fp16-mixed", "bf16-master", "bf16"):
        setup = SETUP.replace(precision=precision)
        Trainer(gpt(setup), setup, autocast=lambda dtype: own(dtype)).step(one_batch(setup))
    assert entered == [torch.bfloat16, torch.float16]


def test_targets_are_the_next_tokens():
    tokens, targets = random_batch(61, SETUP, CPU)()
    assert tokens.shape == targets.shape == (4, 16)
    assert tokens.dtype is targets.dtype is torch.int64
    assert torch.equal(targets[:, :-1], tokens[:, 1:])
    assert 0 <= tokens.min() and tokens.max() < 61
