"""Training loops of others, rehearsed as they are: what they ask PyTorch's allocator for is what formula and dry run say of them."""

from pathlib import Path

import pytest

import everybyte as eb
from everybyte.rehearsal import rehearse, rehearse_script

pytestmark = pytest.mark.usefixtures("flash")

SCRIPTS = Path(__file__).with_name("scripts")
#: cuBLAS's workspaces on Hopper.
CUBLAS = 2 * 33_554_432
SMALL = eb.Model(name="small", layers=2, width=64, heads=2, vocabulary=1001, positions=64)
#: What `loops.py` trains.
LLAMA = eb.model("llama-3.1-8b", code="reference").replace(
    layers=2, width=128, heads=4, kv_heads=4, head_width=32, ffn_width=352, vocabulary=20_003, positions=2048, embedding_width=128,
    code="transformers",
)  # fmt: skip
#: Its loop, how many batches, whether under autocast -> what a setup says of it.
CASES = {
    "trainer 1": {"loop": "trainer", "optimizer_impl": "fused"},
    "trainer 2 bf16": {"loop": "trainer", "optimizer_impl": "fused"},
    "trainer 1 adamw_bnb_8bit": {"loop": "trainer", "optimizer": "adamw8bit"},  # embeddings' states have 32 bits
    "accelerate 1": {"loop": "accelerate"},
    "accelerate 2 bf16": {"loop": "accelerate"},
    "torchtitan 2": {"loop": "torchtitan"},
    "plain 1 bf16": {"outputs": "kept", "zero_grad": "backward", "clip": "foreach"},
}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", CASES)
def test_a_script_s_loop_is_the_formula_s(here, tmp_path, name):
    """`Trainer` and `Accelerator` themselves, and two loops as others write them."""
    if not list(here.folder.glob("lib/python3.*/site-packages/accelerate")):
        pytest.skip(f"accelerate is not in {here.folder.name}")
    loop, batches, *words = name.split()
    setup = eb.Setup(
        batch=4,
        sequence=128,
        precision="bf16-mixed" if "bf16" in words else "bf16",
        accumulation=int(batches),
        **CASES[name],
    )
    found = rehearse_script(
        ["python", str(SCRIPTS / "loops.py"), str(tmp_path), loop, batches, *words], steps=3, quiet=True
    )
    predicted, ((device,),) = eb.budget(LLAMA, setup), [process["devices"] for process in found.processes]
    assert found.peak - CUBLAS == predicted.peak
    for moment in ("after_backward", "after_step"):
        assert (
            abs(device["phases"][moment] - CUBLAS - predicted.phases[moment]) <= 8
        )  # a scalar or two, before or after


def test_a_gpt_in_nanogpt_s_loop(here, tmp_path):
    model = eb.Model(name="x", layers=2, width=256, heads=4, vocabulary=5003, positions=512)
    sizes = "--n_layer=2 --n_head=4 --n_embd=256 --vocab_size=5003 --batch_size=4 --block_size=512".split()
    found = rehearse_script(["python", str(SCRIPTS / "nanogpt.py"), str(tmp_path), *sizes], quiet=True)
    predicted = eb.budget(model, eb.Setup(batch=4, sequence=512, precision="bf16-mixed", loop="nanogpt"))
    assert predicted.peak_at == "loss backward" and found.peak - CUBLAS == predicted.peak


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    "changes",
    [
        {"loop": "nanogpt", "accumulation": 2, "optimizer": "sgd"},
        {"outputs": "kept", "zero_grad": "start", "clip": "foreach", "precision": "bf16", "optimizer": "sgd"},
        {"loop": "torchtitan", "gpus": 4, "sharding": "zero3", "optimizer": "sgd", "accumulation": 2},
    ],
    ids=str,
)
def test_the_book_s_step_in_a_loop_asks_for_what_is_counted(here, changes):
    setup = eb.Setup(batch=2, sequence=64, **{"precision": "bf16-mixed"} | changes)
    found, predicted = rehearse(SMALL, setup), eb.budget(SMALL, setup)
    assert found.requested - CUBLAS == predicted.peak
    assert {name: size - CUBLAS for name, size in found.phases.items()} == predicted.phases
