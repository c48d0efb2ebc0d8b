"""Chapter 34's explorer: what eight GPUs in a row receive into and keep of the micro-batches in flight, GPU by GPU."""

from ..catalog import Model
from ..formulas import bindings
from ..formulas.symbols import BY_SYMBOL, H, L, all_first, divided, hop, p, v
from ..mesh import Mesh, Schedule
from ..setup import Setup
from .controls import Choice, Slider
from .explorer import Explorer
from .pictures import Stack

#: GPUs in a row, and stages on each, by schedule.
PLACES = 8
SCHEDULES: dict[Schedule, int] = {
    "gpipe": 1,
    "1f1b": 1,
    "interleaved-1f1b": 2,
    "looped-bfs": 2,
    "interleaved-zero-bubble": 2,
}
#: Micro-batches of a step: rounds of all GPUs, which interleaved schedules ask for.
BATCHES = (8, 16, 32, 64, 128)
_PARTS = [
    ("communication", "receive buffers", "pipeline.received"),
    ("activations", "inputs of checkpointed blocks", "pipeline.kept"),
]


def pipelines(model: Model | None = None, setup: Setup | None = None) -> Explorer:
    """What stands on each of eight GPUs in a row beside weights, states and the last stage's logits, all blocks checkpointed.

    Args:
        model, setup: what it opens with; by default Llama-3.1-70B, 1F1B, 16 micro-batches of one sequence of 8,192 tokens.

    Raises:
        ValueError: a model that is not in the catalog, or whose blocks 16 stages do not divide; a mesh of another size or schedule, or a number of micro-batches, that
            are not offered.
    """
    from ..catalog import models

    symbols = [BY_SYMBOL[z] for z in (p, v, hop, all_first, divided)]
    schedules = {
        str(name): bindings(None, Setup(gpus=PLACES, accumulation=PLACES, mesh=Mesh(pipeline=PLACES, schedule=name, stages=count)), symbols)
        for name, count in SCHEDULES.items()
    }  # fmt: skip
    dimensions = [BY_SYMBOL[z] for z in (L, H)]
    known = {
        m.name: bindings(m, None, dimensions) for m in models().values() if m.family and not m.layers % (2 * PLACES)
    }
    if setup is not None and setup.mesh.pipeline != PLACES:
        raise ValueError(f"Mesh.pipeline: {setup.mesh.pipeline} is not offered; allowed: {PLACES}")
    batches = {f"{n} micro-batches": {"accumulation": n} for n in BATCHES}
    places = {f"GPU {i}": {"place": i} for i in range(PLACES)}
    controls = [
        Choice("model", "model", known, model.name if model else "llama-3.1-70b"),
        Choice("schedule", "schedule", schedules, setup.mesh.schedule if setup else "1f1b"),
        Choice("batches", "micro-batches", batches, f"{setup.accumulation if setup else 16} micro-batches", kind="slider"),
        Choice("place", "GPU", places, kind="slider"),
        Slider("sequence", "tokens of a micro-batch", 512, 65536, setup.sequence if setup else 8192, 512),
    ]  # fmt: skip
    usual = {"model": "llama-3.1-70b", "sequence": 8192, "batches": "16 micro-batches", "place": "GPU 0"}
    presets = {
        "GPipe": usual | {"schedule": "gpipe"},
        "interleaved, two stages each": usual | {"schedule": "interleaved-1f1b"},
        "1F1B, 128 micro-batches": usual | {"schedule": "1f1b", "batches": "128 micro-batches"},
    }
    return Explorer(
        "What micro-batches take on each GPU", controls, Stack(_PARTS, bars="place"), presets,
        base={"batch": 1, "weight_bytes": 2}, derived=[("bubble", "pipeline.bubble"), ("in flight", "pipeline.in_flight")],
        subject=("model", "schedule", "batches", "place"),
    )  # fmt: skip
