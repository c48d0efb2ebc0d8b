"""A small table for a notebook, a code host and a terminal."""

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

from .. import units
from . import checks


@dataclass(frozen=True)
class Table:
    """Rows under columns. Cells are text or whole numbers; numbers are aligned to the right, with separated thousands."""

    columns: Sequence[str]
    rows: Sequence[Sequence[object]]
    caption: str = ""

    def __post_init__(self):
        for row in self.rows:
            if len(row) != len(self.columns):
                said = f"rows: {checks.shown(row)} has {len(row)} cells"
                raise ValueError(f"{said}; allowed: {len(self.columns)}, one a column")

    def __repr__(self):
        cells = [[checks.printable(str(c)) for c in self.columns], *[[_text(c) for c in row] for row in self.rows]]
        widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
        right = [self._right(i) for i in range(len(self.columns))]
        lines = []
        for row in cells:
            columns = (c.rjust(w) if r else c.ljust(w) for c, w, r in zip(row, widths, right, strict=True))
            lines.append("  ".join(columns).rstrip())
        lines.insert(1, "-" * len(lines[0]))
        return "\n".join([checks.printable(self.caption), *lines] if self.caption else lines)

    def _repr_html_(self):
        align = ["right" if self._right(i) else "left" for i in range(len(self.columns))]

        def row(tag, cells):
            pairs = zip(cells, align, strict=True)
            inside = "".join(f'<{tag} style="text-align:{a}">{escape(_text(c))}</{tag}>' for c, a in pairs)
            return f"<tr>{inside}</tr>"

        caption = f"<caption>{escape(checks.printable(self.caption))}</caption>" if self.caption else ""
        body = "".join(row("td", cells) for cells in self.rows)
        return f"<table>{caption}<thead>{row('th', self.columns)}</thead><tbody>{body}</tbody></table>"

    def _right(self, column):
        texts = [_text(row[column]) for row in self.rows]
        return bool(texts) and all(text and text[0] in "0123456789+-−–" for text in texts)


class Shown:
    """A base class whose objects are shown as their `table()`, with the lines of `said()` below."""

    def said(self) -> list[str]:
        """The lines under the table."""
        return []

    def __repr__(self: Any):
        return "\n".join([repr(self.table()), *self.said()])

    def _repr_html_(self: Any):
        return self.table()._repr_html_() + "".join(f"<p>{escape(line)}</p>" for line in self.said())


def sized(name: str, size: int) -> tuple[str, int, str]:
    """A row for an amount: its name, its bytes, and the bytes in words."""
    return name, size, units.text(size)


def picked(result: object, names: str) -> dict[str, Any]:
    """These fields of a result by name, as JSON holds them."""
    return {name: getattr(result, name) for name in names.split()}


def _text(cell):
    return f"{cell:,}" if isinstance(cell, int) and not isinstance(cell, bool) else checks.printable(str(cell))
