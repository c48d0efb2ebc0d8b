"""One profile for the properties: no deadlines, since machines differ; no chance, where a failure must be repeatable.

And `make test` takes a sample where `make test-all` takes everything: of many points that one test looks at, or of the cases of a
test that is marked so.
"""

import os

import pytest
from hypothesis import settings

EVERYTHING = os.environ.get("EVERYBYTE_TESTS") == "all"

settings.register_profile("everybyte", deadline=None, derandomize=bool(os.environ.get("CI")))
settings.load_profile("everybyte")


def some(values, most):
    """At most so many of the values, both ends among them, the rest evenly between; in `make test-all` every one."""
    values = list(values)
    if EVERYTHING or len(values) <= most:
        return values
    return [values[round(i * (len(values) - 1) / (most - 1))] for i in range(most)]


@pytest.fixture(scope="session")
def sample():
    """`some`."""
    return some


@pytest.fixture(scope="session")
def here():
    """The environment of rehearsals, found and not made, or the test is skipped with the reason: `make rehearsal` makes it."""
    from everybyte.rehearsal import place

    try:
        return place.find()
    except ValueError as error:
        pytest.skip(str(error))


def pytest_collection_modifyitems(config, items):
    """Keep a sample of the cases of a test that is marked `sampled(most)`."""
    cases, dropped = {}, []
    for item in items:
        if mark := item.get_closest_marker("sampled"):
            cases.setdefault((item.path, item.originalname, mark.args[0]), []).append(item)
    for (_, _, most), group in cases.items():
        kept = some(group, most)
        dropped += [item for item in group if item not in kept]
    if dropped:
        config.hook.pytest_deselected(items=dropped)
        items[:] = [item for item in items if item not in dropped]
