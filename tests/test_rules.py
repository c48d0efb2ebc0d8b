"""Each row of the rules is reached, and says the field, the value and what is allowed; what is written of them is what they do."""

import re
from dataclasses import replace
from itertools import combinations, product
from pathlib import Path
from types import SimpleNamespace

import pytest

import everybyte as eb
from everybyte import rules
from everybyte.answers.alignment import Rollout
from everybyte.answers.engines import Engine
from everybyte.ask.choices import CHOICES, OPTIMIZERS, PRECISIONS
from everybyte.ask.objectives import METHODS, Objective
from everybyte.rules import formulas

README = Path(__file__).resolve().parents[1] / "README.md"
#: Values that are tried, one or two at a time, in place of a setup's own.
VALUES = {name: choices for name, choices in CHOICES.items() if name != "optimizer_impl"} | {
    "optimizer_impl": ("foreach", "loop", "fused"), "accumulation": (1, 3, 4, 5), "sequence": (30, 100, 4096), "dropout": (0.1,),
    "loss_chunks": (3,), "checkpoint_every": (3, 30, 40), "gpus": (1, 2, 3, 8), "replicas": (2, 3), "resharding_gpus": (3,), "fsdp_version": (1,), "no_sync": (True,), "optimizer_in_backward": (True,),
    "adapters": (eb.Lora(4), eb.Lora(4, base="bf16"), eb.Lora(4, dtype="bf16"), eb.Lora(4, ("q",))),
    "mesh": (
        eb.Mesh(tensor=2), eb.Mesh(tensor=3), eb.Mesh(context=2), eb.Mesh(context=4, rotation="ulysses"), eb.Mesh(expert=2), eb.Mesh(expert=3), eb.Mesh(pipeline=2),
        eb.Mesh(pipeline=2, stages=2), eb.Mesh(pipeline=2, schedule="zbv"), eb.Mesh(pipeline=2, schedule="zbv", stages=2), eb.Mesh(pipeline=2, schedule="dualpipev", stages=2),
        eb.Mesh(pipeline=2, schedule="interleaved-1f1b", stages=2), eb.Mesh(pipeline=2, tensor=2), eb.Mesh(pipeline=2, expert=2), eb.Mesh(expert=2, routing=2), eb.Mesh(pipeline=8), eb.Mesh(pipeline=16),
    ),
}  # fmt: skip
#: Setups that break no rule: around them is tried.
STARTS = (
    eb.Setup(sequence=128),
    eb.Setup(sequence=128, gpus=16, sharding="zero3", precision="bf16-mixed", accumulation=16),
    eb.Setup(sequence=128, precision="bf16-mixed", adapters=eb.Lora(4), quantization="nf4"),
    eb.Setup(sequence=128, precision="bf16-megatron"),
    eb.Setup(sequence=128, precision="bf16-master", clip="foreach"),
    eb.Setup(sequence=256, gpus=4, mesh=eb.Mesh(context=4)),
    eb.Setup(sequence=256, gpus=2, mesh=eb.Mesh(context=2, rotation="ulysses")),
    eb.Setup(sequence=128, gpus=16, sharding="zero3", sharding_units="block+ends", resharding="group"),
    eb.Setup(sequence=128, gpus=16, sharding="zero3", optimizer="muon"),
    eb.Setup(sequence=128, gpus=16, sharding="zero3", optimizer="muon", muon_gather="owner"),
    eb.Setup(sequence=128, gpus=16, sharding="zero3", fsdp_version=1),
    eb.Setup(sequence=128, gpus=16, sharding="zero3", optimizer="adamwfp8"),
    eb.Setup(sequence=128, gpus=4, buckets="views"),
    eb.Setup(sequence=128, gpus=4, accumulation=4, mesh=eb.Mesh(pipeline=2, tensor=2)),
    eb.Setup(sequence=128, gpus=12, mesh=eb.Mesh(expert=12)),
)
SMALL = eb.Model(name="small", layers=2, width=48, heads=6, vocabulary=102, positions=200)
MIXTURE = eb.Model(
    name="mixture", layers=4, width=36, heads=4, kv_heads=2, head_width=8, vocabulary=101, positions=0, learned_positions=0, ffn_width=24,
    gated=True, fused=False, tied=False, qkv_bias=False, out_bias=False, ffn_bias=False, norm="rmsnorm", experts=2, experts_per_token=1,
    expert_width=21, window=128,
)  # fmt: skip
MODELS = (
    eb.model("gpt2"), eb.model("llama-2-7b", code="reference"), SMALL, MIXTURE, MIXTURE.replace(expert_width=24, name="even"), MIXTURE.replace(width=32, expert_width=24, name="of eights"), SMALL.replace(width=1560, name="wide"),
    SMALL.replace(width=1, heads=1, ffn_width=2, name="thin"), SMALL.replace(width=45, heads=5, name="odd"), eb.model("bert-large"), eb.model("gemma-2-2b"),
    eb.model("gpt2", code="transformers"), eb.model("llama-2-7b"), eb.model("mistral-7b").replace(layers=100, full_every=100), eb.model("glm-4.5"),
    MIXTURE.replace(experts_per_token=2, width=32, expert_width=24, name="of all experts"),
    MIXTURE.replace(heads=6, kv_heads=3, name="three key heads"), MIXTURE.replace(head_width=7, name="odd heads"),
    eb.model("mistral-7b").replace(window=64, head_width=20, name="masked heads of 20"),
)  # fmt: skip
DEEPSEEK = eb.model("deepseek-v3")
_GONE = ("experts", "experts_per_token", "expert_width", "shared_experts", "dense_layers", "router_bias")
LATENT = DEEPSEEK.replace(**{name: type(getattr(DEEPSEEK, name))() for name in _GONE})
#: More, for formulas.
OTHERS = (
    *(eb.model(n, "reference") for n in ("opt-125m", "opt-350m", "llama-3-8b", "mistral-7b", "mixtral-8x7b", "gemma-2b", "qwen3-8b", "phi-3-mini")),
    SMALL.replace(activation="relu"), eb.Model(name="narrow", layers=1, width=6, heads=1, vocabulary=9, positions=9),
    MIXTURE.replace(experts=0, experts_per_token=0, expert_width=0, head_width=12), LATENT, DEEPSEEK.replace(value_width=192),
    eb.model("llama-3-8b", code="reference").replace(name="partly turned", rotary_percent=50),
)  # fmt: skip
#: Fields of a rollout, and of an engine, beside which the others are as by default.
ROLLOUTS = (
    {}, {"context": 2000}, {"tensor_parallel": 5}, {"weights": "shared"}, {"engine": Engine()},
    {"engine": Engine(), "tensor_parallel": 1, "weights": "shared"}, {"versions": 2, "asleep": True}, {"level": 1}, {"staged": False},
    {"weights": "shared", "tensor_parallel": 1, "bucket": 1}, {"weights": "shared", "tensor_parallel": 1, "offloaded": True},
)  # fmt: skip
ENGINES = (
    {}, {"draft": SMALL}, {"draft": SMALL, "profile": 1}, {"name": "sglang"}, {"name": "sglang", "pages": 1},
    {"name": "sglang", "profile": 1}, {"name": "sglang", "outside": 1}, {"name": "sglang", "batched": 1},
    {"name": "sglang", "draft": SMALL}, {"tensor_parallel": 2, "weights": "fp8"}, {"tensor_parallel": 5, "loaded": 1}, {"states": (1, 1)},
    {"states": (1, 1), "pages": 1}, {"states": (1, 1), "loaded": 1}, {"state_pages": 2}, {"state_dtype": "fp32"},
)  # fmt: skip
TABLES = {name: table for name, table in vars(rules).items() if name.isupper()}
ROWS = {name: list(table) for name, table in TABLES.items()}
FORMULAS = {name: rows for name, rows in vars(formulas).items() if name.isupper() and isinstance(rows, tuple)}


