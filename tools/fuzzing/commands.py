"""The command, with any words, names and encodings; and training scripts that `rehearse` runs."""

import contextlib
import io
import json
import math
import os
import pickle
import signal
import sys
import tempfile
import time
from dataclasses import fields
from functools import cache
from pathlib import Path
from unittest import mock

from hypothesis import strategies as st

import everybyte as eb
from everybyte.command import main
from everybyte.command.words import ALLOWED, parsers

from .drawn import LeftOut, Refused, environment, mostly, printable

ENCODINGS = ("utf-8", "utf-8", "cp1252", "latin-1", "ascii", "cp437", "gb18030", "utf-16")
#: A line of an error is no longer, whatever was given.
LINE = 4000
_NAMES = st.sampled_from(
    [
        "",
        "/",
        "/dev/null",
        "/nowhere",
        ".",
        "a\x1b[2Jb",
        "a\nb",
        "a\x00b",
        "\ud800",
        "\x9b31m",
        "x" * 5000,
        "--",
        "-",
        "@x",
        "ü",
    ]
)
_TEXTS = st.one_of(
    st.integers(-1, 2000).map(str), st.sampled_from(["bf16", "adamw", "h200", "24GiB", "1e999GiB", "mps", "zero3", "8", "", "nan", "1_0", "²", "٣"]),
    st.text(max_size=4), _NAMES, st.integers(1, 6000).map(lambda n: "9" * n),
)  # fmt: skip
_MODELS = st.sampled_from(["gpt2"] * 6 + ["gpt2-medium", "pythia-70m", "gpt3", "llama-3.1-8b"])
#: What an option or a word is usually given, by its name.
_USUAL = {
    "model": _MODELS, "gpu": st.sampled_from(["h200", "rtx-4090", "24GiB"]), "memory": st.sampled_from(["24GiB", "500 MiB", "8"]),
    "context": st.integers(1, 2048).map(str), "batch": st.integers(1, 16).map(str), "sequence": st.integers(1, 1024).map(str),
    "gpus": st.sampled_from(["1", "2", "8"]), "most": st.integers(1, 9).map(str),
    "adapters": st.sampled_from(["rank=8", "rank=8 rank=16", "rank=²", "targets=q,v"]), "mesh": st.sampled_from(["tensor=2", "tensor=2 tensor=4", "pipeline=2"]),
    "rollout": st.sampled_from(["sequences=4 context=64", "sequences=4 context=64 context=8"]), "file": st.sampled_from(["FILE", "SNAPSHOT", "-"]),
    "hf": st.just("CONFIG"), "module": st.just("MODULE:make"), "inputs": st.sampled_from(["x=B,S,8:float32", "x=B,R,8:float32", "x=4,8", "x=B,²,8:float32"]),
    "sizes": st.sampled_from(["R=4", "R=8", "R=²", "R=0", "Q=3"]), "figure": st.just("OUT/a.png"), "out": st.just("OUT"), "conf": st.just("expandable_segments:True"),
}  # fmt: skip
_USUAL |= {name: st.sampled_from(words) for name, words in ALLOWED.items()}
_USUAL |= {f"keep_{field.name}": st.just("500MiB") for field in fields(eb.Headroom)}
#: Commands that answer at once, often; the others, seldom; and options that would run, fetch or measure.
_QUICK, _SLOW = ["budget", "fit", "models", "gpus", "doctor", "snapshot", "serve", "align", "fit", "serve", "completion", "rehearse", "measure"], [
    "dry-run", "compare", "layouts", "derive", "claims", "formulas", "record",
]  # fmt: skip
_NEVER = {"help", "set_up", "grid", "recheck", "rehearse", "only", "device", "fresh", "letters", "derive", "alone"}
MODULE = """
from torch import nn
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(8, 8)
    def forward(self, x):
        return self.linear(x).sum()
def make():
    return Net()
"""
_SNAPSHOT = {"segments": [{"address": 0, "total_size": 8, "blocks": [{"size": 8, "state": "active_allocated", "frames": [
    {"filename": "\x9b31ma.py", "line": 1, "name": "\x1b[2Jf\r\n"}]}]}], "device_traces": []}  # fmt: skip


@cache
def _folder():
    """A folder with a file of each kind that a command reads."""
    kept = tempfile.TemporaryDirectory(prefix="fuzz-")
    folder = Path(kept.name)
    (folder / "message.txt").write_text(
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.10 GiB of which 1.00 GiB is free.",
        encoding="utf-8",
    )
    (folder / "snapshot.pickle").write_bytes(pickle.dumps(_SNAPSHOT))
    sizes = {
        "hidden_size": 8,
        "intermediate_size": 16,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "num_key_value_heads": 2,
    }
    (folder / "config.json").write_text(
        json.dumps({"model_type": "llama", "vocab_size": 10, **sizes}), encoding="utf-8"
    )
    (folder / "net.py").write_text(MODULE, encoding="utf-8")
    (folder / "out").mkdir()
    return kept


