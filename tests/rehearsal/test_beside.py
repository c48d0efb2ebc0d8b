"""Scripts and kernels that a real H200 ran (`labs/records/scripts`): a rehearsal asks for the same bytes."""

import json
import sys
import time
from pathlib import Path

import kernel_shapes
import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools" / "beside"))
import cases  # noqa: E402
import run  # noqa: E402

RECORD = [json.loads(line) for line in (ROOT / "labs/records/scripts/h200.jsonl").read_text("utf-8").splitlines()]
GROUPS = ("scripts", "families", "kernels", "compiled", "later", "methods", "epochs", "phases", "trl", "pictures")
MEASURED = {line["name"]: line for line in RECORD if line["group"] in GROUPS}
CASES = {case["name"]: case for case in cases.cases(kernel_shapes.asked())}
#: cuBLASLt's workspace, which PyTorch 2.13 no longer has, for each thread that multiplies with a bias; what torchaudio, which was installed
#: there, puts on the GPU where its import is the default device's.
CUBLAS_LT, TORCHAUDIO = 2**20, 4
#: Not the same on both: no algorithm of cuDNN's is known here; nothing but the driver is asked; PyTorch 2.13 clips otherwise.
APART = (
    "convolutions",
    "outside",
    "rates",
    "attention",
    "run_clm gpt2",
    "nanogpt compiled",
)
#: Of transformers 5.24.0, which asks for so much more than 5.23.0, which was there.
NEWER = {
    "deepseek_v3 bf16,sdpa": 65_600,
    "deepseek_v2 bf16,sdpa": 65_536,
    "glm4_moe bf16,sdpa": 65_536,
    "kimi_linear bf16,sdpa": 3_245_568,
}
SAME = [name for name, line in MEASURED.items() if name not in APART and line["told"].get("end")]


def test_all_of_it_ran_on_one_gpu():
    assert len(RECORD) == 155 and {line["told"]["device"] for line in RECORD} == {"NVIDIA H200"}
    assert {line["told"]["versions"]["torch"].partition("+")[0] for line in RECORD} == {"2.11.0"}


@pytest.mark.parametrize("setting", ["", " expandable"])
def test_what_fits_ran_there_and_the_next_died(setting):
    """As `eb.fit` had said of each before."""
    ran = {line["name"]: not line["status"] for line in RECORD if line["group"] == "borders"}
    for name, (*_, default, expandable) in cases.BORDERS.items():
        most = expandable if setting else default
        said = [ran.get(f"{name}{setting} batch {batch}") for batch in (most, most + 1)]
        assert said[0] in (True, None) and said[1] in (False, None)
    assert sum(ran.values()) == 11 and len(ran) == 20


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", SAME)
def test_a_rehearsal_asks_for_what_the_gpu_was_asked_for(here, name):
    found = run.run(CASES[name], "h200", time.monotonic() + 300, None)
    if found["told"] is None or "ModuleNotFoundError" in (found["told"]["error"] or ""):
        pytest.skip(f"a package of {name} is not in {here.folder.name}")
    there, rehearsed = (line["told"]["end"]["requested_bytes"][1] for line in (MEASURED[name], found))
    if same_torch(found, name):
        assert there - rehearsed in (0, TORCHAUDIO)
    else:
        rehearsed -= NEWER.get(name, 0)
        assert there - rehearsed in {parts * CUBLAS_LT + other for parts in range(3) for other in (0, TORCHAUDIO)}


def test_kernels_take_there_what_they_take_in_a_rehearsal(here):
    found = run.run(CASES["kernels"], "h200", time.monotonic() + 300, None)
    answers = zip(
        kernel_shapes.asked(), MEASURED["kernels"]["printed"]["FOUND"], found["printed"]["FOUND"], strict=True
    )
    there = [(asked, a, b) for asked, a, b in answers if a is not None]
    other = [asked[:4] for asked, a, b in there if a != b]
    # PyTorch 2.13 sorts the tokens of so narrow a table in less
    assert len(there) == 91 and other == ([] if same_torch(found, "kernels") else 2 * [("embedding", 4609, 300, 16)])


def test_attention_is_chosen_and_kept_as_there(here):
    """Its backward too: but where the thread of backward had not let go of the gradients yet when they were counted."""
    found = run.run(CASES["attention"], "h200", time.monotonic() + 300, None)
    for there, rehearsed in zip(MEASURED["attention"]["printed"]["FOUND"], found["printed"]["FOUND"], strict=True):
        (kind, batch, heads, kv, length, width, _, dropout), *counted = there
        if dropout and not same_torch(found, "attention"):
            continue  # PyTorch 2.13 takes cuDNN's for none with dropout
        gradients = (2 if kind == "bfloat16" else 4) * batch * length * width * (heads + 2 * kv)
        assert counted[:3] == rehearsed[1:4]
        assert counted[3] - rehearsed[4] in (0, -gradients, gradients) or counted[0] == 0  # the math kernel's own order


def same_torch(found, name):
    here, there = (line["told"]["versions"]["torch"].partition("+")[0] for line in (found, MEASURED[name]))
    return here == there
