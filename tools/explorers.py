"""Traces the courses of the explorers as they open and stores them beside their code, so that none waits for them; simulates the
steps that the allocator's explorer shows.

The file is read only while the theory that it was traced with is the present one: a stale file makes an explorer slow, not wrong.
"""

import json
import sys
from pathlib import Path

from everybyte import explore
from everybyte.explore import allocator, combining, courses, segments

NAMES = ("precision", "step", "checkpointing", "planning", "batches", "sharding", "adapters")


def main():
    """Write the file, a line for each explorer."""
    courses._stored = dict
    found = {name: getattr(explore, name)().kind.courses.tables() for name in NAMES}
    lines = [f"{json.dumps(name)}: {json.dumps(tables, separators=(',', ':'))}" for name, tables in found.items()]
    Path(courses.__file__).with_name(courses.FILE).write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")
    made = sys.modules[allocator.__module__]
    rows = [f"{json.dumps(label)}: {json.dumps(made.simulate(run, made.SETTINGS))}" for label, run in made.RUNS.items()]
    Path(made.__file__).with_name(made.FILE).write_text("{\n" + ",\n".join(rows) + "\n}\n", encoding="utf-8")
    made = sys.modules[combining.__module__]
    rows = [f"{json.dumps(key)}: {json.dumps(made.priced(*run))}" for key, run in made.every().items()]
    Path(made.__file__).with_name(made.FILE).write_text("{\n" + ",\n".join(rows) + "\n}\n", encoding="utf-8")
    rows = [f"{json.dumps(label)}: {moments(configuration)}" for label, configuration in segments.PLAYED.items()]
    Path(segments.__file__).with_name(segments.FILE).write_text("{\n" + ",\n".join(rows) + "\n}\n", encoding="utf-8")


def moments(configuration):
    """A step's moments as the file has them."""
    return json.dumps([vars(m) for m in segments.play_step(configuration)], separators=(",", ":"))


if __name__ == "__main__":
    main()
