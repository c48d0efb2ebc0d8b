"""Figures: matplotlib, one function a figure, colors with a fixed meaning, alternative text always."""

from .fields import bit_fields, bit_fields_alt
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
from .fronts import front_of, fronts, fronts_alt
from .labs import costs, costs_alt, learned, learned_alt, losses, losses_alt
from .memory import blocks, memory, memory_alt, segments, segments_alt
from .palette import PARTS, Part, contrast, ink_on, part
from .ratios import ratios, ratios_alt
from .rings import ring, ring_alt
from .schedules import schedule, schedule_alt
from .shapes import block_shapes, block_shapes_alt
from .showing import bundle, checked_alt, png, show
from .splits import splits, splits_alt
from .tiles import tiles, tiles_alt

__all__ = [
    "PARTS", "Part", "amount", "bit_fields", "bit_fields_alt", "block_shapes", "block_shapes_alt", "blocks", "bundle", "canvas", "checked_alt", "contrast", "costs", "costs_alt", "front_of", "fronts", "fronts_alt", "ink_on", "learned",
    "learned_alt", "lines", "lines_alt", "losses", "losses_alt", "memory", "memory_alt", "part", "png",
    "ranges", "ranges_alt", "ratios", "ratios_alt", "regions", "regions_alt", "ring", "ring_alt", "schedule", "schedule_alt", "segments", "segments_alt", "shares", "shares_alt", "show", "splits", "splits_alt", "stacked", "stacked_alt", "tiles", "tiles_alt", "timeline",
    "timeline_alt", "timelines", "timelines_alt",
]  # fmt: skip
