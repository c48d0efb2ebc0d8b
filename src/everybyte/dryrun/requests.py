"""A dry run's allocations and frees as the requests of a real process: the weights, a first step, steady steps."""

from ..allocator import Request, Requests
from .tracker import Change

#: Matrix products: the first one of a thread requests cuBLAS's workspace.
PRODUCTS = {"addmm", "_addmm_activation", "mm", "bmm", "baddbmm", "_grouped_mm", "_scaled_mm"}


def requests(trace, workspace: int, whole: bool = True) -> Requests:
    """The requests to PyTorch's allocator, from the first weight on.

    On one GPU the first step is composed: forward and backward of a steady step, then the update that made the optimizer's states.
    On several GPUs a first step was run, and is the end of the beginning. cuBLAS's workspaces are requested at the first product of
    forward's thread and of backward's, after the product's result.

    Args:
        workspace: bytes of each of cuBLAS's workspaces. whole: whether weights that FSDP divides are first made whole on the GPU;
            else as shares, as from a module on meta.
    """
    beginning, first = _parted(trace)
    if not whole:
        gone = {id(c.allocation) for c in beginning if c.what == "death" and c.allocation.part == "parameters"}
        beginning = [c for c in beginning if id(c.allocation) not in gone]
    names, left = _names(trace.changes)
    asked = [_asked(part, names) for part in (beginning, first, trace.changes)]
    for moment, key in (("after_forward", -1), ("after_backward", -2)):
        for changes, part in zip((beginning, first), asked, strict=False):
            if (place := _first_product(changes, moment)) is not None:
                part.insert(place + sum(r.key < 0 for r in part if r), Request(key, workspace))
                break
    beginning, first, steady = ([r for r in part if r is not None] for part in asked)
    return Requests(beginning, first or steady, [*steady, *left])


def _parted(trace):
    """(changes until the first step, changes of the first step; none where the beginning has it)."""
    begun = trace.beginning
    moments = {change.what: i for i, change in enumerate(begun) if change.allocation is None}
    if "states" not in moments:
        return begun, []
    made, update = begun[: moments["states"]], begun[moments["states"] + 1 : moments["states made"]]
    gone = {id(c.allocation) for c in begun[moments["states made"] :] if c.what == "death"}
    made = [c for c in made if id(c.allocation) not in gone]  # without the gradients that stood in for backward's
    backward = max(i for i, change in enumerate(trace.changes) if change == (None, "after_backward"))
    step = trace.changes.index((None, "after_step"))
    return made, [*trace.changes[: backward + 1], *update, *trace.changes[step:]]


def _names(steady):
    """({an allocation: its key, where that is another's}, requests that free at the step's end).

    What a step leaves has the key of an equal allocation that the step found and freed. What has none such is freed at the end.
    """
    born = {id(c.allocation): c.allocation for c in steady if c.what == "birth"}
    dead = {id(c.allocation): c.allocation for c in steady if c.what == "death"}
    before, same, left = {}, {}, []
    for name, allocation in dead.items():
        if name not in born:
            before.setdefault((allocation.bytes, allocation.stream), []).append(name)
    for name, allocation in born.items():
        if name in dead or allocation.host:
            continue
        if like := before.get((allocation.bytes, allocation.stream)):
            same[name] = like.pop(0)
        else:
            left.append(Request(name, 0))
    return same, left


def _asked(changes: list[Change], names):
    """A request for each change; None for a change without memory on the GPU."""

    def request(a, what):
        if a is None or a.host or not a.bytes:
            return None
        return Request(names.get(id(a), id(a)), a.bytes if what == "birth" else 0, a.stream)

    return [request(*change) for change in changes]


def _first_product(changes, moment):
    """The place after the first product of the thread that ends at a mark; None where there is none."""
    began = moment == "after_forward"
    for place, (allocation, what) in enumerate(changes):
        if allocation is None:
            if what == moment:
                return None
            began |= what == "after_forward"
        elif began and what == "birth" and allocation.operation in PRODUCTS and not allocation.host:
            return place + 1
    return None
