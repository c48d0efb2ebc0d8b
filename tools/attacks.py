"""What a reader, a file or a machine may do to the library on purpose or by mistake, tried one by one: `tools/attacks.txt` has the table.

Each try ends in one of three ways: *survived*, the answer is right (held against a second way to compute it, where there is a number);
*clear error*, a ValueError that names a field or the command's one sentence with status 2; *failed*, anything else. What needs processes
of its own, signals, ports, damaged checkpoints or a browser stands in tests, whose cases are counted here, run or not.

    python tools/attacks.py [--processes]      # with the tests: ten minutes
"""

import argparse
import contextlib
import io
import itertools
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import fuzz
import numpy
import torch

import everybyte as eb
from everybyte import cli, draw, settling, units
from everybyte.budget import peaks
from everybyte.lab import records
from everybyte.lab.run import find
from everybyte.tables import Table
from everybyte.teach import check, kept, progress

ROOT = Path(__file__).resolve().parents[1]
SMALL = eb.Model(name="small", layers=2, width=48, heads=3, vocabulary=101, positions=40)
STEP = eb.Setup(batch=1, sequence=8)
#: Area -> tests whose every case is a try.
TESTS = {
    "workers, signals, output": ["tests/lab/test_process.py", "tests/lab/test_torchrun.py", "tests/dryrun/test_state.py"],
    "records, recording": ["tests/lab/test_records.py", "tests/lab/test_recording.py"],
    "checkpoints": ["tests/lab/test_checkpoints.py"],
    "full disks, a home that cannot be written": ["tests/test_faults.py"],
    "another folder, a port that is taken, a Ctrl-C at the start": [
        "tests/test_hosting.py", "tests/test_machine.py",
        "tests/test_cli.py::test_ctrl_c_while_the_package_is_imported_is_one_line",
    ],
}  # fmt: skip

#: What is not tried here, and why.
LEFT_OUT = """Left out: a built wheel in an environment of its own (tools/wheel.py, which fetches sympy); damaged pages in a browser, and a kernel
that dies under an explorer (tests/browser, `make test-browser`); 20,000 interrupts (tests/dryrun/test_state.py takes some hundred); a real
GPU's own failures, for want of one; objects whose own methods lie, since Python gives no way to refuse them."""


def holds(condition):
    """A number, or a state, that is right."""
    assert condition


def commands():
    """Lists of words, as a shell gives them."""
    gpt2 = ["budget", "gpt2"]
    words = [
        [], ["--help-me"], ["budget"], ["budget", "gpt3"], ["budget", ""], ["budget", "/"], [*gpt2, "--batch", "0"], [*gpt2, "--batch", "-1"],
        [*gpt2, "--batch", "1e3"], [*gpt2, "--batch", "99999999999999999999"], [*gpt2, "--sequence", "1025"], [*gpt2, "--precision", "fp8"],
        [*gpt2, "--rounding", "0"], [*gpt2, "--gpus", "3", "--sharding", "zero9"], [*gpt2, "--json"], ["fit", "gpt2"],
        ["fit", "gpt2", "--gpu", "h300"], ["fit", "gpt2", "--gpu", "0 GiB"], ["fit", "gpt2", "--gpu", "h200", "--keep-context", "1e999GiB"],
        ["fit", "gpt2", "--gpu", "h200", "--keep-context", "nan"], ["fit", "gpt2", "--gpu", "h200", "--keep-context", "-1"],
        ["models"], ["models", "x"], ["gpus"], ["gpus", "--json"], ["doctor", "/dev/null"], ["doctor", "/nowhere"], ["snapshot", "/dev/null"],
        ["measure", "gpt2", "--device", "mps"], ["dry-run", "gpt2", "--rank", "1"], ["serve", "gpt2", "--gpu", "h200", "--context", "2000"],
        ["dry-run", "llama-3.1-8b", "--batch", "16777216", "--sequence", "131072", "--attention", "eager"],
    ]  # fmt: skip

    def run(given):
        out, err = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            try:
                status = cli.main(given)
            except SystemExit as ended:  # --help alone
                status = ended.code
        if status == 2:
            assert err.getvalue().startswith("everybyte: ") and err.getvalue().count("\n") == 1, err.getvalue()
            raise fuzz.Refused(err.getvalue())
        assert status == 0 and not err.getvalue()

    return [lambda given=given: run(given) for given in words]


def calls():
    """Arguments of the wrong kind, beyond the bounds, at the edges."""
    odd = (None, True, 1.5, float("nan"), float("inf"), -1, 0, 2**70, "", "x", [], {}, b"1")
    fields = ("batch", "sequence", "accumulation", "gpus")
    found = [lambda f=f, v=v: eb.budget(SMALL, STEP.replace(**{f: v})) for f, v in itertools.product(fields, odd)]
    found += [lambda v=v: eb.model(v) for v in odd] + [lambda v=v: eb.fit(SMALL, STEP, v) for v in odd]
    found += [lambda v=v: units.parse(v) for v in (*odd, "1 GiB", "1e999 GiB", "GiB", "1 XB")]
    found += [lambda v=v: eb.serve(SMALL, "h200", v) for v in odd]
    edges = {0: "0 B", 1023: "1023 B", 2**30 - 1: "1.00 GiB", 2**30: "1.00 GiB"}
    return found + [lambda n=n, s=s: holds(units.text(n) == s) for n, s in edges.items()]


