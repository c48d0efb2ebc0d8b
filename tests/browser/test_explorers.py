"""The explorers in a real JupyterLab, by keyboard: dark, narrow, still, and when their kernel dies.

`make test-browser` takes every one, `make test` a slice; `tests/explore` runs all of their JavaScript without a browser.
"""

import inspect
import os
import re

import psutil
import pytest
from driving import (
    ARTIFACTS,
    ERRORS,
    Keys,
    accept,
    drawer,
    menu,
    own_errors,
    pull,
    run_all,
    screenshot,
    serious,
    theme,
    watched,
)

from everybyte import explore
from everybyte.draw import contrast
from everybyte.explore.explorer import FIRST

EXPLORERS = sorted(
    name
    for name in explore.__all__
    if callable(made := getattr(explore, name)) and inspect.signature(made).return_annotation is explore.Explorer
)
if not os.environ.get("EVERYBYTE_BROWSER"):
    EXPLORERS = sorted({*EXPLORERS[2::3], "states", "step"})
#: Explorers that need an argument.
CALLS = {
    "model": "explore.model(eb.derive(eb.model('gpt2'), eb.Setup()))",
    "memory_map": "explore.memory_map(example.left())",
}
WIDE = {"width": 1400, "height": 1000}
# A text that leaves its picture, or is drawn smaller than 11 pixels.
OUTSIDE = """root => [...root.querySelectorAll("svg[role=img] text")].flatMap((text) => {
  const [box, page] = [text.getBoundingClientRect(), text.ownerSVGElement.getBoundingClientRect()];
  const scale = page.width / text.ownerSVGElement.viewBox.baseVal.width;
  const inside = box.left >= page.left - 2 && box.right <= page.right + 2 && box.top >= page.top - 2 && box.bottom <= page.bottom + 2;
  return inside && 13 * scale >= 11 ? [] : [`${text.textContent} (${box.left - page.left} to ${box.right - page.left} of ${page.width})`];
})"""
# What a slider says, where it leaves its control or is taller than that: at 346 pixels a control.
CUT = """root => [...root.querySelectorAll(".widget-inline-hbox")].flatMap((control) => {
  const readout = control.querySelector(".widget-readout");
  if (!readout) return [];
  const words = document.createRange();
  words.selectNodeContents(readout);
  const [said, box, slider] = [words, control, control.querySelector(".slider-container")].map((e) => e.getBoundingClientRect());
  const inside = said.left >= slider.right && said.right <= box.right + 1 && said.top >= box.top - 1 && said.bottom <= box.bottom + 1;
  return inside && slider.width >= 48 ? [] : [`${readout.textContent}: ${[said.left - slider.right, box.right - said.right, slider.width]}`];
})"""
COLORS = """root => {
  const style = (name) => { const e = root.querySelector(name); return e && getComputedStyle(e); };
  const behind = (e) => { const c = getComputedStyle(e).backgroundColor; return /, 0\\)$/.test(c) && e.parentElement ? behind(e.parentElement) : c; };
  return { page: behind(root), band: style(".everybyte-current")?.fill, ink: style("svg text.everybyte-free").fill,
    on: style("svg text.everybyte-on")?.fill, sentence: style(".everybyte-sentence").color, arrow: style("select")?.color };
}"""


@pytest.fixture(scope="module")
def page(lab, chromium):
    """A notebook that opens the explorers, run."""
    cells = ["import everybyte as eb\nfrom everybyte import explore\nfrom everybyte.evidence import example"]
    cells += [CALLS.get(name, f"explore.{name}()") for name in EXPLORERS]
    page = watched(chromium)
    lab.open(page, lab.write("explorers", *cells, title="Every explorer"))
    page.keyboard.press("Control+b")  # the file browser makes room
    run_all(page)
    assert "official Jupyter news" not in page.locator("body").inner_text()
    assert page.locator(ERRORS).all_inner_texts() == []
    drawn = "document.querySelectorAll('.everybyte-explorer svg[role=img]').length"
    page.wait_for_function(f"{drawn} === {len(EXPLORERS)}")
    for name in EXPLORERS:
        pull(explorer(page, name))  # every control is tried
    yield page
    page.close()


