"""What grows from step to step, which line made it, and who holds it."""

import gc
import sys
import types
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from .. import units
from ..common import checks
from ..common.tables import Shown, Table

#: Files whose lines are nobody's script.
_LIBRARIES = ("/site-packages/", "/dist-packages/", "/everybyte/answers/leaking.py", "/lib/python3", "<frozen")
#: How many tensors of a line are looked at, the last first, until one is held by somebody.
_LOOKED = 8
#: How far from a tensor a name is looked for; how many names are shown; how often all that Python knows is gone through for them, which
#: in a large process takes a tenth of a second each time.
_FAR, _SHOWN, _ASKED = 4, 3, 40
#: What may hold a tensor for somebody else.
_HOLDING = list | tuple | dict | set | BaseException | types.TracebackType
_HOLDING |= types.CellType | types.FunctionType | types.MethodType


@dataclass(frozen=True)
class Grown:
    """What one line makes in each step, and does not lose: `where`, file:line function; `tensors` and `bytes` a step; `holders`, in
    words, who refers to them, the nearest first, as far as Python knows; `graph`: whether it is autograd's graph alone."""

    where: str
    tensors: float
    bytes: float
    holders: tuple[str, ...]
    graph: bool


@dataclass(frozen=True, eq=False, repr=False)
class Leaks(Shown):
    """What grew.

    Attributes:
        steps: how many were looked at. alive: bytes of tensors that they made and that lived, after each. rows: the most bytes first.
    """

    steps: int
    alive: list[int]
    rows: list[Grown]

    @property
    def leaking(self) -> bool:
        """Whether something grows with every step."""
        return bool(self.rows)

    @property
    def bytes(self) -> float:
        """Bytes that a step leaves behind."""
        return sum(row.bytes for row in self.rows)

    def table(self) -> Table:
        """Line by line."""
        nobody = "autograd's graph, as Python knows of nobody"
        cells = [
            [row.where, f"{row.tensors:g}", units.text(row.bytes), "; ".join(row.holders) or nobody]
            for row in self.rows
        ]
        said = f"{units.text(self.bytes)} a step stay behind" if cells else "nothing grows"
        return Table(["made in", "tensors a step", "bytes a step", "held by"], cells, f"{self.steps} steps: {said}")


def leaks(step: Callable[[], object], steps: int = 4, warm_up: int = 2) -> Leaks:
    """Run a step some times, and find what each leaves behind. On any device.

    What a step replaces, such as the gradients or the last loss, does not count: only what is there in a step's name two steps
    later. What it takes at first and keeps, such as an optimizer's states, belongs to the `warm_up`.

    Args:
        step: takes no arguments; what it returns is dropped. steps: how many are looked at. warm_up: how many run before.

    Raises:
        ValueError: for fewer than three steps, which tell no growth from a tensor that is replaced.
    """
    if not callable(step):
        allowed = "a function without arguments that runs a step"
        raise ValueError(f"leaks.step: {step!r} cannot be called; allowed: {allowed}")
    checks.whole("leaks", "steps", steps, 3, 10_000)
    checks.whole("leaks", "warm_up", warm_up, 0, 10_000)
    for _ in range(warm_up):
        step()
    follower, alive = _Follower(), []
    for number in range(steps):
        follower.step = number
        with follower:
            step()
        gc.collect()
        alive.append(sum(size for _, size, _, _ in follower.living()))
    old = [found for found in follower.living() if found[3] < steps - 2]
    return Leaks(steps, alive, _rows(old, steps - 2))


@dataclass(frozen=True)
class Crowd:
    """Tensors of one shape and type: how many, their bytes, and who holds one of them, the nearest first."""

    shape: tuple[int, ...]
    dtype: str
    tensors: int
    bytes: int
    holders: tuple[str, ...]


def crowds(least: int, device: torch.device | str) -> list[Crowd]:
    """Tensors of which there are at least so many of one shape and type on a device, parameters aside: the most bytes first.

    What autograd's graph alone holds, Python does not know.
    """
    wanted, found = torch.device(device).type, {}
    for thing in filter(_is_tensor, gc.get_objects()):
        if not isinstance(thing, torch.nn.Parameter) and thing.device.type == wanted:
            found.setdefault((tuple(thing.shape), str(thing.dtype)), {})[_storage(thing)._cdata] = thing
    large = {key: list(things.values()) for key, things in found.items() if len(things) >= max(2, least)}
    rows, ours = [], [found, large, *found.values(), *large.values()]
    for (shape, dtype), things in large.items():
        size = sum(_storage(thing).nbytes() for thing in things)
        rows.append(Crowd(shape, dtype.removeprefix("torch."), len(things), size, _holders(things[-1], ours)))
    return sorted(rows, key=lambda row: -row.bytes)


