"""Whatever is given, the answer is right, or a clear error: `make fuzz`, and a share of it in `make test`.

The subjects stand in `fuzzing/`, by area. Each input of theirs is drawn by Hypothesis and ends in one of three ways: `right`, where
what came back was held against a second way to compute it; `clear error`, a ValueError that names a field, or the command's one
sentence with status 2; `failed`, anything else: another exception, another number, no answer in time, a character that a terminal
obeys, or a process that is not as it was (its modes, signals, variables, children). Of each failure the shortest such input is
told. `fuzz.txt` has the table of one whole run.

    python tools/fuzz.py [--inputs 20000] [--seed 0] [--only command keyed] [--processes 2]
"""

import argparse
import contextlib
import gc
import json
import os
import queue
import re
import signal
import subprocess
import sys
import threading
import time
import traceback
import warnings
from collections import Counter, deque
from pathlib import Path

import hypothesis
from fuzzing import SUBJECTS
from fuzzing.drawn import CONTROL, LeftOut, Refused
from hypothesis import strategies as st
from hypothesis.errors import HypothesisException

from everybyte.common.tables import Table

HERE = Path(__file__).resolve()
#: Seconds that one input may take, where its subject says nothing else; and that a failure is made shorter.
EACH, SHORTER = 60, 30
#: Times as many seconds for an input that had hardly a processor: others work on the machine too.
PATIENCE = 5
#: So many different failures of a subject are made shorter.
MOST = 8
#: A clear error begins with what it speaks of, and is no page.
CLEAR = re.compile(r"(?s)^(claim |formula )?[^\n:()]{1,120}: .+")
LONG = 4000


def verdict(subject, draw) -> str:
    """`right` or `clear error`; anything else is raised."""
    before = state()
    try:
        with _within(getattr(subject, "seconds", EACH)):
            subject(draw)
        said = "right"
    except Refused:
        said = "clear error"
    except ValueError as error:
        ours = type(error) is ValueError or type(error).__module__.startswith("everybyte")
        text = str(error)
        if not ours or not CLEAR.match(text) or len(text) > LONG or CONTROL.search(text):
            raise AssertionError(f"no clear error: {type(error).__name__}: {text[:LONG]!r}") from error
        said = "clear error"
    except Exception as error:
        # What a module of one's own raises is passed on, with a note of where it was: its traceback is its author's.
        if not any(note.startswith("everybyte.dry_run: in ") for note in getattr(error, "__notes__", ())):
            raise
        said = "clear error"
    after = state()
    for name in before.keys() & after.keys():
        imported = before["modules"] != after["modules"] and name in ("modules", "variables", "warnings", "path")
        assert imported or before[name] == after[name], f"{name}: {before[name]!r} became {after[name]!r}"
    return said


def state() -> dict:
    """What of this process nobody may change."""
    found = {
        "folder": os.getcwd(), "variables": dict(os.environ), "path": list(sys.path), "modules": len(sys.modules),
        "warnings": list(warnings.filters), "collector": (gc.isenabled(), gc.get_threshold(), len(gc.callbacks)),
        "signals": [signal.getsignal(s) for s in (signal.SIGINT, signal.SIGTERM, signal.SIGALRM, signal.SIGCHLD, signal.SIGUSR1)],
        "streams": (sys.stdin, sys.stdout, sys.stderr), "hooks": (sys.excepthook, sys.unraisablehook, sys.displayhook),
        "recursion": sys.getrecursionlimit(), "threads": sorted(t.name for t in threading.enumerate() if not t.daemon),
    }  # fmt: skip
    with contextlib.suppress(OSError):
        found["children"] = Path(f"/proc/self/task/{os.getpid()}/children").read_text(encoding="ascii")
        import resource

        found["memory"] = resource.getrlimit(resource.RLIMIT_AS)
    if torch := sys.modules.get("torch"):
        from torch.overrides import _get_current_function_mode_stack
        from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

        found["torch"] = (
            list(map(id, _get_current_dispatch_mode_stack())), list(map(id, _get_current_function_mode_stack())), torch.get_default_dtype(),
            str(torch.get_default_device()), torch.is_grad_enabled(), torch.is_inference_mode_enabled(), torch.get_num_threads(),
            torch.is_autocast_enabled("cpu"), torch.are_deterministic_algorithms_enabled(),
        )  # fmt: skip
    return found


