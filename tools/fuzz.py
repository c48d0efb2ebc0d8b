"""Whatever is given, the answer is right, or a clear error: `make fuzz`, and a slice of it in `make test`.

Each subject draws an input, gives it to the library, and holds what comes back against a second way to compute it. A verdict is
`right`, or `clear error`: a ValueError that names a field, or the command's one sentence with status 2. Anything else, another
exception, another number, a minute without an answer, ends the subject with the shortest such input that is found.
"""

import argparse
import contextlib
import io
import json
import os
import pickle
import re
import signal
import sys
import tempfile
import time
from collections import Counter
from fractions import Fraction
from pathlib import Path

import grid
import hypothesis
import numpy
from hypothesis import strategies as st

import everybyte as eb
from everybyte import cli, evidence, formulas, settling, units
from everybyte.allocator import Settings, settings
from everybyte.budget import peaks
from everybyte.catalog.claims import read_claims
from everybyte.evidence import messages
from everybyte.lab import Measurement, records
from everybyte.setup import CHOICES, LIMITS
from everybyte.tables import Table
from everybyte.teach import kept

#: Seconds that one input may take.
EACH = 60
#: What is nobody's number, name or choice.
JUNK = st.one_of(
    st.none(), st.booleans(), st.integers(-(2**70), 2**70), st.floats(), st.text(max_size=8), st.just([]), st.just({}), st.just({"a": 1}),
    st.sampled_from(["fsdp", "float16", "0", "-1", "nan", "gpt2", "cuda", "../..", "<b>", "\ud800", "$\\frac{$", "\x00"]),
)  # fmt: skip
#: A clear error begins with what it speaks of.
CLEAR = re.compile(r"(?s)^(claim |formula )?[^\n:()]{1,120}: .+")
NOTHING_KEPT = eb.Headroom(driver=0, context=0, workspace=0, fragmentation=0, other=0)
SMALL = {
    "batch": st.integers(1, 4),
    "sequence": st.integers(1, 16),
    "gpus": st.sampled_from([1, 2, 8]),
    "accumulation": st.integers(1, 3),
}


def junk_or(strategy, one_in=6):
    """A strategy with junk among what it draws."""
    return st.integers(1, one_in).flatmap(lambda n: JUNK if n == 1 else strategy)


def whole(least, most):
    """Whole numbers, near the bounds as well as far."""
    return st.one_of(
        st.integers(least, min(most, least + 8)), st.integers(least, most), st.just(most), st.just(most + 1)
    )


_FIELDS = {name: whole(*bounds) for name, bounds in LIMITS.items()} | {
    n: st.sampled_from(list(c)) for n, c in CHOICES.items()
}
SETUPS = st.dictionaries(
    st.sampled_from([*_FIELDS, "dropout", "no_sync", "adapters"]), st.just(None), max_size=3
).flatmap(
    lambda names: st.fixed_dictionaries(
        {name: junk_or(_FIELDS.get(name, st.sampled_from([0.1, True, {"rank": 4}])), 12) for name in names}
    )
)
_DIMENSIONS = {
    n: st.sampled_from([1, 2, 3, 4, 6, 8, 12, 64, 2**24])
    for n in ("layers", "width", "heads", "kv_heads", "ffn_width", "positions")
}
_DIMENSIONS |= {
    "heads": st.integers(1, 4),
    "kv_heads": st.integers(1, 4),
    "width": st.sampled_from([12, 24, 48, 10, 2**24]),
}
_DIMENSIONS |= {
    "vocabulary": st.integers(1, 300),
    "tied": st.booleans(),
    "gated": st.booleans(),
    "norm": st.sampled_from(["layernorm", "rmsnorm"]),
}
_OPTIONAL = ("kv_heads", "ffn_width", "tied", "gated", "norm")
MODELS = st.fixed_dictionaries(
    {name: junk_or(_DIMENSIONS[name], 40) for name in ("layers", "width", "heads", "vocabulary", "positions")},
    optional={name: junk_or(_DIMENSIONS[name], 20) for name in _OPTIONAL},
)


