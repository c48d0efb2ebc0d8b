"""Evidence: snapshots that somebody made or made up, and errors' texts."""

import contextlib
import io
import os
import pickle
import re
import struct
import sys
import tempfile
from pathlib import Path

from hypothesis import strategies as st

import everybyte as eb
from everybyte import units
from everybyte.command import main
from everybyte.evidence import messages, reports

from .drawn import JUNK, cut, junk_or, printable, tags

#: Text that a terminal or a page would take for more than letters.
_ESCAPES = st.one_of(
    st.sampled_from(["\x1b[2Jf\r\n", "\x9b31m", "<script>x</script>", "a\nb", "\x00", "\u202e", "\ud800", "f"]),
    st.text(max_size=6),
)
_FRAMES = junk_or(
    st.lists(junk_or(st.fixed_dictionaries({"filename": _ESCAPES, "line": junk_or(st.integers(0, 99), 9), "name": _ESCAPES}), 20), max_size=2), 20
)  # fmt: skip
_STATES = ["active_allocated", "inactive", "active_pending_free"]
_BLOCK = st.fixed_dictionaries(
    {"size": junk_or(st.integers(0, 2**40), 40), "state": junk_or(st.sampled_from(_STATES), 40)}, optional={"frames": _FRAMES}
)  # fmt: skip
_SEGMENT = st.fixed_dictionaries(
    {"address": junk_or(st.integers(0, 2**48), 40), "total_size": junk_or(st.integers(0, 2**40), 40),
     "blocks": junk_or(st.lists(junk_or(_BLOCK, 20), max_size=3), 40)},
    optional={"device": junk_or(st.integers(0, 2), 20), "segment_type": st.sampled_from(["large", "small"]), "frames": JUNK},
)  # fmt: skip
_ACTIONS = ["alloc", "free_requested", "free_completed", "segment_alloc", "oom", "x"]
_EVENT = st.fixed_dictionaries(
    {"action": junk_or(st.sampled_from(_ACTIONS), 40), "size": junk_or(st.integers(0, 2**40), 40)},
    optional={"addr": junk_or(st.integers(0, 2**48), 40), "stream": junk_or(st.integers(0, 3), 40), "frames": _FRAMES},
)  # fmt: skip
_SAID = st.fixed_dictionaries(
    {"segments": junk_or(st.lists(junk_or(_SEGMENT, 12), max_size=3), 12),
     "device_traces": junk_or(st.lists(junk_or(st.lists(_EVENT, max_size=4), 20), max_size=2), 12)},
    optional={"allocator_settings": junk_or(st.fixed_dictionaries({"PYTORCH_CUDA_ALLOC_CONF": _ESCAPES}))},
)  # fmt: skip


def _shown(found):
    """Whatever a snapshot's names are, its text is text, and its HTML has the page's own tags alone."""
    printable(repr(found))
    printable(str(found.main.table()))
    tags(found._repr_html_())
    printable(repr(eb.doctor(found)))


def snapshot(draw):
    """A snapshot's reserved bytes are its segments', and its allocated ones its blocks'."""
    said = draw(_SAID)
    data = pickle.dumps(draw(junk_or(st.just(said), 12)))
    if draw(st.integers(1, 5)) == 1:
        _shown(eb.snapshot(cut(draw, data, st.binary(max_size=4), 3)))  # whatever its numbers are
        return
    found = eb.snapshot(data)
    for number, memory in found.devices.items():
        mine = [s for s in said["segments"] if s.get("device", 0) == number]
        assert memory.reserved == sum(s["total_size"] for s in mine)
    _shown(found)


class _Ends:
    """Unpickled, it makes a folder."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (self.path,)


def _amplified(draw):
    """A segment of many blocks, or a frame, that many places of the pickle refer to."""
    block = {
        "size": 512,
        "state": "active_allocated",
        "frames": [{"filename": "a.py", "line": 1, "name": "f"}] * draw(st.integers(0, 300)),
    }
    segment = {"address": 0, "total_size": 512, "blocks": [block] * draw(st.integers(1, 5000))}
    event = {"action": "alloc", "addr": 0, "size": 512, "frames": block["frames"]}
    traces = [[event] * draw(st.integers(0, 20_000))]
    return pickle.dumps({"segments": [segment] * draw(st.integers(1, 200_000)), "device_traces": traces})


def _nested(draw):
    """A list in a list in a list, without Python's own recursion."""
    depth, ends = draw(st.integers(1, 300_000)), draw(st.sampled_from([b"", b"a"]))
    return b"\x80\x04" + b"]" * depth + b"a" * (depth - 1) * bool(ends) + b"."


