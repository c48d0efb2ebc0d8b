"""An allocator's history, made short."""

from hypothesis import given
from hypothesis import strategies as st

from everybyte.lab.timeline import live_at_allocations, reduced, where

MARKS = [("loss", 2), ("after_forward", 4), ("loss_done", 6), ("after_backward", 9), ("after_step", 12)]


@given(st.lists(st.integers(0, 50), min_size=1, max_size=300), st.integers(4, 100))
def test_a_course_keeps_its_ends_and_its_extremes(live, most):
    kept = reduced(live, most)
    assert kept == sorted(set(kept)) and len(kept) <= max(most, 4)
    assert kept[0] == 0 and kept[-1] == len(live) - 1
    seen = [live[i] for i in kept]
    assert max(seen) == max(live) and min(seen) == min(live)
    assert live.index(max(live)) in kept  # the first of them: it is the peak's instant
    if len(live) <= most:
        assert kept == list(range(len(live)))


def test_the_words_for_a_place():
    words = [where(place, MARKS) for place in (0, 2, 3, 4, 5, 6, 7, 9, 10, 12)]
    assert words == [
        "forward", "forward", "loss forward", "loss forward", "loss backward", "loss backward", "backward", "backward",
        "optimizer step", "optimizer step",
    ]  # fmt: skip


def test_the_words_under_accumulation():
    marks = [
        *MARKS[:4],
        ("loss", 11),
        ("after_forward", 13),
        ("loss_done", 14),
        ("after_backward", 18),
        ("after_step", 20),
    ]
    words = [where(place, marks) for place in (9, 10, 12, 14, 15, 18, 19)]
    assert words == [
        "backward", "forward", "loss forward", "loss backward", "backward", "backward", "optimizer step",
    ]  # fmt: skip


def event(action, size):
    return {"action": action, "size": size}


def test_live_bytes_of_a_snapshot():
    block = {"state": "active_allocated", "requested_size": 1000, "size": 2048}
    idle = {"state": "inactive", "requested_size": 0, "size": 4096}
    waited_for = {"state": "active_pending_free", "requested_size": 700, "size": 1024}
    events = [
        event("alloc", 5000), event("free_requested", 5000),  # of a step before
        event("alloc", 1), event("segment_alloc", 2**20), event("alloc", 513), event("free_requested", 1),
        event("free_completed", 1), event("alloc", 1000), event("free_requested", 513), event("free_requested", 90),
    ]  # fmt: skip
    snapshot = {
        "segments": [{"device": 0, "blocks": [block, idle, waited_for]}, {"device": 1, "blocks": [block]}],
        "device_traces": [events, [event("alloc", 7)]],
    }
    # At the end 1,000 B live, in two blocks of 512; 90 B more, one block, lived before and were freed.
    assert live_at_allocations(snapshot, 0, allocations=3) == [512, 1024, 2048, 2560]
    assert live_at_allocations(snapshot, 0, allocations=1) == [1536, 2560]
