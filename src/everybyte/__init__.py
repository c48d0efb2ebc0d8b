"""Every Byte: where the memory of a GPU goes while it trains a transformer.

    import everybyte as eb

    gpt2 = eb.model("gpt2")
    setup = eb.Setup(batch=8, sequence=1024, precision="bf16-mixed", optimizer="adamw")
    predicted = eb.budget(gpt2, setup)  # by formula
    counted = eb.dry_run(gpt2, setup)  # by PyTorch, on tensors without data
    eb.compare(predicted, counted)  # part by part, the difference in bytes

Importing this loads neither torch nor sympy: what needs them is fetched when it is first used.
"""

from importlib import import_module

from .budget import Budget, budget
from .catalog import Claim, Gpu, Model, claims, gpu, gpus, model, models
from .fit import Fit, fit
from .headroom import Headroom
from .plan import Plan, plan
from .setup import Setup

_HOME = {"Formula": "formulas", "formula": "formulas", "Trace": "dryrun", "dry_run": "dryrun"}
_HOME |= {"Comparison": "comparison", "compare": "comparison", "Measurement": "lab", "measure": "lab"}
_HOME |= {"Derivation": "derivation", "derive": "deriving"}
_HOME |= {"Rehearsal": "rehearsal", "rehearse": "rehearsal"}
_HOME |= {"Settled": "settling", "settle": "settling"}
#: Modules that are reached as `everybyte.draw`: they load matplotlib, ipywidgets or nothing when they are first used.
_MODULES = ("allocator", "draw", "explore", "units")
__all__ = sorted(
    [
        *_HOME,
        *_MODULES,
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
    if name in _MODULES:
        return import_module(f".{name}", __name__)
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f".{_HOME[name]}", __name__), name)


def __dir__():
    return __all__
