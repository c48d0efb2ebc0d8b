"""The theory: a training step run on storages without PyTorch, with formulas for sizes.

Three layers, each with one reason to change. `operations`: what each of PyTorch's operations makes, saves, and makes in
backward. `stand_in`: PyTorch's names for them, with which the source of `reference/` runs as it is (`programs`). Passes over any
model: checkpointing (`autograd`), sharding (`sharding`), batches and the optimizer (`training`). Nobody writes what is freed when:
a tensor is freed when the program no longer refers to it, as in PyTorch, which counts references too (`tape`). The program runs on whole numbers that remember
how they were made (`letters`), once for each structure (`structure`); `course` reads budgets, maps and formulas off what it saw.
"""

from .course import PARTS, SHARED_PARTS, Course
from .schedule import Repeat
from .structure import letters, trace
from .tape import MARKS, PEAKS, place_of

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