class Refused(Exception):
    """A clear error."""


def setup(draw):
    """A setup says all of itself in JSON, and is read back from it."""
    made = eb.Setup(**draw(SETUPS))
    assert eb.Setup(**json.loads(json.dumps(made.as_dict()))) == made == made.replace()


def model(draw):
    """A model's parameters are those of PyTorch's modules, where a reference builds it, and those of the formula."""
    made = eb.Model(name="drawn", **draw(MODELS))
    assert made.parameters > 0
    if not made.unlike_reference():
        if made.family == "gpt":
            assert formulas.formula("parameters").at(made) == made.parameters
        if made.layers * made.width * made.ffn_width < 10**6:
            import torch

            from everybyte.reference import FAMILIES

            with torch.device("meta"):
                module = FAMILIES[made.family](made, eb.Setup(batch=1, sequence=1, attention="eager"))
            assert sum(p.numel() for p in module.parameters()) == made.parameters


def _step(draw):
    """A step of the grid that the witnesses are held to, with a field of the setup or two changed, or none."""
    made, said, rounding = grid.everything(draw(st.integers(0, 10**6)))
    names = draw(st.lists(st.sampled_from(list(_FIELDS)), max_size=2))
    return made, said.replace(**{name: draw(junk_or(SMALL.get(name, _FIELDS[name]), 4)) for name in names}), rounding


def budget(draw):
    """A budget's parts sum to its peak, in both roundings, and `peaks` says the same of many."""
    made, said, rounding = _step(draw)
    rounding = draw(junk_or(st.just(rounding), 20))
    found = eb.budget(made, said, rounding)
    assert sum(found.parts.values()) == found.peak and found.peak % rounding == 0
    assert max(found.live) == found.peak
    if said.loss == "plain":
        assert peaks(made, said, [said.batch], [said.sequence], rounding)[0].tolist() == [found.peak]


def dry_run(draw):
    """PyTorch's own step takes what the theory says."""
    made, said, rounding = _step(draw)
    hypothesis.assume(max(said.gpus, said.accumulation) <= 8 and said.batch * said.sequence <= 2**12)
    assert eb.dry_run(made, said, rounding).peak == eb.budget(made, said, rounding).peak


def module(draw):
    """A module of one's own: its weights' bytes are those of its own numbers, and its loss's gradient is one of each."""
    import torch
    from torch import nn

    layers = draw(
        st.lists(st.sampled_from([*("linear norm relu dropout gelu " * 3).split(), "broken", "data"]), max_size=4)
    ) + ["linear"] * draw(st.sampled_from([0, 1, 1, 1, 1]))
    width, shape = draw(st.integers(1, 9)), draw(junk_or(st.tuples(st.integers(1, 5), st.integers(1, 9)), 12))

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            made = {
                "linear": lambda: nn.Linear(width, width),
                "norm": lambda: nn.LayerNorm(width),
                "relu": nn.ReLU,
                "dropout": nn.Dropout,
                "gelu": nn.GELU,
            }
            self.layers = nn.ModuleList(made.get(name, nn.Identity)() for name in layers)

        def forward(self, x):
            for layer in self.layers:
                x = layer(x)
            if "broken" in layers:
                return x
            return x.sum() if "data" not in layers or x.sum() > 0 else x.mean()

    numbers = sum(p.numel() for p in Net().parameters())
    shape = (*shape, width) if isinstance(shape, tuple) else shape
    try:
        found = eb.dry_run(Net, eb.Setup(optimizer="sgd"), batch={"x": (shape, torch.float32)})
    except (RuntimeError, TypeError, IndexError) as error:  # the module's own, with a note of where it was
        if not any(note.startswith("everybyte.dry_run: in ") for note in getattr(error, "__notes__", ())):
            raise
        raise Refused(str(error)) from error
    assert found.parts["parameters"] == 4 * numbers and found.phases["rest"] == 4 * numbers
    assert found.parts_at("after_backward")["gradients"] == 4 * numbers


