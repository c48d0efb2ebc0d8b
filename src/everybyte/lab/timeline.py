"""From an allocator's history to a short list of live bytes: the instant of the peak is never lost."""

ALLOCATED = "active_allocated"


def live_at_allocations(snapshot: dict, device: int, allocations: int, rounding: int = 512) -> list[int]:
    """Live bytes just before the last `allocations` allocations of a CUDA snapshot, and just after each.

    The history holds what was asked for, not the block that was found for it; each request counts rounded up to `rounding` and
    lives until it is freed. Source: PyTorch, `c10/cuda/CUDACachingAllocator.cpp` (`alloc_found_block`, `free`).

    Args:
        snapshot: of `torch.cuda.memory._snapshot()`: `segments` with their `blocks`, and `device_traces`.
    """
    events, left = [], allocations
    for event in reversed(snapshot["device_traces"][device]):
        if not left:
            break
        events.append(event)
        left -= event["action"] == "alloc"
    changes = [(_change(event, rounding), event["action"] == "alloc") for event in reversed(events)]
    segments = [s for s in snapshot["segments"] if s["device"] == device]
    blocks = [b for s in segments for b in s["blocks"] if b["state"] == ALLOCATED]
    live = sum(_rounded(b["requested_size"], rounding) for b in blocks) - sum(change for change, _ in changes)
    found = [live]
    for change, is_allocation in changes:
        live += change
        if is_allocation:
            found.append(live)
    return found


def _change(event, rounding):
    sign = {"alloc": 1, "free_requested": -1}.get(event["action"], 0)
    return sign * _rounded(event["size"], rounding)


def _rounded(size, rounding):
    return -(-size // rounding) * rounding


def reduced(live: list[int], most: int) -> list[int]:
    """At most `most` places of `live` (four or more) that show its course: first, last, and extremes of equal stretches."""
    if len(live) <= most:
        return list(range(len(live)))
    stretches = (most - 2) // 2
    kept = {0, len(live) - 1}
    for i in range(stretches):
        places = range(i * len(live) // stretches, (i + 1) * len(live) // stretches)
        kept |= {min(places, key=live.__getitem__), max(places, key=live.__getitem__)}
    return sorted(kept)


def where(place: int, marks: list[tuple[str, int]]) -> str:
    """Where in the step an allocation is, in a dry run's words.

    Args:
        place: how many allocations the step had made with it.
        marks: (moment, how many it had made when that came), in order: `loss`, `after_forward`, `loss_done` and
            `after_backward` of each batch, `after_step`.
    """
    ends = {
        "loss": "forward",
        "after_forward": "loss forward",
        "loss_done": "loss backward",
        "after_backward": "backward",
    }
    return next((ends.get(moment) for moment, mark in marks if place <= mark), None) or "optimizer step"
