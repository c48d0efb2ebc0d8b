"""Ctrl-C, between two operations.

Python raises it between any two instructions. Where that is between the entering of a mode and the `try` that leaves it, the mode
stays on PyTorch's stack, and every later tensor of the process goes through it; and a `with` has such places too, at both its
ends. So while modes come and go with every operation, Ctrl-C is noted, and raised where the next operation begins: all modes are
where they belong there.
"""

import signal
import threading
import time

import torch.utils._python_dispatch

#: Seconds without an operation after which another Ctrl-C does not wait: a module that is lost in a loop of its own.
PATIENCE = 2.0


class BetweenOperations:
    """A context in which Ctrl-C waits for `check`, and no longer than to its end.

    Elsewhere than in the main thread, and where somebody else handles Ctrl-C, it changes nothing.
    """

    waiting = False  # in a class of which one instance at a time is entered: signals are the process's

    def __enter__(self):
        self.came, self.modes = None, _modes()
        ours = threading.current_thread() is threading.main_thread()
        self.before = signal.getsignal(signal.SIGINT) if ours else None
        if self.before is signal.default_int_handler:
            BetweenOperations.waiting = False
            signal.signal(signal.SIGINT, self._note)

    def _note(self, number, frame):
        now = time.monotonic()
        if self.came and now - self.came > PATIENCE:
            raise KeyboardInterrupt
        self.came, BetweenOperations.waiting = self.came or now, True

    def __exit__(self, kind, *_):
        if self.before is signal.default_int_handler:
            signal.signal(signal.SIGINT, self.before)
            BetweenOperations.waiting = False
        for there, before, pop in zip(_modes(), self.modes, _POP, strict=True):
            for _ in range(there - before):  # whoever did not wait may have come in between
                pop()
        if self.came and not (kind and issubclass(kind, KeyboardInterrupt)):
            raise KeyboardInterrupt


def check() -> None:
    """Raise the Ctrl-C that is waiting, where one is."""
    if BetweenOperations.waiting:
        BetweenOperations.waiting = False
        raise KeyboardInterrupt


_POP = torch.overrides._pop_mode, torch.utils._python_dispatch._pop_mode


def _modes():
    """How many function modes and dispatch modes there are."""
    return torch._C._len_torch_function_stack(), torch._C._len_torch_dispatch_stack()
