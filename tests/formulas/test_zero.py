"""ZeRO by one formula: the paper's own cells, its limits, and what the dry run of rank 0 holds."""

import pytest
import sympy

import everybyte as eb
from everybyte.ask.choices import SHARDINGS
from everybyte.formulas import formula, symbols

PAPER = eb.Setup(precision="bf16-master", sequence=1024, batch=1)
#: GB on each GPU in table 1 of the ZeRO paper, by parameters and GPUs: stages 1, 2, 3.
TABLE = {
    (7_500_000_000, 4): (52.5, 41.3, 30),
    (7_500_000_000, 64): (31.4, 16.6, 1.88),
    (7_500_000_000, 1024): (30.1, 15.1, 0.12),
    (128_000_000_000, 64): (536, 284, 32),
}


def states(stage, gpus, name="states", **values):
    setup = PAPER.replace(sharding=stage, gpus=gpus)
    return formula(f"zero.{name}").at(eb.model("gpt2"), setup, **values)


@pytest.mark.parametrize(("cell", "stated"), TABLE.items())
def test_the_paper_s_table(cell, stated):
    parameters, gpus = cell
    for stage, gigabytes in zip(SHARDINGS[1:], stated, strict=True):
        digits = len(str(gigabytes).partition(".")[2])
        # Half up: the paper has 41.3 for 41.25.
        computed = sympy.Rational(states(stage, gpus, parameters=parameters), 10**9)
        assert sympy.floor(computed * 10**digits + sympy.Rational(1, 2)) / 10**digits == sympy.Rational(str(gigabytes))


@pytest.mark.parametrize("stage", SHARDINGS)
def test_one_gpu_holds_everything_and_sends_nothing(stage):
    setup = PAPER.replace(sharding=stage)
    model = eb.model("gpt2")
    whole = sum(formula(name).at(model, setup) for name in ("weights", "gradients", "optimizer"))
    assert formula("zero.states").at(model, setup) == whole == 16 * model.parameters
    assert formula("zero.sent").at(model, setup) == 0


@pytest.mark.parametrize(("stage", "times"), [("none", 2), ("zero1", 2), ("zero2", 2), ("zero3", 3)])
def test_with_many_gpus_each_sends_twice_the_parameters_or_three_times(stage, times):
    numbers = formula("zero.sent.numbers").given(
        sharded_optimizer=int(stage != "none"), sharded_weights=int(stage == "zero3")
    )
    smooth = numbers.replace(sympy.ceiling, lambda x: x)  # padding aside
    assert sympy.limit(smooth, symbols.G, sympy.oo) == times * symbols.P
    assert states(stage, 1024, "sent") == 2 * states(stage, 1024, "sent.numbers")  # all in 16 bits


def test_bytes_sent_are_by_type():
    """Under autocast DDP averages fp32 gradients; ZeRO-3 gathers bf16 and reduces fp32; ZeRO-1 gathers fp32."""
    model, gpus = eb.model("gpt2"), 64
    setups = {s: PAPER.replace(precision="bf16-mixed", sharding=s, gpus=gpus) for s in SHARDINGS}
    each = 63 * model.parameters // 64
    sent = {s: formula("zero.sent").at(model, setup) / each for s, setup in setups.items()}
    assert sent == {"none": 8, "zero1": 8, "zero2": 6, "zero3": 8}


@pytest.mark.parametrize("gpus", [2, 8, 64, 1024])
@pytest.mark.parametrize("precision", ["fp32", "bf16-mixed", "bf16-master"])
def test_ddp_and_zero1_are_the_dry_run_s(gpus, precision):
    model = eb.Model(name="odd", layers=2, width=20, heads=5, vocabulary=331, positions=64)
    padding = -model.parameters % gpus
    for stage in ("none", "zero1"):
        setup = eb.Setup(batch=1, sequence=64, precision=precision, gpus=gpus, sharding=stage)
        counted = eb.dry_run(model, setup).parts_at("after_step")
        for part, name in (("parameters", "weights"), ("gradients", "gradients"), ("optimizer", "optimizer")):
            whole = stage == "zero1" and part != "optimizer"  # these buffers are padded to a multiple of the GPUs
            more = symbols.DTYPE_BYTES[setup.dtypes.weights] * padding if whole else 0
            assert counted[part] == formula(f"zero.{name}").at(model, setup) + more, (stage, part)


def test_zero3_is_the_budget_s_where_every_row_count_divides():
    model = eb.Model(name="even", layers=2, width=64, heads=4, vocabulary=256, positions=128)
    setup = eb.Setup(batch=1, sequence=64, precision="bf16-master", gpus=8, sharding="zero3")
    counted = eb.budget(model, setup).parts_at("after_step")
    assert counted["parameters"] + counted["gradients"] + counted["optimizer"] == formula("zero.states").at(
        model, setup
    )
