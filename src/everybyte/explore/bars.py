"""Explorers with bars: model states, parameters, what a block saves on each of many GPUs, what the allocator reserves."""

import math
from functools import cache

from sympy import floor

from ..ask.choices import OPTIMIZERS, OptimizerName, Sharding
from ..ask.routing import Router
from ..ask.setup import Setup
from ..catalog import Gpu, Model, models
from ..formulas import SYMBOLS, bindings, context, expert_parallel, formula, tensor_parallel
from ..formulas.symbols import (
    L_1,
    L_2,
    A,
    B,
    D,
    H,
    L,
    N_i,
    P,
    S,
    X_i,
    c,
    n_s,
    p_i,
    r_A,
    s_b,
    segmented,
    tower_trained,
    w,
    w_s,
)
from .beside import said, table
from .controls import (
    OF_ACTIVATIONS,
    OF_STATES,
    Choice,
    Slider,
    asked,
    decided,
    gpus_label,
    listed,
    looked_up,
    opens,
    powers,
    shared,
    steps,
    usable_of_each,
)
from .explorer import Explorer, told
from .pictures import Printed, Stack

_SIZES = [n * 10**k for k in range(6, 13) for n in (1, 2, 3, 5, 7)]


def _size(count):
    suffix, base = next((suffix, base) for suffix, base in (("T", 12), ("B", 9), ("M", 6)) if count >= 10**base)
    return f"{count // 10**base} {suffix} parameters"


@opens(*OF_ACTIVATIONS, *OF_STATES)
def states(model: Model | None = None, setup: Setup | None = None, gpu: Gpu | None = None) -> Explorer:
    """Chapter 12: weights, gradients, master weights and optimizer states for every precision, against a GPU's memory.

    A model that is not in the catalog opens by its parameter count.
    """
    own = model if model is not None and models("reference").get(model.name) != model else None
    sizes = {"(the model's)": {}} | {_size(n): {"parameters": n} for n in _SIZES}
    if own:
        sizes[own.name] = {"parameters": int(own.parameters)}
    controls = [
        shared("model", None if own or model is None else model.name),
        Choice("size", "size", sizes, own and own.name, kind="slider", instead_of="model"),
        *asked(setup, "precision", "optimizer"),
        shared("gpu", gpu and gpu.name),
    ]
    return told("states", controls, Stack(said("states")["parts"], bars="precision"))


#: Optimizer -> the switch of its own formula, where its states are not tensors as large as the weights.
OWN = {"adafactor": "adafactor", "adamw8bit": "adam8bit", "muon": "muon"}
_NAMES: tuple[OptimizerName, ...] = ("sgd", "adafactor", "adamw8bit", "momentum", "lion", "muon", "adamw")


@opens(*OF_ACTIVATIONS, *OF_STATES)
def optimizers(model: Model | None = None, setup: Setup | None = None, gpu: Gpu | None = None) -> Explorer:
    """Chapter 24: weights, gradients and states under every optimizer, against a GPU's memory; the setup's is marked."""
    kinds: dict[str, dict] = {
        name: {"states": OPTIMIZERS[name].states or 0, **{switch: int(name == o) for o, switch in OWN.items()}}
        for name in _NAMES
    }
    controls = [
        shared("model", model and model.name),
        *asked(setup, "precision"),
        Choice("small_optimizer", "optimizer", kinds, setup.optimizer if setup else "adamw"),
        shared("gpu", gpu and gpu.name),
    ]
    own = sum(SYMBOLS[switch].symbol * formula(f"states.{name}").expr for name, switch in OWN.items())
    parts = [*said("states")["parts"][:3], ("optimizer", "optimizer states", n_s * s_b * P + own)]
    return told("optimizers", controls, Stack(parts, bars="small_optimizer"))


STAGES: dict[Sharding, str] = {"none": "DDP", "zero1": "ZeRO-1", "zero2": "ZeRO-2", "zero3": "ZeRO-3"}


@opens(*OF_ACTIVATIONS, *OF_STATES, "gpus", "sharding")
def zero(model: Model | None = None, setup: Setup | None = None) -> Explorer:
    """Chapter 31: model states per GPU on 1 to 4,096 GPUs, for each ZeRO stage, and the bytes that each GPU sends in a step.

    The default is DDP on 8 GPUs.
    """
    switches = "sharded_optimizer", "sharded_gradients", "sharded_weights"
    stages = {label: decided(None, Setup(sharding=sharding), *switches) for sharding, label in STAGES.items()}
    gpus, counts = setup.gpus if setup else 8, powers(0, 12)
    if gpus not in counts:
        raise ValueError(f"Setup.gpus: {gpus} is not offered; allowed: powers of two from 1 to 4,096")
    controls = [
        shared("model", model and model.name),
        *asked(setup, "precision", "optimizer"),
        Choice("stage", "stage", stages, STAGES[setup.sharding if setup else "none"]),
        steps("gpus", "GPUs", counts, gpus, "shards", gpus_label),
        shared("gpu"),
    ]
    sent = [*((name, "zero.sent") for name in said("zero")["also"]), usable_of_each(counts)]
    return told("zero", controls, Stack(said("zero")["parts"], bars="stage"), derived=sent)


