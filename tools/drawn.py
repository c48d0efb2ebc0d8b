"""Models and setups as they are drawn for the grid: any, whether they go together or not."""

from importlib.util import find_spec

import everybyte as eb
from everybyte.ask import schedules
from everybyte.ask.choices import (
    ATTENTIONS,
    BUCKETS,
    CHECKPOINTINGS,
    COMMON_OPTIMIZERS,
    MASTER_GRADIENTS,
    OFFLOADS,
    OPTIMIZERS,
    PRECISIONS,
    SHARDING_UNITS,
    SHARDINGS,
)
from everybyte.theory.budget import not_derived

#: Of `Setup.checkpointing` and `Setup.offload` the values that the draws began with: what seeds give stays. `spared` draws the others.
CHECKPOINTINGS, OFFLOADS = CHECKPOINTINGS[:5], OFFLOADS[:2]
#: Optimizers of small states whose packages are installed, but torchao's, whose dry run takes a minute; all of them, the common ones more often.
SMALL = tuple(
    name for name, row in OPTIMIZERS.items()
    if not row.common and row.package != "torchao" and (row.package is None or find_spec(row.package.replace("-", "_")))
)  # fmt: skip
AVAILABLE = 3 * COMMON_OPTIMIZERS + SMALL
#: How many GPUs may share a model.
WORLDS = (1, 2, 3, 8, 64, 1024)


def any_stages(schedule, draw):
    """How many stages a GPU has in a schedule."""
    return 1 if schedule in schedules.ONE_STAGE else 2 if schedule in schedules.TWO_STAGES else draw([1, 2, 3])


def any_gpt(name, draw):
    """GPT-2, OPT, and what is between them."""
    heads, width, positions = draw([1, 2, 3, 4]), draw([1, 2, 4, 5, 8, 12, 16, 20, 64]), draw([33, 64])
    yes = [True, True, False]
    return eb.Model(
        name=name, layers=draw([1, 2, 3, 9]), width=heads * width, heads=heads, vocabulary=draw([11, 101, 1000, 5003]),
        positions=positions, learned_positions=positions + draw([0, 0, 2]), ffn_width=draw([None, None, 1, 7 * heads]),
        activation=draw(["gelu", "gelu_tanh", "relu"]), fused=draw(yes), tied=draw(yes), norm_bias=draw(yes),
        qkv_bias=draw(yes), out_bias=draw(yes), ffn_bias=draw(yes),
    )  # fmt: skip


def any_llama(name, draw):
    """Llama, Qwen, Gemma, Mixtral, and what is between them."""
    kv_heads, groups, experts = draw([1, 1, 2, 3]), draw([1, 1, 2, 3]), draw([0, 0, 1, 2, 5, 8])
    no = [False, False, True]
    mixture = (
        {"experts": experts, "experts_per_token": draw(range(1, experts + 1)), "expert_width": draw([4, 8, 24, 40])}
        if experts
        else {}
    )
    return eb.Model(
        name=name, layers=draw([1, 2, 3, 9]), width=draw([4, 8, 24, 64] if experts else [1, 5, 8, 24, 36, 64]),
        heads=groups * kv_heads, kv_heads=kv_heads, head_width=draw([2, 4, 6, 8, 12, 20, 64]),
        vocabulary=draw([11, 101, 1000, 5003]), positions=draw([0, 33]), learned_positions=0, window=draw([0, 0, 33]),
        ffn_width=draw([1, 7, 24, 56, 88]), gated=True, activation=draw(["silu", "gelu_tanh"]), tied=draw(no),
        qkv_bias=draw(no), out_bias=False, ffn_bias=False, norm="rmsnorm", norm_offset=draw(no), qk_norm=draw(no),
        scaled_embedding=draw(no), fused=not experts and draw(no), **mixture,
    )  # fmt: skip


def any_setup(model, draw):
    """Any setup that there is; not always one that fits the model."""
    changes = {
        "batch": draw([1, 1, 2, 3, 8]), "sequence": draw([1, 7, 16, 32, 33]), "precision": draw(list(PRECISIONS)),
        "optimizer": draw(AVAILABLE), "attention": draw(ATTENTIONS),
        "dropout": draw([0.0, 0.0, 0.1]) if model.family == "gpt" else 0.0, "accumulation": draw([1, 1, 2, 5]),
        "checkpointing": draw(CHECKPOINTINGS), "sharding": draw(("none", *SHARDINGS)), "gpus": draw((1, *WORLDS)),
    }  # fmt: skip
    changes["optimizer_impl"] = draw(OPTIMIZERS[changes["optimizer"]].impls)
    if changes["checkpointing"] == "every-k":
        changes["checkpoint_every"] = draw(range(1, model.layers + 1))
    if draw([True, False, False]):
        changes |= {
            "loss": "chunked",
            "loss_chunks": draw(range(1, min(9, changes["batch"] * changes["sequence"]) + 1)),
        }
    if changes["sharding"] == "none" and changes["gpus"] > 1:
        changes["buckets"] = draw(BUCKETS)
    if changes["sharding"] in ("zero2", "zero3"):
        changes |= {"sharding_units": draw(SHARDING_UNITS), "offload": draw(OFFLOADS), "no_sync": draw([True, False])}
        changes["no_sync"] &= changes["accumulation"] > 1
        if draw([True, False, False]):
            changes |= {"gpus": 2 * changes["gpus"], "replicas": 2}
    if changes["precision"] == "bf16-master" and changes["sharding"] == "none" and changes["gpus"] == 1:
        changes["master_gradients"] = draw(MASTER_GRADIENTS)
    if changes["optimizer"] in SMALL and changes["sharding"] != "none":
        raise ValueError("grid: `lean` draws these")  # what others' seeds give stays
    return eb.Setup(**changes)


def any_rank(model, setup, draw):
    """Any of the setup's GPUs. Raises ValueError where the setup does not fit the model, or that GPU is not derived."""
    rank = draw(range(setup.gpus))
    setup.check_model(model)
    setup.check_rank("grid", model, rank)
    return rank


def derived_rank(model, setup, draw):
    """`any_rank`, of what the theory derives."""
    rank = any_rank(model, setup, draw)
    if (why := not_derived(model, setup)) is not None:
        raise ValueError(why)
    return rank
