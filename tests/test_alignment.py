"""Which models stand on each GPU, and what they hold: against the dry run, arithmetic, and an inference engine's own rule."""

import json

import pytest

import everybyte as eb
from everybyte.ask.objectives import Scorer
from everybyte.command import main

QWEN = eb.model("qwen2.5-7b", code="reference")
P = 7_615_616_512
SCORER = P - 152_064 * 3584 + 3584  # a row in place of the output head
SMALL = QWEN.replace(
    name="small qwen",
    layers=4,
    width=64,
    heads=4,
    kv_heads=2,
    head_width=16,
    ffn_width=96,
    vocabulary=1000,
    positions=64,
)
SETUP = eb.Setup(batch=1, sequence=2048, precision="bf16-master", checkpointing="full")
TINY = eb.Setup(batch=2, sequence=32, precision="bf16-mixed")


def summed(parts):
    return sum(sum(one.values()) for one in parts.values())


def test_ppo_of_qwen_is_four_models():
    found = eb.align("ppo", QWEN, SETUP)
    assert found.bytes_per_parameter == {"policy": 16, "value model": 16, "reference": 2, "reward model": 2}
    assert found.rule == 36 * P and eb.units.gib(found.rule, 1) == "255.3 GiB"
    assert {name: sum(parts.values()) for name, parts in found.held.items()} == {
        "policy": 16 * P, "value model": 16 * SCORER, "reference": 2 * P, "reward model": 2 * SCORER,
    }  # fmt: skip
    assert found.generating is None and found.fits is None


def test_grpo_and_dpo_are_two():
    for method in ("grpo", "dpo"):
        found = eb.align(method, QWEN, SETUP, reference={"grpo": "before"}.get(method))
        assert found.rule == 18 * P and eb.units.gib(found.rule, 1) == "127.7 GiB"
        assert summed(found.held) == 18 * P


def test_a_scorer_has_one_row_for_a_head():
    assert Scorer(QWEN).parameters == SCORER
    gpt2 = eb.model("gpt2")  # whose head is its table
    assert Scorer(gpt2).parameters == int(gpt2.parameters) + 768


@pytest.mark.parametrize("method", ["ppo", "grpo", "dpo"])
def test_the_peak_is_the_step_and_what_stands_beside(method):
    found = eb.align(method, SMALL, TINY)
    assert summed(found.parts) == found.peak
    others = {name: parts for name, parts in found.held.items() if name not in ("policy", "value model")}
    beside = sum(summed({name: parts}) for name, parts in others.items()) if method != "dpo" else 0
    if method == "ppo":
        value = eb.dry_run(eb.Objective(SMALL, "value"), TINY).phases["rest"]
        assert found.learning == "policy"
        beside += value
    assert found.peak == eb.dry_run(eb.Objective(SMALL, method), TINY).peak + beside


def test_a_tied_models_value_model_may_take_most():
    """In the optimizer's step, whose temporaries are as large as what it moves: there a row is more than none."""
    found = eb.align("ppo", eb.model("gpt2"), eb.Setup(batch=1, sequence=64, precision="bf16-master"))
    assert found.peak_at == "optimizer step" and found.learning == "value model"
    policy = eb.dry_run(eb.Objective(eb.model("gpt2"), "value"), found.setup)
    assert found.steps["value model"].peak == policy.peak > found.steps["policy"].peak


def test_frozen_models_whole_divided_or_elsewhere():
    setup = SETUP.replace(gpus=8, sharding="zero3")
    whole, divided, none = (
        eb.align("grpo", QWEN, setup, reference="before", frozen=how) for how in ("whole", "sharded", "none")
    )
    assert whole.peak - none.peak == 2 * P
    assert divided.peak - none.peak == 2 * P // 8  # all of its rows divide by 8
    assert none.peak == eb.budget(eb.Objective(QWEN, "grpo", "before"), setup).peak
    pairs = eb.align("dpo", QWEN, setup, reference="before")
    scored = eb.align("dpo", QWEN, setup, reference="before", frozen="sharded")
    assert scored.peak - pairs.peak == 2 * P // 8


def test_a_frozen_model_with_odd_rows_is_divided_as_fsdp_does():
    odd = SMALL.replace(vocabulary=1001, ffn_width=98)
    setup = TINY.replace(gpus=4, sharding="zero3", precision="bf16")
    found = eb.align("grpo", odd, setup, reference="before", frozen="sharded")
    assert found.held["reference"]["parameters"] == eb.dry_run(odd, setup.replace(batch=1)).parts["parameters"]


