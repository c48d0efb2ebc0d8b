"""The static edition's own parts, without a browser: what is refused, what is written, what stands on a slide."""

import re
from html import escape, unescape

import edition
import home
import lints
import nbformat
import pages
import pytest
import slides
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output

from everybyte.common.tables import Table
from everybyte.formulas import registry
from everybyte.formulas.symbols import SYMBOLS
from everybyte.teach.predictions import TOLD

PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="


def shows(data, **metadata):
    return new_code_cell("x", outputs=[new_output("display_data", data, metadata=metadata)])


def site(folder, **pages):
    for name, text in pages.items():
        path = folder / name.replace("__", "/").replace("_html", ".html").replace("_css", ".css")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return list(edition.faults(folder))


def test_a_sound_site_has_no_faults(tmp_path):
    first = '<a href="b/two.html#here">x</a><a href="https://arxiv.org/">y</a><img src="data:image/png;base64,x">'
    assert site(tmp_path, one_html=first, b__two_html='<p id="here"><a href="../one.html">x</a>') == []


@pytest.mark.parametrize(
    ("page", "said"),
    [
        ('<a href="two.html">x</a>', "two.html is not there"),
        ('<a href="#nowhere">x</a>', "no such place"),
        ('<img src="pictures/x.png">', "pictures/x.png is not there"),
        ('<script src="https://cdn.example/x.js"></script>', "asks for https://cdn.example/x.js"),
        ('<link rel="stylesheet" href="//fonts.example/x.css">', "asks for //fonts.example/x.css"),
        ('<img src="http://example.org/x.png">', "asks for"),
        ('<a href="http://example.org">x</a>', "asks for"),  # not encrypted: no link of ours
    ],
)
def test_a_fault_is_found(tmp_path, page, said):
    (found,) = site(tmp_path, one_html=page)
    assert said in found


def test_a_style_that_asks_outside_is_found(tmp_path):
    (found,) = site(tmp_path, one_css="@import url(https://fonts.example/css?family=X);")
    assert "https://fonts.example" in found


def test_a_picture_becomes_a_file_with_its_text_and_a_widget_keeps_it_as_its_place(tmp_path):
    view = {edition.WIDGET_VIEW: {"model_id": "abc"}, "image/png": PIXEL}
    notebook = new_notebook(cells=[shows(view, **{"image/png": {"alt": 'four "bars", 3 GiB', "width": 50}})])
    (cell,) = edition.live(notebook, "one", tmp_path).cells
    text = cell.outputs[0].data["text/html"]
    assert (tmp_path / "one-1.png").read_bytes()[:4] == b"\x89PNG"
    assert re.fullmatch(
        r'<div class="everybyte-live" data-model="abc"><img src="\.\./pictures/one-1\.png" .*></div>', text
    )
    assert 'alt="four &quot;bars&quot;, 3 GiB" width="50"' in text
    assert edition.WIDGET_VIEW not in cell.outputs[0].data


def test_a_card_s_words_stand_in_its_place_until_it_is_alive(tmp_path):
    view = {edition.WIDGET_VIEW: {"model_id": "abc"}, "text/html": "<details>the answer</details>"}
    (cell,) = edition.live(new_notebook(cells=[shows(view)]), "one", tmp_path).cells
    said = '<div class="everybyte-live" data-model="abc"><details>the answer</details></div>'
    assert cell.outputs[0].data["text/html"] == said


def test_the_first_page_is_a_step_and_every_chapter_by_its_question():
    entries = edition.written()
    text = home.page(entries, edition.ROOT)
    assert text.index("everybyte-alone") < text.index("## The chapters") < text.index('everybyte-card"')
    for entry in entries:
        assert f'href="{entry.path[:-6]}.html"' in text and escape(entry.question) in text
    assert 'data-guessed="P15.1 ' in text and 'data-solved="15.1 15.3 15.4 15.5"' in text
    first = re.search('href="notebooks/01_thirty_minutes.html"[^>]*>', text)[0]
    assert 'data-guessed="P00.9"' in first and 'data-solved=""' in first  # lab 01 has the number's exercises


def test_a_link_in_an_output_leads_to_the_page(tmp_path):
    notebook = new_notebook(
        cells=[shows({"text/markdown": "[a](12_x.ipynb#Check)", "text/html": '<a href="12_x.ipynb">'})]
    )
    (cell,) = edition.live(notebook, "one", tmp_path).cells
    assert cell.outputs[0].data == {"text/markdown": "[a](12_x.html#Check)", "text/html": '<a href="12_x.html">'}