def card(draw):
    """A GPU of any size: its bytes are those that Fractions say, and what fits it fits, and the next does not."""
    number, unit = draw(st.decimals(0, 10**6, places=2)), draw(st.sampled_from([*units.UNITS, "GIB", ""]))
    gpu = eb.Gpu(memory=draw(junk_or(st.just(f"{number} {unit}"), 4)))
    if unit in units.UNITS and "." in str(number) and gpu.memory != 0:
        exact = Fraction(str(number)) * units.UNITS[unit]
        assert gpu.memory in (exact, round(exact), int(exact)) or not isinstance(gpu.memory, int) or exact != gpu.memory
    made = eb.Model(name="drawn", layers=2, width=64, heads=2, vocabulary=100, positions=64, learned_positions=64)
    found = eb.fit(made, eb.Setup(batch=1, sequence=draw(st.integers(1, 64))), gpu, headroom=NOTHING_KEPT)
    if found.value:
        usable = NOTHING_KEPT.usable(gpu)
        assert eb.budget(made, found.setup.replace(batch=found.value), 512).peak <= usable


def size(draw):
    """Text of bytes is within half its last digit, in a unit that keeps it below 1,024, and is read back so."""
    count, digits = draw(junk_or(st.integers(0, 2**80) | st.floats(0, 1e20))), draw(st.integers(0, 4))
    if isinstance(count, bool) or not isinstance(count, int | float):
        said = units.parse(count)
        assert said == said
        return
    said = units.text(count, digits=digits)
    number, unit = said.split()
    assert (
        abs(Fraction(number) * units.UNITS[unit] - Fraction(count))
        <= Fraction(501, 1000) * units.UNITS[unit] / 10**digits
        or count < 0
    )
    assert abs(float(number)) < 1024 or unit == "EiB"
    assert units.parse(said) == float(number) * units.UNITS[unit]


def formula(draw):
    """A formula over arrays is the formula of each number, whatever its size."""
    found = formulas.formula(
        draw(
            junk_or(
                st.sampled_from(["flops.block", "attention.scores", "parameters", "zero.states", "checkpoint.inputs"]),
                20,
            )
        )
    )
    points = [{e.name: draw(junk_or(st.integers(1, 2**40), 40)) for e in found.symbols} for _ in range(3)]
    hypothesis.assume(not any(isinstance(v, float | bool) for point in points for v in point.values()))
    arrays = found.arrays(**{e.name: [point[e.name] for point in points] for e in found.symbols})
    assert list(numpy.broadcast_to(arrays, 3)) == [found(**point) for point in points]


def claim(draw):
    """An expression of a claim is what Fractions make of it."""
    numbers = st.integers(0, 99).map(str) | st.sampled_from(["0.5", "1e3", "9", "2**40", "(-1)"])
    text = draw(
        st.recursive(
            numbers,
            lambda s: st.tuples(s, st.sampled_from(["+", "-", "*", "/", "**"]), s).map(lambda t: f"({''.join(t)})"),
            max_leaves=8,
        )
    )
    one = next(c for c in eb.claims().values() if c.value and not c.given and not c.runs and c.unit not in units.UNITS)
    import dataclasses

    found = settling._Reader(dataclasses.replace(one, value=draw(junk_or(st.just(text), 12)) or "")).read("value")
    exact = re.sub(r"\d+(\.\d+)?(e\d+)?", lambda m: f"Fraction('{m[0]}')", text)
    assert found == eval(exact, {"Fraction": Fraction})  # noqa: S307 this file's own digits and signs


