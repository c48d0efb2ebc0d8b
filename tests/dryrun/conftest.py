"""What a dry run must leave as it was."""

import interrupts
import pytest
import sympy  # noqa: F401 (the first dry run imports it, and it changes the filters of warnings)


@pytest.fixture
def state():
    """Says what a dry run changes while it lasts, and what random numbers it might draw."""
    return interrupts.state
