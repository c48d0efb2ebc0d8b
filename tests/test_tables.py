"""Tables: numbers to the right, rows whole, no markup let through."""

import pytest

from everybyte.common.tables import Table

TABLE = Table(["part", "bytes"], [["parameters", 497759232], ["loss", 4]], caption="GPT-2")


def test_text_lines_up():
    assert repr(TABLE).splitlines() == [
        "GPT-2",
        "part              bytes",
        "-----------------------",
        "parameters  497,759,232",
        "loss                  4",
    ]


def test_html_has_every_cell_once():
    page = TABLE._repr_html_()
    assert page.count("<tr>") == 3
    assert page.count("<td") == 4
    assert page.count("<th ") == 2
    assert page.count('<td style="text-align:right">497,759,232</td>') == 1
    assert page.count('<td style="text-align:left">parameters</td>') == 1
    assert "<caption>GPT-2</caption>" in page


def test_no_caption_no_line():
    table = Table(["a"], [["b"]])
    assert repr(table).splitlines() == ["a", "-", "b"]
    assert "caption" not in table._repr_html_()


@pytest.mark.parametrize("where", ["column", "cell", "caption"])
def test_markup_is_text(where):
    bad = "<img src=x onerror='alert(1)'> & \"q\""
    texts = {"column": "c", "cell": "d", "caption": "e"} | {where: bad}
    page = Table([texts["column"]], [[texts["cell"]]], caption=texts["caption"])._repr_html_()
    assert "<img" not in page
    assert "&lt;img src=x onerror=&#x27;alert(1)&#x27;&gt; &amp; &quot;q&quot;" in page
    assert bad in repr(Table([texts["column"]], [[texts["cell"]]], caption=texts["caption"]))


@pytest.mark.parametrize("row", [[], [1], [1, 2, 3]])
def test_ragged_row_is_refused(row):
    with pytest.raises(ValueError, match=rf"rows: .* has {len(row)} cells; allowed: 2"):
        Table(["a", "b"], [[1, 2], row])


def test_only_numbers_stand_to_the_right():
    table = Table(["a", "b", "c"], [[1, "x", True], [2, "3", False]])
    assert [table._right(i) for i in range(3)] == [True, False, False]


def test_empty_table_keeps_its_columns():
    assert repr(Table(["a", "b"], [])).splitlines()[0] == "a  b"
    assert "<tbody></tbody>" in Table(["a", "b"], [])._repr_html_()
