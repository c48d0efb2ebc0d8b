"""Scripts that know nothing of this project, on a GPU that does nothing."""

import json
import os
import pickletools
import signal
import subprocess
import sys
import time

import psutil
import pytest

from everybyte.answers.scripts import largest
from everybyte.command import main
from everybyte.guard.kept import Kept
from everybyte.rehearsal import rehearse_script

TRAIN = """
import sys, torch
from torch import nn
net = nn.Sequential(nn.Linear(256, 1024), nn.GELU(), nn.Linear(1024, 256)).cuda()
optimizer = torch.optim.AdamW(net.parameters())
for step in range(1000):
    x = torch.randn(int(sys.argv[1]), 256, device="cuda")
    net(x).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    torch.cuda.reset_peak_memory_stats()
"""
NUMBERS = 256 * 1024 + 1024 + 1024 * 256 + 256
RANKS = """
import os, torch
import torch.distributed as dist
from torch import nn
dist.init_process_group("nccl")
rank = int(os.environ["LOCAL_RANK"])
torch.cuda.set_device(rank)
net = nn.parallel.DistributedDataParallel(nn.Linear(512, 512).cuda(), device_ids=[rank])
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for step in range(3):
    net(torch.randn(4, 512, device="cuda")).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
print(dist.get_world_size())
dist.destroy_process_group()
"""


