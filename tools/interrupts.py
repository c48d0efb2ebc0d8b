"""Interrupt every command at random moments, and see that nothing is left: `python tools/interrupts.py --count 20000 --seed 0`.

Most are signals to this process while it runs a command: afterwards the status and the line are right, PyTorch's modes, patches,
warnings, signals, the collector, the environment are as they were, no file is half written, and now and then the same command
is asked again and gives the same answer. A share are processes of their own, in which every process that they had started is
counted; and those that are interrupted in this process count their children too.
"""

import argparse
import contextlib
import gc
import io
import json
import os
import random
import re
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback
import warnings
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from everybyte import command
from everybyte.common import interrupts, terminal
from everybyte.common.tables import Table

ROOT = Path(__file__).resolve().parents[1]
EXAMPLE = ROOT / "src/everybyte/evidence/example/train.pickle"
MARK = "EVERYBYTE_TRIED"
AGAIN = 25
NET = """
import torch
from torch import nn
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(8, 8)
    def forward(self, x):
        return self.linear(x).relu().sum()
"""
TRAIN = """
import subprocess, sys, time
subprocess.Popen(["sleep", "300"]), subprocess.Popen(["setsid", "sleep", "300"])
import torch
net = torch.nn.Linear(64, 64).cuda()
optimizer = torch.optim.AdamW(net.parameters())
while True:
    net(torch.ones(4, 64, device="cuda")).sum().backward()
    optimizer.step()
"""
CONFIG = {
    "model_type": "gpt2", "n_layer": 1, "n_embd": 16, "n_head": 2, "vocab_size": 31, "n_positions": 16, "resid_pdrop": 0.0,
    "embd_pdrop": 0.0, "attn_pdrop": 0.0, "bos_token_id": 0, "eos_token_id": 0,
}  # fmt: skip
OUT = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.14 GiB. GPU 0 has a total capacity of 23.52 GiB of which 1.00 GiB is free."
#: A command's name -> what is asked, and its share of the interrupts inside this process. `{}`: a folder for files.
INSIDE = {
    "": ("", 3), "models": ("models", 4), "gpus": ("gpus --json", 4), "completion": ("completion bash", 4), "formulas": ("formulas", 0.05),
    "claims": ("claims", 0.03), "budget": ("budget gpt2 --batch 8 --precision bf16-mixed", 16), "fit": ("fit gpt2 --gpu rtx-4090", 10),
    "fit --plan": ("fit gpt2 --gpu rtx-4090 --plan --json", 0.1), "layouts": ("layouts gpt2 --gpu h100-80gb --gpus 8", 8),
    "serve": ("serve gpt2 --gpu h200 --context 1024", 8), "align": ("align dpo gpt2 --gpu h200", 8), "snapshot": (f"snapshot {EXAMPLE}", 6),
    "snapshot --figure": (f"snapshot {EXAMPLE} --figure {{}}/picture.png", 0.3), "doctor": ("doctor {}/oom.txt gpt2 --gpu rtx-4090", 6),
    "doctor, a snapshot": (f"doctor {EXAMPLE}", 5), "dry-run": ("dry-run gpt2 --batch 1 --sequence 16", 0.5),
    "dry-run --hf": ("dry-run --hf {}/config.json --sequence 8 --precision bf16-mixed", 5),
    "dry-run --module": ("dry-run --module {}/net.py:Net --inputs x=B,8", 10), "compare": ("compare gpt2 --batch 1 --sequence 16", 0.2),
    "compare --hf": ("compare --hf {}/config.json --sequence 8", 1), "derive": ("derive --module {}/net.py:Net --inputs x=B,8", 4),
    "derive --fresh": ("derive --module {}/net.py:Net --inputs x=B,8 --fresh", 1), "record --list": ("record --list --only curves", 0.1),
}  # fmt: skip
#: What starts processes, each with the same share of the rest. `rehearse` is left out where there is no environment for it.
OUTSIDE = {
    "measure": "measure gpt2 --batch 1 --sequence 16 --optimizer sgd --device cpu",
    "measure, two ranks": "measure gpt2 --batch 1 --sequence 16 --optimizer sgd --device cpu --gpus 2",
    "record": "record --device cpu --out {}/records --minutes 1",
    "rehearse": "rehearse -- python {}/train.py",
    "rehearse, two ranks": "rehearse --gpus 2 --steps 0 -- torchrun --nproc-per-node=2 {}/train.py",
    "rehearse --grid": "rehearse --grid --out {}/rehearsed",
}
SIGNALS = (signal.SIGINT, signal.SIGINT, *interrupts.ENDING)
ENTERED = "import sys; print(flush=True); from everybyte_command import main; sys.exit(main())"