def claims_file(draw):
    """A file of claims with bytes changed is read as it was, or names the claim."""
    text = _claims()
    for _ in range(draw(st.integers(0, 2))):
        at = draw(st.integers(0, len(text) - 1))
        text = (
            text[:at]
            + draw(st.sampled_from(["", '"', "=", "\n", "]", "x", "9", "-"]))
            + text[at + draw(st.integers(0, 12)) :]
        )
    import tomllib

    try:
        said = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise Refused("no TOML") from error
    found = read_claims(text)
    assert list(found) == list(said) and all(found[id].claim == said[id]["claim"] for id in found)


def _claims():
    whole_text = (Path(eb.__file__).parent / "catalog" / "claims.toml").read_text(encoding="utf-8")
    return whole_text[: whole_text.index("\n[", 6000)]


def record(draw):
    """Of a file of measurements the lines that nobody touched are read, and no other but where it says the same."""
    lines = list(_lines())
    touched = set()
    for _ in range(draw(st.integers(0, 3))):
        i = draw(st.integers(0, len(lines) - 1))
        at, data = draw(st.integers(0, len(lines[i]))), draw(st.binary(max_size=3))
        before, lines[i] = (
            lines[i],
            (lines[i][:at] + data + lines[i][at + draw(st.integers(0, 40)) :]).replace(b"\n", b""),
        )
        touched |= {i} if lines[i] != before else set()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "drawn.jsonl"
        path.write_bytes(b"".join(line + b"\n" for line in lines))
        found = records.read(path)
        good = [m.as_dict() for m in found.measurements]
        for i, line in enumerate(_lines()):
            assert i in touched or {k: v for k, v in json.loads(line).items() if k != "check"} in good
        assert len(good) + len(found.faults) == len(lines) and len(good) >= len(lines) - len(touched)
        records.repair(path)
        assert [m.as_dict() for m in records.read(path).measurements] == good and not records.read(path).faults
    if found.faults:
        raise Refused(found.faults[0])


def _lines():
    if not _LINES:
        made = eb.Model(name="small", layers=2, width=48, heads=3, vocabulary=101, positions=40)
        common = {
            "model": made,
            "device": {"name": "drawn", "type": "cpu", "gpu": None, "memory": None},
            "date": "2001-01-01T00:00:00+00:00",
        }
        for n in (1, 2, 3):
            said = Measurement(
                setup=eb.Setup(batch=n, sequence=8), status="skipped", reason="drawn", fingerprint=64 * str(n), **common
            ).as_dict()
            _LINES.append(json.dumps(said | {"check": records._checksum(said)}).encode())
    return _LINES


_LINES = []


def measurement(draw):
    """A measurement whose fields are anything survives its own JSON, or is refused."""
    said = json.loads(_lines()[0])
    said.pop("check")
    inner = {name: part for part in (said, said["setup"], said["model"]["dimensions"]) for name in part}
    for name in draw(st.lists(st.sampled_from([*inner, "name", "x"]), max_size=2)):
        inner.get(name, said)[name] = draw(JUNK)
    found = Measurement.from_dict(said)
    again = Measurement.from_dict(found.as_dict())
    assert again.as_dict() == found.as_dict() and again._repr_html_() == found._repr_html_()


def progress(draw):
    """The file of answers is what JSON says it is, or is set aside whole."""
    ids = st.dictionaries(
        st.sampled_from(["solved", "tried", "predicted", "x"]),
        junk_or(st.lists(junk_or(st.text(max_size=5), 9), max_size=3)),
        max_size=3,
    )
    data = draw(ids.map(lambda said: json.dumps(said).encode()) | st.binary(max_size=40) | st.just(b"[" * 100_000))
    with tempfile.TemporaryDirectory() as folder, _environment(kept.VARIABLE, f"{folder}/progress.json"):
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
        assert kept.keep("solved", "13.1") == "" and "13.1" in kept.load()[0]["solved"]


