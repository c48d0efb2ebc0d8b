"""A closed formula of a step's memory, in batch and sequence: evaluated, printed, proved and kept without PyTorch."""

from .ranges import Irregular, Range, partition
from .result import Case, Derivation, Instant, Point, Region

__all__ = ["Case", "Derivation", "Instant", "Irregular", "Point", "Range", "Region", "partition"]
