"""Explorers, opened as a fresh kernel does."""

from functools import cache

import pytest
from javascript import node  # noqa: F401
from matplotlib.backends import backend_agg

from everybyte.explore import controls


@pytest.fixture(autouse=True)
def fresh_kernel(monkeypatch):
    """Each test opens its explorers as a fresh kernel does: nothing shared yet."""
    monkeypatch.setattr(controls, "_SHARED", {})


@pytest.fixture(autouse=True, scope="session")
def one_parser():
    """Every figure's renderer parses mathematical text on its own: one for all remembers the labels of an axis."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(backend_agg, "MathTextParser", cache(backend_agg.MathTextParser))
        yield