def test_a_folder_that_is_something_else_is_not_replaced(tmp_path):
    (tmp_path / "letter.txt").write_text("dear")
    with pytest.raises(FileExistsError, match="something else"), edition.replaced(tmp_path):
        pass
    assert (tmp_path / "letter.txt").exists()


def test_an_unknown_chapter_is_named(capsys):
    with pytest.raises(ValueError, match="no chapter 99_none; allowed: 00_start_here"):
        edition.written(["99_none"])


def test_notation_and_formulas_are_all_there(monkeypatch, sample):
    every = registry()
    shown = dict(sample(every.items(), 15))  # to write one takes sympy a fifth of a second
    with monkeypatch.context() as patch:
        patch.setattr(pages, "registry", lambda: shown)
        notation, formulas = pages.notation(), pages.formulas()
    assert [name for name in SYMBOLS if f"| `{name}` |" not in notation] == []
    assert [name for name in shown if f"### `{name}`" not in formulas or f"[`{name}`](#" not in formulas] == []
    assert "GPT-2 124M: **" in formulas and (len(shown) < len(every) or "Llama 2 7B: **" in formulas)
    assert "tied head\n: A head that uses" in pages.glossary()
    for title in ("batch", "weights", "bf16-mixed"):
        assert f"`{title}`" in pages.glossary()


def test_the_handout_says_what_the_registry_says():
    text = pages.handout()
    for name, _ in pages.HANDOUT:
        assert registry()[name].title in text
    assert "8.03 GiB" in text


def test_sentences_are_whole_and_short():
    text = "One word. Two words here: and `Three`. " + "Far too long " * 30 + "."
    assert slides.sentences("So it is (Qi et al. 2023). Then.", 5, last=True) == "Then."
    assert slides.sentences(text, 10) == "One word. Two words here: and `Three`."
    assert slides.sentences("Far too long " * 30, 10) == ""
    assert slides.sentences("First. Second one. Third.", 3, last=True) == "Second one. Third."


def test_what_a_colon_promises_stays_on_its_slide_and_nothing_is_cut():
    long = "word " * 58 + "."
    text = f"{long}\n\nThree things to try:\n\n1. one\n\n2. two\n\n{long}\n\n```python\na = 1\n\nb = 2\n```\n\n<details>So.</details>"
    found = list(slides.ideas(text))
    assert any("Three things to try:\n\n1. one\n\n2. two" in slide for slide in found)
    assert " ".join(found).split() == text.replace("<details>So.</details>", "").split()
    assert "```python\na = 1\n\nb = 2\n```" in found[-1] and len(found) == 4


def test_formulas_of_a_cell_stand_together_and_a_long_one_has_several_lines():
    def tex(formula):
        return new_output("display_data", {"text/latex": rf"$\displaystyle {formula}$"})

    long = " + ".join(rf"{i} A B \left(H + S\right)" for i in range(9))
    (one,) = slides.formulas([tex("a = b"), tex(f"M = {long}")])
    made = one.data["text/latex"]
    assert made.startswith(r"$\displaystyle \begin{gathered}a = b \\") and r"\begin{aligned}M = & 0 A B" in made
    for line in re.split(r"\\\\ & \\quad", made):
        assert line.count(r"\left(") == line.count(r"\right)") and slides._letters(line) < 60
    assert re.sub(r"\\\\ & \\quad|[\s&]", "", slides.broken(f"M = {long}")).count("AB") == 9
    assert slides.broken(rf"\frac{{{'A B ' * 20}}}{{C}} + \frac{{{'D S ' * 10}}}{{C}} + 24").endswith(
        r"{C} + 24\end{aligned}"
    )
    table = new_output("display_data", {"text/html": "<table>"})
    assert slides.formulas([tex("a"), table, tex("b")])[1] is table
    assert [
        len(re.findall("boxed", o.data["text/latex"])) for o in slides.formulas([tex(r"\boxed{a}\quad\boxed{b}")])
    ] == [2]


def test_what_is_asked_stands_alone_and_what_is_too_long_is_parted():
    long = [f"{i}. " + "word " * 25 + "end." for i in range(1, 6)]
    found = list(slides.ideas('*"Why is it so?"*\n\nBecause.\n\n' + "\n".join(long)))
    assert found[0] == '*"Why is it so?"*' and found[1].startswith("Because.\n\n1. ")
    assert [int(n) for slide in found for n in re.findall(r"^(\d)\.", slide, re.M)] == [1, 2, 3, 4, 5]
    assert len(found) > 2 and max(len(slide.split()) for slide in found) < 110
    prose = " ".join(f"This is sentence {i} of a paragraph that goes on and on." for i in range(12))
    assert len(list(slides.ideas(prose))) > 1 and " ".join(slides.ideas(prose)) == prose


