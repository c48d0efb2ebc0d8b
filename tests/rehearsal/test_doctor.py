"""What the doctor advises is rehearsed: the script as it died, the allocator's settings, and switches of a model of the catalog."""

import pytest

import everybyte as eb
from everybyte.answers.rehearsing import rehearsed
from everybyte.command import main

MIB = 2**20
#: Eleven segments of 60 MiB, each held by 34 MiB: 286 MiB are free in pieces of 26.
PIECES = """
import torch
large = [torch.empty(60 * 2**20, dtype=torch.uint8, device="cuda") for _ in range(11)]
large.clear()
kept = [torch.empty(34 * 2**20, dtype=torch.uint8, device="cuda") for _ in range(11)]
more = torch.empty(200 * 2**20, dtype=torch.uint8, device="cuda")
"""
DIED = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 200.00 MiB. GPU 0 has a total capacity of 1.50 GiB of which 118.00 MiB is "
    "free. Including non-PyTorch memory, this process has 1.38 GiB memory in use. Of the allocated memory 374.00 MiB is allocated by PyTorch, "
    "and 286.00 MiB is reserved by PyTorch but unallocated."
)


def test_a_script_dies_as_it_did_and_growing_segments_cure_it(here, tmp_path, capfd):
    script, error = tmp_path / "pieces.py", tmp_path / "error.txt"
    script.write_text(PIECES)
    error.write_text(DIED)
    assert main(["doctor", str(error), "--rehearse", "--", "python", str(script)]) == 0
    said = capfd.readouterr().out
    assert "rehearsed as it was: dies at" in said and "asked for 200.00 MiB, 118.00 MiB free" in said
    assert "runs: 660.00 MiB reserved" in said
    found = rehearsed(eb.doctor(DIED), None, ["python", str(script)])
    cured, split = found.advice[0], found.advice[-1]
    assert cured.name == "expandable" and cured.fits and split.name == "split" and split.fits is False


def test_switches_of_a_run_are_rehearsed(here):
    model, setup = eb.model("gpt2"), eb.Setup(batch=8, sequence=1024, precision="bf16-mixed")
    text = (
        DIED.replace("1.50 GiB", "8.00 GiB")
        .replace("1.38 GiB", "7.80 GiB")
        .replace("374.00 MiB", "7.00 GiB")
        .replace("286.00 MiB", "20.00 MiB")
    )
    diagnosis = eb.doctor(text, model, setup, "h200")
    few = eb.answers.advice.Diagnosis(
        **vars(diagnosis) | {"advice": [one for one in diagnosis.advice if one.setup][:1]}
    )
    found = rehearsed(few, "h200", model=model, setup=setup)
    assert "dies in" in found.findings[-1] and found.advice[0].rehearsed.startswith(("runs", "dies"))


def test_what_does_not_go_together(tmp_path, capsys):
    with pytest.raises(ValueError, match="a script and a model, or neither"):
        rehearsed(eb.doctor(DIED), None)
    error = tmp_path / "error.txt"
    error.write_text(DIED)
    assert main(["doctor", str(error), "--", "python", "train.py"]) == 2
    assert "a script without --rehearse" in capsys.readouterr().err
