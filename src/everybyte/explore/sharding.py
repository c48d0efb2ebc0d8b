"""Chapter 32's explorer: the peak of one training step under FSDP, by part, for every number of GPUs side by side."""

from sympy import Min

from ..ask.choices import PRECISIONS
from ..ask.setup import Setup
from ..catalog import Gpu, Model
from ..common import checks
from ..formulas import bindings
from ..formulas.symbols import G
from .controls import OF_THE_STEP, Choice, check_setup, gpts, gpus_label, of_the_step, opens, powers, shared, steps
from .courses import BY, LONE, UPDATE_BY, Courses, batches_of, kinds, numbers_of, updates_of
from .courses import PRECISIONS_OF_UPDATES as UPDATED
from .explorer import Explorer, told
from .precision import peaks

#: What other controls say of a setup.
_OTHERS = ("optimizer_no", "impl_no", "shards", "batch", "sequence", "eager", "dropout")
#: The explorer's numbers of GPUs.
MOST = 4096
#: Whether there is anybody to gather from.
_SEVERAL = ("several", Min(G - 1, 1))


def _courses(models):
    cases, updates = {}, {}
    for several in (0, 1):
        shared = {"sharding": "zero3", "gpus": 1 + several}
        cases |= {(*key, several): case for key, case in batches_of(models, forms=(0, 1, 3), **shared).items()}
        named = updates_of(models, precisions=[i for i, p in enumerate(UPDATED) if _divided(p)], **shared)
        updates |= {(*key, several): case for key, case in named.items()}
    return Courses("sharding", (*BY, "several"), cases, (*UPDATE_BY, "several"), updates)


def _divided(precision):
    """Whether FSDP takes it: no loss scaling, no buffer of gradients."""
    return not PRECISIONS[precision["precision"]].loss_scaling and precision["master_gradients"] == "bf16"


@opens
def sharding(model: Model | None = None, setup: Setup | None = None, gpu: Gpu | None = None) -> Explorer:
    """The peak of a GPT's step under FSDP (`zero3`, by blocks), on one GPU, in exact tensor bytes: a bar for every number of GPUs.

    Args:
        model, setup, gpu: what it opens with; by default GPT-2 XL under mixed precision on 8 GPUs.

    Raises:
        ValueError: a model that is not one of the catalog's of GPT-2's architecture; a batch, a sequence or a number of
            GPUs that is no power of two, or too large; a precision that FSDP does not take; a GPU that is not in the catalog.
    """
    known = gpts()
    options, deepest = kinds(known)
    start, chosen = model or known["gpt2-xl"], setup or Setup(gpus=8, sharding="zero3", precision="bf16-mixed")
    checks.one_of("sharding", "model", start.name, known)
    check_setup("sharding", setup, *OF_THE_STEP, "gpus", "sharding")
    checks.one_of("sharding", "setup.sharding", chosen.sharding, ("zero3",))
    precisions: dict[str, dict] = {
        p: {n: v for n, v in (bindings(None, s) | numbers_of(s)).items() if n not in _OTHERS}
        for p in PRECISIONS
        if not PRECISIONS[p].loss_scaling
        for s in (Setup(precision=p, sharding="zero3"),)
    }
    shortest = min(m.positions for m in known.values())
    controls = [
        Choice("precision", "precision", precisions, chosen.precision),
        Choice("model", "model", options, start.name),
        steps("gpus", "number of GPUs", powers(0, 12), chosen.gpus, "shards", gpus_label),
        *of_the_step(setup, chosen, shortest),
        shared("gpu", gpu and gpu.name),
    ]
    return told("sharding", controls, peaks("sharding", "gpus", _courses(deepest)), derived=[LONE, _SEVERAL])
