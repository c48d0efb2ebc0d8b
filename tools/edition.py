"""Build the static edition: the whole book as pages that need no kernel, no server and no network.

    python tools/edition.py                           # every chapter and lab, into build/site
    python tools/edition.py --only 20_number_formats --output build/one

Each notebook runs in a kernel of its own, and the state of its widgets goes into its page: the explorers' links and
formulas are JavaScript, so they answer there. What has not changed is not run again: a run is kept in build/runs, by the
notebook's cells, the book's code and records, and the versions it ran with (`--fresh` runs all). Sphinx with myst-nb and furo makes the pages, the navigation and the
search; MathJax, ipywidgets' and anywidget's programs are copied from their installed wheels. Nothing is downloaded.
"""

import argparse
import base64
import hashlib
import html
import json
import os
import re
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import cache
from html.parser import HTMLParser
from importlib.metadata import PackageNotFoundError, distribution, version
from itertools import groupby
from pathlib import Path
from urllib.parse import unquote, urlsplit

import face
import home
import nbformat
import warm
from contents import Entry, contents
from tqdm import tqdm

from everybyte.common import files
from everybyte.draw import ON_SLIDE
from everybyte.explore import configs, evidence
from notebooks import FOLD, ROOT, WIDGET_VIEW, canonical, run

WEB = Path(__file__).resolve().parent / "web"
SITE = ROOT / "build" / "site"
#: What is in the book beside the notebooks. What these and the notebooks link in the repository comes along.
BESIDE = ("README.md", "labs/*.md", "notebooks/*.md")
#: Where the pages' programs come from: (distribution, file in it, file in the site).
PROGRAMS = (
    ("widgetsnbextension", "widgetsnbextension/static/extension.js", "controls.js"),
    ("anywidget", "anywidget/nbextension/index.js", "anywidget.js"),
    ("sphinx-mathjax-offline", "sphinx-mathjax-offline/static/mathjax/tex-chtml.js", "mathjax/tex-chtml.js"),
)
MATHJAX = ("output/chtml/fonts/woff-v2/*.woff", "input/tex/extensions/*.js")
#: How a page of its own takes the edition's typefaces.
ALONE = "html body, html body .everybyte-room-root { font-family: var(--everybyte-sans); } h1, h2 { font-family: var(--everybyte-serif); }"
#: Chapters that ask whether a model fits, and what stands at their ends here.
FITTING = ("16_your_own_model", "17_from_tensors_to_out_of_memory", "42_reading_the_evidence", "43_out_of_memory")
DIED = 'Did a job die? <a href="../evidence.html">Give its memory snapshot, or its error</a>: they are read in the page, and go nowhere.'
FITS = 'Does your model fit? <a href="../config.html">Give its config.json</a> in this edition: nothing is installed, and the file goes nowhere.'


def live(notebook: nbformat.NotebookNode, stem: str, pictures: Path) -> nbformat.NotebookNode:
    """The notebook with each picture as a file beside the page, with its alternative text, and each widget's place.

    A widget's place holds its picture, or its words, until its program replaces it: on paper and without JavaScript it stays.
    """
    number = 0
    for cell in notebook.cells:
        if FOLD in cell.metadata.get("tags", []):
            cell.source = re.sub(r"\A(#+ .*)", r'\1\n\n<div class="everybyte-fold" hidden></div>', cell.source)
        for output in cell.get("outputs", []):
            data = output.get("data", {})
            data.pop(ON_SLIDE, None)
            image = data.pop("image/png", None)
            view = data.pop(WIDGET_VIEW, None)
            for kind in data.keys() & {"text/html", "text/markdown"}:  # Sphinx follows links of prose, not of outputs
                data[kind] = re.sub(r'((?:href="|\]\()[^":)]*)\.ipynb(?=["#)])', r"\1.html", data[kind])
            shown = ""
            if image:
                number += 1
                name = f"{stem}-{number}.png"
                (pictures / name).write_bytes(base64.b64decode(image))
                said = output.get("metadata", {}).get("image/png", {})
                width = f' width="{said["width"]}"' if "width" in said else ""
                shown = f'<img src="../pictures/{name}" alt="{html.escape(said.get("alt", ""))}"{width}>'
            if view:
                before = shown or data.get("text/html", "")
                shown = f'<div class="everybyte-live" data-model="{view["model_id"]}">{before}</div>'
            if shown:
                data["text/html"] = shown
    return notebook


