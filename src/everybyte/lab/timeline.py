"""An allocator's history as a short list of live bytes, with the instant of the peak in it."""

ALLOCATED = "active_allocated"


def live_at_allocations(snapshot: dict, device: int, allocations: int, rounding: int = 512) -> list[int]:
    """Live bytes before the last `allocations` allocations of a CUDA snapshot, and after each of them.

    The history has requested bytes, not the blocks' sizes: each request counts rounded up to `rounding` until it is freed.
    Source: PyTorch, `c10/cuda/CUDACachingAllocator.cpp` (`alloc_found_block`, `free`).

    Args:
        snapshot: of `torch.cuda.memory._snapshot()`: `segments` with their `blocks`, and `device_traces`.
    """

    def rounded(size):
        return -(-size // rounding) * rounding

    blocks = (b for s in snapshot["segments"] if s["device"] == device for b in s["blocks"] if b["state"] == ALLOCATED)
    found = [sum(rounded(block["requested_size"]) for block in blocks)]
    for event in reversed(snapshot["device_traces"][device]):  # from the end back
        if len(found) > allocations:
            break
        if event["action"] == "alloc":
            found.append(found[-1] - rounded(event["size"]))
        elif event["action"] == "free_requested":
            found[-1] += rounded(event["size"])
    return found[::-1]


def reduced(live: list[int], most: int) -> list[int]:
    """At most `most` (four or more) places of `live`: both ends, and local extremes in between."""
    if len(live) <= most:
        return list(range(len(live)))
    stretches = (most - 2) // 2
    kept = {0, len(live) - 1}
    for i in range(stretches):
        places = range(i * len(live) // stretches, (i + 1) * len(live) // stretches)
        kept |= {min(places, key=live.__getitem__), max(places, key=live.__getitem__)}
    return sorted(kept)


def where(place: int, marks: list[tuple[str, int]]) -> str:
    """The part of the step in which an allocation was made, one of `PEAKS`.

    Args:
        place: the number of allocations until it, with it.
        marks: (moment, number of allocations until then), in order: `loss`, `after_forward`, `loss_done` and
            `after_backward` of each batch, `after_step`.
    """
    ends = {
        "loss": "forward",
        "after_forward": "loss forward",
        "loss_done": "loss backward",
        "after_backward": "backward",
    }
    return next((ends.get(moment) for moment, mark in marks if place <= mark), None) or "optimizer step"
