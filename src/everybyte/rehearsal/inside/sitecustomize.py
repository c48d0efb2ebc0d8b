"""Python imports this first in every process of a rehearsal: it starts `watch`, then the `sitecustomize` that it hides."""

import os
import sys
from importlib import machinery, util

_HERE = os.path.dirname(os.path.abspath(__file__))


def _next():
    """The `sitecustomize` that this one stands before."""
    paths = [path for path in sys.path if os.path.abspath(path or ".") != _HERE]
    spec = machinery.PathFinder.find_spec("sitecustomize", paths)
    if spec and spec.loader:
        module = util.module_from_spec(spec)
        spec.loader.exec_module(module)


if os.environ.get("EVERYBYTE_REHEARSAL_REPORTS"):
    from everybyte.rehearsal import watch

    watch.wait_for_torch()
_next()