def _slider(name, of_it, start):
    label, most, step = of_it
    step = math.gcd(step, start)
    low = 0 if name == "learned_positions" else step
    return Slider(name, label, low, most, start, step, divides="heads" if name == "kv_heads" else "")


def _fault(model):
    """Why the explorer cannot show `model`, in words; empty where it can."""
    if model.experts or model.latent_rank:
        return "has experts or latent attention"
    if model.width != model.heads * model.head_width or model.embedding_width != model.width:
        return "has a width that is not heads times head_width, or a token table of another width"
    return ""


@opens()
def parameters(model: Model | None = None) -> Explorer:
    """Chapter 11: the parameters of a dense transformer, by group, for any dimensions.

    The width is heads times head width, so the heads always divide it. Only divisors of the heads are offered as key-value heads.
    What has no slider (biases, norms) stays as in the model, by default GPT-2.
    """
    known = {name: m for name, m in models("reference").items() if not _fault(m)}
    start = model or known["gpt2"]
    if fault := _fault(start):
        raise ValueError(f"parameters.model: {start.name} {fault}; allowed: {', '.join(known)}, or a dense Model")
    values = {name: bindings(m, None) for name, m in (known | {start.name: start}).items()}
    sliders, choices = said("parameters")["sliders"], said("parameters")["choices"]
    sets = {name: {k: v[k] for k in (*sliders, *choices)} for name, v in values.items()}
    at = sets[start.name]
    controls = [
        Choice("model", "start from", values, start.name, sets=sets),
        *(listed(name, label, options, options[at[name]]) for name, (label, options) in choices.items()),
        *(_slider(name, of_it, at[name]) for name, of_it in sliders.items()),
    ]
    parts = [
        (part, label, L * formula(name).expr if part in ("attention", "mlp", "norms") else name)
        for part, label, name in said("parameters")["parts"]
    ]
    derived = [("width", A * D), ("embedding_width", H)]
    return told("parameters", controls, Stack(parts, unit="parameters", shares=True), derived=derived)


def tensor() -> Explorer:
    """Chapter 33: bytes per GPU that a GPT's block saves for backward, divided among 1 to 16 GPUs, in bf16 with flash attention."""
    controls = [
        Choice("size", "model", said("tensor")["sizes"]),
        Choice("plan", "plan", said("tensor")["plans"]),
        *asked(Setup(batch=1, sequence=2048, dropout=0.1), "dropout", "batch", "sequence"),
        steps("tensor", "GPUs", powers(0, 4), 8, said=gpus_label),
    ]
    parts = [(part, label, floor(tensor_parallel.KEPT[kind])) for part, label, kind in said("tensor")["parts"]]
    return told("tensor", controls, Stack(parts, bars="tensor"))


def ring() -> Explorer:
    """Chapter 36: bytes per GPU of one layer's attention in 16 bits, where 4 to 128 GPUs share each sequence.

    Where heads are swapped for tokens, groups have as many GPUs as divide the heads; more GPUs make more groups.
    """
    tokens = {f"{n:,}": {"sequence": n} for n in said("ring")["tokens"]}
    controls = [
        Choice("size", "model", said("ring")["sizes"]),
        Choice("rotation", "rotation", said("ring")["ways"]),
        Choice("tokens", "sequence (tokens)", tokens, "1,048,576"),
        steps("context", "GPUs", powers(2, 7), 16, said=gpus_label),
    ]
    pairs = (context.KEPT, context.SWAPPED_KEPT), (context.BACKWARD, context.SWAPPED_BACKWARD)
    parts = [(part, label, _either(*pair)) for (part, label), pair in zip(said("ring")["parts"], pairs, strict=True)]
    return told("ring", controls, Stack(parts, bars="context"))


def _either(ring, swapped):
    """The amount of the way that is chosen."""
    names = sorted({entry.name for amount in (ring, swapped) for entry in amount.symbols} | {"swaps"})

    def asked(*given):
        values = dict(zip(names, given, strict=True))
        if not values["swaps"]:
            return int(ring(**values))
        while values["heads"] % values["context"]:  # powers of two
            values["context"] //= 2
        return int(swapped(**values))

    script = (
        f"(v) => {{ if (!v.swaps) return Math.floor(({ring.javascript})(v)); let c = v.context; "
        f"while (v.heads % c) c = Math.floor(c / 2); return Math.floor(({swapped.javascript})({{ ...v, context: c }})); }}"
    )
    return Printed(ring.name, names, asked, script)


def _whole(amount):
    """A formula's bytes as a whole number, where a ratio of rows makes them a float."""
    names = [entry.name for entry in amount.symbols]
    return Printed(amount.name, names, lambda *at: int(amount(**dict(zip(names, at, strict=True)))), amount.javascript)


