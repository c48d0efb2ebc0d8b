"""One meaning a color throughout the book, never a color alone: each part has its own hatch or shade, and a label.

The hues are Okabe and Ito's, chosen to be told apart with any color vision (jfly.uni-koeln.de/color, 2008).
What belongs to one pillar shares its hue: casts are weights in 16 bits, so they are the weights' blue, hatched.
"""

from dataclasses import dataclass

from .. import checks

#: The background of every figure, and the inks on it: readable on a light page and on a dark one.
CARD, INK, MUTED, GRID = "#FBFAF6", "#1B1B1B", "#55534E", "#DEDBD2"

BLUE, VERMILION, GREEN, ORANGE, PINK, GRAY = "#0072B2", "#D55E00", "#009E73", "#E69F00", "#CC79A7", "#B8B8B8"
YELLOW = "#F0E442"


@dataclass(frozen=True)
class Part:
    """How one part of memory looks.

    Attributes:
        label: in words. color: sRGB, `#RRGGBB`. hatch: matplotlib's; the explorers draw the same.
    """

    label: str
    color: str
    hatch: str = ""


#: Every part of memory and every group of parameters, in the order in which they are stacked.
PARTS: dict[str, Part] = {
    "parameters": Part("weights", BLUE),
    "casts": Part("16-bit casts of weights", BLUE, "//"),
    "buffers": Part("buffers", GRAY, ".."),
    "gradients": Part("gradients", VERMILION, "\\\\"),
    "master": Part("master weights", GREEN, "//"),
    "optimizer": Part("optimizer", GREEN),
    "momentum": Part("momentum", GREEN, ".."),
    "variance": Part("variance", GREEN, "++"),
    "cache": Part("keys and values", YELLOW),
    "activations": Part("activations", ORANGE),
    # Activations that are told from others: their hue, darker.
    "eager": Part("eager attention", "#7A4500"),
    "scores": Part("eager attention's squares", "#A86400", "--"),
    "loss": Part("loss", PINK, "xx"),
    "unsharded": Part("gathered weights", BLUE, ".."),
    "communication": Part("sent and received", GRAY, "++"),
    "other": Part("other", GRAY, "--"),
    "workspace": Part("workspace", GRAY, "||"),
    # What an allocator makes of requests: a hue of its own.
    "requested": Part("requested", "#4A3680", "\\\\"),
    "unsplit": Part("rounded up, not split", "#6A51A3", "xx"),
    "cached": Part("kept free", "#A598D0", "||"),
    # Groups of parameters: the weights' hue, by shade.
    "embeddings": Part("embeddings", "#00466E"),
    "attention": Part("attention", "#4A9CCB"),
    "mlp": Part("MLP", "#9CCBE7"),
    "mixture": Part("experts", "#9CCBE7", "//"),
    "norms": Part("norms", "#D3E8F4", ".."),
    "head": Part("head", "#0072B2", "\\\\"),
}

#: A pipeline's kind of action -> (the part whose look it has, what it is called).
ACTIONS = {
    "F": ("activations", "forward"), "B": ("gradients", "backward"), "I": ("gradients", "backward of inputs"),
    "W": ("optimizer", "backward of weights"),
}  # fmt: skip


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
    """The text color, dark or white, that reads better on `color`."""
    return max(("#111111", "#FFFFFF"), key=lambda ink: contrast(ink, color))