def test_adapters_share_the_reference():
    setup = TINY.replace(adapters=eb.Lora(rank=4))
    for method in ("dpo", "grpo"):
        when = {"grpo": "before"}.get(method)
        found = eb.align(method, SMALL, setup, reference=when)
        assert found.held["reference"] == {"parameters": 0}
        assert summed(found.parts) == found.peak == eb.budget(eb.Objective(SMALL, method, when), setup).peak
    with pytest.raises(ValueError, match="Setup.adapters: .* has not so many bytes for each parameter"):
        found.rule  # noqa: B018


def test_a_rollout_has_weights_and_a_cache():
    rollout = eb.Rollout(sequences=16, context=8192)
    assert rollout.sequence(QWEN) == 8192 * 57_344
    assert rollout.held(QWEN) == {"parameters": 2 * P, "cache": 16 * 8192 * 57_344}
    awake, asleep = (
        eb.align("grpo", QWEN, SETUP, "h200", rollout=eb.Rollout(sequences=16, context=8192, asleep=a))
        for a in (False, True)
    )
    beside = sum(rollout.held(QWEN).values())
    assert awake.peak - asleep.peak == beside
    assert awake.generating == asleep.generating == 14 * P + beside  # between steps no gradients
    shared = eb.align("grpo", QWEN, SETUP, rollout=eb.Rollout(sequences=16, context=8192, weights="shared"))
    assert awake.generating - shared.generating == 2 * P
    assert not awake.fits


def test_grpo_has_no_reference_unless_asked():
    """As trl 1.16's GRPOConfig, whose beta is 0.0; with one, its log-probabilities are given to the step too."""
    alone, beside = (eb.align("grpo", QWEN, SETUP, reference=r) for r in (None, "before"))
    assert list(alone.held) == ["policy"] and alone.rule == 16 * P and not alone.scoring
    assert list(beside.held) == ["policy", "reference"] and beside.scoring
    none, before = (eb.dry_run(eb.Objective(SMALL, "grpo", r), TINY) for r in ("none", "before"))
    assert eb.budget(eb.Objective(SMALL, "grpo"), TINY).peak == none.peak < before.peak
    with pytest.raises(ValueError, match="Objective.reference: 'none' with ppo"):
        eb.Objective(SMALL, "ppo", "none")


SHARDED = SETUP.replace(gpus=8, sharding="zero3", precision="bf16-mixed")
WEIGHTS = 2 * P


def phases(**rollout):
    engine = eb.Engine(utilization=0.5, graphs="0.5 GiB", outside=0)
    asked = eb.Rollout(sequences=16, context=8192, engine=engine, **rollout)
    found = eb.align("grpo", QWEN, SHARDED, "h100-80gb", rollout=asked)
    return found, {phase.name: phase for phase in found.timeline().phases}


def test_the_phases_of_a_colocated_engine():
    found, turns = phases(asleep=True)
    assert list(turns) == ["generate", "train", "wake: weights", "sync weights", "wake: cache"]
    served = eb.serve(QWEN, "h100-80gb", 8192, engine=found.rollout.engine)
    rest, weights, cache, graphs = (
        sum(found.between["policy"].values()),
        WEIGHTS + QWEN.positions * 256,
        served.blocks * served.pool.bytes,
        2**29,
    )
    run = served.requested - served.pages - weights
    assert turns["generate"].bytes == rest + weights + cache + graphs + run
    assert turns["train"].bytes == found.peak == eb.budget(eb.Objective(QWEN, "grpo"), SHARDED).peak + graphs
    assert turns["wake: weights"].bytes == rest + weights + graphs
    assert (
        turns["sync weights"].bytes == turns["wake: weights"].bytes + 4 * 152_064 * 3584
    )  # the head in fp32, gathered
    assert turns["wake: cache"].bytes == turns["wake: weights"].bytes + cache
    assert not any(phase.host for phase in turns.values()) and found.timeline().peak.name == "generate"


def test_all_at_once_has_cache_and_gathered_weights_together():
    staged, together = (phases(asleep=True, staged=how, bucket=WEIGHTS)[1] for how in (True, False))
    cache = staged["generate"].parts["cache"]
    assert together["sync weights"].bytes - staged["sync weights"].bytes == cache
    assert list(together) == ["generate", "train", "wake: all", "sync weights"]


