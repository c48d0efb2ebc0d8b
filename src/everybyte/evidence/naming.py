"""Name a snapshot's blocks: the line of the script that asked for each, and the part of a step's memory that it is.

Frames come in three kinds. Python's, of the script or of a library; those of C++, which `stacks="all"` records too; and none, where
no Python ran: in backward's thread, and before the recording.
"""

import re
from bisect import bisect_right
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from ..common import checks

Frames = list[dict]
#: Files of optimizers, and of what communicates; functions that make parameters.
_OPTIMIZERS = re.compile(r"(?:^|/)torch/optim/|bitsandbytes/optim|/torchao/optim|optimizer\.py$")
_COMMUNICATES = re.compile(r"(?:^|/)(?:torch/distributed|deepspeed)/")
_MAKES = re.compile(r"^(?:__init__|_apply|reset_parameters|from_pretrained|load_state_dict|to_empty)$")
#: Functions that move a whole module, by names that others have too: in these files.
_MOVES, _MOVERS = ("to", "cuda"), re.compile(r"torch/nn/modules/module\.py$|modeling_utils\.py$|/accelerate/")
#: A loss by its own name; a function of the script that is called so, where no module runs in it; and modules, which are no loss.
_LOSS = re.compile(r"^(?:(?:linear_|fixed_)?cross_entropy|nll_loss|log_softmax|\w*CrossEntropy\w*|ForCausalLMLoss)$")
_NAMED_LOSS, _MODULES = re.compile(r"[Ll]oss"), re.compile(r"(?:^|/)torch/nn/modules/(?!loss\.py)")
#: Files that are not the script's: installed packages and Python's own, whole paths or trimmed ones, and checkouts of these.
_PACKAGES = "torch|transformers|accelerate|peft|trl|diffusers|deepspeed|lightning|pytorch_lightning|bitsandbytes|triton|xformers|flash_attn"
_LIBRARY = re.compile(
    r"(?:^|/)(?:site|dist)-packages/|(?:^|/)lib(?:64)?/python3[.\d]*/|^python3[.\d]*/|/Python3\d*/[Ll]ib/|^<(?!ipython)|^\?\?|"
    rf"^(?:{_PACKAGES})/|/(?!torch/)(?:{_PACKAGES})/(?!examples/|tests/|scripts/|src/|(?:train|run_[a-z_]+|main)\.py$)|"
    r"(?:^|/)torch/(?:nn|optim|autograd|distributed|utils|_dynamo|_inductor|_functorch|_tensor)|"
    r"(?:^|/)everybyte/rehearsal/|/torchinductor_"
)
_PYTHON = re.compile(r"\.py$|^<ipython")
#: A library that asks PyTorch's allocator for scratch -> its function in C++. Source: PyTorch 2.13, `CublasHandlePool.cpp`, `Conv_v8.cpp`,
#: `ProcessGroupNCCL.cpp`.
_WORKSPACES = {
    "cuBLASLt's workspace": re.compile(r"[Cc][Uu][Dd][Aa]Blas(?:Lt|LT)Workspace|cublasLt|getCUDABlasLtWorkspace"),
    "cuBLAS's workspace": re.compile(r"[Cc]ublas\w*Workspace|getCurrentCUDABlasHandle|parseChosenWorkspaceSize|getChosenWorkspaceSize"),
    "cuDNN's workspace": re.compile(r"\bWorkspace::Workspace|cudnn\w*[Ww]orkspace|[Ww]orkspace\w*cudnn"),
    "NCCL's buffers": re.compile(r"ncclMemAlloc|ncclCommRegister|NCCLAllocator|nccl_alloc"),
}  # fmt: skip
_BACKWARD = re.compile(r"torch::autograd::(?:Engine|AccumulateGrad|generated::\w+Backward)")
#: Bytes of cuBLAS's workspace: from Hopper on, before, and as `CUBLAS_WORKSPACE_CONFIG=:4096:8` sets it. The first is a tensor's size too.
#: Source: PyTorch 2.13, `CublasHandlePool.cpp`.
HOPPER, BEFORE_HOPPER = 32 * 2**20, 2 * 4096 * 2**10 + 8 * 16 * 2**10
#: Functions whose products take that workspace.
_PRODUCTS = re.compile(
    r"^(?:linear|matmul|mm|bmm|addmm|baddbmm|einsum|forward|__matmul__|_call_impl|_dequant_linear_fallback)$"
)

#: Where a block without a Python frame was asked for.
NO_FRAME = "no line of Python: in backward"
RECORDED = "before the recording began"


class Made(NamedTuple):
    """What a block is: `where`, the line that asked for it, in words; its `part` of a step's memory; its `frames`, or None."""

    where: str
    part: str
    frames: Frames | None = None


def _file(frame):
    return str(frame.get("filename", "")).replace("\\", "/")


def library(file: str) -> bool:
    """Whether a file is of an installed package, of Python, or of a checkout of a package that is known."""
    return bool(_LIBRARY.search(file))


def script(frame: dict) -> bool:
    """Whether a frame is of the script itself: Python, and no library's."""
    return bool(_PYTHON.search(_file(frame))) and not library(_file(frame))


def _line(frame):
    return checks.printable(
        f"{_file(frame).rpartition('/')[2]}:{frame.get('line', 0)} {frame.get('name', '')}", checks.SHOWN
    )


