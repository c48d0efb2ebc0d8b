"""Print the book: the handout of formulas on one sheet, worksheets, or every page of the static edition.

    python tools/paper.py handout     # build/handout.pdf, from the registry
    python tools/paper.py worksheets  # build/worksheets, a file for each part: predictions and exercises, without answers
    python tools/paper.py book        # build/pdf, a file for each chapter of build/site

Chromium prints, headless. Without it, open the pages in any browser and print them there.
"""

import argparse
import shutil
import sys
import tempfile
from pathlib import Path

import face
import pages
import worksheets
from edition import ROOT, SITE, sphinx

BROWSERS = ("chromium", "chromium-browser", "google-chrome")


def printed(sheets: dict[Path, Path]) -> None:
    """Print each page, HTML file -> PDF file, once its formulas and explorers stand.

    Raises:
        RuntimeError: where there is no Chromium.
    """
    from playwright.sync_api import sync_playwright

    browser = next(filter(None, map(shutil.which, BROWSERS)), None)
    if not browser:
        raise RuntimeError(
            f"printing needs one of {', '.join(BROWSERS)}, or open the pages in a browser and print them"
        )
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=browser, args=["--no-sandbox"])
        for source, target in sheets.items():
            page = chromium.new_page()
            page.goto(source.as_uri())
            page.wait_for_function(
                "!window.MathJax || !MathJax.startup?.promise || MathJax.startup.promise.then(() => true)"
            )
            if page.locator(".everybyte-live").count():
                page.wait_for_function("document.documentElement.dataset.explorers")
            target.parent.mkdir(parents=True, exist_ok=True)
            page.pdf(path=target, prefer_css_page_size=True, print_background=True)
            page.close()
        chromium.close()


def page(text: str, target: Path) -> None:
    """One page of Markdown, printed."""
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        (work / "source" / "extra").mkdir(parents=True)
        (work / "source" / "index.md").write_text(text, encoding="utf-8")
        sphinx(work)
        printed({work / "html" / "index.html": target})


def book(site: Path, target: Path) -> None:
    """Every chapter and reference page of a built edition."""
    sheets = [p for folder in (".", "notebooks", "labs") for p in sorted((site / folder).glob("*.html"))]
    if not sheets:
        raise RuntimeError(f"there is no static edition in {site.name}: make site builds it")
    made = {p: target / p.relative_to(site).with_suffix(".pdf") for p in sheets}
    printed({p: t for p, t in made.items() if p.stem not in ("search", "genindex")})


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["handout", "worksheets", "book"])
    what = parser.parse_args().what
    target = ROOT / "build" / {"handout": "handout.pdf", "worksheets": "worksheets", "book": "pdf"}[what]
    try:
        if what == "handout":
            page(pages.handout(), target)
        elif what == "worksheets":
            for name, text in worksheets.written().items():
                hue = face.marker(name.replace("part", "Part ")) if name.startswith("part") else ""
                page(text + hue, target / f"{name}.pdf")
        else:
            book(SITE, target)
    except RuntimeError as error:
        print(error, file=sys.stderr)
        return 1
    print(f"open {target.relative_to(ROOT)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
