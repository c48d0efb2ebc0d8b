"""Notebooks are compared with what is stored, which is the record's: none asks this machine's GPU while it is tested.

And none reads or writes a reader's progress. Their kernels start with the book's imports done.
"""

import os

os.environ["EVERYBYTE_RECORD_ONLY"] = "1"
os.environ["EVERYBYTE_PROGRESS"] = "off"
# The tests' tensors are tiny: threads would wait for one another, and as many workers run beside as there are cores.
os.environ.setdefault("OMP_NUM_THREADS", "1")


def pytest_configure():
    import warm_kernels

    warm_kernels.install()
