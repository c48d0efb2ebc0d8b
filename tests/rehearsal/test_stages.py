"""What a script does when it does not train, and how much it takes then; and its steps, as it counts them."""

from everybyte.rehearsal import rehearse_script

MIB = 2**20
SCRIPT = """
import torch
from torch import nn

def mib(n):
    return torch.empty(n * 2**20, dtype=torch.uint8, device="cuda")

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(512, 512, bias=False)  # 1 MiB
    def forward(self, x):
        if not self.training:
            work = mib(30)
        return self.layer(x)

@torch.no_grad()
def evaluate(net):
    net.eval()
    net(torch.ones(512, 512, device="cuda"))
    net.train()

net = Net().cuda()
optimizer = torch.optim.SGD(net.parameters(), 0.1, momentum=0.9)
for step in range(2):
    for _ in range(3):
        net(torch.ones(512, 512, device="cuda")).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    if step == 0:
        large = mib(80)
        del large
        evaluate(net)

class Odd:
    def __reduce__(self):
        mib(50)
        return (int, ())

torch.save({"net": net.state_dict(), "odd": Odd(), "optimizer": optimizer.state_dict()}, "kept.pt")
kept = torch.load("kept.pt", map_location="cuda", weights_only=False)
optimizer.load_state_dict(kept["optimizer"])
"""


def test_each_stage_has_its_peak(here, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text(SCRIPT)
    found = rehearse_script(["python", "train.py"], quiet=True)
    assert found.status == 0, str(found)
    (device,) = found.processes[0]["devices"]
    workspaces = 2 * 33_554_432
    stages = device["stages"]
    assert list(stages) == ["evaluation", "saving", "loading", "resuming"]
    # Matrix and momentum, of 1 MiB each; what was freed before is not in it.
    assert stages["evaluation"] == workspaces + (2 + 30 + 2) * MIB  # work, input, result
    assert stages["saving"] == workspaces + (2 + 50) * MIB
    assert stages["loading"] == stages["resuming"] == workspaces + (2 + 2) * MIB
    assert "requested while evaluating, at most" in str(found)
    assert "2 optimizer steps, 6 backward passes" in str(found)


TRAINER = """
import torch
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments
config = LlamaConfig(hidden_size=64, intermediate_size=128, num_hidden_layers=1, num_attention_heads=2, vocab_size=1000)
rows = [{"input_ids": torch.arange(128), "labels": torch.arange(128)} for _ in range(16)]
arguments = TrainingArguments("out", per_device_train_batch_size=2, per_device_eval_batch_size=2, max_steps=1, report_to=[], save_strategy="no")
trainer = Trainer(LlamaForCausalLM(config), arguments, train_dataset=rows, eval_dataset=rows, compute_metrics=lambda said: {})
trainer.train()
trainer.evaluate()
"""


def test_what_a_trainer_gathers_is_evaluation_s_and_an_optimizer_without_states_resumes_nothing(here, tmp_path):
    (tmp_path / "train.py").write_text(TRAINER)
    found = rehearse_script(["python", "train.py"], quiet=True, cwd=tmp_path)
    assert found.status == 0, str(found)
    (device,) = found.processes[0]["devices"]
    assert list(device["stages"]) == ["evaluation"]
    logits = 16 * 128 * 1000 * 4  # of all rows, in fp32
    assert device["peak"]["at"] == "evaluation" and device["stages"]["evaluation"] == found.peak > logits


RUN = """
import sys, torch
net = torch.nn.Linear(4, 4).cuda() if sys.argv[1] != "early" else None
optimizer = torch.optim.SGD(net.parameters() if net else {}["no net"], 0.1)
optimizer.step()
assert sys.argv[1] != "bad"
"""


def test_of_several_runs_those_that_failed_are_named(here, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run.py").write_text(RUN)
    (tmp_path / "all.sh").write_text("for each in good early bad; do python run.py $each; done")
    found = rehearse_script(["sh", "all.sh"], quiet=True)
    said = "\n".join(found.unknown)
    assert len(found.processes) == 2 and found.status == 1
    assert (
        "run 3 of 3 (run.py bad) ended with AssertionError at " in said
        and "run.py:6, after 1 optimizer step: what" in said
    )
    assert "run 2 of 3 (run.py early) ended with KeyError at " in said and "run.py:4, after 0 optimizer steps" in said
    assert "run 1 of 3" not in said