@pytest.fixture(scope="module")
def tried():
    """{id of a rule: (rule, its table, what it was tried on)}, the first time that it was reached, over all tables."""
    found = {}

    def reach(table, *on):
        if rule := rules.first(table, *on):
            found.setdefault(id(rule), (rule, table, on))
        return rule

    changes = [(name, value) for name, values in VALUES.items() for value in values]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rules, "check", lambda *_: None)  # a setup that breaks rules can be made
        for start, (one, other) in product(STARTS, [*combinations(changes, 2), *((c, c) for c in changes)]):
            try:
                setup = start.replace(**dict([one, other]))
            except ValueError:  # no value of its field
                continue
            if reach(rules.SETUP, setup):
                continue
            for table in (rules.LAYOUT, rules.DERIVED, rules.LETTERS, rules.CUT, rules.CLIPPED, rules.RESERVED):
                reach(table, setup)
            reach(rules.GPU, setup, eb.gpu("t4"))
            reach(rules.PLANNED, setup, "Module")
            for method in METHODS:
                if not reach(rules.OBJECTIVE, setup, Objective(SMALL, method)):
                    reach(rules.ALIGNED, setup, Objective(SMALL, method))
            for model in MODELS:
                if not reach(rules.MODEL, setup, model) and not reach(rules.SCHEDULE, setup):
                    reach(rules.FORMULA, setup, model)
                    reach(rules.WHOLE, setup, model)
        for fields, model in product(
            ROLLOUTS,
            MODELS,
        ):
            rollout = SimpleNamespace(**vars(Rollout(sequences=1, context=1, tensor_parallel=2)) | fields)
            if not reach(rules.GENERATING, rollout):
                reach(rules.ROLLOUT, rollout, model)
        for fields, model in product(ENGINES, (*MODELS, LATENT, DEEPSEEK)):
            engine = SimpleNamespace(**vars(Engine()) | fields)
            if not reach(rules.ENGINE, engine) and not reach(rules.STATELESS, engine, model):
                reach(rules.SERVED, engine, model)
        for fields, many in product((*ENGINES, {"state_dtype": "bf16"}, {"tensor_parallel": 3}), (1, 2)):
            asked = {"kind": "kimi_linear", "name": "kimi", "stored": False, "counted": lambda gpus: False}
            model = SimpleNamespace(
                **asked, states=SimpleNamespace(undivided=lambda gpus: "heads" if gpus == 3 else "")
            )
            reach(rules.HYBRID, SimpleNamespace(**vars(Engine()) | {"tensor_parallel": many} | fields), model)
    return found


