"""PyTorch's caching allocator as a readable program, and what it makes of a step: reserved bytes, segments and blocks.

`settings` reads `PYTORCH_ALLOC_CONF`; `simulator` has the rules, on `blocks` and a `driver`; `replay` decides a real history again;
`playing` has a step's requests decided.
It needs no PyTorch.
"""

from .blocks import Block
from .driver import Driver
from .playing import STEPS, Request, Requests, Reserved, play
from .replay import ACTIONS, Replayed, before, replay
from .settings import Settings, settings
from .simulator import GIVES, TAKES, Allocator, OutOfMemory

__all__ = [
    "ACTIONS", "GIVES", "STEPS", "TAKES", "Allocator", "Block", "Driver", "OutOfMemory", "Replayed", "Request", "Requests", "Reserved",
    "Settings", "before", "play", "replay", "settings",
]  # fmt: skip
