"""Figures: matplotlib, one function a figure, colors with a fixed meaning, alternative text always.

The palette is there at once. What draws is loaded when it is first used, and matplotlib with it: without it explorers still answer.
"""

from importlib import import_module
from typing import TYPE_CHECKING

from .palette import PARTS, Part, contrast, ink_on, part

if TYPE_CHECKING:  # what editors and type checkers see of the names that are fetched when they are first used
    from .addresses import blocks, memory, memory_alt, segments, segments_alt
    from .cutting import splits, splits_alt
    from .dots import ratios, ratios_alt
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
    from .frontier import front_of, fronts, fronts_alt
    from .labs import costs, costs_alt, learned, learned_alt, losses, losses_alt
    from .rings import ring, ring_alt
    from .schedules import schedule, schedule_alt
    from .shapes import block_shapes, block_shapes_alt
    from .showing import ON_SLIDE, SLIDES, bundle, checked_alt, png, projected, show
    from .squares import tiles, tiles_alt

_MODULES = (
    "addresses", "cutting", "dots", "fields", "figures", "frontier", "labs", "rings", "schedules", "shapes", "showing", "squares",
)  # fmt: skip
__all__ = [
    "ON_SLIDE", "PARTS", "SLIDES", "Part", "amount", "bit_fields", "bit_fields_alt", "block_shapes", "block_shapes_alt", "blocks", "bundle", "canvas", "checked_alt", "contrast", "costs", "costs_alt", "front_of", "fronts", "fronts_alt", "ink_on", "learned",
    "learned_alt", "lines", "lines_alt", "losses", "losses_alt", "memory", "memory_alt", "part", "png", "projected",
    "ranges", "ranges_alt", "ratios", "ratios_alt", "regions", "regions_alt", "ring", "ring_alt", "schedule", "schedule_alt", "segments", "segments_alt", "shares", "shares_alt", "show", "splits", "splits_alt", "stacked", "stacked_alt", "tiles", "tiles_alt", "timeline",
    "timeline_alt", "timelines", "timelines_alt",
]  # fmt: skip

if not TYPE_CHECKING:  # to a type checker a name that is not above is an error

    def __getattr__(name):
        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        found = {}
        for module in _MODULES:
            found |= vars(import_module(f".{module}", __name__))
        globals().update((each, found[each]) for each in __all__ if each in found)
        return globals()[name]


def __dir__():
    return __all__