def where(frames: Frames | None) -> str:
    """The innermost line of the script, as "file:line function"; else of a library; else `NO_FRAME`."""
    found = next(filter(script, frames or ()), None) or next(
        (f for f in frames or () if _PYTHON.search(_file(f))), None
    )
    return _line(found) if found else NO_FRAME


def part(frames: Frames | None) -> str:
    """A block's part of a step's memory, from its frames alone. Backward's blocks have no frames of Python, as it runs none."""
    if not frames:
        return "gradients"
    if workspace(frames):
        return "workspace"
    pythons = [frame for frame in frames if _PYTHON.search(_file(frame)) or not frame.get("filename")]
    if not pythons and any(_BACKWARD.search(str(frame.get("name", ""))) for frame in frames):
        return "gradients"
    called = [(_file(frame), str(frame.get("name", ""))) for frame in pythons]
    if any(_OPTIMIZERS.search(file) for file, _ in called):
        return "optimizer"
    if any(_MAKES.match(name) or name in _MOVES and _MOVERS.search(file) for file, name in called):
        return "parameters"
    if any(_COMMUNICATES.search(file) for file, _ in called):
        return "communication"
    return "loss" if _in_loss(pythons) else "activations"


def workspace(frames: Frames | None) -> str:
    """Whose scratch a block is, by the functions of C++ in its frames; "" where they name none."""
    for frame in frames or ():
        if _PYTHON.search(_file(frame)):
            return ""
        for name, pattern in _WORKSPACES.items():
            if pattern.search(str(frame.get("name", ""))):
                return name
    return ""


def _in_loss(frames):
    """Whether a loss made the block. The innermost frame decides, so a model that `compute_loss` calls is no loss."""
    for frame in frames:
        file, name = _file(frame), str(frame.get("name", ""))
        if _LOSS.match(name) or file.endswith("torch/nn/modules/loss.py"):
            return True
        if _MODULES.search(file):
            return False
        if script(frame):
            return bool(_NAMED_LOSS.search(name))
    return False


class Names:
    """The names of a history's blocks.

    Args:
        events: (action, address, bytes, stream). frames: of each, or None. start: {address: (bytes, frames)} of what lived before the first.
    """

    def __init__(self, events: Sequence, frames: Sequence[Frames | None], start: dict[int, tuple[int, Frames | None]]):
        self._events, self._frames = events, frames
        self._known: dict[tuple[int, ...], tuple[str, str, tuple | None, str]] = {}  # frames are shared among events
        self._freed = self._lives()
        outermost = Counter(place for f in frames if f and (place := self._of(f)[2]))
        self._main = max(outermost, key=lambda place: outermost[place], default=None)
        #: Events that the script's own thread made: the first of a backward ends what the one before it left.
        self.ours = [i for i, f in enumerate(frames) if f and events[i][0] == "alloc" and self._of(f)[2] == self._main]
        self.scratch = self._scratch()
        self.first = {address: self._standing(*of) for address, of in start.items()}

    def _of(self, frames):
        """(where, part, the outermost frame of Python, whose workspace) of frames."""
        key = tuple(map(id, frames))  # of another list of the same frames too
        if key not in self._known:
            last = next((f for f in reversed(frames) if _PYTHON.search(_file(f))), None)
            outer = (last.get("filename"), last.get("name")) if last else None
            self._known[key] = where(frames), part(frames), outer, workspace(frames)
        return self._known[key]

    def _named(self, frames):
        line, what, *_ = self._of(frames)
        return Made(line, what, frames)

    def _lives(self):
        """{number of the event that allocates: of the one that frees}."""
        found, live = {}, {}
        for number, (action, address, *_) in enumerate(self._events):
            if action == "alloc":
                live[address] = number
            elif action == "free_requested" and address in live:
                found[live.pop(address)] = number
        return found

    def _scratch(self):
        """Events that take cuBLAS's workspace, where no frame of C++ says so.

        Each thread of a process takes it once, in its first product, and keeps it. A product asks for its output first: so of two
        blocks of one call the later is the workspace.
        """
        found, seen, before = set(), set(), None
        for number, (action, _, size, stream) in enumerate(self._events):
            frames, called = self._frames[number], before
            if action in ("alloc", "free_requested"):
                before = (self._frames[number],) if action == "alloc" else None
            if action != "alloc" or size not in (HOPPER, BEFORE_HOPPER) or number in self._freed:
                continue
            thread = self._of(frames)[2] if frames else None, stream, size
            product = not frames or _PRODUCTS.match(str(frames[0].get("name", "")))
            second = size == BEFORE_HOPPER or called is not None and called[0] == frames
            if product and second and thread not in seen:
                seen.add(thread)
                found.add(number)
        return found

    def _standing(self, size, frames):
        if frames:
            return self._named(frames)
        return Made(RECORDED, "workspace" if size == BEFORE_HOPPER else "before")

    def of(self, number: int) -> Made:
        """The name of the block that an event allocates."""
        frames = self._frames[number]
        _, _, outer, named = self._of(frames) if frames else ("", "", None, "")
        if named or number in self.scratch:
            return Made(named or "cuBLAS's workspace", "workspace", frames)
        if frames and outer:
            return self._named(frames)
        if not self.ours:  # nobody's frames were recorded
            return Made("no frames were recorded", "other", frames)
        following = bisect_right(self.ours, number)
        called = f"{self._of(self._frames[self.ours[following - 1]])[0]}, in backward" if following else NO_FRAME
        stays = following < len(self.ours) and self.ours[following] < self._freed.get(number, len(self._events))
        return Made(called, "gradients" if stays else "transient", frames)
