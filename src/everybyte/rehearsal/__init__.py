"""Rehearsals: PyTorch's CUDA build and its allocator run on a GPU that does nothing, and their requests are recorded.

`libraries`, `stubs` and `native/` make stubs, libraries in place of NVIDIA's, in an environment of their own (`place`), or in one with other
versions (`versions`). On them
run any training script (`script`; `watch` and `history` record inside its process), the book's own step (`steps`) and the labs'
grid (`shelf`). Importing this loads no torch.
"""

from . import versions
from .place import install, set_up
from .result import Rehearsal, ScriptRehearsal
from .script import rehearse_script
from .shelf import Shelf, read, recheck, rehearse_grid, shipped
from .steps import rehearse
from .versions import environment

__all__ = [
    "Rehearsal", "ScriptRehearsal", "Shelf", "environment", "install", "read", "recheck", "rehearse", "rehearse_grid", "rehearse_script", "set_up", "shipped", "versions",
]  # fmt: skip
