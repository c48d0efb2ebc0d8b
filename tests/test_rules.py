"""Each row of the rules is reached, and says the field, the value and what is allowed; what is written of them is what they do."""

import re
from dataclasses import replace
from itertools import combinations, product
from pathlib import Path

import pytest

import everybyte as eb
from everybyte import rules
from everybyte.ask.choices import CHOICES, COMMON_OPTIMIZERS, OPTIMIZERS, PRECISIONS
from everybyte.ask.objectives import METHODS, Objective
from everybyte.rules import formulas

README = Path(__file__).resolve().parents[1] / "README.md"
#: Values that are tried, one or two at a time, in place of a setup's own.
VALUES = {name: choices for name, choices in CHOICES.items() if name != "optimizer_impl"} | {
    "optimizer_impl": ("foreach", "loop", "fused"), "accumulation": (1, 3, 4, 5), "sequence": (30, 100, 4096), "dropout": (0.1,),
    "loss_chunks": (3,), "checkpoint_every": (3, 40), "gpus": (1, 2, 3, 8), "replicas": (2, 3), "no_sync": (True,),
    "adapters": (eb.Lora(4), eb.Lora(4, base="bf16"), eb.Lora(4, dtype="bf16"), eb.Lora(4, ("q",))),
    "mesh": (
        eb.Mesh(tensor=2), eb.Mesh(tensor=3), eb.Mesh(context=2), eb.Mesh(expert=2), eb.Mesh(expert=3), eb.Mesh(pipeline=2),
        eb.Mesh(pipeline=2, stages=2), eb.Mesh(pipeline=2, schedule="zbv"), eb.Mesh(pipeline=2, schedule="zbv", stages=2), eb.Mesh(pipeline=2, schedule="dualpipev", stages=2),
        eb.Mesh(pipeline=2, schedule="interleaved-1f1b", stages=2), eb.Mesh(pipeline=2, tensor=2), eb.Mesh(pipeline=2, expert=2), eb.Mesh(pipeline=8), eb.Mesh(pipeline=16),
    ),
}  # fmt: skip
#: Setups that break no rule: around them is tried.
STARTS = (
    eb.Setup(sequence=128),
    eb.Setup(sequence=128, gpus=16, sharding="zero3", precision="bf16-mixed", accumulation=16),
    eb.Setup(sequence=128, precision="bf16-mixed", adapters=eb.Lora(4), quantization="nf4"),
    eb.Setup(sequence=128, precision="bf16-megatron"),
    eb.Setup(sequence=256, gpus=4, mesh=eb.Mesh(context=4)),
    eb.Setup(sequence=128, gpus=4, accumulation=4, mesh=eb.Mesh(pipeline=2, tensor=2)),
)
SMALL = eb.Model(name="small", layers=2, width=48, heads=6, vocabulary=102, positions=200)
MIXTURE = eb.Model(
    name="mixture", layers=4, width=36, heads=4, kv_heads=2, head_width=8, vocabulary=101, positions=0, learned_positions=0, ffn_width=24,
    gated=True, fused=False, tied=False, qkv_bias=False, out_bias=False, ffn_bias=False, norm="rmsnorm", experts=2, experts_per_token=1,
    expert_width=21, window=128,
)  # fmt: skip
MODELS = (
    eb.model("gpt2"), eb.model("llama-2-7b"), SMALL, MIXTURE, MIXTURE.replace(expert_width=24, name="even"), MIXTURE.replace(width=32, expert_width=24, name="of eights"), SMALL.replace(width=1560, name="wide"),
    SMALL.replace(width=1, heads=1, ffn_width=2, name="thin"), eb.model("bert-large"),
)  # fmt: skip
DEEPSEEK = eb.model("deepseek-v3")
_GONE = ("experts", "experts_per_token", "expert_width", "shared_experts", "dense_layers", "router_bias")
LATENT = DEEPSEEK.replace(**{name: type(getattr(DEEPSEEK, name))() for name in _GONE})
#: More, for formulas.
OTHERS = (
    *map(eb.model, ("opt-125m", "opt-350m", "llama-3-8b", "mistral-7b", "mixtral-8x7b", "gemma-2b", "qwen3-8b", "phi-3-mini")),
    SMALL.replace(activation="relu"), eb.Model(name="narrow", layers=1, width=6, heads=1, vocabulary=9, positions=9),
    MIXTURE.replace(experts=0, experts_per_token=0, expert_width=0, head_width=12), LATENT,
    eb.model("llama-3-8b").replace(name="partly turned", rotary_percent=50),
)  # fmt: skip
TABLES = {name: table for name, table in vars(rules).items() if name.isupper()}
ROWS = {name: [rule for group in table for rule in group.rules] for name, table in TABLES.items()}
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
            for table in (rules.LAYOUT, rules.DERIVED, rules.LETTERS, rules.CUT, rules.CLIPPED):
                reach(table, setup)
            reach(rules.GPU, setup, eb.gpu("t4"))
            reach(rules.PLANNED, setup, "Module")
            for method in METHODS:
                if not reach(rules.OBJECTIVE, setup, Objective(SMALL, method)):
                    reach(rules.ALIGNED, setup, Objective(SMALL, method))
            for model in MODELS:
                if not reach(rules.MODEL, setup, model) and not reach(rules.SCHEDULE, setup):
                    reach(rules.FORMULA, setup, model)
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
        value = getattr({"": setup, "Mesh": setup.mesh, "Lora": setup.adapters}[owner], name)
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


