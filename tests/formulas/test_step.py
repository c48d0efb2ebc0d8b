"""The named formulas say what the courses of steps say, at every combination of their switches, and refuse other steps."""

from random import Random

import grid
import numpy
import pytest
import sympy
from instants import instants

import everybyte as eb
from everybyte.ask.choices import CHECKPOINTINGS
from everybyte.formulas import Formula, bindings, formula, registry
from everybyte.formulas.readings import PRECISIONS, both, expression, letter, merged, more, polynomial, reading
from everybyte.formulas.step import kept
from everybyte.rules.formulas import GPT, refused

PHASES = ("rest", "after_forward", "after_backward", "step", "after_step")
LLAMA = eb.Model(
    name="small llama", layers=3, width=40, heads=6, kv_heads=3, head_width=8, vocabulary=1009, learned_positions=0,
    ffn_width=56, gated=True, fused=False, tied=False, qkv_bias=False, out_bias=False, ffn_bias=False, norm="rmsnorm",
)  # fmt: skip


def drawn(seeds):
    """(model, setup) of GPTs' steps that the formulas of blocks were derived for."""
    for seed in seeds:
        model, setup, _ = grid.saving(seed)
        if setup.checkpointing != "operations" and refused(GPT, model, setup) is None:
            yield model, setup


@pytest.mark.sampled(1)
@pytest.mark.parametrize("start", range(0, 120, 40))
def test_phases_and_parts_are_the_courses(start, sample):
    for model, setup in drawn(sample(range(start, start + 40), 20)):
        budget = eb.budget(model, setup)
        after = budget.parts_at("after_forward")
        for phase in PHASES:
            assert formula(f"phase.{phase}").at(model, setup) == budget.phases[phase], (phase, model, setup)
        for part in ("activations", "casts", "loss"):
            assert formula(part).at(model, setup) == after[part], (part, model, setup)


def test_rounded_up_they_are_the_courses_too(sample):
    for model, setup in drawn(sample(range(30), 12)):
        budget = eb.budget(model, setup, 512)
        for phase in ("rest", "after_step"):
            found = formula(f"phase.{phase}").rounded_up().at(model, setup, rounding=512)
            assert found == budget.phases[phase], (phase, model, setup)


def test_named_instants_are_the_timeline_s(sample):
    for model, setup in drawn(sample(range(60), 30)):
        if setup.loss != "plain" or setup.accumulation > 1:
            continue
        budget = eb.budget(model, setup)
        live = {name: x for (name, *_), x in zip(budget.operations, budget.live, strict=True)}
        last = "token gradient" if "token rows gradients added" not in live else "token rows gradients added"
        for name, operation in (
            ("nll_backward", "negative log-likelihood backward"), ("log_softmax_backward", "log-softmax backward"),
            ("end_of_backward", last),
        ):  # fmt: skip
            assert formula(f"instant.{name}").at(model, setup) == live[operation], (name, model, setup)


def test_the_peak_is_the_largest_instant(sample):
    totals = [(Formula(i.name, "", i.total, "B", "", ""), i.moment) for i in instants()]
    checked, seeds = 0, sample(range(80), 20)
    for seed in seeds:
        model, setup, _ = grid.anything(seed)
        model = model.replace(layers=max(2, model.layers))
        if setup.sequence == 1 or model.heads == 1:
            continue
        values = bindings(model, setup)
        peak, where = max((total(**values), where) for total, where in totals)
        budget, checked = eb.budget(model, setup), checked + 1
        assert (peak, where) == (budget.peak, budget.peak_at), (model, setup)
    assert checked > len(seeds) / 3
    few = instants(frozenset({("loss backward", "log-softmax backward")}))
    assert [i.name for i in few] == ["log-softmax backward"]


@pytest.mark.parametrize("way", ["block", "selective", "operations"])
def test_what_a_block_keeps(way, sample):
    """One block more keeps so much more."""
    name = "activations.block" if way == "block" else f"checkpoint.{way}"
    for seed in sample(range(40), 16):
        model, setup, _ = grid.anything(seed)
        setup = setup.replace(checkpointing="none" if way == "block" else way)
        if refused(GPT, model, setup) is None:
            parts = [eb.budget(model.replace(layers=n), setup).parts_at("after_forward") for n in (4, 5)]
            found = parts[1]["activations"] - parts[0]["activations"]
            assert formula(name).at(model, setup) == found, (model, setup)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("precision", ["fp32", "bf16-mixed", "fp16-mixed", "bf16-master", "bf16"])
def test_a_llamas_block(precision):
    model = LLAMA.replace(kv_heads=6) if precision == "fp32" else LLAMA
    setup = eb.Setup(batch=3, sequence=31, precision=precision)
    counted, predicted = (
        [witness(model.replace(layers=n), setup).parts_at("after_forward")["activations"] for n in (3, 4)]
        for witness in (eb.dry_run, eb.budget)
    )
    assert counted[1] - counted[0] == predicted[1] - predicted[0] == formula("activations.llama").at(model, setup)


