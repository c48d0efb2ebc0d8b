"""Chapter 26's explorer: seconds on the bus against seconds of arithmetic, as a batch grows, with every share on the host."""

from sympy import ceiling

from ..ask.choices import PRECISIONS, Sharding
from ..ask.setup import Setup
from ..catalog import Gpu, Model
from ..common import checks
from ..formulas import SYMBOLS, Formula, bindings, formula
from .beside import said
from .controls import Choice, a_gpt, asked, check_setup, gpts, gpus_label, model_of, opens, powers, shared, steps
from .explorer import Explorer, told
from .pictures import Lines

STAGES: dict[Sharding, str] = {"zero2": "ZeRO-2", "zero3": "ZeRO-3"}
#: Of one machine, whose GPUs have a link each.
GPUS = powers(0, 3)
SEQUENCE = 1024
_SWITCHES = ("sharded_weights", "segmented")


def _seconds(what, amount, rate):
    """In tenths of a millisecond, rounded up: the catalog's rates have no more digits."""
    expr = ceiling(10_000 * amount / SYMBOLS[rate].symbol) / 10_000
    return Formula(f"seconds {what}", "", expr, "s", "the explorer's own quotient", "26_offloading")


def _decided(names, setup):
    return bindings(None, setup, [SYMBOLS[name] for name in names])


@opens
def offloading(model: Model | None = None, setup: Setup | None = None, gpu: Gpu | None = None) -> Explorer:
    """The least time on the bus and the least time of arithmetic in one batch of an offloaded GPT, against its sequences.

    At the data sheets' rates, both directions of the bus at once, products in 16 bits. Blocks are the units; sequences have
    1,024 tokens; attention is flash.

    Args:
        model, setup, gpu: what it opens with, a model of your own too; by default GPT-2 XL under mixed precision on one GPU.

    Raises:
        ValueError: a model that is not of GPT-2's architecture; a batch that is no power of two; a sequence of other than
            1,024 tokens; other than 1, 2, 4 or 8 GPUs; a sharding that is not FSDP's; products in other than bf16; a GPU that is not in
            the catalog.
    """
    start, chosen = a_gpt(model, "gpt2-xl"), setup or Setup(precision="bf16-mixed", sharding="zero3")
    checks.one_of("offloading", "setup.sharding", chosen.sharding, STAGES)
    checks.whole("offloading", "setup.sequence", chosen.sequence, SEQUENCE, SEQUENCE)
    checks.one_of("offloading", "setup.checkpointing", chosen.checkpointing, ("none", "full"))
    shown = (
        "batch",
        "sequence",
        "precision",
        "sharding",
        "checkpointing",
        "gpus",
        "offload",
        "optimizer",
        "optimizer_impl",
    )
    check_setup("offloading", setup, *shown)
    precisions: dict[str, dict] = {
        p: _decided(("stored_weight_bytes", "reduced_bytes"), Setup(precision=p))
        for p in PRECISIONS
        if PRECISIONS[p].compute == "bf16"
    }
    kept = {"(no checkpointing)": Setup(), "full checkpointing": Setup(checkpointing="full")}
    stages = {label: _decided(_SWITCHES[:1], Setup(sharding=s)) for s, label in STAGES.items()}
    again = {label: _decided(_SWITCHES[1:], s) for label, s in kept.items()}
    controls = [
        model_of(gpts() | {start.name: start}, start),
        Choice("precision", "precision", precisions, chosen.precision),
        Choice("stage", "stage", stages, STAGES[chosen.sharding]),
        Choice("checkpointing", "checkpointing", again, list(again)[chosen.segment > 0]),
        steps("gpus", "GPUs", GPUS, chosen.gpus, "shards", gpus_label),
        *asked(setup, "batch"),
        shared("gpu", gpu and gpu.name),
    ]
    products = sum(formula(f"flops.{way}").expr for way in ("forward", "backward")) + formula("checkpoint.flops").expr
    curves = [
        ("unsharded", "weights, up", _seconds("up", formula("fsdp.to_gpu").expr, "host_link")),
        ("gradients", "gradients, down", _seconds("down", formula("fsdp.to_host").expr, "host_link")),
        ("other", "arithmetic", _seconds("of products", products, "flop_rate")),
    ]
    picture = Lines("batch", "sequences in the batch", powers(0, 8), curves, unit="s", log=True)
    derived = zip(said("offloading")["also"], ("fsdp.to_gpu", "fsdp.to_host"), strict=True)
    return told("offloading", controls, picture, derived=list(derived))