_SIZES = st.sampled_from([0, 1, 255, 2**16, 2**31 - 1, 2**31, 2**40, 2**63 - 1, 2**64 - 1])
#: What a pickle's machine can be told, in bytes: with sizes of things that do not follow.
_OPCODES = st.one_of(
    st.builds(lambda op, n: op + struct.pack("<Q", n), st.sampled_from([b"\x96", b"\x8e", b"\x8d", b"\x95"]), _SIZES),
    st.builds(lambda op, n: op + struct.pack("<I", n % 2**32), st.sampled_from([b"\x8b", b"B", b"X", b"T", b"r", b"j"]), _SIZES),
    st.sampled_from([b"]", b"}", b")", b"(", b"t", b"l", b"d", b"s", b"u", b"a", b"e", b"0", b"1", b"2", b"\x85", b"\x94", b"N", b"\x88", b"Q", b"\x97", b"\x98"]),
    st.sampled_from([b"cos\nsystem\n", b"cbuiltins\neval\n", b"\x8c\x02os\x8c\x05mkdir\x93", b"R", b"\x81", b"b", b"P0\n", b"\x82\x01", b"ios\nsystem\n"]),
    st.binary(max_size=3), st.integers(0, 9999).map(lambda n: b"I" + b"9" * n + b"\n"), st.just(b"K\x01"), st.just(b"\x8c\x01x"),
)  # fmt: skip


def hostile(draw):
    """A pickle that was made to hurt is refused or read within seconds; it runs nothing, and prints nothing that a terminal obeys."""
    with tempfile.TemporaryDirectory() as folder:
        mark = Path(folder) / "ran"
        kind = draw(st.sampled_from(["opcodes", "opcodes", "opcodes", "runs", "amplified", "nested", "truncated"]))
        if kind == "opcodes":
            data = (
                b"\x80"
                + draw(st.sampled_from([b"\x02", b"\x04", b"\x05"]))
                + b"".join(draw(st.lists(_OPCODES, max_size=9)))
                + b"."
            )
        elif kind == "runs":
            said = {"segments": [], "device_traces": [[_Ends(str(mark))]], "x": _Ends(str(mark))}
            data = pickle.dumps(said, draw(st.integers(2, 5)))
        elif kind == "truncated":
            data = pickle.dumps(draw(_SAID), draw(st.integers(2, 5)))
            data = data[: draw(st.integers(0, len(data)))]
        else:
            data = (_amplified if kind == "amplified" else _nested)(draw)
        if draw(st.booleans()):
            path = Path(folder) / draw(st.sampled_from(["s.pickle", "s\x1b[2J.pickle", "a\nb"]))
            path.write_bytes(data)
            data = path
        try:
            _shown(eb.snapshot(data))
        finally:
            assert not mark.exists(), "something of the pickle was run"


hostile.seconds = 20

_UNITS = st.sampled_from(["bytes", "KiB", "MiB", "GiB"])


def message(draw):
    """The numbers of a message are those that were put into it, to their last digit; whatever stands around it."""
    asked, capacity, free = ((draw(st.integers(1, 99_999)), draw(_UNITS)) for _ in range(3))
    show = [f"{n / 100:.2f} {u}" for n, u in (asked, capacity, free)]
    text = f"torch.OutOfMemoryError: CUDA out of memory. Tried to allocate {show[0]}. GPU 1 has a total capacity of {show[1]} of which {show[2]} is free."
    if draw(st.integers(1, 3)) == 1:
        pieces = (
            st.text(max_size=5)
            | st.sampled_from([".", "..", "9", "CUDA out of memory", "\x1b[2J"])
            | st.integers(1, 999).map(lambda n: "9" * n)
        )
        damaged = cut(draw, text, pieces)
        _claims_what_stands_there(eb.doctor(damaged, configuration=draw(junk_or(st.just(""), 12))), damaged)
        return
    found = messages.message(draw(st.text(max_size=20)) + text + draw(st.text(max_size=20)))
    for value, (number, unit) in zip((found.asked, found.capacity, found.free), (asked, capacity, free), strict=True):
        assert value == round(float(f"{number / 100:.2f}") * (units.UNITS | {"bytes": 1})[unit])
    eb.doctor(text)