@pytest.fixture(autouse=True)
def as_opened(page):
    """Each test finds a wide, light page, with every explorer reset."""
    yield
    page.set_viewport_size(WIDE)
    page.emulate_media(reduced_motion="no-preference")


def explorer(page, name):
    return page.locator(".everybyte-explorer").nth(EXPLORERS.index(name))


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", EXPLORERS)
def test_every_control_moves_picture_and_sentence(page, name, answers):
    keys = Keys(page, explorer(page, name))
    keys.every_control()
    answers[name] = keys.answers
    assert own_errors(page) == []


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", EXPLORERS)
def test_controls_have_names_and_take_typed_values(page, name):
    root = explorer(page, name)
    for control in root.locator(".widget-inline-hbox").all():
        label = control.locator(".widget-label").inner_text()
        if (handle := control.locator(".noUi-handle")).count():
            assert handle.get_attribute("aria-label") == label
            readout = control.locator(".widget-readout")
            assert readout.get_attribute("aria-label").startswith(label)
            handle.focus()
            page.keyboard.press("End")
            end = readout.inner_text()
            page.keyboard.press("Home")
            assert readout.inner_text() != end and handle.get_attribute("aria-valuetext") is not None
            readout.focus()
            page.keyboard.press("Control+A")
            page.keyboard.type(end)
            page.keyboard.press("Enter")
            page.wait_for_function(
                "([e, end]) => e.innerText === end", arg=[readout.element_handle(), end], timeout=3_000
            )
            assert handle.get_attribute("aria-valuenow") == handle.get_attribute("aria-valuemax"), label
        else:
            assert control.locator("select").evaluate("e => e.labels[0].innerText") == label
    root.locator("button", has_text="Reset").click()


@pytest.mark.parametrize("name", EXPLORERS)
def test_the_focus_is_seen_and_goes_through_every_control(page, name):
    root = explorer(page, name)
    stops = root.locator("button, select, .noUi-handle, .widget-readout, .everybyte-picture [role=slider]").count()
    root.locator("button").first.focus()
    for stop in range(stops):
        style = page.evaluate("[document.activeElement.tagName, getComputedStyle(document.activeElement).outlineStyle]")
        assert style[1] == "solid", (stop, style)
        page.keyboard.press("Tab")
    assert not root.evaluate("root => root.contains(document.activeElement)"), "the focus is caught"


@pytest.mark.parametrize("width", [480, 700, 1000, 1400])
def test_every_word_has_room(page, width):
    page.set_viewport_size({"width": width, "height": 1000})
    page.wait_for_timeout(500)
    for name in EXPLORERS:
        root = explorer(page, name)
        assert root.evaluate(OUTSIDE) == [], name
        assert root.evaluate("e => e.scrollWidth <= e.clientWidth + 1"), f"{name} is wider than its place"
        if width == 480:
            root.evaluate("e => e.scrollIntoView()")
            screenshot(page, f"explorer-{name}-narrow")


def test_what_a_slider_says_has_room(page):
    for name in EXPLORERS:
        root = explorer(page, name)
        for key in ("End", "Home"):
            for handle in root.locator(".noUi-handle").all():
                handle.focus()
                page.keyboard.press(key)
            assert root.evaluate(CUT) == [], (name, key)
        root.locator("button", has_text="Reset").click()


