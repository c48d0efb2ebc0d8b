"""The numbers of the five articles, section by section, and nothing else of them: `tests/catalog/numbers.json`.

    python tools/digest.py FOLDER

writes it from the articles' texts, `1-*.txt` to `5-*.txt` in FOLDER. The texts themselves are not part of this repository.
"""

import json
import re
import sys
from pathlib import Path

STORED = Path(__file__).resolve().parents[1] / "tests/catalog/numbers.json"
WORDS = {
    "zero": "0", "one": "1", "two": "2", "double": "2", "doubles": "2", "doubling": "2", "half": "2", "halves": "2", "halved": "2",
    "halving": "2", "quadratic": "2", "quadratically": "2", "three": "3", "triple": "3", "four": "4", "quad": "4", "five": "5",
}  # fmt: skip
_TOKEN = re.compile(rf"\d[\d,_]*(?:\.\d+)?|\b(?:{'|'.join(WORDS)})\b", re.IGNORECASE)


def plain(token: str) -> str:
    """A number as the digest writes it: words in digits, no commas."""
    return WORDS.get(token.lower(), token.replace(",", ""))


def digest(texts: dict[int, str], headings: dict[int, set[str]]) -> dict[str, dict[str, list[str]]]:
    """{article: {section: its numbers, each once, sorted}}; what stands before the first heading belongs to none."""
    found = {}
    for article, text in texts.items():
        sections, here = {}, None
        for line in text.splitlines():
            if line.strip() in headings[article]:
                here = sections.setdefault(line.strip(), set())
            elif here is not None:
                here |= {plain(token) for token in _TOKEN.findall(line)}
        found[str(article)] = {name: sorted(numbers) for name, numbers in sections.items()}
    return found


def read(folder: Path) -> dict[int, str]:
    """The articles' texts, by number."""
    return {int(path.name[0]): path.read_text(encoding="utf-8") for path in sorted(folder.glob("[1-5]-*.txt"))}


def main(folder):
    from everybyte import claims

    headings = {article: {c.section for c in claims().values() if c.article == article} for article in range(1, 6)}
    STORED.write_text(
        json.dumps(digest(read(Path(folder)), headings), indent=1, ensure_ascii=False) + "\n", encoding="utf-8"
    )


if __name__ == "__main__":
    main(sys.argv[1])