@contextlib.contextmanager
def _environment(name, value):
    before = os.environ.get(name)
    os.environ[name] = value
    try:
        yield
    finally:
        os.environ.pop(name)
        os.environ |= {name: before} if before is not None else {}


_SEGMENT = st.fixed_dictionaries(
    {"address": junk_or(st.integers(0, 2**48), 20), "total_size": junk_or(st.integers(0, 2**40), 20), "blocks": junk_or(st.lists(junk_or(st.fixed_dictionaries(
        {"size": junk_or(st.integers(0, 2**40), 20), "state": junk_or(st.sampled_from(["active_allocated", "inactive", "active_pending_free"]), 20)}), 9), max_size=3), 20)},
    optional={"device": junk_or(st.integers(0, 2), 20), "segment_type": st.sampled_from(["large", "small"]), "frames": JUNK},
)  # fmt: skip
_EVENT = st.fixed_dictionaries(
    {"action": junk_or(st.sampled_from(["alloc", "free_requested", "free_completed", "segment_alloc", "oom", "x"]), 20), "size": junk_or(st.integers(0, 2**40), 20)},
    optional={"addr": junk_or(st.integers(0, 2**48), 20), "stream": junk_or(st.integers(0, 3), 20), "frames": junk_or(st.just([{"filename": "a.py", "line": 3, "name": "f"}]), 9)},
)  # fmt: skip


def snapshot(draw):
    """A snapshot's reserved bytes are its segments', and its allocated ones its blocks'; nothing in it is run."""
    said = {
        "segments": draw(junk_or(st.lists(junk_or(_SEGMENT, 12), max_size=3), 12)),
        "device_traces": draw(junk_or(st.lists(junk_or(st.lists(_EVENT, max_size=4), 20), max_size=2), 12)),
    }
    data = pickle.dumps(draw(junk_or(st.just(said), 12)))
    if draw(st.integers(1, 5)) == 1:
        at = draw(st.integers(0, len(data)))
        data = data[:at] + draw(st.binary(max_size=4)) + data[at + draw(st.integers(0, 3)) :]
        evidence.snapshot(data)  # whatever its numbers are
        return
    found = evidence.snapshot(data)
    for number, memory in found.devices.items():
        mine = [s for s in said["segments"] if s.get("device", 0) == number]
        assert memory.reserved == sum(s["total_size"] for s in mine)
    assert repr(found) and found._repr_html_()
    eb.doctor(found)


def message(draw):
    """The numbers of a message are those that were put into it, to their last digit; whatever stands around it."""
    units_of = st.sampled_from(["bytes", "KiB", "MiB", "GiB"])
    asked, capacity, free = ((draw(st.integers(1, 99_999)), draw(units_of)) for _ in range(3))
    show = [f"{n / 100:.2f} {u}" for n, u in (asked, capacity, free)]
    text = f"torch.OutOfMemoryError: CUDA out of memory. Tried to allocate {show[0]}. GPU 1 has a total capacity of {show[1]} of which {show[2]} is free."
    if draw(st.integers(1, 3)) == 1:
        at = draw(st.integers(0, len(text)))
        eb.doctor(
            text[:at]
            + draw(st.text(max_size=5) | st.sampled_from([".", "..", "9", "CUDA out of memory"]))
            + text[at + draw(st.integers(0, 9)) :]
        )
        return
    found = messages.message(draw(st.text(max_size=20)) + text + draw(st.text(max_size=20)))
    for value, (number, unit) in zip((found.asked, found.capacity, found.free), (asked, capacity, free), strict=True):
        assert value == round(float(f"{number / 100:.2f}") * (units.UNITS | {"bytes": 1})[unit])
    eb.doctor(text)


