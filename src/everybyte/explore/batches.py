"""Chapter 23's explorer: the peak of one step of the same sequences, cut into ever more micro-batches whose gradients add up."""

from itertools import product

from ..ask.setup import Setup
from ..catalog import Gpu, Model
from ..common import checks
from .controls import (
    Choice,
    attention_of,
    check_setup,
    counted,
    gpts,
    opens,
    powers,
    precision_label,
    shared,
    steps,
)
from .courses import FORMS, UPDATE_BY, Courses, kinds, updates_of
from .explorer import Explorer, told
from .planning import CHUNKS, CUT, switched
from .precision import peaks

_KINDS = (0, 0, 0), (0, 1, 0), (0, 0, 1), (0, 1, 1)
_BY = ("form", "eager", "lone", "segmented", "accumulated", "chunked")
_LOSSES = {
    "plain loss": {"chunked": 0, "loss_chunks": 1},
    f"loss in {CHUNKS} chunks": {"chunked": 1, "loss_chunks": CHUNKS},
}


def _courses(model: Model) -> Courses:
    """The steps of a model with AdamW."""
    cases = {}
    for (segmented, accumulated, chunked), form, eager, lone in product(_KINDS, range(len(FORMS)), (0, 1), (0, 1)):
        cases[form, eager, lone, segmented, accumulated, chunked] = model, Setup(
            batch=1 if lone and eager else 2, sequence=128, attention="eager" if eager else "flash",
            accumulation=4 if accumulated else 1, **FORMS[form], **switched(segmented, chunked),
        )  # fmt: skip
    return Courses("batches", _BY, cases, UPDATE_BY, updates_of([model], optimizers=["adamw"]))


def _sizes_of_gpt2() -> tuple[dict, dict, Model]:
    """GPT-2's four sizes by name, the controls' options of them, and the deepest."""
    known = {
        name: m for name, m in gpts().items() if m.qkv_bias and m.ffn_width == 4 * m.width and m.name.startswith("gpt2")
    }
    options, (deepest,) = kinds(known)
    return known, options, deepest


@opens
def batches(model: Model | None = None, setup: Setup | None = None, gpu: Gpu | None = None) -> Explorer:
    """The peak of a GPT's step in exact tensor bytes, a bar for each number of micro-batches that its sequences are cut into.

    Args:
        model, setup, gpu: what it opens with; by default GPT-2 XL in fp32. `batch` times `accumulation` are the sequences
            of the whole step. AdamW, foreach or fused; the loss plain or in 8 chunks; no dropout, no checkpointing.

    Raises:
        ValueError: a model that is not one of GPT-2's four sizes, a number of sequences, of tokens in one or of micro-batches
            that is none of those offered, a GPU that is not in the catalog.
    """
    known, options, deepest = _sizes_of_gpt2()
    start, chosen = model or known["gpt2-xl"], setup or Setup(precision="fp32")
    checks.one_of("batches", "model", start.name, known)
    shown = "batch", "accumulation", "sequence", "precision", "master_gradients", "attention", "loss", "optimizer_impl"
    check_setup("batches", setup, *shown)
    checks.one_of("batches", "setup.loss", chosen.loss, ("plain", "chunked"))
    fused = {"foreach": {"impl_no": 0}, "fused": {"impl_no": 2}}
    whole = chosen.batch * chosen.accumulation
    controls = [
        Choice("model", "model", options, start.name),
        shared("precision", precision_label(chosen)),
        attention_of(chosen),
        Choice("loss", "loss", _LOSSES, list(_LOSSES)[chosen.loss == "chunked"]),
        Choice("step", "optimizer's step", fused, chosen.optimizer_impl),
        steps("whole", "in a step", powers(0, 8), whole, "batch", counted("sequence")),
        steps("sequence", "sequence (tokens)", powers(7, 10), chosen.sequence),
        steps("cut", "cut into", powers(0, 6), chosen.accumulation, "accumulation", counted("micro-batch", "es")),
        shared("gpu", gpu and gpu.name),
    ]
    return told("batches", controls, peaks("batches", "cut", _courses(deepest)), derived=CUT)
