"""Snapshots as PyTorch writes them, small ones."""

MIB = 2**20


def frame(file, line, name):
    return {"filename": file, "line": line, "name": name}


TRAIN, LIBRARY = frame("/me/train.py", 12, "main"), frame("/v/site-packages/torch/nn/functional.py", 9, "linear")
ADAM = frame("/v/site-packages/torch/optim/adam.py", 5, "step")


def event(action, addr, size, frames=()):
    return {"action": action, "addr": addr, "size": size, "stream": 0, "frames": list(frames)}


def block(size, state="active_allocated", requested=None, frames=()):
    return {"size": size, "requested_size": requested or size, "state": state, "frames": list(frames)}


def segment(address, blocks, device=0):
    total = sum(b["size"] for b in blocks)
    used = sum(b["size"] for b in blocks if b["state"] != "inactive")
    return {"device": device, "address": address, "total_size": total, "allocated_size": used, "stream": 0,
            "segment_type": "large", "is_expandable": False, "blocks": blocks}  # fmt: skip


def plain():
    """A weight from before the history, an activation that came and went, and a state at the end."""
    segments = [segment(0, [block(4 * MIB), block(2 * MIB, frames=[ADAM, TRAIN]), block(14 * MIB, "inactive")])]
    events = [
        event("alloc", 4 * MIB, 10 * MIB, [LIBRARY, TRAIN]),
        event("free_requested", 4 * MIB, 10 * MIB),
        event("free_completed", 4 * MIB, 10 * MIB),
        event("alloc", 4 * MIB, 2 * MIB, [ADAM, TRAIN]),
        {"action": "snapshot", "size": 0},
    ]
    return {"segments": segments, "device_traces": [events], "allocator_settings": {"PYTORCH_CUDA_ALLOC_CONF": ""}}
