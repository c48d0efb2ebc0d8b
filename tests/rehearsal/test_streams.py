"""When a GPU has done what streams wait for: at once, or not before somebody waits. Blocks of another stream come back then."""

import pytest

from everybyte.rehearsal import rehearse_script

MIB = 2**20
#: Eight tensors that another stream has used, each freed before the next is made; then the script waits.
USED_ELSEWHERE = """
import torch
torch.ones(1, device="cuda")
side = torch.cuda.Stream()
def one():
    x = torch.ones(64 * 2**20, dtype=torch.uint8, device="cuda")
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        y = x + 1 if {works} else None
    x.record_stream(side)
for _ in range(8):
    one()
{wait}
for _ in range(8):
    one()
"""

#: A loop that asks again and again, and one that is told what it asks for.
ASKS = """
import torch
event, side = torch.cuda.Event(), torch.cuda.Stream()
x = torch.ones(1000, device="cuda")
event.record()
assert event.query() is {ready} and side.query()
while not event.query():
    pass
x += 1
event.record()
side.wait_event(event)
done = torch.cuda.Event()
done.record(side)
done.synchronize()
assert event.query()
"""

#: FSDP1, which hands blocks from stream to stream: rank 0 of 8.
FSDP = """
import torch, torch.distributed as dist
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, ShardingStrategy
from torch.distributed.fsdp.wrap import ModuleWrapPolicy
dist.init_process_group("nccl")
torch.cuda.set_device(0)
with torch.device("cuda"):
    net = torch.nn.Sequential(*(torch.nn.Linear(2048, 2048) for _ in range(6)))
net = FSDP(net, auto_wrap_policy=ModuleWrapPolicy([torch.nn.Linear]), limit_all_gathers=False, use_orig_params=True)
optimizer = torch.optim.SGD(net.parameters(), 0.1)
for _ in range(3):
    net(torch.ones(4, 2048, device="cuda")).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
dist.destroy_process_group()
"""


def run(tmp_path, text, **more):
    (tmp_path / "train.py").write_text(text)
    found = rehearse_script(["python", str(tmp_path / "train.py")], quiet=True, **more)
    assert found.status == 0, str(found)
    return found


def reserved(found):
    return found.processes[0]["devices"][0]["reserved"]


def test_blocks_come_back_early_or_late(here, tmp_path):
    text = USED_ELSEWHERE.format(works=True, wait="torch.cuda.synchronize()")
    early = run(tmp_path, text)
    assert reserved(early) == 2 * MIB + 128 * MIB and "--streams late for the other end" in str(early)
    late = run(tmp_path, text, streams="both")
    assert reserved(late) == 2 * MIB + 9 * 64 * MIB  # x of eight, and y, which its own stream takes again
    assert late.reserved == (reserved(early), reserved(late)) == late.as_dict()["reserved"]
    assert "reserved at least" in str(late) and "for the other end" not in str(late)


def test_a_stream_that_has_nothing_to_do_keeps_no_block(here, tmp_path):
    text = USED_ELSEWHERE.format(works=False, wait="").replace(
        "    side.wait_stream(torch.cuda.current_stream())\n", ""
    )
    assert reserved(run(tmp_path, text, streams="late")) == 2 * MIB + 64 * MIB


@pytest.mark.parametrize(("streams", "ready"), [("early", True), ("late", False)])
def test_who_asks_again_and_again_is_answered(here, tmp_path, streams, ready):
    found = run(tmp_path, ASKS.format(ready=ready), streams=streams)
    assert found.streams_differ


def test_what_waits_for_nothing_is_rehearsed_once(here, tmp_path):
    found = run(tmp_path, "import torch\ntorch.ones(9, device='cuda').sum().item()", streams="both")
    assert found.streams == "early" and found.early is None and "streams wait" not in str(found)


def test_fsdp_s_gathers_are_freed_late(here, tmp_path):
    found = run(tmp_path, FSDP, gpus=8, alone=True, streams="both")
    least, most = found.reserved
    assert least < most <= least + 3 * 6 * 2048 * 2048 * 4 * 2


def test_a_way_that_is_none(here):
    with pytest.raises(ValueError, match="rehearse.streams: 'never'"):
        rehearse_script(["python", "x"], streams="never")
