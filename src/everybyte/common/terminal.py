"""Print to the terminal in any encoding, without characters that a terminal would act on."""

import codecs
import os
import re
import sys
from collections.abc import Iterable
from contextlib import suppress
from typing import TextIO

from . import checks

#: Replacements of characters that an encoding lacks; others become escapes.
PLAIN = {
    "−": "-", "–": "-", "—": "-", "×": "x", "·": "*", "…": "...", "≤": "<=", "≥": ">=", "→": "->", "≈": "~", "²": "^2",
    "³": "^3", "√": "sqrt ", "✓": "yes", "✗": "no", "“": '"', "”": '"', "’": "'",
}  # fmt: skip
#: The most characters of an error's line.
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
    """Lines with foreign text, each made printable."""
    return text if text.isascii() and text.isprintable() else "\n".join(map(checks.printable, text.split("\n")))


def shown(table: object, stream: TextIO | None) -> str:
    """An answer as lines. The first of several, with the columns' names, is emphasized."""
    head, line, rest = clean(str(table)).partition("\n")
    return (_colored(head, 1, stream) if line else head) + line + rest


def complain(text: str) -> None:
    """Print an error in one line."""
    words = re.sub(rf"\S{{{2 * checks.SHOWN},}}", lambda word: checks.printable(word[0], checks.SHOWN), text)
    _aside(f"{_colored('everybyte:', 31, sys.stderr)} {checks.printable(words, LINE)}\n")


def note(text: str) -> None:
    """Print progress on standard error."""
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
    """Discard a stream's output from now on, since the interpreter flushes it again at its exit."""
    try:
        if stream is not None:
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
    except (OSError, ValueError):  # a notebook's or a test's stream, without a file
        pass


def hold() -> None:
    """Open the numbers of closed standard streams, since a library's warning would overwrite a file with such a number."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)


class _NoBar(list):
    """A stand-in for tqdm's bar where none is shown."""

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        pass

    def update(self, done: float = 1) -> None:
        """Do nothing."""

    def set_postfix_str(self, said: str, refresh: bool = True) -> None:
        """Do nothing."""


def bar(iterable: Iterable | None = None, always: bool | None = None, **said):
    """tqdm's bar: in a terminal, after two seconds; with `always` anywhere, at once.

    There is none without tqdm, or in a notebook, whose stored outputs would depend on the machine's speed.
    """
    if always or (sys.stderr is not None and sys.stderr.isatty()):
        with suppress(ImportError):
            from tqdm.auto import tqdm

            return tqdm(iterable, delay=0 if always else 2, leave=bool(always), **said)
    return _NoBar(() if iterable is None else iterable)
