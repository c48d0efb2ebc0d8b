"""The command `everybyte`: the library's answers in a shell."""

from .running import FIRST, main
from .words import STATUSES