def headings(notebook: nbformat.NotebookNode) -> nbformat.NotebookNode:
    """The notebook's headings alone: a page for links to reach."""
    text = "\n".join(c.source for c in notebook.cells if c.cell_type == "markdown")
    text = re.sub(r"^(```|~~~).*?^\1", "", text, flags=re.S | re.M)
    found = re.findall(r"^#{1,6} .+$", text, re.M)
    return nbformat.v4.new_notebook(cells=[nbformat.v4.new_markdown_cell("\n\n".join(found))])


def fresh(path: Path, timeout: int) -> nbformat.NotebookNode:
    """The notebook run in a fresh kernel, with its widgets and their state."""
    notebook = canonical(nbformat.read(path, as_version=4))
    run(notebook, path, timeout, widgets=True)
    return notebook


#: Tags that say what stands on a slide: nothing runs otherwise for them.
MARKS = ("slide", "slide-code")
#: Where runs are kept, and what decides them beside the notebook's cells.
RUNS = ROOT / "build" / "runs"
DECIDES = ("src/everybyte/**/*", "labs/records/**/*", "labs/*.py", "conftest.py", "tools/notebooks.py")
VERSIONS = (
    "anywidget", "ipykernel", "ipywidgets", "matplotlib", "nbclient", "nbformat", "numpy", "sympy", "torch", "transformers",
)  # fmt: skip


@cache
def code(root: Path = ROOT) -> str:
    """SHA-256 of the book's code and records, and of the versions that it runs with."""
    found = hashlib.sha256(sys.version.encode())
    for name in VERSIONS:
        try:
            found.update(f"{name} {version(name)}\n".encode())
        except PackageNotFoundError:
            found.update(f"{name} none\n".encode())
    paths = {path for pattern in DECIDES for path in root.glob(pattern) if "__pycache__" not in path.parts}
    for path in sorted(path for path in paths if path.is_file()):
        found.update(f"{path.relative_to(root).as_posix()} {path.stat().st_size}\n".encode() + path.read_bytes())
    return found.hexdigest()


def kept(path: Path, timeout: int, anew: bool = False, runs: Path = RUNS) -> nbformat.NotebookNode:
    """The notebook as `fresh` runs it: read where it was run with the same cells, code and versions, else run and kept."""
    now = canonical(nbformat.read(path, as_version=4)).cells
    tags = [cell.metadata.get("tags", []) for cell in now]
    cells = [(c.cell_type, c.source, [t for t in given if t not in MARKS]) for c, given in zip(now, tags, strict=True)]
    key = hashlib.sha256(json.dumps([code(), cells]).encode()).hexdigest()[:32]
    file = runs / f"{path.stem}-{key}.ipynb"
    if file.is_file() and not anew:
        notebook = nbformat.read(file, as_version=4)
        for cell, given in zip(notebook.cells, tags, strict=True):
            cell.metadata["tags"] = given
        return notebook
    notebook = fresh(path, timeout)
    runs.mkdir(parents=True, exist_ok=True)
    for older in runs.glob(f"{path.stem}-{'?' * 32}.ipynb"):
        older.unlink()
    part = file.with_suffix(".part")
    nbformat.write(notebook, part)
    os.replace(part, file)  # whole, or not there
    return notebook


def written(only: list[str] = ()) -> list[Entry]:
    """The written chapters and labs in reading order; ValueError where `only` names another."""
    entries = [e for e in contents((ROOT / "README.md").read_text(encoding="utf-8")) if e.path]
    if unknown := set(only) - {e.slug for e in entries}:
        raise ValueError(f"--only: no chapter {', '.join(unknown)}; allowed: {', '.join(e.slug for e in entries)}")
    return entries


def each(make: Callable[[Entry], None], entries: list[Entry], jobs: int) -> None:
    """Make the page of each entry, `jobs` at once; kernels start with the book's imports done."""
    warm.begin()
    warm.kernels()
    with ThreadPoolExecutor(jobs) as pool:
        list(tqdm(pool.map(make, entries), total=len(entries), unit="notebook", disable=None))


def bring_linked(source: Path) -> None:
    """Copy each file of the repository that a page links: text as a page outside the navigation, else to download."""
    waiting = [p for kind in ("md", "ipynb") for p in source.rglob(f"*.{kind}")]
    while waiting:
        page = waiting.pop()
        for target in re.findall(r"\]\(([^()#\s:]+)", page.read_text(encoding="utf-8")):
            place = (page.parent / target).resolve()
            if not place.is_relative_to(source.resolve()) or place.exists():
                continue
            path = ROOT / place.relative_to(source.resolve())
            if path.is_file():
                place.parent.mkdir(parents=True, exist_ok=True)
                if path.suffix == ".md":
                    place.write_text("---\norphan: true\n---\n\n" + path.read_text(encoding="utf-8"), encoding="utf-8")
                    waiting.append(place)
                else:
                    shutil.copy(path, place)


