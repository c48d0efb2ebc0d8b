"""Refusals for programs: the field, the value, what is allowed and who answers, read off the one form that every error has."""

import json

import pytest

from everybyte.command import main
from everybyte.common.refusals import parts

REFUSED = {
    "budget gpt2 --precision bf16-mix": ("Setup.precision", "bf16-mix", "fp32, bf16", None),
    "budget gpt2 --batch -1": ("Setup.batch", -1, "a whole number from 1 to ", None),
    "budget gpt2 --batch two": ("--batch", "two", "a whole number, such as 1024", "see everybyte budget --help"),
    "budget llama-3.2-1b --code transformers --loss chunked": (
        "Setup.loss", "chunked", "'plain'", "the book's code takes it: eb.model(name, code='reference')",
    ),
    "budget gpt2 --optimizer muon --sharding zero1 --gpus 8": ("Setup.optimizer", "muon", "sgd, momentum, adam", None),
    "fit gpt2 --memory 24": ("--memory", "24", "a number followed by a unit, such as", None),
    "fit gpt2": ("fit", None, "one of them, a name from `everybyte gpus` or a size as 24GiB", None),
    "bugdet gpt2": ("command.name", "bugdet", "models, gpus", None),
    "budget bert-large --sequence 512": ("Model.causal", False, "True", "eb.dry_run and eb.derive take what transformers builds"),
    "rehearse": ("rehearse", None, "everybyte rehearse -- python train.py", None),
}  # fmt: skip


@pytest.mark.parametrize("typed", REFUSED)
def test_with_json_a_refusal_is_json_too(capsys, typed):
    assert main([*typed.split(), "--json"]) == 2
    out, err = capsys.readouterr()
    said = json.loads(out)["refused"]
    field, value, allowed, instead = REFUSED[typed]
    assert (said["field"], said["value"], said["instead"]) == (field, value, instead)
    assert said["allowed"].startswith(allowed)
    assert err == f"everybyte: {said['text']}\n"


def test_without_json_it_is_the_line_alone(capsys):
    assert main(["budget", "gtp2"]) == 2
    assert capsys.readouterr().out == ""
    assert main(["diff", "main", "--", "python", "train.py", "--json"]) == 2  # the script's own
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(
    "text", ["", ": ", "x", "a: 'b", "allowed: ", "Setup.batch: 1_0 and 'a\\", "{'a': 1}: b; allowed: c; d; e"]
)
def test_any_text_has_parts(text):
    assert parts(text)["text"] == text


def test_a_mistake_of_ours_is_said_as_one(monkeypatch, capsys):
    def broken(*_, **__):
        raise ZeroDivisionError("x")

    monkeypatch.setattr("everybyte.command.answers.predict", broken)
    assert main(["budget", "gpt2", "--json"]) == 70
    assert json.loads(capsys.readouterr().out)["failed"].startswith("this is a mistake of ours, ZeroDivisionError: x")
