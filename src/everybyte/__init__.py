"""Every Byte: where the memory of a GPU goes while it trains a transformer.

Importing this loads neither torch nor sympy: what needs them is fetched when it is first used.
"""

from importlib import import_module

from .budget import Budget, budget
from .catalog import Claim, Gpu, Model, claims, gpu, gpus, model, models
from .fit import Fit, Headroom, fit
from .plan import Plan, plan
from .setup import Setup

_HOME = {"Formula": "formulas", "formula": "formulas", "Trace": "dryrun", "dry_run": "dryrun"}
_HOME |= {"Comparison": "comparison", "compare": "comparison", "Measurement": "lab", "measure": "lab"}
_HOME |= {"Rehearsal": "rehearsal", "rehearse": "rehearsal"}
_HOME |= {"Settled": "settling", "settle": "settling"}
__all__ = sorted(
    [
        *_HOME,
        "Budget",
        "Claim",
        "Fit",
        "Gpu",
        "Headroom",
        "Model",
        "Plan",
        "Setup",
        "budget",
        "claims",
        "fit",
        "gpu",
        "gpus",
        "model",
        "models",
        "plan",
    ]
)
__version__ = "0.1.0"


def __getattr__(name):
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f".{_HOME[name]}", __name__), name)


def __dir__():
    return __all__
