"""The labs' text, and its batches: always the same, and nothing on the device but two tensors."""

import tomllib
from pathlib import Path

import pytest
import torch

import everybyte as eb
from everybyte.dryrun.tracker import Tracker
from everybyte.reference.text import TEXT, text_batch


def setup(**fields):
    return eb.Setup(**{"batch": 3, "sequence": 40} | fields)


def test_the_text_is_short_and_plain_and_says_what_it_is():
    text = TEXT.read_text(encoding="ascii")
    assert 10_000 < len(text) < 200_000 and max(map(len, text.split())) < 30
    assert not {"gutenberg", "copyright", "license"} & set(text.lower().split())
    note = TEXT.with_name("TEXT.md").read_text(encoding="utf-8")
    assert all(word in note for word in (TEXT.name, "Lewis Carroll", "1865", "public domain"))


def test_the_package_ships_it():
    root = Path(__file__).resolve().parents[2]
    data = tomllib.loads((root / "pyproject.toml").read_text())["tool"]["setuptools"]["package-data"]["*"]
    for path in (TEXT, TEXT.with_name("TEXT.md")):
        assert any(path.match(pattern) for pattern in data)


def test_tokens_are_bytes_of_the_text_and_targets_the_next_ones():
    text = TEXT.read_bytes()
    tokens, targets = text_batch(256, setup(), "cpu")()
    for row, following in zip(tokens.tolist(), targets.tolist(), strict=True):
        assert bytes(row) in text and bytes([*row, following[-1]]) in text and row[1:] == following[:-1]
    assert tokens.shape == targets.shape == (3, 40) and tokens.dtype is targets.dtype is torch.int64


def test_another_batch_each_step_and_the_same_ones_again():
    batch, again = text_batch(50257, setup(), "cpu"), text_batch(50257, setup(), "cpu")
    first, second = batch(), batch()
    assert not torch.equal(first[0], second[0])
    assert torch.equal(first[0], again()[0]) and torch.equal(second[1], again()[1])


def test_small_batches_one_after_another_hold_what_a_large_one_does():
    small, large = text_batch(300, setup(batch=2), "cpu"), text_batch(300, setup(batch=8), "cpu")
    assert torch.equal(torch.cat([small()[0] for _ in range(4)]), large()[0])


@pytest.mark.parametrize("sequence", [1, 8192, 40_000])
def test_sequences_of_any_length(sequence):
    tokens, targets = text_batch(256, setup(batch=2, sequence=sequence), "cpu")()
    assert tokens.shape == (2, sequence) and torch.equal(tokens[:, 1:], targets[:, :-1])


def test_the_device_holds_two_tensors_and_never_more():
    batch = text_batch(256, setup(), "meta")
    with Tracker() as tracker:
        made = [*batch(), *batch()]
        sizes = [a.bytes for a in tracker.allocations]
    assert sizes == [8 * 3 * 40] * 4 and [t.untyped_storage().nbytes() for t in made] == sizes


def test_a_vocabulary_with_no_place_for_a_byte():
    with pytest.raises(ValueError, match=r"^text_batch\.vocabulary: 255 is too few.*256"):
        text_batch(255, setup(), "cpu")
