"""Chapter 32's explorer: the peak of one training step under FSDP, by part, for every number of GPUs side by side."""

from sympy import Min

from .. import checks, draw
from ..catalog import Gpu, Model
from ..formulas import bindings
from ..formulas.symbols import G
from ..setup import PRECISIONS, Setup
from .controls import OF_THE_STEP, Choice, check_setup, gpts, of_the_step, opens, shared
from .courses import BY, LONE, UPDATE_BY, Courses, batches_of, kinds, numbers_of, updates_of
from .courses import PRECISIONS_OF_UPDATES as UPDATED
from .explorer import Explorer
from .precision import Peak

PARTS = ("parameters", "buffers", "gradients", "optimizer", "activations", "loss", "unsharded", "communication")
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


def gpus_label(count: int) -> str:
    """The option for so many GPUs."""
    return f"{count:,} GPU{'s' * (count > 1)}"


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
        Choice("gpus", "number of GPUs", {gpus_label(2**i): {"shards": 2**i} for i in range(MOST.bit_length())},
               gpus_label(chosen.gpus), kind="slider"),
        *of_the_step(setup, chosen, shortest),
        shared("gpu", gpu and gpu.name),
    ]  # fmt: skip
    large = {"model": "gpt2-xl", "precision": "bf16-mixed", "attention": "flash", "dropout": "(no dropout)",
             "optimizer": "adamw", "optimizer_impl": "foreach", "batch": "8", "sequence": "1,024", "gpus": gpus_label(8)}  # fmt: skip
    presets = {
        "XL, one sequence on 1,024": large | {"batch": "1", "gpus": gpus_label(1024)},
        "GPT-2 on 4,096": large | {"model": "gpt2", "gpus": gpus_label(MOST), "batch": "1"},
        "XL, one short sequence": large | {"batch": "1", "sequence": "128", "gpus": gpus_label(64)},
        "XL, fp32, eager": large | {"precision": "fp32", "attention": "eager"},
    }
    parts = [(part, draw.part(part).label, part) for part in PARTS]
    return Explorer(
        "The peak of one training step on one GPU, by the number of GPUs", controls,
        Peak(parts, bars="gpus", courses=_courses(deepest)), presets, derived=[LONE, _SEVERAL],
        subject=("model", "precision", "gpus", "attention", "dropout", "optimizer", "optimizer_impl"), also=("batch", "sequence"),
    )  # fmt: skip
