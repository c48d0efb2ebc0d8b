"""Chapter 45's explorer: what each switch leaves of the peak of one step, against what a GPU has usable."""

from typing import Any

from sympy import Min, ceiling

from .. import checks, draw
from ..catalog import Gpu, Model, gpus, models
from ..formulas import bindings
from ..formulas.symbols import B, G, autocast, n_a, w
from ..headroom import Headroom
from ..setup import PRECISIONS, Setup
from .controls import Choice, check_setup, opens
from .courses import FORMS, LONE, UPDATE_BY, Courses, kinds, numbers_of, updates_of
from .courses import PRECISIONS_OF_UPDATES as UPDATED
from .explorer import Explorer
from .precision import Peak
from .sharding import PARTS as OF_FSDP
from .sharding import gpus_label

PARTS = ("parameters", "casts", "buffers", "gradients", "optimizer", "activations", "loss")
#: Of GPUs that share a model besides.
SHARED_PARTS = tuple(dict.fromkeys((*PARTS[:3], *OF_FSDP)))
CHUNKS = 8
#: What no control turns: AdamW, no dropout.
BASE = {"optimizer_no": 3, "segment": 1}
_ASKED = {"impl_no": 0, "accumulation": 1, "segmented": 0, "chunked": 0, "loss_chunks": 1}
_KINDS = (0, 0, 0), (0, 1, 0), (1, 0, 0), (1, 1, 0), (0, 0, 1)
_FUSED, _FULL = {"impl_no": 2}, {"segmented": 1}
_TWO, _EACH = {"accumulation": 2}, {"accumulation": 2**10}
#: The bars: sets of switches, the symbols' values that each has beside the chosen ones.
SWITCHES = {
    "as chosen": {},
    "fused optimizer": _FUSED,
    "two half batches": _TWO,
    "one sequence at a time": _EACH,
    f"loss in {CHUNKS} chunks": {"chunked": 1, "loss_chunks": CHUNKS},
    "full checkpointing": _FULL,
    "the same, fused": _FULL | _FUSED,
    "the same, one at a time": _FULL | _FUSED | _EACH,
}
#: What it opens with: the run that chapter 45 plans.
OPENS = Setup(gpus=8, sharding="zero3", precision="bf16-mixed", batch=2, sequence=8192)
#: Models with as long a sequence as the slider goes.
LLAMAS = ("llama-3.2-1b", "llama-3.2-3b", "llama-3.1-8b", "llama-3.1-70b", "llama-3.1-405b")
#: The most GPUs, and the most tokens of a sequence, as powers of two; the fewest tokens.
_MOST, _LONGEST, _SHORTEST = 10, 17, 7

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
        for kind, model in enumerate(models):
            for segmented, accumulated, chunked in _KINDS:
                more = shared | switched(segmented, chunked)
                for form in forms:
                    for lone in (0, 1):
                        cases[kind, form, lone, segmented, accumulated, chunked, several] = model, Setup(
                            batch=1 if lone else 2, sequence=128, accumulation=4 if accumulated else 1, **FORMS[form], **more,
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
        ValueError: a model that is not one of `LLAMAS`, a batch, a sequence or a number of GPUs that is none of those
            offered, several GPUs without `zero3`, a GPU that is not in the catalog.
    """
    known = {name: models()[name] for name in LLAMAS}
    options, deepest = kinds(known)
    start, chosen = model or known["llama-3.1-8b"], setup or OPENS
    card = gpu.name if gpu else "h100-80gb"
    checks.one_of("planning", "model", start.name, known)
    checks.one_of("planning", "gpu", card, gpus())
    check_setup("planning", setup, "batch", "sequence", "precision", "gpus", "sharding")
    checks.one_of("planning", "setup.sharding", chosen.sharding, ("zero3",) if chosen.gpus > 1 else ("none",))
    room = {name: {"capacity": Headroom().usable(g), "capacity_label": f"{name}, usable"} for name, g in gpus().items()}
    numbers = {name: bindings(None, run) | numbers_of(run) for name, run in _precisions().items()}
    turned = {
        "optimizer_no",
        "impl_no",
        "batch",
        "sequence",
        "shards",
        "accumulation",
        "segmented",
        "chunked",
        "loss_chunks",
    }
    precisions = {name: {n: v for n, v in run.items() if n not in turned} for name, run in numbers.items()}
    controls = [
        Choice("model", "model", options, start.name),
        Choice("gpu", "GPU", room, card),
        Choice("gpus", "number of GPUs", {gpus_label(2**i): {"shards": 2**i} for i in range(_MOST + 1)},
               gpus_label(chosen.gpus), "slider"),
        Choice("precision", "precision", precisions, chosen.precision),
        Choice("batch", "batch of each (sequences)", {f"{2**i:,}": {"batch": 2**i} for i in range(9)}, f"{chosen.batch:,}", "slider"),
        Choice("sequence", "sequence (tokens)", {f"{2**i:,}": {"sequence": 2**i} for i in range(_SHORTEST, _LONGEST + 1)},
               f"{chosen.sequence:,}", "slider"),
        Choice("switches", "switches", {label: _ASKED | more for label, more in SWITCHES.items()}, "as chosen"),
    ]  # fmt: skip
    plain = {"model": "llama-3.1-8b", "gpu": "h100-80gb", "gpus": gpus_label(8), "precision": "bf16-mixed", "batch": "2",
             "sequence": "8,192", "switches": "as chosen"}  # fmt: skip
    presets = {
        "1B on 24 GB": plain
        | {"model": "llama-3.2-1b", "gpu": "rtx-4090", "gpus": gpus_label(1), "batch": "1", "sequence": "1,024"},
        "131,072 tokens": plain | {"batch": "1", "sequence": "131,072", "switches": "full checkpointing"},
        "70B on 64": plain | {"model": "llama-3.1-70b", "gpus": gpus_label(64), "batch": "1", "switches": "full checkpointing"},
        "405B on 1,024": plain | {"model": "llama-3.1-405b", "gpus": gpus_label(1024), "batch": "1",
                                  "switches": "full checkpointing"},
    }  # fmt: skip
    parts = [(part, draw.part(part).label, part) for part in SHARED_PARTS]
    return Explorer(
        "What each switch leaves of the peak", controls, Peak(parts, bars="switches", courses=_courses(deepest)), presets,
        base=BASE, derived=[*CUT, *_FSDP], subject=("model", "gpus", "precision", "switches"), also=("batch", "sequence"),
    )  # fmt: skip
