"""The same step on a device, in a process of its own, and the record of what GPUs said. Importing this loads no torch."""

from .grid import Configuration, grid
from .measurement import Measurement
from .process import Failed, Worker, measure
from .recording import Progress, record
from .records import Record, fingerprint, read

__all__ = [
    "Configuration", "Failed", "Measurement", "Progress", "Record", "Worker", "fingerprint", "grid", "measure", "read", "record",
]  # fmt: skip
