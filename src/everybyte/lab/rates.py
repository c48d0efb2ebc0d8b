"""FLOPs of a training step, for utilization; and estimates of its time, to plan what to measure."""

from collections.abc import Callable, Iterable

from ..ask.choices import DTYPE_BYTES
from ..ask.setup import Setup
from ..catalog import Gpu, Model, gpus
from ..common.tables import Table
from .grid import TIMED, WARM_UP, Configuration

#: Options of every measurement of a recording.
OPTIONS = {"warm_up": 1, "points": 160}
#: Seconds for a measurement's timed steps, and for a training run; where they are too few, fewer steps are taken.
LONGEST, TRAINING = 15.0, 60.0
#: Share of the catalog's dense 16-bit peak that a step reaches in 16 bits, in TF32, and in fp32.
USED, TF32, FP32 = 0.45, 0.2, 1 / 20
#: The same of logits whose rows are no multiple of 8 numbers, in 16 bits.
UNEVEN = 0.11
#: How often eager attention reads or writes its scores, at the catalog's bandwidth; Python's seconds per block, forward and backward.
PASSES, LAUNCH = 70, 1.5e-3
#: Bytes per parameter that an optimizer's step moves; seconds of overhead per measurement.
MOVED, AROUND = 40, 0.4


def flops_of_step(model: Model, tokens: int, sequence: int) -> int:
    """Model FLOPs of one training step, without recomputation: 6·N + 12·L·A·D·S for each token.

    N: parameters that a token is multiplied with: without positions, without the token table unless it is the head, and without
    experts that the token does not visit. L layers of A heads of width D, sequences of S. The half of attention that the causal
    mask hides is counted. Source: Chowdhery et al., PaLM (2022), appendix B.
    """
    looked_up = model.learned_positions + (0 if model.tied else model.vocabulary)
    expert = (2 + model.gated) * model.width * model.expert_width
    unvisited = model.mixture_layers * (model.experts - model.experts_per_token) * expert if model.experts else 0
    multiplied = int(model.parameters) - looked_up * model.width - unvisited
    return tokens * (6 * multiplied + 12 * model.layers * model.heads * model.head_width * sequence)


def utilization(flops: int, milliseconds: float, gpu: str | None, setup: Setup) -> float | None:
    """Model FLOP/s over the catalog's dense 16-bit peak; None for fp32 and unknown devices."""
    if gpu is None or setup.dtypes.compute == "fp32":
        return None
    return round(flops / (milliseconds / 1e3) / gpus()[gpu].bf16_flops, 4)


def tokens_of_step(setup: Setup) -> int:
    """The tokens of one optimizer step on one GPU."""
    return setup.accumulation * setup.batch * setup.sequence


def step_seconds(model: Model, setup: Setup, gpu: Gpu, tf32: bool = False) -> float:
    """Seconds of a step, by rule of thumb: good enough for a plan. An H200 took 0.9 to 2.6 times as long, half of its 42 steps up to 1.3
    times (`labs/records`)."""
    tokens, compute = tokens_of_step(setup), setup.dtypes.compute
    again = 4 / 3 if setup.segment else 1
    arithmetic = again * flops_of_step(model, tokens, setup.sequence) / gpu.bf16_flops
    arithmetic /= USED if compute != "fp32" else TF32 if tf32 else FP32
    if compute != "fp32" and model.vocabulary % 8:
        logits = 6 * tokens * model.vocabulary * model.embedding_width
        arithmetic += logits / gpu.bf16_flops * (1 / UNEVEN - 1 / USED)
    scores = model.layers * model.heads * tokens * setup.sequence * DTYPE_BYTES[compute]
    eager = PASSES * again * scores / gpu.bandwidth if setup.attention == "eager" else 0
    asked = again * model.layers * LAUNCH * setup.accumulation
    return max(arithmetic + eager, asked) + MOVED * int(model.parameters) / gpu.bandwidth


def seconds(configuration: Configuration, gpu: Gpu) -> float:
    """Seconds of measuring a configuration, by rule of thumb."""
    each = step_seconds(configuration.model, configuration.setup, gpu, configuration.tf32)
    asked = options(configuration)
    if recipe := configuration.recipe:
        steps = max(1, min(recipe.steps, asked["seconds"] / each))
        unseen = recipe.evaluations * -(-recipe.windows // configuration.setup.batch) / 3  # forward alone
        return AROUND + each * (steps + unseen)
    timed = min(configuration.steps, max(2, asked["seconds"] / each)) if asked.get("seconds") else configuration.steps
    return AROUND + each * (asked["warm_up"] + 1 + timed)


def options(configuration: Configuration) -> dict:
    """The options of a recording's measurement; one of time has more warm-up steps and a time limit."""
    if configuration.recipe:
        how: dict = {"recipe": configuration.recipe.as_dict(), "seconds": TRAINING}
    else:
        how = {"warm_up": WARM_UP, "seconds": LONGEST} if configuration.steps == TIMED else {}
        how["steps"] = configuration.steps
    return OPTIONS | how | {"tf32": configuration.tf32, "limit": configuration.limit}


def estimate(wanted: Iterable[Configuration], gpu: Gpu, need: Callable[[Model, Setup], int]) -> Table:
    """A table of what a recording would measure on a GPU: per group the steps, how many fit, and their seconds."""
    groups = {}
    for configuration in wanted:
        row = groups.setdefault(configuration.group, [0, 0, 0.0])
        row[0] += 1
        if need(configuration.model, configuration.setup) <= gpu.memory:
            row[1] += 1
            row[2] += seconds(configuration, gpu)
    rows = [[name, steps, fit, round(time)] for name, (steps, fit, time) in groups.items()]
    total = ["all", *(sum(column) for column in list(zip(*rows, strict=True))[1:])]
    caption = f"{gpu.title}: an estimate by rule of thumb, not a measurement"
    return Table(["group", "steps", "fit", "seconds"], [*rows, total], caption)
