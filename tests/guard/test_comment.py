"""The comment of a pull request: its headline, and that a file's name or text is never more than text there."""

import pytest
from pretended import kept

from everybyte.guard import Change, Moved, comment
from everybyte.guard.commits import Commit

MIB = 2**20
BASE, HEAD = Commit("a" * 40, "Before"), Commit("b" * 40, "After")


def moved(before, after, **largest):
    return Moved(BASE, HEAD, Change(kept(*before), kept(*after)), largest)


def test_it_says_what_moved_and_where():
    text = comment(
        moved(
            [("attention.py:88", MIB, "scores = q @ k")],
            [("attention.py:88", 413 * MIB, "scores = q @ k")],
            batch=(12, 11),
        ),
        "train",
    )
    lines = text.splitlines()
    assert lines[:2] == ["<!-- everybyte: train -->", "**peak +412.00 MiB in attention.py:88, largest batch 12 to 11**"]
    assert "| +412.00 MiB | ` attention.py:88 ` | ` scores = q @ k ` |" in lines
    assert f"Peak {MIB:,} B at aaaaaaaaaa, {413 * MIB:,} B at bbbbbbbbbb. It is in backward." in lines


def test_unchanged_it_has_no_table():
    text = comment(moved([("a.py:1", 5)], [("a.py:1", 5)]))
    assert "**peak unchanged, to the byte**" in text and "|" not in text


def test_many_lines_are_summed():
    text = comment(moved([], [(f"a.py:{n}", n, "x") for n in range(1, 21)]))
    assert text.count("| ` a.py:") == 8 and f"| +{sum(range(1, 13))} B | 12 more lines | |" in text


def test_foreign_text_stays_text():
    line = ("<b>@all`|.py:1", 9, "a = ``x`` | @all <script> --> [x](y)")
    text = comment(moved([], [line]))
    assert "@all`" not in text.splitlines()[1] and "\\<b\\>@\u200ball\\`\\|.py:1" in text.splitlines()[1]
    row = text.splitlines()[5]
    assert row.count("|") - row.count("\\|") == 4 and "``` a = ``x`` \\| @all <script> --> [x](y) ```" in row


@pytest.mark.parametrize("name", ["", "a b", "-->", "ü", None])
def test_another_name_is_refused(name):
    with pytest.raises(ValueError, match="comment.name"):
        comment(moved([], []), name)