def arrays():
    """Sizes that wrap in 64 bits: exact, or refused. Held against whole numbers."""
    found = []
    for power, layers, attention in itertools.product((4, 12, 20, 24), (2, 96), ("flash", "eager")):
        model = eb.Model(name="wide", layers=layers, width=12288, heads=96, vocabulary=50_257, positions=2**17)
        for sequence in (1, 1024, 2**17):

            def one(model=model, batch=2**power, sequence=sequence, attention=attention):
                setup = eb.Setup(batch=batch, sequence=sequence, attention=attention)
                exact = eb.budget(model, setup).peak
                holds(int(peaks(model, setup, numpy.array([batch]), numpy.array([setup.sequence]))[0][0]) == exact)

            found.append(one)
    for name, power in itertools.product(
        ("flops.block", "attention.scores", "parameters", "zero.states", "checkpoint.inputs"), (8, 20, 40)
    ):

        def of_arrays(name=name, power=power):
            formula = eb.formula(name)
            points = [{e.name: 2**power + shift for e in formula.symbols} for shift in (0, 1)]
            given = formula.arrays(**{e.name: [point[e.name] for point in points] for e in formula.symbols})
            holds(list(given) == [formula(**point) for point in points])

        found.append(of_arrays)
    return found


def claims():
    """Expressions of a claim and of an answer that would run, never end, or mean nothing."""
    one = next(c for c in eb.claims().values() if c.value and not c.given and not c.runs and c.unit not in units.UNITS)
    texts = [
        "9**9**9", "9**9**9**9", "2**(2**40)", "min(1,10**100000000)", "(-1)**0.5", "1/0", "(" * 3000 + "1" + ")" * 3000, "", "x", "1+",
        "__import__('os').system('true')", "().__class__", "open('/etc/passwd')", "lambda: 1", "[1][0]", "f'{1}'", "1 if 1 else 2", "1;2",
        "\x00", "\ud800", "1e999", "nan", "inf", "0x10", "1_000", "max()", "min(1)", "2**-1", "0**0", "1e400*0", "round(1.5)", "a.b", "a[0]",
        "9" * 5000, "1" + "+1" * 20_000,
    ]  # fmt: skip
    from dataclasses import replace

    def read(text):
        settling._Reader(replace(one, value=text)).read("value")

    def answer(text):
        check("13.1", text)

    found = [lambda t=t: read(t) for t in texts] + [lambda t=t: answer(t) for t in texts]
    return found + [lambda v=v: check("13.1", v) for v in (None, True, float("nan"), [], {}, object(), 2**5000, b"1")]


def names():
    """A model's name, wherever it is shown: no tag of it gets through, and nothing breaks."""
    given = [
        "<b>x</b>",
        "<script>alert(1)</script>",
        "&amp;",
        '"><img src=x>',
        "$\\frac{$",
        "a\nb",
        "\ud800",
        "x" * 201,
        "{0}",
        "%s",
    ]

    def shown(name):
        model = SMALL.replace(name=name)
        for said in (
            eb.budget(model, STEP), eb.dry_run(model, STEP), eb.compare(eb.budget(model, STEP), eb.dry_run(model, STEP)),
            eb.fit(model, STEP, "h200"), eb.serve(model.replace(width=64, heads=4), "h200", 32),
        ):  # fmt: skip
            html = said._repr_html_() if hasattr(said, "_repr_html_") else ""
            holds(not re.search(r"<(b|script|img)\b", html))
        holds(draw.png(draw.timeline(eb.dry_run(model, STEP)))[:4] == b"\x89PNG")

    return [lambda name=name: shown(name) for name in given]


def batches():
    """Arguments of a module's forward that no tensor has."""

    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = torch.nn.Linear(4, 4)

        def forward(self, x):
            return self.linear(x).sum()

    plain = eb.Setup()
    shapes = [
        (-1, 4),
        (2**70, 4),
        (2**62, 4),
        (2.5, 4),
        "ab",
        None,
        (True, 4),
        4,
        (),
        (0, 4),
        (3, 4),
        (2**40, 4),
        ("3", 4),
        (numpy.int64(3), 4),
    ]
    found = [lambda s=s: eb.dry_run(Net, plain, batch={"x": (s, torch.float32)}) for s in shapes]
    found += [
        lambda b=b: eb.dry_run(Net, plain, batch=b)
        for b in (None, {}, (), 5, "x", {"x": 1}, {"x": None}, [torch.ones(2, 4)])
    ]
    found += [lambda m=m: eb.dry_run(m, STEP) for m in (None, 5, "gpt2", Net(), lambda: 5, object())]
    return found + [
        lambda: eb.dry_run(SMALL, None),
        lambda: eb.dry_run(SMALL, STEP, rounding=0),
        lambda: eb.dry_run(SMALL, STEP, rank=-1),
    ]