def test_the_squares_of_eager_attention_and_what_flash_keeps_beside():
    model, setup = eb.model("gpt2"), eb.Setup(attention="eager", precision="bf16-mixed", dropout=0.1)
    square = 8 * 12 * 1024**2
    assert formula("attention.scores").at(model, setup) == (4 + 1 + 2) * square + 1024**2  # softmax, mask, cast
    assert formula("attention.scores").at(model, eb.Setup(attention="eager")) == 4 * square + 1024**2
    assert formula("attention.flash").at(model, eb.Setup()) == 4 * 8 * 12 * 1024
    assert formula("attention.flash").at(model, eb.Setup(precision="bf16")) == 4 * 8 * 12 * 1024 + 24
    assert formula("attention.flash").at(model, setup) == formula("attention.scores").at(model, eb.Setup()) == 0


def test_gpt2_at_batch_8_by_hand():
    """16 BSH numbers a block, and three logits-sized tensors at the peak."""
    model, setup = eb.model("gpt2"), eb.Setup(batch=8, sequence=1024)
    block = 4 * (16 * 8 * 1024 * 768 + 4 * 8 * 1024 + 8 * 12 * 1024)
    assert formula("activations.block").at(model, setup) == block
    assert formula("activations.block").at(model, setup.replace(precision="bf16-mixed")) == 227_016_728
    assert formula("instant.nll_backward").at(model, setup.replace(precision="bf16-mixed")) == 8_619_549_484


def test_a_block_made_again_holds_what_it_keeps_and_its_copies(sample):
    model = eb.model("gpt2")
    for precision in sample(PRECISIONS, 3):
        setup = eb.Setup(batch=2, sequence=64, precision=precision, checkpointing="full")
        copies = 2 * 12 * 768**2 * (precision.endswith("mixed"))
        kept_by_it = formula("activations.block").at(model, setup)
        assert formula("checkpoint.block").at(model, setup) == kept_by_it + copies
        last = formula("checkpoint.segment").at(model, setup)
        output = (2 if precision == "bf16" else 4) * 2 * 64 * 768
        assert last == kept_by_it + copies - output  # nobody asks for the last one's output
        three = setup.replace(checkpointing="every-k", checkpoint_every=3)
        assert formula("checkpoint.segment").at(model, three) == last + 2 * (kept_by_it + copies)


# How formulas are merged.


def test_a_merged_formula_has_each_structures_value():
    """At every combination of switches the polynomial is what the course of that structure says."""
    tree = both("dropped", then=("eager", both("narrow"), both("several", "heads")))
    found = merged(kept(), tree)
    values = {"dropped": 0, "eager": 0, "narrow": 0, "several": 1, "heads": 1}
    for seed in range(24):
        draw = Random(seed).choice
        on = {name: draw((0, 1)) for name in values}
        on |= {"narrow": 0} if on["eager"] else {"several": 1, "heads": 1}
        precision = PRECISIONS[seed % 4]
        said = found
        half = {
            "half": precision != "fp32",
            "autocast": precision.endswith("mixed"),
            "fp16": precision.startswith("fp16"),
        }
        for name, value in (values | on | half).items():
            said = said.subs(letter(name), int(value))
        course = kept()(precision=precision, **on)
        if not half["autocast"]:  # where w and c are one
            said, course = (x.compose(letter("c"), letter("w")) for x in (said, course))
        assert said == course, (precision, on)


def test_what_a_switch_adds_is_left_out_where_it_is_off():
    read = kept()
    difference = more(read, "dropped")
    assert difference.subs(letter("dropped"), 0) == 0
    assert difference.subs(letter("dropped"), 1).subs(letter("half"), 0).subs(letter("autocast"), 0).subs(
        letter("fp16"), 0
    ) == read(dropped=1, precision="fp32") - read(precision="fp32")


def test_a_text_is_the_polynomial_that_it_says():
    assert polynomial("(A*D+2*A_kv*D)*H") == 3 * letter("H") ** 2
    assert polynomial("B*S*(A*D+2*A_kv*D)", "llama") != polynomial("B*S*(A*D+2*A_kv*D)")
    from everybyte.formulas.symbols import A, B, D, S

    assert expression(polynomial("B*A*32*up(S,32)")) == 32 * A * B * sympy.ceiling(S / 32)
    assert expression(polynomial("whole(D,2)", "llama")) == D / 2
    assert expression(letter("several")) == sympy.Min(B - 1, 1)


def test_an_operation_that_is_not_there_is_an_error():
    with pytest.raises(KeyError, match="no such operation"):
        kept(("no such operation",))(precision="fp32")
    with pytest.raises(KeyError, match="no such mark"):
        reading(precision="fp32").last("no such mark")


# Refusals.


