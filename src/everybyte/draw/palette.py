"""Each color has one meaning in the whole book, and is never alone: each part also has a hatch or shade, and a label.

The hues are Okabe and Ito's, distinct for any color vision (jfly.uni-koeln.de/color, 2008). They are in palette.toml.
"""

from dataclasses import dataclass

from ..common import checks, files

#: The background of all figures, and the inks on it, readable on light and dark pages.
CARD, INK, MUTED, GRID = "#FBFAF6", "#1B1B1B", "#55534E", "#DEDBD2"

_LOOKS = files.toml(__package__, "palette.toml")
#: The hues by name.
HUES: dict[str, str] = _LOOKS["hues"]
BLUE, VERMILION, GREEN, ORANGE, PINK, GRAY, YELLOW = HUES.values()


@dataclass(frozen=True)
class Part:
    """The look of one part of memory.

    Attributes:
        label: in words. color: sRGB, `#RRGGBB`. hatch: matplotlib's; the explorers draw the same.
    """

    label: str
    color: str
    hatch: str = ""


#: All parts of memory and groups of parameters, in the order of stacking.
PARTS: dict[str, Part] = {
    name: Part(label, HUES.get(color, color), *hatch) for name, (label, color, *hatch) in _LOOKS["parts"].items()
}
#: A pipeline's kind of action -> (the part with its look, its name).
ACTIONS: dict[str, tuple[str, str]] = {kind: tuple(look) for kind, look in _LOOKS["actions"].items()}


def part(name: str) -> Part:
    """The look of a part.

    Raises:
        ValueError: where there is none of that name.
    """
    checks.one_of("palette", "part", name, PARTS)
    return PARTS[name]


def luminance(color: str) -> float:
    """Relative luminance in [0, 1] of `#RRGGBB` (WCAG 2.2, definition of relative luminance)."""
    channels = [int(color[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    r, g, b = (c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels)
    return 0.2126 * r + 0.7152 * g + 0.0722 * b


def contrast(one: str, other: str) -> float:
    """Contrast ratio of two colors, from 1 to 21 (WCAG 2.2)."""
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


def ink_on(color: str) -> str:
    """The text color, dark or white, with more contrast on `color`."""
    return max(("#111111", "#FFFFFF"), key=lambda ink: contrast(ink, color))


#: Moment -> its label above a timeline.
ABOVE = "above"