@cache
def _ratios():
    """[[[[of eight GPUs, from the fullest to the emptiest, what comes over what is sent]]]]: by model, number of GPUs, router, places."""
    words = said("experts")

    def of_one(size, gpus, exponent, dealt):
        router = Router.zipf(size["experts"], size["experts_per_token"], exponent)
        found = sorted((router.spread(gpus) if dealt else router).routing(gpus), reverse=True)
        return [round(found[i * (gpus - 1) // 7], 6) for i in range(8)]

    return [
        [
            [[of_one(size, gpus, exponent, dealt) for dealt in (False, True)] for exponent in words["routers"].values()]
            for gpus in words["gpus"]
        ]
        for size in words["sizes"].values()
    ]


def experts() -> Explorer:
    """Chapter 35: bytes of one mixture layer in bf16 on each of 8 to 64 GPUs that divide its experts, from the fullest to the emptiest."""
    words = said("experts")
    sizes = {label: {**values, "of_size": i} for i, (label, values) in enumerate(words["sizes"].items())}
    gpus = {gpus_label(n): {"expert": n, "of_gpus": i} for i, n in enumerate(words["gpus"])}
    tokens = {f"{n:,} tokens each": {"sequence": n} for n in words["tokens"]}
    controls = [
        Choice("size", "model", sizes),
        Choice("expert", "GPUs", gpus, gpus_label(words["gpus"][-1]), kind="slider"),
        Choice("tokens", "tokens", tokens, list(tokens)[1]),
        listed("router", "router", words["routers"], symbol="of_router"),
        listed("dealt", "experts", words["orders"], symbol="of_order"),
        listed("place", "GPU", words["places"], symbol="of_place", kind="slider"),
    ]
    names = ("of_size", "of_gpus", "of_router", "of_order", "of_place")
    routing = looked_up("routing of a GPU", names, _ratios())
    amounts = zip(words["parts"], (expert_parallel.WEIGHTS, expert_parallel.KEPT, expert_parallel.BUFFERS), strict=True)
    parts = [(part, label, _whole(amount)) for (part, label), amount in amounts]
    return told("experts", controls, Stack(parts, bars="place"), derived=[("routing", routing)])


def patches() -> Explorer:
    """Chapter 52: what a tower saves of square pictures, trained, recomputed or frozen, and the pixels of the batch."""
    controls = [
        Choice("size", "tower of", said("patches")["sizes"], "Qwen3-VL 8B"),
        Choice("way", "the tower is", said("patches")["ways"]),
        Slider("picture_width", "side of a picture (pixels)", 32, 4096, 768, 32),
        Slider("pictures", "pictures in the batch", 1, 64, 1),
    ]
    saved, block, least = (formula(f"tower.{name}").expr for name in ("saved", "block", "checkpointed"))
    again = segmented * SYMBOLS["tower_layers"].symbol * (block - least)
    parts = [(part, label, q or tower_trained * (saved - again)) for part, label, q in said("patches")["parts"]]
    derived = [("patches", N_i * floor(X_i / p_i) ** 2)]
    return told("patches", controls, Stack(parts, bars="way"), derived=derived)


def diffusion() -> Explorer:
    """Chapter 53: who holds what of the GPU while adapters of Flux are trained, by what is cached and what is recomputed."""
    words = said("diffusion")
    controls = [
        Choice("way", "the step", words["ways"]),
        Slider("picture_width", "side of a picture (pixels)", 256, 2048, 512, 16),
        Slider("batch", "pictures in the batch", 1, 16, 1),
        steps("adapter_rank", "rank", powers(1, 8), 2, said="rank {}".format),
    ]
    held, saved = words["parameters"], formula("diffusion.blocks").expr
    inputs = (L_1 + L_2) * 2 * B * S * H
    amounts = [
        w_s * held["transformer"], 16 * r_A * H * (6 * L_1 + 36 * L_2), segmented * inputs + (1 - segmented) * saved,
        w * held["encoders"], c * held["vae"],
    ]  # fmt: skip
    parts = [(part, label, amount) for (part, label), amount in zip(words["parts"], amounts, strict=True)]
    return told("diffusion", controls, Stack(parts, bars="way"), derived=[("sequence", 512 + floor(X_i / 16) ** 2)])


#: The file of reserved bytes, beside this one; `tools/explorers.py` writes it.
FILE = "allocator.json"
#: Label -> changes to the setup of GPT-2 on an H200; label -> `PYTORCH_ALLOC_CONF`.
RUNS, SETTINGS = said("allocator")["runs"], said("allocator")["settings"]


def allocator() -> Explorer:
    """Chapter 41: what PyTorch's allocator reserves for a step of GPT-2, under five settings.

    The numbers are stored: `everybyte.allocator` simulated them from dry runs, for an H200.
    """
    controls = [listed("run", "step", RUNS), listed("setting", "setting", SETTINGS)]
    parts = []
    for i, (part, label) in enumerate(said("allocator")["parts"]):
        numbers = [[row[i] for row in rows] for rows in table(FILE).values()]
        parts.append((part, label, looked_up(f"allocator {label}", ("run", "setting"), numbers)))
    return told("allocator", controls, Stack(parts, bars="setting"))
