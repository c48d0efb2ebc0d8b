"""A monitor sees the phases of a loop, what grows and the limit ahead; on the CPU, under a rehearsal, and in Hugging Face's Trainer."""

import json
import re
import time
import warnings

import pytest
import torch
from processes import together
from torch import nn
from torch.utils.checkpoint import checkpoint

import everybyte as eb
from everybyte.answers import monitoring
from everybyte.rehearsal import rehearse_script

MIB = 2**20
KEPT = []


@pytest.fixture
def parts():
    KEPT.clear()
    net = nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 1))
    return net, torch.optim.AdamW(net.parameters())


def trained(net, optimizer):
    loss = net(torch.randn(32, 64)).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()


def run(parts, steps, each=lambda: None, **arguments):
    with eb.Monitor(device="cpu", **arguments) as monitor:
        for _ in range(steps):
            trained(*parts)
            each()
    return monitor


class Told:
    """A meter that says what the test says."""

    counts, name, device = ("requested", "allocated", "reserved"), "told", torch.device("cpu")

    def __init__(self, most=0, now=0, each=0, took=0.0, least=1):
        self.least = least
        self.most, self.now, self.each, self.took, self.reads, self.retries = most, now, each, took, 0, 0

    def read(self):
        self.reads += 1
        self.now += self.each
        time.sleep(self.took)
        return (self.now,) * 3, (max(self.most, self.now),) * 3, self.retries

    def limit(self):
        return 100 * MIB


@pytest.fixture
def told(monkeypatch):
    def of(share=1.0, **said):
        meter = Told(**said)
        monkeypatch.setattr(monitoring, "SHARE", share)
        monkeypatch.setattr(monitoring, "_meter", lambda device: meter)
        return meter

    return of


def test_the_phases_of_a_loop_as_it_is(parts):
    monitor = run(parts, 6)
    assert set(monitor.most) == {"forward", "backward", "between", "optimizer step"}
    assert [step.number for step in monitor.steps] == [1, 2, 3, 4, 5, 6] and monitor.count == 6
    assert set(monitor.counts) == {"allocated", "reserved"}  # glibc's, here
    assert all(0 < allocated <= reserved for allocated, reserved in monitor.most.values())
    assert "6 steps; nothing grows" in repr(monitor) and json.loads(json.dumps(monitor.as_dict()))["steps"] == 6


def test_what_a_cpu_hands_out_is_seen():
    with eb.Monitor(device="cpu", automatic=False) as monitor:
        monitor.step()
        kept = torch.empty(8 * MIB, dtype=torch.uint8)
        monitor.mark("forward")
        monitor.step()
        assert len(kept)
    before, after = (step.end[0] for step in monitor.steps)
    assert 8 * MIB <= after - before < 8 * MIB + MIB // 4  # and what Python took meanwhile


