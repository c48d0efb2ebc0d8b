"""One profile for the properties: no deadlines, since machines differ; no chance, where a failure must be repeatable."""

import os

from hypothesis import settings

settings.register_profile("everybyte", deadline=None, derandomize=bool(os.environ.get("CI")))
settings.load_profile("everybyte")
