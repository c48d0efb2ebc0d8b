"""What needs the environment of rehearsals is skipped where there is none, with the reason."""

import pytest

from everybyte.rehearsal import place


@pytest.fixture(scope="session")
def here():
    """The environment of rehearsals, found and not made: `make rehearsal` makes it."""
    try:
        return place.find()
    except ValueError as error:
        pytest.skip(str(error))