@pytest.fixture
def script(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def written(text, name="train.py"):
        (tmp_path / name).write_text(text)
        return name

    return written


def test_a_training_script(here, script, tmp_path):
    found = rehearse_script(
        ["python", script(TRAIN), "4096"], "rtx-4090", steps=3, snapshot=tmp_path / "snapshot.pickle"
    )
    (process,) = found.processes
    (device,) = process["devices"]
    assert (found.status, process["steps"], process["ended"], found.oom) == (0, 3, True, False)
    assert device["name"] == "rehearsed NVIDIA GeForce RTX 4090 (no GPU)"
    hidden, wide = 4 * 4096 * 256, 4 * 4096 * 1024
    # Weights and both states, x, two products of the hidden layer; the loss's gradient is of one number, expanded.
    assert device["requested"] >= 3 * 4 * NUMBERS + hidden + 2 * wide
    assert device["requested"] <= device["allocated"] <= device["reserved"]
    assert device["phases"]["after_step"] >= 4 * 4 * NUMBERS
    assert device["peak"]["live"] == device["requested"] and device["peak"]["at"] == "backward"
    assert device["peak"]["line"].endswith("train.py:8")  # the call of backward: its thread has no Python
    assert sum(row["bytes"] for row in device["peak"]["held"]) == device["requested"]
    lines = {row["line"] and row["line"].rpartition(":")[2] for row in device["peak"]["held"]}
    assert {"4", "7", "8"} <= lines
    assert "train.py:8, in backward" in str(found)
    operations = {op.name for op, _, _ in pickletools.genops((tmp_path / "snapshot.pickle").read_bytes())}
    assert not operations & {"GLOBAL", "STACK_GLOBAL", "REDUCE"}  # numbers and names alone: no code in it


def test_out_of_memory_is_told_with_its_line(here, script, capfd):
    status = main(["rehearse", "--gpu", "h200", "--memory", "2GiB", "--json", "--", "python", script(TRAIN), "300000"])
    out, err = capfd.readouterr()
    said = json.loads(out)
    assert status == said["status"] == 1 and said["witness"] == "rehearse" and said["oom"] is True
    (process,) = said["processes"]
    assert process["oom"]["requested"] == 4 * 300000 * 1024 and process["oom"]["line"].endswith("train.py:8")
    assert "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.14 GiB" in err


def test_out_of_memory_before_anything_was_reserved_is_out_of_memory(here, script):
    code = "import sys, torch\nx = torch.empty(int(sys.argv[1]) * 2**30, dtype=torch.uint8, device='cuda')\n"
    found = rehearse_script(["python", script(code), "3"], "h200", memory=2 * 2**30, hidden=True)
    assert found.oom and found.status == 1 and found.death["requested"] == 3 * 2**30 and found.most("reserved") == 0


#: Halves its batch until it fits.
HALVES = """
import sys, torch
rows = int(sys.argv[1])
model = torch.nn.Linear(1024, 1024, device="cuda")
while True:
    try:
        model(torch.ones(rows, 1024, device="cuda")).sum().backward()
        break
    except torch.OutOfMemoryError:
        rows //= 2
"""


def test_an_error_that_the_script_caught_is_no_death_and_no_fit(here, script):
    path = script(HALVES)
    found = rehearse_script(["python", path, "300000"], "h200", memory=2 * 2**30, hidden=True)
    assert not found.oom and found.status == 0 and found.death is None
    assert "The script caught an error: out of memory" in str(found) and "it went on with less" in str(found)
    sought = largest(["python", path, "{rows}"], "rows", range(100_000, 600_000, 100_000), "h200", memory=2 * 2**30)
    assert sought.value == 100_000 and "caught" in sought.next.how
    with pytest.raises(
        ValueError, match="the script caught an error: out of memory.*a command that ends without an error"
    ):
        Kept.of_script(found)


#: Tries two sizes, and allows itself less than the GPU has.
TRIES = """
import sys, torch
torch.cuda.set_per_process_memory_fraction(0.5)
for gib in (1, 3):
    try:
        torch.empty(gib * 2**30, dtype=torch.uint8, device="cuda")
    except torch.OutOfMemoryError:
        print(gib, "GiB do not fit")
exec(sys.argv[1])
"""


@pytest.mark.parametrize(
    ("end", "oom", "said"),
    [
        ("", False, "The script caught an error: out of memory, before any backward: asked for 3.00 GiB; train.py:6; it took no step after it"),
        ("assert False", False, "the script ended with AssertionError at "),
        ("torch.empty(3 * 2**30, dtype=torch.uint8, device='cuda')", True, "GiB free, 2.00 GiB allowed; "),
    ],
)  # fmt: skip
def test_of_which_error_a_script_died_is_told_from_those_that_it_caught(here, script, end, oom, said):
    found = rehearse_script(["python", script(TRIES), end], "h200", memory=4 * 2**30, hidden=True)
    assert (found.oom, found.short, found.status) == (oom, True, int(bool(end))), str(found)
    assert said in str(found)


#: What TorchScript compiles, and a history of its own, which begins and ends before the peak.
OWN = """
import torch, torch.distributed.optim
@torch.jit.script
def twice(x: torch.Tensor):
    with torch.no_grad():
        return 2 * x
net = torch.nn.Linear(256, 256).cuda()
assert not twice(net(torch.ones(4, 256, device="cuda"))).requires_grad
torch.cuda.memory._record_memory_history(max_entries=10)
torch.cuda.memory._dump_snapshot("own.pickle")
torch.cuda.memory._record_memory_history(enabled=None)
net(torch.ones(4096, 256, device="cuda")).square().sum().backward()
"""


def test_what_a_script_compiles_or_records_itself_changes_nothing(here, script, tmp_path):
    found = rehearse_script(["python", script(OWN)], quiet=True)
    assert found.status == 0 and (tmp_path / "own.pickle").stat().st_size
    (device,) = found.processes[0]["devices"]
    assert device["peak"]["live"] == device["requested"] == sum(device["peak"]["parts"].values())
    assert device["peak"]["at"] == "backward" and "`_record_memory_history` is not followed" in str(found)


def test_ranks_by_torchrun_and_one_of_many_alone(here, script, capfd):
    command = ["python", script(RANKS)]
    found = rehearse_script(["torchrun", "--nproc-per-node=2", command[1]], gpus=2)
    assert found.status == 0 and [process["rank"] for process in found.processes] == [0, 1]
    assert {process["devices"][0]["requested"] for process in found.processes} == {found.peak}
    numbers, workspaces = 512 * 512 + 512, 2 * 2**25
    # Weights, gradients and buckets: of the buckets that DDP makes anew after its first step, none stays.
    assert 3 * 4 * numbers < found.peak - workspaces < 3 * 4 * numbers + 2**15
    alone = rehearse_script(command, gpus=64, alone=True)
    assert alone.status == 0 and alone.peak == found.peak and len(alone.processes) == 1
    assert "".join(capfd.readouterr().out.split()) == "2264"  # two ranks may write before either ends its line


def test_what_never_used_a_gpu_is_said(here, script):
    with pytest.raises(
        ValueError, match=r"^rehearse\.command: python nothing\.py put nothing on a GPU; it ended with exit"
    ):
        rehearse_script(["python", script("import torch\n", "nothing.py")])
    with pytest.raises(ValueError, match=r"did not import the rehearsal's PyTorch; it ended with exit status 3"):
        rehearse_script(["python", script("import sys; sys.exit(3)\n", "nothing.py")])
    with pytest.raises(ValueError, match=r"^rehearse\.command: there is no 'no-such-program' in"):
        rehearse_script(["no-such-program"])


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--"], "nothing to run"), ([], "nothing to run"), (["--grid", "--", "python"], "nothing to run"),
        (["--gpu", "h2000", "--", "python", "x"], "did you mean 'h200'"), (["--gpus", "99", "--", "python", "x"], "rehearse.gpus: 99"),
        (["--memory", "lots", "--", "python", "x"], "lots"), (["--steps", "-1", "--", "python", "x"], "rehearse.steps: -1"),
    ],
)  # fmt: skip
def test_bad_input_is_one_line(here, capsys, arguments, said):
    assert main(["rehearse", *arguments]) == 2
    out, err = capsys.readouterr()
    assert out == "" and said in err and err.count("\n") == 1


def test_outside_of_a_rehearsal_the_environment_has_no_gpu(here):
    code = "import torch; print(torch.cuda.is_available(), torch.cuda.device_count())"
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith(("REHEARSAL", "PYTHONPATH"))
    }
    done = subprocess.run([here.python, "-c", code], capture_output=True, text=True, env=environment, check=True)
    assert done.stdout.split() == ["False", "0"]


