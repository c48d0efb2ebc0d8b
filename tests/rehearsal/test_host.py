"""What a rehearsal says of the CPU's memory."""

from everybyte.rehearsal import rehearse_script

MIB = 2**20
SCRIPT = """
import torch

class Data(torch.utils.data.Dataset):
    def __init__(self):
        self.kept = torch.ones(40 * 2**20, dtype=torch.uint8)
    def __len__(self):
        return 8
    def __getitem__(self, i):
        if not hasattr(self, "own"):
            self.own = torch.ones(24 * 2**20, dtype=torch.uint8)
        return torch.ones(4)

net = torch.nn.Linear(4, 4).cuda()
optimizer = torch.optim.SGD(net.parameters(), 0.1)
large = torch.ones(100 * 2**20, dtype=torch.uint8)
pinned = torch.empty(16 * 2**20, dtype=torch.uint8, pin_memory=True)
registered = torch.ones(2 * 2**20, dtype=torch.uint8)
assert torch.cuda.cudart().cudaHostRegister(registered.data_ptr(), registered.numel(), 0) == 0
shared = torch.ones(8 * 2**20, dtype=torch.uint8).share_memory_()
del large
for x in torch.utils.data.DataLoader(Data(), batch_size=4, num_workers=1, persistent_workers=True):
    net(x.cuda()).sum().backward()
    optimizer.step()
assert torch.cuda.cudart().cudaHostUnregister(registered.data_ptr()) == 0
"""


def test_resident_pinned_shared_and_workers(here, tmp_path):
    (tmp_path / "train.py").write_text(SCRIPT)
    found = rehearse_script(["python", str(tmp_path / "train.py")], quiet=True, gpus=4, alone=True)
    assert found.status == 0, str(found)
    host = found.processes[0]["host"]
    assert host["resident"] - host["imported"] > (100 + 2) * MIB and 150 * MIB < host["imported"] < 2000 * MIB
    assert host["pinned"] == (16 + 2) * MIB and 8 * MIB <= host["shared"] < 16 * MIB
    assert (
        24 * MIB < host["workers"] < 200 * MIB
    )  # its own tensor, and not what it shares with the process that forked it
    assert "a node of 4 ranks at most" in str(found) and "18.00 MiB pinned" in str(found)