def write_sources(source: Path, only: list[str], jobs: int, timeout: int, anew: bool = False) -> list[str]:
    """Lay the book out as Sphinx reads it, at the same places as in the repository. The titles of its parts, in order."""
    import pages

    entries = written(only)
    pictures = source / "extra" / "pictures"
    for pattern in BESIDE:
        for path in ROOT.glob(pattern):
            place = source / path.relative_to(ROOT)
            place.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(path, place)

    def page(entry):
        path = ROOT / entry.path
        if only and entry.slug not in only:
            notebook = headings(nbformat.read(path, as_version=4))
        else:
            notebook = live(kept(path, timeout, anew), path.stem, pictures)
        if entry.slug in FITTING:
            notebook.cells.append(nbformat.v4.new_markdown_cell(f"{FITS}\n\n{DIED}"))
        place = source / entry.path
        place.parent.mkdir(exist_ok=True)
        nbformat.write(notebook, place)

    each(page, entries, jobs)
    reference = pages.pages({e.path for e in entries})
    for name, text in reference.items():
        (source / name).write_text(text, encoding="utf-8")
    parts = groupby(entries, lambda e: e.part)
    trees = [(part or "Start", [Path(e.path).with_suffix("") for e in group]) for part, group in parts]
    others = (p for folder in ("notebooks", "labs") for p in sorted((source / folder).glob("*.md")))
    more = [p.relative_to(source).with_suffix("") for p in others]
    trees.append(("Reference", [Path("about"), *(Path(name).with_suffix("") for name in reference)]))
    trees.append(("In the room, and elsewhere", more))
    trees = [(caption, paths) for caption, paths in trees if paths]
    listed = "".join(
        f"\n```{{toctree}}\n:hidden:\n:caption: {caption}\n\n" + "\n".join(p.as_posix() for p in paths) + "\n```\n"
        for caption, paths in trees
    )
    bring_linked(source)
    for path in (p for kind in ("md", "ipynb") for p in source.rglob(f"*.{kind}")):
        text = path.read_text(encoding="utf-8")  # the README is a page of its own here
        path.write_text(text.replace("](../README.md", "](../about.md"), encoding="utf-8")
    (source / "README.md").rename(source / "about.md")
    (source / "extra" / evidence.WORKER).write_text(evidence.worker(), encoding="utf-8")
    for name, alone in (("interview", home.room()), ("config", configs.page()), ("evidence", evidence.page())):
        alone = face.dressed(alone, "_static", ALONE)
        (source / "extra" / f"{name}.html").write_text(alone, encoding="utf-8")
    (source / "index.md").write_text(home.page(entries, ROOT) + listed, encoding="utf-8")
    return [caption for caption, _ in trees]


def vendor(place: Path) -> None:
    """Copy the pages' programs from the wheels that carry them, and what they share with the book's cards."""
    place.mkdir(parents=True)
    (place / "keeping.js").write_text(files.text("everybyte.common", "keeping.js"), encoding="utf-8")
    for package, file, name in PROGRAMS:
        path = Path(distribution(package).locate_file(file))
        (place / name).parent.mkdir(exist_ok=True)
        # A map to sources that are not here would be asked for by a browser's tools.
        (place / name).write_text(
            re.sub(r"\n//# sourceMappingURL=\S+\s*$", "\n", path.read_text(encoding="utf-8")), encoding="utf-8"
        )
    for pattern in MATHJAX:
        for path in Path(
            distribution("sphinx-mathjax-offline").locate_file("sphinx-mathjax-offline/static/mathjax")
        ).glob(pattern):
            copy = place / "mathjax" / Path(pattern).parent / path.name
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(path, copy)


def sphinx(work: Path, builder: str = "html", parts: list[str] = ()) -> None:
    """Make `html` from `source` and `static`, in a folder; RuntimeError where Sphinx warns or fails, after it said why.

    parts: titles of the navigation's parts, in order, which have hues.
    """
    from sphinx.cmd.build import build_main

    vendor(work / "static" / "vendor")
    face.write(work / "static", parts)
    static = f"{WEB / 'static'},{work / 'static'}"
    settings = {f"{builder}_static_path": static, "html_extra_path": str(work / "source" / "extra")}
    command = ["-q", "-W", "--keep-going", "-b", builder, "-t", builder, "-c", str(WEB), "-d", str(work / "doctrees")]
    if builder == "html":
        settings["html_favicon"] = str(work / "static" / "sign.svg")
    command += [f"-D{name}={value}" for name, value in settings.items()]
    sys.path.insert(0, str(WEB))
    try:
        if build_main([*command, str(work / "source"), str(work / "html")]):
            raise RuntimeError("Sphinx had warnings, and each is an error: they stand above")
    finally:
        sys.path.remove(str(WEB))