def configuration(draw):
    """The allocator's configuration: what is said of each field is what stands in the text."""
    values = {
        "max_split_size_mb": st.integers(18, 5000), "expandable_segments": st.booleans(), "garbage_collection_threshold": st.floats(0.01, 0.99),
        "roundup_power2_divisions": st.sampled_from([1, 2, 4, 8]), "per_process_memory_fraction": st.floats(0.01, 1), "backend": st.just("native"), "x": st.just(1),
    }  # fmt: skip
    odd = (
        st.integers(-2, 5000).map(str) | st.sampled_from(["True", "0.5", "[256:1]", "", ":", ","]) | st.text(max_size=4)
    )
    names = draw(
        st.lists(st.sampled_from([n for n in values for _ in range(1 if n == "x" else 4)]), max_size=3, unique=True)
    )
    pairs = [(name, draw(odd if draw(st.integers(1, 6)) == 1 else values[name].map(str))) for name in names]
    found = settings(",".join(f"{name}:{value}" for name, value in pairs))
    assert isinstance(found, Settings)
    last = dict(pairs)
    if "max_split_size_mb" in last and len(pairs) == 1:
        assert found.max_split_size == int(last["max_split_size_mb"]) * 2**20


def config(draw):
    """A Hugging Face configuration: the bytes of its parameters are those of the model that transformers builds."""
    import torch
    import transformers

    from everybyte.deriving import given

    said = {
        "model_type": draw(junk_or(st.sampled_from(["llama", "gpt2"]), 12)),
        "num_hidden_layers": 1,
        "n_layer": 1,
        "vocab_size": draw(junk_or(st.integers(2, 99), 12)),
    }
    said |= {
        "hidden_size": 8,
        "intermediate_size": draw(junk_or(st.integers(1, 32), 12)),
        "num_attention_heads": 2,
        "num_key_value_heads": draw(junk_or(st.just(2), 12)),
        "n_embd": 8,
        "n_head": draw(st.sampled_from([1, 2, 3])),
    }
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "config.json"
        path.write_text(
            json.dumps(said) if draw(st.integers(1, 9)) > 1 else draw(st.text(max_size=9)),
            encoding="utf-8",
            errors="replace",
        )
        made = given.config(str(path))
    found = eb.dry_run(made, eb.Setup(batch=1, sequence=4, optimizer="sgd", attention="eager"))
    with torch.device("meta"):
        numbers = sum(p.numel() for p in transformers.AutoModelForCausalLM.from_config(made).parameters())
    assert (
        found.phases["rest"] - found.parts.get("buffers", 0) in (4 * numbers, found.phases["rest"])
        or found.parts["parameters"] == 4 * numbers
    )


def command(draw):
    """The command says what the library says, or one sentence, with status 2."""
    words = [
        draw(st.sampled_from(["budget", "fit", "models", "gpus", "doctor", "snapshot", "buget", "measure"])),
        draw(st.sampled_from(["gpt2", "gpt2-xl", "gpt3", "", "/", "/dev/null", "--help-me"])),
    ]
    options = {}
    for name in draw(
        st.lists(
            st.sampled_from(
                [
                    "batch",
                    "sequence",
                    "precision",
                    "optimizer",
                    "rounding",
                    "gpu",
                    "memory",
                    "device",
                    "sharding",
                    "gpus",
                    "x",
                ]
            ),
            max_size=3,
            unique=True,
        )
    ):
        options[name] = draw(
            st.one_of(
                st.integers(-1, 2000).map(str),
                st.sampled_from(["bf16", "adamw", "h200", "24GiB", "1e999GiB", "mps", "zero3", "8", "", "nan"]),
                st.text(max_size=4),
            )
        )
        words += [f"--{name}", options[name]]
    if words[0] == "measure":  # never one that runs
        words += ["--device", "mps"]
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        status = cli.main([*words, "--json"])
    if status == 2:
        assert out.getvalue() == "" and err.getvalue().startswith("everybyte: ") and err.getvalue().endswith("\n")
        assert err.getvalue().count("\n") == 1, err.getvalue()
        raise Refused(err.getvalue())
    assert status == 0 and err.getvalue() == ""
    said = json.loads(out.getvalue())
    if words[0] == "budget":
        fields = {n: int(v) if v.lstrip("-").isdigit() else v for n, v in options.items() if n != "rounding"}
        assert said["peak"] == eb.budget(eb.model(words[1]), eb.Setup(**fields), int(options.get("rounding", 1))).peak


