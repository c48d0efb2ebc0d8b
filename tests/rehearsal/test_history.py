"""An allocator's history: the most bytes at once, where that was, what lived then. The snapshots are made up."""

from everybyte.rehearsal import history, nodes, phases

FORWARD = [
    {"filename": "/env/lib/python3.11/site-packages/torch/nn/functional.py", "line": 9, "name": "linear"},
    {"filename": "/env/lib/python3.11/site-packages/transformers/gpt2.py", "line": 70, "name": "forward"},
    {"filename": "/x/train.py", "line": 12, "name": "<module>"},
]
MADE = [{"filename": "/x/train.py", "line": 3, "name": "<module>"}]


def event(action, address, size, frames=()):
    return {"action": action, "addr": address, "size": size, "frames": list(frames)}


def block(address, size, frames=(), state="active_allocated"):
    return {"address": address, "requested_size": size, "size": 512, "state": state, "frames": list(frames)}


def snapshot(events, blocks, device=0):
    return {"device_traces": [events], "segments": [{"device": device, "address": 0, "blocks": blocks}]}


def test_the_peak_is_found_between_what_came_before_and_what_is_left():
    events = [
        event("alloc", 2, 100, FORWARD),
        event("segment_alloc", 9, 2**20),
        event("alloc", 3, 50, FORWARD),
        event("free_requested", 2, 100),
        event("free_completed", 2, 100),
        event("free_requested", 7, 30),  # from before the history
        event("alloc", 2, 10),
    ]
    left = [block(1, 1000, MADE), block(2, 10), block(3, 50, FORWARD), block(4, 999, state="inactive")]
    memory = history.memory(snapshot(events, left), 0)
    assert memory.peak == 1000 + 30 + 100 + 50 and memory.frames[memory.peak_event - 1] == FORWARD
    assert history.numbers(memory, 40) == {0: 41, 1: 42, 4: 43} and memory.peak_event == 2
    held = history.living(memory, history.numbers(memory, 40))
    assert sorted((size, number) for size, _, number in held) == [(30, 0), (50, 42), (100, 41), (1000, 0)]
    none = dict.fromkeys(("line", "inner", "node", "forward", "forward_inner"))
    assert history.holders(held, lambda number: None) == [
        none | {"line": "/x/train.py:3", "tensors": 1, "bytes": 1000},
        none | {"line": "/x/train.py:12", "inner": "transformers/gpt2.py:70 forward", "tensors": 2, "bytes": 150},
        none | {"tensors": 1, "bytes": 30},
    ]
    node = {"node": "MmBackward0", "forward": "/x/train.py:8", "forward_inner": None}
    few = history.holders(held, {0: node}.get, rows=1)
    assert [row["bytes"] for row in few] == [1000, 180] and few[-1]["tensors"] == 3
    assert history.holders(held, {0: node}.get)[-1] == none | node | {"tensors": 1, "bytes": 30}


def test_a_peak_before_the_history():
    memory = history.memory(snapshot([event("free_requested", 1, 500)], []), 0)
    assert (memory.peak, memory.peak_event, history.living(memory, {})) == (500, 0, [(500, None, 0)])
    assert history.memory(snapshot([], [block(1, 5)], device=1), 0).peak == 0  # another device's


def test_whose_line_it_is():
    assert history.line(FORWARD) == "/x/train.py:12" and history.call(FORWARD) == "linear"
    assert history.inner(FORWARD) == "transformers/gpt2.py:70 forward" and history.inner(MADE) is None
    for nobody in ([], None, FORWARD[:1]):
        assert history.line(nobody) is None and history.inner(nobody) is None
    library = [{"filename": "/usr/lib/python3.11/threading.py", "line": 1, "name": "run"}, *MADE]
    assert history.line(library) == "/x/train.py:3" and history.call(library) is None


def test_where_in_a_step_an_allocation_is():
    marks = [("after_forward", 10), ("backward_done", 20), ("after_backward", 21), ("after_step", 30)]
    found = [phases.where(n, marks) for n in (10, 11, 21, 22, 31)]
    assert found == ["forward", "backward", "between backward and step", "optimizer step", "forward"]
    after = [phases.where(99, marks[:ended]) for ended in range(5)]  # and where the run ends, it is what had begun
    assert after == ["before any backward", "backward", "between backward and step", "optimizer step", "forward"]
    within = [("after_forward", 1), ("step_begins", 3), ("step_ends", 5), ("backward_done", 7), ("after_step", 7)]
    found = [phases.where(n, within) for n in (2, 4, 6, 8)]
    assert found == ["backward", "optimizer step", "backward", "forward"] and phases.step(8, within) == 1
    moved = [
        {"filename": "/x/train.py", "name": "step"},
        {"filename": "/p/torch/optim/optimizer.py", "name": "wrapper"},
    ]
    assert phases.seen("forward", moved) == "optimizer step" and phases.seen("backward", moved) == "backward"
    assert phases.seen("between backward and step", FORWARD) in ("forward", "between backward and step")
    spans = [("evaluation", 5, 20), ("generation", 9, 12)]
    assert [phases.within(n, spans) for n in (5, 6, 10, 13, 21)] == [
        None,
        "evaluation",
        "generation",
        "evaluation",
        None,
    ]
    assert phases.where(3, []) == "before any backward"


def test_which_node_made_an_allocation(monkeypatch):
    """Of nodes that took nothing the next stands; the oldest are forgotten, so that a long run does not grow."""
    made = [0]
    found = object.__new__(nodes.Nodes)
    found.counts, found.began, found.named = lambda: {0: made[0]}, {}, {}
    monkeypatch.setattr(nodes, "MOST", 3)
    for count, name in ((2, "a"), (2, "b"), (5, "c"), (9, None)):
        made[0] = count
        found._begins(name)
    assert [found.of(0, number) for number in (2, 3, 5, 6, 9, 10)] == [None, "b", "b", "c", "c", None]
    for count in range(10, 20):
        made[0] = count
        found._begins("d")
    assert len(found.began[0]) == len(found.named[0]) <= 6 and found.of(0, 3) is None and found.of(0, 20) == "d"
