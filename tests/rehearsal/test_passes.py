"""Backward passes and steps of other kinds than `loss.backward()` and one `step()` after it: where the peak is, and how many there were."""

import pytest

from everybyte.rehearsal import rehearse_script

MIB = 2**20
NET = """
import sys, torch
from torch import nn
net = nn.Sequential(*[nn.Linear(512, 512, bias=False) for _ in range(4)]).cuda()  # 4 MiB
weights = list(net.parameters())

def mib(n):
    return torch.empty(n * 2**20, dtype=torch.uint8, device="cuda")
"""
PENALTY = """
optimizer = torch.optim.SGD(weights, lr=0.1)
for step in range(2):
    if sys.argv[1] == "plain":
        torch.set_anomaly_enabled(False)  # what a rehearsal switches on beside the script
    x = torch.ones(64, 512, device="cuda", requires_grad=True)
    (slope,) = torch.autograd.grad(nn.functional.silu(net(x)).sum(), x, create_graph=True)
    (slope.norm(dim=1) - 1).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
"""
BY_HAND = """
for step in range(3):
    loss = net(torch.ones(64, 512, device="cuda")).square().mean()
    gradients = torch.autograd.grad(loss, weights)
    with torch.no_grad():
        for weight, gradient in zip(weights, gradients):
            weight.sub_(gradient)
    del gradients
"""
WITHIN = """
each = {weight: torch.optim.Adam([weight], foreach=False) for weight in weights}

def move(weight):
    each[weight].step()
    each[weight].zero_grad()

for weight in weights:
    weight.register_post_accumulate_grad_hook(move)
for step in range(100):
    net(torch.ones(64, 512, device="cuda")).sum().backward()
"""
CLOSURE = """
class Twice(torch.optim.SGD):
    def step(self, closure):
        with torch.enable_grad():
            closure()
        large = mib(64)
        del large
        return super().step()

optimizer = Twice(weights, lr=0.1)
def closure():
    optimizer.zero_grad()
    net(torch.ones(64, 512, device="cuda")).sum().backward()
for step in range(2):
    optimizer.step(closure)
"""
CLIPS = """
optimizer = torch.optim.SGD(weights, lr=0.1)
for step in range(2):
    net(torch.ones(64, 512, device="cuda")).sum().backward()
    large = mib(64)
    del large
    optimizer.step()
"""


def peak(found):
    assert found.status == 0, str(found)
    return found.processes[0]["devices"][0]["peak"]


def test_a_gradient_that_is_differentiated_takes_what_it_takes_on_a_gpu(here, script):
    path = script(NET + PENALTY)
    ours, plain = (rehearse_script(["python", path, word], quiet=True) for word in ("ours", "plain"))
    assert ours.peak == plain.peak
    assert "2 optimizer steps, 4 backward passes" in str(ours)


def test_gradients_that_are_asked_for_are_backward_s(here, script):
    found = rehearse_script(["python", script(NET + BY_HAND)], quiet=True)
    at = peak(found)
    assert at["at"] == "backward" and at["node"] == "MmBackward0" and at["forward"].endswith("train.py:11")
    assert "0 optimizer steps, 3 backward passes" in str(found)


def test_optimizers_that_step_within_backward_have_made_one_step_at_its_end(here, script):
    found = rehearse_script(["python", script(NET + WITHIN)], quiet=True, steps=2)
    (process,) = found.processes
    assert (found.status, process["steps"], process["backwards"], process["ended"]) == (0, 2, 2, True)
    # Each matrix with two states, both workspaces, and the loss.
    assert process["devices"][0]["phases"]["after_step"] == 3 * 4 * MIB + 2 * 32 * MIB + 4


@pytest.mark.parametrize(
    ("text", "at"), [(CLOSURE, "optimizer step"), (CLIPS, "between backward and step")], ids=["closure", "clips"]
)
def test_what_is_neither_forward_nor_backward_is_said_to_be_neither(here, script, text, at):
    found = rehearse_script(["python", script(NET + text)], quiet=True)
    assert peak(found)["at"] == at and peak(found)["line"].endswith("train.py:8")
    assert f"the peak, {'in ' if at == 'optimizer step' else ''}{at} " in str(found)