def table(draw):
    """A table's HTML has no tag that a cell brought, and as many cells as the table."""
    rows = draw(
        st.lists(
            st.tuples(
                st.text(max_size=9), st.sampled_from(["<b>", "&", '"', "<script>x</script>", "\ud800"]) | st.integers()
            ),
            max_size=3,
        )
    )
    shown = Table(["a", "<i>"], rows)._repr_html_()
    tags = Counter(re.findall(r"<(\w+)", shown))
    assert set(tags) <= {"table", "thead", "tbody", "tr", "th", "td"} and tags["td"] == 2 * len(rows)


#: Subject -> inputs of each ten thousand.
SUBJECTS = {
    setup: 1600, model: 900, budget: 700, dry_run: 150, module: 300, card: 500, size: 900, formula: 300, claim: 700, claims_file: 300,
    record: 500, measurement: 800, progress: 300, snapshot: 700, message: 600, configuration: 500, config: 50, command: 500, table: 300,
}  # fmt: skip


def verdict(subject, draw) -> str:
    """`right` or `clear error`; anything else is raised."""
    try:
        with _within(EACH):
            subject(draw)
    except Refused:
        return "clear error"
    except ValueError as error:
        ours = type(error) is ValueError or type(error).__module__.startswith("everybyte")
        if not ours or not CLEAR.match(str(error)):
            raise AssertionError(f"no clear error: {type(error).__name__}: {error}") from error
        return "clear error"
    return "right"


@contextlib.contextmanager
def _within(seconds):
    def late(*_):
        raise TimeoutError(f"no answer within {seconds} s")

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def run(subject, count: int, seed: int = 0) -> Counter:
    """Verdicts over so many inputs; the first that is neither, shortest first, is raised."""
    seen = Counter()

    @hypothesis.seed(seed)
    @hypothesis.settings(
        max_examples=count, deadline=None, database=None, suppress_health_check=list(hypothesis.HealthCheck)
    )
    @hypothesis.given(st.data())
    def each(data):
        seen[verdict(subject, data.draw)] += 1

    each()
    return seen


def main() -> int:
    """Run all of it, or `--only` some; the exit status says whether there was anything but right and clear."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--inputs", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", nargs="+", choices=[s.__name__ for s in SUBJECTS])
    options = parser.parse_args()
    rows, failed = [], 0
    for subject, share in SUBJECTS.items():
        if options.only and subject.__name__ not in options.only:
            continue
        start, trouble = time.monotonic(), ""
        try:
            seen = run(subject, max(1, share * options.inputs // 10_000), options.seed)
        except BaseException as error:
            if isinstance(error, KeyboardInterrupt):
                raise
            seen, failed = Counter(), failed + 1
            trouble = f"{type(error).__name__}: {error}"
            print(
                f"{subject.__name__}: {trouble}\n" + "\n".join(getattr(error, "__notes__", ())),
                file=sys.stderr,
                flush=True,
            )
        rows.append(
            [
                subject.__name__,
                sum(seen.values()),
                seen["right"],
                seen["clear error"],
                int(bool(trouble)),
                f"{time.monotonic() - start:.1f}",
            ]
        )
        print(*rows[-1], flush=True, file=sys.stderr)
    rows.append(
        ["all", *(sum(row[i] for row in rows) for i in (1, 2, 3, 4)), f"{sum(float(row[5]) for row in rows):.1f}"]
    )
    print(Table(["subject", "inputs", "right", "clear error", "failed", "seconds"], rows))
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