def test_a_long_table_goes_on_on_the_next_slide_with_its_heading():
    table = Table(("a", "b"), [(i, i * i) for i in range(19)], "squares")
    pages = slides.parted(new_output("execute_result", {"text/html": table._repr_html_()}))
    assert len(pages) == 3 and all(page.data["text/html"].count("<th ") == 2 for page in pages)
    rows = [re.findall(r"<td[^>]*>(\d+)</td>", page.data["text/html"]) for page in pages]
    assert [int(x) for row in rows for x in row] == [x for i in range(19) for x in (i, i * i)]
    assert max(len(row) for row in rows) <= 2 * slides.ROWS
    assert len(slides.parted(new_output("execute_result", {"text/html": "<p>no table</p>"}))) == 1


def answered(words):
    """What a cell shows that reveals the answer of prediction 1.1 to nobody who has not guessed."""
    told = {TOLD: {"prediction": "1.1", "answer": words}}
    return new_output("execute_result", {"text/plain": "Prediction 1.1. No guess was made."}, metadata=told)


def on(cell):
    cell.metadata["tags"] = ["slide"]
    return cell


def test_a_deck_shows_what_is_marked_and_says_the_rest_to_the_speaker():
    guess = "Prediction 1.1. How many of XL's bytes? Not guessed yet: put"
    notebook = new_notebook(
        cells=[
            on(new_markdown_cell("# Title\n\n**Why?**")),
            new_code_cell("import x"),
            new_markdown_cell("## The question\n\nSome prose. It is short."),
            on(new_code_cell("predict(...)", outputs=[new_output("execute_result", {"text/plain": guess})])),
            new_markdown_cell("### A step\n\nLong ago. The reason:"),
            on(shows({"text/latex": "$x$", "text/plain": "x"})),
            shows({"text/latex": "$y$", "text/plain": "y"}),
            on(new_code_cell("reveal(1)", outputs=[answered("8.03 GiB")])),
            on(
                new_markdown_cell(
                    '**1.2** How much? (Each exercise has two hints: `eb.teach.hint("1.2")`, and once more.)\n\n> Spoken by heart.\n\n<details><summary>Solution</summary>\n\nSo much.\n\n</details>'
                )
            ),
            shows({"text/html": '<div role="note">not attempted</div>'}),
        ]
    )
    assert slides.faults(notebook) == []
    cells = slides.deck(notebook).cells
    text = "\n".join(c.source for c in cells if c.cell_type == "markdown")
    on_slides = re.sub(r"<aside.*?</aside>", "", text, flags=re.S)
    large = [unescape(words) for words in re.findall('<p class="everybyte-large">(.*?)</p>', on_slides)]
    assert large == ["How many of XL's bytes?", "8.03 GiB"]  # the prediction, and then the answer
    answer = next(c.source for c in cells if "8.03 GiB" in c.source)
    assert "How many of XL's bytes?" in unescape(answer) and "Some prose." in next(
        c.source for c in cells if "aloud" in c.source
    )
    for said in ("# Title", "**Why?**", "## A step", "The reason:", "**1.2** How much?"):
        assert said in on_slides
    assert "hint" not in text
    for noted in ("So much.", "Spoken by heart."):
        assert noted not in on_slides and noted in text
    (formula,) = (c for c in cells if c.cell_type == "code")
    assert formula.outputs[0].data["text/latex"] == "$x$" and formula.metadata["tags"] == ["remove-input"]
    nbformat.validate(slides.deck(notebook))


def test_marks_that_show_nothing_or_break_a_promise_are_faults():
    cells = [
        new_markdown_cell("# T"),
        on(new_code_cell("x = 1")),
        on(new_markdown_cell("Look:")),
        shows({"text/html": "<p>"}),
        on(new_code_cell("reveal()", outputs=[answered("4")])),
        on(shows({"text/html": Table(("a", "b"), [("word " * 400, 1)])._repr_html_()})),
    ]
    for number, cell in enumerate(cells):
        cell.id = f"c{number}"
    found = slides.faults(new_notebook(cells=cells))
    assert [fault.split(":")[0] for fault in found] == ["the title is not marked as a slide", "c1", "c4", "c5", "c2"]


