"""The server for agents, asked by the protocol's own client over standard input and output."""

import json
import os
import subprocess
import sys

import pytest

import everybyte as eb
from everybyte.command import agents, main, words
from everybyte.common.refusals import parts

mcp = pytest.importorskip("mcp")
anyio = pytest.importorskip("anyio")
OUT = (
    "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 23.65 GiB of which 1.00 GiB is free."
)
TRAIN = "import torch\nx = torch.ones(1024, 256, device='cuda', requires_grad=True)\nx.sum().backward()\nprint('the script says so')\n"


def asked(questions, *options, **environment):
    """(The tools that a server lists, by name; each question's answer)."""
    arguments = ["-m", "everybyte_command", "mcp", *options]
    there = mcp.StdioServerParameters(command=sys.executable, args=arguments, env=dict(os.environ) | environment)

    async def ask():
        async with mcp.Client(there) as client:
            listed = await client.list_tools()
            return {tool.name: tool for tool in listed.tools}, [
                await client.call_tool(name, said) for name, said in questions
            ]

    return anyio.run(ask)


def test_it_lists_its_tools_and_answers_as_the_command_does(capsys):
    setup = {"model": "gpt2", "batch": 8, "sequence": 1024, "precision": "bf16-mixed"}
    questions = [
        ("budget", setup), ("fit", setup | {"gpu": "rtx-4090"}), ("models", {}), ("gpus", {}), ("doctor", {"text": OUT}),
        ("budget", setup | {"precision": "bf16-mix"}), ("budget", {"model": "gpt2", "module": "x.py:f"}), ("rehearse", {"command": ["python", "x.py"]}),
    ]  # fmt: skip
    tools, (budget, fit, models, gpus, doctor, *refused) = asked(questions)
    assert set(tools) == set(agents.TOOLS)
    assert "bf16-mixed" in tools["fit"].input_schema["properties"]["precision"]["enum"] and tools[
        "budget"
    ].input_schema["required"] == ["model"]
    assert budget.structured_content == eb.budget(eb.model("gpt2"), eb.Setup(batch=8, precision="bf16-mixed")).as_dict()
    assert json.loads(budget.content[0].text) == budget.structured_content and not budget.is_error
    assert main("fit gpt2 --batch 8 --sequence 1024 --precision bf16-mixed --gpu rtx-4090 --json".split()) == 0
    assert fit.structured_content == json.loads(capsys.readouterr().out)
    assert [row["name"] for row in models.structured_content["answers"]] == [*eb.models()]
    assert [row["name"] for row in gpus.structured_content["answers"]] == [*eb.gpus()]
    assert not doctor.is_error
    fields = [(answer.is_error, answer.structured_content["refused"]["field"]) for answer in refused]
    assert fields == [(True, "Setup.precision"), (True, "budget.argument"), (True, "mcp.tool")]
    assert refused[0].structured_content["refused"]["allowed"].startswith("fp32, ")


def test_a_gap_is_explained():
    seen = json.dumps(
        {
            "allocated_bytes.all.peak": 9 * 10**9,
            "requested_bytes.all.peak": 9 * 10**9,
            "reserved_bytes.all.peak": 10**10,
        }
    )
    found = agents.answer("explain", {"predicted": "gpt2", "batch": 8, "precision": "bf16-mixed", "seen": seen})
    assert (
        sum(row["bytes"] for row in found["rows"])
        == found["difference"]
        == found["seen"]["bytes"] - found["predicted"]["bytes"]
    )


def test_a_formula_of_a_configuration_that_is_said():
    config = {
        "model_type": "llama",
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "vocab_size": 100,
    }
    _, [found] = asked([("derive", {"config": config, "sequence": 16, "precision": "bf16"})])
    assert not found.is_error and found.structured_content["peak"] and "B" in found.structured_content["latex"]