def test_a_leak_is_told_with_its_bytes_and_who_holds_it(parts):
    monitor = run(parts, 16, lambda: KEPT.append(torch.zeros(MIB // 4)))
    assert monitor.growing and MIB <= monitor.grown < 1.05 * MIB
    assert "a step leaves 1.0" in repr(monitor)
    found = monitor.suspects()
    assert found[0].shape == (MIB // 4,) and found[0].tensors == 16 and found[0].bytes == 16 * MIB
    assert any("KEPT" in holder for holder in found[0].holders)


KEEPS = """
import torch
import everybyte as eb

MAKE = {"one number": lambda: torch.zeros(()), "no number": lambda: torch.empty(0)}

def seen(rank, processes, what):
    kept = []
    for _ in range(2):  # in the first the process has what it has once, and its free lists are full
        with eb.Monitor(device="cpu", automatic=False) as monitor:
            for _ in range(600):
                kept.append(MAKE[what]())
                monitor.step()
    return monitor.growing, monitor.grown >= monitor.meter.least, repr(monitor)
"""


@pytest.mark.parametrize("what", ["one number", "no number"])
def test_on_a_cpu_the_smallest_tensor_that_is_kept_grows(what, tmp_path):
    """In a process of its own: one that ran other tests lets go of more, meanwhile, than is kept."""
    script = tmp_path / "keeps.py"
    script.write_text(KEEPS)
    [(growing, enough, said)] = together(script, 1, what)
    assert growing and enough, said


def test_some_tens_of_bytes_a_step_are_a_processs_own_on_a_cpu_and_tensors_on_a_gpu(told):
    """4 bytes, a loss that is kept, on a GPU: there nothing but tensors is counted."""
    for each, least, growing in ((40, monitoring._Process.least, False), (4, monitoring._Cuda.least, True)):
        told(each=each, least=least)
        with eb.Monitor(automatic=False) as monitor:
            for _ in range(100):
                monitor.step()
        assert monitor.grown == each and monitor.growing is growing


def test_where_nothing_grows_there_are_no_suspects(parts, told):
    """By a meter that says so: a process that ran other tests before lets go of a few bytes, or takes them, at any time."""
    KEPT.append(torch.zeros(MIB // 4))
    told(most=MIB)
    quiet = run(parts, 16)
    assert not quiet.growing and not quiet.suspects()
    assert eb.Monitor().as_dict is not None


def test_a_warning_before_the_limit_with_the_doctors_advice(told):
    meter = told()
    with eb.Monitor(automatic=False) as monitor:
        monitor.step()
        meter.most = 89 * MIB
        monitor.step()
        assert not monitor.warnings
        meter.most = 90 * MIB
        monitor.mark("backward")
        with pytest.warns(
            RuntimeWarning, match=r"step 3: 90.00 MiB at the peak, in backward, is 90% of the 100.00 MiB"
        ):
            monitor.step()
        monitor.step()
    assert len(monitor.warnings) == 1 and "  1. " in monitor.warnings[0][1]  # once


def test_growth_is_told_before_it_ends_the_job(told):
    told(each=MIB // 4)  # two reads a step
    with eb.Monitor(automatic=False) as monitor, pytest.warns(RuntimeWarning) as caught:
        for _ in range(20):
            monitor.mark("all")
            monitor.step()
    (said,) = [str(w.message) for w in caught if "leaves" in str(w.message)]
    # at the mark of step 10, the 20th read, 5 MiB stand, and each step adds 0.5
    assert said.startswith("step 10: each step leaves 512.00 KiB behind: 190 steps until 100.00 MiB.")
    assert "1. find the line that keeps it: eb.leaks(step)" in said


def test_a_retry_is_told(told):
    meter = told()
    with eb.Monitor(automatic=False) as monitor:
        monitor.step()
        meter.retries = 1
        with pytest.warns(RuntimeWarning, match="gave back all that it kept"):
            monitor.step()


def test_what_goes_up_and_down_does_not_grow(told):
    meter = told()
    with eb.Monitor(automatic=False) as monitor:
        for number in range(40):
            meter.now = 10 * MIB + (5 * MIB if number % 7 == 0 else 0) + (20 * MIB if number > 35 else 0)
            monitor.step()
    assert not monitor.growing and "nothing grows" in repr(monitor)


def test_reading_keeps_to_its_share_of_the_time(told):
    meter = told(share=monitoring.SHARE, took=0.002)
    with eb.Monitor(automatic=False) as monitor:
        for _ in range(400):
            time.sleep(0.002)
            monitor.step()
        elapsed = time.perf_counter() - monitor._started
    most = 1 + monitoring.JUDGED + 2 * (1 + monitoring.SHARE * elapsed / 0.002)
    assert monitoring.JUDGED < meter.reads <= most and monitor.count == 400
    assert monitoring.PASSED in monitor.most  # a peak in a step that was passed over is not lost


def test_of_many_steps_neighbors_become_one(told, monkeypatch):
    monkeypatch.setattr(monitoring, "KEPT", 8)
    meter = told()
    with eb.Monitor(automatic=False) as monitor:
        for number in range(1, 101):
            meter.most = MIB if number != 3 else 7 * MIB
            monitor.mark("only")
            monitor.step()
    numbers = [step.number for step in monitor.steps]
    assert len(numbers) <= 8 and numbers == sorted(set(numbers)) and numbers[-1] == 100
    assert max(step.phases["only"][0] for step in monitor.steps) == monitor.most["only"][0] == 7 * MIB


def test_a_checkpointed_blocks_backward_is_within_the_outer_one(parts):
    net, optimizer = parts
    with eb.Monitor(device="cpu") as monitor:
        x = torch.randn(32, 64, requires_grad=True)
        checkpoint(net, x, use_reentrant=True).sum().backward()
        optimizer.step()
    assert [list(step.phases) for step in monitor.steps] == [["forward", "backward", "between", "optimizer step"]]


def test_the_optimizer_that_ends_a_step_can_be_named(parts):
    other = torch.optim.SGD(parts[0].parameters(), lr=0.1)
    assert run(parts, 3, other.step).count == 6
    assert run(parts, 3, other.step, optimizer=parts[1]).count == 3


def test_afterwards_nobody_listens_and_a_job_that_dies_leaves_its_picture(parts, tmp_path):
    before, path = torch.autograd.backward, tmp_path / "memory.png"
    with pytest.raises(MemoryError), eb.Monitor(device="cpu", picture=path) as monitor:
        for _ in range(3):
            trained(*parts)
        parts[0](torch.randn(32, 64)).sum().backward()
        raise MemoryError
    assert torch.autograd.backward is before and path.read_bytes().startswith(b"\x89PNG")
    count = monitor.count
    trained(*parts)
    assert monitor.count == count == 3 and [step.number for step in monitor.steps] == [1, 2, 3, 4]
    assert monitor.figure().alt.startswith("Lines, Memory of 3 steps, this process, on the CPU")
    assert monitor._last.number == 3  # growth is judged on whole steps


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"warn_at": 0}, "Monitor.warn_at: 0"), ({"limit": 0}, "Monitor.limit: 0"), ({"automatic": 1}, "Monitor.automatic: 1"),
        ({"setup": eb.Setup()}, "Monitor.model: None"), ({"device": "meta"}, "Monitor.device: 'meta'"),
        ({"device": "gpu 0"}, "Monitor.device: 'gpu 0'"), ({"device": 0.5}, "Monitor.device: '0.5'"), ({"warn_at": "9"}, "Monitor.warn_at: '9'"),
        ({"gpu": "rtx"}, "gpu.name: 'rtx'"), ({"model": "gpt2", "setup": eb.Setup()}, "Monitor.model: 'gpt2'"),
    ],
)  # fmt: skip
def test_bad_input_is_named(arguments, said):
    with pytest.raises(ValueError, match=said), eb.Monitor(**arguments):
        pass


def test_a_picture_of_one_step_is_refused(parts):
    with pytest.raises(ValueError, match="Monitor.steps: 1"):
        run(parts, 1).figure()


def test_as_a_callback_of_hugging_faces_trainer(tmp_path):
    transformers = pytest.importorskip("transformers")
    pytest.importorskip("accelerate")
    config = transformers.GPT2Config(n_layer=2, n_embd=32, n_head=2, vocab_size=64, n_positions=32)
    rows = [{"input_ids": torch.arange(16) % 64, "labels": torch.arange(16) % 64}] * 16
    monitor = eb.Monitor(device="cpu")
    arguments = transformers.TrainingArguments(
        str(tmp_path), max_steps=3, per_device_train_batch_size=2, gradient_accumulation_steps=2, report_to=[], use_cpu=True,
        save_strategy="no", disable_tqdm=True,
    )  # fmt: skip
    before = torch.autograd.backward
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        transformers.Trainer(
            transformers.GPT2LMHeadModel(config), arguments, train_dataset=rows, callbacks=[monitor]
        ).train()
    assert monitor.count == 3 and set(monitor.most) == {"forward", "backward", "between", "optimizer step"}
    assert torch.autograd.backward is before


REHEARSED = """
import json, sys, torch
from torch import nn
import everybyte as eb
from everybyte.answers import monitoring
monitoring.SHARE = 1  # no kernel runs here, so a step takes no time
net = nn.Sequential(nn.Linear(256, 1024), nn.GELU(), nn.Linear(1024, 256)).cuda()
optimizer = torch.optim.AdamW(net.parameters())
kept = []
def train():
    for step in range(14):
        net(torch.randn(4096, 256, device="cuda")).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        kept.append(torch.zeros(250, device="cuda"))
if sys.argv[1] == "watched":
    with eb.Monitor() as monitor:
        train()
    (found,) = [crowd for crowd in monitor.suspects() if crowd.shape == (250,)]
    print("said", json.dumps(monitor.as_dict() | {"suspect": [found.tensors, found.bytes]}))
else:
    train()
"""


def test_in_a_rehearsed_script_it_says_what_the_rehearsal_saw(here, tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text(REHEARSED)
    monkeypatch.setenv("REHEARSAL_TRACE", "1")
    found = rehearse_script(["python", "train.py", "watched"], "rtx-4090", steps=0)
    out, waited = capfd.readouterr()
    (line,) = [line for line in out.splitlines() if line.startswith("said ")]
    said, device = json.loads(line[5:]), found.processes[0]["devices"][0]
    assert found.status == 0 and said["counts"] == ["requested", "allocated", "reserved"] and said["steps"] == 14
    highest = [max(most[i] for most in said["most"].values()) for i in range(3)]
    assert highest == [device["requested"], device["allocated"], device["reserved"]]
    assert said["most"]["backward"][0] == device["requested"] and device["peak"]["at"] == "backward"
    assert said["end"][0] == device["phases"]["after_step"]
    assert said["grown"] == 1000 and said["growing"] and said["suspect"][0] == 14  # 250 floats a step, to the byte
    rehearse_script(["python", "train.py", "alone"], "rtx-4090", steps=0)
    assert waits(waited) == waits(capfd.readouterr().err)  # it adds no wait for the GPU


def waits(trace):
    """Name -> how often each function of CUDA's was called that waits."""
    calls = re.findall(r"rehearsal: \S+ (\w+) x (\d+)", trace)
    assert calls
    return {name: count for name, count in calls if re.search("Synchronize|Query|WaitEvent", name)}
