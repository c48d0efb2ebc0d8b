"""Records: what cannot be trusted is refused by its line, the rest is kept."""

import json
from pathlib import Path

import pytest

from everybyte.lab import Measurement, fingerprint, read
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


@pytest.mark.parametrize(
    ("damage", "number", "words"),
    [
        (cut, 3, "it has no end"), (cut_at_the_end_of_the_object, 3, "it has no end"), (edited, 2, "edited"),
        (of_another_schema, 1, "Measurement.schema: 9"), (not_text, 1, "not JSON"), (no_object, 2, "not a JSON object"),
        (without_a_checksum, 2, "edited"),
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
