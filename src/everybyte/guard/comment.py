"""A change as a comment of a pull request, in Markdown."""

import re

from ..common import checks
from .commits import Moved
from .kept import signed

#: The comment's first line, by which the next run finds it again; it is not shown.
MARK = "<!-- everybyte: {} -->"
ROWS = 8


def comment(moved: Moved, name: str = "memory") -> str:
    """The comment's text: the headline, the lines that moved, both commits, and what a rehearsal is.

    Args:
        name: of the comment, where a pull request has several: letters, digits and `-`.

    Raises:
        ValueError: for another name.
    """
    if not isinstance(name, str) or not re.fullmatch(r"[\w-]+", name, re.ASCII):
        raise ValueError(f"comment.name: {checks.shown(name)}; allowed: letters, digits and '-', such as 'train'")
    change = moved.change
    rows = [(signed(size), str(line), line.code) for size, line in change.rows]
    table = [
        "| moved | where | |",
        "|--:|---|---|",
        *(f"| {size} | {_code(where)} | {_code(code)} |" for size, where, code in rows[:ROWS]),
    ]
    if len(rows) > ROWS:
        table.append(f"| {signed(sum(size for size, _ in change.rows[ROWS:]))} | {len(rows) - ROWS} more lines | |")
    peaks = (
        f"Peak {change.before.peak:,} B at {moved.base.name[:10]}, {change.after.peak:,} B at {moved.head.name[:10]}"
    )
    notes = [
        f"{_code(change.after.of)}, rehearsed as on {change.after.gpu} without a GPU.",
        *(f"Not the same: {_plain(text)}." for text in change.differs),
    ]
    was, now = change.before.at, change.after.at
    at = f"It is in {now}." if was == now else f"It was in {was}, and is in {now}."
    head = [MARK.format(name), f"**{_plain(moved.headline)}**", "", *([*table, ""] if rows else [])]
    return "\n".join([*head, f"{peaks}. {at}", "", *notes, ""])


def _code(text: str) -> str:
    """Foreign text as code in a cell of a table: nothing in it is Markdown, a mention or HTML."""
    text = checks.printable(" ".join(text.split())).replace("|", "\\|")
    ticks = "`" * (max(map(len, re.findall("`+", text)), default=0) + 1)
    return f"{ticks} {text} {ticks}" if text else ""


def _plain(text: str) -> str:
    """Foreign text in a sentence. Code hosts read `@name` in what a backslash makes of it too, so a space without width parts it."""
    return re.sub(r"([\\`*_{}\[\]<>#|~&])", r"\\\1", checks.printable(text, checks.SHOWN)).replace("@", "@\u200b")
