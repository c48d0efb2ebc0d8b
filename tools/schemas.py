"""Write the JSON Schemas of what the commands print with --json: `python tools/schemas.py`, into src/everybyte/command/schemas.json.

A setup, a model and a GPU are what their classes say. The rest is made of the answers to the command lines below: a field is required where
every answer has it, and its type is what it was in any. A test makes them again, so that an answer that changes changes its schema, and holds
other command lines to them.
"""

import contextlib
import dataclasses
import io
import json
import sys
import tempfile
import types
import typing
from pathlib import Path

import everybyte as eb
from everybyte.command import main
from everybyte.command.agents import DIALECT

ROOT = Path(__file__).resolve().parents[1]
STORED = ROOT / "src" / "everybyte" / "command" / "schemas.json"
SNAPSHOT = "src/everybyte/evidence/example/train.pickle"
OUT = (
    "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 23.65 GiB of which 1.00 GiB is free. "
    "Including non-PyTorch memory, this process has 22.60 GiB memory in use. Of the allocated memory 21.50 GiB is allocated by PyTorch, "
    "and 500.00 MiB is reserved by PyTorch but unallocated."
)
SHARED = "--gpus 4 --sharding zero3 --offload cpu"
#: Command -> command lines whose answers show its fields: with several GPUs and with one, where something fits and where nothing does.
LINES = {
    "formulas": [""],
    "budget": ["gpt2", f"gpt2 {SHARED}", "llama-3.2-1b --precision bf16 --adapters rank=8", "llama-3.2-1b --code reference --batch 1 --gpus 4 --mesh tensor=2 --sharding zero3"],
    "fit": ["gpt2 --gpu t4", "gpt2-xl --memory 2GiB", "gpt2 --gpu t4 --plan", "llama-3.2-1b --gpu a100-40gb --vary sequence --precision bf16 --conf ''", "gpt2-xl --gpu t4 --batch 64 --plan"],
    "layouts": ["gpt2-xl --gpus 4 --gpu t4 --most 2", "gpt2-xl --gpus 2 --gpu t4 --batch 64 --most 1"],
    "serve": ["gpt2 --gpu rtx-4090 --context 512", "llama-3.1-8b --memory 12GiB --context 1024", "gpt-oss-20b --gpu h200 --context 1024 --engine pages=1GiB", "gpt2 --gpu t4 --context 512 --engine weights=fp16;cache=fp16"],
    "align": ["dpo gpt2 --batch 1 --gpu t4", "grpo gpt2 --batch 1", "grpo gpt2 --batch 1 --rollout sequences=1;context=64;asleep=true", "ppo gpt2-xl --batch 1 --gpu t4"],
    "dry-run": ["gpt2 --batch 1 --sequence 8", f"gpt2 --batch 1 --sequence 8 {SHARED}"],
    "compare": ["gpt2 --batch 1 --sequence 8"],
    "derive": ["gpt2 --precision bf16"],
    "doctor": ["MESSAGE", "MESSAGE gpt2 --gpu rtx-4090", "MESSAGE gpt2-xl --batch 64 --gpu rtx-4090", SNAPSHOT],
    "snapshot": [SNAPSHOT],
    "explain": ["gpt2 --batch 8 MESSAGE", f"gpt2 --batch 2 {SNAPSHOT}"],
}  # fmt: skip
#: Fields whose own names are data: letters, parts of memory, models. Their values share a schema.
#: Commands whose answer is a list of values of a class, and what their rows have besides.
ROWS = {"models": (eb.Model, {"parameters": {"type": "integer"}}), "gpus": (eb.Gpu, {})}
MAPS = {
    "parts",
    "phases",
    "host",
    "timeline",
    "symbols",
    "differences",
    "refused",
    "held",
    "learned",
    "terms",
    "account",
    "scoring",
    "generating",
    "moments",
}


def answered(command: str, line: str) -> object:
    """What a command prints with --json."""
    with (
        tempfile.NamedTemporaryFile("w", suffix=".txt", encoding="utf-8") as message,
        contextlib.redirect_stdout(io.StringIO()) as said,
    ):
        message.write(OUT)
        message.flush()
        words = [
            {"MESSAGE": message.name, SNAPSHOT: str(ROOT / SNAPSHOT), "''": ""}.get(word, word) for word in line.split()
        ]
        if main([command, *words, "--json"]) not in (0, 1):
            raise ValueError(f"tools/schemas.py: {command} {line} is refused; allowed: a line that is answered")
    return json.loads(said.getvalue())


def of_type(hint: object) -> dict:
    """The JSON Schema of a type of a field."""
    plain = {int: "integer", float: "number", str: "string", bool: "boolean", type(None): "null"}
    if hint in plain:
        return {"type": plain[hint]}
    if dataclasses.is_dataclass(hint):
        hints = typing.get_type_hints(hint)
        names = [field.name for field in dataclasses.fields(hint)]
        return {"type": "object", "properties": {name: of_type(hints[name]) for name in names}, "required": names}
    origin, inside = typing.get_origin(hint), typing.get_args(hint)
    if origin is typing.Literal:
        return {"enum": [*inside]}
    if origin is tuple:
        return {"type": "array", "items": of_type(inside[0])}
    if origin in (typing.Union, types.UnionType):
        return {"anyOf": [of_type(one) for one in inside]}
    raise ValueError(
        f"tools/schemas.py: {hint}; allowed: numbers, text, Literal, tuples, unions and dataclasses of these"
    )


def schema(values: list, name: str = "") -> dict:
    """The JSON Schema that values have in common. name: of the field that has them."""
    if name == "setup":
        said = {"$ref": "#/$defs/setup"}
        return {"anyOf": [said, {"type": "null"}]} if None in values else said
    kinds = {"null": [], "boolean": [], "integer": [], "number": [], "string": [], "array": [], "object": []}
    of = {
        type(None): "null",
        bool: "boolean",
        int: "integer",
        float: "number",
        str: "string",
        list: "array",
        dict: "object",
    }
    for value in values:
        kinds[of[type(value)]].append(value)
    if kinds["number"]:
        kinds["integer"] = []
    found = [kind for kind, there in kinds.items() if there]
    said: dict = {"type": found[0] if len(found) == 1 else found} if found else {}
    if inside := [one for value in kinds["array"] for one in value]:
        said["items"] = schema(inside)
    if objects := kinds["object"]:
        every = [one for value in objects for one in value.values()]
        if name in MAPS:
            said |= {"additionalProperties": schema(every)} if every else {}
        else:
            names = dict.fromkeys(name for value in objects for name in value)
            said["properties"] = {
                name: schema([value[name] for value in objects if name in value], name) for name in names
            }
            said["required"] = [name for name in names if all(name in value for value in objects)]
    return said


def made(command: str) -> dict:
    """The schema of a command's answer."""
    title = {"$schema": DIALECT, "title": f"everybyte {command} --json"}
    if command in ROWS:
        row, more = ROWS[command]
        rows = of_type(row)
        return title | {
            "type": "array",
            "items": rows | {"properties": rows["properties"] | more, "required": [*rows["required"], *more]},
        }
    said = schema([answered(command, line) for line in LINES[command]])
    return title | said | ({"$defs": {"setup": of_type(eb.Setup)}} if "$defs" in json.dumps(said) else {})


def write() -> int:
    found = {command: made(command) for command in (*ROWS, *LINES)}
    STORED.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(write())