@pytest.mark.parametrize(
    ("name", "model", "changes", "words"),
    [
        ("activations.block", "llama-2-7b", {}, r"Model\.norm: 'rmsnorm' of llama-2-7b"),
        ("activations", "opt-125m", {}, r"Model\.fused: False of opt-125m"),
        ("activations", "gpt2", {"checkpointing": "operations"}, "Setup.checkpointing: 'operations'"),
        ("casts", "bert-large", {}, r"Model\.\w+: .* of bert-large"),
        ("phase.rest", "gpt2", {"sharding": "zero3", "gpus": 8}, "Setup.sharding: 'zero3' on 8 GPUs"),
        ("phase.rest", "bert-large", {}, "eb.dry_run"),
        ("phase.step", "llama-2-7b", {"optimizer_impl": "loop"}, "eb.budget"),
        ("instant.nll_backward", "gpt2", {"loss": "chunked"}, "Setup.loss: 'chunked'"),
        ("instant.end_of_backward", "gpt2", {"accumulation": 2}, "Setup.accumulation: 2"),
        ("activations.llama", "gpt2", {}, r"Model\.norm: 'layernorm'"),
        ("activations.llama", "mixtral-8x7b", {}, r"Model\.experts: 8"),
        ("activations.llama", "llama-3-8b", {}, r"Model\.kv_heads: 8 in fp32"),
        ("activations.llama", "llama-2-7b", {"attention": "eager"}, "Setup.attention"),
        ("flops.forward", "mixtral-8x7b", {}, r"Model\.experts: 8"),
        ("checkpoint.flops", "deepseek-v3", {}, r"Model\.experts"),
        ("fsdp.sent", "bert-large", {}, r"Model\.\w+: .* of bert-large"),
        (
            "fsdp.root.share",
            "llama-2-7b",
            {"sharding": "zero3", "gpus": 2, "sharding_units": "block+ends"},
            "block\\+ends",
        ),
        ("fsdp.llama_block.share", "gpt2", {}, r"Model\.norm"),
        ("fsdp.llama_block.share", "mixtral-8x7b", {}, r"Model\.experts: 8"),
    ],
)
def test_a_formula_refuses_what_it_was_not_derived_for(name, model, changes, words):
    setup = eb.Setup(batch=1, sequence=8, **changes)
    with pytest.raises(ValueError, match=words) as error:
        formula(name).at(eb.model(model, code="reference"), setup)
    assert str(error.value).startswith(f"formula {name}: ")
    with pytest.raises(ValueError, match=words):
        formula(name).for_model(eb.model(model, code="reference"), setup)


@pytest.mark.parametrize("name", ["llama-2-7b", "qwen3-8b", "gemma-2b", "mixtral-8x7b", "opt-125m"])
def test_what_holds_for_every_architecture_is_right_for_it(name):
    model = eb.model(name, code="reference").replace(layers=3)
    for changes in ({}, {"attention": "eager"}, {"precision": "bf16-mixed", "optimizer_impl": "fused"}):
        setup = eb.Setup(batch=2, sequence=32, **changes)
        budget = eb.budget(model, setup)
        for phase in ("rest", "after_backward", "step", "after_step"):
            assert formula(f"phase.{phase}").at(model, setup) == budget.phases[phase]
        assert formula("loss").at(model, setup) == budget.parts_at("after_forward")["loss"]


def test_every_formula_is_whole_in_its_own_notation():
    for name, f in registry().items():
        assert f.expr.free_symbols == {entry.symbol for entry in f.symbols}, name
        assert f.source and f.chapter and f.title


def test_arrays_say_what_numbers_say():
    model, f = eb.model("gpt2"), formula("instant.nll_backward")
    batches = numpy.arange(1, 9)
    values = bindings(model, eb.Setup(), f.symbols) | {"batch": batches}
    assert list(f.arrays(**values)) == [f.at(model, eb.Setup(batch=int(b))) for b in batches]


def test_the_random_steps_are_not_all_alike():
    steps = list(drawn(range(120)))
    assert {s.checkpointing for _, s in steps} == set(CHECKPOINTINGS) - {"operations", "one-in-k", "second-products"}
    assert {(s.attention, s.loss, s.accumulation > 1) for _, s in steps} == {
        (a, x, n) for a in ("eager", "flash") for x in ("plain", "chunked") for n in (True, False)
    }
    assert {m.head_width % 8 > 0 for m, _ in steps} == {True, False}


@pytest.mark.parametrize("name", ["gpt2", "gpt2-medium", "gpt2-large", "gpt2-xl"])
def test_autocast_with_eager_attention_takes_more_than_fp32_from_medium_on(name):
    peaks = {
        p: eb.budget(eb.model(name, code="reference"), eb.Setup(precision=p, attention="eager")).peak
        for p in ("fp32", "bf16-mixed")
    }
    assert (peaks["bf16-mixed"] > peaks["fp32"]) == (name != "gpt2")
