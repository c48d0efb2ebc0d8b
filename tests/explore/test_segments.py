"""A reader's own requests, a snapshot's map, an uploaded file: what is decided, what is refused, what is shown."""

import json
import sys
from importlib import resources

import pytest
from explorers import BETWEEN, epochs, moments, simulate

import everybyte as eb
from everybyte import explore
from everybyte.allocator import Allocator
from everybyte.evidence import example
from everybyte.explore.beside import table
from everybyte.explore.segments import EPOCHS, EPOCHS_FILE, FILE, PARTS, PLAYED, STORY, Moment, requests

allocator = sys.modules["everybyte.explore.bars"]

MIB = 2**20


def test_requests_of_ones_own_are_decided_as_the_allocator_decides():
    text = "a = 3 MiB  # the first\nb = 9 MiB\n\nfree a\nc = 15 MiB\nempty_cache\nd = 1000 B"
    explorer = explore.allocations(
        text, memory=None, configurations={"defaults": "", "grows": "expandable_segments:True"}
    )
    for number, configuration in enumerate(("", "expandable_segments:True")):
        a = Allocator(configuration)
        first = a.malloc(3 * MIB)
        a.malloc(9 * MIB)
        a.free(first)
        a.malloc(15 * MIB)
        a.empty_cache()
        a.malloc(1000)
        now = explorer.kind.compute({"setting": number, "moment": 6})
        assert now.counts == (a.requested, a.allocated, a.reserved) and now.label == "line 7, d = 1000 B"
        assert sum(size for row in now.segments for size, *_ in row) == a.reserved
        names = [name for row in now.segments for *_, part, name in row if part]
        assert sorted(names) == ["b", "c", "d"]


def test_the_chapters_story_dies_in_the_second_request_for_60_mib_under_the_defaults_alone():
    explorer = explore.allocations()
    said = [explorer.describe({"setting": i, "moment": 4}) for i in range(3)]
    assert [": out of memory: " in text for text in said] == [True, False, False]
    assert "58.00 MiB kept free; 60.00 MiB reserved" in said[0] and "80.00 MiB reserved" in said[1]
    assert len(requests(STORY)) == 4


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a = 1 MiB\nb == 2", r"line 2, 'b == 2': value"), ("a = 1 MiB\n\nfree b", r"line 3, 'free b': nothing of that name.*allowed: a"),
        ("a = 1 MiB\na = 1 MiB", r"line 2, .*the name is in use; allowed: free a first"), ("a = 0 B", r"line 1, .*0 bytes; allowed: 1 B to 1 TiB"),
        ("a = 3", "line 1, 'a = 3': value"), ("a = 1e999 GiB", "line 1, "), ("import os", "line 1, 'import os': no request"),
        ("", "no request; allowed"), ("# only words", "no request"), ("\n".join(f"a{i} = 1 B" for i in range(201)), "line 201, .*the 201th"),
        ("a = 1 MiB\nfree a\nfree a", r"line 3, 'free a': nothing of that name is in use; allowed: what"),
        (7, "allocations.text: 7"),
    ],
)  # fmt: skip
def test_a_line_that_is_no_request_is_named(text, said):
    with pytest.raises(ValueError, match=said):
        explore.allocations(text)


def test_an_unknown_setting_and_no_memory_are_named():
    with pytest.raises(ValueError, match=r"PYTORCH_ALLOC_CONF\.setting: 'grow'"):
        explore.allocations("a = 1 B", configurations={"x": "grow:True"})
    with pytest.raises(ValueError, match=r"allocations\.memory: 0"):
        explore.allocations("a = 1 B", memory=0)


def test_a_snapshots_map_has_the_peak_and_every_part():
    memory = example.left().main
    explorer = explore.memory_map(memory)
    now = explorer.kind.compute(explorer.values())
    assert now.label.endswith("the peak") and sum(now.parts.values()) == memory.peak == now.counts[0]
    assert now.parts == memory.parts() and now.counts[2] == sum(
        size for _, size, _ in next(memory.maps([memory.peak_event]))
    )
    end = explorer.kind.moments[0][-1]
    assert end.counts[::2] == (memory.requested, memory.reserved) and len(explorer.kind.moments[0]) == 41
    assert end.parts.keys() <= dict(PARTS).keys()
    assert json.dumps(vars(Moment(**json.loads(json.dumps(vars(end)))))) == json.dumps(vars(end))


def test_more_segments_than_can_be_drawn_are_summed_up():
    text = "\n".join(f"a{i} = {11 + i % 3} MiB" for i in range(30))
    now = explore.allocations(text, None, {"x": ""}).kind.moments[0][-1]
    assert (now.count, len(now.segments), now.hidden[0]) == (30, 24, 6)
    assert now.hidden[1] + sum(size for row in now.segments for size, *_ in row) == now.counts[2]


@pytest.mark.parametrize("label", PLAYED)
def test_the_stored_step_is_what_would_be_played_today(label):
    """Where this fails, tools/explorers.py writes the file anew."""
    stored = json.loads(resources.files("everybyte.explore").joinpath(FILE).read_text(encoding="utf-8"))
    assert stored[label] == json.loads(moments(PLAYED[label]))


@pytest.mark.sampled(1)
@pytest.mark.parametrize("label", allocator.RUNS)
def test_the_stored_numbers_are_what_would_be_simulated_today(label):
    stored = table(allocator.FILE)
    assert stored[label] == simulate(allocator.RUNS[label], allocator.SETTINGS)
    assert stored.keys() == allocator.RUNS.keys()


def test_the_steps_last_moments_are_the_budgets_own():
    """The second step's end has what the dry run's simulation has at rest, and the first takes less."""
    explorer = explore.played()
    told = explorer.kind.moments[0]
    trace = eb.dry_run(eb.model("gpt2"), eb.Setup(precision="bf16-mixed")).on("h200")
    assert tuple(told[-1].counts) == trace.live[-1] and told[-1].counts[2] == trace.steps[2]
    assert told[BETWEEN + 1].label == "the end of the first step" and told[BETWEEN + 1].counts[2] == trace.steps[1]


@pytest.mark.sampled(1)
@pytest.mark.parametrize("label", EPOCHS)
def test_the_stored_epoch_is_what_would_be_played_today(label):
    """Where this fails, tools/explorers.py writes the file anew."""
    assert table(EPOCHS_FILE)[label] == json.loads(epochs(label))


def test_an_h200_reserved_in_that_epoch_what_is_shown():
    """`labs/records`: 19.0 GB at random, 9.1 GB with the largest first, both to the byte of small segments."""
    random, largest, *_ = explore.epochs().kind.moments
    assert (random[-1].counts[2], largest[-1].counts[2]) == (19_044_237_312, 9_133_096_960)
