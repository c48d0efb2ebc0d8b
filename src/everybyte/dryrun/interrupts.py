"""Ctrl-C between two operations.

Python may raise it between any two instructions. Raised while a mode is entered or left, at either end of a `with` too, it would
leave the mode on PyTorch's stack, and every later tensor of the process would go through it. So during a dry run Ctrl-C is noted,
and raised where the next operation begins.
"""

import torch.utils._python_dispatch

from ..common.interrupts import PATIENCE, Held, error_of


class BetweenOperations(Held):
    """A context in which Ctrl-C waits for `check`, or for the context's end."""

    waiting: int | None = None  # in a class of which one instance at a time is entered: signals are the process's

    def __enter__(self):
        self.patience, self.modes = PATIENCE, _modes()
        if Held.outermost is None:
            BetweenOperations.waiting = None
        return super().__enter__()

    def note(self, number, frame) -> None:
        """Keep the signal for `check`."""
        super().note(number, frame)
        BetweenOperations.waiting = self.number

    def __exit__(self, kind, *more):
        if Held.outermost is self:
            BetweenOperations.waiting = None
        for there, before, pop in zip(_modes(), self.modes, _POP, strict=True):
            for _ in range(there - before):  # whoever did not wait may have come in between
                pop()
        super().__exit__(kind, *more)


def check() -> None:
    """Raise a waiting Ctrl-C, if there is one."""
    if number := BetweenOperations.waiting:
        BetweenOperations.waiting = None
        raise error_of(number)


_POP = torch.overrides._pop_mode, torch.utils._python_dispatch._pop_mode


def _modes():
    """(number of function modes, number of dispatch modes) that are entered."""
    return torch._C._len_torch_function_stack(), torch._C._len_torch_dispatch_stack()
