"""Chapter 45's explorer: what each switch leaves of the peak of one step, against what a GPU has usable."""

from itertools import product
from typing import Any

from sympy import Min, ceiling

from ..ask.choices import PRECISIONS
from ..ask.setup import Setup
from ..catalog import Gpu, Model, gpus, models
from ..common import checks
from ..formulas import bindings
from ..formulas.symbols import B, G, autocast, n_a, w
from .beside import said
from .controls import Choice, check_setup, gpus_label, opens, powers, steps, usable
from .courses import FORMS, LONE, UPDATE_BY, Courses, kinds, numbers_of, updates_of
from .courses import PRECISIONS_OF_UPDATES as UPDATED
from .explorer import Explorer, told
from .precision import peaks

CHUNKS = 8
_KINDS = (0, 0, 0), (0, 1, 0), (1, 0, 0), (1, 1, 0), (0, 0, 1)
#: The bars: sets of switches, the symbols' values that each has beside the chosen ones.
SWITCHES = said("planning")["switches"]
#: What it opens with: the run that chapter 45 plans.
OPENS = Setup(gpus=8, sharding="zero3", precision="bf16-mixed", batch=2, sequence=8192)
#: Of a step whose sequences are cut into batches: how many there are, with how many sequences, and whether several.
CUT = [("accumulation", Min(n_a, B)), ("batch", ceiling(B / n_a)), ("accumulated", Min(n_a - 1, 1)), LONE]
_several = Min(G - 1, 1)
#: Whether several GPUs share the model: FSDP gathers casts, so no product needs one of its own.
_FSDP = [("several", _several), ("weight_bytes", w - 2 * autocast * _several)]
_BY = ("kind", "form", "lone", "segmented", "accumulated", "chunked")


def switched(segmented: int, chunked: int) -> dict[str, Any]:
    """The fields of a setup with full checkpointing, and with the loss in chunks, where these are 1."""
    more: dict[str, Any] = {"checkpointing": "full"} if segmented else {}
    return more | ({"loss": "chunked", "loss_chunks": CHUNKS} if chunked else {})


def _precisions() -> dict[str, Setup]:
    """What one GPU and FSDP both take, by name."""
    return {name: Setup(precision=name) for name, precision in PRECISIONS.items() if not precision.loss_scaling}


def _courses(models):
    """The steps of several kinds of models with AdamW, on one GPU and under FSDP on several."""
    offered = {numbers_of(setup)["precision_no"] for setup in _precisions().values()}
    forms = sorted({numbers_of(setup)["form"] for setup in _precisions().values()})
    cases, updates = {}, {}
    for several in (0, 1):
        shared: dict[str, Any] = {"sharding": "zero3", "gpus": 2} if several else {}
        every = product(enumerate(models), _KINDS, forms, (0, 1))
        for (kind, model), (segmented, accumulated, chunked), form, lone in every:
            cases[kind, form, lone, segmented, accumulated, chunked, several] = model, Setup(
                batch=1 if lone else 2, sequence=128, accumulation=4 if accumulated else 1, **FORMS[form], **shared,
                **switched(segmented, chunked),
            )  # fmt: skip
        named = updates_of(models, [i for i in range(len(UPDATED)) if i in offered], ["adamw"], **shared)
        updates |= {(*key, several): case for key, case in named.items()}
    return Courses("planning", (*_BY, "several"), cases, (*UPDATE_BY, "several"), updates)


@opens
def planning(model: Model | None = None, setup: Setup | None = None, gpu: Gpu | None = None) -> Explorer:
    """The peak of a Llama's step on one GPU, or on each of several under FSDP, in exact tensor bytes: a bar for each set of
    switches, against what a GPU has usable.

    Args:
        model, setup, gpu: what it opens with; by default Llama-3.1-8B on 8 H100s, two sequences of 8,192 tokens on each.
            AdamW, flash attention, the plain loss; several GPUs share the model by `zero3`.

    Raises:
        ValueError: a model that is not one of those offered, a batch, a sequence or a number of GPUs that is none of those
            offered, several GPUs without `zero3`, a GPU that is not in the catalog.
    """
    known = {name: models()[name] for name in said("planning")["models"]}
    options, deepest = kinds(known)
    start, chosen = model or known["llama-3.1-8b"], setup or OPENS
    card = gpu.name if gpu else "h100-80gb"
    checks.one_of("planning", "model", start.name, known)
    checks.one_of("planning", "gpu", card, gpus())
    check_setup("planning", setup, "batch", "sequence", "precision", "gpus", "sharding")
    checks.one_of("planning", "setup.sharding", chosen.sharding, ("zero3",) if chosen.gpus > 1 else ("none",))
    numbers = {name: bindings(None, run) | numbers_of(run) for name, run in _precisions().items()}
    turned = {"optimizer_no", "impl_no", "batch", "sequence", "shards", *said("planning")["asked"]}
    precisions = {name: {n: v for n, v in run.items() if n not in turned} for name, run in numbers.items()}
    switches = {label: said("planning")["asked"] | more for label, more in SWITCHES.items()}
    controls = [
        Choice("model", "model", options, start.name),
        Choice("gpu", "GPU", usable(gpus()), card),
        steps("gpus", "number of GPUs", powers(0, 10), chosen.gpus, "shards", gpus_label),
        Choice("precision", "precision", precisions, chosen.precision),
        steps("batch", "batch of each (sequences)", powers(0, 8), chosen.batch),
        steps("sequence", "sequence (tokens)", powers(7, 17), chosen.sequence),
        Choice("switches", "switches", switches, "as chosen"),
    ]
    return told("planning", controls, peaks("planning", "switches", _courses(deepest)), derived=[*CUT, *_FSDP])