def _rows(old, count):
    """By the line that made it; a line counts where more than one of its steps left something."""
    lines: dict[str, list] = {}
    for storage, size, where, number in old:
        lines.setdefault(where, []).append((storage, size, number))
    tensors = _tensors({storage._cdata for storage, *_ in old})
    rows = []
    for where, found in lines.items():
        if len({number for *_, number in found}) < min(2, count):
            continue
        seen = [tensor for storage, *_ in found for tensor in tensors.get(storage._cdata, ())]
        last = seen[: -_LOOKED - 1 : -1]
        ours = [old, found, seen, last, tensors]  # some of a graph's tensors Python knows, and nobody of theirs
        held = (names for tensor in last if (names := _holders(tensor, ours)))
        holders = next(held, ())
        rows.append(Grown(where, len(found) / count, sum(size for _, size, _ in found) / count, holders, not holders))
    return sorted(rows, key=lambda row: -row.bytes)


class _Follower(TorchDispatchMode):
    """Follows the storages that operations make."""

    def __init__(self):
        super().__init__()
        self.step = 0
        self._made: dict[int, tuple] = {}

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        given = {_storage(leaf)._cdata for leaf in tree_leaves((args, kwargs)) if _is_tensor(leaf)}
        for leaf in tree_leaves(out):
            if _is_tensor(leaf) and _storage(leaf)._cdata not in given:  # a view makes nothing
                self._follow(_storage(leaf))
        return out

    def _follow(self, storage):
        known = self._made.get(storage._cdata)
        if known is None or known[0]() is None:
            self._made[storage._cdata] = weakref.ref(storage), storage.nbytes(), _line(), self.step

    def living(self) -> list[tuple]:
        """(storage, bytes, line, step) of each that lives."""
        found = ((ref(), size, where, number) for ref, size, where, number in self._made.values())
        return [one for one in found if one[0] is not None]


def _is_tensor(thing):
    return issubclass(type(thing), torch.Tensor) and thing.layout is torch.strided


def _storage(tensor):
    return tensor.untyped_storage()


def _line():
    """The innermost line of the script's own."""
    frame = sys._getframe(2)
    while frame is not None:
        file = frame.f_code.co_filename
        if not any(part in file for part in _LIBRARIES):
            name = "a cell" if "ipykernel" in file else file.rsplit("/", 1)[-1]
            return f"{name}:{frame.f_lineno} {frame.f_code.co_name}"
        frame = frame.f_back
    return "backward, or a library"


def _tensors(wanted):
    """Storage -> the tensors that Python knows of it."""
    found: dict[int, list] = {}
    for thing in filter(_is_tensor, gc.get_objects()):
        if not thing.is_meta and (address := _storage(thing)._cdata) in wanted:
            found.setdefault(address, []).append(thing)
    return found


def _holders(tensor, ours) -> tuple[str, ...]:
    """Who refers to a tensor, in words, the nearest first: so many as are shown."""
    found: dict[str, None] = {}
    for name in _names(tensor, ours):
        found[name] = None
        if len(found) == _SHOWN:
            break
    return tuple(found)


def _names(tensor, ours) -> Iterator[str]:
    """Up to names that somebody gave; where nobody did, what holds it."""
    passed = {id(tensor), *map(id, ours), *(id(v) for known in ours if isinstance(known, dict) for v in known.values())}
    passed |= {id(one) for known in ours if isinstance(known, list) for one in known}
    near: list[tuple[object, str]] = [(tensor, "")]
    left, first, named = _ASKED, "", False
    for _ in range(_FAR):
        following = []
        passed |= {id(near), *map(id, near)}
        for thing, path in near[:left]:
            left -= 1
            for holder in gc.get_referrers(thing):
                own = isinstance(holder, types.FrameType) and holder.f_code.co_filename == __file__
                if own or id(holder) in passed:
                    continue
                passed.add(id(holder))
                if name := _name(holder, thing):
                    named = True
                    yield f"{name}{path}"
                elif isinstance(holder, _HOLDING) or hasattr(holder, "__dict__"):
                    following.append((holder, f", in a {type(holder).__name__}{path}"))
                    first = first or f"a {type(holder).__name__} without a name"
        near = following
    if first and not named:
        yield first


def _name(holder, thing):
    """What a holder calls what it holds, where it has a name for it."""
    if isinstance(holder, types.FrameType):
        names = [name for name, value in holder.f_locals.items() if value is thing]
        return f"{names[0]!r}, in {holder.f_code.co_name}'s frame" if names else f"the frame of {holder.f_code.co_name}"
    if isinstance(holder, dict):
        names = [name for name, value in holder.items() if value is thing and isinstance(name, str)]
        if names and "__name__" in holder and "__builtins__" in holder:
            return f"the name {names[0]!r} of {holder['__name__']}"
    if isinstance(holder, types.FunctionType):
        return f"the function {holder.__qualname__!r}"
    return None