@contextlib.contextmanager
def _within(seconds):
    begun, used = time.monotonic(), time.process_time()

    def late(*_):
        waited = time.monotonic() - begun
        if time.process_time() - used < seconds / 2 and waited < PATIENCE * seconds:
            signal.alarm(seconds)  # it had less than half of a processor
            return
        raise TimeoutError(f"no answer within {waited:.0f} s")

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def run(subject, count: int, seed: int = 0) -> tuple[Counter, dict[str, str]]:
    """(verdict -> inputs, where it failed -> the shortest input that does, and how)."""
    seen, failed = Counter(), {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for again in range(MOST + 1):
            known = len(failed)
            _look(subject, count - seen.total(), seed + again, seen, failed, again < MOST)
            if len(failed) == known or seen.total() >= count:
                break
    return seen, failed


class _Enough(BaseException):
    """A failure is short enough."""


def _look(subject, count, seed, seen, failed, shorten):
    """Draw inputs until one fails as none before it did, and make that one shorter; or draw all of them."""
    new, since = None, 0.0

    @hypothesis.seed(seed)
    @hypothesis.settings(
        max_examples=count, deadline=None, database=None, suppress_health_check=list(hypothesis.HealthCheck),
        phases=(hypothesis.Phase.generate, hypothesis.Phase.shrink), report_multiple_bugs=False,
    )  # fmt: skip
    @hypothesis.given(st.data())
    def each(data):
        nonlocal new, since
        drawn = []

        def draw(strategy):
            drawn.append(data.draw(strategy))
            return drawn[-1]

        try:
            said = verdict(subject, draw)
        except (HypothesisException, LeftOut):
            raise
        except (Exception, SystemExit) as error:
            where = _where(error)
            if new is None:
                seen["failed"] += 1
                if where in failed or not shorten:
                    failed.setdefault(where, _told(error, drawn))
                    return
                new, since = where, time.monotonic()
            if where == new:
                failed[where] = _told(error, drawn)
                if time.monotonic() - since > SHORTER:
                    raise _Enough from None
                raise
            return
        if new is None:
            seen[said] += 1

    try:
        each()
    except _Enough:
        pass
    except (Exception, SystemExit):
        if new is None:
            raise


def _where(error):
    """The innermost line of the library, or else of a subject, in which an error arose."""
    frames = traceback.extract_tb((error.__cause__ or error).__traceback__)
    own = (
        [f for f in frames if "/everybyte/" in f.filename] or [f for f in frames if "/fuzzing/" in f.filename] or frames
    )
    place = f"{Path(own[-1].filename).name}:{own[-1].lineno}" if own else "nowhere"
    return f"{type(error).__name__} at {place}"


def _told(error, drawn):
    return f"{type(error).__name__}: {str(error)[:600]}\n    drawn: {', '.join(map(_shown, drawn))}"


def _shown(value):
    try:
        text = repr(value)
    except ValueError:  # a whole number of more digits than Python prints
        return f"a {type(value).__name__} that has no repr"
    return text if len(text) < 600 else f"{text[:500]}... ({len(text):,} characters)"


def _row(name, inputs, seed) -> dict:
    """What came of one subject's share, as JSON has it."""
    start, left = time.monotonic(), ""
    subject = next(s for s in SUBJECTS if s.__name__ == name)
    try:
        seen, failed = run(subject, max(1, SUBJECTS[subject] * inputs // sum(SUBJECTS.values())), seed)
    except LeftOut as error:
        seen, failed, left = Counter(), {}, str(error)
    return {"subject": name, "seen": seen, "failed": failed, "left": left, "seconds": time.monotonic() - start}


def _worker(names, inputs, seed):
    """Rows of the next subject and the next, in a process beside this one; where that dies, its row says so, and another goes on."""
    words = [sys.executable, HERE, "--processes", "0", "--inputs", str(inputs), "--seed", str(seed), "--only"]
    process = None
    while names:
        name = names.popleft()
        if process is None:
            process = subprocess.Popen(
                [*words, "-"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
            )
        process.stdin.write(f"{name}\n")
        process.stdin.flush()
        line = process.stdout.readline()
        if line:
            yield json.loads(line)
        else:
            how, process = f"its process ended by {process.wait()}", None
            yield {"subject": name, "seen": {"failed": 1}, "failed": {how: ""}, "left": "", "seconds": 0}
    if process is not None:
        process.communicate()


def _beside(names, inputs, seed, processes):
    """Rows of all of them, as they come."""
    names, rows = deque(names), queue.Queue()

    def work():
        try:
            for row in _worker(names, inputs, seed):
                rows.put(row)
        finally:
            rows.put(None)

    for _ in range(processes):
        threading.Thread(target=work, daemon=True).start()
    for _ in range(processes):
        yield from iter(rows.get, None)


def main() -> int:
    """Run all of it, or `--only` some; the exit status says whether there was anything but right and clear."""
    names = [subject.__name__ for subject in SUBJECTS]
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--inputs", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", nargs="+", choices=[*names, "-"], default=names, help="- for names on standard input")
    parser.add_argument("--processes", type=int, default=2, help="0: this one, and a line of JSON for each subject")
    options = parser.parse_args()
    if not options.processes:
        told = sys.stdout
        for name in map(str.strip, sys.stdin) if options.only == ["-"] else options.only:
            print(json.dumps(_row(name, options.inputs, options.seed)), file=told, flush=True)
        return 0
    rows = {}
    for row in _beside(options.only, options.inputs, options.seed, options.processes):
        seen = Counter(row["seen"])
        numbers = seen.total(), seen["right"], seen["clear error"], seen["failed"]
        rows[row["subject"]] = [row["subject"], *numbers, f"{row['seconds']:.0f}"]
        print(*rows[row["subject"]], row["left"] and f"left out: {row['left']}", flush=True, file=sys.stderr)
        for where, told in row["failed"].items():
            print(f"  {where}\n    {told}", flush=True, file=sys.stderr)
    found = [rows[name] for name in names if name in rows]
    found.append(
        ["all", *(sum(row[i] for row in found) for i in (1, 2, 3, 4)), f"{sum(float(row[5]) for row in found):.0f}"]
    )
    print(Table(["subject", "inputs", "right", "clear error", "failed", "seconds"], found))
    return int(found[-1][4] > 0)


if __name__ == "__main__":
    sys.exit(main())
