"""For the reader: predictions, exercises, hints, the table of the articles' claims, and the interview."""

from .exercise import Exercise, check, exercises, hint
from .predictions import predict, reveal
from .progress import progress
from .source import source
from .verdicts import articles

__all__ = ["Exercise", "articles", "check", "exercises", "hint", "interview", "predict", "progress", "reveal", "source"]


def __getattr__(name):
    if name == "interview":  # it brings the formulas along, so it waits until it is asked for
        from .interviewing import interview

        return interview
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