class _Page(HTMLParser):
    """What a page asks for, what it links, and the places in it that can be linked."""

    def __init__(self, text):
        super().__init__(convert_charrefs=True)
        self.asks, self.links, self.places = [], [], set()
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        given = dict(attributes)
        self.places |= {given[k] for k in ("id", "name") if given.get(k)}
        if tag == "a" and given.get("href"):
            self.links.append(given["href"])
        elif (
            tag == "link"
            and given.get("href")
            and given.get("rel") in ("stylesheet", "preload", "icon", "shortcut icon")
        ):
            self.asks.append(given["href"])
        if tag != "a":
            self.asks += [given[k] for k in ("src", "srcset", "data", "poster") if given.get(k)]


def faults(site: Path) -> Iterator[str]:
    """Each link to a page or a place that is not there, and each thing that a page or a style would fetch from outside."""
    found = {path: _Page(path.read_text(encoding="utf-8")) for path in sorted(site.rglob("*.html"))}
    for path, page in found.items():
        here = path.relative_to(site)
        for target in [*page.asks, *page.links]:
            parts = urlsplit(target)
            if parts.scheme == "data" or (parts.scheme in ("https", "mailto") and target in page.links):
                continue
            if parts.scheme or parts.netloc:
                yield f"{here}: asks for {target}"
                continue
            goal = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            if not goal.is_file():
                yield f"{here}: {target} is not there"
            elif parts.fragment and goal in found and unquote(parts.fragment) not in found[goal].places:
                yield f"{here}: {target}: no such place in that page"
    for path in site.rglob("*.css"):
        for target in re.findall(
            r"url\(['\"]?((?:https?:)?//[^)'\"]+)|@import\s+['\"]((?:https?:)?//[^'\"]+)",
            path.read_text(encoding="utf-8"),
        ):
            yield f"{path.relative_to(site)}: asks for {''.join(target)}"


@contextmanager
def replaced(output: Path) -> Iterator[Path]:
    """A folder to work in. What stands in its `html` at the end, if it has no faults, takes the place of `output`.

    Raises:
        RuntimeError: where a link is broken; FileExistsError where `output` is not Sphinx's work.
    """
    if output.exists() and not (output / "objects.inv").exists():
        raise FileExistsError(f"{output} is there and holds something else: name another folder")
    work = output.with_name(output.name + ".part")
    shutil.rmtree(work, ignore_errors=True)
    (work / "source" / "extra" / "pictures").mkdir(parents=True)
    yield work
    if broken := list(faults(work / "html")):
        raise RuntimeError("the pages have faults:\n" + "\n".join(broken))
    shutil.rmtree(output, ignore_errors=True)
    os.replace(work / "html", output)
    shutil.rmtree(work)


def build(output: Path = SITE, only: list[str] = (), jobs: int = 2, anew: bool = False, timeout: int = 240) -> None:
    """Build the edition into `output`, which is replaced only when all went well. `anew`: run what is kept again.

    Raises:
        RuntimeError: where a cell fails, Sphinx warns, or a link is broken; OSError where the folder is another's.
    """
    with replaced(output) as work:
        parts = write_sources(work / "source", list(only), jobs, timeout, anew)
        sphinx(work, parts=parts)


def main(
    build: Callable, output: Path, about: str, arguments: list[str] | None = None, courses: Iterable[str] = ()
) -> int:
    """The command line of a builder, whose options are `build`'s parameters: 0 where all went well. courses: tracks that it can make a deck of."""
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, default=output, help=f"folder to build (default: build/{output.name})")
    parser.add_argument("--only", nargs="+", default=[], metavar="SLUG", help="run these notebooks alone")
    parser.add_argument("--jobs", type=int, default=2, help="notebooks run at once (default: 2)")
    parser.add_argument("--fresh", action="store_true", dest="anew", help="run notebooks that have not changed, too")
    if courses:
        about = f"a track's chapters as one deck, too: {', '.join(courses)}"
        parser.add_argument("--track", metavar="NAME", dest="course", default="", help=about)
    options = parser.parse_args(arguments)
    try:
        build(**vars(options) | {"output": options.output.resolve()})
    except PackageNotFoundError as missing:
        print(f"{missing.name} is not installed: python -m pip install -c constraints.txt -e .[site]", file=sys.stderr)
        return 1
    except (RuntimeError, ValueError, OSError) as error:
        print(error, file=sys.stderr)
        return 1
    print(f"open {options.output / 'index.html'}")
    return 0


if __name__ == "__main__":
    sys.exit(main(build, SITE, __doc__))
