"""The same step on a device, in a process of its own, and the record of what GPUs said. Importing this loads no torch."""

from .grid import Configuration, gpt2_for, grid
from .measurement import Measurement
from .process import Failed, Worker, measure
from .rates import estimate
from .recording import Progress, record
from .records import Record, fingerprint, read
from .several import Runs, runs

__all__ = [
    "Configuration", "Failed", "Measurement", "Progress", "Record", "Runs", "Worker", "estimate", "fingerprint",
    "gpt2_for", "grid", "measure",
    "read", "record", "runs",
]  # fmt: skip
