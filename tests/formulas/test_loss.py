"""The chunked loss: the plain one's gradients, and a theory that says what PyTorch counts, to the byte."""

from collections import Counter
from random import Random

import grid
import pytest
import torch
import witnesses

import everybyte as eb
from everybyte.ask.choices import PRECISIONS
from everybyte.formulas import formula
from everybyte.reference import GPT

SMALL = eb.Model(name="small", layers=2, width=16, heads=2, vocabulary=101, positions=13)
SETUP = eb.Setup(batch=5, sequence=7)


def anything(seed):
    """As `grid.anything`, with the tokens in chunks: mostly few, sometimes up to one each."""
    model, setup, _ = grid.anything(seed)
    draw, tokens = Random(seed), setup.batch * setup.sequence
    return model, setup.replace(loss="chunked", loss_chunks=draw.randint(1, min(tokens, draw.choice([3, 12, tokens]))))


@pytest.mark.sampled(1)
@pytest.mark.parametrize("start", range(0, 120, 40))
def test_any_model_any_setup(start, sample):
    found = {}
    for seed in sample(range(start, start + 40), 15):
        if wrong := witnesses.disagreements(*anything(seed)):
            found[seed] = wrong
    assert found == {}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("precision", PRECISIONS)
def test_one_chunk_two_or_many_with_a_smaller_last(precision, tied):
    model = SMALL.replace(tied=tied)
    setups = [SETUP.replace(precision=precision, loss="chunked", loss_chunks=n) for n in (1, 2, 3, 4, 8, 35)]
    assert {s.loss_chunks: found for s in setups if (found := witnesses.disagreements(model, s))} == {}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("precision", PRECISIONS)
def test_gpt2(precision):
    setup = eb.Setup(batch=3, sequence=1000, precision=precision, loss="chunked", loss_chunks=7)
    assert witnesses.disagreements(eb.model("gpt2"), setup) == []
    assert eb.budget(eb.model("gpt2"), setup).peak < eb.budget(eb.model("gpt2"), eb.Setup(precision=precision)).peak


def test_it_lifts_the_peak_off_the_loss():
    plain, chunked = (eb.budget(eb.model("gpt2"), eb.Setup(loss=loss)) for loss in ("plain", "chunked"))
    assert plain.parts["loss"] > 3 * 8 * 1024 * 50257 * 4 > 4 * chunked.parts["loss"]
    assert plain.peak - chunked.peak > 2 * 8 * 1024 * 50257 * 4


@pytest.mark.parametrize("loss", ["plain", "chunked"])
@pytest.mark.parametrize("precision", PRECISIONS)
def test_the_logits_sized_tensors_at_the_worst_moment(precision, loss):
    setup = SETUP.replace(precision=precision, loss=loss)
    tokens = 5 if loss == "chunked" else 35
    trace, sizes = eb.dry_run(SMALL, setup), {tokens * SMALL.vocabulary * width for width in (2, 4)}
    worst = max(sum(a.bytes for a in trace.owners(i) if a.bytes in sizes) for i in range(len(trace.operations)))
    assert worst == formula("loss.logits").at(SMALL, setup)


def step(model, setup):
    """The module after backward, on real tensors that every call draws alike; and the loss."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        module = GPT(model, setup).initialize()
        tokens = torch.randint(model.vocabulary, (setup.batch, setup.sequence))
    loss = module(tokens, torch.roll(tokens, -1, dims=1))
    loss.backward()
    return module, loss.detach()


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("chunks", [1, 2, 4, 8, 35])
def test_its_loss_and_gradients_are_the_plain_ones(chunks, tied):
    model = SMALL.replace(tied=tied)
    plain, expected = step(model, SETUP)
    module, loss = step(model, SETUP.replace(loss="chunked", loss_chunks=chunks))
    torch.testing.assert_close(loss, expected)
    for (name, p), (other, q) in zip(plain.named_parameters(), module.named_parameters(), strict=True):
        assert name == other
        torch.testing.assert_close(p.grad, q.grad)


@pytest.mark.parametrize(("chunks", "tied"), [(1, True), (2, True), (4, True), (2, False), (4, False)])
def test_real_tensors_meet_in_new_ones_as_often_as_the_dry_run_says(chunks, tied):
    """Autograd adds a gradient in place only where it may: of real tensors it is asked itself, with no mode in between."""
    model, setup = SMALL.replace(tied=tied), SETUP.replace(loss="chunked", loss_chunks=chunks)
    module, shape = GPT(model, setup).initialize(), [model.vocabulary, model.width]
    tokens = torch.randint(model.vocabulary, (setup.batch, setup.sequence))
    loss = module(tokens, tokens)
    with torch.profiler.profile(record_shapes=True) as profile:
        loss.backward()
    real = Counter(e.name for e in profile.events() if e.input_shapes[:1] == [shape])["aten::add"]
    size = 4 * model.vocabulary * model.width
    dry = [a for a in eb.dry_run(model, setup).allocations if a.operation == "add" and a.bytes == size]
    assert len(dry) == real == 1


def test_recomputation_leaves_checkpoint_as_it_was():
    before = torch.utils.checkpoint.checkpoint
    eb.dry_run(SMALL, SETUP.replace(loss="chunked"))
    assert torch.utils.checkpoint.checkpoint is before


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"loss": "plain", "loss_chunks": 9}, "Setup.loss_chunks: 9 needs loss 'chunked', not 'plain'"),
        ({"loss": "chunked", "loss_chunks": 36}, "Setup.loss_chunks: 36 is not a whole number from 1 to 35"),
    ],
)
def test_chunks_that_cannot_be(wrong, words):
    with pytest.raises(ValueError) as error:
        SETUP.replace(**wrong)
    assert str(error.value) == words