@pytest.mark.parametrize("path", sorted(lints.on_disk(edition.ROOT)))
def test_every_notebook_makes_a_deck(path):
    notebook = nbformat.read(edition.ROOT / path, as_version=4)
    assert slides.faults(notebook) == []
    made = [c.source for c in slides.deck(notebook).cells if c.cell_type == "markdown"]
    assert 6 <= len(made) <= 28
    for source in made:
        said = re.sub(r"<aside.*?</aside>", "", source, flags=re.S)
        assert len(said.split()) <= 120, said  # a list is parted only between its items


def test_what_a_page_links_in_the_repository_comes_along(tmp_path):
    (tmp_path / "notebooks").mkdir()
    text = "[a](../LICENSE) [b](../src/everybyte/reference/TEXT.md) [c](none.py) [d](https://x.org/y) [e](#here) [f](../../x)"
    (tmp_path / "notebooks" / "page.md").write_text(text)
    edition.bring_linked(tmp_path)
    found = {p.relative_to(tmp_path).as_posix() for p in tmp_path.rglob("*") if p.is_file()}
    assert found == {"notebooks/page.md", "LICENSE", "src/everybyte/reference/TEXT.md"}
    assert (tmp_path / "src/everybyte/reference/TEXT.md").read_text(encoding="utf-8").startswith("---\norphan: true")


def test_what_has_not_changed_is_not_run_again(tmp_path, monkeypatch):
    runs, ran = tmp_path / "runs", []
    path = tmp_path / "12_one.ipynb"

    def fresh(path, timeout):
        ran.append(path.stem)
        notebook = nbformat.read(path, as_version=4)
        notebook.cells[0].outputs = [new_output("stream", text=f"run {len(ran)}")]
        return notebook

    def said(source="1 + 1", tags=(), stored=(), **options):
        cell = new_code_cell(source, outputs=list(stored), metadata={"tags": list(tags)} if tags else {})
        nbformat.write(new_notebook(cells=[cell]), path)
        return edition.kept(path, 60, runs=runs, **options).cells[0].outputs[0].text

    monkeypatch.setattr(edition, "fresh", fresh)
    monkeypatch.setattr(edition, "code", lambda: "as it is")
    assert [said(), said(), said(stored=[new_output("stream", text="what is stored decides nothing")])] == ["run 1"] * 3
    assert said("1 + 2") == "run 2" and said("1 + 2", tags=["hidden"]) == "run 3"
    assert said("1 + 2", tags=["hidden", "slide"]) == "run 3"  # what stands on a slide is chosen without a run
    assert edition.kept(path, 60, runs=runs).cells[0].metadata.tags == ["hidden", "slide"]
    monkeypatch.setattr(edition, "code", lambda: "changed")
    assert said("1 + 2", tags=["hidden"]) == "run 4" == said("1 + 2", tags=["hidden"])
    assert said("1 + 2", tags=["hidden"], anew=True) == "run 5"
    assert len(list(runs.iterdir())) == 1  # one of each notebook, whole


def test_code_data_and_versions_decide_what_is_run_again(tmp_path, monkeypatch):
    code = edition.code.__wrapped__
    data = tmp_path / "src" / "everybyte" / "catalog" / "models.toml"
    data.parent.mkdir(parents=True)
    seen = [code(tmp_path)]
    for text in ("a", "b"):
        data.write_text(text)
        seen.append(code(tmp_path))
    (tmp_path / "labs" / "records").mkdir(parents=True)
    (tmp_path / "labs" / "records" / "h200.json").write_text("{}")
    seen.append(code(tmp_path))
    monkeypatch.setattr(edition, "version", lambda name: "another")
    seen.append(code(tmp_path))
    assert len(set(seen)) == len(seen)
    (tmp_path / "README.md").write_text("no code")
    (data.parent / "__pycache__").mkdir()
    (data.parent / "__pycache__" / "x.pyc").write_text("made by Python")
    assert code(tmp_path) == seen[-1]
    assert any((edition.ROOT / "src" / "everybyte").rglob("*.toml")) and len(code()) == 64


def test_a_track_is_one_deck_with_every_widget_of_its_chapters():
    def one(title, model):
        state = {slides.STATES: {"version_major": 2, "version_minor": 0, "state": {model: {}}}}
        return new_notebook(
            cells=[new_markdown_cell(f"# {title}\n\nx"), new_code_cell("x")], metadata={"widgets": state}
        )

    whole = slides.joined([one("A", "a"), one("B", "b")])
    assert [c.source.partition("\n")[0] for c in whole.cells] == ["# A", "x", "## B", "x"]
    assert set(whole.metadata["widgets"][slides.STATES]["state"]) == {"a", "b"}
    assert len({c.id for c in whole.cells}) == 4
