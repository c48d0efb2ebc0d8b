"""Install the book, with all its extras, into the Python that runs this: `python tools/install.py`; `make install` in .venv.

Every file of others' is held to a SHA-256 of locks/, and is a wheel: nothing of theirs runs while it is installed. Then comes this
folder itself, editable, built by the setuptools that was just installed. Needs nothing but pip. Where pip is set up to find PyTorch's
CPU build for Linux, it is taken, and none of NVIDIA's libraries.
"""

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
LOCKS = ROOT / "locks"
PIP = (sys.executable, "-m", "pip", "--disable-pip-version-check")
HELD = ("install", "--require-hashes", "--no-deps", "--only-binary", ":all:")


def torch_lock() -> Path:
    """The lock of the PyTorch that pip, as it is set up here, would take for this system."""
    wanted = re.search(r"^torch==(\S+)", (LOCKS / "cpu.txt").read_text(encoding="utf-8"), re.MULTILINE)[1]
    offered = subprocess.run([*PIP, "index", "versions", "torch"], capture_output=True, text=True).stdout
    found = sys.platform == "linux" and wanted in re.findall(r"[\w.+]+", offered)
    return LOCKS / ("cpu.txt" if found else "torch.txt")


def main() -> int:
    """The status of the first step of pip's that failed, or 0."""
    for step in (
        (*HELD, "-r", LOCKS / "install.txt", "-r", torch_lock()),
        ("install", "--no-deps", "--no-build-isolation", "-e", ROOT),
        ("check",),
    ):
        if status := subprocess.run([*PIP, *map(str, step)]).returncode:
            return status
    return 0


if __name__ == "__main__":
    sys.exit(main())
