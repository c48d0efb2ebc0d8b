"""Whole numbers that a script brings from the CPU: what it computes of them decides sizes, and is read, as on a GPU."""

import json
import sys
import time
from pathlib import Path

import kernel_shapes
import pytest

from everybyte.rehearsal import place, rehearse_script

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools" / "beside"))
import cases  # noqa: E402
import run  # noqa: E402

RECORD = [json.loads(line) for line in (ROOT / "labs/records/scripts/h200.jsonl").read_text("utf-8").splitlines()]
MEASURED = {line["name"]: line for line in RECORD if line["group"] in ("pictures", "trl")}
#: Padded rows, pictures' sizes, positions, and parts that are written: what follows from them, and what does not.
BROUGHT = """
import torch
ids = torch.tensor([[1, 2, 3, 0, 0], [4, 5, 0, 0, 0]]).cuda()
mask, x = ids != 0, torch.randn(2, 5, 8, device="cuda")
assert x[mask].shape == (5, 8) and mask.sum().item() == 5 and not mask.all() and mask.cpu().sum() == 5
ids[:, 1] = 7
assert ids.tolist() == [[1, 7, 3, 0, 0], [4, 7, 0, 0, 0]]
grid = torch.tensor([[1, 28, 28]] * 2, device="cuda")
assert (grid.prod(-1) // 4).tolist() == [196, 196] and max(grid[0][1], grid[0][2]) // 2 == 14
assert torch.arange(grid.prod(-1).sum(), device="cuda").shape == (1568,)
places = torch.zeros(3, 2, 5, dtype=torch.int64, device="cuda")
places[:, 0, mask[0]] = torch.arange(3, device="cuda").view(1, -1).expand(3, -1) + grid[0, 0]
assert places[0, 0].tolist() == [1, 2, 3, 0, 0]
own = torch.empty(4, dtype=torch.int64, device="cuda")
own.copy_(torch.arange(4))
own[1:3].copy_(torch.tensor([8, 8]))
assert own.tolist() == [0, 8, 8, 3] and int(own.argmax()) == 1
unknown = torch.randint(5, (3,), device="cuda")
unknown[0] = 7
assert unknown.tolist() == [0, 0, 0] and len((unknown == 7).nonzero()) == 3  # of a part alone nothing is known
own.neg_()  # not followed
assert own.tolist() == [0, 0, 0, 0]
blank = torch.zeros(4, dtype=torch.bool, device="cuda")
assert len(blank.nonzero()) == 4  # a kernel may have written it
"""

#: A constant beside what is known: until a kernel of Triton's was given it.
WRITTEN = """
import torch, triton
import triton.language as tl

@triton.jit
def count(counts, ids):
    tl.store(counts + tl.program_id(0), tl.load(ids))

ids = torch.tensor([1, 2, 3]).cuda()
counts = torch.full((3,), 4, device="cuda")
assert (counts + ids).tolist() == [5, 6, 7]
count[(3,)](counts, ids)
assert ids.tolist() == [1, 2, 3] and (counts + ids).tolist() == [0, 0, 0]
"""

#: What ranks exchange is not what one of them had.
EXCHANGED = """
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
dist.init_process_group("nccl")
count, other = torch.tensor([3]).cuda(), torch.tensor([3]).cuda()
dist.all_reduce(count)
assert count.tolist() == [0] and other.tolist() == [3]
assert functional.all_reduce(other, "sum", dist.group.WORLD).tolist() == [0] and other.tolist() == [3]
"""

#: Hugging Face's models read off positions which rows pack several sequences, and off masks which are padded.
PACKED = """
import torch
from transformers import LlamaConfig, LlamaForCausalLM
model = LlamaForCausalLM(LlamaConfig(vocab_size=100, hidden_size=64, intermediate_size=64, num_hidden_layers=1, num_attention_heads=4)).cuda()
x = torch.zeros(1, 256, dtype=torch.int64, device="cuda")
one, two = torch.arange(256)[None].cuda(), torch.arange(128).repeat(2)[None].cuda()

def asked(**more):
    before = torch.cuda.memory_stats()["allocation.all.allocated"]
    model(input_ids=x, use_cache=False, **more)
    return torch.cuda.memory_stats()["allocation.all.allocated"] - before

asked(position_ids=one)
whole = asked(position_ids=one)
assert asked(position_ids=two) > whole + 5, (asked(position_ids=two), whole)
full, padded = torch.ones(1, 256, dtype=torch.int64), torch.ones(1, 256, dtype=torch.int64)
padded[0, 200:] = 0
full, padded = full.cuda(), padded.cuda()
assert asked(attention_mask=padded) > asked(attention_mask=full) + 2, (asked(attention_mask=padded), asked(attention_mask=full))
"""


def test_what_is_brought_is_known(here, script):
    found = rehearse_script(["python", script(BROUGHT)], quiet=True)
    assert found.status == 0, str(found)
    (said,) = (text for text in found.unknown if text.startswith("whole numbers that the script brings"))
    assert "train.py:5 (" in said and "routers" not in str(found)
    (masks,) = (text for text in found.unknown if text.startswith("masks found"))
    assert "train.py:5 " not in masks


def test_what_a_kernel_may_have_written_is_not(here, script):
    if not (place.site_packages(here.folder) / "triton" / "__init__.py").exists():
        pytest.skip("Triton is not there: everybyte rehearse --set-up")
    found = rehearse_script(["python", script(WRITTEN)], quiet=True)
    assert found.status == 0, str(found)


def test_what_ranks_exchange_is_not(here, script):
    found = rehearse_script(["python", script(EXCHANGED)], gpus=2, alone=True, quiet=True)
    assert found.status == 0, str(found)


def test_packed_and_padded_rows_are_seen(here, script):
    found = rehearse_script(["python", script(PACKED)], quiet=True)
    assert found.status == 0, str(found)


@pytest.mark.parametrize("name", ["pictures ,full", "sft dft"])
def test_a_gpu_was_asked_for_the_same(here, name):
    case = next(case for case in cases.cases(kernel_shapes.asked()) if case["name"] == name)
    packages = ("transformers", "trl", "datasets") if name.startswith("sft") else ("transformers",)
    if missing := [one for one in packages if not (place.site_packages(here.folder) / one).exists()]:
        pytest.skip(f"{here.folder.name} has no {', '.join(missing)}")
    found = run.run(case, "h200", time.monotonic() + 300, None)
    there, rehearsed = (line["told"]["end"]["requested_bytes"][1] for line in (MEASURED[name], found))
    same = found["told"]["versions"]["torch"].startswith("2.11")
    assert there - rehearsed in {
        0,
        *([] if same else [2**20, 2 * 2**20]),
    }  # cuBLASLt's workspace, which later ones have not


#: Gradients of one tensor, from four places: autograd adds them in place to the first, where nobody else has seen it.
ADDED = """
import sys
import torch
if "brought" in sys.argv:
    assert torch.tensor([1, 2]).cuda().sum().item() == 3
x = torch.randn(1024, 1024, device="cuda", requires_grad=True)
w = x * 2
sum((w.to(torch.bfloat16) * w.to(torch.bfloat16)).exp().sum() for _ in range(4)).backward()
"""


@pytest.mark.parametrize("brought", [[], ["brought"]])
def test_gradients_are_added_in_place_as_without_it(here, tmp_path, brought):
    (tmp_path / "train.py").write_text(ADDED, encoding="utf-8")
    found = rehearse_script(["python", str(tmp_path / "train.py"), *brought], "h200", steps=0, folder=here.folder)
    assert found.peak == 9 * 2**22 + 4
