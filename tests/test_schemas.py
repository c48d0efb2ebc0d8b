"""The JSON Schemas that are published are those of the answers: made again, and held to other command lines than those that made them."""

import json

import pytest
import schemas
from jsonschema import Draft202012Validator
from jsonschema.exceptions import ValidationError

from everybyte.command import main, words

OTHERS = {
    "models": "", "gpus": "", "formulas": "", "budget": "gpt2-medium --batch 2 --adapters rank=4 --loop trainer", "fit": "gpt2-medium --gpu rtx-4090 --precision bf16-mixed",
    "layouts": "gpt2-xl --gpus 2 --gpu rtx-4090 --most 3", "serve": "gpt2-xl --gpu rtx-4090 --cache paged --context 900", "align": "dpo gpt2-medium --batch 2",
    "dry-run": "gpt2 --batch 2 --sequence 4 --adapters rank=4", "compare": "gpt2 --batch 2 --sequence 4", "derive": "gpt2 --precision fp32",
    "doctor": "MESSAGE gpt2-medium --gpu rtx-4090", "snapshot": schemas.SNAPSHOT, "explain": "gpt2-medium --precision bf16-mixed MESSAGE",
}  # fmt: skip


@pytest.mark.parametrize("command", OTHERS)
def test_another_answer_has_it_too_and_one_that_is_short_of_a_field_has_not(command):
    assert {*OTHERS} == {*words.schemas()} == {*words.SAID["schemas"]}
    validator = Draft202012Validator(words.schemas()[command])
    validator.check_schema(words.schemas()[command])
    found = schemas.answered(command, OTHERS[command])
    validator.validate(found)
    one = found[0] if isinstance(found, list) else found
    name = (words.schemas()[command].get("items") or words.schemas()[command])["required"][0]
    del one[name]
    with pytest.raises(ValidationError, match=f"'{name}' is a required property"):
        validator.validate(found)


@pytest.mark.parametrize("command", ["models", "gpus", "formulas", "budget", "snapshot", "doctor", "align", "serve"])
def test_it_is_what_is_made_of_the_answers(command):
    assert schemas.made(command) == words.schemas()[command], "python tools/schemas.py"


def test_the_command_prints_it(capsys):
    assert main(["schema", "fit", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == words.schemas()["fit"]
    assert main(["schema", "record"]) == 2
    assert "schema.answer: 'record' is unknown" in capsys.readouterr().err
