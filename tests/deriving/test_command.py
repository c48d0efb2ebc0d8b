"""The command, with models of one's own."""

import json
import re

import pytest

from everybyte.command import main

MODULE = """
import torch
from torch import nn

class Mine(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.Linear(8, 8)

    def forward(self, x):
        return self.a(x).sum()
"""


@pytest.fixture
def own(tmp_path):
    (tmp_path / "mine.py").write_text(MODULE)
    return ["--module", f"{tmp_path / 'mine.py'}:Mine", "--inputs", "x=B,S,8:float32"]


def said(arguments, capsys):
    assert main([*arguments, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_a_module_in_a_file(own, capsys):
    derived = said(["derive", *own], capsys)
    assert derived["witness"] == "derive" and "B" in derived["latex"]
    counted = said(["dry-run", *own, "--batch", "3", "--sequence", "5"], capsys)
    assert counted["peak"] > 3 * 5 * 8 * 4
    assert said(["fit", *own, "--gpu", "rtx-4090", "--sequence", "64"], capsys)["fits"]


def test_a_configuration_in_a_file(tmp_path, capsys):
    pytest.importorskip("transformers")
    sizes = {"n_embd": 32, "n_layer": 2, "n_head": 2, "vocab_size": 101, "n_positions": 64}
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "gpt2", **sizes}))
    derived = said(["derive", "--hf", str(tmp_path / "config.json"), "--precision", "bf16", "--dropout", "0.1"], capsys)
    assert derived["layers"] == 2 and derived["setup"]["precision"] == "bf16"


def test_a_formula_beside_a_dry_run(own, capsys):
    point = ["--batch", "3", "--sequence", "5"]
    found = said(["compare", *own, *point], capsys)
    assert [w["witness"] for w in found["witnesses"]] == ["derive", "dry run"] and found["agree"]
    assert found["witnesses"][0]["setup"]["batch"] == 3
    assert found["witnesses"][0]["timeline"] == found["witnesses"][1]["timeline"]
    shared = ["--gpus", "4", "--sharding", "zero3", "--rank", "3"]
    assert (
        said(["derive", *own, *shared], capsys)["rank"] == said(["dry-run", *own, *point, *shared], capsys)["rank"] == 3
    )


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["derive"], "no model; allowed"),
        (["derive", "gpt2", "--hf", "config.json"], "2 models; allowed"),
        (["derive", "--hf", "nowhere.json"], "--hf: nowhere.json: No such file or directory; allowed"),
        (["derive", "--hf", __file__], f"--hf: {__file__}: no JSON, "),
        (["derive", "--module", "nowhere.py:f"], "--module: nowhere.py: No such file or directory; allowed"),
        (["derive", "--module", "nowhere"], "allowed: file.py:function"),
        (["derive", "gpt2", "--sizes", "R=2"], "--sizes: 'R=2'; allowed: with --inputs, sizes of its letters"),
        (["fit", "gpt2", "--gpu", "t4", "--sizes", "R=2"], "--sizes: 'R=2'; allowed: with --inputs"),
        (["derive", "gpt2", "--letters", "HV"], "derive.letters: 'HV' is unknown"),
        (["dry-run", "gpt2", "--rank", "1"], "dry_run.rank: 1; allowed: 0"),
        (["fit", "--hf", "config.json", "--gpu", "rtx-4090", "--plan"], "--hf: config.json"),
    ],
)
def test_bad_input(arguments, words, capsys):
    assert main(arguments) == 2
    assert words in capsys.readouterr().err


CONFIGS = {
    "brackets": ("[" * 100_000, "more than 200 lists and dicts within one another"),
    "braces": ('{"a":' * 50_000, "more than 200 lists and dicts within one another"),
    "an unknown part": ('{"model_type": "llava", "text_config": {"model_type": "none"}}', "… ("),
    "a type of ESC": ('{"model_type": "\\u001b[2J"}', r"model_type '\x1b[2J'; allowed"),
    "a type of many characters": (f'{{"model_type": "{"x" * 9999}"}}', "(9,799 characters more); allowed"),
}


@pytest.mark.parametrize(("text", "words"), CONFIGS.values(), ids=CONFIGS)
def test_a_hostile_configuration_is_said_in_a_line_that_can_be_read(text, words, tmp_path, capsys):
    (tmp_path / "config.json").write_text(text)
    assert main(["dry-run", "--hf", str(tmp_path / "config.json")]) == 2
    err = capsys.readouterr().err
    assert words in err and len(err) < 2000 and err.rstrip("\n").isprintable()


@pytest.mark.parametrize("command", ["dry-run", "derive", "fit"])
def test_inputs_that_are_missing_are_asked_for_by_their_option(command, own, capsys):
    card = ["--gpu", "t4"] if command == "fit" else []
    assert main([command, *own[:2], *card]) == 2
    assert (
        "--inputs: none with --module; allowed: the arguments of its forward, such as tokens=B,S:int64"
        in capsys.readouterr().err
    )
    assert main(["dry-run", *own[:3], "x=B,R,8:float32"]) == 2
    assert "--sizes: batch: the letter 'R' has no size; allowed: a size for each letter" in capsys.readouterr().err