@pytest.mark.parametrize("mode", ["Light", "Dark"])
def test_it_reads_on_every_theme(page, mode):
    theme(page, f"JupyterLab {mode}")
    try:
        assert serious(page) == []
        for name in EXPLORERS:
            root = explorer(page, name)
            colors = {k: hexadecimal(v) for k, v in root.evaluate(COLORS).items() if v}
            for word in ("ink", "sentence", "arrow"):
                assert word not in colors or contrast(colors[word], colors["page"]) >= 4.5, (name, word, colors)
            assert "on" not in colors or contrast(colors["on"], colors["band"]) >= 4.5, (name, colors)
            root.screenshot(path=ARTIFACTS / f"explorer-{name}-{mode.lower()}.png")
    finally:
        theme(page, "JupyterLab Light")


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", EXPLORERS)
def test_on_a_small_screen_the_sentence_is_seen_and_the_picture_stays(page, name):
    page.set_viewport_size({"width": 1280, "height": 720})
    page.wait_for_timeout(300)
    root, places = explorer(page, name), []
    root.evaluate("e => e.scrollIntoView()")
    pane = page.locator(".jp-WindowedPanel-outer").first.bounding_box()
    for preset in root.locator(".widget-toggle-buttons button").all():
        preset.click()
        page.wait_for_timeout(60)
        said = root.locator(".everybyte-sentence").bounding_box()
        assert pane["y"] <= said["y"] and said["y"] + said["height"] <= pane["y"] + pane["height"], name
        places.append(
            round(
                root.evaluate(
                    "e => e.querySelector('svg[role=img]').getBoundingClientRect().y - e.getBoundingClientRect().y"
                )
            )
        )
    assert max(places) - min(places) <= 40, (name, places)  # two lines more of the longest sentence, which then stay
    assert places == sorted(places), (name, places)
    root.locator("button", has_text="Reset").click()


def hexadecimal(color):
    return "#" + "".join(f"{int(c):02X}" for c in re.findall(r"\d+", color)[:3])


def test_where_motion_is_unwanted_nothing_moves(page):
    page.emulate_media(reduced_motion="reduce")
    moving = """() => [...document.querySelectorAll(".everybyte-explorer *")].map((e) => getComputedStyle(e))
      .filter((s) => (parseFloat(s.transitionDuration) && s.transitionProperty !== "none") || s.animationName !== "none").length"""
    assert page.evaluate(moving) == 0


def test_a_kernel_that_dies_leaves_an_explorer_that_answers(page, lab):
    keys = Keys(page, explorer(page, "states"))
    slider = keys.sliders()[0]
    keys.press(slider, "Home")
    dead = lab.processes()
    for press in range(12):
        before, after = keys.press(slider, "ArrowRight")
        if before == after and accept(page):  # JupyterLab had put its question over the page
            before, after = keys.press(slider, "ArrowRight")
        assert before["sentence"] != after["sentence"] and before["picture"] != after["picture"], press
        if press == 3:
            for process in dead:
                process.kill()
        if press == 7:
            page.wait_for_timeout(4_000)  # long enough for the server to notice
    assert dead and not psutil.wait_procs(dead, timeout=20)[1]
    accept(page)
    menu(page, "Kernel", "Shut Down Kernel")
    for _ in range(100):
        if not lab.kernels():
            break
        page.wait_for_timeout(200)
    assert not lab.kernels()
    for key in ("Home", "ArrowRight", "End"):
        keys.moves(slider, key, "no kernel")


def test_the_hand_on_the_chart_points_drags_and_turns(page):
    """Hover says what lives at an instant and changes nothing; a drag and the arrow keys move to any operation."""
    root = explorer(page, "step")
    chart, said = root.locator(".everybyte-picture [role=slider]"), root.locator(".everybyte-sentence")
    chart.scroll_into_view_if_needed()
    before, box = said.inner_text(), chart.bounding_box()

    def at(share):
        return box["x"] + share * box["width"], box["y"] + 0.4 * box["height"]

    page.mouse.move(*at(0.3))
    tip = root.locator(".everybyte-tip + text")
    assert tip.inner_html().startswith("Operation ") and "forward" in tip.inner_html()
    assert said.inner_text() == before
    page.mouse.down()
    page.mouse.move(*at(0.6), steps=4)
    page.mouse.up()
    now = int(chart.get_attribute("aria-valuenow"))
    assert said.inner_text().startswith(f"Operation {now} of ") and "backward" in said.inner_text()
    for key, there in (("ArrowRight", now + 1), ("ArrowLeft", now), ("Home", 1)):
        page.keyboard.press(key)
        page.wait_for_function(f"document.activeElement.getAttribute('aria-valuenow') === '{there}'")
    root.locator("button", has_text="Reset").click()