def test_what_is_in_the_hosts_memory():
    found, turns = phases(asleep=True, level=1, offloaded=True)
    rest = sum(found.between["policy"].values())
    weights = WEIGHTS + QWEN.positions * 256
    assert sum(turns["train"].host.values()) == weights
    assert sum(turns["generate"].host.values()) == rest and "optimizer" not in turns["generate"].parts
    assert sum(turns["sync weights"].host.values()) == rest - found.between["policy"]["parameters"]
    assert not phases(asleep=True)[1]["train"].host


def test_whether_it_fits_is_asked_of_every_phase():
    """A trainer that is offloaded is not there while samples are generated; gathered weights on their way are."""
    beside, away = (phases(asleep=True, offloaded=how)[0] for how in (False, True))
    rest = sum(beside.between["policy"].values())
    assert beside.generating - away.generating == rest > 0
    asked = {"sequences": 1, "context": 1024, "asleep": True}
    plain, wide = (
        eb.align("grpo", QWEN, SHARDED, "h100-80gb", rollout=eb.Rollout(**asked, bucket=size))
        for size in (0, 60 * 10**9)
    )
    assert plain.fits and not wide.fits and plain.peak == wide.peak
    assert wide.timeline().peak.name == "sync weights"
    shared = eb.align("grpo", QWEN, SHARDED, rollout=eb.Rollout(sequences=1, context=1024, weights="shared"))
    turns = {phase.name: phase.bytes for phase in shared.timeline().phases}
    assert (
        turns["sync weights"] == turns["generate"] == shared.generating
    )  # of the trainer's own weights nothing is sent


def test_two_versions_of_the_weights():
    one, two = (phases(versions=n)[1] for n in (1, 2))
    for name in ("generate", "train", "sync weights"):
        assert two[name].bytes - one[name].bytes == WEIGHTS + QWEN.positions * 256


@pytest.mark.parametrize(
    "make, said",
    [
        (lambda: eb.align("grpo", QWEN, SETUP).timeline(), "align.rollout: None"),
        (lambda: eb.align("grpo", QWEN, SETUP, rollout=eb.Rollout(sequences=1, context=64, engine=eb.Engine())), "align.gpu: None with Rollout.engine"),
        (lambda: phases(asleep=True, versions=2), "Rollout.versions: 2 of an engine that sleeps"),
        (lambda: phases(tensor_parallel=2), "Rollout.tensor_parallel: 2 with an engine"),
        (lambda: phases(weights="shared"), "Rollout.weights: 'shared' with an engine"),
        (lambda: phases(level=1), "Rollout.level: 1 of an engine that does not sleep; allowed: 2, or asleep True"),
        (lambda: phases(staged=False), "Rollout.staged: False of an engine that does not sleep"),
        (lambda: eb.Rollout(sequences=1, context=8, weights="shared", bucket=5), "Rollout.bucket: 5 with the trainer's own weights"),
        (lambda: eb.Rollout(sequences=1, context=8, weights="shared", offloaded=True), "Rollout.offloaded: True with the trainer's own"),
        (lambda: phases(level=3), "Rollout.level: 3 is not a whole number"),
        (lambda: eb.align("grpo", QWEN, SHARDED, "h100-80gb", rollout=eb.Rollout(sequences=1025, context=8192, engine=eb.Engine())),
         "Rollout.sequences: 1,025, and the engine takes 1,024 requests at once; allowed: up to 1,024, or Engine"),
        (lambda: eb.align("grpo", QWEN, SHARDED, "h100-80gb", rollout=eb.Rollout(sequences=10**4, context=8192, engine=eb.Engine(sequences=10**4))),
         "Rollout.sequences: 10,000 of 8,192 tokens do not fit"),
    ],
)  # fmt: skip
def test_what_no_phase_is(make, said):
    with pytest.raises(ValueError, match=said):
        make()


def test_a_rollout_divided_by_heads_has_norms_whole():
    whole, quarter = (eb.Rollout(sequences=4, context=64, tensor_parallel=n).held(QWEN) for n in (1, 4))
    norms = 2 * (2 * 28 + 1) * 3584
    assert quarter["parameters"] == (whole["parameters"] - norms) // 4 + norms
    assert quarter["cache"] == whole["cache"] // 4


