"""Chapter 25's explorer: the peak of a fine-tuning step, a bar for each way to train: whole, by adapters, by adapters over 4 bits."""

from itertools import product
from typing import Any

from .. import checks, draw
from ..catalog import Gpu, Model
from ..catalog import model as catalog_model
from ..setup import Checkpointing, Lora, Setup
from .controls import Choice, check_setup, opens, shared
from .courses import Courses, kinds
from .explorer import Explorer
from .precision import Peak

PARTS = ("parameters", "casts", "gradients", "optimizer", "activations", "loss")
MODELS = ("llama-3.1-8b", "llama-3.1-70b", "qwen2.5-7b", "qwen2.5-14b", "qwen2.5-32b")
_QLORA: dict[str, Any] = {"precision": "bf16-mixed", "quantization": "nf4"}
#: Way -> (fields of the setup, fields of the adapters; None for full fine-tuning).
WAYS: dict[str, tuple[dict[str, Any], dict[str, Any] | None]] = {
    "full fine-tuning, bf16": ({"precision": "bf16"}, None),
    "LoRA in fp32": ({"precision": "bf16"}, {}),
    "LoRA in bf16": ({"precision": "bf16"}, {"dtype": "bf16"}),
    "LoRA, autocast": ({"precision": "bf16-mixed"}, {"base": "bf16"}),
    "QLoRA": (_QLORA, {"base": "bf16"}),
    "QLoRA, rest in fp32": (_QLORA, {}),
}
TARGETS: dict[str, tuple[str, ...] | str] = {
    "q and v": ("q", "v"), "attention": ("q", "k", "v", "out"), "all linear layers": "all-linear",
}  # fmt: skip
#: What `lora_dropout` is; any above 0 costs the same.
DROPOUTS = {"no dropout": 0.0, "adapters' dropout 0.05": 0.05}
AGAIN: dict[str, Checkpointing] = {"(nothing recomputed)": "none", "full checkpointing": "full"}
#: Ranks offered; and what a course's sizes read of a setup.
RANKS = [2**i for i in range(1, 9)]
_READ = ("weight_bytes", "stored_weight_bytes", "adapter_bytes", "compute_bytes", "state_bytes", "reduced_bytes")


def setup_of(
    way: str,
    targets: str = "all linear layers",
    again: Checkpointing = "none",
    rank: int = 16,
    dropout: float = 0.0,
    **more,
) -> Setup:
    """The setup of one of `WAYS`, with AdamW in one kernel."""
    fields, lora = WAYS[way]
    beside = None if lora is None else Lora(rank, TARGETS[targets], dropout=dropout, **lora)
    return Setup(**fields, adapters=beside, checkpointing=again, optimizer_impl="fused", **more)


def courses() -> tuple[dict[str, dict], Courses]:
    """(the models' values by name, the steps that the controls reach)."""
    options, deepest = kinds({name: catalog_model(name) for name in MODELS})
    cases, updates = {}, {}
    for kind, model in enumerate(deepest):
        for w, way in enumerate(WAYS):
            for t, targets in enumerate(TARGETS):
                for (d, dropout), (a, again) in product(enumerate(DROPOUTS.values()), enumerate(AGAIN.values())):
                    setup = setup_of(way, targets, again, dropout=dropout, batch=2, sequence=2)
                    cases[kind, w, t, d, a] = model, setup
                updates[kind, w, t] = model, setup_of(way, targets, batch=2, sequence=2)
    by = "kind", "way", "targets", "dropped", "again"
    return options, Courses("adapters", by, cases, by[:3], updates)


def _of_ways():
    from ..formulas import bindings

    found = {}
    for i, way in enumerate(WAYS):
        values = bindings(None, setup_of(way))
        found[way] = {"way": i} | {name: values[name] for name in _READ}
    return found


@opens
def adapters(model: Model | None = None, setup: Setup | None = None, gpu: Gpu | None = None) -> Explorer:
    """The peak of one fine-tuning step in exact tensor bytes: a bar for each way to train, against a GPU's memory.

    Args:
        model, setup, gpu: what it opens with; by default Llama 3.1 8B in QLoRA, one sequence of 2,048 tokens, on an RTX 4090. Of
            `setup` batch and sequence alone.

    Raises:
        ValueError: a model that is none of `MODELS`, a batch or a sequence that is no power of two, a setup that says more than
            these, a GPU that is not in the catalog.
    """
    check_setup("adapters", setup, "batch", "sequence")
    start, chosen = model or catalog_model("llama-3.1-8b"), setup or Setup(batch=1, sequence=2048)
    checks.one_of("adapters", "model", start.name, MODELS)
    options, steps = courses()
    controls = [
        Choice("model", "model", options, start.name),
        Choice("way", "way to train", _of_ways(), "QLoRA"),
        Choice("targets", "targets", {label: {"targets": i} for i, label in enumerate(TARGETS)}, "all linear layers"),
        Choice("dropout", "dropout", {label: {"dropped": i} for i, label in enumerate(DROPOUTS)}, "no dropout"),
        Choice("rank", "rank", {f"rank {r}": {"adapter_rank": r} for r in RANKS}, "rank 16", kind="slider"),
        Choice("again", "checkpointing", {label: {"again": i} for i, label in enumerate(AGAIN)}, "full checkpointing"),
        shared("batch", f"{chosen.batch:,}"),
        shared("sequence", f"{chosen.sequence:,}"),
        shared("gpu", gpu.name if gpu else "rtx-4090"),
    ]
    usual = {
        "model": "llama-3.1-8b", "way": "QLoRA", "targets": "all linear layers", "dropout": "no dropout", "rank": "rank 16",
        "again": "full checkpointing", "batch": "1", "sequence": "2,048", "gpu": "rtx-4090",
    }  # fmt: skip
    presets = {
        "QLoRA on a card of 24 GB": usual,
        "the same without checkpointing": usual | {"again": "(nothing recomputed)"},
        "peft's usual adapters, nothing recomputed": usual
        | {"way": "LoRA in fp32", "again": "(nothing recomputed)", "gpu": "a100-80gb"},
        "rank 256": usual | {"rank": "rank 256"},
    }
    parts = [(part, draw.part(part).label, part) for part in PARTS]
    return Explorer(
        "The peak of one fine-tuning step", controls, Peak(parts, bars="way", courses=steps), presets, base={"segment": 1},
        subject=("model", "way", "targets", "dropout", "rank", "again"), also=("batch", "sequence"),
    )  # fmt: skip
