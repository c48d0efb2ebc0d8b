"""The computed time beside published runs and our own steps, and what is said of layouts whose times are ranges."""

import math
from dataclasses import replace
from functools import cache
from pathlib import Path
from statistics import median

import pytest
import ran
from published_steps import FOUNDRY, MEGATRON, TITAN, runs

import everybyte as eb
from everybyte.answers import rates, throughput
from everybyte.answers.layouts import Layout, Layouts, priced, tokens_of
from everybyte.answers.throughput import LONG, MIXED, SHORT, between
from everybyte.answers.work import phase_loads, work
from everybyte.lab import read

RECORDS = Path(__file__).parents[1] / "labs" / "records"
LLAMA_4096 = "llama-1b bf16 4096"
#: Own steps that set a rate: (model, batch, precision, attention) without recomputation, by a plain loss and foreach AdamW.
SET = {
    *(("gpt2", batch, "bf16-mixed", "flash") for batch in (8, 16, 32)), ("gpt2", 8, "fp32", "flash"), ("gpt2", 8, "bf16-mixed", "eager"),
    ("prose", 32, "bf16-mixed", "flash"), ("prose", 32, "bf16", "flash"),
}  # fmt: skip


@cache
def published():
    """(run, the range that is said, measured over computed seconds) of each."""
    found = []
    for run in runs():
        terms = priced(run.model, run.setup, run.gpu)
        off = tokens_of(run.setup) / run.setup.gpus / run.tokens / sum(terms.values())
        found.append((run, between(run.setup, terms), off))
    return found


@cache
def own():
    """(name, the range, measured over computed seconds, whether it set a rate) of each timed step of the record."""
    measured = [m for m in read(RECORDS / "h200.jsonl").measurements if m.step_ms and not m.settings["asked"]["tf32"]]
    steps = [(m.model, m.setup, m.step_ms) for m in measured if m.setup.optimizer != "muon"]
    theirs = median(ran.scripts()[LLAMA_4096]["printed"]["MILLISECONDS"])
    steps.append((eb.model("llama-3.2-1b"), eb.Setup(batch=4, sequence=4096, precision="bf16"), theirs))
    found = []
    for model, setup, taken in steps:
        done, gpu = work(model, setup), eb.gpu("h200")
        terms = done.load.seconds(gpu, done.compute)
        plain = setup.checkpointing == "none" and (setup.optimizer_impl, setup.loss, setup.sharding) == (
            "foreach",
            "plain",
            "none",
        )
        key = (model.name, setup.batch, setup.precision, setup.attention)
        set_by = plain and key in SET and setup.optimizer == "adamw" or setup.checkpointing == "operations"
        found.append((key, between(setup, terms), taken / 1e3 / done.seconds(gpu), set_by))
    return found


def test_each_published_run_is_within_its_range():
    assert {run.source for run, *_ in published()} == {TITAN, FOUNDRY, MEGATRON} and len(published()) == 76
    for run, (least, most), off in published():
        assert least <= off <= most, (run.model.name, run.setup, off)


def test_each_own_step_is_within_its_range():
    assert len(own()) == 53
    for key, (least, most), off, _ in own():
        assert least <= off <= most, (key, off)


def test_ranges_are_no_wider_than_the_residuals():
    """Rounded outwards to 0.05; nothing else."""
    kinds = {}
    for _, said, off, *_ in (*published(), *own()):
        kinds.setdefault(said, []).append(off)
    assert kinds.keys() == {getattr(throughput, name) for name in ("LAUNCHED", "BITSANDBYTES", "WIDE", "MIXED", "LONG")}
    for said, offs in kinds.items():
        outwards = math.floor(20 * min(offs)) / 20, math.ceil(20 * max(offs)) / 20
        assert said == pytest.approx(outwards), (said, min(offs), max(offs))


def test_the_error_is_what_is_stated():
    """Also of what set nothing."""
    left_out = [abs(off - 1) for run, _, off in published() if (run.source, run.setup.sequence) != (FOUNDRY, 2048)]
    held = [abs(off - 1) for *_, off, set_by in own() if not set_by]
    assert len(left_out) == 38 and 0.08 < median(left_out) < 0.09 and 0.35 < max(left_out) < 0.36
    assert len(held) == 39 and 0.07 < median(held) < 0.08 and 0.95 < max(held) < 0.96
    assert median(abs(off - 1) for _, _, off, _ in own()) < 0.07
    assert sum(abs(off - 1) > 0.25 for *_, off, _ in own()) == 10


