"""Figures: matplotlib, one function a figure, colors with a fixed meaning, alternative text always."""

from .figures import (
    amount,
    canvas,
    lines,
    lines_alt,
    ranges,
    ranges_alt,
    regions,
    regions_alt,
    shares,
    shares_alt,
    stacked,
    stacked_alt,
    timeline,
    timeline_alt,
    timelines,
    timelines_alt,
)
from .palette import PARTS, Part, contrast, ink_on, part
from .showing import bundle, checked_alt, png, show

__all__ = [
    "PARTS", "Part", "amount", "bundle", "canvas", "checked_alt", "contrast", "ink_on", "lines", "lines_alt", "part", "png",
    "ranges", "ranges_alt", "regions", "regions_alt", "shares", "shares_alt", "show", "stacked", "stacked_alt", "timeline",
    "timeline_alt", "timelines", "timelines_alt",
]  # fmt: skip
