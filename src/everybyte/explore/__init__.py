"""The explorers: one line each in a notebook. Controls around a picture that computes in the browser."""

from .attention import attention
from .block import block
from .controls import Choice, Slider, reset, shared, steps
from .explorer import Explorer
from .formats import formats
from .loss import loss
from .parameters import parameters
from .pictures import Lines, Ranges, Stack
from .states import states
from .step import step

__all__ = [
    "attention",
    "block",
    "formats",
    "loss",
    "Choice",
    "Explorer",
    "Lines",
    "Ranges",
    "Slider",
    "Stack",
    "parameters",
    "reset",
    "shared",
    "states",
    "step",
    "steps",
]
