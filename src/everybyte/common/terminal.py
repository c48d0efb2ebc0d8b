"""What the command prints: readable in any encoding, and without anything that a terminal would act on."""

import codecs
import os
import re
import sys
from collections.abc import Iterable
from contextlib import suppress
from typing import TextIO

from . import checks

#: What stands for a character that an encoding lacks; for any other it is the escape.
PLAIN = {
    "−": "-", "–": "-", "—": "-", "×": "x", "·": "*", "…": "...", "≤": "<=", "≥": ">=", "→": "->", "≈": "~", "²": "^2",
    "³": "^3", "√": "sqrt ", "✓": "yes", "✗": "no", "“": '"', "”": '"', "’": "'",
}  # fmt: skip
#: An error's line has at most so many characters.
LINE = 4000


def _replaced(error):
    lost = error.object[error.start : error.end]
    return "".join(PLAIN.get(c) or c.encode("ascii", "backslashreplace").decode() for c in lost), error.end


codecs.register_error("everybyte.plain", _replaced)


def write(text: str, stream: TextIO | None) -> None:
    """Write and flush text. Characters that the stream's encoding lacks are replaced; a closed stream gets nothing."""
    if stream is None:
        return
    encoding = getattr(stream, "encoding", None) or "utf-8"
    stream.write(text.encode(encoding, "everybyte.plain").decode(encoding))
    stream.flush()


def clean(text: str) -> str:
    """Lines that may hold text from outside, each printable."""
    return text if text.isascii() and text.isprintable() else "\n".join(map(checks.printable, text.split("\n")))


def shown(table: object, stream: TextIO | None) -> str:
    """An answer as lines; the first of several, which names the columns, is emphasized."""
    head, line, rest = clean(str(table)).partition("\n")
    return (_colored(head, 1, stream) if line else head) + line + rest


def complain(text: str) -> None:
    """Say what is wrong, in one line."""
    words = re.sub(rf"\S{{{2 * checks.SHOWN},}}", lambda word: checks.printable(word[0], checks.SHOWN), text)
    _aside(f"{_colored('everybyte:', 31, sys.stderr)} {checks.printable(words, LINE)}\n")


def note(text: str) -> None:
    """Say on standard error what is going on."""
    _aside(f"{clean(text)}\n")


def _aside(text):
    try:
        write(text, sys.stderr)
    except OSError:  # nobody reads it, or the disk is full: the work goes on, and the status tells how it ended
        no_more(sys.stderr)


def _colored(text, code, stream):
    """The text, in color where a terminal reads it, unless NO_COLOR is set."""
    plain = os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb" or not (stream and stream.isatty())
    return text if plain else f"\x1b[{code}m{text}\x1b[0m"


def no_more(stream: TextIO | None) -> None:
    """Let what was printed go nowhere from now on: the interpreter flushes it again at its exit."""
    try:
        if stream is not None:
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
    except (OSError, ValueError):  # a notebook's or a test's stream, without a file
        pass


def hold() -> None:
    """Take the numbers of closed standard streams: a file that got one would be overwritten by a library's warning."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)


class _NoBar(list):
    """Stands for tqdm's bar where none is shown."""

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        pass

    def update(self, done: float = 1) -> None:
        """Nothing is shown."""


def bar(iterable: Iterable | None = None, always: bool | None = None, **said):
    """tqdm's bar, after two seconds where a terminal shows it; with `always` at once, anywhere.

    There is none in a notebook, whose stored outputs would depend on a machine's speed, nor without tqdm.
    """
    if always or (sys.stderr is not None and sys.stderr.isatty()):
        with suppress(ImportError):
            from tqdm.auto import tqdm

            return tqdm(iterable, delay=0 if always else 2, leave=bool(always), **said)
    return _NoBar(() if iterable is None else iterable)
