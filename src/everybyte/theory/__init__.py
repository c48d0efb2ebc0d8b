"""The theory: a training step run on storages without PyTorch, with formulas for sizes.

Three layers, each with one reason to change. `operations`: what each of PyTorch's operations makes, saves, and makes in
backward. `stand_in`: PyTorch's names for them, with which the source of `reference/` runs as it is (`programs`). Passes over any
model: checkpointing (`autograd`), sharding (`sharding`), batches and the optimizer (`training`). Nobody writes what is freed when:
a tensor is freed when the program no longer refers to it, as in PyTorch, which counts references too (`tape`). The program runs on whole numbers that remember
how they were made (`letters`), once for each structure (`structure`). What it saw is a `Course`, off which budgets, maps and
formulas are read.
"""

from ..step.course import MARKS, PEAKS, Repeat, place_of
from .course import PARTS, SHARED_PARTS, Course
from .structure import letters, trace

__all__ = [
    "MARKS",
    "PARTS",
    "PEAKS",
    "SHARED_PARTS",
    "Course",
    "Repeat",
    "letters",
    "place_of",
    "trace",
]