def test_what_gpus_cannot_divide_of_a_cache_each_of_them_has():
    """Two key heads on eight GPUs: each has one, with its rows of the keys' and values' matrices. A latent stands whole on each."""
    grouped = eb.model("llama-3.1-8b", code="reference").replace(kv_heads=2)
    latent = eb.model("deepseek-v3").replace(experts=0, expert_width=0, experts_per_token=0, shared_experts=0, dense_layers=0,
                                             router_bias=False, vocabulary=129_024)  # fmt: skip
    one, eight = (eb.Rollout(sequences=3, context=500, tensor_parallel=n) for n in (1, 8))
    assert eight.held(grouped)["cache"] == one.held(grouped)["cache"] // 2
    keys = 32 * 2 * 128 * 4096 * 2  # of one head, in all layers
    norms = 2 * (2 * 32 + 1) * 4096
    others = one.held(grouped)["parameters"] - 2 * keys - norms
    assert eight.held(grouped)["parameters"] == others // 8 + keys + norms
    assert eight.held(latent)["cache"] == one.held(latent)["cache"] == 3 * 61 * 500 * 576 * 2
    assert "4 GPUs hold the same" in eight.replicated(grouped) and "whole compressed cache" in eight.replicated(latent)
    assert not one.replicated(latent) and not eb.Rollout(sequences=1, context=8, tensor_parallel=2).replicated(grouped)
    found = eb.align("grpo", grouped, SETUP, rollout=eight)
    assert found.said() == [eight.replicated(grouped)] == found.as_dict()["said"] and found.said()[0] in repr(found)


