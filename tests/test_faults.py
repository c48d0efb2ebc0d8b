"""A disk that is full, a home that cannot be written: what stood there stands, nothing half-written is left, and work goes on."""

import errno
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from everybyte.common import files

if sys.platform == "win32":
    pytest.skip("limits and capabilities are Unix's", allow_module_level=True)
EXAMPLE = Path(files.__file__).parents[1] / "evidence" / "example" / "train.pickle"

WRITERS = """
import json, os, resource, sys, warnings
from pathlib import Path
from types import SimpleNamespace

import torch
import everybyte as eb
from everybyte.command import main
from everybyte.deriving import cache
from everybyte.lab import Measurement, records
from everybyte.rehearsal.watch import _Watched
from everybyte.teach import interviewing, kept

place, example = Path(sys.argv[1]), sys.argv[2]
os.environ[cache.VARIABLE] = str(place / "derived")
small = eb.model("gpt2").replace(layers=2, width=64, heads=4, vocabulary=300, positions=64)
failed = Measurement(
    model=small, setup=eb.Setup(batch=2, sequence=16), status="failed", reason="it hung", date="2001-01-01T00:00:00+00:00",
    device={"name": "made up", "type": "cuda", "gpu": None, "memory": 1}, fingerprint=64 * "0",
)
derived = eb.derive(small, eb.Setup(batch=2, sequence=16))
deck = interviewing.interview()
net = torch.nn.Linear(512, 512)


def monitored(path):
    optimizer = torch.optim.SGD(net.parameters())
    with eb.Monitor(device="cpu", picture=path):
        for _ in range(4):
            net(torch.ones(8, 512)).sum().backward()
            optimizer.step()
            optimizer.zero_grad()


def progress(path):
    os.environ[kept.VARIABLE] = str(path)
    if path.exists():
        return kept.keep("solved", "13.2")
    path.write_text(json.dumps({"solved": [str(n) for n in range(200)]}))
    return kept.keep("solved", "13.1")


def watched(path):
    watch = SimpleNamespace(notes=[], snapshot=None, _rank=lambda: 0)
    _Watched._keep(watch, {"segments": [], "device_traces": [list(range(900))]}, str(path))
    return watch.notes[0] if watch.notes else ""


writers = {
    "figure of a snapshot": ("x.png", lambda path: main(["snapshot", example, "--figure", str(path)])),
    "picture of the monitor": ("y.png", monitored),
    "snapshot of a rehearsal": ("z.pickle", watched),
    "derivation": ("derived.json", lambda path: cache.write((path, small), derived)),
    "cards": ("cards.csv", deck.save_csv),
    "progress": ("progress.json", progress),
    "line of a record": ("made-up.jsonl", lambda path: records.append(path, failed)),
}
found = {}
sys.stdout = open(os.devnull, "w")
for name, (file, write) in writers.items():
    folder = place / name
    folder.mkdir()
    path = folder / file
    write(path)  # once with room: it writes more than the limit
    size = path.stat().st_size
    before = path.read_bytes()
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        resource.setrlimit(resource.RLIMIT_FSIZE, (200, resource.RLIM_INFINITY))
        try:
            said = write(path)
        except OSError as error:
            said = f"OSError: {error.strerror}"
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY,) * 2)
    after = path.read_bytes()
    found[name] = [size, after == before, {p.name for p in folder.iterdir()} - {file + ".lock"} == {file}, str(said), [str(w.message) for w in warned]]
print(json.dumps(found), file=sys.__stdout__)
"""


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """Writer -> [bytes that it writes, whether what stood there stands, whether nothing lies beside it, what it says, warnings]."""
    place = tmp_path_factory.mktemp("full")
    ran = subprocess.run(
        [sys.executable, "-c", WRITERS, str(place), str(EXAMPLE)], capture_output=True, text=True, timeout=300
    )
    assert ran.returncode == 0, ran.stderr[-3000:]
    return json.loads(ran.stdout)


