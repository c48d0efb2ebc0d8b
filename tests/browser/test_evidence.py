"""The page for a snapshot or an error, with Python in its worker, where `make lite` brought Pyodide: by file, by text, by hand and keys."""

import gzip
import json
import zipfile

import pytest
from driving import ROOT, screenshot, serious, served, watched

import everybyte as eb
from everybyte import units
from everybyte.explore import evidence

PYODIDE = ROOT / "build" / "lite" / "static" / "pyodide"
pytestmark = pytest.mark.skipif(not PYODIDE.is_dir(), reason="build/lite is not there: make lite")
RECORDED = ROOT / "tests" / "evidence" / "recorded"
ERROR = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 23.53 GiB of which 1.02 GiB is free. "
    "Of the allocated memory 20.10 GiB is allocated by PyTorch, and 1.90 GiB is reserved by PyTorch but unallocated. <img src=x onerror=alert(1)>"
)


@pytest.fixture(scope="module")
def address(tmp_path_factory):
    """The page and Pyodide over http, with this source as the package."""
    folder = tmp_path_factory.mktemp("evidence")
    (folder / "evidence.html").write_text(evidence.page(), encoding="utf-8")
    (folder / evidence.WORKER).write_text(evidence.worker(), encoding="utf-8")
    place = folder / "lite" / "static" / "pyodide"
    place.mkdir(parents=True)
    for path in PYODIDE.iterdir():
        if path.suffix != ".whl" and path.name != "pyodide-lock.json":
            (place / path.name).symlink_to(path)
    lock = json.loads((PYODIDE / "pyodide-lock.json").read_text(encoding="utf-8"))
    wheel = lock["packages"]["everybyte"]["file_name"]
    (place / "pyodide-lock.json").write_text(json.dumps(lock), encoding="utf-8")
    with zipfile.ZipFile(place / wheel, "w", zipfile.ZIP_DEFLATED) as archive:
        for path in (ROOT / "src").rglob("*"):
            if path.is_file() and "__pycache__" not in path.parts and "egg-info" not in str(path):
                archive.write(path, path.relative_to(ROOT / "src"))
    with served(folder) as address:
        yield address


@pytest.fixture
def page(chromium, address):
    page, asked = watched(chromium), []
    page.context.on("request", lambda request: asked.append(request.url))
    page.goto(f"{address}/evidence.html")
    yield page
    assert [url for url in asked if not url.startswith((address, "data:", "blob:"))] == [] and page.errors == []
    page.close()


def given(page, name, data):
    page.set_input_files("#file", {"name": name, "mimeType": "application/octet-stream", "buffer": data})
    page.locator("#said > *").first.wait_for(timeout=120_000)


def moment(page, words):
    page.locator("#said p", has_text=words).wait_for()
    return page.inner_text(".everybyte-picture p")


def test_a_snapshot_is_drawn_and_moved_through(page):
    data = gzip.decompress((RECORDED / "kept-until-it-dies.pickle.gz").read_bytes())
    memory = eb.snapshot(data).main
    given(page, "snapshot.pickle", data)
    assert "event" in moment(page, "(where it died)")
    lines = page.locator(".owners tbody tr").count()
    assert lines == len(memory.held(memory.died)[:40])
    page.get_by_role("button", name="the peak").click()
    said = moment(page, "(the peak)")
    assert f"{units.text(memory.peak)} live" in said and units.text(memory.reserved_at(memory.peak_event)) in said
    first = memory.held()[0]
    assert page.inner_text(".owners tbody tr:first-child th") == first.where
    curve = page.locator("[role=slider]")
    assert curve.locator("svg").get_attribute("aria-label").endswith(f"at most {units.text(memory.peak)}")
    curve.press("Home")
    moment(page, "After event 0")
    curve.press("ArrowRight")
    before = curve.get_attribute("aria-valuenow")
    box = curve.bounding_box()
    page.mouse.click(box["x"] + box["width"] * 0.6, box["y"] + 100)
    assert curve.get_attribute("aria-valuenow") != before
    page.get_by_role("button", name="nearer").click()
    page.wait_for_function(
        "document.querySelector('.everybyte-picture svg[role=img]').getAttribute('aria-label').match(/events (?!0 )/)"
    )
    assert not serious(page, ["main"])
    screenshot(page, "evidence")


def test_what_is_pressed_before_the_curve_is_there_is_not_lost(page):
    page.evaluate("""() => {
      const said = document.getElementById("said");
      new MutationObserver((_, watch) => {
        const buttons = [...said.querySelectorAll(".ranges button")];
        if (!buttons.length) return;
        watch.disconnect();
        for (const words of ["nearer", "the peak"]) buttons.find((button) => button.textContent === words).click();
      }).observe(said, { childList: true });
    }""")
    given(page, "snapshot.pickle", gzip.decompress((RECORDED / "kept-until-it-dies.pickle.gz").read_bytes()))
    moment(page, "(the peak)")
    assert page.errors == []


def test_an_error_is_answered_and_what_is_neither_is_refused(page):
    page.fill("#text", ERROR)
    page.get_by_role("button", name="read it").click()
    page.locator("#said table").first.wait_for(timeout=120_000)
    assert page.locator("#said img").count() == 0 and "what to do" in page.inner_text("#said")
    for name, data, words in [
        ("x.pickle", b"\x80\x04cos\nsystem\n.", "names os.system"), ("x.txt", b"loss: nan", "no out-of-memory message"), ("x", b"", "Nothing was given"),
    ]:  # fmt: skip
        given(page, name, data)
        page.locator("[role=alert]", has_text=words).wait_for()
    given(page, "config.json", b'{"model_type": "llama"}')
    assert page.locator("#said a").get_attribute("href") == "config.html"


def test_without_python_it_says_what_answers(chromium, tmp_path):
    (tmp_path / "evidence.html").write_text(evidence.page(), encoding="utf-8")
    page = watched(chromium)
    page.goto((tmp_path / "evidence.html").as_uri())
    page.fill("#text", ERROR)
    page.get_by_role("button", name="read it").click()
    page.locator("[role=alert]").wait_for()
    assert "did not start" in page.inner_text("#said") and "everybyte doctor" in page.inner_text("#said")
    page.close()
