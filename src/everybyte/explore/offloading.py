"""Chapter 26's explorer: seconds on the bus against seconds of arithmetic, as a batch grows, with every share on the host."""

from sympy import ceiling

from .. import checks
from ..catalog import Gpu, Model
from ..formulas import SYMBOLS, Formula, bindings, formula
from ..rules.formulas import GPT, refused
from ..setup import PRECISIONS, Setup, Sharding
from .controls import Choice, check_setup, gpts, opens, shared
from .explorer import Explorer
from .pictures import Lines

STAGES: dict[Sharding, str] = {"zero2": "ZeRO-2", "zero3": "ZeRO-3"}
#: Of one machine, whose GPUs have a link each.
GPUS = (1, 2, 4, 8)
SEQUENCE = 1024
_SWITCHES = ("sharded_weights", "segmented")


def _seconds(what, amount, rate):
    """In tenths of a millisecond, rounded up: the catalog's rates have no more digits."""
    expr = ceiling(10_000 * amount / SYMBOLS[rate].symbol) / 10_000
    return Formula(f"seconds {what}", "", expr, "s", "the explorer's own quotient", "26_offloading")


def gpus_label(count: int) -> str:
    """The option for so many GPUs."""
    return f"{count} GPU{'s' * (count > 1)}"


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
    from ..catalog import models

    start, chosen = model or models()["gpt2-xl"], setup or Setup(precision="bf16-mixed", sharding="zero3")
    if unlike := refused(GPT, start):
        raise ValueError(unlike)
    checks.one_of("offloading", "setup.sharding", chosen.sharding, STAGES)
    checks.whole("offloading", "setup.sequence", chosen.sequence, SEQUENCE, SEQUENCE)
    checks.one_of("offloading", "setup.checkpointing", chosen.checkpointing, ("none", "full"))
    check_setup(
        "offloading",
        setup,
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
    known = gpts() | {start.name: start}
    precisions: dict[str, dict] = {
        p: _decided(("stored_weight_bytes", "reduced_bytes"), Setup(precision=p))
        for p in PRECISIONS
        if PRECISIONS[p].compute == "bf16"
    }
    kept = {"(no checkpointing)": Setup(), "full checkpointing": Setup(checkpointing="full")}
    controls = [
        Choice("model", "model", {name: bindings(m, None) for name, m in known.items()}, start.name),
        Choice("precision", "precision", precisions, chosen.precision),
        Choice("stage", "stage", {label: _decided(_SWITCHES[:1], Setup(sharding=s)) for s, label in STAGES.items()},
               STAGES[chosen.sharding]),
        Choice("checkpointing", "checkpointing", {label: _decided(_SWITCHES[1:], s) for label, s in kept.items()},
               "full checkpointing" if chosen.segment else "(no checkpointing)"),
        Choice("gpus", "GPUs", {gpus_label(n): {"shards": n} for n in GPUS}, gpus_label(chosen.gpus), kind="slider"),
        shared("batch", setup and f"{setup.batch:,}"),
        shared("gpu", gpu and gpu.name),
    ]  # fmt: skip
    products = sum(formula(f"flops.{way}").expr for way in ("forward", "backward")) + formula("checkpoint.flops").expr
    curves = [
        ("unsharded", "weights, up", _seconds("up", formula("fsdp.to_gpu").expr, "host_link")),
        ("gradients", "gradients, down", _seconds("down", formula("fsdp.to_host").expr, "host_link")),
        ("other", "arithmetic", _seconds("of products", products, "flop_rate")),
    ]
    usual = {"model": "gpt2-xl", "precision": "bf16-mixed", "stage": "ZeRO-3", "checkpointing": "(no checkpointing)",
             "gpus": "1 GPU", "batch": "8", "gpu": "h100-80gb"}  # fmt: skip
    presets = {
        "XL, the bus is hidden": usual | {"batch": "32"},
        "the same, checkpointed": usual | {"batch": "16", "checkpointing": "full checkpointing"},
        "XL on 8": usual | {"gpus": "8 GPUs", "batch": "4"},
        "a slower GPU": usual | {"gpu": "rtx-4090"},
    }
    up, down = "bytes up", "bytes down"
    return Explorer(
        "One batch with every share on the host", controls,
        Lines("batch", "sequences in the batch", [2**i for i in range(9)], curves, unit="s", log=True), presets,
        base={"sequence": SEQUENCE, "accumulation": 1, "eager": 0, "dropout": 0, "selective": 0, "segment": 1, "one_unit": 0, "ends_apart": 0,
              "no_sync": 0},
        derived=[(up, "fsdp.to_gpu"), (down, "fsdp.to_host")],
        subject=("model", "precision", "stage", "checkpointing", "gpus", "gpu"), also=(up, down),
    )  # fmt: skip