@pytest.mark.parametrize(
    "writer, says",
    [
        ("figure of a snapshot", "2"),  # the command's status, with a sentence
        ("picture of the monitor", "Monitor.picture: .* is not written"),
        ("snapshot of a rehearsal", "The snapshot is not in .*: File too large"),
        ("derivation", "None"),
        ("cards", "OSError: File too large"),
        ("progress", "was not kept"),
        ("line of a record", "OSError: File too large"),
    ],
)
def test_a_disk_that_takes_no_more_leaves_what_stood_there(written, writer, says):
    size, stands, alone, said, warned = written[writer]
    assert size > 200 and stands and alone
    assert any(re.search(says, text) for text in (said, *warned)), (said, warned)


def test_a_file_is_there_whole_or_not_at_all(tmp_path, monkeypatch):
    path, link = tmp_path / "a", tmp_path / "link"
    link.symlink_to(path)
    with files.whole(link) as file:
        file.write(b"first")
    assert path.read_bytes() == b"first" and link.is_symlink()
    with pytest.raises(KeyboardInterrupt), files.whole(path) as file:
        file.write(b"second")
        raise KeyboardInterrupt
    with monkeypatch.context() as patch, pytest.raises(OSError, match="No space"):

        def full(_):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        patch.setattr(os, "fsync", full)
        with files.whole(path) as file:
            file.write(b"third")
    assert path.read_bytes() == b"first" and sorted(p.name for p in tmp_path.iterdir()) == ["a", "link"]


def test_what_is_no_file_is_written_to():
    with files.whole(os.devnull) as file:
        file.write(b"x")
    assert not Path(os.devnull).is_file()


UNPRIVILEGED = """
import ctypes, os, sys
if os.geteuid() == 0:  # root without what lets it write everywhere
    header, data = (ctypes.c_uint32 * 2)(0x20080522, 0), (ctypes.c_uint32 * 6)()
    libc = ctypes.CDLL(None, use_errno=True)
    assert libc.capget(header, data) == 0
    data[0] &= ~0b110  # CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH
    assert libc.capset(header, data) == 0, os.strerror(ctypes.get_errno())
home = os.environ["HOME"]
try:
    open(os.path.join(home, "x"), "w")
except PermissionError:
    pass
else:
    raise SystemExit("the home can be written")
import everybyte as eb
from everybyte.command import main
from everybyte.teach import check
small = eb.model("gpt2").replace(layers=2, width=64, heads=4, vocabulary=300, positions=64)
setup = eb.Setup(batch=2, sequence=16)
assert eb.derive(small, setup).at(batch=2, sequence=16).peak == eb.budget(small, setup).peak
assert "was not kept" in check("13.1", 1).text
assert eb.draw.png(eb.draw.timeline(eb.dry_run(small, setup)))[:4] == bytes([137]) + b"PNG"
assert main(["budget", "gpt2"]) == 0
assert main(["snapshot", sys.argv[1], "--figure", os.path.join(home, "x.png")]) == 2
print("right", file=sys.stderr)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="capabilities are Linux's")
def test_a_home_that_cannot_be_written_stops_nothing(tmp_path):
    """As nobody but its owner, who may not write there: derivations and answers are not kept, everything else is as ever."""
    home = tmp_path / "home"
    home.mkdir()
    home.chmod(0o555)
    clean = {n: v for n, v in os.environ.items() if not n.startswith(("XDG_", "EVERYBYTE_", "CI"))}
    ran = subprocess.run(
        [sys.executable, "-c", UNPRIVILEGED, str(EXAMPLE)],
        env=clean | {"HOME": str(home)}, capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert ran.returncode == 0 and ran.stderr.endswith("right\n"), ran.stderr[-3000:]
    assert f"everybyte: Permission denied: {home / 'x.png'}\n" in ran.stderr and "Traceback" not in ran.stderr
    assert list(home.iterdir()) == []
