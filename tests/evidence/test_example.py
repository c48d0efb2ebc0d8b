"""The script that chapter 42 reads: its snapshot is what a rehearsal writes today, and what the script keeps follows from it."""

import pickle

import snapshots

from everybyte.evidence import example, snapshot
from everybyte.evidence.naming import where


def test_it_names_nothing_of_a_machine():
    said = pickle.dumps(pickle.loads(example.SNAPSHOT.read_bytes()))
    assert b"/home" not in said and b"/tmp" not in said and b"/work" not in said and len(said) < 200_000


def test_the_history_is_decided_again_and_ends_as_the_summary_says():
    memory = example.left().main
    again = memory.replayed()
    assert again.wrong is None and again.allocator.reserved == memory.reserved and len(memory.events) == 2805
    (line,) = [line for line in example.summary().splitlines() if "Allocated memory" in line]
    assert int(line.split("|")[2].split()[0]) == memory.allocated // 1024


def test_rehearsed_again_it_leaves_the_same(here):
    """But for the order in which autocast forgets its casts, which goes by their addresses."""
    found, _ = snapshots.record()
    kept = pickle.loads(example.SNAPSHOT.read_bytes())

    def asked(said):
        events = [e for e in said["device_traces"][0] if e["action"] == "alloc"]
        return [(e["size"], where(e["frames"])) for e in events]

    assert asked(found) == asked(kept)
    peaks = [snapshot(pickle.dumps(said)).main.peak for said in (found, kept)]
    assert peaks[0] == peaks[1]
