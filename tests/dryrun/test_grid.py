"""What the steps that the witnesses are held to are drawn from: everything, valid, and always the same."""

from dataclasses import fields
from functools import cache

import grid
import pytest

import everybyte as eb
from everybyte.ask.choices import CHOICES, LIBRARIES, LOOPS, OPTIMIZERS, PRECISIONS


@cache
def many():
    return [grid.everything(seed) for seed in range(2000)]


def test_a_seed_always_gives_the_same():
    assert [grid.everything(seed) for seed in range(50)] == many()[:50]
    assert len({(model.replace(name=""), setup) for model, setup, _ in many()}) > 1950


@pytest.mark.parametrize("family", ["gpt", "llama"])
def test_every_choice_of_a_setup_is_drawn_for_either_family(family):
    setups = [setup for model, setup, _ in many() if model.family == family]
    assert len(setups) > 600
    for field, allowed in CHOICES.items():
        if field == "loop" or field in vars(LOOPS["plain"]):  # which tests/theory/test_loops.py draws
            continue
        if field == "linear_attention":  # of which no Model has any: tests/dryrun/test_delta_rules.py
            continue
        if field == "quantization":  # of adapters, which `adapted` draws
            assert {grid.adapted(seed)[1].quantization for seed in range(40)} == set(allowed)
            continue
        if field == "precision":  # some are libraries' loops, which `library` draws
            assert {setup.precision for setup in setups} == set(PRECISIONS)
            assert {grid.library(seed)[1].precision for seed in range(40)} == set(LIBRARIES)
            continue
        if field == "optimizer":  # torchao's, which tests/dryrun/test_lowered.py draws
            allowed = [name for name in allowed if OPTIMIZERS[name].package != "torchao"]
        if field in ("checkpointing", "resharding", "offload"):  # some of which `spared` draws
            setups = [*setups, *(drawn[1] for seed in range(240) if (drawn := grid.spared(seed)))]
        if field == "muon_gather":  # some of which `owned` draws
            setups = [*setups, *(grid.owned(seed)[1] for seed in range(10))]
        if field == "loss":  # head and loss in one function, which `one_function` draws
            setups = [*setups, grid.one_function(0)[1]]
        assert {getattr(setup, field) for setup in setups} == set(allowed), field
    for field in (
        "no_sync",
        "replicas",
        "accumulation",
        "loss_chunks",
        "checkpoint_every",
        "batch",
        "sequence",
        "gpus",
    ):
        assert len({getattr(setup, field) for setup in setups}) >= 2, field


def test_every_feature_of_a_family_is_drawn():
    models = [model for model, _, _ in many()]
    assert {m.family for m in models} == {"gpt", "llama"}
    same = {"published", "source", "norm", "gated", "block_norms", "final_norm", "causal", "rotary_percent"}
    same |= {
        "embedding_norm",
        "post_norm",
        "parallel_residual",
        "softcap",
        "sinks",
        "token_types",
        "pooler",
        "shared_experts",
    }
    same |= {
        "code",
        "full_every",
        "chunked",
        "dense_layers",
        "router_bias",
        "expert_groups",
        "groups_per_token",
        "query_rank",
        "latent_rank",
        "rope_width",
        "value_width",
    }
    for family in ("gpt", "llama"):
        drawn = [m for m in models if m.family == family]
        alike = {f.name for f in fields(eb.Model) if len({getattr(m, f.name) for m in drawn}) == 1}
        assert (
            alike - same
            <= {
                "gpt": {
                    "norm_offset",
                    "qk_norm",
                    "window",
                    "scaled_embedding",
                    "experts",
                    "experts_per_token",
                    "expert_width",
                },
                "llama": {"learned_positions", "fused", "out_bias", "ffn_bias", "norm_bias"},
            }[family]
        )


@pytest.mark.sampled(2)
@pytest.mark.parametrize("seed", range(20))
def test_what_is_drawn_runs(seed):
    model, setup, block = grid.everything(seed)
    trace = eb.dry_run(model, setup, block)
    assert trace.model is model and trace.peak >= max(trace.phases.values()) > 0