@pytest.mark.parametrize(
    ("tool", "arguments", "field"),
    [
        ("budget", {}, "budget.model"),
        ("budget", {"model": "gpt2", "batch": "8"}, "budget.batch"),
        ("budget", {"model": "gpt2", "batch": True}, "budget.batch"),
        ("budget", {"model": "--module=x.py:f"}, "model.name"),
        ("budget", {"model": "gpt2", "mesh": "tensors=2"}, "budget.mesh"),
        ("fit", {"model": "gpt2", "gpu": "t4", "hf": "/etc/passwd"}, "fit.argument"),
        ("doctor", {"text": "x", "file": "/etc/passwd"}, "doctor.argument"),
        ("doctor", {"text": "x", "rehearse": True}, "doctor.argument"),
        ("explain", {"predicted": "/etc/passwd", "seen": OUT}, "explain.predicted"),
        ("explain", {"predicted": "gpt2", "seen": OUT, "figure": "x.png"}, "explain.argument"),
        ("record", {}, "mcp.tool"),
    ],
)
def test_what_is_not_a_tool_s_is_refused(tool, arguments, field):
    with pytest.raises(ValueError) as error:
        agents.answer(tool, arguments)
    assert parts(str(error.value))["field"] == field


@pytest.mark.parametrize("tool", [*agents.TOOLS, "rehearse"])
def test_what_a_tool_takes_is_a_schema_of_the_command_s_own_options(tool):
    from jsonschema import Draft202012Validator

    schema = agents.takes(tool)
    Draft202012Validator.check_schema(schema)
    own = {action.dest for action in words.parsers()[1][tool]._actions}
    assert set(schema["properties"]) - own <= {"config", "text", "command", "folder"}  # seen is content too
    assert not {"hf", "module", "file", "set_up", "install", "torch", "packages", "grid", "out", "snapshot"} & set(
        schema["properties"]
    )


@pytest.mark.parametrize(
    ("arguments", "field"),
    [
        ({"command": ["bash", "train.py"]}, "rehearse.program"), ({"command": ["python", "-c", "1"]}, "rehearse.command"),
        ({"command": ["python", "-m", "train.py"]}, "rehearse.command"), ({"command": ["python", "../outside.py"]}, "rehearse.command"),
        ({"command": ["python", "link.py"]}, "rehearse.command"), ({"command": ["torchrun", "--log-dir=/x", "train.py"]}, "rehearse.command"),
        ({"command": ["python", "train.py"], "folder": ".."}, "rehearse.folder"), ({"command": "python train.py"}, "rehearse.command"), ({}, "rehearse.command"),
        ({"command": ["python", "train.py"], "install": "x"}, "rehearse.argument"), ({"command": ["python", "train.py"], "gpus": "2"}, "rehearse.gpus"),
        ({"command": ["python", "train.py"], "snapshot": "x"}, "rehearse.argument"),
    ],
)  # fmt: skip
def test_a_rehearsal_stays_in_its_folder(tmp_path, arguments, field):
    folder = tmp_path / "mine"
    folder.mkdir()
    (folder / "train.py").touch()
    (tmp_path / "outside.py").touch()
    (folder / "link.py").symlink_to(tmp_path / "outside.py")
    typed, where = agents.rehearsal(
        folder, {"command": ["torchrun", "--nproc-per-node=2", "train.py", "-c"], "gpus": 2, "alone": True}
    )
    assert (
        typed == ["rehearse", "--json", "--gpus=2", "--alone", "--", "torchrun", "--nproc-per-node=2", "train.py", "-c"]
        and where == folder
    )
    with pytest.raises(ValueError) as error:
        agents.rehearsal(folder, arguments)
    assert parts(str(error.value))["field"] == field


def test_a_script_is_rehearsed_where_a_folder_is_allowed(here, tmp_path):
    (tmp_path / "train.py").write_text(TRAIN)
    questions = [
        ("rehearse", {"command": ["python", "train.py"], "gpu": "t4"}),
        ("rehearse", {"command": ["python", "../train.py"]}),
    ]
    tools, (found, refused) = asked(
        questions, "--allow-rehearse", str(tmp_path), EVERYBYTE_REHEARSAL_VENV=str(here.folder)
    )
    assert set(tools) == {*agents.TOOLS, "rehearse"}
    assert found.structured_content["peak"] >= 2 * 1024 * 256 * 4 and found.structured_content["gpu"] == "t4"
    assert refused.is_error and refused.structured_content["refused"]["field"] == "rehearse.command"


def test_without_the_sdk_it_says_what_it_needs():
    program = "import sys; sys.modules['mcp'] = None; from everybyte.command import main; sys.exit(main(['mcp']))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert done.returncode == 2 and "pip install 'everybyte[mcp]'" in done.stderr
    assert main(["mcp", "--allow-rehearse", "/nowhere/such"]) == 2
