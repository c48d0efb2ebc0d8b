"""Files: records, measurements, the file of answers, kept derivations; files that are there whole, or not at all."""

import hashlib
import json
import os
import stat
import tempfile
import threading
import warnings
from functools import cache
from pathlib import Path

from hypothesis import strategies as st

import everybyte as eb
from everybyte.common import files
from everybyte.derivation.keeping import as_dict
from everybyte.lab import Measurement, records
from everybyte.teach import check, kept, progress

from .drawn import JUNK, SMALL, STEP, Refused, cut, environment, junk_or, tags


def record(draw):
    """Of a file of measurements the lines that nobody touched are read, and no other but where it says the same."""
    lines = list(lines_of_a_record())
    touched = set()
    strange = (
        st.binary(max_size=20)
        | st.integers(0, 200_000).map(lambda n: b"[" * n)
        | JUNK.map(lambda v: json.dumps(v).encode())
    )
    for _ in range(draw(st.integers(0, 3))):
        i = draw(st.integers(0, len(lines) - 1))
        before = lines[i]
        changed = cut(draw, before, st.binary(max_size=3), 40) if draw(st.integers(1, 4)) > 1 else draw(strange)
        lines[i] = changed.replace(b"\n", b"")
        touched |= {i} if lines[i] != before else set()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "drawn.jsonl"
        path.write_bytes(b"".join(line + b"\n" for line in lines))
        found = records.read(path)
        good = [m.as_dict() for m in found.measurements]
        for i, line in enumerate(lines_of_a_record()):
            assert i in touched or {k: v for k, v in json.loads(line).items() if k != "check"} in good
        empty = sum(not line for line in lines)
        assert len(lines) - empty <= len(good) + len(found.faults) <= len(lines) and len(good) >= len(lines) - len(
            touched
        )
        records.repair(path)
        assert [m.as_dict() for m in records.read(path).measurements] == good and not records.read(path).faults
    if found.faults:
        raise Refused(found.faults[0])


@cache
def lines_of_a_record():
    """Three lines as the recorder writes them."""
    device = {"name": "drawn", "type": "cpu", "gpu": None, "memory": None}
    found = []
    for n in (1, 2, 3):
        said = Measurement(
            setup=eb.Setup(batch=n, sequence=8), status="skipped", reason="drawn", fingerprint=64 * str(n), model=SMALL, device=device,
            date="2001-01-01T00:00:00+00:00",
        ).as_dict()  # fmt: skip
        found.append(json.dumps(said | {"check": records._checksum(said)}).encode())
    return found


def measurement(draw):
    """A measurement whose fields are anything survives its own JSON, or is refused."""
    said = json.loads(lines_of_a_record()[0])
    said.pop("check")
    inner = {name: part for part in (said, said["setup"], said["model"]["dimensions"]) for name in part}
    for name in draw(st.lists(st.sampled_from([*inner, "name", "x"]), max_size=2)):
        inner.get(name, said)[name] = draw(JUNK)
    found = Measurement.from_dict(said)
    again = Measurement.from_dict(found.as_dict())
    assert again.as_dict() == found.as_dict() and again._repr_html_() == found._repr_html_()
    tags(found._repr_html_())


def answers(draw):
    """The file of answers is what JSON says it is, or is set aside whole; a place that takes nothing stops nobody."""
    if draw(st.integers(1, 5)) == 1:
        place = draw(
            st.sampled_from(
                [
                    "/dev/full",
                    "/dev/null",
                    "/dev/zero",
                    "/",
                    "~nosuchuser/x",
                    "relative",
                    "/proc/nowhere/at/all",
                    "/dev/null/x",
                ]
            )
        )
        with environment(kept.VARIABLE, place):
            assert check("12.1", 1).text and progress()._repr_html_()
        return
    ids = st.dictionaries(
        st.sampled_from(["solved", "tried", "predicted", "x"]), junk_or(st.lists(junk_or(st.text(max_size=5), 9), max_size=3)), max_size=3
    )  # fmt: skip
    deep = st.integers(1, 100_000).map(lambda n: b"[" * n)
    data = draw(ids.map(lambda said: json.dumps(said).encode()) | st.binary(max_size=40) | deep)
    with tempfile.TemporaryDirectory() as folder, environment(kept.VARIABLE, f"{folder}/progress.json"):
        path = Path(folder) / "progress.json"
        path.write_bytes(data)
        found, _, trouble = kept.load()
        try:
            said = json.loads(data)
            fine = isinstance(said, dict) and all(
                isinstance(v, list) and all(isinstance(i, str) for i in v) for v in said.values()
            )
        except (ValueError, RecursionError):
            fine = False
        assert (found, trouble) == (said, "") if fine else (found == {} and "damaged" in trouble)
        assert fine or (Path(folder) / "progress.json.damaged-1").read_bytes() == data
        assert kept.keep("solved", "12.1") == "" and "12.1" in kept.load()[0]["solved"]
        tags(progress()._repr_html_())


