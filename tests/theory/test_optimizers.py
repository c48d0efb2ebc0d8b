"""Optimizers whose states or temporaries have other sizes than the weights, held to their own code, byte for byte."""

import sys

import grid
import pytest
import torch
import torch.distributed as dist
import witnesses
from agreeing import agree
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard, _collective_utils, debug
from torch.testing._internal.distributed.fake_pg import FakeStore

import everybyte as eb
from everybyte.ask.choices import NOT_SHARDED, OPTIMIZERS, PRECISIONS
from everybyte.formulas import formula
from everybyte.reference.step import make_optimizer

GPT = eb.Model(name="a GPT", layers=4, width=80, heads=2, vocabulary=2001, positions=32, tied=False)
LLAMA = eb.model("llama-3.1-8b", code="reference").replace(
    layers=5, width=64, heads=4, kv_heads=2, vocabulary=101, ffn_width=176, head_width=16
)
MIXTRAL = eb.model("mixtral-8x7b", code="reference").replace(
    layers=2, width=64, heads=4, kv_heads=2, head_width=16, vocabulary=101, ffn_width=48, experts=4, expert_width=24
)
GEMMA = eb.model("gemma-2b", code="reference").replace(
    layers=2, width=64, heads=4, kv_heads=1, head_width=16, vocabulary=101, ffn_width=176
)
#: Of 9,000 numbers, all of its tensors small.
TINY = GPT.replace(name="a tiny GPT", layers=1, width=24, vocabulary=20)
#: torchao's have their own file: Inductor writes their step's code, for seconds each shape.
OTHERS = [
    (name, impl)
    for name, row in OPTIMIZERS.items()
    if not row.common and row.package != "torchao"
    for impl in row.impls
]


def needs(optimizer):
    if package := OPTIMIZERS[optimizer].package:
        pytest.importorskip(package.replace("-", "_"))


@pytest.mark.sampled(8)
@pytest.mark.parametrize(("optimizer", "impl"), OTHERS)
@pytest.mark.parametrize("precision", PRECISIONS)
def test_the_theory_is_the_optimizer_s_own_code(optimizer, impl, precision):
    needs(optimizer)
    setup = eb.Setup(batch=1, sequence=8, precision=precision, optimizer=optimizer, optimizer_impl=impl)
    for model in (GPT, LLAMA, MIXTRAL, GEMMA):
        assert not witnesses.disagreements(model, setup), model.name


@pytest.mark.parametrize("name", ["gpt2"])
@pytest.mark.parametrize("optimizer", ["adafactor", "muon", "paged-adamw8bit"])
def test_whole_models(name, optimizer):
    needs(optimizer)
    setup = eb.Setup(batch=1, sequence=128, precision="bf16-mixed", optimizer=optimizer, checkpointing="full")
    assert not witnesses.disagreements(eb.model(name, code="reference"), setup)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("start", range(0, 48, 2))
def test_any_share_to_the_byte(start):
    """ZeRO and FSDP, beside adapters, rings, experts and pipelines: the library's own step over its share."""
    pytest.importorskip("peft")
    agree(grid.lean, range(start, start + 2))


@pytest.mark.parametrize("sequence_parallel", [True, False])
def test_lion_beside_divided_matrices(sequence_parallel):
    """FSDP has each gradient divided as its weight is before Lion asks for it."""
    needs("lion")
    mesh = eb.Mesh(tensor=2, sequence_parallel=sequence_parallel)
    setup = eb.Setup(batch=1, sequence=8, precision="bf16", optimizer="lion", sharding="zero3", gpus=6, mesh=mesh)
    assert not witnesses.disagreements(LLAMA.replace(vocabulary=102), setup, rank=1)


