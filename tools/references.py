"""The papers and guides that the book leans on, `notebooks/references.md`, each with the chapters that name it and the formulas from it.

python tools/references.py
"""

import json
import re
import tomllib
from pathlib import Path

from everybyte.formulas import registry

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "notebooks" / "references.md"
SAID = tomllib.loads((ROOT / "tools/references.toml").read_text(encoding="utf-8"))
NUMBER = re.compile(r"(?:arXiv:|arxiv\.org/abs/)(\d{4}\.\d{5})")
TEXT = """# References

What the book leans on, written by `python tools/references.py` from the sources that its chapters and formulas name.
What the five articles say is checked in [chapter 47](47_claims.ipynb).

## To read beside it

| what | by | good for |
|---|---|---|
{guides}

## Papers

| who | title | chapters | formulas, the first of them |
|---|---|---|---|
{papers}
"""


def chapters() -> dict[str, list[str]]:
    """arXiv's number -> the chapters and labs whose text or shown results name it, by path from the page."""
    found: dict[str, list[str]] = {}
    for path in sorted([*(ROOT / "notebooks").glob("*.ipynb"), *(ROOT / "labs").glob("*.ipynb")]):
        cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
        name = path.name if path.parent.name == "notebooks" else f"../labs/{path.name}"
        for number in sorted({*NUMBER.findall(json.dumps(cells))}):
            found.setdefault(number, []).append(name)
    return found


def formulas() -> dict[str, dict[str, str]]:
    """arXiv's number -> the formulas whose source it is: name -> the chapter that derives it, by path from the page."""
    found: dict[str, dict[str, str]] = {}
    for name, formula in registry().items():
        for number in sorted({*NUMBER.findall(formula.source)}):
            found.setdefault(number, {})[name] = f"{formula.chapter}.ipynb"
    return found


def named() -> set[str]:
    """arXiv's numbers that the package, the chapters and the labs name."""
    patterns = "src/**/*.py", "src/**/*.toml", "notebooks/*", "labs/*.*"
    files = (path for pattern in patterns for path in ROOT.glob(pattern) if path != PAGE and path.suffix != ".jsonl")
    texts = (path.read_text(encoding="utf-8") for path in files if path.is_file())
    return {number for text in texts for number in NUMBER.findall(text)}


def page() -> str:
    """The whole page."""
    read, derived = chapters(), formulas()
    rows = []
    for number, (who, title) in SAID["papers"].items():
        paths = sorted({*read.get(number, ()), *derived.get(number, {}).values()})
        where = ", ".join(f"[{path.split('/')[-1][:2]}]({path})" for path in paths)
        names = ", ".join(f"`{name}`" for name in [*derived.get(number, {})][:3])
        rows.append(f"| {who} | [{title}](https://arxiv.org/abs/{number}) | {where} | {names} |")
    guides = [f"| [{title}]({address}) | {who} | {good} |" for address, (who, title, good) in SAID["guides"].items()]
    return TEXT.format(guides="\n".join(guides), papers="\n".join(rows))


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