def test_the_script_s_own_site_customization_still_runs(here, script, tmp_path, monkeypatch):
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "sitecustomize.py").write_text("import builtins; builtins.told = True\n")
    monkeypatch.setenv(
        "PYTHONPATH", os.pathsep.join([str(tmp_path / "own"), *filter(None, [os.environ.get("PYTHONPATH")])])
    )
    found = rehearse_script(["python", script("import torch\nassert told\nx = torch.ones(1000, device='cuda')\n")])
    assert found.status == 0 and found.peak == 4000 and "no kernel had written" not in str(found)


def test_who_branches_on_data_has_read_zeros_and_is_told_so(here, script, capfd):
    text = "import torch\nx = torch.ones(1000, device='cuda')\nif x.sum().item() > 0:\n    x = torch.ones(10**6, device='cuda')\n"
    assert main(["rehearse", "--", "python", script(text)]) == 0  # on a GPU the sum is 1,000
    out = capfd.readouterr().out
    assert "- once the script read from the GPU what no kernel had written: zeros" in out
    assert "- all that kernels would compute is read as 0: losses, norms, and what a script decides by them" in out
    assert "4,004 " in out and "4,000,000" not in out


ENDS = """
import os, sys, torch
net = torch.nn.Linear(256, 256).cuda()
optimizer = torch.optim.AdamW(net.parameters())
for step in range(3):
    net(torch.ones(64, 256, device="cuda")).sum().backward()
    optimizer.step()
big = torch.empty(2**28, dtype=torch.uint8, device="cuda")
exec(sys.argv[1])
"""


@pytest.mark.parametrize(
    ("end", "status", "how"),
    [
        ("os._exit(4)", 4, None), ("os.environ.clear()", 0, None),
        ("os.kill(os.getpid(), 9)", -9, "by signal SIGKILL"),
        ("import ctypes; ctypes.string_at(0)", -11, "by signal SIGSEGV"),
    ],
)  # fmt: skip
def test_however_a_script_ends_what_it_did_is_kept(here, script, end, status, how):
    found = rehearse_script(["python", script(ENDS), end], quiet=True)
    (process,) = found.processes
    assert (found.status, process["steps"], process["final"]) == (status, 3, how is None)
    assert (found.peak > 2**28) is process["final"]  # what came after the last step is known where Python ended itself
    assert found.peak > 4 * 4 * 256 * 256
    said = f"- the script ended {how}, without Python's own end: what it did after optimizer step 3 is not in these numbers"
    assert how is None or (said in str(found) and "at least 3 optimizer steps" in str(found))
    assert how is not None or "Python's own end" not in str(found)


def test_a_variable_that_the_script_takes_away_is_known(here, script, capfd):
    text = "import os; os.environ.clear()\nimport torch\nx = torch.ones(1000, device='cuda')\nprint(torch.cuda.get_device_name())\n"
    assert main(["rehearse", "--gpu", "l4", "--", "python", script(text)]) == 0
    assert capfd.readouterr().out.startswith("rehearsed NVIDIA L4 ")


def test_a_script_that_is_killed_before_its_first_step(here, script, capfd):
    text = "import os, torch\nx = torch.ones(1000, device='cuda')\nos.kill(os.getpid(), 9)\n"
    assert main(["rehearse", "--", "python", script(text)]) == 2
    assert (
        "python train.py ended before the first step of an optimizer; it ended by signal SIGKILL"
        in capfd.readouterr().err
    )


STARTS = """
import multiprocessing, signal, subprocess, sys, time
if sys.argv[1] == "deaf":
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
if __name__ == "__main__":
    subprocess.Popen(["sleep", "300"])
    subprocess.Popen(["setsid", "sleep", "300"])
    multiprocessing.Process(target=time.sleep, args=(300,)).start()
    open("started", "w").close()
    time.sleep(300)
"""
COMMAND = "import sys; from everybyte.rehearsal import script; script.GRACE = 1.0; from everybyte.command import main; sys.exit(main())"


@pytest.mark.parametrize(
    ("number", "kind", "said"),
    [
        (signal.SIGINT, "plain", "interrupted"), (signal.SIGTERM, "plain", "ended by SIGTERM"),
        (signal.SIGHUP, "plain", "ended by SIGHUP"), (signal.SIGTERM, "deaf", "ended by SIGTERM"),
    ],
)  # fmt: skip
def test_what_ends_the_command_ends_the_script_and_its_children(here, script, tmp_path, number, kind, said):
    command = [sys.executable, "-c", COMMAND, "rehearse", "--", "python", script(STARTS), kind]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as begun:
        while not (tmp_path / "started").exists():
            assert begun.poll() is None
            time.sleep(0.02)
        below = psutil.Process(begun.pid).children(recursive=True)
        begun.send_signal(number)
        _, errors = begun.communicate(timeout=60)
    assert (begun.returncode, errors) == (128 + number, f"everybyte: {said}\n") and len(below) >= 4
    assert psutil.wait_procs(below, timeout=5)[1] == []
