"""To whom the blocks of a history belong: a module's parameters and buffers, gradients, an optimizer's states, what is saved for backward.

An owner is asked which tensors it has at a moment; a tensor's address and the number of allocations by then say which block it is.
"""

import importlib
import weakref
from bisect import bisect_right
from collections import Counter, deque
from collections.abc import Iterable, Iterator

from ..evidence import Memory
from .known import start
from .others import instead

#: Parts of memory, by the names of a budget's; of two owners of one block the first counts. What has none is `other`.
PARTS = ("parameters", "buffers", "gradients", "optimizer", "activations", "transient")
OTHER, WORKSPACE = "other", "workspace"
#: How many looks are kept; and how many workspaces cuBLAS has: for the thread of forward and for that of backward.
LOOKS, WORKSPACES = 256, 2


def blocks(tensor) -> Iterator[tuple[int, int]]:
    """(device, address) of what a tensor stands in; of a tensor that is made of others, theirs. Nothing where it is on no GPU."""
    if tensor.is_sparse:
        for one in (tensor._indices(), tensor._values()):
            yield from blocks(one)
    elif (parts := getattr(type(tensor), "__tensor_flatten__", None)) and not hasattr(tensor, "fake_mode"):
        for one in (getattr(tensor, name) for name in parts(tensor)[0]):
            if hasattr(one, "untyped_storage"):  # a DTensor's mesh is none
                yield from blocks(one)
    elif tensor.device.type == "cuda" and not hasattr(tensor, "fake_mode"):
        if address := start(tensor):
            yield tensor.device.index, address


def tensors(torch, value) -> Iterator:
    """The tensors in dictionaries and lists."""
    if torch.is_tensor(value):
        yield value
    elif isinstance(value, dict):
        for each in value.values():
            yield from tensors(torch, each)
    elif isinstance(value, list | tuple):
        for each in value:
            yield from tensors(torch, each)


class Owners:
    """The looks at who has which tensors. workspace: bytes of one of cuBLAS's workspaces."""

    def __init__(self, torch, workspace: int | None):
        self.torch, self.workspace = torch, workspace
        self.looks: deque = deque(maxlen=LOOKS)  # (device -> allocations by then, (device, address) -> part)
        self.optimizers: weakref.WeakSet = weakref.WeakSet()
        self.modules: weakref.WeakValueDictionary = weakref.WeakValueDictionary()  # by their `id`
        self._watch_modules()
        self._watch_checkpoints()
        self.inputs: list[weakref.ref] = []  # of checkpointed parts, which recompute from them

    def _watch_modules(self):
        """Note each module as it is made, or copied. To look for them would write to every object, which a forked worker then has alone."""
        for name in ("__init__", "__setstate__"):

            @instead(self.torch.nn.Module, name=name)
            def noted(original, module, *args, **kwargs):
                self.modules[id(module)] = module
                return original(module, *args, **kwargs)

    def _watch_checkpoints(self):
        """Note the inputs of what is checkpointed: no node of the graph saves them."""
        checkpoints = importlib.import_module("torch.utils.checkpoint")
        frame, older = getattr(checkpoints, "_CheckpointFrame", None), getattr(checkpoints, "_NoopSaveInputs", None)
        holder, name = (frame, "save_inputs") if hasattr(frame, "save_inputs") else (older, "setup_context")
        if holder is None:
            return
        original = getattr(holder, name)

        def noted(owner, *given):
            self.inputs += [weakref.ref(one) for one in tensors(self.torch, list(given))]
            return original(owner, *given)

        setattr(holder, name, staticmethod(noted) if name == "setup_context" else noted)

    def saved(self, counts: dict[int, int], found: Iterable) -> None:
        """Look at tensors that are saved for backward, as it begins."""
        kept = [one for reference in self.inputs if (one := reference()) is not None]
        self.inputs.clear()
        self._look(counts, ((one, "activations") for each in (found, kept) for one in each))

    def gradients(self, counts: dict[int, int], optimizer) -> None:
        """Look at the gradients of an optimizer that is about to step."""
        self.optimizers.add(optimizer)
        weights = (one for group in optimizer.param_groups for one in group["params"] if self.torch.is_tensor(one))
        self._look(counts, ((one.grad, "gradients") for one in weights if one.grad is not None))

    def all(self, counts: dict[int, int]) -> None:
        """Look at every module and optimizer that there is."""
        self._look(counts, self._owned())

    def _owned(self):
        for optimizer in list(self.optimizers):
            yield from ((one, "optimizer") for one in tensors(self.torch, list(optimizer.state.values())))
            yield from self._weights(weight for group in optimizer.param_groups for weight in group["params"])
        for one in list(self.modules.values()):
            yield from self._weights((vars(one).get("_parameters") or {}).values())
            buffers = (vars(one).get("_buffers") or {}).values()
            yield from ((buffer, "buffers") for buffer in buffers if self.torch.is_tensor(buffer))

    def _weights(self, found):
        for weight in found:
            if self.torch.is_tensor(weight):
                yield weight, "parameters"
                if weight.is_leaf and weight.grad is not None:
                    yield weight.grad, "gradients"

    def _look(self, counts, found):
        seen: dict[tuple[int, int], str] = {}
        for tensor, part in found:
            try:
                places = list(blocks(tensor))
            except (RuntimeError, AttributeError, TypeError):  # a tensor without a storage of its own
                continue
            for place in places:
                seen[place] = min(part, seen.get(place, part), key=PARTS.index)
        if seen:
            self.looks.append((counts, seen))

    def parts(self, device: int, memory: Memory, numbers: dict[int, int], passing: set[int]) -> dict[int, str]:
        """Number of an allocation -> the part of memory that it belongs to; those that have no owner are left out.

        Args:
            memory: the device's history. numbers: of the allocations that its events make. passing: of those that autograd's own functions
                made.
        """
        places: dict[int, list[int]] = {}
        for event, number in numbers.items():
            places.setdefault(memory.events[event][1], []).append(number)
        found: dict[int, str] = {}
        for counts, seen in self.looks:
            for (where, address), part in seen.items():
                of = places.get(address, []) if where == device else []
                if (last := bisect_right(of, counts.get(device, 0)) - 1) >= 0:
                    found[of[last]] = min(part, found.get(of[last], part), key=PARTS.index)
        standing = (event for _, event in memory.lived(len(memory.events)).values() if event is not None)
        alike = [
            numbers[e] for e in sorted(standing) if memory.events[e][2] == self.workspace and numbers[e] not in found
        ]
        return dict.fromkeys(passing, "transient") | found | dict.fromkeys(alike[:WORKSPACES], WORKSPACE)


def summed(held: Iterable[tuple[int, int]], parts: dict[int, str]) -> dict[str, int]:
    """Part -> bytes of some blocks, which sum to them; in the order of a budget. held: (bytes, number) of each."""
    found = Counter()
    for size, number in held:
        found[parts.get(number, OTHER)] += size
    return {name: found[name] for name in (*PARTS, WORKSPACE, OTHER) if found[name]}


def listed(parts: dict[int, str]) -> dict[str, list[int]]:
    """Part -> the numbers of its allocations."""
    found: dict[str, list[int]] = {}
    for number, part in parts.items():
        found.setdefault(part, []).append(number)
    return found
