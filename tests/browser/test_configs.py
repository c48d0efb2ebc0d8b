"""The page for a reader's config.json, in a real browser: by file, by text, by keys; what is no configuration is answered in a sentence."""

import json

import pytest
from driving import screenshot, serious, watched

from everybyte.explore import configs

MISTRAL = {
    "model_type": "mistral",
    "sliding_window": None,
    "_name_or_path": "mistralai/Mistral-7B-v0.3",
    "vocab_size": 32768,
}


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    path = tmp_path_factory.mktemp("configs") / "config.html"
    path.write_text(configs.page(), encoding="utf-8")
    return path.as_uri()


@pytest.fixture
def page(chromium, place):
    page = watched(chromium)
    page.asked = []
    page.on("request", lambda request: page.asked.append(request.url))
    page.goto(place)
    yield page
    assert page.asked == [place] and page.errors == []
    page.close()


def given(page, data, name="config.json"):
    page.set_input_files("#file", {"name": name, "mimeType": "application/json", "buffer": data})
    page.locator("#said > *").first.wait_for()
    return page.inner_text("#said")


def test_a_file_is_answered_and_the_keys_change_the_answer(page):
    said = given(page, json.dumps(MISTRAL).encode())
    assert (
        "Mistral-7B-v0.3" in said
        and "7,248,023,552 parameters" in said
        and "It fits" in said
        and "rotary frequencies" in said
    )
    page.focus("[name=batch]")
    page.keyboard.press("ArrowUp")
    assert page.input_value("[name=batch]") == "2" and page.inner_text("#said") != said
    page.keyboard.press("Tab")
    page.keyboard.press("Tab")
    before = page.inner_text(".peak")
    page.keyboard.press("ArrowDown")
    assert page.input_value("[name=precision]") == "bf16-mixed" and page.inner_text(".peak") != before
    assert "It does not fit" in page.inner_text("#said")
    page.fill("[name=sequence]", "")
    assert "Setup.sequence: null" in page.inner_text("[role=alert]")


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"{", "config: no JSON"), (b"\xff\xfe\x00", "config: no JSON"), (b"[1]", "config: [1]"), (b'{"a": ' + b"1" * 2**20 + b"}", "1.00 MiB"),
        (b'{"model_type": "bloom"}', 'config.model_type: "bloom"; allowed: gpt2'),
        (b'{"model_type": "llama", "<img src=x onerror=alert(1)>": 1}', "<img src=x onerror=alert(1)>: 1 is not known here"),
    ],
)  # fmt: skip
def test_what_is_no_configuration_is_answered_in_a_sentence(page, data, words):
    given(page, json.dumps(MISTRAL).encode())
    page.evaluate("document.querySelector('#said').replaceChildren()")
    said = given(page, data, "<img src=x>.json")
    assert words in said and "What answers instead: " in said and page.locator("#said img").count() == 0
    assert page.locator("#controls").is_hidden()


def test_a_file_can_be_dropped(page):
    page.evaluate(
        """(text) => { const data = new DataTransfer(); data.items.add(new File([text], "config.json"));
        document.querySelector("#drop").dispatchEvent(new DragEvent("drop", { dataTransfer: data, bubbles: true, cancelable: true })); }""",
        json.dumps(MISTRAL),
    )
    page.get_by_role("heading", name="Mistral-7B-v0.3").wait_for()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_everybody_can_use_it(page, scheme):
    page.emulate_media(color_scheme=scheme)
    for width, height in ((1366, 768), (390, 844)):
        page.set_viewport_size({"width": width, "height": height})
        for text in (json.dumps(MISTRAL), "{"):
            page.fill("#text", text)
            assert page.evaluate("document.documentElement.scrollWidth <= innerWidth + 1"), width
            screenshot(page, f"config-{scheme}-{width}-{len(text) > 1}")
            assert serious(page, ["body"]) == [], (scheme, width, text)
