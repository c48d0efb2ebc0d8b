"""`everybyte mcp`: the commands' answers for agents and editors, by the Model Context Protocol, over standard input and output.

A tool is a command: what it takes is read off the command's parser, what it answers is what the command prints with `--json`, and a refusal is
the same JSON. Options that name files or run code are left out, so that no call opens a file of its choice. `rehearse` runs a training script, and is there where somebody has allowed a folder for it.
"""

import argparse
import json
import re
import subprocess
import sys
import tempfile
from contextlib import contextmanager
from dataclasses import fields
from functools import cache, partial
from pathlib import Path
from typing import Any

from .. import __version__
from ..answers.headroom import Headroom
from ..ask.setup import Setup
from ..catalog import model, models
from ..common import checks, refusals
from . import answers, words

#: Of the schemas, here and in schemas.json.
DIALECT = "https://json-schema.org/draft/2020-12/schema"
#: Tool -> what it is told beside the command's help. Each is a command.
TOOLS = {
    "models": "Names for `model`.",
    "gpus": "Names for `gpu`.",
    "budget": "Bytes of one step's tensors, exact, in milliseconds.",
    "fit": "What fits a GPU: the allocator's reserved bytes, the context and what limits it.",
    "derive": "A closed formula in B (batch) and S (sequence); seconds.",
    "doctor": "Give the error's text as `text`.",
    "explain": "Give the budget's model as `predicted`, its setup, and what was seen as `seen`: an error's text, or torch.cuda.memory_stats() as JSON.",
}
REHEARSE = "Runs the script on this machine, without a GPU; about a minute. `command` is a list: python or torchrun, then a script of the folder."
#: The options that an agent may say, besides a setup's and a headroom's: none of them names a file, runs code or writes.
_SAFE = {"model", "code", "rounding", "rank", "gpu", "memory", "vary", "plan", "conf", "letters", "predicted"}
_SAFE |= {field.name for field in fields(Setup)} | {f"keep_{field.name}" for field in fields(Headroom)}
#: Of `rehearse`, what an agent may say.
_REHEARSED = ("gpu", "gpus", "alone", "steps", "memory", "rows", "routing", "streams", "padded", "largest")
#: What stands in the place of a file's name: the file's content.
_CONTENTS = {
    "hf": ("config", {"type": "object", "description": "a Hugging Face model's config.json, in place of `model`"}),
    "file": ("text", {"type": "string", "description": "the error's text, as it was printed"}),
    "seen": (
        "seen",
        {
            "type": "string",
            "description": "an out-of-memory error's text, or the JSON of memory_stats(), of a measurement or a rehearsal",
        },
    ),
}
#: Type of JSON -> Python's.
_KINDS = {"boolean": bool, "integer": int, "number": (int, float), "string": str}
#: Programs that a rehearsal may be asked to run, and what may stand between torchrun and the script.
_PROGRAMS = ("python", "torchrun")
_BEFORE = re.compile(r"--nproc[-_]per[-_]node=\d+|--standalone")


@cache
def _actions(command):
    return {action.dest: action for action in words.parsers()[1][command]._actions}


def _property(action):
    """The JSON Schema of an option."""
    if isinstance(action, argparse._StoreTrueAction):
        return {"type": "boolean", "default": False, "description": action.help}
    kind = {words.TYPES["int"]: "integer", words.TYPES["float"]: "number"}.get(action.type, "string")
    said = {"type": kind, "description": action.help}
    if action.dest == "predicted":
        return said | {"enum": [*models()], "description": "a name from the tool models"}
    if action.dest in words.ALLOWED and action.dest != "conf":
        said["enum"] = [*words.ALLOWED[action.dest]]
    if isinstance(action.default, _KINDS[kind]):
        said["default"] = action.default
    return said


