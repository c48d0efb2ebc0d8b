"""Measure the reference step on a device, in a process of its own, and record it. Importing this loads no torch."""

from .grid import Configuration, gpt2_for, grid
from .measurement import Measurement
from .measuring import measure
from .process import Failed, Worker
from .rates import estimate
from .recipe import Recipe
from .recording import Progress, record
from .records import Record, fingerprint, read
from .several import Runs, Trainings, conclusion, runs, scripts, trainings

__all__ = [
    "Configuration", "Failed", "Measurement", "Progress", "Recipe", "Record", "Runs", "Trainings", "Worker",
    "conclusion", "estimate", "fingerprint", "gpt2_for", "grid", "measure", "read", "record", "runs", "scripts", "trainings",
]  # fmt: skip