def _placed(word):
    folder = Path(_folder().name)
    for name, file in (
        ("FILE", "message.txt"),
        ("SNAPSHOT", "snapshot.pickle"),
        ("CONFIG", "config.json"),
        ("MODULE", "net.py"),
        ("OUT", "out"),
    ):
        if word.partition(":")[0].partition("/")[0] == name:
            return word.replace(name, str(folder / file), 1)
    return word


@cache
def _actions():
    """Command -> what argparse takes after it."""
    return {name: [a for a in parser._actions if a.dest not in _NEVER] for name, parser in parsers()[1].items()}


def _words(draw):
    """The words of a command line, most of them such as it takes."""
    name = (
        draw(st.sampled_from(_QUICK * 4 + _SLOW))
        if draw(st.integers(1, 40)) > 1
        else draw(_NAMES | st.sampled_from(["--help", "--version", "help"]))
    )
    actions = _actions().get(name, [])
    words = [name]
    for action in (a for a in actions if not a.option_strings):
        if action.nargs != "?" or draw(st.booleans()):
            words.append(_placed(draw(_value(action.dest))))
    options = [a for a in actions if a.option_strings]
    needed = [a for a in options if a.required or (a.dest == "gpu" and name in ("fit", "serve", "layouts"))]
    chosen = draw(st.lists(st.sampled_from(options), max_size=3)) if options else []
    for action in needed + chosen:
        words.append(draw(st.sampled_from(action.option_strings)) if draw(st.integers(1, 30)) > 1 else "--x")
        if action.nargs != 0:
            count = draw(st.integers(1, 3)) if action.nargs == "+" else 1
            words += [_placed(draw(_value(action.dest))) for _ in range(count)]
    if name == "measure":  # never one that runs
        words += ["--device", draw(st.sampled_from(["mps", "cuda:99", "", "\x1b[2J"]))]
    return words + ["--list"] * (name == "record")


def _value(dest):
    usual = _USUAL.get(dest)
    return _TEXTS if usual is None else mostly(usual, _TEXTS, 30)


def _said(words, encoding="utf-8", data=b""):
    """(status, output, errors) of the command, in that encoding."""
    raw = io.BytesIO(), io.BytesIO()
    out, err = io.TextIOWrapper(raw[0], encoding), io.TextIOWrapper(raw[1], encoding, errors="backslashreplace")
    inside = io.TextIOWrapper(io.BytesIO(data))
    with (
        mock.patch.multiple(sys, stdout=out, stderr=err, stdin=inside),
        contextlib.chdir(_placed("OUT")),  # where a drawn name makes a file
        environment("EVERYBYTE_TRACEBACK", "1"),
        environment("EVERYBYTE_CACHE", "off"),
    ):
        try:
            status = main(words)
        except SystemExit as ended:  # --help alone
            status = ended.code
        out.flush()
        err.flush()
    return status, raw[0].getvalue().decode(encoding), raw[1].getvalue().decode(encoding)


def command(draw):
    """The command says what the library says, or one sentence, with status 2, in any encoding."""
    words = _words(draw)
    encoding = draw(st.sampled_from(ENCODINGS))
    asked = [*words, *["--json"] * draw(st.integers(0, 1))] if words[0] in _actions() else words
    status, out, err = _said(asked, encoding, draw(st.sampled_from([b"", b"MemoryError", b"\xff" * 99])))
    if status == 2:
        assert err.startswith("everybyte: ") and err.endswith("\n") and err.count("\n") == 1, err
        assert not out or "--json" in asked and list(json.loads(out)) == ["refused"], out
        assert len(err) <= LINE, f"a line of {len(err)} characters"
        printable(err)
        raise Refused(err)
    assert status in (0, 1) and "Traceback" not in err, (status, err)
    printable(out + err.replace("\r", ""))
    assert out.strip()
    if words[0] in ("dry-run", "derive", "compare", "fit"):
        _nothing_ignored(words)
    if asked[-1] == "--json" and words[0] != "record":
        _agrees(words, json.loads(out))


def _nothing_ignored(words):
    """Of what was given, nothing stands twice for one thing, and nothing has no effect."""
    if "--inputs" in words:
        assert "--module" in words, "--inputs without --module"
    for option in ("--inputs", "--sizes"):
        places = [i for i, word in enumerate(words) if word == option]
        for place in places[-1:]:
            following = words[place + 1 :]
            end = next((i for i, word in enumerate(following) if word.startswith("-")), len(following))
            names = [word.partition("=")[0] for word in following[:end]]
            assert len(set(names)) == len(names), f"{option}: the last of {names} won"


def _agrees(words, said):
    if words[0] in ("budget", "dry-run"):
        assert sum(said["parts"].values()) == said["peak"]
    options = {w.removeprefix("--"): words[i + 1] for i, w in enumerate(words[:-1]) if w.startswith("--")}
    if words[0] == "budget" and set(options) <= {"batch", "sequence", "precision", "optimizer", "rounding"}:
        fields = {n: int(v) if v.lstrip("-").isdigit() else v for n, v in options.items() if n != "rounding"}
        assert said["peak"] == eb.budget(eb.model(words[1]), eb.Setup(**fields), int(options.get("rounding", 1))).peak


