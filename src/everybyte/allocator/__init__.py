"""PyTorch's caching allocator as a readable program, and its result for a step: reserved bytes, segments and blocks.

`settings` reads `PYTORCH_ALLOC_CONF`; `simulator` has the rules, on `blocks` and a `driver`; `replay` repeats a real history;
`playing` plays a step's requests; `epochs` those of steps of many shapes, which `shaped` puts together.
It needs no PyTorch.
"""

from .blocks import Block
from .driver import Driver
from .epochs import Epoch, play_epoch
from .playing import STEPS, Request, Requests, Reserved, play
from .replay import ACTIONS, Replayed, before, replay
from .settings import Settings, settings
from .shaped import Run, Shaped, closed, composed, named, parted
from .simulator import GIVES, TAKES, Allocator, OutOfMemory

__all__ = [
    "ACTIONS", "GIVES", "STEPS", "TAKES", "Allocator", "Block", "Driver", "Epoch", "OutOfMemory", "Replayed", "Request", "Requests", "Reserved",
    "Run", "Settings", "Shaped", "before", "closed", "composed", "named", "parted", "play", "play_epoch", "replay", "settings",
]  # fmt: skip
