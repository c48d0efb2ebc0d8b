"""The static edition and the slides in a real browser, from disk: explorers answer without a kernel, asking nothing outside."""

import copy
import re

import pytest
from driving import ARTIFACTS, Keys, drawer, floor, screenshot, serious, summary, watched
from firefox import FIREFOX, Firefox

pytest.importorskip("sphinx", reason="the site's extra is not installed: python -m pip install -e .[site]")
edition = pytest.importorskip("edition")
slides = pytest.importorskip("slides")

SLUG = "20_number_formats"


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """The edition and the slides with one chapter, run once; a warning, a broken link or an outside address fails here."""
    folder = tmp_path_factory.mktemp("edition")
    ran = edition.fresh(edition.ROOT / "notebooks" / f"{SLUG}.ipynb", 240)
    with pytest.MonkeyPatch.context() as patch:
        for module in (edition, slides):
            patch.setattr(module, "kept", lambda path, timeout, anew=False: copy.deepcopy(ran))
            module.build(folder / module.__name__, only=[SLUG])
    return folder


@pytest.fixture(scope="module")
def site(built):
    return built / "edition"


@pytest.fixture
def page(chromium):
    page = watched(chromium)
    yield page
    page.close()


@pytest.fixture
def asked(page):
    """Every address that the page asks for."""
    found = []
    page.on("request", lambda request: found.append(request.url))
    return found


def test_the_short_path_folds_the_rest_and_a_link_opens_it(page, asked, site):
    address = (site / "notebooks" / f"{SLUG}.html").as_uri()
    page.goto(address)
    page.wait_for_function("document.documentElement.dataset.explorers")
    height = "document.querySelector('article').scrollHeight"
    tall = page.evaluate(height)
    page.get_by_role("button", name="the short path").click()
    seen = {name: page.locator(f"#{name} > p").first for name in ("the-question", "check", "exercises", "you-can-now")}
    assert {name: one.is_visible() for name, one in seen.items()} == {
        "the-question": True, "check": False, "exercises": False, "you-can-now": True,
    }  # fmt: skip
    assert page.locator("#explorer .everybyte-explorer").first.is_visible()
    assert page.locator("#derivation img").first.is_visible()
    assert page.evaluate(height) < tall / 2
    shows = page.locator("#check > h2 > .everybyte-unfold")
    shows.press("Enter")
    assert seen["check"].is_visible() and shows.get_attribute("aria-expanded") == "true"
    assert not serious(page, ["article"])
    page.goto(address + "#exercises")
    page.reload()
    assert seen["exercises"].is_visible() and not seen["check"].is_visible()
    page.get_by_role("button", name="the whole chapter").click()
    assert all(one.is_visible() for one in seen.values())
    page.reload()
    assert seen["check"].is_visible() and not outside(asked)


def test_what_a_chapter_folds_is_shown_on_demand_and_by_a_link(page, site):
    address = (site / "notebooks" / f"{SLUG}.html").as_uri()
    page.goto(address)
    page.wait_for_function("document.documentElement.dataset.explorers")
    apart = page.locator("section.everybyte-apart")
    assert apart.count() > 1
    first, said = apart.first, apart.first.locator(":scope > p").first
    assert first.locator(":scope > h3").is_visible() and not said.is_visible()
    first.locator(".everybyte-unfold").press("Enter")
    assert said.is_visible() and first.locator(".everybyte-unfold").get_attribute("aria-expanded") == "true"
    page.goto(f"{address}#{first.get_attribute('id')}")
    page.reload()
    assert said.is_visible()
    page.get_by_role("button", name="the short path").click()
    page.get_by_role("button", name="the whole chapter").click()
    assert not apart.nth(1).locator(":scope > p").first.is_visible()


def outside(asked):
    return [url for url in asked if not re.match(r"file:|data:|blob:", url)]


