"""Time in tests: how it grows with the size, as a ratio in one run, and that something ends at all; never how long it takes."""

import signal
import time
from contextlib import contextmanager


@contextmanager
def ends(seconds=120):
    """Fail where what is inside runs on: a guard against what would never end, far above what a slow machine needs."""

    def stop(*_):
        raise AssertionError(f"still running after {seconds} s")

    handler = signal.signal(signal.SIGALRM, stop)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, handler)


def growth(call, make, size, times=8):
    """How many times longer `call` takes of the processor on `make(times * size)` than on `make(size)`.

    About `times` where it goes with the size, `times` squared where with its square; each is the least of three.
    """

    def taken(size):
        given, least = make(size), float("inf")
        for _ in range(3):
            start = time.process_time()
            call(given)
            least = min(least, time.process_time() - start)
        return least

    return taken(times * size) / taken(size)
