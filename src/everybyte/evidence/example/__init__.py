"""The evidence of a small training script with a leak, from a rehearsal: PyTorch's CUDA code ran on a GPU that does nothing.

`train.py` is the script, `train.pickle` the snapshot that it wrote, `summary.txt` what it printed; `tools/snapshots.py` makes both.
"""

from pathlib import Path

from ..snapshots import Snapshot, snapshot

_HERE = Path(__file__).parent
#: The script, its snapshot and its summary.
SCRIPT, SNAPSHOT, SUMMARY = _HERE / "train.py", _HERE / "train.pickle", _HERE / "summary.txt"


def script() -> str:
    """The script's text."""
    return SCRIPT.read_text(encoding="utf-8")


def summary() -> str:
    """The text of `torch.cuda.memory_summary()` at its end."""
    return SUMMARY.read_text(encoding="utf-8")


def left() -> Snapshot:
    """The snapshot that it wrote."""
    return snapshot(SNAPSHOT)