def test_a_slider_moves_text_and_picture_and_nothing_leaves_the_page(page, asked, site, capsys):
    page.goto((site / "notebooks" / f"{SLUG}.html").as_uri())
    page.wait_for_function("document.documentElement.dataset.explorers")
    assert page.evaluate("document.documentElement.dataset.explorers") == "ready"
    keys = Keys(page, page.locator(".everybyte-explorer").first)
    for key in ["ArrowRight", "ArrowLeft"] * 12:
        before, after = keys.press(keys.sliders()[0], key)
        assert after["sentence"] != before["sentence"]
        assert after["picture"] != before["picture"]
        assert after["error"] == ""
    before, after = keys.press(keys.presets()[2], "Enter")
    assert after != before
    keys.explorer.get_by_role("button", name="scaled by 2^16").press("Enter")
    more, said = drawer(keys.explorer), keys.explorer.locator(".everybyte-unseen")
    assert said.is_hidden() and keys.explorer.locator(".noUi-handle").last.is_visible()
    more.press("Enter")
    assert more.get_attribute("aria-expanded") == "false" and said.inner_text() == "loss scale, log2 16"
    assert not keys.explorer.locator(".noUi-handle").last.is_visible()
    assert page.url.partition("#")[0].endswith(f"{SLUG}.html")  # the arrows turned no page
    assert page.locator("mjx-container").count() > 20
    assert page.locator("mjx-merror").count() == 0
    assert outside(asked) == []
    assert page.errors == []
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme)
        screenshot(page, f"site-{scheme}")
        assert serious(page, [".everybyte-live", "article"]) == [], scheme
    empty = floor(page)  # what no picture goes below: the wait for the next frame
    with capsys.disabled():
        print(f"\nstatic edition, {summary(keys.answers)}; an empty page, {summary(empty)}")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_home_and_the_interview_room_can_be_used_by_everybody(page, site, scheme):
    """What axe-core checks of the whole page, wide and narrow; nothing leaves its sides."""
    page.emulate_media(color_scheme=scheme)
    for width, height in ((1366, 768), (390, 844)):
        page.set_viewport_size({"width": width, "height": height})
        for name in ("index", "interview", "config", "about"):
            page.goto((site / f"{name}.html").as_uri())
            page.wait_for_timeout(500)
            if name == "config":
                page.get_by_role("button", name="an example, of Llama 3.2 1B").click()
                assert "1,235,814,400 parameters" in page.inner_text("#said")
            assert page.evaluate("document.documentElement.scrollWidth <= innerWidth + 1"), (name, width)
            screenshot(page, f"site-{name}-{scheme}-{width}")
            assert serious(page, ["body"]) == [], (name, scheme, width)
    axes = ("XMLHttpRequest", "net::ERR_FAILED")  # axe reads the styles' files, which a page from disk may not
    assert [error for error in page.errors if not any(words in error for words in axes)] == []