#: Other errors, and whose memory ran out by them; "" where it was nobody's.
_OTHERS = {
    "RuntimeError: CUDA error: out of memory": "driver", "cuda runtime error (2) : out of memory at THCStorage.cu:58": "driver",
    "RuntimeError: CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`": "cublas",
    "torch.distributed.DistBackendError: NCCL error: Cuda failure 2 'out of memory'": "nccl",
    "slurmstepd: error: Detected 1 oom_kill event in StepId=1.0. Some of the step tasks have been OOM Killed.": "host",
    "numpy.core._exceptions._ArrayMemoryError: Unable to allocate 8.00 GiB for an array": "host", "MemoryError": "host",
    "DefaultCPUAllocator: can't allocate memory: you tried to allocate 81920000000 bytes": "host", "Killed": "", "Segmentation fault": "",
    "RuntimeError: CUDA error: an illegal memory access was encountered": "", "IndexError: index 9 is out of bounds": "",
    "loss 2.31 step 17 lr 3e-4": "", "MPS backend out of memory (MPS allocated: 5.89 GB, max allowed: 6.80 GB)": "mps",
}  # fmt: skip
#: Kinds that are one more of another; and what PyTorch calls 2**30 bytes on Apple's GPUs.
_ALIKE = {"thc": "driver", "cgroup": "host"}
_APPLE = {"GB": 2**30, "MB": 2**20, "KB": 2**10}
_TEXTS = (
    {r.text: "pytorch" for r in reports().values()}
    | {f"torch.OutOfMemoryError: {r.text}": "pytorch" for r in reports().values()}
    | _OTHERS
)


def interleaved(draw):
    """Of two errors whose words or lines are mixed, as two ranks write them, no cause is claimed that neither has."""
    texts = [draw(st.sampled_from(list(_TEXTS))) for _ in range(draw(st.integers(1, 3)))]
    kinds = {_TEXTS[text] for text in texts}
    if draw(st.integers(1, 4)) == 1:
        texts[0] = cut(draw, texts[0], st.just(""), 60)
    between = draw(st.sampled_from([" ", "\n", ". ", ""]))
    rows = [re.split(r"(?<= )" if between in (" ", "") else "(?<=\n)|(?<=\\. )", text) for text in texts]
    mixed = []
    while any(rows):
        row = draw(st.sampled_from([row for row in rows if row]))
        count = draw(st.integers(1, len(row)))
        mixed += row[:count]
        del row[:count]
    said = "".join(mixed) if between == "" else between.join(mixed)
    found = eb.doctor(said)
    kind = _ALIKE.get(found.message.kind, found.message.kind)
    assert kind in kinds, (kind, said)
    _claims_what_stands_there(found, said)


def _claims_what_stands_there(found, text):
    """Every amount of a diagnosis stands in the text, and what is printed is text."""
    names = "|".join(units.UNITS | {"bytes": 1})
    amounts = re.findall(rf"(?<![\d.])([\d.]+) ({names})", " ".join(text.split()))
    known = {
        round(float(n) * size)
        for n, u in amounts
        for size in ((units.UNITS | {"bytes": 1})[u], _APPLE.get(u, 1))
        if re.fullmatch(r"\d+\.?\d*|\.\d+", n) and len(n) < 200
    }
    known |= {int(n) for n in re.findall(r"\d+", text) if len(n) < 200}
    for field in ("asked", "capacity", "free", "allocated", "process", "allowed"):
        value = getattr(found.message, field)
        assert value is None or value in known, f"{field}: {value} of {text!r}"
    printable(repr(found))
    tags(found._repr_html_())


def stream(draw):
    """What `doctor` is given on standard input, closed or of bytes that are no text, it reads or refuses."""
    text = draw(st.sampled_from(list(_TEXTS))).encode()
    data = draw(
        st.none() | st.binary(max_size=200) | st.just(text) | st.integers(0, 10**6).map(lambda n: b"\xff" * n + text)
    )
    before, out, err = sys.stdin, io.StringIO(), io.StringIO()
    sys.stdin = None if data is None else io.TextIOWrapper(io.BytesIO(data), encoding="utf-8")
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            status = main(["doctor", "-"])
    finally:
        sys.stdin = before
    assert status in (0, 2), err.getvalue()
    assert (status == 2) == (not out.getvalue()) and printable(out.getvalue() + err.getvalue())
    if status == 2:
        raise ValueError(err.getvalue().removeprefix("everybyte: ").strip())


SUBJECTS = {snapshot: 1000, hostile: 700, message: 1000, interleaved: 900, stream: 200}  # fmt: skip
