"""Rehearses the script that chapter 42 reads, and keeps what it left: its memory snapshot and its memory summary.

    .venv/bin/python tools/snapshots.py

Times, paths of this machine and PyTorch's own empty fields go; addresses count from the lowest. It needs the environment of
rehearsals (`make rehearsal`).
"""

import contextlib
import io
import os
import pickle
import subprocess
import tempfile
from pathlib import Path

from everybyte.evidence import example
from everybyte.evidence.pickles import read
from everybyte.rehearsal import devices, place
from everybyte.rehearsal.script import surroundings

#: Fields that are kept.
EVENT = ("action", "addr", "size", "stream", "device_free")
SEGMENT = (
    "device",
    "address",
    "total_size",
    "allocated_size",
    "active_size",
    "requested_size",
    "stream",
    "segment_type",
    "is_expandable",
)
BLOCK = ("address", "size", "requested_size", "state")


def record():
    """(the snapshot, the text of the summary) of the script, rehearsed on an H200."""
    where = place.find()
    variables = devices.environment(devices.find("h200", where.manifest["capabilities"]), 1, None)
    with tempfile.TemporaryDirectory() as folder, surroundings(where, variables) as (environment, _):
        environment = {n: v for n, v in environment.items() if not n.startswith("EVERYBYTE_REHEARSAL_REPORTS")}
        command = [str(where.python), str(example.SCRIPT)]
        done = subprocess.run(command, env=environment, cwd=folder, check=True, capture_output=True, text=True)
        return tidy(read(Path(folder) / "train.pickle")[0]), done.stdout


def tidy(said):
    """A snapshot with nothing of the machine in it."""
    low = min(segment["address"] for segment in said["segments"])
    known = {}

    def frames(found):
        kept = tuple((_file(f["filename"]), f["line"], f["name"]) for f in found or ())
        return known.setdefault(kept, [dict(zip(("filename", "line", "name"), f, strict=True)) for f in kept])

    def event(e):
        kept = {name: e[name] for name in EVENT if name in e} | {"frames": frames(e.get("frames"))}
        return kept | ({"addr": e["addr"] - low} if "addr" in e else {})

    def block(b):
        kept = {name: b[name] for name in BLOCK}
        return kept | {"address": b["address"] - low, "frames": frames(b.get("frames"))}

    segments = []
    for s in said["segments"]:
        kept = {name: s[name] for name in SEGMENT}
        segments.append(kept | {"address": s["address"] - low, "blocks": [block(b) for b in s["blocks"]]})
    traces = [[event(e) for e in trace if e["action"] != "snapshot"] for trace in said["device_traces"]]
    settings = {"PYTORCH_CUDA_ALLOC_CONF": said["allocator_settings"]["PYTORCH_CUDA_ALLOC_CONF"]}
    return {"segments": segments, "device_traces": traces, "allocator_settings": settings}


def _file(path):
    _, packages, inside = path.partition("/site-packages/")
    return packages + inside if packages else os.path.basename(path)


def main():
    """Write both files."""
    snapshot, summary = record()
    out = io.BytesIO()
    pickle.dump(snapshot, out, protocol=4)
    example.SNAPSHOT.write_bytes(out.getvalue())
    example.SUMMARY.write_text(summary, encoding="utf-8")
    print(f"{example.SNAPSHOT.name}: {len(out.getvalue()):,} B, {sum(map(len, snapshot['device_traces'])):,} events")


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        main()