def test_other_charts_say_what_is_under_a_pointer_and_choose_it(page):
    """A hover says it and changes nothing; a press, and the arrow keys, choose it as its control would."""
    turned = 0
    for name in EXPLORERS:
        root = explorer(page, name)
        chart, said = root.locator(".everybyte-picture [role=group]"), root.locator(".everybyte-sentence")
        if not chart.count():
            continue
        turned += 1
        root.evaluate("e => e.scrollIntoView()")
        page.wait_for_timeout(200)
        opened, box = said.inner_text(), chart.locator("svg").bounding_box()
        page.mouse.move(box["x"] + 0.5 * box["width"], box["y"] + 0.3 * box["height"])
        assert root.locator(".everybyte-tip + text").inner_html(timeout=3_000), name
        assert said.inner_text() == opened, name
        chart.focus()
        for key in ("ArrowDown", "ArrowRight", "ArrowUp", "ArrowLeft"):
            page.keyboard.press(key)
            for _ in range(20):  # a busy machine paints late
                page.wait_for_timeout(30)
                if said.inner_text() != opened:
                    break
            if said.inner_text() != opened:
                break
        assert said.inner_text() != opened, name
        page.mouse.click(box["x"] + 0.5 * box["width"], box["y"] + 0.3 * box["height"])
        assert root.evaluate(OUTSIDE) == [], name
        page.mouse.move(0, 0)
        root.locator(".everybyte-tip").wait_for(state="detached", timeout=3_000)
        root.locator("button", has_text="Reset").click()
    assert turned >= 3 and own_errors(page) == []


def test_a_state_is_pinned_and_a_run_is_kept(page):
    """The pinned picture stands below, on the same axes; another explorer goes to the run that was kept."""
    states, step = explorer(page, "states"), explorer(page, "step")
    states.locator("button", has_text="pin this state").click()
    model = states.locator("select").first
    model.select_option("gpt2-xl")
    against = states.locator(".everybyte-against")
    against.get_by_text("Against the pinned state: Model gpt2 \u2192 gpt2-xl").wait_for(timeout=3_000)
    assert states.locator("svg[role=img]").count() == 2 and serious(page) == []
    states.locator("button", has_text="unpin").click()
    assert states.locator("svg[role=img]").count() == 1 and against.inner_text() == ""
    states.locator("button", has_text="this is my run").click()
    step.locator("button", has_text="Reset").click()
    step.locator("button", has_text="go to my run").click()
    step.locator(".everybyte-sentence").get_by_text("Your run: ").wait_for(timeout=3_000)
    chosen = step.locator("select").first.element_handle()
    page.wait_for_function("e => e.selectedOptions[0].label === 'gpt2-xl'", arg=chosen, timeout=3_000)
    step.locator("button", has_text="forget my run").click()
    step.locator("button", has_text="go to my run").wait_for(state="hidden", timeout=3_000)
    for root in (states, step):
        root.locator("button", has_text="Reset").click()


def test_the_chart_stands_beside_its_controls_and_on_a_narrow_page_above_them(page):
    root = explorer(page, "step")
    chart, controls = root.locator("svg[role=img]"), root.locator(".widget-box").first

    def corners():
        page.wait_for_timeout(300)
        return chart.bounding_box(), controls.bounding_box()

    wide, beside = corners()
    assert wide["x"] > beside["x"] + beside["width"] and wide["width"] > beside["width"]
    page.set_viewport_size({"width": 640, "height": 900})
    above, below = corners()
    assert above["y"] + above["height"] <= below["y"]