@pytest.mark.parametrize("name", TABLES)
def test_every_row_is_reached(name, tried):
    assert [row for row in ROWS[name] if id(row) not in tried] == []


def test_a_row_says_the_field_the_value_and_what_is_allowed(tried):
    for rule, _, (setup, *on) in tried.values():
        said, (owner, _, name) = rule.error(setup, *on), rule.name.rpartition(".")
        if owner == "Model":  # which names its own field
            assert said.startswith("Model.")
            continue
        value = getattr(getattr(setup, {"Mesh": "mesh", "Lora": "adapters"}.get(owner, ""), setup), name)
        value = getattr(value, "name", value)
        assert said.startswith(
            f"{owner or 'Setup'}.{name}: {value!r}" if isinstance(value, str) else f"{owner or 'Setup'}.{name}: {value}"
        )
        assert "; allowed: " in said or " needs " in said or "; eb." in said, said
        assert said.isprintable() and "  " not in said and len(said) < 420


def test_what_is_allowed_first_breaks_the_row_no_more(tried):
    mended = 0
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rules, "check", lambda *_: None)
        for rule, table, (setup, *on) in tried.values():
            allowed = re.search(r"; allowed: '?([\w+-]+)", rule.error(setup, *on))
            if allowed and allowed[1] in CHOICES.get(rule.name, ()):
                mended += 1
                assert rules.first(table, setup.replace(**{rule.name: allowed[1]}), *on) is not rule
    assert mended > 25


def test_every_row_of_a_formula_is_reached():
    """By a model with a setup and without, and by a setup alone."""
    changed = [
        {},
        {"batch": 1, "sequence": 1, "optimizer_impl": "loop"},
        *({field: value} for field, values in VALUES.items() for value in values),
    ]
    setups = [setup for start in STARTS for changes in changed if (setup := made(start, changes))]
    models = [*MODELS, *OTHERS]
    found = set()
    for rows, setup, model in product(FORMULAS.values(), (None, *setups), (None, *models)):
        if (row := formulas.first(rows, model, setup)) and row not in found:
            found.add(row)
            why = row.error(setup, model)
            assert (
                why.isprintable()
                and "  " not in why
                and len(why) < 420
                and why.partition(".")[0] in ("Setup", "Model", "Mesh", "Lora")
            )
            assert "; allowed: " in why or "; eb." in why, why
    assert {row for rows in FORMULAS.values() for row in rows} <= found


