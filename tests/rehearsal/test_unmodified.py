"""Scripts as others write them (`scripts/`), unmodified, on a GPU that does nothing: what stays after a step, to the byte."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import everybyte as eb
from everybyte.rehearsal import rehearse_script

pytestmark = pytest.mark.usefixtures("flash")

SCRIPTS = Path(__file__).with_name("scripts")
#: cuBLAS's workspaces on Hopper, forward's thread's and backward's.
CUBLAS = 2 * 33_554_432
GPT2, LLAMA = (eb.model(name).parameters for name in ("gpt2", "llama-3.2-1b"))
#: LoRA of rank 16 on a Llama of 1B: two narrow matrices for each of a block's seven, in fp32.
LORA = 16 * 16 * (2048 + 2048 + 2 * (2048 + 512) + 2048 + 2048 + 3 * (2048 + 8192))
#: The FSDP script's small Llama, whose every dimension 8 divides.
SMALL, TENSORS = 2 * 2048 * 256 + 4 * (2 * 256**2 + 2 * 256 * 64 + 3 * 256 * 768 + 2 * 256) + 256, 4 * 9 + 3
#: Tokens and targets of int64, and the loss.
STATES, BATCH, LOSS = 16, 16, 4
#: A Llama's rotary speeds of Hugging Face's, 32 of them, twice.
TURNS = 2 * 32 * 4

#: Script, its arguments, how it is rehearsed, the environment's packages, requested bytes after a step.
CASES = {
    "FSDP2, alone": (
        "fsdp2.py debug 2 512 gloo", {"gpus": 8, "alone": True}, "",
        STATES * SMALL // 8 + 4 * TENSORS + 8 * 2 * 513 + 2 * LOSS,
    ),
    "run_clm, GPT-2": (
        "causal_lm.py gpt2 --attention eager --on cuda", {"gpu": "a100-80gb"}, "transformers accelerate",
        STATES * GPT2 + 8 * 1024 * BATCH + LOSS - CUBLAS + 2 * eb.gpu("a100-80gb").cublas_workspace,
    ),
    "run_clm, Llama 1B": (
        "causal_lm.py llama-1b --on cuda --batch 2 --accumulation 2 --checkpointing", {}, "transformers accelerate",
        STATES * LLAMA + 2 * 1024 * BATCH + LOSS + TURNS,
    ),
    "LoRA": (
        "lora.py", {}, "transformers peft",
        # peft has the embedding's output require a gradient: both live on, and of tokens and labels the tokens
        2 * LLAMA + STATES * LORA + 2 * (2 * 4 * 1024 * 2048) + 8 * 4 * 1024 + LOSS + TURNS,
    ),
    "Trainer": (
        "trainer.py {folder}", {}, "transformers accelerate",
        # fused AdamW counts its steps on the GPU; 16 B are the trainer's own numbers: losses, a norm, a count of items
        STATES * GPT2 + 148 * 4 + 4 * 512 * BATCH + 16,
    ),
}  # fmt: skip


ALL = pytest.mark.thorough("it takes half a minute")


@pytest.fixture
def packages(here):
    """Skips where the environment of rehearsals has not what a script needs."""

    def needs(names):
        for name in names.split():
            if not list(here.folder.glob(f"lib/python3.*/site-packages/{name}")):
                pytest.skip(f"{name} is not in {here.folder.name}: {here.folder.name}/bin/pip install {names}")

    return needs


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", CASES)
def test_what_stays_after_a_step_is_known_to_the_byte(here, packages, tmp_path, capfd, name):
    words, options, needs, stays = CASES[name]
    packages(needs)
    script, *arguments = words.format(folder=tmp_path).split()
    found = rehearse_script(["python", str(SCRIPTS / script), *arguments], **options)
    ((process,), (device,)) = found.processes, found.processes[0]["devices"]
    assert found.status == 0 and not found.oom and process["steps"] > 2, capfd.readouterr().err[-2000:]
    assert device["phases"]["after_step"] == stays + CUBLAS
    assert device["peak"]["line"].startswith(str(SCRIPTS / script)) and device["peak"]["at"] in ("forward", "backward")
    assert device["requested"] == device["peak"]["live"] > stays + CUBLAS
    if name != "LoRA":  # whatever prints its loss has read a zero, and is told so
        assert process["reads"] and " the script read from the GPU what no kernel had written: zeros" in str(found)


def test_a_gpt_of_somebody_else_s_is_the_formula(here, tmp_path):
    """The peak of a nanoGPT-like script: the book's formula, the logits that its caller keeps, the next batch, a divided loss."""
    model = eb.Model(name="x", layers=2, width=256, heads=4, vocabulary=5003, positions=512)
    setup = eb.Setup(batch=4, sequence=512, precision="bf16-mixed")
    sizes = "--n_layer=2 --n_head=4 --n_embd=256 --vocab_size=5003 --batch_size=4 --block_size=512".split()
    found = rehearse_script(["python", str(SCRIPTS / "nanogpt.py"), str(tmp_path), *sizes])
    predicted, more = eb.budget(model, setup), setup.batch * setup.sequence * (2 * model.vocabulary + BATCH)
    assert predicted.peak_at == "loss backward"
    assert found.peak == predicted.peak + CUBLAS + more + LOSS
    (device,) = found.processes[0]["devices"]
    assert device["phases"]["after_step"] == STATES * model.parameters + CUBLAS + more + LOSS


@ALL
def test_fsdp_by_torchrun_and_alone_say_the_same(here):
    script = [str(SCRIPTS / "fsdp2.py"), "debug", "2", "512"]
    together = rehearse_script(["torchrun", "--nproc-per-node=2", *script], gpus=2, quiet=True)
    alone = rehearse_script(["python", *script], gpus=2, alone=True, quiet=True)
    assert together.status == alone.status == 0 and [p["rank"] for p in together.processes] == [0, 1]
    seen = [(d["requested"], d["allocated"], d["phases"]) for p in together.processes for d in p["devices"]]
    (mine,) = alone.processes[0]["devices"]
    assert seen == 2 * [(mine["requested"], mine["allocated"], mine["phases"])]


@ALL
def test_what_no_host_could_hold_is_made_on_meta(here):
    """70 billion parameters on 64 GPUs, the first of them, in a process of a few GiB."""
    command = ["python", str(SCRIPTS / "fsdp2.py"), "70b", "1", "4096"]
    found = rehearse_script(command, "h100-80gb", gpus=64, alone=True, quiet=True)
    assert found.status == 0 and 16 * 70e9 / 64 < found.peak < 31e9


def test_who_is_ended_ends_its_script(here, tmp_path):
    code = "import os, time, torch\ntorch.ones(1, device='cuda')\nopen('pid', 'w').write(str(os.getpid()))\ntime.sleep(600)\n"
    (tmp_path / "sleeps.py").write_text(code)
    command = [sys.executable, "-m", "everybyte_command", "rehearse", "--", "python", "sleeps.py"]
    process = subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.DEVNULL)
    try:
        until = time.monotonic() + 60
        while not (tmp_path / "pid").exists() or not (tmp_path / "pid").read_text():
            assert time.monotonic() < until and process.poll() is None
            time.sleep(0.1)
        child = int((tmp_path / "pid").read_text())
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 128 + signal.SIGTERM
        with pytest.raises(ProcessLookupError):
            os.kill(child, 0)
    finally:
        process.kill()
        process.wait()
