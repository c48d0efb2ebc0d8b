"""Several processes together: what each saw, and what one that fails has said; and one that is forked warm ends as any would."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest
import warm
from processes import together

SCRIPT = """
import torch, torch.distributed as dist

def seen(rank, processes, *names):
    if names == ("fail",) and rank == 1:
        raise ValueError("of the second")
    found = torch.tensor([rank + 1])
    dist.all_reduce(found)
    return [rank, processes, *names, found.item()]
"""


@pytest.fixture
def script(tmp_path):
    path = tmp_path / "script.py"
    path.write_text(SCRIPT)
    return path


def test_each_says_what_it_saw(script):
    assert together(script, 3, "a name") == [[rank, 3, "a name", 6] for rank in range(3)]


def test_of_one_that_fails_the_others_need_not_be_waited_for(script):
    with pytest.raises(AssertionError, match="ValueError: of the second"):
        together(script, 2, "fail")


@pytest.mark.skipif(not warm.can_fork(), reason="this system does not fork safely")
def test_a_warm_process_is_as_python_would_make_it(tmp_path):
    path, said, wrong = tmp_path / "script.py", tmp_path / "out", tmp_path / "err"
    path.write_text(
        "import os, sys, time\nprint(__name__, sys.argv[1:], 'torch' in sys.modules, os.getpgid(0) == os.getpid())\n"
        "if sys.argv[1:] == ['hang']: time.sleep(600)\nsys.exit('so it ends')"
    )
    with said.open("wb") as out, wrong.open("wb") as err:
        process = warm.started([str(path), "x"], stdout=out, stderr=err)
        assert process.wait(60) == process.poll() == 1
    assert said.read_text() == "__main__ ['x'] True True\n" and wrong.read_text() == "so it ends\n"
    hangs = warm.started([str(path), "hang"])
    with pytest.raises(subprocess.TimeoutExpired):
        hangs.wait(0.1)
    assert hangs.poll() is None
    hangs.kill()
    assert hangs.wait(60) == -signal.SIGKILL
    assert warm.started(["-c"], cwd=tmp_path).wait(60) == 1  # no such script
    assert subprocess.run([sys.executable, Path(path), "x"], capture_output=True, text=True).stderr == wrong.read_text()
