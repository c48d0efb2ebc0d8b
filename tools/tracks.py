"""The workshop's tracks: their chapters in order, read off the guide's tables."""

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
GUIDE = "notebooks/workshop.md"


def tracks(root: Path = ROOT) -> dict[str, list[str]]:
    """{a track's name: the slugs of its chapters, each once}; a name is its heading's first words: `90-minutes`."""
    found = {}
    for section in re.split(r"^## ", (root / GUIDE).read_text(encoding="utf-8"), flags=re.M)[1:]:
        heading, _, text = section.partition("\n")
        rows = "\n".join(re.findall(r"^\| \d.*$", text, re.M))
        slugs = dict.fromkeys(re.findall(r"\]\((\w+)\.ipynb", rows))
        if slugs and "minutes | chapter" in text:
            name = re.sub(r"\W+", "-", heading.partition(":")[0].strip().lower())
            found[name] = list(slugs)
    return found


def track(name: str, root: Path = ROOT) -> list[str]:
    """The chapters of a track.

    Raises:
        ValueError: where there is none of that name.
    """
    known = tracks(root)
    if name not in known:
        raise ValueError(f"--track: {name!r}; allowed: {', '.join(known)}")
    return known[name]