def test_the_readmes_sentences_on_what_goes_together_are_the_rows():
    text = " ".join(README.read_text(encoding="utf-8").split())
    usual = product(
        COMMON_OPTIMIZERS,
        ("none", "zero1", "zero2", "zero3"),
        ("none", "cpu"),
        ("plain", "chunked"),
        CHOICES["attention"],
    )
    assert (
        len(PRECISIONS) == 5
        and len(COMMON_OPTIMIZERS) == 4
        and "Each goes with five precisions, four optimizers" in text
    )
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
            refused = (precision == "fp16-mixed" and sharding != "none") or (
                offload == "cpu" and sharding in ("none", "zero1")
            )
            assert bool(goes(**fields, **more)) == (not refused), (fields, more)
    assert "fp16-mixed with DDP alone" in text
    without = {name: {s for s in CHOICES["sharding"] if not goes(optimizer=name, sharding=s)} for name in OPTIMIZERS}
    fsdp = {"zero2", "zero3"}
    assert without == dict.fromkeys(without, set()) | {"muon": {"zero1", *fsdp}} | dict.fromkeys(
        ("adafactor", "adamw8bit", "paged-adamw8bit"), fsdp
    )
    assert (
        "Lion goes with all of that; Adafactor and 8-bit AdamW do but for FSDP" in text
        and "Muon but for ZeRO and FSDP" in text
    )
    beside = [n for n in OPTIMIZERS if not goes(optimizer=n, adapters=eb.Lora())]
    assert beside == ["muon"] and all(goes(adapters=eb.Lora(), sharding=s) for s in CHOICES["sharding"])
    assert [s for s in CHOICES["sharding"] if goes(adapters=eb.Lora(), quantization="nf4", sharding=s)] == [
        "none",
        "zero1",
    ]
    assert "LoRA goes with all of it but Muon, QLoRA with DDP and ZeRO-1" in text


def test_a_row_has_a_repr_and_stands_alone():
    said = [repr(row) for rows in ROWS.values() for row in rows]
    assert all(re.fullmatch(r"Rule\((Mesh\.|Lora\.|Model\.)?\w+: .*\)", one) for one in said)
    [row] = ROWS["DERIVED"]
    assert repr(replace(row, why="is so", allowed="'plain'")) == "Rule(loss: is so; allowed: 'plain')"
