"""What each long test of `make test` takes of the processor, into `tests/costs.txt`: `make test` draws among those by it.

    tools/costs.py              # every folder of tests, each in a process of its own
    tools/costs.py tests/lab    # that one again; what the file says of others stays

A test's seconds are its own and those of what it starts, of all its cases that `make test` samples, with each fixture that it asks for:
where one is shared, whoever is drawn makes it. One that waits keeps its worker: it counts half of what it takes by the clock, where that is more.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from contextlib import suppress
from math import fsum
from pathlib import Path

import psutil
import pytest

ROOT = Path(__file__).resolve().parents[1]
FILE = ROOT / "tests/costs.txt"
#: Seconds from which on a test is long.
LEAST = 1.0
#: Where the plugin writes what it saw.
_SEEN = "EVERYBYTE_COSTS"
HEAD = "# Long tests, and the seconds of CPU that each takes with all its cases in `make test`: written by tools/costs.py.\n"


def spent() -> float:
    """Seconds of CPU of this process, and of what it has started, ended or not."""
    here, total = psutil.Process(), time.process_time()
    total += sum(here.cpu_times()[2:4])
    for child in here.children(recursive=True):
        with suppress(psutil.NoSuchProcess):
            total += sum(child.cpu_times()[:4])
    return total


class _Busy:
    """How long a worker is busy within it, in `seconds`."""

    def __enter__(self):
        self.before = spent(), time.monotonic()
        return self

    def __exit__(self, *_):
        self.seconds = max(spent() - self.before[0], (time.monotonic() - self.before[1]) / 2)


@pytest.hookimpl(hookwrapper=True, tryfirst=True)
def pytest_runtest_protocol(item):
    test = item.nodeid.partition("[")[0]
    _asking[test] = set(item.fixturenames)
    with _Busy() as busy:
        yield
    _taken[test] += busy.seconds - fsum(_made)
    _made.clear()


@pytest.hookimpl(hookwrapper=True, tryfirst=True)
def pytest_fixture_setup(fixturedef):
    with _Busy() as busy:
        yield
    if fixturedef.scope != "function":
        _made.append(busy.seconds)  # within the test that runs
        _shared[fixturedef.argname] = max(_shared[fixturedef.argname], busy.seconds)  # each module makes its own


def pytest_sessionfinish():
    for test, names in _asking.items():
        _taken[test] += sum(_shared[name] for name in names)
    Path(os.environ[_SEEN]).write_text(json.dumps(_taken), encoding="utf-8")


_taken, _shared, _asking, _made = Counter(), Counter(), {}, []


def measured(path: str) -> dict[str, float]:
    """Test -> seconds, of a folder's or a file's tests. Raises `subprocess.CalledProcessError` where they fail."""
    with tempfile.TemporaryDirectory() as folder:
        seen = Path(folder) / "seen.json"
        command = [sys.executable, "-m", "pytest", "-q", "-n", "0", "-p", "costs", path]
        environment = os.environ | {_SEEN: str(seen), "PYTHONPATH": os.pathsep.join(sys.path[1:])}
        subprocess.run(command, cwd=ROOT, env=environment, check=True)
        return json.loads(seen.read_text(encoding="utf-8"))


def main(paths: list[str]) -> None:
    from sampling import costs

    known = costs(FILE) if paths else {}
    for path in paths or [str(p.relative_to(ROOT)) for p in sorted((ROOT / "tests").iterdir()) if _has_tests(p)]:
        known = {test: taken for test, taken in known.items() if not test.startswith(path)}
        known |= {test: taken for test, taken in measured(path).items() if taken >= LEAST}
        rows = sorted(known.items(), key=lambda row: (-round(row[1], 1), row[0]))
        FILE.write_text(HEAD + "".join(f"{taken:.1f} {test}\n" for test, taken in rows), encoding="utf-8")


def _has_tests(path: Path) -> bool:
    return path.name.startswith("test_") or any(path.glob("test_*.py"))


if __name__ == "__main__":
    sys.path.append(str(ROOT / "tests"))
    main(sys.argv[1:])