@pytest.mark.parametrize("width", [1366, 640])
def test_three_controls_stand_beside_the_chart_and_the_drawer_says_what_is_not_as_usual(page, width):
    page.set_viewport_size({"width": width, "height": 768})
    for name in EXPLORERS:
        root = explorer(page, name)
        pull(root, is_open=False)
        shown = root.locator(".widget-box > .widget-inline-hbox")
        visible = [one.is_visible() for one in shown.all()]
        assert visible == [i < FIRST for i in range(len(visible))], name
        assert root.evaluate(OUTSIDE) == [] and root.evaluate("e => e.scrollWidth <= e.clientWidth + 1"), name
    root = explorer(page, "step")
    root.evaluate("e => e.scrollIntoView()")
    button, said = drawer(root), root.locator(".everybyte-unseen")
    button.focus()
    assert button.inner_text() == "more (7)" and said.inner_text() == ""
    root.get_by_role("button", name="autocast, eager").click()
    said.get_by_text("attention eager", exact=True).wait_for(timeout=3_000)
    assert serious(page) == []
    screenshot(page, f"drawer-{width}")
    for is_open, key in ((True, "Enter"), (False, "Space"), (True, "Enter")):
        button.press(key)
        assert button.get_attribute("aria-expanded") == str(is_open).lower()
        assert root.locator(".noUi-handle").last.is_visible() is is_open and said.is_visible() is not is_open
    page.keyboard.press("Tab")
    assert (
        root.locator("select").nth(2).evaluate("e => e === document.activeElement")
    )  # the first control that it showed
    root.locator("button", has_text="Reset").click()
    for name in EXPLORERS:
        pull(explorer(page, name))


def test_a_drawer_stays_open_where_its_cell_runs_again(lab, chromium):
    page = watched(chromium)
    lab.open(page, lab.write("drawer", "from everybyte import explore\nexplore.zero()", title="Drawer"))
    run_all(page)
    for is_open in ("false", "true"):
        root = page.locator(".everybyte-explorer")
        assert drawer(root).get_attribute("aria-expanded") == is_open
        pull(root)
        root.evaluate("e => { e.old = true; }")
        run_all(page)
        page.wait_for_function(
            "e => document.querySelector('.everybyte-explorer:has(.everybyte-drawer)')?.old !== true"
        )
    assert own_errors(page) == []
    page.close()


def test_a_step_plays_and_stops(page):
    root = explorer(page, "step")
    play = root.locator(".everybyte-play")
    play.click()
    root.locator(".everybyte-cover").wait_for(state="attached")
    widths = []
    for _ in range(3):
        page.wait_for_timeout(300)
        widths.append(float(root.locator(".everybyte-cover").get_attribute("width")))
    assert widths == sorted(widths, reverse=True) and widths[0] > widths[-1]
    play.click()
    assert root.locator(".everybyte-cover").count() == 0


def test_what_is_pasted_is_answered(lab, chromium):
    """An error, and then a config.json, whose controls answer."""
    page = watched(chromium)
    lab.open(page, lab.write("yours", "from everybyte import explore", "explore.yours()", title="Yours"))
    run_all(page)
    text, said = page.locator(".everybyte-yours textarea"), page.locator(".everybyte-yours")
    text.fill("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.11 GiB of which "
              "1.50 GiB is free. Including non-PyTorch memory, this process has 77.60 GiB memory in use. Of the allocated memory 70.00 "
              "GiB is allocated by PyTorch, and 6.00 GiB is reserved by PyTorch but unallocated.")  # fmt: skip
    said.get_by_text("Enough is kept free").first.wait_for()
    text.fill('{"model_type": "llama", "num_hidden_layers": 4}')
    said.get_by_text("on h100-80gb: batch").first.wait_for()
    said.locator("select").first.select_option("rtx-4090")
    said.get_by_text("on rtx-4090: batch").first.wait_for()
    assert serious(page) == [] and own_errors(page) == []
    screenshot(page, "yours")
    page.close()
