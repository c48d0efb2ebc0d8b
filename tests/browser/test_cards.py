"""An exercise's card in JupyterLab: what is typed goes through `check` in the kernel, and the card says the verdict."""

import pytest
from driving import ERRORS, own_errors, run_all, screenshot, watched

ASKED = 'import os; os.environ["EVERYBYTE_PROGRESS"] = {path!r}\nfrom everybyte.teach import check, progress\ncheck("15.1", ...)'


@pytest.fixture
def page(chromium):
    page = watched(chromium)
    yield page
    page.close()


def test_an_answer_typed_in_its_card_is_marked_by_the_kernel_and_counted(lab, page, tmp_path):
    path = tmp_path / "progress.json"
    lab.open(page, lab.write("cards", ASKED.format(path=str(path))))
    run_all(page)
    card = page.locator(".everybyte-guess")
    for typed, said in (
        ("7.1 GiB", "GB for GiB"),
        ("lots", "could not be read"),
        ("~6.61 g", "15.1 right"),
        ("1", "too small"),
    ):
        card.locator("input").fill(typed)
        card.locator("input").press("Enter")
        card.get_by_text(said).wait_for()
    assert '"solved": [\n  "15.1"' in path.read_text() and card.get_attribute("data-verdict") == "wrong"
    for typed in ("lots", "many"):  # two verdicts in the same words
        card.locator("input").fill(typed)
        card.locator("button", has_text="check").click()
        card.get_by_text("could not be read").wait_for()
        assert "Checking" not in card.inner_text()
    card.locator("button", has_text="a hint").click()
    card.get_by_text("Where is the border").wait_for()
    screenshot(page, "exercise-card")
    assert page.locator(ERRORS).count() == 0 and own_errors(page) == []