THEIRS = """
from mine import Mine, nn

class Shape(Mine):
    def forward(self, x):
        return self.a(x.reshape(-1, 5)).sum()

class Named(Mine):
    def forward(self, y):
        return self.a(y).sum()

def needs(config):
    return Mine()

def failing():
    raise KeyError("width")
"""


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("Shape", "theirs.py, line 6, RuntimeError: shape '[-1, 5]' is invalid"),
        ("Named", "in forward, in module 'Named', after operation 'empty', TypeError: "),
        ("needs", "needs: missing a required argument: 'config'; allowed: a function that needs no argument"),
        ("failing", "theirs.py, line 16, KeyError: 'width'; EVERYBYTE_TRACEBACK=1 "),
    ],
)
def test_what_a_module_of_ones_own_raises_is_no_mistake_of_ours(name, words, own, tmp_path, capsys):
    (tmp_path / "theirs.py").write_text(THEIRS)
    for command in ("dry-run", "derive"):
        assert main([command, "--module", f"{tmp_path / 'theirs.py'}:{name}", *own[2:]]) == 2
        said = capsys.readouterr().err
        assert said.startswith("everybyte: --module: ") and said.count("\n") == 1 and words in said, said


@pytest.mark.parametrize(
    ("program", "words"),
    [
        ("import nothing_there", "ModuleNotFoundError: No module named 'nothing_there'"),
        ("def f(:", "SyntaxError: "),
        ("raise SystemExit(5)", "SystemExit: 5"),
        ("raise ValueError('as it says')", "ValueError: as it says"),
    ],
)
def test_a_file_that_does_not_run_is_named(program, words, tmp_path, capsys):
    (tmp_path / "it.py").write_text(program)
    assert main(["dry-run", "--module", f"{tmp_path / 'it.py'}:f", "--inputs", "x=B,4:float32"]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1 and f"it.py, when it is run: {words}" in said, said


LLAMA = {
    "model_type": "llama", "num_hidden_layers": 1, "hidden_size": 8, "intermediate_size": 8, "num_attention_heads": 2, "vocab_size": 9,
    "bos_token_id": None, "eos_token_id": None,
}  # fmt: skip


@pytest.mark.parametrize(
    ("junk", "words"),
    [
        ({"vocab_size": None}, "Validation error for field 'vocab_size'.*; allowed: what transformers' llama takes"),
        ({"intermediate_size": False}, "field 'intermediate_size'.*; allowed"),
        ({"num_key_value_heads": True}, "field 'num_key_value_heads'.*; allowed"),
        ({"model_type": []}, r"has model_type \[\]; allowed"),
        ({"num_key_value_heads": 0}, "LlamaConfig: its model does not run .*zero.*; allowed: dimensions that fit"),
        ({"num_key_value_heads": 3}, "LlamaConfig: its model does not run .*; allowed"),
        ({"vocab_size": -1}, "LlamaConfig: its model does not run .*; allowed"),
        ({"model_type": "gpt2", "n_embd": 8, "num_attention_heads": 3} | dict.fromkeys(("attn_pdrop", "embd_pdrop", "resid_pdrop"), 0.0), "GPT2Config: its model does not run .*divisible.*; allowed"),
    ],
    ids=str,
)  # fmt: skip
def test_junk_in_a_configuration_is_one_sentence(junk, words, tmp_path, capsys):
    path = tmp_path / "config.json"
    path.write_text(json.dumps(LLAMA | junk))
    assert main(["dry-run", "--hf", str(path), "--sequence", "4", "--batch", "1", "--attention", "eager"]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1 and re.search(words, said), said


def test_a_plan_of_ones_own_and_strange_inputs(own, capsys):
    planned = said(["fit", *own, "--gpu", "rtx-4090", "--sequence", "64", "--plan"], capsys)["plan"]
    assert planned["best"]["peak"] == planned["asked"]["peak"] < planned["usable"]
    assert main(["derive", *own[:2], "--inputs", "x=B,t:int64"]) == 2
    assert "--inputs" in capsys.readouterr().err


@pytest.mark.parametrize(("field", "value"), [("num_hidden_layers", 1_000_000), ("num_labels", 1_000_000_000)])
def test_sizes_that_would_take_hours_are_refused_at_once(tmp_path, capsys, field, value):
    path = tmp_path / "config.json"
    path.write_text(json.dumps({"model_type": "llama", "hidden_size": 64, "num_attention_heads": 4, field: value}))
    for command in ("derive", "dry-run"):
        assert main([command, "--hf", str(path)]) == 2
        said = capsys.readouterr().err
        assert field in said and f"{value:,}" in said and "allowed: 1" in said
