"""How a script is followed: to whom its memory belongs, what ran at its peak, in which phase it failed, and where it ends."""

import pytest

from everybyte.rehearsal import rehearse_script, reports
from everybyte.rehearsal.script import PACKAGE

MIB = 2**20
WORKSPACE = 33_554_432
TRAIN = """
import sys, torch
from torch import nn
from torch.utils.checkpoint import checkpoint

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(1024, 1024, bias=False), nn.Linear(1024, 1024, bias=False)
        self.register_buffer("table", torch.zeros(256, 1024))
    def forward(self, x):
        x = checkpoint(self.first, x, use_reentrant=False) if "checkpoint" in sys.argv else self.first(x)
        x = torch.tanh(x)
        return torch.exp(self.last(x))

net = Net().cuda()
net.last.requires_grad_("frozen" not in sys.argv)
optimizer = torch.optim.AdamW([weight for weight in net.parameters() if weight.requires_grad])
for step in range(int(sys.argv[1])):
    net(torch.ones(8192, 1024, device="cuda")).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    print("step", step, "done")
if "evaluate" in sys.argv:
    net(torch.ones(8192, 1024, device="cuda"))
    print("evaluated")
print("the end")
"""


@pytest.fixture
def rehearsed(here, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def run(text, *words, **more):
        (tmp_path / "train.py").write_text(text)
        return rehearse_script(["python", "train.py", *map(str, words)], **more)

    return run


def test_parts_belong_to_their_owners_and_sum_to_the_peak(rehearsed):
    found = rehearsed(TRAIN, 3, quiet=True)
    parts = found.as_dict()["parts"]
    assert sum(parts.values()) == found.peak
    # Two matrices of 4 MiB with two states each, and steps' numbers. At the peak backward has exp's gradient, has freed what exp saved, and
    # makes the gradients of the product; the input and tanh's result are saved.
    assert parts["parameters"] == 8 * MIB and parts["buffers"] == MIB and parts["workspace"] == 2 * WORKSPACE
    assert parts["optimizer"] in range(16 * MIB, 16 * MIB + 100)
    assert parts["activations"] == 2 * 32 * MIB
    text = str(found)
    assert "of it parameters" in text and "of it activations" in text


def test_weights_that_nobody_trains_are_weights_and_a_checkpoint_s_input_is_saved(rehearsed):
    parts = rehearsed(TRAIN, 2, "frozen", "checkpoint", quiet=True).as_dict()["parts"]
    assert parts["parameters"] == 8 * MIB and parts["optimizer"] in range(8 * MIB, 8 * MIB + 100)
    assert parts["activations"] == 3 * 32 * MIB  # the input of the part, and the results of tanh and of exp


def test_a_peak_in_backward_has_its_node_and_the_line_that_made_it(rehearsed):
    found = rehearsed(TRAIN, 2, quiet=True)
    peak = found.processes[0]["devices"][0]["peak"]
    assert peak["at"] == "backward" and peak["node"] == "MmBackward0"
    assert peak["forward"].endswith("train.py:14") and peak["line"].endswith("train.py:20")
    assert "MmBackward0 of train.py:14, in backward" in str(found)
    exp = [row for row in peak["held"] if row["node"] == "ExpBackward0"]
    assert [(row["bytes"], row["forward"].rpartition(":")[2]) for row in exp] == [(32 * MIB, "14")]


def test_the_end_is_the_script_s_own(rehearsed, capfd):
    ended = rehearsed(TRAIN, 3, steps=3)
    assert capfd.readouterr().out.endswith("step 2 done\nthe end\n")
    assert not ended.processes[0]["ended"] and ended.processes[0]["steps"] == 3
    ended = rehearsed(TRAIN, 9, "evaluate", steps=3)
    assert capfd.readouterr().out.endswith(
        "step 2 done\n"
    )  # and not where the third optimizer stepped, nor with a fourth forward
    assert ended.processes[0]["ended"] and (ended.status, ended.processes[0]["backwards"]) == (0, 3)


SHARDED = """
import torch
from torch import nn
from torch.distributed.fsdp import fully_shard
torch.distributed.init_process_group("nccl")
net = nn.Sequential(nn.Linear(512, 512), nn.Linear(512, 512)).cuda()
for layer in net:
    fully_shard(layer)
optimizer = torch.optim.Adam(net.parameters())
for step in range(2):
    net(torch.ones(64, 512, device="cuda")).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
"""


def test_of_shards_parts_are_those_of_one_rank(rehearsed):
    parts = rehearsed(SHARDED, gpus=2, alone=True, quiet=True).as_dict()["parts"]
    assert parts["parameters"] == 2 * 4 * (512 * 512 + 512) // 2
    assert parts["optimizer"] in range(2 * parts["parameters"], 2 * parts["parameters"] + 100)


FAILS = """
import sys, torch
from torch import nn
import torch.distributed as dist

class Work(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        take("forward")
        return x.clone()
    @staticmethod
    def backward(ctx, gradient):
        take("backward")
        return gradient

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(16, 16)
    def forward(self, x):
        if not self.training:
            take("evaluation")
        return Work.apply(self.layer(x))

class Sgd(torch.optim.SGD):
    def step(self):
        take("optimizer step")
        super().step()

class Odd:
    def __reduce__(self):
        take("saving" if saving else "loading")
        return (int, ())
    def __setstate__(self, state):
        pass

def take(where):
    if where == sys.argv[1]:
        if sys.argv[2] == "memory":
            torch.empty(2**40, dtype=torch.uint8, device="cuda")
        raise KeyError(where)

net = Net().cuda()
optimizer = Sgd(net.parameters(), 0.1)
for step in range(2):
    net(torch.ones(4, 16, device="cuda")).sum().backward()
    optimizer.step()
saving = True
torch.save(Odd(), "kept.pt")
if sys.argv[1] == "a collective":
    dist.init_process_group("nccl", rank=0, world_size=1, store=dist.HashStore())
    dist.all_reduce(torch.ones(4))  # NCCL has nothing for the CPU
net.eval()
with torch.no_grad():
    net(torch.ones(4, 16, device="cuda"))
take("after all")
"""


@pytest.mark.parametrize(
    "where, how",
    [
        ("forward", "memory"),
        ("backward", "memory"),
        ("backward", "error"),
        ("optimizer step", "error"),
        ("saving", "memory"),
        ("evaluation", "error"),
        ("a collective", "error"),
    ],
)
def test_a_failure_is_of_the_phase_that_it_is_in(rehearsed, where, how):
    found = rehearsed(FAILS, where, how, quiet=True)
    assert found.status == 1
    (process,) = found.processes
    if how == "memory":
        assert process["oom"]["at"] == where and f"out of memory, in {where}: asked for" in str(found)
    else:
        assert f", in {where}, after " in process["stopped"]


def test_what_could_not_be_followed_is_an_error_of_its_own(rehearsed, capfd, monkeypatch, tmp_path):
    """Never a table of the steps that it saw: another package's watcher, which fails after the first step."""
    copy = tmp_path / "everybyte"
    copy.mkdir()
    for each in PACKAGE.iterdir():
        if each.name != "rehearsal":
            (copy / each.name).symlink_to(each)
    (copy / "rehearsal").mkdir()
    for each in (PACKAGE / "rehearsal").iterdir():
        if each.name != "ranks.py":
            (copy / "rehearsal" / each.name).symlink_to(each)
    text = (PACKAGE / "rehearsal" / "ranks.py").read_text()
    (copy / "rehearsal" / "ranks.py").write_text(
        text.replace("def settled() -> None:", "def settled() -> None:\n    raise RuntimeError('fake')")
    )
    monkeypatch.setattr("everybyte.rehearsal.script.PACKAGE", copy)
    with pytest.raises(
        reports.Lost, match=r"could not follow the script: RuntimeError: fake \(ranks.py:\d+\), after 1 optimizer step"
    ):
        rehearsed(TRAIN, 3, quiet=True)