# In the page: the color of each thing, as its style has computed it, and how many letters a full line of prose has.
LOOKS = """() => {
  const color = (e, pseudo) => getComputedStyle(e, pseudo).backgroundColor;
  const captions = [...document.querySelectorAll(".sidebar-tree p.caption")];
  const lines = [...document.querySelectorAll("article section > p")].filter((p) => p.offsetHeight && p.textContent.length > 300 && !p.querySelector("mjx-container"));
  return {
    parts: captions.map((c) => [c.innerText, color(c.querySelector(".caption-text"), "::before")]),
    title: color(document.querySelector("article h1"), "::before"),
    face: [...document.fonts].filter((f) => f.status === "loaded").map((f) => f.family.replaceAll('"', "")),
    letters: lines.map((p) => p.textContent.length / Math.round(p.getBoundingClientRect().height / parseFloat(getComputedStyle(p).lineHeight))),
  };
}"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_reader_sees_the_book_s_face_and_in_which_part_it_is(page, asked, site, scheme):
    page.emulate_media(color_scheme=scheme)
    page.set_viewport_size({"width": 1366, "height": 768})
    page.goto((site / "notebooks" / f"{SLUG}.html").as_uri())
    page.wait_for_function("document.documentElement.dataset.explorers === 'ready'")
    seen = page.evaluate(LOOKS)
    ground = edition.face.LIGHT if scheme == "light" else edition.face.DARK
    for title, color in seen["parts"]:
        hue = edition.face.shade(edition.face.PALETTE[edition.face.PARTS[edition.face.part(title)]], ground)
        assert color == f"rgb({', '.join(str(int(hue[i : i + 2], 16)) for i in (1, 3, 5))})", title
    assert len(seen["parts"]) > len(edition.face.PARTS)
    assert seen["title"] == dict(seen["parts"])["Part 2: saving it on one GPU"]
    assert {"Every Byte Serif", "Every Byte Sans"} <= set(seen["face"])
    assert seen["letters"] and 55 < sum(seen["letters"]) / len(seen["letters"]) < 76
    assert page.locator(".sidebar-brand svg path").count() == len(edition.face.LAYERS)
    assert outside(asked) == []
    assert serious(page, ["body"]) == [], scheme


def test_far_lines_are_not_painted_and_a_link_to_a_heading_finds_it(page, site):
    page.emulate_media(reduced_motion="reduce")
    page.goto((site / "notebooks" / f"{SLUG}.html").as_uri())
    page.wait_for_function("document.documentElement.dataset.explorers === 'ready'")
    painted = "[...document.querySelectorAll('article section p')].map((p) => p.checkVisibility({ contentVisibilityAuto: true }))"
    page.wait_for_function(f"{painted}.includes(false)")
    assert page.evaluate(painted)[0] is True
    for name in page.evaluate(
        "[...document.querySelectorAll('article section section')].map((one) => one.id).slice(0, -2)"
    ):
        page.evaluate("(name) => { location.hash = name; }", name)
        page.wait_for_function(
            "(name) => Math.abs(document.getElementById(name).getBoundingClientRect().top) < 80", arg=name
        )


def test_on_a_slide_the_explorer_answers_and_the_deck_stays(page, asked, built):
    page.goto((built / "slides" / "notebooks" / f"{SLUG}.html").as_uri())
    page.wait_for_function("document.documentElement.dataset.explorers === 'ready' && window.Reveal?.isReady()")
    assert page.evaluate("Reveal.getTotalSlides()") > 20
    page.evaluate("""() => {
      const slide = document.querySelector(".everybyte-explorer").closest("section:not(.stack)");
      const place = Reveal.getIndices(slide);
      Reveal.slide(place.h, place.v);
    }""")
    keys = Keys(page, page.locator(".everybyte-explorer").first)
    place = page.evaluate("Reveal.getIndices()")
    before, after = keys.press(keys.sliders()[0], "ArrowRight")
    assert after["sentence"] != before["sentence"]
    assert page.evaluate("Reveal.getIndices()") == place
    assert outside(asked) == []
    assert page.errors == []
    screenshot(page, "slide")


# In the page: goes to a slide, and when it has found its size says what is beyond its edges, and how large its words are.
SLIDE = """async ([h, v]) => {
  Reveal.slide(h, v);
  const slide = Reveal.getCurrentSlide(), scale = Reveal.getScale();
  while (!slide.dataset.everybyteFit) await new Promise((done) => setTimeout(done, 20));
  const [words, cut] = [[], []];
  const walk = document.createTreeWalker(slide, NodeFilter.SHOW_TEXT);
  while (walk.nextNode()) {
    const e = walk.currentNode.parentElement, said = walk.currentNode.textContent.trim();
    if (!said || e.closest("aside, mjx-container, .everybyte-title") || !e.checkVisibility()) continue;
    const range = document.createRange();
    range.selectNodeContents(walk.currentNode);
    const box = range.getBoundingClientRect();
    if (box.left < 0 || box.top < 0 || box.right > innerWidth + 1 || box.bottom > innerHeight + 1) cut.push(said);
    const size = parseFloat(getComputedStyle(e).fontSize);
    const drawn = e.closest("svg");
    const zoomed = drawn ? Math.hypot(e.getScreenCTM().a, e.getScreenCTM().b) : (e.currentCSSZoom ?? 1) * scale;
    words.push([drawn ? "picture" : e.closest(".everybyte-live") ? "control" : "text", size * zoomed / scale, said]);
  }
  for (const e of slide.querySelectorAll("mjx-container, img")) {
    if (e.closest("aside")) continue;
    const box = (e.querySelector("mjx-math") ?? e).getBoundingClientRect();
    if (box.left < 0 || box.right > innerWidth + 1 || box.bottom > innerHeight + 1) cut.push(e.tagName);
    if (e.matches("img")) words.push(["figure", 9.1 * 3.5 * Math.min(box.width / e.naturalWidth, box.height / e.naturalHeight) / scale, e.alt]);
    else words.push(["text", parseFloat(getComputedStyle(e).fontSize), "a formula"]);
  }
  return { words, cut };
}"""
LEAST = {
    "text": 24,
    "figure": 20.5,
    "picture": 20,
    "control": 15,
}  # pixels of a slide of 1,280 by 720; a figure under two lines


def test_on_every_slide_nothing_is_cut_and_all_can_be_read(page, built):
    for width, height in ((1280, 720), (1366, 768)):
        page.set_viewport_size({"width": width, "height": height})
        page.goto("about:blank")
        page.goto((built / "slides" / "notebooks" / f"{SLUG}.html").as_uri())
        page.wait_for_function("document.documentElement.dataset.explorers === 'ready' && window.Reveal?.isReady()")
        places = page.evaluate(
            "Reveal.getSlides().map((s) => Object.values(Reveal.getIndices(s)).map((i) => i ?? 0).slice(0, 2))"
        )
        kinds = set()
        for place in places:
            seen = page.evaluate(SLIDE, place)
            assert seen["words"] and seen["cut"] == [], (place, seen)
            small = [word for word in seen["words"] if word[1] < LEAST[word[0]] - 0.05]
            assert small == [], (place, small)
            kinds |= {kind for kind, _, _ in seen["words"]}
        assert kinds == set(LEAST) and len(places) > 20
    screenshot(page, "slide-last")


def test_the_search_finds_a_word_from_disk(page, asked, site):
    page.goto((site / "search.html").as_uri() + "?q=underflow")
    page.locator("#search-results li a").first.wait_for()
    assert any(SLUG in link.get_attribute("href") for link in page.locator("#search-results li a").all())
    assert outside(asked) == []
    assert page.errors == []


def test_a_narrow_page_scrolls_down_and_not_sideways(page, site):
    page.set_viewport_size({"width": 700, "height": 900})
    for name in (f"notebooks/{SLUG}.html", "formulas.html", "index.html"):
        page.goto((site / name).as_uri())
        page.wait_for_timeout(500)
        assert page.evaluate("document.documentElement.scrollWidth") <= 700, name
    screenshot(page, "site-narrow")


def test_without_javascript_the_explorer_is_its_figure(chromium, site):
    page = chromium.browser.new_context(java_script_enabled=False).new_page() if chromium.browser else None
    if page is None:
        pytest.skip("this Chromium cannot open a page without JavaScript")
    page.goto((site / "notebooks" / f"{SLUG}.html").as_uri())
    assert len(page.locator(".everybyte-live img").first.get_attribute("alt")) > 40
    page.close()


def test_the_handout_is_one_sheet(chromium, tmp_path):
    paper = pytest.importorskip("paper")
    (tmp_path / "source" / "extra").mkdir(parents=True)
    (tmp_path / "source" / "index.md").write_text(paper.pages.handout(), encoding="utf-8")
    edition.sphinx(tmp_path)
    page = chromium.new_page()
    page.goto((tmp_path / "html" / "index.html").as_uri())
    page.locator("mjx-container").first.wait_for()
    sheets = re.findall(rb"/Type\s*/Page\b", page.pdf(prefer_css_page_size=True))
    page.close()
    assert len(sheets) == 1


@pytest.mark.skipif(not FIREFOX, reason="no Firefox on this machine")
def test_in_firefox_the_explorers_answer_and_nothing_leaves_the_page(site, tmp_path):
    browser = Firefox(tmp_path)
    try:
        browser.open((site / "notebooks" / f"{SLUG}.html").as_uri())
        browser.wait("document.documentElement.dataset.explorers === 'ready'")
        browser.move()
        assert browser.evaluate("document.querySelectorAll('.everybyte-error, mjx-merror').length") == 0
        browser.evaluate("document.querySelector('.everybyte-live').scrollIntoView()")
        browser.screenshot(ARTIFACTS / "firefox.png")
        assert browser.errors == []
        assert outside(browser.asked) == []
    finally:
        browser.close()
