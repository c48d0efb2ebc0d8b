"""Records: what cannot be trusted is refused by its line, the rest is kept."""

import errno
import json
import os
import random
import resource
import signal
import threading
from pathlib import Path

import pytest

from everybyte.lab import Measurement, fingerprint, read, records
from everybyte.lab.records import REFERENCE, append, repair

RECORDS = Path(__file__).resolve().parents[2] / "labs" / "records"


def stale(folder):
    """What in a folder's records is refused, or was measured with another reference step than today's."""
    found = []
    for path in sorted(folder.glob("*.jsonl")):
        record = read(path)
        found += record.faults
        if old := sum(m.fingerprint != fingerprint() for m in record.measurements):
            found.append(f"{path.name}: {old} measurements of another reference step")
    return found


def test_every_record_is_of_today_s_reference_step():
    assert stale(RECORDS) == []


@pytest.fixture
def record(tmp_path, said):
    path = tmp_path / "made-up.jsonl"
    for batch in (1, 2, 3):
        said["setup"]["batch"] = batch
        append(path, Measurement.from_dict(said))
    return path


def batches(path):
    return [m.setup.batch for m in read(path).measurements]


def test_a_line_a_measurement(record, said):
    assert batches(record) == [1, 2, 3] and read(record).faults == []
    said["setup"]["batch"] = 3
    assert read(record).measurements[2].as_dict() == said
    assert stale(record.parent) == []
    assert repair(record) == [] and list(record.parent.iterdir()) == [record]


def test_a_measurement_of_another_step_is_found(record, said):
    said["fingerprint"] = 64 * "0"
    append(record, Measurement.from_dict(said))
    assert stale(record.parent) == ["made-up.jsonl: 1 measurements of another reference step"]


def cut(lines):
    lines[2] = lines[2][:-20]


def cut_at_the_end_of_the_object(lines):
    lines[2] = lines[2].rstrip(b"\n")


def edited(lines):
    lines[1] = lines[1].replace(b'"peak": 2000', b'"peak": 1999')


def of_another_schema(lines):
    lines[0] = lines[0].replace(b'"schema": 1', b'"schema": 9')


def not_text(lines):
    lines[0] = b"\xff\xfe\n"


def no_object(lines):
    lines[1] = b"[1, 2]\n"


def without_a_checksum(lines):
    lines[1] = json.dumps({k: v for k, v in json.loads(lines[1]).items() if k != "check"}).encode() + b"\n"


def nested_deep(lines):
    lines[0] = b"[" * 200_000 + b"\n"


def signed(change):
    """A line that says another thing, with a checksum that fits: whoever made it up could make that too."""

    def damage(lines):
        said = json.loads(lines[1])
        del said["check"]
        change(said)
        lines[1] = json.dumps(said | {"check": records._checksum(said)}).encode() + b"\n"

    return damage


def named_twice(said):
    said["model"]["dimensions"]["name"] = "another"


def infinite(said):
    said["step_ms"] = float("inf")


def learned_nothing(said):
    said["learning"] = {"recipe": {"no": 1}, "asked": 3, "validation": [5]}


@pytest.mark.parametrize(
    ("damage", "number", "words"),
    [
        (cut, 3, "it has no end"), (cut_at_the_end_of_the_object, 3, "it has no end"), (edited, 2, "edited"),
        (of_another_schema, 1, "Measurement.schema: 9"), (not_text, 1, "no JSON"), (no_object, 2, "not a JSON object"),
        (without_a_checksum, 2, "edited"), (nested_deep, 1, "within one another"), (signed(named_twice), 2, "Measurement.model"),
        (signed(infinite), 2, "Infinity is no number"), (signed(learned_nothing), 2, "Measurement.learning"),
    ],
)  # fmt: skip
def test_a_damaged_line_is_refused_and_moved_aside(record, damage, number, words):
    lines = record.read_bytes().splitlines(keepends=True)
    damage(lines)
    record.write_bytes(b"".join(lines))
    good = [batch for batch in (1, 2, 3) if batch != number]
    assert batches(record) == good
    (fault,) = read(record).faults
    assert fault.startswith(f"made-up.jsonl, line {number}: ") and words in fault
    assert stale(record.parent) == [fault]
    assert repair(record) == [fault]
    assert batches(record) == good and read(record).faults == []
    aside = record.with_name("made-up.jsonl.refused")
    assert aside.read_bytes() == lines[number - 1].rstrip(b"\n") + b"\n"
    append(record, read(record).measurements[0])
    assert batches(record) == [*good, good[0]]
    assert sorted(record.parent.iterdir()) == [record, aside]


def test_the_fingerprint_is_of_the_source(tmp_path):
    for path in [*REFERENCE.glob("*.py"), *REFERENCE.glob("*.txt")]:
        (tmp_path / path.name).write_text(path.read_text(encoding="utf-8"), encoding="utf-8")
    assert fingerprint(tmp_path) == fingerprint()
    for name in ("step.py", "alice.txt"):
        fingerprint.cache_clear()
        kept = (tmp_path / name).read_text(encoding="utf-8")
        (tmp_path / name).write_text("# another\n")
        assert fingerprint(tmp_path) != fingerprint()
        (tmp_path / name).write_text(kept, encoding="utf-8")


