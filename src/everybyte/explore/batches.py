"""Chapter 23's explorer: the peak of one step of the same sequences, cut into ever more micro-batches whose gradients add up."""

from .. import checks, draw
from ..catalog import Gpu, Model
from ..setup import Setup
from .controls import Choice, check_setup, gpts, opens, precision_label, shared
from .courses import FORMS, UPDATE_BY, Courses, kinds, updates_of
from .explorer import Explorer
from .planning import BASE, CHUNKS, CUT, PARTS, switched
from .precision import Peak

#: Into how many micro-batches a step's sequences are cut, at most: there are no more of them than sequences.
CUTS = [2**i for i in range(7)]
_KINDS = (0, 0, 0), (0, 1, 0), (0, 0, 1), (0, 1, 1)
_BY = ("form", "eager", "lone", "segmented", "accumulated", "chunked")
_CHUNKED = f"loss in {CHUNKS} chunks"
_LOSSES = {"plain loss": {"chunked": 0, "loss_chunks": 1}, _CHUNKED: {"chunked": 1, "loss_chunks": CHUNKS}}


def _some(n, one, more):
    return f"{n:,} {one if n == 1 else more}"


def _courses(model: Model) -> Courses:
    """The steps of a model with AdamW."""
    cases = {}
    for segmented, accumulated, chunked in _KINDS:
        more = switched(segmented, chunked)
        for form, fields in enumerate(FORMS):
            for eager in (0, 1):
                for lone in (0, 1):
                    cases[form, eager, lone, segmented, accumulated, chunked] = model, Setup(
                        batch=1 if lone and eager else 2, sequence=128, attention="eager" if eager else "flash",
                        accumulation=4 if accumulated else 1, **fields, **more,
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
    check_setup(
        "batches",
        setup,
        "batch",
        "accumulation",
        "sequence",
        "precision",
        "master_gradients",
        "attention",
        "loss",
        "optimizer_impl",
    )
    checks.one_of("batches", "setup.loss", chosen.loss, ("plain", "chunked"))
    cuts = {_some(n, "micro-batch", "micro-batches"): {"accumulation": n} for n in CUTS}
    steps = {"foreach": {"impl_no": 0}, "fused": {"impl_no": 2}}
    loss = _CHUNKED if chosen.loss == "chunked" else "plain loss"
    sequences = {_some(2**i, "sequence", "sequences"): {"batch": 2**i} for i in range(9)}
    controls = [
        Choice("model", "model", options, start.name),
        shared("precision", precision_label(chosen)),
        Choice("attention", "attention", {"flash": {"eager": 0}, "eager": {"eager": 1}}, chosen.attention),
        Choice("loss", "loss", _LOSSES, loss),
        Choice("step", "optimizer's step", steps, chosen.optimizer_impl),
        Choice("whole", "in a step", sequences, _some(chosen.batch * chosen.accumulation, "sequence", "sequences"), "slider"),
        Choice("sequence", "sequence (tokens)", {f"{2**i:,}": {"sequence": 2**i} for i in range(7, 11)},
               f"{chosen.sequence:,}", "slider"),
        Choice("cut", "cut into", cuts, _some(chosen.accumulation, "micro-batch", "micro-batches"), "slider"),
        shared("gpu", gpu and gpu.name),
    ]  # fmt: skip
    plain = {"model": "gpt2-xl", "precision": "fp32", "attention": "flash", "loss": "plain loss", "step": "foreach",
             "whole": "8 sequences", "sequence": "1,024", "cut": "1 micro-batch"}  # fmt: skip
    few = {
        "step": "fused",
        "precision": "bf16-mixed",
        "whole": "2 sequences",
        "sequence": "512",
        "cut": "2 micro-batches",
    }
    small = plain | {"model": "gpt2", "whole": "64 sequences", "cut": "4 micro-batches"}
    presets = {
        "XL, nothing left to cut": plain | {"cut": "8 micro-batches"},
        "XL, cutting costs": plain | few,
        "124M, mostly loss": small,
        "the same, in chunks": small | {"loss": _CHUNKED},
    }
    parts = [(part, draw.part(part).label, part) for part in PARTS]
    return Explorer(
        "One step, cut into micro-batches", controls, Peak(parts, bars="cut", courses=_courses(deepest)), presets,
        base=BASE | {"segmented": 0}, derived=CUT,
        subject=("model", "precision", "attention", "loss", "step", "whole", "cut"), also=("batch", "sequence"),
    )  # fmt: skip
