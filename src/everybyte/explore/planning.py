"""Chapter 45's explorer: what each switch leaves of the peak of one step, against what a GPU has usable."""

from typing import Any

from sympy import Min, ceiling

from .. import checks, draw
from ..catalog import Gpu, Model, gpus
from ..formulas.symbols import B, n_a
from ..headroom import Headroom
from ..setup import Setup
from .controls import Choice, check_setup, gpts, precision_label, shared
from .courses import FORMS, LONE, UPDATE_BY, Courses, kinds, updates_of
from .explorer import Explorer
from .precision import Peak

PARTS = ("parameters", "casts", "buffers", "gradients", "optimizer", "activations", "loss")
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


#: Of a step whose sequences are cut into batches: how many there are, with how many sequences, and whether several.
CUT = [("accumulation", Min(n_a, B)), ("batch", ceiling(B / n_a)), ("accumulated", Min(n_a - 1, 1)), LONE]
_BY = ("form", "eager", "lone", "segmented", "accumulated", "chunked")


def courses(name: str, model: Model, kinds_of) -> Courses:
    """The steps of a model with AdamW, for several kinds.

    Args:
        name: of the explorer. kinds_of: (checkpointed, accumulated, loss chunked) of each, 0 or 1.
    """
    cases = {}
    for segmented, accumulated, chunked in kinds_of:
        more: dict[str, Any] = {"checkpointing": "full"} if segmented else {}
        more |= {"loss": "chunked", "loss_chunks": CHUNKS} if chunked else {}
        for form, fields in enumerate(FORMS):
            for eager in (0, 1):
                for lone in (0, 1):
                    cases[form, eager, lone, segmented, accumulated, chunked] = model, Setup(
                        batch=1 if lone and eager else 2, sequence=128, attention="eager" if eager else "flash",
                        accumulation=4 if accumulated else 1, **fields, **more,
                    )  # fmt: skip
    return Courses(name, _BY, cases, UPDATE_BY, updates_of([model], optimizers=["adamw"]))


def sizes_of_gpt2() -> tuple[dict, dict, Model]:
    """GPT-2's four sizes by name, the controls' options of them, and the deepest."""
    known = {
        name: m for name, m in gpts().items() if m.qkv_bias and m.ffn_width == 4 * m.width and m.name.startswith("gpt2")
    }
    options, (deepest,) = kinds(known)
    return known, options, deepest


def planning(model: Model | None = None, setup: Setup | None = None, gpu: Gpu | None = None) -> Explorer:
    """The peak of a GPT's step in exact tensor bytes, a bar for each set of switches, against what a GPU has usable.

    Args:
        model, setup, gpu: what it opens with; by default GPT-2 XL on a 40 GB A100. AdamW, the plain loss.

    Raises:
        ValueError: a model that is not one of GPT-2's four sizes, a batch or a sequence that is none of
            those offered, a GPU that is not in the catalog.
    """
    known, options, deepest = sizes_of_gpt2()
    start, chosen = model or known["gpt2-xl"], setup or Setup(precision="bf16-mixed")
    card = gpu.name if gpu else "a100-40gb"
    checks.one_of("planning", "model", start.name, known)
    checks.one_of("planning", "gpu", card, gpus())
    check_setup("planning", setup, "batch", "sequence", "precision", "master_gradients", "attention")
    room = {name: {"capacity": Headroom().usable(g), "capacity_label": f"{name}, usable"} for name, g in gpus().items()}
    controls = [
        Choice("model", "model", options, start.name),
        Choice("gpu", "GPU", room, card),
        shared("precision", precision_label(chosen)),
        Choice("attention", "attention", {"flash": {"eager": 0}, "eager": {"eager": 1}}, chosen.attention),
        Choice("batch", "batch (sequences)", {f"{2**i:,}": {"batch": 2**i} for i in range(9)}, f"{chosen.batch:,}", "slider"),
        Choice("sequence", "sequence (tokens)", {f"{2**i:,}": {"sequence": 2**i} for i in range(7, 11)},
               f"{chosen.sequence:,}", "slider"),
        Choice("switches", "switches", {label: _ASKED | more for label, more in SWITCHES.items()}, "as chosen"),
    ]  # fmt: skip
    plain = {"model": "gpt2-xl", "gpu": "a100-40gb", "precision": "bf16-mixed", "attention": "flash", "batch": "8",
             "sequence": "1,024", "switches": "as chosen"}  # fmt: skip
    presets = {
        "XL on 24 GB": plain | {"gpu": "rtx-3090", "batch": "1"},
        "XL on 24 GB, all bf16": plain | {"gpu": "rtx-3090", "precision": "bf16", "switches": "fused optimizer"},
        "124M, batch 64": plain | {"model": "gpt2", "gpu": "rtx-4090", "batch": "64", "switches": "full checkpointing"},
        "eager, fp32, 80 GB": plain | {"gpu": "h100-80gb", "precision": "fp32", "attention": "eager"},
    }
    parts = [(part, draw.part(part).label, part) for part in PARTS]
    return Explorer(
        "What each switch leaves of the peak", controls,
        Peak(parts, bars="switches", courses=courses("planning", deepest, _KINDS)), presets, base=BASE, derived=CUT,
        subject=("model", "precision", "attention", "switches"), also=("batch", "sequence"),
    )  # fmt: skip
