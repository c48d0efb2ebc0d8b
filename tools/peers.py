"""Other estimators on the same runs: the table of the README.

    python tools/peers.py

Sixteen runs, GPT-2 from 124M to XL, 8 × 1,024 tokens, AdamW, in fp32 and under bf16 autocast, with eager and flash attention.
They are held against what PyTorch's CUDA allocator allocates in the rehearsals that ship with the book. `accelerate` is the
installed package; the cookbook's formula is written out here, as it stands in its source.
"""

from statistics import median

from everybyte.ask.setup import Setup
from everybyte.catalog import Model, model
from everybyte.rehearsal import shipped
from everybyte.theory.budget import budget

SIZES = ("gpt2", "gpt2-medium", "gpt2-large", "gpt2-xl")
#: What PyTorch asks for beside tensors on the rehearsed GPU: cuBLAS's two workspaces.
WORKSPACES = 2 * 2**25
COOKBOOK = "069ae2e"


def runs() -> list[tuple[Model, Setup]]:
    """Models and setups that are compared."""
    return [
        (model(name), Setup(batch=8, sequence=1024, precision=precision, attention=attention))
        for name in SIZES
        for precision in ("fp32", "bf16-mixed")
        for attention in ("eager", "flash")
    ]


def sixteen(shape: Model, setup: Setup) -> float:
    """The rule of thumb: 16 bytes a parameter."""
    return 16 * shape.parameters


def accelerate(shape: Model, setup: Setup) -> float:
    """Hugging Face's `accelerate estimate-memory`, its figure for training with Adam; it takes neither batch nor attention."""
    from accelerate.commands.estimate import estimate_training_usage

    kind = "float32" if setup.precision == "fp32" else "bfloat16"
    return max(estimate_training_usage(4 * shape.parameters, kind).values())


def cookbook(shape: Model, setup: Setup) -> float | None:
    """EleutherAI's cookbook, calc/calc_transformer_mem.py, with its defaults; None with flash attention, which it does not know.

    Weights of 2 or 4 bytes, gradients of 4, 12 for Adam and a master copy, and Korthikanti's activations of 16-bit training.
    """
    if setup.attention == "flash":
        return None
    H, L, S, B, A = shape.width, shape.layers, setup.sequence, setup.batch, shape.heads
    numbers = 2 * shape.vocabulary * H + H * S + 8 * H * L + 2 * H + 12 * L * H * H
    states = (2 if setup.precision == "bf16-mixed" else 4) + 4 + 12
    return states * numbers + S * B * H * L * (34 + 5 * A * S / H)


def book(shape: Model, setup: Setup) -> float:
    """This book's formula, and cuBLAS's workspaces."""
    return budget(shape, setup).peak + WORKSPACES


ESTIMATORS = {
    "16 bytes a parameter": sixteen,
    "`accelerate estimate-memory`": accelerate,
    f"EleutherAI cookbook ({COOKBOOK})": cookbook,
    "this book's formula": book,
}


def errors() -> dict[str, list[float]]:
    """Estimator -> by how much of what was allocated each run's estimate is off.

    Raises:
        ValueError: where a run has no rehearsal of today's sources.
    """
    shelf = shipped("h200")
    if shelf is None or shelf.stale:
        raise ValueError("peers: no rehearsals of today's reference step; `everybyte rehearse --all` makes them")
    found: dict[str, list[float]] = {name: [] for name in ESTIMATORS}
    for run in runs():
        if run not in shelf.found:
            raise ValueError(f"peers: {run[0].name} with {run[1]} has no rehearsal")
        allocated = shelf.found[run].allocated
        for name, estimate in ESTIMATORS.items():
            if (said := estimate(*run)) is not None:
                found[name].append(abs(said / allocated - 1))
    return found


def table() -> str:
    """Markdown."""
    rows = ["| estimator | runs it can say | median error | worst |", "|---|--:|--:|--:|"]
    rows += [
        f"| {name} | {len(off)} of {len(runs())} | {median(off):.1%} | {max(off):.1%} |"
        for name, off in errors().items()
    ]
    return "\n".join(rows)


if __name__ == "__main__":
    print(table())
