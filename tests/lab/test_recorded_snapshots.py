"""Snapshots that a real H200 wrote (`labs/records/snapshots`), beside rehearsals of the same scripts with the same PyTorch 2.11.

`tools/beside/run.py --snapshots FOLDER` writes them; paths are shortened.
"""

import gzip
import json
from pathlib import Path

import pytest

import everybyte as eb

FOLDER = Path(__file__).resolve().parents[2] / "labs" / "records" / "snapshots"
#: Script -> tensors at its peak, by lines of the report.
TENSORS = {"lora": 849, "fsdp2": 175, "generate": 51, "deepseek": 271, "checkpointed": 474, "in_backward": 163}


def test_these_are_all():
    assert {path.name.partition(".")[0] for path in FOLDER.iterdir()} == TENSORS.keys() and sum(
        TENSORS.values()
    ) == 1983


@pytest.mark.parametrize("name", TENSORS)
def test_each_tensor_at_the_peak_is_as_rehearsed(name):
    predicted = json.loads((FOLDER / f"{name}.json").read_text(encoding="utf-8"))
    found = eb.explain(predicted, gzip.decompress((FOLDER / f"{name}.pickle.gz").read_bytes()))
    assert [row for row in found.rows if row.stage in ("tensors", "workspaces")] == []
    assert found.matched == TENSORS[name] and found.unexplained == 0
    assert (
        abs(found.difference) < 2**22
    )  # reserved: of equal free blocks PyTorch 2.11 takes the lowest, and the driver gives others


def test_another_run_is_told():
    """One layer's weight more, and it is said where it comes from."""
    predicted = json.loads((FOLDER / "lora.json").read_text(encoding="utf-8"))
    (device,) = predicted["processes"][0]["devices"]
    row = next(row for row in device["peak"]["held"] if "158" in str(row["inner"]))
    row["bytes"] += 2**25
    row["tensors"] += 1
    device["requested"] += 2**25
    found = eb.explain(predicted, gzip.decompress((FOLDER / "lora.pickle.gz").read_bytes()))
    (term,) = (row for row in found.rows if row.stage == "tensors")
    assert term.bytes == -(2**25) and "modeling_llama.py:158" in term.what
