"""What ended scripts of others in a rehearsal once: each cause in a script of a few lines."""

import signal
import subprocess
import sys
import time

import pytest

from everybyte.rehearsal import rehearse_script

THOROUGH = pytest.mark.thorough("its processes take half a minute")

LOOKED_FOR_FIRST = """
import importlib.util
assert importlib.util.find_spec("torch") and importlib.util.find_spec("torch")
import torch
x = torch.ones(1000, device="cuda")
"""

ANSWERS = """
import torch
x, square = torch.ones(8, 4, device="cuda"), torch.ones(64, 64, device="cuda")
assert torch.isfinite(x).all() and torch.equal(x, x) and torch.allclose(x, x) and not torch.isnan(x).any()
torch.distributions.Normal(x, x).sample()
torch.distributions.Categorical(logits=x).log_prob(torch.zeros(8, device="cuda"))
for f in (torch.linalg.qr, torch.linalg.cholesky, torch.linalg.eigh, torch.linalg.svd, torch.linalg.inv, torch.linalg.eig):
    f(square)
torch.nn.init.orthogonal_(x)
torch.linalg.lstsq(x, x)
torch.sparse_coo_tensor([[0, 1], [1, 0]], [1.0, 2.0], (2, 2), check_invariants=False).cuda() @ torch.ones(2, 2, device="cuda")
"""

CUDNN = """
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention as attention
q = torch.ones(2, 4, 128, 64, device="cuda", dtype=torch.bfloat16, requires_grad=True)
with sdpa_kernel([SDPBackend.CUDNN_ATTENTION]):
    assert "Cudnn" in attention(q, q, q, is_causal=True).grad_fn.name()
with sdpa_kernel([SDPBackend.MATH]):
    assert "Cudnn" not in attention(q, q, q, is_causal=True).grad_fn.name()
# A mask beside fewer heads of keys, which flash and efficient attention do not take: the scores are not stored.
k, mask = q[:, :2], torch.ones(128, 128, dtype=torch.bool, device="cuda")
before = torch.cuda.memory_allocated()
found = attention(q, k, k, attn_mask=mask, enable_gqa=True)
assert "Cudnn" in found.grad_fn.name() and torch.cuda.memory_allocated() - before == 131072 + 4096 + 2 * 512 + 2 * 128 * 128  # the mask as numbers
found.sum().backward()
assert q.grad.stride() == q.stride()
torch.backends.cuda.enable_cudnn_sdp(True)
torch.backends.cudnn.enabled = True
with torch.backends.cudnn.flags(enabled=True):
    torch.nn.Conv2d(3, 3, 3).cuda()(torch.ones(1, 3, 8, 8, device="cuda"))
    torch.nn.LSTM(4, 4).cuda()(torch.ones(2, 2, 4, device="cuda"))
"""

STOPPED = """
import torch
from torch.utils.checkpoint import checkpoint
x = torch.ones(8, 4096, device="cuda", requires_grad=True)
checkpoint(lambda x: torch.dropout(x * 2, 0.1, True), x, use_reentrant=False).sum().backward()
# What ends the second forward is an exception that frees a tensor. PyTorch 2.11 loses it while it notes where: so that is not noted.
made = torch.ones(1000, device="cuda")
del made
event = torch.cuda.memory._snapshot()["device_traces"][0][-1]
assert event["action"] == "free_completed" and {frame["line"] for frame in event["frames"] if "train.py" in frame["filename"]} == {7}
"""

GENERATES = """
import torch
from transformers import GPT2Config, GPT2LMHeadModel
model = GPT2LMHeadModel(GPT2Config(n_layer=1, n_embd=64, n_head=2, vocab_size=100, n_positions=64, bos_token_id=0, eos_token_id=1)).cuda()
start = torch.ones(2, 4, dtype=torch.long, device="cuda")
for _ in range(2):
    for more in ({"do_sample": True}, {"num_beams": 2}):
        model.generate(start, max_new_tokens=5, pad_token_id=2, **more)
    assert model.generate(start, max_new_tokens=5, pad_token_id=2).shape == (2, 9)
"""

RANKS = """
import os, torch
import torch.distributed as dist
rank = int(os.environ["LOCAL_RANK"])
torch.cuda.set_device(rank)
dist.init_process_group("nccl")
told = torch.tensor([41 * (1 - rank), 7], device="cuda")
dist.broadcast(told, 0)
assert told.tolist() == [41, 7]
order = (torch.arange(1000) * (1 - rank)).cuda()  # as many numbers as a model has modules
dist.broadcast(order, 0)
assert order.tolist() == list(range(1000))
told = torch.tensor(5.0 * rank, device="cuda")
dist.broadcast(told, 1, group=dist.new_group([0, 1]), async_op=True).wait()
assert told.item() == 5.0
made = torch.ones(3, device="cuda") + 1
dist.broadcast(made, 0)
import torch.testing._internal.distributed.fake_pg
dist.new_group([0, 1], backend="fake")
net = torch.nn.Linear(8, 8).cuda()
optimizer = torch.optim.SGD(net.parameters(), 0.1)
net(torch.ones(2, 8, device="cuda")).sum().backward()
optimizer.step()
dist.destroy_process_group()
"""

