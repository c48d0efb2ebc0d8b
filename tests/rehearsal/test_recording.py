"""The record, on GPUs that do nothing: a part of each kind runs, is kept as a rehearsal, and is not run twice."""

import json
from contextlib import contextmanager

import pytest

import everybyte as eb
from everybyte.lab import Configuration, Recipe, read, record
from everybyte.rehearsal import devices, rehearse_script
from everybyte.rehearsal.steps import starter

ALL = pytest.mark.thorough("it takes half a minute")
SMALL = eb.Model(name="small", layers=2, width=64, heads=2, vocabulary=1001, positions=128)
LLAMA = eb.model("llama-3.2-1b", code="reference").replace(
    name="x", layers=1, width=64, heads=4, kv_heads=2, head_width=16, ffn_width=64, vocabulary=1001, positions=64
)
SETUP = eb.Setup(batch=2, sequence=64)
LARGE = SETUP.replace(batch=2048)
LIMIT = 2**30
#: A part of each kind: a peak, FSDP, grouped heads, times, as most run it, growing segments, an out-of-memory and its cure, learning.
PARTS = {
    "peak": Configuration("sizes", SMALL, SETUP.replace(precision="bf16-mixed")),
    "fsdp": Configuration("sharding", SMALL, SETUP.replace(gpus=8, sharding="zero3")),
    "grouped": Configuration("families", LLAMA, SETUP),
    "times": Configuration("times", SMALL, SETUP, steps=30),
    "tf32": Configuration("times", SMALL, SETUP, steps=30, tf32=True),
    "curve": Configuration("curves", SMALL, SETUP, steps=24, recipe=Recipe(steps=24, warm_up=2, windows=4)),
    "cured": Configuration("allocator", SMALL, LARGE.replace(batch=512, accumulation=4), limit=LIMIT),
    "out": Configuration("allocator", SMALL, LARGE, limit=LIMIT),
    "growing": Configuration("allocator", SMALL, SETUP, expandable=True),
}  # fmt: skip


@contextmanager
def workers(here, name):
    gpu = devices.find(name, here.manifest["capabilities"])
    with starter(here, gpu) as start:
        yield start


@pytest.mark.parametrize("name", ["t4", pytest.param("rtx-4090", marks=ALL)])
def test_every_part_of_the_record_runs_and_none_twice(here, tmp_path, name):
    turing = name == "t4"
    parts = {part: how for part, how in PARTS.items() if not (turing and how.expandable)}  # that one has its own worker
    with workers(here, name) as start:
        before = record(tmp_path, configurations=list(parts.values())[:3], start=start)
        after = record(tmp_path, configurations=parts.values(), start=start)
        assert (before.found, after.there, after.left) == ({"measured": 3}, 3, 0)
        assert after.found == {"measured": len(parts) - 4, "oom": 1}
    found = read(after.path).measurements
    assert not read(after.path).faults and {m.witness for m in found} == {"rehearse"}
    by_name = dict(zip(parts, found, strict=True))
    for part, m in by_name.items():
        assert m.device["name"].endswith("(no GPU)") and eb.gpu(name).title in m.device["name"], part
    for part in ("peak", "fsdp", "grouped", "times", "tf32"):
        m, counted = by_name[part], eb.dry_run(by_name[part].model, by_name[part].setup)
        # memory-efficient attention, which Turing takes in 16 bits too, has no random state of 24 bytes a layer on the GPU
        less = 24 * SMALL.layers if turing and part == "peak" else 0
        assert m.requested["after_forward"] - m.workspace == counted.phases["after_forward"] - less, part
        assert m.requested["after_step"] - m.workspace == counted.phases["after_step"], part
    assert by_name["peak"].setup.precision == ("fp16-mixed" if turing else "bf16-mixed")
    kernels = {part: by_name[part].settings["attention_kernel"] for part in ("peak", "times", "grouped")}
    assert kernels == {
        "peak": "memory-efficient" if turing else "flash",
        "times": "memory-efficient",
        "grouped": "math",
    }
    assert by_name["fsdp"].settings["collectives"] == "fake"
    assert [by_name[p].settings["allow_tf32"] for p in ("times", "tf32")] == [False, True]
    assert by_name["times"].step_ms_quartiles and by_name["times"].steps == 30
    if not turing:  # no block is left unsplit: each request in blocks of 512, and no more
        grown = by_name["growing"]
        assert grown.allocated_peak - grown.baseline - grown.workspace == eb.dry_run(SMALL, SETUP, rounding=512).peak
    out, cured = by_name["out"], by_name["cured"]
    assert out.oom and out.out_of_memory["of"] == "PyTorch" and out.out_of_memory["at"] in ("forward", "backward")
    assert cured.reserved_peak <= LIMIT < eb.budget(SMALL, LARGE).peak
    assert by_name["curve"].learning["recipe"]["steps"] == 24 and len(by_name["curve"].loss) == 24


TWO = """
import json
import everybyte as eb
from everybyte import lab

if __name__ == "__main__":
    setups = {s: eb.Setup(batch=2, sequence=64, precision="bf16-mixed", gpus=2, sharding=s) for s in ("zero1", "zero3")}
    model = eb.Model(name="small", layers=2, width=64, heads=2, vocabulary=1001, positions=128)
    for name, m in lab.runs(model, setups).found.items():
        print("FOUND", json.dumps([name, m.status, m.witness, m.settings["collectives"], m.requested_peak - m.baseline - m.workspace]))
"""


@ALL
def test_on_two_gpus_the_labs_run_over_nccl(here, tmp_path, capfd, monkeypatch):
    """PyTorch's ProcessGroupNCCL on a library that moves nothing: both ranks ask for what the dry run counts of the first."""
    monkeypatch.delenv("EVERYBYTE_RECORD_ONLY", raising=False)  # here they shall run
    (tmp_path / "two.py").write_text(TWO)
    rehearse_script(["python", str(tmp_path / "two.py")], gpus=2, steps=0)
    lines = [json.loads(line[6:]) for line in capfd.readouterr().out.splitlines() if line.startswith("FOUND ")]
    setup = eb.Setup(batch=2, sequence=64, precision="bf16-mixed", gpus=2)
    counted = {s: eb.dry_run(SMALL, setup.replace(sharding=s)).peak for s in ("zero1", "zero3")}
    assert lines == [[name, "measured", "rehearse", "nccl", peak] for name, peak in counted.items()]