def made(start, changes):
    try:
        return start.replace(**changes)
    except ValueError:
        return None


def goes(**changes):
    try:
        return eb.Setup(gpus=2, **changes)
    except ValueError:
        return None


#: What the README calls a way of sharing, and what is tried under each.
SHARINGS = {"none": "DDP", "zero1": "ZeRO-1", "zero2": "FSDP", "zero3": "FSDP"}
TRIED = {
    **{name: {"precision": name} for name in PRECISIONS},
    **{name: {"optimizer": name} for name in OPTIMIZERS},
    "LoRA": {"adapters": eb.Lora()},
    "QLoRA": {"adapters": eb.Lora(), "quantization": "nf4"},
}


def apart():
    """Name -> what the rows do not let it go with: ways of sharing among GPUs, and LoRA."""
    found = {}
    for name, fields in TRIED.items():
        refused = [said for value, said in SHARINGS.items() if not goes(sharding=value, **fields)]
        if "adapters" not in fields and not any(
            goes(adapters=eb.Lora(dtype=dtype), **fields) for dtype in ("fp32", "bf16")
        ):
            refused.append("LoRA")
        if goes(sharding="zero3", **fields) and not goes(sharding="zero3", offload="cpu", **fields):
            refused.append("offload to the CPU")
        if (
            "precision" not in fields
            and goes(sharding="zero3", **fields)
            and not goes(sharding="zero3", precision="bf16", **fields)
        ):
            refused.append("FSDP in `bf16`")
        found[name] = tuple(dict.fromkeys(refused))
    return found


def sentence():
    """The README's, of what does not go together."""
    said = {}
    for name, refused in apart().items():
        if refused:
            said.setdefault(refused, []).append(f"`{name}`" if name.islower() else name)
    return "; ".join(f"{listed(names, 'and')} with {listed(refused, 'or')}" for refused, names in said.items())


def listed(names, word):
    *others, last = names
    return f"{', '.join(others)} {word} {last}" if others else last


def test_the_readmes_sentences_on_what_goes_together_are_the_rows():
    text = " ".join(README.read_text(encoding="utf-8").split())
    assert len(PRECISIONS) == 5 and len(OPTIMIZERS) == 13
    assert "Each goes with five precisions, thirteen optimizers, eager or flash attention" in text
    assert f"These do not go together: {sentence()}." in text
    without = apart()
    usual = product(OPTIMIZERS, SHARINGS, ("none", "cpu"), ("plain", "chunked"), CHOICES["attention"])
    for optimizer, sharding, offload, loss, attention in usual:
        fields = {
            "optimizer": optimizer,
            "sharding": sharding,
            "loss": loss,
            "attention": attention,
            "offload": offload,
        }
        for precision, checkpointing, accumulation in product(PRECISIONS, CHOICES["checkpointing"], (1, 2)):
            more = {"precision": precision, "checkpointing": checkpointing, "accumulation": accumulation}
            refused = SHARINGS[sharding] in (*without[precision], *without[optimizer])
            refused = refused or (offload == "cpu" and SHARINGS[sharding] != "FSDP")
            refused = refused or (offload == "cpu" and "offload to the CPU" in without[optimizer])
            in_bf16 = precision == "bf16" and SHARINGS[sharding] == "FSDP"
            refused = refused or (in_bf16 and "FSDP in `bf16`" in without[optimizer])
            assert bool(goes(**fields, **more)) == (not refused), (fields, more)
    assert "FSDP with offload to the CPU or without" in text


def test_a_row_has_a_repr_and_stands_alone():
    said = [repr(row) for rows in ROWS.values() for row in rows]
    assert all(re.fullmatch(r"Rule\((Mesh\.|Lora\.|Model\.|Rollout\.|Engine\.)?\w+: .*\)", one) for one in said)
    row = ROWS["DERIVED"][-1]
    assert repr(replace(row, why="is so", allowed="'plain'")) == "Rule(loss: is so; allowed: 'plain')"
