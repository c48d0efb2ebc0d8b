"""What is shown: tables, and explorers whose controls are turned."""

import re
from collections import Counter

import traitlets
from hypothesis import strategies as st

from everybyte import explore
from everybyte.common.tables import Table
from everybyte.evidence import example

from .drawn import JUNK, odd, printable, tags

_CELLS = st.sampled_from(["<b>", "&", '"', "<script>x</script>", "\ud800", "\x1b[2J", "a\nb"])


def table(draw):
    """A table's HTML has no tag that a cell brought, and as many cells as the table."""
    rows = draw(st.lists(st.tuples(st.text(max_size=9), _CELLS | st.integers()), max_size=3))
    shown = Table(["a", "<i>"], rows)._repr_html_()
    found = Counter(re.findall(r"<(\w+)", shown))
    assert set(found) <= {"table", "thead", "tbody", "tr", "th", "td"} and found["td"] == 2 * len(rows)


#: The explorers that need nothing.
OPENED = {
    name: getattr(explore, name) for name in explore.__all__
    if name[0].islower() and name not in ("memory_map", "model", "reset", "shared", "steps", "upload")
} | {"memory_map": lambda: explore.memory_map(example.left())}  # fmt: skip


def explorer(draw):
    """However an explorer's controls are turned, each has a state that it offers, every explorer says its sentence and opens again."""
    opened = OPENED[draw(st.sampled_from(sorted(OPENED)))]
    try:
        _turned(draw, opened)
        if draw(st.integers(1, 3)) == 1:  # another beside the first, with the controls that they share
            printable(OPENED[draw(st.sampled_from(sorted(OPENED)))]().describe())
    finally:
        explore.reset()


def _turned(draw, opened):
    shown = opened()
    for name in draw(st.lists(st.sampled_from(sorted(shown._inputs)), max_size=4)):
        control, widget = shown._controls[name], shown._inputs[name]
        traits = [t for t in ("index", "value", "label") if widget.has_trait(t)]
        labels = list(getattr(control, "options", ()))
        known = (
            st.sampled_from(labels) | st.integers(0, len(labels) - 1)
            if labels
            else st.integers(int(control.low), int(control.high))
        )
        try:
            setattr(widget, draw(st.sampled_from(traits)), draw(st.one_of(known, known, st.none(), JUNK, odd())))
        except (traitlets.TraitError, OverflowError):  # the widget's own refusal
            pass
    said = printable(shown.describe())
    assert said == shown.describe(shown.state) and not re.search(r"\b(nan|None|inf)\b", said), said
    tags(shown.table()._repr_html_())
    for name, state in shown.state.items():
        shown._controls[name].check("explorer", state)
    if draw(st.integers(1, 12)) == 1:
        assert shown.figure().alt
    if draw(st.booleans()):
        shown.describe({**shown.state, draw(st.sampled_from([*shown.state, "x"])): draw(JUNK)})


SUBJECTS = {table: 300, explorer: 400}  # fmt: skip