def sizes(draw):
    """The shapes and sizes that a command is given are those that a dry run counts."""
    strange = st.sampled_from(["Q", "²", "0", "٣", "-1", "x", "1_0", "9" * 30])
    dimension = mostly(st.sampled_from(["B", "S", "R", "3"]), strange, 9)
    name, letter = mostly(st.just("x"), st.just("y"), 9), mostly(st.just("R"), st.sampled_from(["Q", "B", "RR"]), 9)
    shapes = draw(st.lists(st.tuples(name, st.lists(dimension, max_size=2)), min_size=1, max_size=2))
    given = draw(st.lists(st.tuples(letter, mostly(st.sampled_from(["4", "8"]), strange, 6)), max_size=2))
    batch = draw(st.none() | st.integers(1, 4))
    words = ["dry-run", "--module", _placed("MODULE:make"), "--optimizer", "sgd", "--json"]
    words += ["--batch", str(batch)] if batch else []
    words += ["--inputs", *(f"{name}={','.join([*shape, '8'])}:float32" for name, shape in shapes)]
    status, out, err = _said(words + (["--sizes", *(f"{n}={v}" for n, v in given)] if given else []))
    if status == 2:
        raise ValueError(err.removeprefix("everybyte: ").strip())
    assert status == 0 and len(dict(shapes)) == len(shapes) and len(dict(given)) == len(given), (words, given)
    said, known = json.loads(out), {"B": batch or 8, "S": 1024} | {n: int(v) for n, v in given}
    numbers = math.prod(known[size] if size in known else int(size) for size in shapes[0][1])
    assert said["parts"]["parameters"] == 4 * 72
    assert said["phases"]["after_forward"] >= 4 * (72 + 8 * numbers)


#: Pieces of training scripts: what is done before, within a step, and at the end, and the script's status; None where a signal ends it.
_BEFORE = {
    "": "", "cleared": "os.environ.clear()", "thread": "threading.Thread(target=time.sleep, args=(300,), daemon=True).start()",
    "child": "subprocess.Popen(['sleep', '313'])", "process": "multiprocessing.get_context('fork').Process(target=time.sleep, args=(313,), daemon=True).start()",
    "moved": "os.chdir('/')", "quiet": "sys.stdout.close()", "trapped": "signal.signal(signal.SIGTERM, signal.SIG_IGN)",
}  # fmt: skip
_ENDS = {
    "pass": 0, "sys.exit(0)": 0, "sys.exit(7)": 7, "sys.exit('said')": 1, "raise KeyError('x')": 1, "os._exit(0)": 0, "os._exit(5)": 5,
    "os.kill(os.getpid(), signal.SIGKILL)": -9, "os.kill(os.getpid(), signal.SIGSEGV)": -11, "os.abort()": -6, "os.kill(os.getpid(), signal.SIGTERM)": -15,
}  # fmt: skip
_SCRIPT = """
import multiprocessing, os, signal, subprocess, sys, threading, time
import torch
{before}
net = torch.nn.Linear(256, 256).cuda()
optimizer = torch.optim.{optimizer}(net.parameters(), lr=0.1)
for step in range({steps}):
    net(torch.randn({batch}, 256, device="cuda")).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
{end}
"""


def script(draw):
    """A rehearsed script ends as it ends by itself, what its GPU saw is told, and no process of it is left."""
    from everybyte.rehearsal import place, rehearse_script

    try:
        place.find()
    except ValueError as error:
        raise LeftOut(str(error)) from None
    steps, batch = draw(st.integers(1, 4)), 2 ** draw(st.integers(0, 6))
    before, end = draw(st.sampled_from(list(_BEFORE))), draw(st.sampled_from(list(_ENDS)))
    text = _SCRIPT.format(
        before=_BEFORE[before], end=end, steps=steps, batch=batch, optimizer=draw(st.sampled_from(["SGD", "AdamW"]))
    )
    with tempfile.TemporaryDirectory(prefix="fuzz-") as folder:
        (Path(folder) / "train.py").write_text(text, encoding="utf-8")
        mark = f"FUZZ_{os.path.basename(folder)}"
        try:
            with environment(mark, "1"):
                found = rehearse_script(["python", f"{folder}/train.py"], steps=0, quiet=True)
            time.sleep(0.2)
            assert not (left := _running(mark, folder)), f"left running: {left}"
        finally:
            for number in _running(mark, folder):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(number, signal.SIGKILL)
    (process,) = found.processes
    assert found.status in (_ENDS[end], 128 - _ENDS[end]), (found.status, end)
    assert process["steps"] == steps and process["devices"][0]["requested"] >= 4 * 256 * 257


def _running(mark, folder):
    """The processes that were started with a variable of that name, or in whose words the folder stands."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if mark.encode() in (entry / "environ").read_bytes() or folder.encode() in (entry / "cmdline").read_bytes():
                found.append(int(entry.name))
    return [number for number in found if number != os.getpid()]


SUBJECTS = {command: 1400, sizes: 100, script: 20}  # fmt: skip
