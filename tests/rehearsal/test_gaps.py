"""What scripts ask for in a rehearsal, explained from what was predicted of them, or from the same script without a switch."""

from functools import cache
from pathlib import Path

import pytest

import everybyte as eb
from everybyte.rehearsal import rehearse_script

SCRIPTS = Path(__file__).parent / "scripts"
TINY = {
    "hidden_size": 128,
    "intermediate_size": 352,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "vocab_size": 20_003,
}
LLAMA = (
    "llama 4 256 8 0 hidden_size=1024 intermediate_size=2816 num_hidden_layers=3 num_attention_heads=16 num_key_value_heads=4 "
    "vocab_size=32003"
)
MIXED = eb.Setup(precision="bf16-mixed")
LORA = eb.Setup(
    batch=4, sequence=1024, precision="bf16", adapters=eb.Lora(rank=16), checkpointing="full", clip="foreach"
)


def counted(setup):
    from transformers import LlamaConfig

    return eb.dry_run(LlamaConfig(**TINY, use_cache=False), setup.replace(batch=4, sequence=128))


def qlora():
    """As `qlora.py` loads it: codes as numbers in bf16, adapters in fp32, each layer a unit of FSDP2."""
    import torch
    from transformers import LlamaConfig

    sizes = TINY | {"num_hidden_layers": 3, "num_key_value_heads": 2, "dtype": torch.bfloat16}
    setup = eb.Setup(
        batch=2, sequence=256, precision="bf16", adapters=eb.Lora(8), quantization="nf4", checkpointing="full",
        sharding="zero3", gpus=2,
    )  # fmt: skip
    return eb.dry_run(LlamaConfig(**sizes, use_cache=False), setup)


def gpt2(**setup):
    return eb.budget(eb.model("gpt2", code="transformers"), MIXED.replace(**setup))


def own():
    """The book's own Llama of the same size, under autocast."""
    model = eb.Model(
        name="tiny", layers=2, width=128, heads=4, kv_heads=4, ffn_width=352, vocabulary=20_003, positions=2048, learned_positions=0,
        gated=True, activation="silu", norm="rmsnorm", norm_bias=False, qkv_bias=False, out_bias=False, ffn_bias=False, tied=False,
    )  # fmt: skip
    return eb.budget(model, MIXED.replace(batch=4, sequence=128, zero_grad="backward", outputs="kept", clip="foreach"))


#: Name -> (what is predicted, or the words of the script without a switch; the words of the script; by how many bytes of tensors it
#: may be off, or words of one of its two largest terms).
PAIRS = {
    "Trainer": (lambda: gpt2(batch=4, sequence=512, loop="trainer", optimizer_impl="fused", checkpointing="full"), "trainer.py FOLDER", 0),
    "accelerate": (lambda: counted(MIXED.replace(loop="accelerate", accumulation=2)), "loops.py FOLDER accelerate 2 bf16", 64),
    "torchtitan's loop": (
        lambda: counted(eb.Setup(precision="bf16", loop="torchtitan", accumulation=2)), "loops.py FOLDER torchtitan 2", 64,
    ),
    "8 bit": (lambda: counted(MIXED.replace(loop="trainer", optimizer="adamw8bit")), "loops.py FOLDER trainer 1 bf16 adamw_bnb_8bit", 64),
    "8 bit, switched": ("loops.py FOLDER trainer 1 bf16", "loops.py FOLDER trainer 1 bf16 adamw_bnb_8bit", ["optimizer"]),
    "LoRA": (lambda: eb.budget(eb.model("llama-3.2-1b"), LORA), "lora.py", 2**16),
    "QLoRA under FSDP2": (qlora, "2 qlora.py FOLDER/checkpoint", 0),
    "checkpointing": (
        "causal_lm.py gpt2 --batch 4 --length 512 --on cuda", "causal_lm.py gpt2 --batch 4 --length 512 --on cuda --checkpointing",
        ["modeling_gpt2.py", "activations"],
    ),
    "FSDP2 on more GPUs": ("4 fsdp2.py debug 2 512", "8 fsdp2.py debug 2 512", ["optimizer", "parameters"]),
    "autocast": ("nanogpt.py FOLDER --n_layer=4 --dtype=float32", "nanogpt.py FOLDER --n_layer=4", ["activations", "loss", "gradients"]),
    "compiled": ("nanogpt.py FOLDER --n_layer=4", "nanogpt.py FOLDER --n_layer=4 --compile=True", ["nanogpt.py"]),
    "our own Llama, and theirs": (own, "loops.py FOLDER plain 1 bf16", ["loss_utils.py"]),
    "generation": (f"generate.py FOLDER/out {LLAMA.replace('256 8', '128 8')}", f"generate.py FOLDER/out {LLAMA}", ["generate.py"]),
}  # fmt: skip


@cache
def rehearsed(words, folder):
    """The snapshot of a script's rehearsal; of one that begins with a number, rank 0 of so many."""
    many, *rest = words.split() if words[0].isdigit() else (1, *words.split())
    (folder / words.partition(" ")[0]).mkdir(exist_ok=True)
    command = ["python", str(SCRIPTS / rest[0]), *(word.replace("FOLDER", str(folder)) for word in rest[1:])]
    out = folder / f"{abs(hash(words))}.pickle"
    steps = 0 if "generate" in words else 3
    found = rehearse_script(command, steps=steps, gpus=int(many), alone=int(many) > 1, snapshot=out, quiet=True)
    assert found.processes[0]["snapshot"], found.unknown
    return found


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("gaps")


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", PAIRS)
def test_a_script_is_explained_to_the_byte(here, folder, name):
    predicted, words, expected = PAIRS[name]
    before = predicted() if callable(predicted) else rehearsed(predicted, folder)
    after = rehearsed(words, folder)
    found = eb.explain(before, after)
    assert sum(row.bytes for row in found.rows) == found.difference
    assert found.seen == after.processes[0]["devices"][0]["reserved"]
    assert found.unexplained < 0.001 * found.seen
    tensors = [row for row in found.rows if row.stage == "tensors"]
    if isinstance(expected, int):
        assert sum(abs(row.bytes) for row in tensors) <= expected and found.matched > 100
    else:
        assert any(word in f"{row.what} {row.part}" for row in tensors[:2] for word in expected), found
