"""Kernels that are forked warm are as fresh as others: what one does, the next does not see, and none stays behind."""

import os
import sys
import time

import nbformat
import pytest
import warm
from jupyter_client.provisioning import local_provisioner
from nbclient import NotebookClient

pytestmark = pytest.mark.skipif(
    local_provisioner.launch_kernel.__module__ != warm.__name__, reason="this system does not fork kernels"
)
LOOK = """
import os, sys
print(sorted({"left_behind", "torch", "eb"} & set(globals())), "torch" in sys.modules, os.getcwd(), os.environ.get("ASKED"))
print(os.getpid(), os.getpgid(0), sys.executable, [p for p in sys.path if p.endswith(("tools", "tests/notebooks"))])
left_behind = 1
import everybyte as eb
eb.left_behind = eb.ask.setup.LIMITS = 1
"""


def started(folder, source, monkeypatch, **environment):
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(source)])
    NotebookClient(notebook, timeout=60, kernel_name="python3", resources={"metadata": {"path": str(folder)}}).execute()
    return notebook.cells[0].outputs[0].text.splitlines()


def gone(pid):
    for _ in range(100):
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return True
        time.sleep(0.05)
    return False


def test_each_is_a_process_of_its_own_with_nothing_in_it(tmp_path, monkeypatch):
    pids = set()
    for asked in ("first", "second"):
        found, who = started(tmp_path, LOOK, monkeypatch, ASKED=asked)
        assert found == f"[] True {tmp_path} {asked}"  # the imports are done, and no name is bound
        pid, group, python, paths = who.split(" ", 3)
        assert pid == group and python == sys.executable and paths == "[]"
        assert gone(int(pid))
        pids.add(pid)
    assert len(pids) == 2
    clean = "import everybyte as eb\nprint(hasattr(eb, 'left_behind'), type(eb.ask.setup.LIMITS).__name__)"
    assert started(tmp_path, clean, monkeypatch) == ["False mappingproxy"]


def test_nothing_has_been_computed_before(tmp_path, monkeypatch):
    """What the book's code remembers is remembered from the kernel's own calls."""
    source = """
import functools, gc
gc.unfreeze()
cached = [f for f in gc.get_objects() if type(f) is functools._lru_cache_wrapper and "everybyte" in f.__module__]
print(len(cached) > 20, sorted({f.__qualname__ for f in cached if f.cache_info().currsize}))
"""
    assert started(tmp_path, source, monkeypatch) == ["True []"]


def test_another_command_starts_as_before():
    asked = []
    launch = warm.launch(lambda cmd, **options: asked.append(cmd))
    launch(["/usr/bin/R", "--slave"], env=dict(os.environ))
    command = [sys.executable, "-m", "ipykernel_launcher", "-f", "x.json"]
    launch(command, env=os.environ | {"PYTHONPATH": "elsewhere"})
    assert asked == [["/usr/bin/R", "--slave"], command]
