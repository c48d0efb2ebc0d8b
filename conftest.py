"""Notebooks are compared with what is stored, which is the record's: none asks this machine's GPU while it is tested.

And none reads or writes a reader's progress. Their kernels start with the book's imports done.
"""

import os
import re
import signal

os.environ["EVERYBYTE_RECORD_ONLY"] = "1"
os.environ["EVERYBYTE_PROGRESS"] = "off"
# The tests' tensors are tiny: threads would wait for one another, and as many workers run beside as there are cores.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# A shell starts what runs in its background deaf to Ctrl-C, and tests press it.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

#: Modules that take longest, by name, those first: a worker takes a whole module, so that a long one at the end would keep the others
#: waiting. Notebooks before the rest, since a kernel starts beside the others' work.
LONGEST = (
    r"tests/browser/", r"(17|22|32|21|18|45)_\w+\.ipynb", r"labs/04", r"tests/explore/test_explorers", r"tests/test_plan", r"\.ipynb",
    r"tests/reference/test_parallel", r"tests/lab/", r"tests/deriving/", r"tests/test_cli", r"tests/explore/", r"tests/reference/",
)  # fmt: skip


def pytest_configure():
    import warm_kernels

    warm_kernels.install()


def pytest_collection_modifyitems(items):
    def place(item):
        path = item.nodeid.partition("::")[0]
        return next((i for i, name in enumerate(LONGEST) if re.search(name, path)), len(LONGEST))

    items.sort(key=place)  # stable, and so the same for every worker
