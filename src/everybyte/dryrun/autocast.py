"""CUDA's autocast on tensors without data, whoever enters it: the trainer, a module in its forward, recomputation, a function's backward.

PyTorch's own `torch.autocast` keeps the flags, the nesting and the life of the cache; a build without CUDA only casts nothing.
Sources: `aten/src/ATen/autocast_mode.h` (the lists, here in `autocast.toml`) and `autocast_mode.cpp` (`cached_cast`, the cache).
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor
from torch.amp import autocast_mode
from torch.nn import functional as F
from torch.utils._pytree import tree_leaves, tree_map

from ..common import files
from .cuda import BACKWARD, Mode, patched


def _functions(names: str) -> set:
    """All that PyTorch offers under these names, as functions and as methods."""
    owners = (torch, Tensor, F, torch.linalg, torch.special)
    return {getattr(owner, name) for name in names.split() for owner in owners if hasattr(owner, name)}


#: Data types of 16 bits.
NARROW = torch.float16, torch.bfloat16
_LISTS = files.toml(__package__, "autocast.toml")
#: Functions that autocast runs in 16 bits; in fp32; with an fp32 result; in fp32 where one of their tensors is.
LOWER, FP32, FP32_RESULT, WIDEST = (_functions(_LISTS[name]) for name in ("lower", "fp32", "fp32_result", "widest"))


class Autocast(Mode):
    """While PyTorch's flag for "cuda" is on: casts by the lists, each weight's cast kept in `cache` until PyTorch clears its own."""

    def __init__(self):
        super().__init__()
        self.cache: dict[int, tuple[Tensor, Tensor]] = {}

    @property
    def dtype(self) -> torch.dtype:
        return torch.get_autocast_dtype("cuda")

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if not torch.is_autocast_enabled("cuda"):
            return self.run(func, args, kwargs) if func in BACKWARD else func(*args, **kwargs)
        if func is F.cross_entropy:
            return self._cross_entropy(*args, **kwargs)
        if func in LOWER:
            args, kwargs = self._cast(args, kwargs, self._lower)
        elif func in FP32:
            args, kwargs = self._cast(args, kwargs, self._upper)
        elif func in FP32_RESULT and kwargs.get("dtype") is None:
            if any(_is(a, *NARROW) for a in args):
                kwargs = {**kwargs, "dtype": torch.float32}
        elif func in WIDEST and any(_is(a, torch.float32) for a in tree_leaves((args, kwargs))):
            args, kwargs = self._cast(args, kwargs, self._upper)
        return self.run(func, args, kwargs)

    def _cast(self, args, kwargs, cast: Callable):
        """The last argument first: `cached_cast(...)` of each is an argument of one call, which GCC's code evaluates from the right."""

        def inside(value):
            return tree_map(cast, value) if isinstance(value, list | tuple | dict) else cast(value)

        named = {name: inside(kwargs[name]) for name in reversed(kwargs)}
        return tuple(reversed([inside(value) for value in reversed(args)])), named

    def _lower(self, value):
        if not (isinstance(value, Tensor) and value.is_floating_point()) or value.dtype in (self.dtype, torch.float64):
            return value
        leaf = value.is_leaf and value.requires_grad and not value._is_view()
        if not (leaf and _is(value, torch.float32) and torch.is_autocast_cache_enabled()):
            return value.to(self.dtype)
        if id(value) not in self.cache:
            self.cache[id(value)] = value, value.to(self.dtype)
        return self.cache[id(value)][1]

    def _upper(self, value):
        return value.float() if _is(value, *NARROW) else value

    def _cross_entropy(self, input, target, *args, label_smoothing=0.0, **kwargs):
        if label_smoothing:
            raise ValueError(
                f"cross_entropy.label_smoothing: {label_smoothing} is not followed under autocast; allowed: 0.0"
            )
        if target.is_floating_point():
            raise ValueError(
                "cross_entropy.target: probabilities are not followed under autocast; allowed: class indices"
            )
        # It names log_softmax's data type, its input's, so autocast leaves that alone; nll_loss is on the fp32 list.
        log_probabilities = torch.log_softmax(input, 1, dtype=input.dtype)
        return F.nll_loss(self._upper(log_probabilities), target, *args, **kwargs)


@contextmanager
def autocast_as_on_cuda() -> Iterator[Autocast]:
    """Within it `torch.autocast("cuda")` works on tensors without data, and device "meta" is "cuda" to all that asks about autocast."""
    mode = Autocast()
    clear = torch.clear_autocast_cache

    def cleared():
        mode.cache.clear()
        clear()

    # What says of a device, by its type, how autocast stands, or sets it.
    asked = "is_autocast_enabled set_autocast_enabled get_autocast_dtype set_autocast_dtype".split()
    named = [(torch, name) for name in asked] + [
        (owner, "is_autocast_available") for owner in (torch.amp, autocast_mode)
    ]
    instead = [(owner, name, _of_cuda(getattr(owner, name))) for owner, name in named]
    instead += [
        (torch, "clear_autocast_cache", cleared),
        (torch.cuda, "is_bf16_supported", lambda *_, **__: True),
        (torch.cuda.amp.common, "amp_definitely_not_available", lambda: False),
    ]
    with patched(*instead), mode:
        yield mode


def _of_cuda(function):
    def ask(*args, **kwargs):
        args = ["cuda" if value == "meta" else value for value in args]
        return function(*args, **{name: "cuda" if value == "meta" else value for name, value in kwargs.items()})

    return ask


def _is(value, *types: torch.dtype) -> bool:
    return isinstance(value, Tensor) and value.dtype in types