@pytest.mark.parametrize(
    "name, gpus", [("deepseek-v3", 16), ("kimi-k2", 32), ("glm-4.5", 8), ("qwen3-30b-a3b", 4), ("mixtral-8x7b", 4)]
)
def test_a_rollout_divides_each_expert_and_no_router(name, gpus):
    """What compresses to a latent is whole on each GPU too. Source: vLLM, `models/deepseek_v2.py`, `models/qwen3_moe.py`."""
    model, layers = eb.model(name), eb.model(name).mixture_layers
    whole = layers * model.experts * (model.width + model.router_bias)
    whole += model.layers * (2 * model.width + model.qk_norm * 2 * model.head_width) + model.width
    if model.latent:
        ranks = model.query_rank + model.latent_rank
        whole += model.layers * (model.width * (ranks + model.rope_width) + ranks)
    one, many = (eb.Rollout(sequences=1, context=64, tensor_parallel=n).held(model)["parameters"] for n in (1, gpus))
    assert one == 2 * model.parameters and many == 2 * ((model.parameters - whole) // gpus + whole)
    with pytest.raises(ValueError, match=f"Rollout.tensor_parallel: {gpus} does not divide expert_width "):
        eb.Rollout(sequences=1, context=64, tensor_parallel=gpus).held(
            model.replace(expert_width=model.expert_width + 1)
        )


def test_a_rollout_of_a_model_with_a_window():
    rollout = eb.Rollout(sequences=2, context=10_000)
    assert rollout.held(eb.model("mistral-7b", code="reference"))["cache"] == 2 * 4095 * 32 * 2 * 8 * 128 * 2


@pytest.mark.parametrize(
    "make, said",
    [
        (lambda: eb.align("kto", QWEN, SETUP), "align.method: 'kto' is unknown; allowed: dpo, ppo, grpo"),
        (lambda: eb.align("value", QWEN, SETUP), "align.method: 'value' is unknown"),
        (lambda: eb.align("ppo", QWEN, {}), "align.setup: {}; allowed: a Setup"),
        (lambda: eb.align("dpo", QWEN, SETUP, rollout=eb.Rollout(sequences=1, context=1)), "align.rollout: dpo"),
        (lambda: eb.align("grpo", QWEN, SETUP, rollout=4), "align.rollout: 4; allowed: a Rollout"),
        (lambda: eb.align("grpo", QWEN, SETUP, frozen="sharded"), "align.frozen: 'sharded' needs sharding"),
        (lambda: eb.align("grpo", QWEN, SETUP.replace(gpus=2, sharding="zero3"), frozen="sharded"), "'sharded' with grpo, .* or reference 'before'"),
        (lambda: eb.align("grpo", QWEN, SETUP, frozen=""), "align.frozen: '' is unknown"),
        (lambda: eb.align("dpo", QWEN, SETUP, frozen="none"), "align.frozen: 'none' with a reference in the step"),
        (lambda: eb.align("ppo", QWEN, SETUP.replace(adapters=eb.Lora(dtype="bf16"))), "Setup.adapters: .* with ppo"),
        (lambda: eb.align("grpo", QWEN, SETUP.replace(gpus=2, sharding="zero3", offload="cpu")), "Setup.offload: 'cpu' with grpo"),
        (lambda: eb.align("ppo", eb.model("gpt2"), TINY.replace(attention="eager")), "Setup.attention: 'eager' with ppo"),
        (lambda: eb.align("ppo", QWEN, SETUP, "t4"), "Setup.precision: 'bf16-master' on t4"),
        (lambda: eb.align("ppo", QWEN, SETUP, "h100"), "gpu.name: 'h100' is unknown"),
        (lambda: eb.Rollout(sequences=0, context=1), "Rollout.sequences: 0 is not a whole number"),
        (lambda: eb.Rollout(sequences=1, context=1, weights="none"), "Rollout.weights: 'none' is unknown"),
        (lambda: eb.Rollout(sequences=1, context=1, weights="shared", tensor_parallel=2), "Rollout.tensor_parallel: 2 with the"),
        (lambda: eb.Rollout(sequences=1, context=1, tensor_parallel=6).sequence(QWEN), "Rollout.tensor_parallel: 6 does not divide kv_heads 4"),
        (lambda: eb.Rollout(sequences=1, context=2000).sequence(eb.model("gpt2")), "Rollout.context: 2000 is more than the 1024 positions"),
        (lambda: eb.Rollout(sequences=1, context=1, tensor_parallel=8).sequence(QWEN), "Rollout.tensor_parallel: 8 does not divide heads 28"),
        (lambda: eb.Rollout(sequences=1, context=1, tensor_parallel=2).sequence(eb.model("gpt2")), "Rollout.tensor_parallel: 2 with gpt2"),
        (lambda: eb.Rollout.read("context=1"), "Rollout.sequences: missing"),
        (lambda: eb.Rollout.read("sequence=1"), "Rollout.field: 'sequence' is unknown; did you mean 'sequences'"),
    ],
    ids=lambda value: None if callable(value) else value.split(":")[0],
)  # fmt: skip
def test_bad_input_is_named(make, said):
    with pytest.raises(ValueError, match=said.replace("{}", r"\{\}")):
        make()


def test_how_it_shows():
    found = eb.align("dpo", SMALL, TINY, eb.Gpu(memory="2 GiB"))
    peak = eb.dry_run(eb.Objective(SMALL, "dpo"), TINY).peak
    assert repr(found) == (
        f"Alignment(small qwen, dpo: peak {eb.units.text(peak)}, {peak:,} B, in the policy's loss forward; fits GPU of 2.00 GiB)"
    )
    table = found.table()
    assert table.rows[-1][-1] == peak and table.rows[1][0] == "reference"
    assert "small qwen, dpo" in found._repr_html_()
    assert found.states().rows[-1][-1] == summed(found.held)
    named = eb.align("dpo", SMALL.replace(name="<b>"), TINY)
    assert "<b>" not in named._repr_html_()


def test_the_command(capsys):
    words = "align grpo qwen2.5-7b --batch 1 --sequence 2048 --precision bf16-master --checkpointing full --gpus 8 --sharding zero3"
    more = [
        "--frozen",
        "sharded",
        "--reference",
        "before",
        "--gpu",
        "h100-80gb",
        "--rollout",
        "sequences=64 context=8192 tensor_parallel=4 asleep=true",
    ]
    assert main([*words.split(), *more, "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    expected = eb.align(
        "grpo", QWEN.replace(name="qwen2.5-7b, the book's code"), SETUP.replace(gpus=8, sharding="zero3"), "h100-80gb", reference="before", frozen="sharded",
        rollout=eb.Rollout(sequences=64, context=8192, tensor_parallel=4, asleep=True),
    )  # fmt: skip
    assert said == json.loads(json.dumps(expected.as_dict()))
    assert said["peak"] == summed(said["parts"]) and said["fits"] is True
    assert main([*words.split(), "--rollout", "sequences=x context=1"]) == 2
    assert "Rollout.sequences: 'x' is not a whole number" in capsys.readouterr().err
    assert main([*words.split(), "--reference", "before"]) == 0
    assert "reference" in capsys.readouterr().out
