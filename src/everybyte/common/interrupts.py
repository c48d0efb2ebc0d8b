"""Ctrl-C, SIGTERM and SIGHUP: where they may interrupt the program, and where they wait.

Python may raise them between any two instructions. Where a step and its undoing must not be separated, use `Held`.
"""

import _thread
import signal
import sys
import threading
import time
from typing import Any

#: Seconds after which a second Ctrl-C does not wait, for work that may take long, or hang.
PATIENCE = 2.0
#: Signals that end this process as Ctrl-C does, where a system has them.
ENDING = tuple(getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name))


class Ended(KeyboardInterrupt):
    """The error for a signal of `ENDING`. It ends all that Ctrl-C ends."""

    def __init__(self, number: int):
        super().__init__()
        self.number = number


class Held:
    """A context that delays Ctrl-C and the signals of `ENDING` until its end; `waiting` says whether one waits.

    It does nothing outside of the main thread, or where other code handles Ctrl-C. Inside of another `Held` it is part of that.

    Args:
        patience: seconds after the first Ctrl-C from which another one is raised at once; with None each waits.
    """

    outermost: "Held | None" = None  # signals are the process's

    def __init__(self, patience: float | None = None):
        self.patience, self.number, self.since, self.before = patience, None, 0.0, None

    def __enter__(self):
        if threading.current_thread() is threading.main_thread() and Held.outermost is None:
            self.number, self.since, self.before = None, 0.0, signal.getsignal(signal.SIGINT)
            Held.outermost = self  # first: what ends us asks for it
            try:
                if self.before is signal.default_int_handler:
                    signal.signal(signal.SIGINT, self.note)
            except KeyboardInterrupt:
                Held.outermost = None
                raise
        return self

    def note(self, number, frame) -> None:
        """Keep the signal, or raise it where one has waited too long."""
        now = time.monotonic()
        if self.number and self.patience is not None and now - self.since > self.patience:
            raise error_of(number)
        self.since, self.number = self.since or now, self.number or number

    def __exit__(self, kind, *_):
        if Held.outermost is not self:
            return
        try:
            if self.before is signal.default_int_handler:
                signal.signal(signal.SIGINT, self.before)
        finally:
            Held.outermost = None  # last: until then what ends us waits
        if self.number and not (kind and issubclass(kind, KeyboardInterrupt)):
            raise error_of(self.number)


def importing() -> Held:
    """A context for large imports, where C code turns Ctrl-C into other errors, or none, and does not load a second time."""
    return Held(PATIENCE)


def waiting() -> bool:
    """Whether a signal is held."""
    return bool(Held.outermost and Held.outermost.number)


def error_of(number: int) -> KeyboardInterrupt:
    """The error of a signal."""
    return KeyboardInterrupt() if number == signal.SIGINT else Ended(number)


def told(error: KeyboardInterrupt) -> tuple[str, int]:
    """(what ended a command, in words, with its message; the shell's exit status for that signal)."""
    number = error.number if isinstance(error, Ended) else signal.SIGINT
    what = "interrupted" if number == signal.SIGINT else f"ended by {signal.Signals(number).name}"
    return "; ".join([what, *map(str, error.args)]), 128 + number


class Endings:
    """A context in which SIGTERM and SIGHUP raise `Ended`, unless other code handles them, and no Ctrl-C is lost.

    With `exits`, an `Ended` that leaves the outermost context exits with the shell's status for the signal.
    """

    def __init__(self, exits: bool = True):
        self.exits = exits
        self.before: dict[int, Any] = {}
        self.hook = None

    def __enter__(self):
        if threading.current_thread() is threading.main_thread():
            self.hook, sys.unraisablehook = sys.unraisablehook, _again
            try:
                for number in ENDING:
                    if signal.getsignal(number) == signal.SIG_DFL:
                        self.before[number] = signal.SIG_DFL  # first: one may come as soon as it is ours
                        signal.signal(number, _come)
            except KeyboardInterrupt:
                self.undo()
                raise
        return self

    def __exit__(self, kind, error, _):
        exits = self.exits and bool(self.before)
        self.undo()
        if exits and isinstance(error, Ended):
            sys.exit(128 + error.number)

    def undo(self) -> None:
        """Restore the signals' handlers. A second call does nothing."""
        while self.before:
            number = next(iter(self.before))
            signal.signal(number, self.before[number])
            self.before.pop(number, None)
        if self.hook:
            sys.unraisablehook, self.hook = self.hook, None


def _again(lost, usual=sys.unraisablehook):
    """Raise again, a moment later, a Ctrl-C that came during an object's deletion, which Python only prints."""
    if not isinstance(lost.exc_value, KeyboardInterrupt):
        return usual(lost)
    number = getattr(lost.exc_value, "number", signal.SIGINT)

    def interrupt():
        time.sleep(0.01)
        _thread.interrupt_main(number)

    # A `Timer` waits for its start, and there the signal would be forgotten again.
    _thread.start_new_thread(interrupt, ())


def _come(number, frame):
    if Held.outermost:
        Held.outermost.note(number, frame)
    else:
        raise Ended(number)
