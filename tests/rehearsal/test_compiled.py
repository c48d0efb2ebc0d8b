"""Scripts that compile: Triton's kernels, torch.compile and CUDA graphs on a GPU that does nothing, where Triton is installed."""

import json
import sys
from pathlib import Path

import pytest

from everybyte.rehearsal import compiled, history, phases, place, rehearse_script

SCRIPTS = Path(__file__).with_name("scripts")
ALL = pytest.mark.thorough("it compiles for half a minute")
#: Weights, gradients and states of AdamW of the model in `scripts/compiled.py`, in bytes; its tokens.
STATES = 16 * (2 * 512 * 128 + 512 + 2 * 128 + 2 * 128 * 512 + 512 + 128) + 8 * 2048


@pytest.fixture(scope="session")
def triton(here):
    if not (place.site_packages(here.folder) / "triton" / "__init__.py").exists():
        pytest.skip("Triton is not there: everybyte rehearse --set-up")


def run(capfd, script, *arguments, **options):
    """(the rehearsal, what the script printed after FOUND)"""
    found = rehearse_script(["python", str(SCRIPTS / script), *arguments], steps=0, **options)
    out, err = capfd.readouterr()
    assert found.status == 0 and "FOUND" in out, err[-2000:]
    return found, out.partition("FOUND")[2]


def test_kernels_of_triton_s_and_a_graph(triton, capfd):
    found, said = run(capfd, "triton_kernels.py")
    said = json.loads(said)
    assert said.pop("scratch") == 3 * [16 * 128]  # asked for at each launch, a program's 128 bytes
    assert 0 < said.pop("registers") < 32  # read from the cubin: without one, 32 are said
    assert said == {
        "buffer": 256 * 2**20, "left": 0,  # the autotuner's, once
        "block": 128,  # the first configuration has more threads than a GPU's block may have
        "not the GPU's": "Pointer argument cannot be accessed from Triton (cpu tensor?)",
        "graph": 4 * 4096 + 2 * 512,  # its result, and the generator's seed and offset
        "read in a capture": "CUDA error: operation not permitted when stream is capturing",
    }  # fmt: skip
    assert "- compiled kernels ran 1 benchmark, each a tie: a GPU may choose otherwise" in str(found)
    assert "in pools of their own: once they are recorded, only reserved counts it" in str(found)
    assert "step 0" not in str(found)  # it takes no step


def test_forward_leaves_what_the_partitioner_saves(triton, capfd):
    first, said = run(capfd, "compiled.py", "default", "512")
    left, *saved = map(int, said.split())
    assert [left] == saved and left > 0
    (device,) = first.processes[0]["devices"]
    assert device["phases"]["after_step"] == STATES + 2 * 33_554_432 + 4  # cuBLAS's workspaces, and the loss
    assert device["peak"]["line"].startswith(str(SCRIPTS / "compiled.py")) and device["peak"]["step"] == 0
    assert "the peak is in step 0, where kernels are tuned" in str(first)


@ALL
def test_two_cold_runs_are_equal(triton, capfd):
    first, second = (run(capfd, "compiled.py", "default", "512") for _ in range(2))
    assert first[1] == second[1]
    assert first[0].processes[0]["devices"] == second[0].processes[0]["devices"]


@ALL
def test_both_sides_of_what_timing_decides_are_rehearsed(triton, capfd):
    """A vocabulary that no alignment divides: as it is, and padded. The partitioner says what forward leaves either way."""
    plain, padded = (run(capfd, "compiled.py", "default", "511", padded=choice) for choice in (False, True))
    for _, said in (plain, padded):
        left, *saved = map(int, said.split())
        assert [left] == saved
    assert padded[0].peak > plain[0].peak
    assert "they are not padded; `--padded` rehearses the other choice" in str(plain[0])
    assert "they are padded, as a GPU may choose" in str(padded[0])


@ALL
def test_what_a_graph_holds_only_reserved_counts(triton, capfd):
    found, _ = run(capfd, "compiled.py", "reduce-overhead", "512")
    (process,), (device,) = found.processes, found.processes[0]["devices"]
    assert (
        device["phases"]["after_forward"] == device["phases"]["after_step"] <= STATES + 2**16
    )  # activations are the graph's
    assert device["reserved"] > device["phases"]["after_forward"] + 64 * 2**20
    assert any(note.startswith("CUDA graphs hold ") for note in process["notes"])


def test_a_graph_s_pool_is_what_no_live_tensor_has():
    segments = [
        {"device": 0, "segment_pool_id": (0, 0), "total_size": 100, "active_size": 1},
        {"device": 0, "segment_pool_id": (0, 2), "total_size": 90, "active_size": 20},
        {"device": 1, "segment_pool_id": (0, 2), "total_size": 50, "active_size": 0},
    ]
    assert compiled.in_pools({"segments": segments}, 0) == 70 and compiled.in_pools({"segments": segments}, 1) == 50


def test_in_which_step_an_allocation_was_made():
    marks = [("after_forward", 3), ("after_step", 9), ("after_forward", 12), ("after_step", 20)]
    assert [phases.step(number, marks) for number in (1, 9, 10, 20, 21)] == [0, 0, 1, 1, 2]


def test_generated_code_is_nobody_s_line():
    generated = {"filename": f"/x/rehearsal-x/{history.INDUCTOR}/ab/cab.py", "line": 90, "name": "call"}
    torch = {"filename": "/env/lib/python3.11/site-packages/torch/_inductor/utils.py", "line": 9, "name": "run"}
    script = {"filename": "/x/train.py", "line": 12, "name": "forward"}
    frames = [generated, torch, script]
    assert (
        history.line(frames) == "/x/train.py:12"
        and history.call(frames) == "compiled code"
        and history.inner(frames) is None
    )
    assert history.line(frames[:2]) is None  # in backward's thread: then it is the line that called backward


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (ModuleNotFoundError("No module named 'triton'", name="triton"), True),
        (RuntimeError("Cannot find a working triton installation. Either the package"), True),
        (ModuleNotFoundError("No module named 'numpy'", name="numpy"), False),
    ],
)
def test_without_triton_it_says_what_brings_it(monkeypatch, capsys, error, said):
    monkeypatch.setattr(sys, "excepthook", lambda *_: print("the traceback", file=sys.stderr))
    monkeypatch.setattr(compiled.importlib.util, "find_spec", lambda name: None)
    compiled.explain_missing_triton()
    sys.excepthook(type(error), error, None)
    err = capsys.readouterr().err
    assert err.startswith("the traceback") and ("`everybyte rehearse --set-up` installs it" in err) == said