def test_nothing_is_repaired_where_there_is_no_record(tmp_path):
    assert repair(tmp_path / "none.jsonl") == []


def test_what_is_written_while_a_record_is_repaired_is_kept(record, monkeypatch):
    record.write_bytes(record.read_bytes() + b"torn\n")
    more, replace, writers = read(record).measurements[0], os.replace, []

    def meanwhile(part, path):
        writers.append(threading.Thread(target=append, args=(record, more)))
        writers[0].start()
        writers[0].join(0.2)
        replace(part, path)

    monkeypatch.setattr(os, "replace", meanwhile)
    assert len(repair(record)) == 1
    writers[0].join()
    assert batches(record) == [1, 2, 3, 1] and read(record).faults == []


def test_several_write_and_repair_at_once(record):
    some = read(record).measurements

    def write(i):
        for n in range(20):
            append(record, some[i % 3])
            if n % 5 == i:
                with records._alone(record) as file:
                    records._add(file, b"torn\n")

    def mend():
        while any(writer.is_alive() for writer in writers):
            repair(record)

    writers = [threading.Thread(target=write, args=(i,)) for i in range(3)]
    for thread in (*writers, mender := threading.Thread(target=mend)):
        thread.start()
    for thread in (*writers, mender):
        thread.join()
    assert sorted(batches(record)) == sorted([1, 2, 3] + 20 * [1, 2, 3])
    assert len(record.with_name("made-up.jsonl.refused").read_bytes().splitlines()) + len(read(record).faults) == 12


def test_a_line_is_whole_or_not_there(record, monkeypatch):
    """A disk that is full in the middle of one, and Ctrl-C in its writing."""
    before = record.read_bytes()
    limits, handler = resource.getrlimit(resource.RLIMIT_FSIZE), signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (len(before) + 100, limits[1]))
        with pytest.raises(OSError) as full:
            append(record, read(record).measurements[0])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, handler)
    assert full.value.errno == errno.EFBIG and record.read_bytes() == before

    def interrupted(number):
        raise KeyboardInterrupt

    with monkeypatch.context() as context, pytest.raises(KeyboardInterrupt):
        context.setattr(os, "fsync", interrupted)
        append(record, read(record).measurements[0])
    assert record.read_bytes() == before


def test_a_full_disk_does_not_multiply_what_is_refused(record, monkeypatch):
    record.write_bytes(record.read_bytes() + b"torn\n")
    aside, before = record.with_name("made-up.jsonl.refused"), record.read_bytes()

    def full(number):
        if aside.exists() and os.path.samestat(os.fstat(number), os.stat(aside)):
            raise OSError(errno.ENOSPC, "No space left on device")

    for _ in range(2):
        with monkeypatch.context() as context, pytest.raises(OSError):
            context.setattr(os, "fsync", full)
            repair(record)
        assert record.read_bytes() == before and aside.read_bytes() == b""
    assert len(repair(record)) == 1 and aside.read_bytes() == b"torn\n"


def test_what_follows_a_torn_line_is_whole(record):
    record.write_bytes(record.read_bytes()[:-30])
    append(record, read(record).measurements[0])
    assert batches(record) == [1, 2, 1] and len(read(record).faults) == 1


def test_a_pipe_is_no_record(tmp_path, said):
    os.mkfifo(tmp_path / "pipe.jsonl")
    for refuse in (read, repair, lambda path: append(path, Measurement.from_dict(said))):
        with pytest.raises(ValueError, match=r"^record\.path: pipe\.jsonl is no file"):
            refuse(tmp_path / "pipe.jsonl")


#: What a field of a line may hold that no worker writes.
JUNK = (
    None,
    True,
    -1,
    1.5,
    float("inf"),
    2**70,
    "",
    "gpt2",
    [],
    [1],
    [[]],
    {},
    {"a": 1},
    {"name": 1},
    "\ud800",
)


def places(value, path=()):
    yield path
    for key in value if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ():
        yield from places(value[key], (*path, key))


def test_whatever_a_field_holds_a_line_is_read_or_refused(said):
    """Each field by each piece of junk, and without it: a measurement that survives its own JSON, or a ValueError."""
    said |= {"learning": {"recipe": {}, "asked": 3, "validation": [[1, 2.0, 3.0]]}, "ranks": [{"rank": 0}]}
    survived, draw = 0, random.Random(0)
    for path in [p for p in places(said) if p]:
        for junk in (*draw.sample(JUNK, 6), "gone"):
            line = json.loads(json.dumps(said))
            inner = line
            for key in path[:-1]:
                inner = inner[key]
            if junk == "gone":
                del inner[path[-1]]
            else:
                inner[path[-1]] = junk
            try:
                found = Measurement.from_dict(line)
            except ValueError:
                continue
            again = Measurement.from_dict(json.loads(json.dumps(found.as_dict())))
            assert again.as_dict() == found.as_dict() and repr(found) == repr(again) and found._repr_html_()
            survived += 1
    assert survived > 50
