"""What a GPU machine must have: torch, and tqdm to record. Nothing of the notebooks; and no torch before a worker starts."""

import ast
import subprocess
import sys
from pathlib import Path

from everybyte import lab

ALLOWED = {"torch", "tqdm", "pynvml"}


def test_the_lab_imports_nothing_else():
    found = set()
    for path in Path(lab.__file__).parent.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                found |= {alias.name.split(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and not node.level:
                found.add(node.module.split(".")[0])
    assert {"torch", "tqdm"} <= found
    assert found - sys.stdlib_module_names <= ALLOWED


def test_whoever_asks_a_worker_needs_no_torch():
    code = "import sys; import everybyte as eb; eb.measure; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert "everybyte.lab.process" in loaded and not {"torch", "sympy", "numpy", "tqdm"} & set(loaded)
