"""Chapter 25's explorer: the peak of a fine-tuning step, a bar for each way to train: whole, by adapters, by adapters over 4 bits."""

from itertools import product

from ..ask.choices import Checkpointing
from ..ask.setup import Lora, Setup
from ..catalog import Gpu, Model
from ..catalog import model as catalog_model
from ..common import checks
from .beside import said
from .controls import Choice, asked, check_setup, listed, opens, powers, shared, steps
from .courses import Courses, kinds
from .explorer import Explorer, told
from .precision import peaks

MODELS: list[str] = said("adapters")["models"]
#: Way -> fields of the setup; of the adapters, without which it is full fine-tuning.
WAYS: dict[str, dict] = said("adapters")["ways"]
TARGETS: dict[str, tuple[str, ...] | str] = {
    "q and v": ("q", "v"), "attention": ("q", "k", "v", "out"), "all linear layers": "all-linear",
}  # fmt: skip
#: What `lora_dropout` is; any above 0 costs the same.
DROPOUTS = {"no dropout": 0.0, "adapters' dropout 0.05": 0.05}
AGAIN: dict[str, Checkpointing] = {"(nothing recomputed)": "none", "full checkpointing": "full"}
#: Ranks offered; and what a course's sizes read of a setup.
RANKS = powers(1, 8)
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
    fields, lora = WAYS[way]["setup"], WAYS[way].get("lora")
    beside = None if lora is None else Lora(rank, TARGETS[targets], dropout=dropout, **lora)
    return Setup(**fields, adapters=beside, checkpointing=again, optimizer_impl="fused", **more)


def courses() -> tuple[dict[str, dict], Courses]:
    """(the models' values by name, the steps that the controls reach)."""
    options, deepest = kinds({name: catalog_model(name) for name in MODELS})
    cases, updates = {}, {}
    for (kind, model), (w, way), (t, targets) in product(enumerate(deepest), enumerate(WAYS), enumerate(TARGETS)):
        updates[kind, w, t] = model, setup_of(way, targets, batch=2, sequence=2)
        for (d, dropout), (a, again) in product(enumerate(DROPOUTS.values()), enumerate(AGAIN.values())):
            cases[kind, w, t, d, a] = model, setup_of(way, targets, again, dropout=dropout, batch=2, sequence=2)
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
    options, steps_of = courses()
    controls = [
        Choice("model", "model", options, start.name),
        Choice("way", "way to train", _of_ways(), "QLoRA"),
        listed("targets", "targets", TARGETS, "all linear layers"),
        listed("dropout", "dropout", DROPOUTS, symbol="dropped"),
        steps("rank", "rank", RANKS, 16, "adapter_rank", "rank {}".format),
        listed("again", "checkpointing", AGAIN, "full checkpointing"),
        *asked(chosen, "batch", "sequence"),
        shared("gpu", gpu.name if gpu else "rtx-4090"),
    ]
    return told("adapters", controls, peaks("adapters", "way", steps_of))
