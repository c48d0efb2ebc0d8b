"""What autograd does in backward: which node runs, and by which line of forward it was made.

A node's line is noted as it is made, where PyTorch's anomaly mode notes a stack: the mode is on in forward, without its search for
NaN, and off in backward. Source: PyTorch, `torch/csrc/autograd/function.h` (`Node`), `python_anomaly_mode.cpp`.
"""

import importlib
import sys
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

from . import history
from .others import instead

#: How many nodes are remembered at least: those of the last steps.
MOST = 100_000


class Nodes:
    """The nodes that ran in backward, by the number of allocations that each device had made before them.

    Args:
        counts: returns device -> how many allocations there have been.
    """

    def __init__(self, torch, counts: Callable[[], dict[int, int]]):
        self.torch, self.counts = torch, counts
        self.began: dict[int, list[int]] = {}
        self.named: dict[int, list[dict | None]] = {}
        traces: Any = importlib.import_module("torch.fx.traceback")

        @instead(traces)
        def format_stack(original):
            """The line of the script, and of a library, in place of a stack as text."""
            wanted = torch.is_anomaly_check_nan_enabled() or traces.has_preserved_node_meta()
            if wanted or torch._C._len_torch_dispatch_stack():
                return original()
            return [said or "" for said in history.here(sys._getframe(1))]

        self._note_lines(True)

    def _note_lines(self, on):
        """Switch anomaly mode, unless the script itself has switched on its search for NaN."""
        if not (self.torch.is_anomaly_enabled() and self.torch.is_anomaly_check_nan_enabled()):
            self.torch.set_anomaly_enabled(on, False)

    @contextmanager
    def running(self, nodes: Iterable) -> Iterator[None]:
        """A context in which backward goes through these nodes."""
        handles = [node.register_prehook(self._noting(node)) for node in nodes]
        del nodes
        self._note_lines(False)
        try:
            yield
        finally:
            self._note_lines(True)
            for handle in handles:
                handle.remove()
            self._begins(None)

    def _noting(self, node):
        name, said = node.name().rpartition("::")[2], node.metadata.get("traceback_") or ()
        line, inner = [one or None for one in said] if len(said) == 2 else (None, None)
        one = {"node": name, "forward": line, "forward_inner": inner}
        return lambda gradients: self._begins(one)

    def _begins(self, one):
        for device, count in self.counts().items():
            began, named = self.began.setdefault(device, []), self.named.setdefault(device, [])
            if began and began[-1] == count:  # the last one has taken nothing
                named[-1] = one
            else:
                began.append(count)
                named.append(one)
            if len(began) > 2 * MOST:
                del began[:MOST], named[:MOST]

    def of(self, device: int, allocation: int) -> dict | None:
        """The `node` that made an allocation of that number, and the line in `forward` that made the node; None outside of backward."""
        place = bisect_left(self.began.get(device, []), allocation) - 1
        return self.named[device][place] if place >= 0 else None


def graph(roots: Iterable) -> list:
    """All nodes of the graph below some tensors."""
    found = dict.fromkeys(root.grad_fn for root in roots if getattr(root, "grad_fn", None) is not None)
    waiting = list(found)
    while waiting:
        for node, _ in waiting.pop().next_functions:
            if node is not None and node not in found:
                found[node] = None
                waiting.append(node)
    return list(found)


#: What the report says where `saved` finds nothing.
UNTOLD = "of the parts at the peak, what is saved for backward stands among other: this PyTorch does not tell whether a hook has packed it"


def tells(torch) -> bool:
    """Whether PyTorch tells what a node has saved without calling hooks; 2.6 does not."""
    return hasattr(torch._C._autograd.SavedTensor, "data")


@cache
def _saves(kind):
    return [name for name in dir(kind) if name.startswith("_raw_saved_")]


def saved(torch, nodes: Iterable) -> Iterator:
    """The tensors that nodes have saved for backward. What a hook has packed, as checkpointing does, is not unpacked."""
    for node in nodes:
        kind: Any = type(node)
        for name in _saves(kind):
            try:
                found = getattr(node, name)
                for one in found if isinstance(found, list | tuple) else [found]:
                    if torch.is_tensor(tensor := one.data):
                        yield tensor
            except (RuntimeError, AttributeError):  # freed by an earlier backward, or written since
                continue
        yield from (value for value in getattr(node, "__dict__", {}).values() if torch.is_tensor(value))
