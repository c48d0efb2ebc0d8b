"""The edition's face: its colors and each part's hue, out of the palette; its sign, out of a step's numbers; its styles.

`sphinx` of edition.py has them written beside the pages; tools/web/static has the styles that use them.
"""

import base64
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from typeface import FACES, FONTS

import everybyte as eb
from everybyte.draw.palette import CARD, GRID, INK, MUTED, contrast
from everybyte.draw.palette import HUES as PALETTE

#: The hue of each part: what stands before the first and after the last, the parts of the README's map in order, the labs.
PARTS = {
    "Start": "gray", "Part 1": "orange", "Part 2": "green", "Part 3": "blue", "Part 4": "vermilion", "Part 5": "pink",
    "The GPU labs": "yellow",
}  # fmt: skip
#: Contrast with the page: of a bar or a dot, and of a link's words (WCAG 2.2, 1.4.11 and 1.4.3).
GRAPHIC, WORDS = 3.0, 4.5
#: The sign's layers from below, each with the hue that its parts have in the book: parts of memory, hue.
LAYERS = (
    (("parameters", "casts", "buffers"), "blue"),
    (("gradients", "transient"), "vermilion"),
    (("optimizer",), "green"),
    (("activations",), "orange"),
    (("loss",), "pink"),
)
WIDE, HIGH = 112, 64


@dataclass(frozen=True)
class Ground:
    """What a page stands on: its background, what lies beside it, its ink, its quieter ink, its lines."""

    page: str
    beside: str
    ink: str
    quiet: str
    line: str


def mixed(one: str, other: str, share: float) -> str:
    """A color between two of `#RRGGBB`: `share` of the other."""
    pairs = ((int(one[i : i + 2], 16), int(other[i : i + 2], 16)) for i in (1, 3, 5))
    return "#" + "".join(f"{round(a + (b - a) * share):02x}" for a, b in pairs)


LIGHT = Ground(CARD, mixed(CARD, GRID, 0.25), INK, MUTED, GRID)
DARK = Ground(INK, mixed(INK, "#000000", 0.3), mixed(CARD, INK, 0.1), mixed(GRID, INK, 0.2), mixed(INK, GRID, 0.25))


def shade(hue: str, ground: Ground, least: float = GRAPHIC) -> str:
    """The hue, or it with as little of the ink as gives it `least` contrast with the page and with what is beside it."""
    tried = (mixed(hue, ground.ink, part / 100) for part in range(101))
    return next(c for c in tried if min(contrast(c, ground.page), contrast(c, ground.beside)) >= least).lower()


def part(name: str) -> str:
    """The key in `PARTS` of a part by its title in the README's map; of what is in none, "Start"."""
    return next((key for key in PARTS if name.startswith(key)), "Start")


def slug(name: str) -> str:
    """A part's name as styles and pages have it: `part-1`."""
    return part(name).lower().replace(" ", "-")


def marker(name: str) -> str:
    """A piece of HTML that gives a page the hue of its part, where no navigation says which that is."""
    return f'\n\n<div data-page-part="{slug(name)}" hidden></div>\n'


def _colors(ground):
    """The colors of a page: the palette's hues as they can be seen on it, and furo's own names."""
    named = {f"everybyte-hue-{name}": shade(hue, ground) for name, hue in PALETTE.items()}
    link = shade(PALETTE["blue"], ground, WORDS)
    theme = {
        "background-primary": ground.page, "background-secondary": ground.beside, "background-hover": mixed(ground.page, ground.line, 0.5),
        "background-border": ground.line, "foreground-primary": ground.ink, "foreground-secondary": ground.quiet,
        "foreground-muted": ground.quiet, "foreground-border": mixed(ground.quiet, ground.page, 0.3), "brand-primary": link,
        "brand-content": link, "brand-visited": link, "code-background": ground.beside, "code-foreground": ground.ink,
        "sidebar-caption-text": ground.quiet, "sidebar-link-text": ground.ink, "sidebar-link-text--top-level": ground.ink,
    }  # fmt: skip
    return "".join(f"--{name}: {c}; " for name, c in (named | {f"color-{k}": c for k, c in theme.items()}).items())


