"""What a test asserts of: sizes that compare with words, and a peak that was kept before."""

import operator
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from .. import units
from ..common import checks
from .kept import Change, Kept, signed


def _compared(compare):
    def method(self, other):
        return compare(int(self), units.parse(other) if isinstance(other, str) else other)

    return method


class Size(int):
    """Bytes that compare with words too: `size < "22 GiB"`, `size == "24 GB"`. It is shown in both.

    Attributes:
        lines: what a failed comparison says besides.

    Raises:
        ValueError: in a comparison with words that are no size.
    """

    lines: Sequence[str] = ()
    __lt__, __le__, __gt__, __ge__ = map(_compared, (operator.lt, operator.le, operator.gt, operator.ge))
    __eq__, __ne__ = map(_compared, (operator.eq, operator.ne))
    __hash__ = int.__hash__

    def __repr__(self):
        return f"{units.text(int(self))} ({units.exact(int(self))})"

    def failed(self, op: str, limit: Any) -> list[str] | None:
        """What pytest says of a comparison that failed; None where it is not of two sizes."""
        if op not in ("<", "<=", "==") or not isinstance(limit, str | int):
            return None
        asked = round(units.parse(limit)) if isinstance(limit, str) else limit
        return [f"{self!r} {op} {limit!r}: {signed(int(self) - asked)}", *self.lines]


class Checked:
    """A peak in a test.

    Attributes:
        kept: the peak as it is kept. peak, reserved: bytes, that compare with words.
        store: the file name of a baseline, without its name and end. update: whether baselines are written.
    """

    def __init__(self, kept: Kept, store: str | os.PathLike, update: bool = False):
        self.kept, self.store, self.update = kept, Path(store), update
        self.peak, self.reserved = Size(kept.peak), Size(kept.reserved)
        lived = repr(kept.table()).splitlines()[2:]
        self.peak.lines = self.reserved.lines = [f"at the peak, in {kept.at}:", *lived]  # pytest shows eight

    def __repr__(self):
        return f"Checked({self.kept.of}: {self.peak!r})"

    def baseline(self, name: str = "peak", within: str | int = 0) -> "Checked":
        """Assert that the peak is the one that was kept. It stands in `test_train.NAME.memory.json`, beside `test_train.py`.

        Args:
            within: so much more or less is taken as equal: bytes, or a size in words.

        Raises:
            AssertionError: where the peak moved, with the lines that moved it; or where none is kept.
            ValueError: for a name that no file can have, or a file that is none of a baseline.
        """
        __tracebackhide__ = True
        if not isinstance(name, str) or not name.replace("-", "_").replace(".", "_").isidentifier():
            raise ValueError(
                f"baseline.name: {checks.shown(name)}; allowed: letters, digits, '-', '_' and '.', such as 'train'"
            )
        path = self.store.with_name(f"{self.store.name}.{name}.memory.json")
        if self.update:
            self.kept.write(path)
            return self
        if not path.exists():
            raise AssertionError(f"no peak is kept in {path}; `pytest --memory-update` keeps this one: {self.peak!r}")
        change = Change(Kept.read(path), self.kept)
        if abs(change.bytes) > (units.parse(within) if isinstance(within, str) else within):
            raise AssertionError(
                f"{change!r}\nIf this is as it should be, `pytest --memory-update` keeps it in {path.name}."
            )
        return self