def test_rates_are_those_of_the_record():
    found = ran.scripts()["rates"]["printed"]["FOUND"]
    gpu, taken = eb.gpu("h200"), {what: (milliseconds / 1e3, amount) for what, milliseconds, amount in found}
    shares = {
        kind: [n / s / gpu.flops(short) for what, (s, n) in taken.items() if what.startswith(f"product torch.{kind}")]
        for kind, short in (("bfloat16", "bf16"), ("float32", "fp32"))
    }
    assert min(shares["bfloat16"]) < rates.PRODUCTS < max(shares["bfloat16"]) and len(shares["bfloat16"]) == 5
    assert min(shares["float32"]) < rates.FP32 < max(shares["float32"])
    numbers = taken["adamw fused"][1]
    moved = {
        "copy": 2 * 2**30,
        "adamw fused": 28 * numbers,
        "adamw foreach": 80 * numbers,
        "cross entropy fp32 forward and backward": 9 * 4 * 8192 * 50257,
    }
    reached = {what: size / taken[what][0] / gpu.bandwidth for what, size in moved.items()}
    assert min(reached.values()) < rates.MEMORY < max(reached.values()), reached
    for what, (seconds, squares) in taken.items():
        if what.startswith("FLASH_ATTENTION causal"):
            *_, tokens, way = what.split()
            load = rates.Load(
                **{
                    "attention" if way == "forward" else "attention_backward": squares
                    * (0.5 if way == "forward" else 1.25)
                },
                sequence=int(tokens),
            )
            assert load.seconds(gpu, "bf16")["attention"] == pytest.approx(seconds, rel=0.11)
    for kernel in ("FLASH", "CUDNN"):  # the half that a causal mask hides is not computed
        causal, full = (taken[f"{kernel}_ATTENTION {mask} 32 128 16384 forward"][0] for mask in ("causal", "full"))
        assert 0.49 < causal / full < 0.55


def test_together_is_the_median_of_those_that_set_it():
    alone = [rates.TOGETHER * off for run, _, off in published() if (run.source, run.setup.sequence) == (FOUNDRY, 2048)]
    assert len(alone) == 38 and round(median(alone), 1) == rates.TOGETHER


def test_attention_is_counted_as_half_its_squares():
    """Each pair of a query and a key that it sees, one by one: a multiplication and an addition for each number, in two products and in five."""
    model = eb.model("gpt2", code="reference").replace(layers=2, width=32, heads=2)
    setup = eb.Setup(batch=3, sequence=64, precision="bf16", checkpointing="full")
    seen = sum(key <= query for query in range(64) for key in range(64))
    product = 2 * 3 * model.layers * model.heads * seen * model.head_width
    forward, backward = phase_loads(model, setup)
    for load in (forward, backward):  # recomputed in backward
        assert load.attention == pytest.approx(2 * product, rel=1 / 64)
    assert backward.attention_backward == pytest.approx(5 * product, rel=1 / 64) and not forward.attention_backward


def test_logits_of_an_uneven_vocabulary_are_slow():
    """With 50,304 words for 50,257 a step has more operations, and takes less time."""
    gpu, setup = eb.gpu("h200"), eb.Setup(batch=8, precision="bf16-mixed")
    even, uneven = (work(eb.model("gpt2", code="reference").replace(vocabulary=v), setup) for v in (50304, 50257))
    assert even.load.ragged == 0 < uneven.load.ragged and even.flops > uneven.flops
    assert even.seconds(gpu) < 0.75 * uneven.seconds(gpu)


def test_published_sizes_are_the_models():
    """The parameters that MosaicML's table states, its learned positions among them."""
    stated = {
        ("mpt, 80 x 8192", 2048): 64_862_437_376,
        ("mpt, 40 x 5120", 4096): 12_864_440_320,
        ("mpt, 32 x 2560", 8192): 2_667_566_080,
        ("mpt, 24 x 2048", 1024): 1_313_853_440,
        ("mpt, 24 x 1536", 512): 758_111_232,
    }
    found = {(run.model.name, run.setup.sequence): run.model.parameters for run in runs()}
    assert {key: found[key] for key in stated} == stated


def test_the_fastest_is_said_of_ranges_that_do_not_overlap():
    model, setup, gpu = (
        eb.model("llama-3.2-1b", code="reference"),
        eb.Setup(sequence=2048, precision="bf16-mixed"),
        eb.gpu("h100-80gb"),
    )
    one = Layout(model, setup, gpu, 0, {"arithmetic": 1.0, "attention": 0.0, "launch": 0.0, "idle": 0.0})
    others = [replace(one, terms=one.terms | {"arithmetic": seconds}) for seconds in (1.3, 1.4)]
    found = Layouts(model, setup, gpu, 0, [one, *others], 3, [], [], {})
    assert one.range == between(setup, one.terms) == MIXED
    assert between(setup.replace(sequence=2 * SHORT), one.terms) == LONG
    assert found.rivals == found.found[1:2] and "which of the first 2 is the fastest" in found._fastest()
    alone = replace(found, found=[found.found[0], found.found[2]])
    assert not alone.rivals and alone._fastest() == "the first is the fastest of those found"
    assert one.row()[-3] == "0.8–1.1 s" and one.as_dict()["range"] == list(MIXED)