def devices():
    """Names of devices that are no CUDA device of this machine: none becomes the first GPU."""
    return [
        lambda d=d: holds(find(d).type == "cpu")
        for d in ("cpu", "cpu:0", "meta", "mps", "xpu", "cuda:99", "", "CUDA", "cuda:-1")
    ]


def answers():
    """The file of answers, damaged or no file."""
    data = [
        b"", b"{", b"[]", b"5", b"null", b'{"solved": 1}', b'{"solved": [1]}', b"\xff\xfe", b"[" * 100_000, b'{"solved": ["13.1"]}', b"{}",
        b'{"x": []}', b"\x00" * 100, b'{"solved": [' + b'"a",' * 9 + b'"a"]}',
    ]  # fmt: skip

    def one(data):
        with tempfile.TemporaryDirectory() as folder, fuzz._environment(kept.VARIABLE, f"{folder}/progress.json"):
            (Path(folder) / "progress.json").write_bytes(data)
            said = progress()._repr_html_()
            holds(check("13.1", 1).text and said)
            aside = Path(folder) / "progress.json.damaged-1"
            holds(not aside.exists() or aside.read_bytes() == data)

    def path(place):
        with fuzz._environment(kept.VARIABLE, place):
            holds(check("13.1", 1).text and progress()._repr_html_())

    places = ["/dev/full", "/dev/null", "/dev/zero", "/", "~nosuchuser/x", "relative", "/nowhere/at/all"]
    return [lambda d=d: one(d) for d in data] + [lambda p=p: path(p) for p in places]


def lines():
    """A record with a line that is none: every other line is read, and the faults are said."""
    good = list(fuzz._lines())
    odd = [
        b"",
        b"{",
        b"[" * 200_000,
        b"\xff",
        b"null",
        b"5",
        b"{}",
        b'{"check": "x"}',
        good[0][:-9],
        good[0] + b"x",
        good[0].replace(b"small", b"other"),
    ]

    def one(line):
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "drawn.jsonl"
            path.write_bytes(b"\n".join([*good, line, *good]) + b"\n")
            found = records.read(path)
            holds(len(found.measurements) == 2 * len(good) and len(found.faults) == 1)
            records.repair(path)
            holds(not records.read(path).faults)

    return [lambda line=line: one(line) for line in odd]


AREAS = {
    "command": commands, "calls": calls, "sizes that wrap": arrays, "claims and answers": claims, "names": names, "dry runs": batches,
    "devices": devices, "file of answers": answers, "lines of a record": lines,
}  # fmt: skip


def tried(area: str) -> tuple[dict, list]:
    """Verdict -> how many of an area's tries; and what failed, in words."""
    seen, failed = dict.fromkeys(("survived", "clear error", "failed"), 0), []
    for number, attack in enumerate(AREAS[area]()):
        try:
            verdict = {"right": "survived"}.get(found := fuzz.verdict(lambda _, attack=attack: attack(), None), found)
        except BaseException as error:
            if isinstance(error, KeyboardInterrupt):
                raise
            # What a module of one's own raises is passed on, with a note of where it was: its traceback is its author's.
            noted = any(note.startswith("everybyte.dry_run: in ") for note in getattr(error, "__notes__", ()))
            verdict = "clear error" if noted else "failed"
            failed += [] if noted else [f"{area}, try {number}: {type(error).__name__}: {str(error)[:300]}"]
        seen[verdict] += 1
    return seen, failed


def by_tests(paths) -> tuple[int, int, int]:
    """(passed, failed, skipped) of the cases of some tests."""
    environment = os.environ | {"EVERYBYTE_TESTS": "all"}
    ran = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-n", "0", *paths],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
    )
    last = ran.stdout.strip().splitlines()[-1]
    return tuple(int((re.search(rf"(\d+) {word}", last) or [0, 0])[1]) for word in ("passed", "failed", "skipped"))


def main() -> int:
    """Print the table; the exit status says whether anything failed."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--processes", action="store_true", help="also what stands in tests")
    options, rows, said = parser.parse_args(), [], []
    for area in AREAS:
        seen, failed = tried(area)
        rows.append([area, sum(seen.values()), *seen.values()])
        said += failed
    for area, paths in TESTS.items() if options.processes else ():
        passed, failed, skipped = by_tests(paths)
        rows.append([f"{area} (tests)", passed + failed, passed, "", failed])
        said += [f"{area}: {skipped} skipped"] * (skipped > 0)
    totals = [sum(row[i] or 0 for row in rows) for i in (1, 2, 3, 4)]
    print(Table(["area", "tries", "survived", "clear error", "failed"], [*rows, ["all", *totals]]))
    print(*said, LEFT_OUT, sep="\n")
    return int(totals[-1] > 0)


if __name__ == "__main__":
    sys.exit(main())
