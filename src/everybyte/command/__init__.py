"""The command `everybyte`: what the library says, in a shell."""

from .running import FIRST, main
from .words import STATUSES
