"""`fit` and `plan` for any model: one that the theory does not derive is derived, or counted by dry runs, first."""

from collections.abc import Callable

from ..allocator import Settings
from ..ask.objectives import Objective
from ..ask.setup import Setup
from ..catalog import Gpu, Model
from ..common import checks
from ..derivation import Derivation
from ..rules import PLANNED, check
from ..theory.budget import budget
from .fit import VARY, Fit
from .fit import fit as fit_derived
from .headroom import Headroom
from .plan import Plan
from .plan import plan as plan_derived


def fit(
    model,
    setup: Setup,
    gpu: Gpu | str,
    vary: str = "batch",
    headroom: Headroom | None = None,
    witness: Callable = budget,
    batch=None,
    configuration: Settings | str | None = None,
    whole: bool = False,
    **sizes: int,
) -> Fit:
    """The largest batch or sequence, or the fewest gpus, with which a step fits a GPU.

    The value found fits, and the next does not, by the same budget with tensors rounded up to 512 bytes; and no value
    beyond it fits either (of gpus, none below it that was looked at). The setup's own `vary` is not read:
    `Fit.takes` says whether it fits. PyTorch's allocator
    is simulated, from the first weight on, in the memory that context and others leave, and does not run out at the value
    found: with PyTorch's defaults, and as `Fit.expandable` with expandable segments, unless the reader says a configuration. Of a model
    of one's own a dry run counts each step that is simulated, some ten in all, in seconds each.
    Weights come to the GPU as they stay: made on the CPU, or of a module on meta in shares. Near the border a larger batch
    may run where a smaller one does not; the value found is the largest below which every one that was tried runs.

    Args:
        model: a `Model`, or an `Objective`; or a `Derivation`, or what `derive` takes: a Hugging Face config, a function that makes a
            module.
        gpu: of the catalog, by name too; or its size, as "24 GiB". headroom: what is kept free; by default the GPU's
            own.
        vary: a name in `VARY`, or a letter of a derivation's own, whose largest size is found by a proof that the peak
            grows with it. The gpus of a model of one's own are counted by a dry run for each number that is tried, in
            seconds; so is a letter that a function makes the batch of, such as `lambda M: ...`, tokens of a picture.
        batch: for `derive`, the arguments of a module of one's own. sizes: of its own letters, as R=224, those that do not vary.
        witness: what counts the bytes of a `Model`: called with model, setup and rounding. `eb.dry_run` takes models whose
            step is not derived, at seconds a value.
        configuration: `PYTORCH_ALLOC_CONF`, which then alone is simulated; "" for PyTorch's defaults; by default these, and
            beside them expandable segments. whole: whether the weights are first made on the GPU, in fp32 and undivided, as the
            book's own step makes them.

    Raises:
        ValueError: an unknown GPU, setting or `vary`; a setup that does not fit the model, or a GPU without its data types; a model
            whose step the witness does not know.
    """
    if sizes and isinstance(model, Model | Objective):
        raise ValueError(f"fit: {next(iter(sizes))!r} with a Model; allowed: letters of a model of one's own")
    if not isinstance(model, Model | Objective | Derivation):
        from ..deriving import derive
        from ..deriving.planning import Counting

        if vary == "gpus":
            model, witness, sizes = Counting(model, batch, sizes), Counting.at, {}
        elif callable(batch) and vary not in VARY:  # its values may say which operations run
            model, sizes = Counting(model, batch, sizes, vary), {}
        else:
            model = derive(model, setup, batch)
    if sizes:
        model = model.fixed(**sizes)
    return fit_derived(model, setup, gpu, vary, headroom, witness, configuration, whole)


def plan(
    model,
    setup: Setup,
    gpu: Gpu | str,
    headroom: Headroom | None = None,
    batch=None,
    configuration: Settings | str = "",
) -> Plan:
    """Every set of switches for a run, with what it needs and what it costs in time, tokens in a step unchanged.

    The switches: the optimizer's implementation, attention, the loss in chunks, checkpointing, smaller batches with
    accumulation, and a lower precision. Those that the setup has thrown stay thrown. Where no set of them fits, the
    last resorts: weights divided by FSDP, where there are several GPUs; then weights, gradients and states in the
    memory of the CPU.

    Args:
        model: a `Model`, of which the theory says what each switch does; or a Hugging Face config, or a function that makes a
            module: on one GPU, each set of switches that it can take is counted by a dry run when it is asked for.
        gpu: of the catalog, by name too: its rates say what a switch costs. headroom: what is kept free; by default the
            GPU's own.
        batch: for a module of your own, its arguments as `derive` takes them. configuration: `PYTORCH_ALLOC_CONF`, with which the
            allocator is simulated: a set fits where it does not run out. By default PyTorch's defaults.

    Raises:
        ValueError: an unknown GPU, or one given by its size alone; a setup that does not fit the model, or the GPU; a `Model`
            whose step is not derived; a `Derivation`, which is of one setup; of a model of one's own, several GPUs.
    """
    if isinstance(model, Model):
        return plan_derived(model, setup, gpu, headroom, configuration)
    if isinstance(model, Objective):
        raise ValueError(
            f"plan.model: {model.name}: what a switch costs is derived for the next token's loss alone; allowed: its model; eb.fit and "
            "eb.align take an Objective"
        )
    if isinstance(model, Derivation):
        raise ValueError(
            f"plan.model: a derivation of {model.name} says what one setup takes; allowed: what it was derived from, a config or "
            "a function that makes a module"
        )
    checks.kind("plan", "setup", setup, Setup)
    check(PLANNED, setup, type(model).__name__)
    from ..deriving.planning import Counting

    return plan_derived(Counting(model, batch), setup, gpu, headroom, configuration)
