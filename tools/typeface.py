"""Cut the edition's typefaces to the characters that the book uses: `python tools/typeface.py FOLDER`, which has Adobe's TTF files.

Source Serif Pro for reading, Source Sans Pro for what is pointed at and counted. What is cut is committed in
tools/web/static/fonts, beside its license, the SIL Open Font License 1.1; nothing is fetched when the edition is built or read.
The license reserves the name Source for what Adobe made: what is cut has a name of its own.
"""

import sys
from pathlib import Path

FONTS = Path(__file__).resolve().parent / "web" / "static" / "fonts"
#: What is kept of each: ASCII, Latin-1, and the signs that stand in prose. Of others a system's face has to do.
CHARACTERS = "".join(map(chr, [*range(0x20, 0x7F), *range(0xA0, 0x100)])) + (
    "ČčĐđĞğŁłŃńŌōŒœŘřŚśŞşŠšŪūŸŹźŻżŽž–—‘’“”•…′″‰€™ℓ▶✓−√∞≈≠≤≥∂∑∏∆Ω←→↑↓⁰⁴⁵⁶⁷⁸⁹₀₁₂₃₄₅₆₇₈₉⅓⅔αβγδεθλμπρσφωΓΔΘΛΠΣΦ"
)
#: Of OpenType's features: pairs, ligatures, figures of one width and of their own.
FEATURES = ["kern", "liga", "ccmp", "tnum", "lnum", "pnum"]
#: File of the original -> file here, and the family and style that it says it is.
FACES = {
    "SourceSerifPro-Regular.ttf": ("serif.woff", "Every Byte Serif", "Regular"),
    "SourceSerifPro-It.ttf": ("serif-italic.woff", "Every Byte Serif", "Italic"),
    "SourceSerifPro-Bold.ttf": ("serif-bold.woff", "Every Byte Serif", "Bold"),
    "SourceSansPro-Regular.ttf": ("sans.woff", "Every Byte Sans", "Regular"),
    "SourceSansPro-Semibold.ttf": ("sans-bold.woff", "Every Byte Sans", "Bold"),
}
#: Of OpenType's names: who made it and under which license; all others are written anew.
KEPT = (0, 5, 7, 8, 9, 11, 13, 14)


def cut(source: Path, target: Path, family: str, style: str) -> None:
    """The face of `source` with `CHARACTERS` alone, for a browser, under a name of its own."""
    from fontTools.subset import Options, Subsetter
    from fontTools.ttLib import TTFont

    font = TTFont(source, recalcTimestamp=False)
    options = Options(layout_features=FEATURES, hinting=False, name_IDs=[*KEPT], notdef_outline=True)
    subsetter = Subsetter(options)
    subsetter.populate(text=CHARACTERS)
    subsetter.subset(font)
    full = f"{family} {style}"
    for number, name in {1: family, 2: style, 3: full, 4: full, 6: full.replace(" ", "")}.items():
        font["name"].setName(name, number, 3, 1, 0x409)
    font.flavor = "woff"
    font.save(target)


def main(arguments: list[str]) -> int:
    if len(arguments) != 1:
        print(__doc__, file=sys.stderr)
        return 2
    for name, (here, family, style) in FACES.items():
        found = sorted(Path(arguments[0]).rglob(name))
        if not found:
            print(f"no {name} under that folder", file=sys.stderr)
            return 1
        cut(found[0], FONTS / here, family, style)
        print(f"{here}: {(FONTS / here).stat().st_size:,} B")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