@dataclass
class Tally:
    """What came of a command's interrupts."""

    tries: int = 0
    came: int = 0
    after: int = 0
    children: int = 0
    failed: list[str] = field(default_factory=list)


def state() -> dict:
    """What a command must leave as it was: PyTorch's own, and Python's."""
    import torch
    from torch.optim import optimizer
    from torch.overrides import _get_current_function_mode_stack
    from torch.utils import checkpoint
    from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

    return {
        "function modes": _get_current_function_mode_stack(),
        "dispatch modes": _get_current_dispatch_mode_stack(),
        "default data type": torch.get_default_dtype(),
        "default device": torch.get_default_device(),
        "gradients": torch.is_grad_enabled(),
        "autocast": [(torch.is_autocast_enabled(d), torch.get_autocast_dtype(d)) for d in ("cpu", "cuda")],
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "random numbers": torch.get_rng_state().tolist(),
        "fused optimizers": optimizer._get_fused_kernels_supported_devices,
        "checkpoint": (checkpoint.checkpoint, checkpoint._checkpoint_without_reentrant_generator),
        "warnings": list(warnings.filters),
        "collector": gc.isenabled(),
    }


def around(folder: Path) -> dict:
    """More of the kind, which the harness itself holds still: signals, hooks, threads, the environment, files."""
    return state() | {
        "signals": {n.name: signal.getsignal(n) for n in {signal.SIGINT, *interrupts.ENDING}},
        "held": interrupts.Held.outermost,
        "hooks": (sys.unraisablehook, sys.excepthook, sys.gettrace(), sys.stdout, sys.stderr),
        "environment": dict(os.environ),
        "folder": os.getcwd(),
        "path": list(sys.path),
        "threads": sorted(t.name for t in threading.enumerate() if not t.daemon),
        "temporary files": sorted(os.listdir(tempfile.gettempdir())),
        "parts": sorted(str(path) for path in folder.rglob("*.part")),
        "recursion": sys.getrecursionlimit(),
    }


def ran(words: list[str], armed=lambda: None) -> tuple[int | None, str, str]:
    """(status, output, errors) of a command in this process, `armed` just before; no status where a Ctrl-C came out of it."""
    out, errors = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(errors):
        armed()
        try:
            status = command.main(words)
        except KeyboardInterrupt as error:
            mine = {"fire", interrupts._come.__name__}  # in which the signal is raised, wherever it came
            *_, (frame, line) = (
                at for at in traceback.walk_tb(error.__traceback__) if at[0].f_code.co_name not in mine
            )
            ends = (
                command.main,
                terminal.hold,
                interrupts.Endings.__init__,
                ran,
            )  # what its entry, which stands around it, says
            status = 130 if frame.f_code in {function.__code__ for function in ends} else None
            errors.write("everybyte: interrupted\n" if status else f"out of {frame.f_code.co_name}, line {line}")
    return status, out.getvalue(), errors.getvalue()


def fault(number: int, said: tuple, expected: tuple, before: dict, after: dict) -> str:
    """What is wrong after an interrupt, in words; "" where nothing is."""
    status, out, errors = said
    what = "interrupted" if number == signal.SIGINT else f"ended by {number.name}"
    right = said == expected or (
        status == 128 + number
        and expected[1].startswith(out)
        and re.fullmatch(rf"everybyte: {what}(; [^\n]*)?\n", errors.removeprefix(expected[2]))
    )
    if not right:
        return f"status {status}, output of {len(out)}, errors {errors[-500:]!r}"
    changed = [name for name in before if before[name] != after[name]]
    return "; ".join(f"{name}: {str(before[name])[:150]} -> {str(after[name])[:150]}" for name in changed)


