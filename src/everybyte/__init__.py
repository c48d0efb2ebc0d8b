"""Every Byte: where the memory of a GPU goes while it trains a transformer.

    import everybyte as eb

    gpt2 = eb.model("gpt2")
    setup = eb.Setup(batch=8, sequence=1024, precision="bf16-mixed", optimizer="adamw")
    predicted = eb.budget(gpt2, setup)  # by formula
    counted = eb.dry_run(gpt2, setup)  # by PyTorch, on tensors without data
    eb.compare(predicted, counted)  # part by part, the difference in bytes

Importing this loads neither torch nor sympy: what needs them is fetched when it is first used.
"""

import logging
from importlib import import_module
from typing import TYPE_CHECKING

from .answers.alignment import Alignment, Rollout, align
from .answers.engines import Engine
from .answers.fit import Fit
from .answers.headroom import Headroom
from .answers.layouts import Layouts, layouts
from .answers.own import fit, plan
from .answers.plan import Plan
from .ask.mesh import Mesh
from .ask.objectives import Objective
from .ask.setup import Lora, Setup
from .catalog import Claim, Gpu, Model, claims, from_config, gpu, gpus, model, models
from .theory.budget import Budget, budget

# torchao, which transformers, peft and diffusers import where it is there, warns of kernels that only a GPU loads.
for _name in ("torchao", "torch.utils._pytree", "diffusers.quantizers.torchao.torchao_quantizer"):
    logging.getLogger(_name).setLevel(logging.ERROR)

if TYPE_CHECKING:  # what editors and type checkers see of the names that are fetched when they are first used
    from . import allocator, draw, explore, units
    from .answers.comparison import Comparison, compare
    from .answers.diagnosis import Diagnosis, doctor
    from .answers.epochs import Epoch, epoch
    from .answers.explanation import Explanation, explain
    from .answers.leaking import Leaks, leaks
    from .answers.monitoring import Monitor
    from .answers.scripts import Largest, Tried, largest, tried
    from .answers.serving import Serving, serve
    from .ask.lengths import Lengths
    from .ask.routing import Router
    from .derivation import Derivation
    from .deriving import derive
    from .dryrun import Trace, dry_run
    from .dryrun.inference import dry_serve
    from .evidence import Snapshot, snapshot
    from .formulas import Formula, formula
    from .lab import Measurement, measure
    from .published.settling import Settled, settle
    from .rehearsal import Rehearsal, rehearse

_HOME = {"Formula": "formulas", "formula": "formulas", "Trace": "dryrun", "dry_run": "dryrun"}
_HOME |= {"Serving": "answers.serving", "serve": "answers.serving", "dry_serve": "dryrun.inference"}
_HOME |= {"Comparison": "answers.comparison", "compare": "answers.comparison", "Measurement": "lab", "measure": "lab"}
_HOME |= {"Derivation": "derivation", "derive": "deriving"}
_HOME |= {"Rehearsal": "rehearsal", "rehearse": "rehearsal"}
_HOME |= {
    "Diagnosis": "answers.diagnosis",
    "doctor": "answers.diagnosis",
    "Snapshot": "evidence",
    "snapshot": "evidence",
}
_HOME |= {"Epoch": "answers.epochs", "epoch": "answers.epochs", "Lengths": "ask.lengths"}
_HOME |= {"Router": "ask.routing"}
_HOME |= {"Leaks": "answers.leaking", "leaks": "answers.leaking", "Monitor": "answers.monitoring"}
_HOME |= {"Explanation": "answers.explanation", "explain": "answers.explanation"}
_HOME |= dict.fromkeys(("Largest", "Tried", "largest", "tried"), "answers.scripts")
_HOME |= {"Settled": "published.settling", "settle": "published.settling"}
#: Modules that are reached as `everybyte.draw`: they load matplotlib, ipywidgets or nothing when they are first used.
_MODULES = ("allocator", "draw", "explore", "units")
__all__ = sorted(
    [
        *_HOME,
        *_MODULES,
        "Alignment",
        "Budget",
        "Claim",
        "Engine",
        "Fit",
        "Gpu",
        "Headroom",
        "Layouts",
        "Lora",
        "Mesh",
        "Model",
        "Objective",
        "Plan",
        "Rollout",
        "Setup",
        "align",
        "budget",
        "claims",
        "fit",
        "from_config",
        "gpu",
        "gpus",
        "layouts",
        "model",
        "models",
        "plan",
    ]
)
__version__: str


def _installed():
    """The installed version, by the tags it was built from; of sources that are not installed, 0."""
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version(__name__)
    except PackageNotFoundError:
        return "0+uninstalled"


if not TYPE_CHECKING:  # to a type checker a name that is not above is an error

    def __getattr__(name):
        if name == "__version__":
            return _installed()
        if name not in _MODULES and name not in _HOME:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from .common.interrupts import importing

        with importing():
            module = import_module(f".{_HOME.get(name, name)}", __name__)
        return getattr(module, name) if name in _HOME else module


def __dir__():
    return __all__
