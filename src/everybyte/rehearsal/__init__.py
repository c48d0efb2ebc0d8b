"""A GPU that does nothing: PyTorch's own CUDA code and allocator run on it, and what they ask for is seen, without a GPU.

The stubs (`libraries`, `stubs`, `native/`) stand in an environment of their own (`place`) where PyTorch's CUDA build looks for
NVIDIA's libraries. On them run a training script (`script`, watched from inside by `watch` and `history`), the book's own step
and the labs' grid (`steps`, `shelf`). Importing this loads no torch.
"""

from .place import set_up
from .result import Rehearsal, ScriptRehearsal
from .script import rehearse_script
from .shelf import Shelf, read, recheck, rehearse_grid, shipped
from .steps import rehearse

__all__ = [
    "Rehearsal", "ScriptRehearsal", "Shelf", "read", "recheck", "rehearse", "rehearse_grid", "rehearse_script", "set_up", "shipped",
]  # fmt: skip
