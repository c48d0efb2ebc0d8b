"""One profile for the properties: no deadlines, since machines differ; no chance, where a failure must be repeatable.

And `make test` takes a sample where `make test-all` takes everything: of many points that one test looks at, of a property's
examples, of the cases of a test that is marked `sampled`, of the long tests that `costs.txt` lists, and none of a test that is
marked `thorough`.
"""

import os
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import settings
from sampling import changed, costs, drawn, git, representative, some

EVERYTHING = os.environ.get("EVERYBYTE_TESTS") == "all"
HERE = Path(__file__).resolve().parent
#: Seconds by the clock from which on a test that nobody has measured is named.
UNMEASURED = 5

settings.register_profile(
    "everybyte", deadline=None, derandomize=bool(os.environ.get("CI")), max_examples=100 if EVERYTHING else 25
)
settings.load_profile("everybyte")


@pytest.fixture(scope="session")
def sample():
    """`some`; in `make test-all` every value."""
    return (lambda values, most: list(values)) if EVERYTHING else some


@pytest.fixture
def flash(monkeypatch):
    """PyTorch chooses flash attention on Hopper too, as the book's formulas have it, and not cuDNN's, which keeps 8 bytes less."""
    monkeypatch.setenv("TORCH_CUDNN_SDPA_DEPRIORITIZED", "1")


@pytest.fixture(scope="session")
def here():
    """The environment of rehearsals, found and not made, or the test is skipped with the reason: `make rehearsal` makes it."""
    from everybyte.rehearsal import place

    try:
        return place.find()
    except ValueError as error:
        pytest.skip(str(error))


def _left_out(config) -> set[str]:
    """The long tests that are not this commit's: none where somebody asks for a folder, a file or a test."""
    if EVERYTHING or HERE not in [(config.invocation_params.dir / argument).resolve() for argument in config.args]:
        return set()
    known, root = costs(HERE / "costs.txt"), HERE.parent
    return known.keys() - drawn(known, git(root, "rev-parse", "HEAD"), changed(root))


def pytest_report_header(config):
    if out := _left_out(config):
        known = costs(HERE / "costs.txt")
        return f"long tests of this commit (make test-all: every one): {len(known) - len(out)} of {len(known)}"


_took: Counter = Counter()


def pytest_runtest_logreport(report):
    """Every phase of a test, whichever worker ran it: what stands outside the draw is named at the end."""
    _took[report.nodeid.partition("[")[0]] += report.duration


def pytest_terminal_summary(terminalreporter):
    known = costs(HERE / "costs.txt")
    if new := [
        test for test, seconds in _took.items() if seconds > UNMEASURED and ".py::" in test and test not in known
    ]:
        terminalreporter.line(f"long, and not in tests/costs.txt (python tools/costs.py FILE): {' '.join(sorted(new))}")


def pytest_collection_modifyitems(config, items):
    """Of long tests keep the commit's, of one that is marked `sampled(most)` some cases, and of a `thorough` one say where it runs."""
    if EVERYTHING:
        return
    out = _left_out(config)
    cases, dropped = {}, {item for item in items if item.nodeid.partition("[")[0] in out}
    for item in items:
        if mark := item.get_closest_marker("thorough"):
            item.add_marker(pytest.mark.skip(reason=f"{mark.args[0]}: make test-all"))
        elif mark := item.get_closest_marker("sampled"):
            cases.setdefault((item.path, item.originalname, mark.args[0]), []).append(item)
    for (_, _, most), group in cases.items():
        choices = [getattr(item, "callspec", None) and item.callspec.indices or {} for item in group]
        kept = representative(choices, most)
        dropped.update(item for i, item in enumerate(group) if i not in kept)
    if dropped:
        config.hook.pytest_deselected(items=[item for item in items if item in dropped])
        items[:] = [item for item in items if item not in dropped]
