"""Notebooks are compared with what is stored, which is the record's: none asks this machine's GPU while it is tested.

And none reads or writes a reader's progress. Their kernels start with the book's imports done. `make test` runs a share of
them again, `tests/sampling.py` says which; `make test-all` runs every one, and so does who names it.
"""

import os
import re
import signal
from collections import Counter
from pathlib import Path

import lints
from sampling import chosen, costs

os.environ["EVERYBYTE_RECORD_ONLY"] = "1"
os.environ["EVERYBYTE_PROGRESS"] = "off"
# The tests' tensors are tiny: threads would wait for one another, and as many workers run beside as there are cores.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# A shell starts what runs in its background deaf to Ctrl-C, and tests press it.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

#: What takes longest goes first, and a worker takes a whole module: a long one at the end would keep the others waiting. Notebooks
#: before the tests, since a kernel starts beside the others' work; of tests those whose long ones take most.
FIRST = (r"tests/browser/", r"(17|45|25|22|18|32)_\w+\.ipynb", r"labs/0[14]", r"\.ipynb")


def pytest_configure():
    import warm

    warm.begin()
    warm.kernels()


def _notebooks(config) -> list[str] | None:
    """Which notebooks to run again, or None for all that were asked for."""
    if os.environ.get("EVERYBYTE_TESTS") == "all" or any(".ipynb" in str(argument) for argument in config.args):
        return None
    return chosen(config.rootpath, sorted(lints.on_disk(config.rootpath)))


def pytest_report_header(config):
    again = _notebooks(config)
    if again is not None:
        return f"notebooks run again at this commit (make test-all: every one): {' '.join(Path(p).stem[:2] for p in again)}"


def pytest_collection_modifyitems(config, items):
    again = _notebooks(config)
    if again is not None:
        left = {item for item in items if item.path.suffix == ".ipynb" and item.nodeid.partition("::")[0] not in again}
        if left:
            config.hook.pytest_deselected(items=list(left))
            items[:] = [item for item in items if item not in left]

    long, taken = costs(config.rootpath / "tests/costs.txt"), Counter()
    for test in dict.fromkeys(
        item.nodeid.partition("[")[0] for item in items
    ):  # in one order: sums of fractions depend on it
        taken[test.partition("::")[0]] += long.get(test, 0)

    def place(item):
        path = item.nodeid.partition("::")[0]
        return next((i for i, name in enumerate(FIRST) if re.search(name, path)), len(FIRST)), -taken[path]

    items.sort(key=place)  # stable, and so the same for every worker