def inside(name: str, words: list[str], count: int, draw: random.Random, folder: Path) -> Tally:
    """Interrupt a command in this process so many times, at moments drawn anew."""
    tally = Tally()
    for _ in range(2):  # what is imported at first, and kept, is so now
        begun = time.perf_counter()
        expected = ran(words)
        takes = time.perf_counter() - begun
    waiting: list[signal.Signals] = []  # the one that is to come while the command runs, and not before or later

    def fire(*_):
        if waiting and callable(signal.getsignal(waiting[0])):  # before it begins, the default ends a process
            tally.came += 1
            signal.raise_signal(waiting.pop())

    usual = signal.signal(signal.SIGALRM, fire)
    streams = sys.stdout, sys.stderr
    try:
        before = around(folder)
        while tally.came < count and tally.tries < 3 * count:
            number, begun, said = draw.choice(SIGNALS), time.perf_counter(), None
            signal.setitimer(signal.ITIMER_REAL, max(1e-6, draw.uniform(0, takes)))
            with contextlib.suppress(KeyboardInterrupt):  # one that came just beside the command
                said = ran(words, lambda number=number: waiting.append(number))
                waiting.clear()
            waiting.clear()
            sys.stdout, sys.stderr = streams  # one beside the command may keep them from being put back
            signal.setitimer(signal.ITIMER_REAL, 0)
            try:
                time.sleep(0.02 if threading.active_count() > before_threads() else 0)
            except KeyboardInterrupt:  # asked for once more, when the command had said all
                said = None
            if said is None:
                tally.came -= 1
                continue
            tally.tries += 1
            after = around(folder)
            wrong, before = fault(number, said, expected, before, after), after
            if said == expected:
                tally.after, takes = tally.after + 1, min(takes, time.perf_counter() - begun)
            if not wrong and tally.tries % AGAIN == 0 and ran(words) != expected:
                wrong = "the same command gives another answer"
            if wrong:
                tally.failed.append(f"{name or 'everybyte'}, {number.name}: {wrong}")
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, usual)
    return tally


def before_threads() -> int:
    """Threads that are no timers of a Ctrl-C that is asked for once more."""
    return sum(not isinstance(thread, threading.Timer) for thread in threading.enumerate())