MASKS = """
import torch
x, mask = torch.ones(1000, 256, device="cuda"), torch.rand(1000, device="cuda") > 0.5
(rows,) = torch.where(mask)
kept = x[mask]
assert int(mask.cpu().sum()) == len(kept) == len(rows) == mask.nonzero().shape[0] == len(x.masked_select(mask[:, None])) // 256
assert int(mask.sum()) == mask.sum().item() == len(kept) and x.sum().item() == 0
chunks = (mask.sum() / 64).ceil().to(torch.int64) * 64
assert list(range(0, chunks, 64)) == list(range(0, len(kept), 64)) and bool(mask.sum() == 0) == (len(kept) == 0)
half, whole = x[0, 0].half(), torch.ones((), device="cuda", dtype=torch.int32)
kinds = [(half * 0.5).dtype, (whole + 1).dtype, (whole / 2).dtype, (1 - whole).dtype, (whole * 0.5).dtype, (x[0].bool() * 2).dtype]
assert kinds == [torch.float16, torch.int32, torch.float32, torch.int32, torch.float32, torch.int64]
"""

ENDLESS = """
import torch
x = torch.ones(1000, device="cuda")
open("started", "w").close()
while True:
    if x.sum() > 5:
        break
"""

SHARES = """
import torch, torch.multiprocessing as mp

def train(rank, net):
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    net(torch.ones(8, 256, device="cuda")).sum().backward()
    optimizer.step()

if __name__ == "__main__":
    net = torch.nn.Linear(256, 256).cuda()
    mp.set_start_method("spawn")
    mp.spawn(train, (net,), nprocs=1)
"""


@pytest.fixture
def script(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def written(text):
        (tmp_path / "train.py").write_text(text)
        return "train.py"

    return written


@pytest.mark.parametrize(
    "text",
    [
        LOOKED_FOR_FIRST,
        pytest.param(ANSWERS, id="answers"),
        pytest.param(CUDNN, id="cudnn"),
        pytest.param(STOPPED, id="stopped"),
    ],
)
def test_it_runs(here, script, text):
    found = rehearse_script(["python", script(text)], quiet=True)
    assert found.status == 0 and found.peak >= 4000 and not any("ended with" in said for said in found.unknown)


def test_what_is_generated_ends_by_its_length(here, script):
    if not list(here.folder.glob("lib/python3.*/site-packages/transformers")):
        pytest.skip(f"transformers is not in {here.folder.name}")
    found = rehearse_script(["python", script("import transformers\n" + GENERATES)], quiet=True)
    assert found.status == 0 and any("to their greatest length" in said for said in found.unknown)
    assert found.processes[0]["devices"][0]["stages"]["generation"] > 0


@THOROUGH
def test_small_broadcasts_arrive(here, script):
    found = rehearse_script(["torchrun", "--nproc-per-node=2", script(RANKS)], gpus=2, quiet=True)
    assert found.status == 0 and [process["steps"] for process in found.processes] == [1, 1]


@THOROUGH
def test_processes_share_a_gpu_s_memory(here, script):
    found = rehearse_script(["python", script(SHARES)], quiet=True)
    assert found.status == 0 and {process["steps"] for process in found.processes} == {0, 1}


def test_a_loop_that_waits_for_the_gpu_is_named_and_reported_when_it_is_ended(here, script, tmp_path):
    command = [
        sys.executable,
        "-c",
        "import sys; from everybyte.command import main; sys.exit(main())",
        "rehearse",
        "--",
        "python",
        script(ENDLESS),
    ]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as begun:
        while not (tmp_path / "started").exists():
            assert begun.poll() is None
            time.sleep(0.02)
        time.sleep(0.5)
        begun.send_signal(signal.SIGTERM)
        _, said = begun.communicate(timeout=60)
    assert begun.returncode == 128 + signal.SIGTERM and said.endswith("everybyte: ended by SIGTERM\n")
    assert "requested: the peak" in said and "zeros, most at train.py:6 (" in said
    assert "the script ended by SIGTERM at " in said and "train.py:6, after 0 optimizer steps" in said


@pytest.mark.parametrize(("rows", "said"), [(0.0, "no rows"), (0.25, "25% of the rows"), (1.0, "all rows")])
def test_how_many_rows_a_mask_finds_is_said_and_can_be(here, script, rows, said):
    found = rehearse_script(["python", script(MASKS)], quiet=True, rows=rows)
    assert (
        found.status == 0
        and f"- masks found {said} where data decide, at " in str(found)
        and f"train.py:4 (once, {int(1000 * rows):,} of 1,000)" in str(found)
        and "routers" not in str(found)
    )
    least = 1000 * 256 * 4 * (1 + 2 * rows)
    assert least < found.peak < least + 3 * 256 * 1000 * 8 * rows + 2**17


def test_the_error_that_ends_a_script_is_said_with_its_line(here, script):
    found = rehearse_script(["python", script(LOOKED_FOR_FIRST + "{}['loss']\n")], quiet=True)
    assert found.status == 1 and "train.py:6, after 0 optimizer steps" in str(found)
    assert "- the script ended with KeyError at " in str(found)