def takes(tool: str) -> dict:
    """The JSON Schema of what a tool takes."""
    actions = _actions(tool)
    names = _REHEARSED if tool == "rehearse" else [name for name in actions if name in _SAFE]
    properties = {name: _property(actions[name]) for name in names}
    required = [name for name in names if actions[name].required and not actions[name].option_strings]
    for option, (name, said) in _CONTENTS.items():
        if option in actions:
            properties[name] = said
            required += [name] if actions[option].required else []
    if tool == "rehearse":
        properties["command"] = {
            "type": "array",
            "items": {"type": "string"},
            "minItems": 2,
            "description": 'such as ["python", "train.py"]',
        }
        properties["folder"] = {"type": "string", "default": ".", "description": "where it runs, in the allowed folder"}
        required.append("command")
    return {"type": "object", "properties": properties, "required": required, "additionalProperties": False}


def _value(tool, name, said, action):
    """A value of JSON as the option's own."""
    kind = _property(action)["type"]
    if not isinstance(said, _KINDS[kind]) or isinstance(said, bool) and kind != "boolean":
        raise ValueError(f"{tool}.{name}: {checks.shown(said)}; allowed: a value of type {kind}")
    if action.dest == "predicted":  # elsewhere a file's name too
        checks.one_of(tool, name, said, models())
    if action.dest == "model":
        model(said)
    if kind != "string" or action.type is None:
        return said
    try:
        return action.type(said)
    except argparse.ArgumentTypeError as error:
        raise ValueError(f"{tool}.{name}: {error}") from None


def _read(tool, arguments):
    """{option: value} of what a tool is given, but for what stands in a file's place. Raise ValueError for what its schema does not allow."""
    actions, schema = _actions(tool), takes(tool)
    for name in arguments:
        checks.one_of(tool, "argument", name, schema["properties"])
    for name in schema["required"]:
        if name not in arguments:
            raise ValueError(f"{tool}.{name}: missing; allowed: {schema['properties'][name]['description']}")
    return {name: _value(tool, name, said, actions[name]) for name, said in arguments.items() if name in actions}


@contextmanager
def _options(tool, arguments):
    """A context with the command's options, as its parser would have read them."""
    usual = {name: action.default for name, action in _actions(tool).items() if name != "help"}
    given = _read(tool, arguments)
    asked = {"command": tool, "json": True, "script": [], "given": set(given)}
    options = argparse.Namespace(**usual | asked | given)
    with tempfile.TemporaryDirectory(prefix="everybyte-mcp-") as folder:
        for option, (name, _) in _CONTENTS.items():
            if name in arguments:
                path = Path(folder) / name
                text = arguments[name] if isinstance(arguments[name], str) else json.dumps(arguments[name])
                path.write_text(text, encoding="utf-8", errors="replace")
                setattr(options, option, str(path))
        yield options


def answer(tool: str, arguments: dict[str, Any]) -> Any:
    """What a tool answers, as JSON.

    Raises:
        ValueError: for a tool that is not there, an unknown, missing or wrong argument, or what the command refuses.
    """
    checks.one_of("mcp", "tool", tool, TOOLS)
    with _options(tool, arguments) as options:
        said, _, _ = getattr(answers, tool)(options)
        return said


def rehearsal(allowed: Path, arguments: dict[str, Any]) -> tuple[list[str], Path]:
    """(The words of `everybyte rehearse`, the folder that it runs in) of a tool's call.

    Raises:
        ValueError: for another program than Python's or torchrun's, or a script or a folder outside the allowed one.
    """
    _read("rehearse", arguments)
    command, inside = arguments["command"], arguments.get("folder", ".")
    if not isinstance(command, list) or not all(isinstance(word, str) for word in command):
        raise ValueError(
            f"rehearse.command: {checks.shown(command)}; allowed: a list of words, such as python, train.py"
        )
    folder = _within(allowed, allowed, inside, "folder")
    checks.one_of("rehearse", "program", command[0] if command else "", _PROGRAMS)
    spared = _BEFORE if command[0] == "torchrun" else re.compile("(?!)")
    script = next((word for word in command[1:] if not spared.fullmatch(word)), "")
    if not script.endswith(".py"):
        instead = "a script .py after python, or after torchrun and --nproc-per-node=2"
        raise ValueError(f"rehearse.command: {checks.shown(script)}; allowed: {instead}")
    _within(allowed, folder, script, "command")
    said = ["rehearse", "--json"]
    for name in _REHEARSED:
        if name in arguments and arguments[name] is not False:
            said.append(f"--{name}" if arguments[name] is True else f"--{name}={arguments[name]}")
    return [*said, "--", *command], folder