def outside(name: str, words: list[str], count: int, draw: random.Random, folder: Path) -> Tally:
    """Interrupt a command in a process of its own, and count what it had started and what is left of it."""
    tally, takes = Tally(), 12.0
    for _ in range(count):
        mark, number = secrets.token_hex(8), draw.choice(SIGNALS)
        with subprocess.Popen(
            [sys.executable, "-c", ENTERED, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            env=os.environ | {MARK: mark}, cwd=folder,
        ) as process:  # fmt: skip
            process.stdout.readline()
            begun, wait = time.monotonic(), draw.uniform(0, takes)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(wait)
            there = [p for p in marked(mark) if p.pid != process.pid]
            running = process.poll() is None
            process.send_signal(number)
            sent = time.monotonic()
            try:
                out, errors = process.communicate(timeout=60)
            except subprocess.TimeoutExpired:
                process.kill()
                out, errors = process.communicate()
                tally.failed.append(f"{name}, {number.name} after {wait:.3f} s: it goes on for a minute")
        late = process.returncode == 0 and not errors and time.monotonic() - sent < 1.0  # the answer was on its way
        if not running:
            takes = max(1.0, min(takes, time.monotonic() - begun))
        left = marked(mark)
        tally.tries, tally.came, tally.children = tally.tries + 1, tally.came + running, tally.children + len(there)
        tally.after += late or not running
        for process_left in left:
            process_left.kill()
        # What a grid goes on from, and what torchrun leaves of its own, are right.
        parts = [path for path in folder.rglob("*.part") if not path.name.endswith(".jsonl.part")]
        temporary = [name for name in os.listdir(tempfile.gettempdir()) if not name.startswith("torchelastic_")]
        status, last = process.returncode, (errors.replace("\r", "\n").strip().splitlines() or [""])[-1]
        silent = status == -number and not errors  # before it had begun, or once all was said
        said = (
            status == 128 + number
            and last.startswith("everybyte: ")
            and ("Traceback" not in errors or "torchrun" in words)
        )
        right = silent or said or late or not running
        if left or parts or temporary or not right:
            tally.failed.append(f"{name}, {number.name} after {wait:.3f} s: status {status}, {len(left)} of {len(there)} processes left, "
                                f"files {[*map(str, parts), *temporary]}, errors {errors[-800:]!r}")  # fmt: skip
            for file in temporary:
                shutil.rmtree(Path(tempfile.gettempdir()) / file, ignore_errors=True)
    return tally


def marked(mark: str) -> list[psutil.Process]:
    """The processes that run and were started, by whomever, below one of ours."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.environ().get(MARK) == mark and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
    return found


def rehearses() -> bool:
    """Whether there is an environment for rehearsals."""
    from everybyte.rehearsal import place

    try:
        return bool(place.find())
    except ValueError:
        return False


def shares(count: int, processes: int) -> list[tuple]:
    """(how, name, words, tries) of every command."""
    whole = sum(share for _, share in INSIDE.values())
    found = [(inside, name, asked, max(1, round(count * share / whole))) for name, (asked, share) in INSIDE.items()]
    there = {n: asked for n, asked in OUTSIDE.items() if not n.startswith("rehearse") or rehearses()}
    plain = {
        n: asked
        for n, (asked, _) in INSIDE.items()
        if n in ("budget", "dry-run --hf", "derive --fresh", "layouts", "snapshot --figure")
    }
    found += [(outside, n, asked, round(processes * 0.75 / len(there))) for n, asked in there.items()]
    return found + [
        (outside, f"{n}, a process", asked, round(processes * 0.25 / len(plain))) for n, asked in plain.items()
    ]


def prepared(folder: Path) -> None:
    """The files that the commands are asked about, and places of their own for what they keep."""
    (folder / "oom.txt").write_text(OUT, encoding="utf-8")
    (folder / "net.py").write_text(NET, encoding="utf-8")
    (folder / "train.py").write_text(TRAIN, encoding="utf-8")
    (folder / "config.json").write_text(json.dumps(CONFIG), encoding="utf-8")
    for name in ("home", "cache", "temporary"):
        (folder / name).mkdir()
    os.environ |= {
        "HOME": str(folder / "home"),
        "XDG_CACHE_HOME": str(folder / "cache"),
        "TMPDIR": str(folder / "temporary"),
    }
    os.environ |= {
        "OMP_NUM_THREADS": "1",
        "TRITON_CACHE_DIR": str(folder / "cache"),
        "TORCHINDUCTOR_CACHE_DIR": str(folder / "cache"),
    }
    tempfile.tempdir = str(folder / "temporary")


def main() -> int:
    """Print a table by command; the exit status says whether anything failed."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--count", type=int, default=1000, help="interrupts in this process")
    parser.add_argument("--processes", type=int, default=40, help="interrupts of processes of their own")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", nargs="+", help="names of commands")
    options, rows, failed = parser.parse_args(), [], []
    signal.signal(signal.SIGINT, signal.default_int_handler)  # which nohup, and a shell's &, have ignored
    for number in interrupts.ENDING:
        signal.signal(number, signal.SIG_DFL)
    with tempfile.TemporaryDirectory() as place:
        prepared(folder := Path(place))
        for how, name, asked, count in shares(options.count, options.processes):
            if options.only and name not in options.only or not count:
                continue
            begun = time.monotonic()
            words = [word.replace("{}", place) for word in asked.split()]
            tally = how(name, words, count, random.Random(f"{options.seed} {name}"), folder)
            failed += tally.failed
            rows.append([name or "(nothing)", tally.tries, tally.came, tally.after, tally.children, len(tally.failed)])
            print(
                *rows[-1],
                f"{time.monotonic() - begun:.0f} s",
                *tally.failed[:5],
                sep=" | ",
                file=sys.stderr,
                flush=True,
            )
        tempfile.tempdir = None
    rows.append(["all", *(sum(row[i] for row in rows) for i in range(1, 6))])
    print(Table(["command", "tries", "came", "after its answer", "children", "failed"], rows))
    for text, times in Counter(re.sub(r"0x\w+|\d+", "N", text) for text in failed).most_common(20):
        print(f"{times} x {text}")
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main())