@cache
def _derived():
    """(folder, where it is kept, the text, what it says) of a small model's derivation."""
    from everybyte.deriving import cache as place

    folder = tempfile.TemporaryDirectory(prefix="fuzz-")
    with environment(place.VARIABLE, folder.name):
        eb.derive(SMALL, STEP)
        where = place.place(SMALL, STEP, None)
    return folder, where, where[0].read_text(encoding="utf-8"), as_dict(place.read(where))


def derivation(draw):
    """A kept derivation that is damaged is none, and that is said; nothing in it raises, whatever its checksum."""
    from everybyte.deriving import cache as place

    _, where, text, whole = _derived()
    kind = draw(st.sampled_from(["bytes", "bytes", "deep", "junk", "forged"]))
    if kind == "bytes":
        data = cut(draw, text.encode(), st.binary(max_size=3), 40)
    elif kind == "deep":
        data = draw(st.sampled_from([b"[", b'{"a":', b'{"derivation":['])) * draw(st.integers(1, 200_000))
    elif kind == "junk":
        data = json.dumps(draw(JUNK | st.fixed_dictionaries({"sum": JUNK, "derivation": JUNK}))).encode()
    else:  # whoever writes a checksum that fits may write what they like, and it still ends in no traceback
        body = json.loads(text)["derivation"]
        body[draw(st.sampled_from(sorted(body)))] = draw(JUNK)
        data = json.dumps(
            {"sum": hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest(), "derivation": body}
        ).encode()
    where[0].write_bytes(data)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        found = place.read(where)
    assert found is None and said or kind == "forged" or as_dict(found) == whole
    if found is None:
        raise Refused(str(said[0].message) if said else "not there")


def whole(draw):
    """A file that several threads write at once is one of theirs, whole; its mode is what it was, and nothing lies beside it."""
    with tempfile.TemporaryDirectory() as folder:
        path, mode = (
            Path(folder) / draw(st.sampled_from(["a.json", "ü", "x" * 200])),
            draw(st.sampled_from([0o600, 0o640, 0o644, 0o664, 0o400])),
        )
        if there := draw(st.booleans()):
            path.write_bytes(b"old")
            path.chmod(mode)
        texts = [bytes([65 + i]) * draw(st.integers(0, 20_000)) for i in range(draw(st.integers(1, 8)))]
        stops = draw(st.integers(0, len(texts)))
        wrong, start = [], threading.Barrier(len(texts))

        def write(i):
            start.wait()
            try:
                with files.whole(path) as file:
                    file.write(texts[i])
                    if i == stops:
                        raise KeyError("stopped")
            except KeyError:
                pass
            except BaseException as error:
                wrong.append(error)

        threads = [threading.Thread(target=write, args=(i,)) for i in range(len(texts))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not wrong, wrong
        finished = [text for i, text in enumerate(texts) if i != stops]
        assert os.listdir(folder) == ([path.name] if there or finished else [])
        if there or finished:
            assert path.read_bytes() in (finished or [b"old"])
            assert not there or stat.S_IMODE(path.stat().st_mode) == mode


SUBJECTS = {record: 600, measurement: 800, answers: 400, derivation: 500, whole: 200}  # fmt: skip
