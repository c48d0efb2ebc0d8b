"""What JupyterLite's pages run, without a page: the book where there is neither PyTorch nor numpy nor matplotlib."""

import inspect
import json

import bare
import lite
import nbformat
import pytest
from contents import Entry
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output

import everybyte as eb
from everybyte import explore

PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
ABSENT = ("torch", "numpy", "matplotlib", "transformers", "filelock", "tqdm")


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    """A Python with what a page's has, and no more."""
    return bare.Bare(tmp_path_factory.mktemp("bare"))


def result(value):
    return new_output("execute_result", {"text/plain": value}, execution_count=1)


def test_the_page_has_none_of_the_compiled_packages(page):
    asked = "from importlib.util import find_spec\nimport everybyte\nprint(everybyte.__file__)\n"
    where, *found = page.program(asked + f"print(*map(find_spec, {ABSENT}))").splitlines()
    assert where.startswith(str(page.packages)) and found == [" ".join(["None"] * len(ABSENT))]


def test_the_formulas_run_and_exercises_answer(page):
    code = [cell for cell in lite.CELLS if not lite.prose(cell)]
    asked = [
        'check("12.1", ...)', 'check("12.1", eb.budget(gpt2, setup).parts_at("rest")["optimizer"])', 'hint("12.1")',
        'predict("P34.1", "3 GiB", question="The peak?", unit="GiB")', 'eb.plan(gpt2, setup, eb.gpu("rtx-4090"))',
    ]  # fmt: skip
    code += ["from everybyte.teach import predict", *(f"print(repr({line}).splitlines()[0])" for line in asked)]
    said = page.program("\n".join(code)).splitlines()[-len(asked) :]
    assert "not attempted" in said[0] and said[1].startswith(("✓", "✗")) and said[2].startswith("→"), said
    assert "3.00 GiB" in said[3] and "rtx-4090" in said[4].lower(), said


def test_exercises_are_checked_but_for_those_that_run_pytorch(page):
    program = """
from everybyte.teach import check
from everybyte.teach.exercise import bank, chapters
for exercise in (each for chapter in chapters() for each in bank(chapter).values()):
    try:
        answer = exercise.right()
    except ModuleNotFoundError:
        answer = len if exercise.accepts == "function" else 1
    print(repr(check(exercise.id, answer)))
"""
    said = page.program(program).splitlines()
    away = [
        text
        for text in said
        if "cannot be checked here. What is right is computed by PyTorch. No module named 'torch'" in text
    ]
    assert len(said) > 150 and 0 < len(away) < 10
    assert [text for text in said if not text.startswith("\N{CHECK MARK}") and text not in away] == []


def test_every_explorer_opens_in_the_page(page):
    made = lite.explorers({e: nbformat.read(lite.ROOT / e.path, as_version=4) for e in lite.entries()})
    code = [cell for cell in made.cells if cell.cell_type == "code" and cell.source != lite.OPENS["model"]]
    text = "\n".join(cell.source for cell in made.cells)
    explorers = {
        name for name in explore.__all__
        if callable(each := getattr(explore, name)) and inspect.signature(each).return_annotation is explore.Explorer
    }  # fmt: skip
    assert {name for name in explorers if f"explore.{name}(" not in text} == set() and lite.OPENS["model"] in text
    assert all(f"]({entry.path})" in text and entry.question in text for entry in lite.entries())
    for cell in code:  # not `run`'s own: there the live widget is taken out, and the picture
        cell.source += (
            "\n_ and print(sorted(get_ipython().display_formatter.format(_)[0]))" if "explore." in cell.source else ""
        )
    for cell in page.run(code)[1:]:
        assert all(output.output_type != "error" for output in cell.outputs), (cell.source, cell.outputs)


def test_a_formula_derived_elsewhere_answers_in_the_page(page):
    derived = eb.derive(eb.model("gpt2"), eb.Setup())
    program = """
import json, sys
import everybyte as eb
f = eb.Derivation.from_dict(json.load(sys.stdin))
print(f.at(batch=8, sequence=1024).peak, eb.fit(f, f.setup, "t4").value)
print(eb.explore.model(f).describe())
"""
    numbers, *said = page.program(program, json.dumps(derived.as_dict())).splitlines()
    stored = eb.Derivation.from_dict(
        derived.as_dict()
    )  # it keeps no order of requests, so neither of the two simulates
    most = eb.fit(stored, stored.setup, "t4").value
    assert numbers == f"{derived.at(batch=8, sequence=1024).peak} {most}"
    assert said == [eb.explore.model(derived).describe()]