def _within(allowed, folder, name, field):
    path = Path(folder, name).resolve() if isinstance(name, str) and "\0" not in name else None
    if path is None or not path.is_relative_to(allowed) or not path.exists():
        raise ValueError(f"rehearse.{field}: {checks.shown(name)} is not in {allowed}; allowed: a path in that folder")
    return path


def server(allowed: Path | None = None):
    """The server. allowed: the folder whose scripts `rehearse` may run; by default there is no such tool."""
    import anyio
    import mcp_types as types
    from mcp.server import Server

    one = anyio.Semaphore(1)  # an answer at a time: PyTorch's modes are the process's

    async def tools(context, params):
        said = words.SAID["commands"]
        known = TOOLS | ({"rehearse": REHEARSE} if allowed else {})
        return types.ListToolsResult(
            tools=[
                types.Tool(name=name, description=f"{said[name]['help']}. {more}", input_schema=takes(name))
                for name, more in known.items()
            ]
        )

    async def called(context, params):
        arguments, wrong = params.arguments or {}, True
        try:
            if params.name == "rehearse" and allowed:
                said, wrong = await _rehearsed(allowed, arguments)
            else:
                async with one:
                    said, wrong = await anyio.to_thread.run_sync(partial(answer, params.name, arguments)), False
        except ValueError as error:
            said = {"refused": refusals.parts(str(error))}
        except Exception as error:
            said = {"failed": f"this is a mistake of ours, {type(error).__name__}: {error}"}
        said = {"answers": said} if isinstance(said, list) else said
        return types.CallToolResult(
            content=[types.TextContent(type="text", text=json.dumps(said))], structured_content=said, is_error=wrong
        )

    return Server(
        "everybyte", version=__version__, instructions=words.SAID["mcp"], on_list_tools=tools, on_call_tool=called
    )


async def _rehearsed(allowed, arguments):
    """(What `everybyte rehearse` says, whether it refused), in a process of its own.

    It ends, with all that it started, where the call is cancelled.
    """
    import anyio

    typed, folder = rehearsal(allowed, arguments)
    command = [sys.executable, "-m", "everybyte_command", *typed]
    process = await anyio.open_process(command, cwd=folder, stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        said = b"".join([piece async for piece in process.stdout])
        await process.wait()
    finally:
        if process.returncode is None:
            process.terminate()
            with anyio.CancelScope(shield=True):
                await process.wait()
    found = json.loads(said)
    return found, "witness" not in found


def serve(options) -> None:
    """Answer until standard input ends."""
    allowed = None
    if options.allow_rehearse is not None:
        allowed = Path(options.allow_rehearse).resolve()
        if not allowed.is_dir():
            raise ValueError(
                f"mcp --allow-rehearse: {checks.shown(options.allow_rehearse)}; allowed: a folder that is there"
            )
    try:
        import anyio
        from mcp.server.stdio import stdio_server
    except ImportError as error:
        raise ValueError(f"mcp: {error}; it needs the protocol's SDK: pip install 'everybyte[mcp]'") from error
    made = server(allowed)

    async def run():
        async with stdio_server() as (read, write):
            await made.run(read, write, made.create_initialization_options())

    anyio.run(run)
