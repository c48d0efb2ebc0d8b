"""Figures in matplotlib: a function for each figure, colors with a fixed meaning, and alternative text for all.

The palette is loaded at once; figures, and matplotlib, at their first use, so explorers work without matplotlib.
"""

from importlib import import_module
from pkgutil import iter_modules
from typing import TYPE_CHECKING

from .palette import PARTS, Part, contrast, ink_on, part

if TYPE_CHECKING:  # what editors and type checkers see of the names that are fetched when they are first used
    from .addresses import blocks, memory, segments
    from .dots import batches, by_step, costs, front_of, fronts, learned, losses, off, ratios
    from .exchanged import alternation, exchange, mask, partners, rounds, swap, travel, turn_of
    from .figures import amount, canvas, lines, ranges, regions, shares, stacked, timeline, timelines
    from .flows import layer, layer_tensors, offloaded, paths, streams, waits
    from .gathers import gathered
    from .inside import saves, squares
    from .recomputing import recomputed
    from .schematics import bit_fields, chunks, patches, schedule, shared_scales, splits, tiles
    from .showing import ON_SLIDE, SLIDES, bundle, checked_alt, png, projected, show, svg
    from .spans import lives
    from .sums import chain, switches, waterfall

__all__ = [
    "ON_SLIDE", "PARTS", "Part", "SLIDES", "alternation", "amount", "batches", "bit_fields",
    "blocks", "bundle", "by_step", "canvas", "chain", "checked_alt", "chunks", "contrast", "costs", "exchange",
    "front_of", "fronts", "gathered", "ink_on", "layer", "layer_tensors", "learned", "lines", "lives", "losses",
    "mask", "memory", "off", "offloaded", "part", "partners", "patches", "paths", "png", "projected", "ranges",
    "ratios", "recomputed", "regions", "rounds", "saves", "schedule", "segments", "shared_scales", "shares",
    "show", "splits", "squares", "stacked", "streams", "svg", "swap", "switches", "tiles", "timeline", "timelines",
    "travel", "turn_of", "waits", "waterfall",
]  # fmt: skip

if not TYPE_CHECKING:  # to a type checker a name that is not above is an error

    def __getattr__(name):
        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        found = {}
        for module in iter_modules(__path__):
            found |= vars(import_module(f".{module.name}", __name__))
        globals().update((each, found[each]) for each in __all__ if each in found)
        return globals()[name]


def __dir__():
    return __all__