@pytest.mark.parametrize(("gpus", "states"), [(1, "8-bit"), (2, "8-bit"), (3, "32-bit")])
def test_the_share_decides_whether_states_are_in_8_bits(gpus, states):
    """bitsandbytes asks each tensor that it is given for 4,096 numbers: under ZeRO-1 the share, whatever the weights are."""
    needs("adamw8bit")
    model = TINY
    setup = eb.Setup(batch=1, sequence=8, optimizer="adamw8bit", sharding="zero1", gpus=gpus)
    share = -(-model.parameters // gpus)
    kept = {"8-bit": 2 * share + 2 * 4 * -(-share // 256) + 2 * 256 * 4, "32-bit": 2 * 4 * share}[states]
    assert eb.budget(model, setup).moments["rest"]["optimizer"] == kept
    assert not witnesses.disagreements(model, setup)


def over_shares(optimizer, impl, fsdp, rows=8):
    """One update over real numbers: of a matrix and a vector the first of two shares, as FSDP has them, or one row as ZeRO-1 has."""
    dist.init_process_group("fake", rank=0, world_size=2, store=FakeStore())
    try:
        mesh, parameters = init_device_mesh("cpu", (2,)), []
        for shape in ((rows, 6), (rows,)) if fsdp else ((rows,),):
            weight, gradient = torch.randn(shape), torch.randn(shape)
            if fsdp:
                weight, gradient = (DTensor.from_local(x, mesh, [Shard(0)]) for x in (weight, gradient))
            parameters.append(torch.nn.Parameter(weight))
            parameters[-1].grad = gradient
        make_optimizer(eb.Setup(optimizer=optimizer, optimizer_impl=impl), [True, False][: len(parameters)])(
            parameters
        ).step()
    finally:
        dist.destroy_process_group()


OVER_SHARES = [(*case, fsdp) for case in OTHERS for fsdp in (True, False) if not OPTIMIZERS[case[0]].paged]


@pytest.mark.parametrize(("optimizer", "impl", "fsdp"), OVER_SHARES)
@pytest.mark.filterwarnings("ignore:Paged optimizers")
def test_what_is_refused_over_shares_raises_in_its_own_words(optimizer, impl, fsdp):
    """On real numbers, as PyTorch and bitsandbytes raise; what is derived runs, and so does Muon under FSDP."""
    needs(optimizer)
    asked = {"optimizer": optimizer, "optimizer_impl": impl, "sharding": "zero3" if fsdp else "zero1", "gpus": 2}
    why, said = NOT_SHARDED.get((OPTIMIZERS[optimizer].algorithm, fsdp), (None, ()))
    if why is None:
        eb.Setup(**asked)
    else:
        with pytest.raises(ValueError, match=r"^Setup\.optimizer: .* with sharding .*; allowed: sgd") as refusal:
            eb.Setup(**asked)
        assert all(repr(words) in str(refusal.value) for words in said)
    raised = []
    for rows in (8, 1024):
        try:
            over_shares(optimizer, impl, fsdp, rows)
        except (RuntimeError, NotImplementedError, ValueError) as error:
            raised.append(str(error))
    assert bool(raised) == bool(said) and all(any(words in text for text in raised) for words in said), raised


def collectives_of_muon(monkeypatch, width, in_machine):
    """What one step of Muon over an eighth of a square matrix asks of the other seven GPUs, where a machine has so many."""
    monkeypatch.setattr(_collective_utils._mesh_resources, "num_devices_per_host", lambda device: in_machine)
    _collective_utils.MeshTopoInfo.build_from_mesh.cache_clear()
    debug._clear_sharding_prop_cache()
    dist.init_process_group("fake", rank=0, world_size=8, store=FakeStore())
    try:
        mesh, share = init_device_mesh("cpu", (8,)), torch.randn(width // 8, width)
        weight, gradient = (DTensor.from_local(x, mesh, [Shard(0)]) for x in (share, share.clone()))
        parameter = torch.nn.Parameter(weight)
        parameter.grad = gradient
        with debug.CommDebugMode() as counted:
            torch.optim.Muon([parameter]).step()
    finally:
        dist.destroy_process_group()
        _collective_utils.MeshTopoInfo.build_from_mesh.cache_clear()
        debug._clear_sharding_prop_cache()
    return {operation.__name__: times for operation, times in counted.get_comm_counts().items()}


def test_what_muon_gathers_depends_on_sizes_and_on_machines(monkeypatch):
    """Why its step under FSDP is no formula of sizes: `DTensor` takes the cheapest way, by its own table of links."""
    small, large, between = ([collectives_of_muon(monkeypatch, n, m) for m in (1, 8)] for n in (256, 1024, 768))
    assert small[0] == small[1] != large[0] == large[1]
    assert between[0] == large[0] and between[1] == small[1]


#: Of GPT-2 124M, in fp32. Adafactor's factors, Muon's one state for each matrix of a block: torch's own; 8 bits: bitsandbytes'.
STATES = {"adafactor": 1_286_468, "adamw8bit": 253_494_680, "lion": 4 * 124_439_808}
STATES |= {"torchao-adamw8bit": 253_595_032, "adamw4bit": 133_065_520, "adamwfp8": 253_492_632}


@pytest.mark.parametrize("optimizer", STATES)
def test_states_of_gpt2(optimizer):
    assert (
        eb.budget(eb.model("gpt2"), eb.Setup(batch=1, optimizer=optimizer)).moments["rest"]["optimizer"]
        == STATES[optimizer]
    )


def test_paged_states_stand_on_neither_side_of_the_peak():
    """What is paged is told apart: no counter of the GPU's shows it."""
    usual, paged = (
        eb.budget(eb.model("gpt2"), eb.Setup(batch=1, optimizer=o)) for o in ("adamw8bit", "paged-adamw8bit")
    )
    assert not usual.host and paged.host["optimizer"] == 248_636_928
    assert usual.moments["rest"]["optimizer"] - paged.moments["rest"]["optimizer"] == paged.host["optimizer"]


@pytest.mark.parametrize("optimizer", [name for name, row in OPTIMIZERS.items() if not row.common])
def test_a_formula_of_whole_states_refuses_them(optimizer):
    with pytest.raises(ValueError, match=rf"^Setup\.optimizer: .*{optimizer!r}.*eb.budget"):
        formula("optimizer.states").at(eb.model("gpt2"), eb.Setup(optimizer=optimizer))


@pytest.mark.parametrize(
    ("optimizer", "package"),
    [
        ("adamw8bit", "bitsandbytes"),
        ("paged-adamw8bit", "bitsandbytes"),
        ("lion", "lion_pytorch"),
        ("adamwfp8", "torchao"),
    ],
)
def test_a_package_that_is_not_there_is_named(monkeypatch, optimizer, package):
    monkeypatch.setitem(sys.modules, package, None)
    missing = rf"^Setup\.optimizer: {optimizer!r} needs {package.replace('_', '.')}.*everybyte\[adapters\]"
    with pytest.raises(ValueError, match=missing):
        eb.dry_run(GPT, eb.Setup(batch=1, sequence=8, optimizer=optimizer))


@pytest.mark.parametrize("name", ["gpt2", "opt-1.3b", "llama-3.1-8b", "mixtral-8x7b"])
@pytest.mark.parametrize(
    "optimizer", ["lion", "adafactor", "muon", "adamw8bit", "torchao-adamw8bit", "adamw4bit", "adamwfp8"]
)
def test_the_named_formulas_are_the_theory_s(name, optimizer):
    model, each = eb.model(name, code="reference"), formula(f"states.{optimizer}")
    for precision in ("fp32", "bf16", "bf16-master"):
        setup = eb.Setup(batch=1, sequence=1, optimizer=optimizer, precision=precision)
        master = formula("optimizer.master")
        for rounding, said in ((1, (each, master)), (512, (each.rounded_up(), master.rounded_up()))):
            predicted = sum(f.at(model, setup, rounding=rounding) for f in said)
            assert predicted == eb.budget(model, setup, rounding).moments["rest"]["optimizer"]


def test_what_is_summed_alone_says_where():
    with pytest.raises(
        ValueError, match=r"^Setup\.optimizer: 'galore' is not derived: chapter 24 sums its states; allowed: sgd"
    ):
        eb.Setup(optimizer="galore")


def test_what_nothing_prices_still_fits_or_not():
    tight = eb.fit(eb.model("gpt2-xl"), eb.Setup(optimizer="muon"), eb.gpu("t4"))
    assert not tight.fits and tight.nearest_setup is None and tight.nearest_gpu
    assert eb.fit(eb.model("gpt2-xl"), eb.Setup(optimizer="adafactor"), eb.gpu("rtx-3090")).fits