def style(parts: list[str] = ()) -> str:
    """The style that is made of the palette. parts: titles of the sidebar's parts, in its order."""
    light, dark = _colors(LIGHT), _colors(DARK)
    rules = [
        f"html body {{ {light}}}",
        f'@media not print {{ html body[data-theme="dark"] {{ {dark}}} }}',
        f'@media screen and (prefers-color-scheme: dark) {{ html body[data-theme]:not([data-theme="light"]) {{ {dark}}} }}',
        "@media print { html body { --color-background-primary: #ffffff; } }",
    ]
    for name, hue in PARTS.items():
        chosen = [f'[data-part="{slug(name)}"]', f'body:has([data-page-part="{slug(name)}"])']
        for place, title in enumerate(parts, 1):
            if part(title) == name:
                caption = f".sidebar-tree p.caption:nth-of-type({place})"
                chosen += [caption, f"{caption} + ul", f"body:has({caption} + ul > li.current)"]
        rules.append(f"{', '.join(chosen)} {{ --everybyte-part: var(--everybyte-hue-{hue}); }}")
    return "\n".join(rules) + "\n"


def fonts() -> str:
    """The typefaces as a style that has them in it: some browsers read no font from disk for a page from disk."""
    found = [
        f'@font-face {{ font-family: "{family}"; font-style: {"italic" if style == "Italic" else "normal"}; '
        f"font-weight: {700 if style == 'Bold' else 400}; font-display: swap; "
        f'src: url("data:font/woff;base64,{base64.b64encode((FONTS / name).read_bytes()).decode()}") format("woff"); }}'
        for name, family, style in FACES.values()
    ]
    serif, sans = '"Every Byte Serif", Charter, Georgia, serif', '"Every Byte Sans", system-ui, sans-serif'
    lab = "--jp-content-font-family: var(--everybyte-serif); --jp-ui-font-family: var(--everybyte-sans);"
    given = f"html body {{ --everybyte-serif: {serif}; --everybyte-sans: {sans}; {lab} }}"
    return "\n".join([f"/* {FONTS.name}/OFL.txt is their license. */", *found, given]) + "\n"


def write(place: Path, parts: list[str] = ()) -> None:
    """What the pages take: the typefaces, the style, and the sign as their icon."""
    place.mkdir(parents=True, exist_ok=True)
    for name, text in (("fonts.css", fonts()), ("face.css", style(parts)), ("sign.svg", sign())):
        (place / name).write_text(text, encoding="utf-8")


def dressed(page: str, static: str, more: str = "") -> str:
    """A page of its own, HTML, with the typefaces and the icon that lie in `static`. more: a style of its own."""
    links = f'<link rel="stylesheet" href="{static}/fonts.css"><link rel="icon" href="{static}/sign.svg">'
    return page.replace("</head>", f"{links}{f'<style>{more}</style>' if more else ''}</head>", 1)


def stairs() -> list[dict[str, int]]:
    """A step of GPT-2, the README's, as few stairs: bytes by part at rest, at each block's end in forward, at the peak, at each
    block's end in backward, in the optimizer's step, at rest.

    Raises:
        ValueError: where the step's peak is not the loss's: the sign would have no needle.
    """
    budget = eb.budget(eb.model("gpt2"), eb.Setup(batch=8, sequence=1024, precision="bf16-mixed"))
    lines, where = budget.timeline(), [(moment, owner.split(".")[1:2]) for _, moment, owner in budget.operations]
    live = [sum(parts) for parts in zip(*lines.values(), strict=True)]
    top = live.index(max(live))
    if "loss" not in where[top][0]:
        raise ValueError(f"sign: the step's peak is in {where[top][0]!r}; allowed: the loss")
    ends = [at for at, (one, following) in enumerate(pairwise([*where, ("", [])])) if one[1] and one != following]
    step = next(at for at, (moment, _) in enumerate(where) if moment == "optimizer step")
    chosen = [0, *(at for at in ends if at < top), top, *(at for at in ends if at > top), step, len(live) - 1]
    return [{name: line[at] for name, line in lines.items()} for at in chosen]


def sign() -> str:
    """The staircase as SVG: an image of its own, and a piece of a page. Its hues are the figures', on any page."""
    steps = stairs()
    most = max(sum(one.values()) for one in steps)
    wide, below, paths = WIDE / len(steps), [0] * len(steps), []
    for names, hue in LAYERS:
        above = [b + sum(one[name] for name in names if name in one) for b, one in zip(below, steps, strict=True)]
        out = "".join(f"V{HIGH * (1 - y / most):.4g}h{wide:.4g}" for y in above)
        back = "".join(f"V{HIGH * (1 - y / most):.4g}h-{wide:.4g}" for y in reversed(below))
        paths.append(f'<path fill="{PALETTE[hue]}" d="M0 {HIGH}{out}{back}z"/>')
        below = above
    place = f'xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDE} {HIGH}"'
    return f'<svg class="everybyte-sign" {place} aria-hidden="true">{"".join(paths)}</svg>'
