"""Chapter 26's explorer: bytes and seconds are the registered formulas', wherever its controls go."""

import random
import re
from math import ceil

import pytest

import everybyte as eb
from everybyte import explore
from everybyte.answers.work import matrix_flops
from everybyte.ask.choices import PRECISIONS
from everybyte.explore.controls import cards, gpus_label
from everybyte.explore.curves import GPUS, STAGES

MODELS = ("llama-3.2-1b", "llama-3.1-8b", "tinyllama-1.1b", "qwen2.5-7b", "gpt2", "gpt2-large", "gpt2-nobias")
NAMED = [p for p in PRECISIONS if PRECISIONS[p].compute == "bf16"]


def tenths(amount, rate):
    """Seconds, rounded up to a tenth of a millisecond."""
    return ceil(10_000 * amount / rate) / 10_000


@pytest.fixture(scope="module")
def explorer():
    return explore.offloading()


def state(explorer, setup, model, gpu):
    labels = {
        "model": model.name,
        "precision": setup.precision,
        "stage": STAGES[setup.sharding],
        "checkpointing": "full checkpointing" if setup.segment else "(no checkpointing)",
        "gpus": gpus_label(setup.gpus),
        "batch": f"{setup.batch:,}",
        "gpu": gpu.name,
    }
    return {name: list(explorer._controls[name].options).index(label) for name, label in labels.items()}


@pytest.mark.parametrize("precision", NAMED)
def test_the_curves_are_the_book_s(explorer, precision):
    chance = random.Random(precision)
    for _ in range(25):
        model = eb.model(chance.choice(MODELS), code="reference")
        gpu = chance.choice(list(cards().values()))
        setup = eb.Setup(
            batch=2 ** chance.randint(0, 8), precision=precision, sharding=chance.choice(list(STAGES)), offload="cpu",
            gpus=chance.choice(GPUS), checkpointing=chance.choice(("none", "full")),
        )  # fmt: skip
        values = explorer.values(state(explorer, setup, model, gpu))
        up, down = (eb.formula(f"fsdp.{way}").at(model, setup) for way in ("to_gpu", "to_host"))
        assert (values["bytes up"], values["bytes down"]) == (up, down)
        done = {"flops.forward": 1, "flops.backward": 1, "checkpoint.flops": 1, "flops.masked": -1}
        products = sum(sign * eb.formula(name).at(model, setup) for name, sign in done.items())
        assert products == matrix_flops(model, setup)
        drawn = {label: explorer.kind._over(q, values) for _, label, q in explorer.kind.curves}
        found = {label: ys[setup.batch.bit_length() - 1] for label, ys in drawn.items()}
        assert found == pytest.approx(
            {
                "weights, up": tenths(up, gpu.host_link),
                "gradients, down": tenths(down, gpu.host_link),
                "arithmetic": tenths(products, gpu.bf16_flops),
            },
            rel=1e-12,
        )


def seconds(explorer, preset):
    said = explorer.describe(explorer.state | explorer.presets[preset])
    return [float(x) for x in re.findall(r" ([\d.]+) s\b", said)]


@pytest.mark.parametrize(
    ("preset", "hidden"),
    [("Reset", False), ("the bus is hidden", True), ("the same, nothing recomputed", True), ("on 8 GPUs", True), ("a slower GPU", True)],
)  # fmt: skip
def test_the_presets_are_what_they_are_called(explorer, preset, hidden):
    up, down, arithmetic = seconds(explorer, preset)
    assert (arithmetic > max(up, down)) == hidden


@pytest.mark.parametrize("name", ("llama-3.2-1b", "llama-3.1-8b"))
@pytest.mark.parametrize("checkpointing", ("none", "full"))
def test_what_a_llama_s_step_moves_is_what_the_dry_run_counts(explorer, name, checkpointing):
    model, gpu = eb.model(name, code="reference"), eb.gpu("h100-80gb")
    setup = eb.Setup(
        precision="bf16-mixed", batch=1, sequence=1024, sharding="zero3", offload="cpu", checkpointing=checkpointing
    )
    values = explorer.values(state(explorer, setup, model, gpu))
    copies = [a for a in eb.dry_run(model, setup).allocations if a.operation == "clone" and a.birth]
    copies = [a for a in copies if a.host or a.part == "communication"]
    moved = [sum(a.bytes for a in copies if a.host is host) for host in (False, True)]
    assert [values["bytes up"], values["bytes down"]] == moved


def test_it_opens_on_llama_and_no_preset_loses_the_model_that_it_is_given(explorer):
    assert explorer.describe().startswith("llama-3.1-8b, bf16-mixed, ZeRO-3, full checkpointing, 1 GPU, h100-80gb, ")
    own = eb.model("llama-3.2-1b", code="reference").replace(name="own", layers=4)
    for model in (own, eb.model("llama-3.2-1b", code="reference"), eb.model("gpt2-xl", code="reference")):
        opened = explore.offloading(model)
        for preset in opened.presets.values():
            assert opened.describe(opened.state | preset).startswith(f"{model.name}, ")


def test_what_it_does_not_cover_is_refused():
    for arguments, said in (
        ((eb.model("llama-3.1-8b"),), r"Model\.code: 'transformers' of llama-3\.1-8b is not the book's"),
        ((eb.model("mixtral-8x7b", code="reference"),), r"Model\.experts: 8 of mixtral-8x7b"),
        ((eb.model("gemma-2b", code="reference"),), r"Model\.norm_offset: True of gemma-2b"),
        ((None, eb.Setup(sharding="zero1")), "offloading.setup.sharding: 'zero1'"),
        ((None, eb.Setup(sharding="zero3", sequence=512)), "offloading.setup.sequence: 512"),
        ((None, eb.Setup(sharding="zero3", checkpointing="selective")), "offloading.setup.checkpointing: 'selective'"),
        ((None, eb.Setup(sharding="zero3", precision="bf16", gpus=16)), "gpus: '16 GPUs' is unknown"),
        ((None, eb.Setup(sharding="zero3")), "precision: 'fp32' is unknown"),
    ):
        with pytest.raises(ValueError, match=said):
            explore.offloading(*arguments)
