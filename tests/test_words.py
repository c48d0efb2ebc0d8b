"""Text of pairs, a=1 b=2: one reader for all that is said so, which loses nothing and guesses nothing."""

import pytest

import everybyte as eb
from everybyte.answers.alignment import Rollout
from everybyte.ask.mesh import Mesh
from everybyte.ask.setup import Lora
from everybyte.command import main
from everybyte.common import checks

#: A reader -> a pair of its own.
READERS = {Lora: "rank=8", Mesh: "tensor=2", Rollout: "sequences=2"}


@pytest.mark.parametrize("reader", READERS)
def test_what_is_said_twice_is_refused_by_name(reader):
    name, _, value = READERS[reader].partition("=")
    for again in (value, "16"):
        with pytest.raises(
            ValueError, match=rf"^{reader.__name__}\.{name}: '{value}' and '{again}'; allowed: one value"
        ):
            reader.read(f"{name}={value} {name}={again}")


@pytest.mark.parametrize("digits", ["²", "٣", "１６", "1_6", "0x8", "+8", "-8", "8.", "9" * 5000])
@pytest.mark.parametrize("reader", READERS)
def test_odd_digits_are_no_number(reader, digits):
    name = READERS[reader].partition("=")[0]
    rest = " context=8" if reader is Rollout else ""
    with pytest.raises(ValueError, match=rf"^{reader.__name__}\.{name}: ") as raised:
        reader.read(f"{name}={digits}{rest}")
    assert len(str(raised.value)) < 500


@pytest.mark.parametrize(
    ("text", "said"),
    [("rank", "Lora.rank: 'rank' has no value"), ("rank=", "Lora.rank: 'rank=' has no value"), ("=8", "Lora.field: ''"), ("rnak=8", "did you mean 'rank'"), (8, "Lora: 8; allowed: text")],
)  # fmt: skip
def test_what_is_no_pair_is_said(text, said):
    with pytest.raises(ValueError) as raised:
        Lora.read(text)
    assert said in str(raised.value)


def test_what_is_right_is_read():
    assert Lora.read("rank=8; targets=q,v dropout=0.05") == Lora(8, ("q", "v"), dropout=0.05)
    assert checks.pairs("x", ["a=1", "b=2=3", "c= "]) == {"a": "1", "b": "2=3", "c": " "}
    assert checks.natural("0" * 5000) is None and checks.natural("007") == 7


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ("budget gpt2 --adapters rank=8;rank=16", "Lora.rank: '8' and '16'; allowed: one value"),
        ("budget gpt2 --mesh tensor=2;tensor=2", "Mesh.tensor: '2' and '2'; allowed: one value"),
        ("align ppo gpt2 --rollout sequences=2;sequences=3", "Rollout.sequences: '2' and '3'; allowed: one value"),
        ("dry-run OWN --inputs x=B,4:float32 x=4,4:float32", "--inputs.x: 'B,4:float32' and '4,4:float32'; allowed: one value"),
        ("dry-run OWN --inputs x=B,²:float32", "--inputs: 'x=B,²:float32'; allowed: name=shape:type"),
        ("dry-run OWN --inputs x=B,R:float32 --sizes R=²", "--sizes: 'R=²'; allowed: a capital letter"),
        ("derive OWN --inputs x=B,R:float32 --sizes R=4 R=8", "--sizes.R: '4' and '8'; allowed: one value"),
        ("derive OWN --inputs x=B,R:float32 --sizes R", "--sizes.R: 'R' has no value; allowed: R=VALUE"),
        ("dry-run gpt2 --inputs tokens=B,S:int64", "--inputs: 'tokens=B,S:int64' with gpt2, whose inputs are tokens; allowed: with --module or --hf"),
        ("fit gpt2 --gpu t4 --inputs tokens=B,S:int64", "--inputs: 'tokens=B,S:int64' with gpt2"),
    ],
)  # fmt: skip
def test_at_the_command_line(arguments, said, capsys, tmp_path):
    (tmp_path / "own.py").write_text("import torch\n\n\ndef make():\n    return torch.nn.Linear(4, 4)\n")
    assert main(arguments.replace("OWN", f"--module {tmp_path / 'own.py'}:make").split()) == 2
    assert said in capsys.readouterr().err


def test_a_lora_survives_its_own_words():
    for lora in (Lora(), Lora(8, ("q", "v"), "bf16", "bf16", 0.5)):
        assert Lora.read(str(lora)) == lora
    assert eb.Setup(gpus=4, mesh=Mesh.read(str(Mesh(tensor=4)))).mesh == Mesh(tensor=4)
