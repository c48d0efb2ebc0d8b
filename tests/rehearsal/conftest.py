"""Rehearsals run in an environment of their own: where there is none, what needs it is skipped, with the reason."""

import pytest

from everybyte.rehearsal import place


@pytest.fixture(scope="session")
def here():
    """The environment of rehearsals, found and not made: `make rehearsal` makes it."""
    try:
        return place.find()
    except ValueError as error:
        pytest.skip(str(error))
