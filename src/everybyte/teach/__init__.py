"""What the reader does: predict, answer an exercise, take a hint; and the table of what the articles say."""

from .exercise import Exercise, check, exercises, hint
from .predictions import predict, reveal
from .verdicts import articles

__all__ = ["Exercise", "articles", "check", "exercises", "hint", "predict", "reveal"]