def test_a_chapters_cells_live_where_they_give_what_is_stored_and_are_text_elsewhere(page, tmp_path):
    picture = new_output(
        "display_data", {"image/png": PIXEL, "text/plain": "x"}, metadata={"image/png": {"alt": "A [bar], 3"}}
    )
    cells = [
        new_markdown_cell(
            "# Title\n\n[a lab](../labs/01_x.ipynb), [next](12_y.ipynb#Check), ![x](y.png), [out](https://arxiv.org)"
        ),
        new_code_cell(
            "import torch, math\nfrom everybyte import dryrun, units\nfrom everybyte.reference import GPT as G"
        ),
        new_code_cell("seven = 7\nseven", outputs=[result("7")]),
        new_code_cell("size = torch.ones(3)\nsize", outputs=[result("tensor([1., 1., 1.])")]),
        new_code_cell("size.sum() + seven", outputs=[result("tensor(10.)")]),
        new_code_cell("math.pi", outputs=[result("3.0")]),
        new_code_cell("from everybyte import draw\n\ndraw.show(None)", outputs=[picture]),
        new_code_cell("units.text(seven)", outputs=[result("'7 B'")]),
    ]
    path = tmp_path / "11_x.ipynb"
    nbformat.write(new_notebook(cells=cells), path)
    made = page.chapter(path, lambda target: target == "12_y.ipynb", tmp_path)
    assert made.metadata.everybyte == {"live": 3, "code": 7}
    first, told, imports, seven, size, total, pi, figure, text = made.cells
    assert first.source == "# Title\n\na lab, [next](12_y.ipynb#Check), ![x](y.png), [out](https://arxiv.org)"
    assert "3 of the chapter's 7 code cells" in told.source
    assert imports.source == "import math\nfrom everybyte import units\n# not in this page: torch, dryrun, G"
    assert [cell.cell_type for cell in (imports, seven, text)] == ["code"] * 3 and seven.outputs
    assert (
        size.source
        == f"{bare.LABEL}\n\n```python\nsize = torch.ones(3)\nsize\n```\n\n```text\ntensor([1., 1., 1.])\n```"
    )
    assert {cell.cell_type for cell in (total, pi, figure)} == {"markdown"}
    assert "![A bar, 3](attachment:c07-0.png)" in figure.source and figure.attachments["c07-0.png"] == {
        "image/png": PIXEL
    }
    nbformat.validate(made)
    (kept,) = tmp_path.glob("bare-11_x-*.json")
    kept.write_text('["c02"]')  # what is kept is read
    assert page.chapter(path, lambda target: True, tmp_path).metadata.everybyte["live"] == 1


def test_no_program_asks_for_a_map_to_its_sources(tmp_path):
    (tmp_path / "a.js").write_text("let a;\n//# sourceMappingURL=a.js.map\n")
    (tmp_path / "a.css").write_text("a {}\n/*# sourceMappingURL=a.css.map */\n")
    (tmp_path / "a.js.map").write_text("{}")
    lite.without_maps(tmp_path)
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {"a.js": "let a;\n", "a.css": "a {}\n"}


@pytest.fixture
def both(tmp_path, monkeypatch):
    """A site and a JupyterLite of one chapter each."""
    site, page = tmp_path / "site", tmp_path / "lite"
    for path in (
        site / "index.html",
        site / "notebooks" / "11_x.html",
        page / "index.html",
        page / "lab" / "index.html",
    ):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("<h1>Title</h1>", encoding="utf-8")
    (page / "files" / "notebooks").mkdir(parents=True)
    chapter = new_notebook(metadata={"everybyte": {"live": 20, "code": 30}})
    nbformat.write(chapter, page / "files" / "notebooks" / "11_x.ipynb")
    monkeypatch.setattr(lite, "entries", lambda: [Entry("11_x", "notebooks/11_x.ipynb", "How many?", "Part 1")])
    return site, page


def test_the_published_pages_lead_to_jupyterlite(both):
    site, page = both
    for _ in range(2):  # again over what stands there
        lite.join(site, page)
        chapter = (site / "notebooks" / "11_x.html").read_text(encoding="utf-8")
        assert chapter.count("everybyte-run") == 1 and ": 20 of its 30 code cells" in chapter
        assert 'href="../lite/lab/index.html?path=notebooks/11_x.ipynb"' in chapter
        assert 'href="lite/lab/index.html?path=explorers.ipynb"' in (site / "index.html").read_text(encoding="utf-8")


def test_no_page_leads_to_a_jupyterlite_that_is_not_there(both):
    site, page = both
    (page / "lab" / "index.html").unlink()
    with pytest.raises(
        RuntimeError, match=r"11_x\.html: \.\./lite/lab/index\.html\?path=notebooks/11_x\.ipynb is not there"
    ):
        lite.join(site, page)
    (page / "index.html").unlink()
    with pytest.raises(FileNotFoundError, match="make lite"):
        lite.join(site, page)
    assert (
        "join" in (lite.ROOT / "Makefile").read_text()
        and "make pages" in (lite.ROOT / ".github/workflows/pages.yml").read_text()
    )
