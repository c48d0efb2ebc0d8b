"""Twelve snapshots of small scripts, each with a cause that is known, for the tests of `eb.doctor`.

    .venv/bin/python tools/recordings.py            # all of CAUSES, into tests/evidence/recorded
    .venv/bin/python tools/recordings.py NAME...    # these

Each script is rehearsed on a GPU that does nothing, with as much memory as its row says. It needs the environment of rehearsals
(`make rehearsal`).
"""

import contextlib
import gzip
import pickle
import subprocess
import sys
import tempfile
from pathlib import Path

from snapshots import tidy

from everybyte.evidence.pickles import read
from everybyte.rehearsal import devices, place
from everybyte.rehearsal.script import surroundings

OUT = Path(__file__).resolve().parents[1] / "tests" / "evidence" / "recorded"
#: Before each script: a model of 8 blocks, 64 MiB of weights.
BEGIN = """
import torch
from torch import nn
from torch.nn.functional import cross_entropy
def model(width=512, blocks=8, vocabulary=8192):
    block = lambda: nn.Sequential(nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
    return nn.Sequential(nn.Embedding(vocabulary, width), *[block() for _ in range(blocks)], nn.Linear(width, vocabulary)).cuda()
def batch(rows=4, tokens=128):
    return torch.ones(rows, tokens, dtype=torch.long, device="cuda")
def loss_of(net, tokens):
    return cross_entropy(net(tokens).flatten(0, 1), tokens.flatten())
def step(net, optimizer, tokens):
    loss = loss_of(net, tokens)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return loss
def record(**asked):
    torch.cuda.memory._record_memory_history(**{"stacks": "python"} | asked)
"""
RECORDED = "record()\nnet = model(); optimizer = torch.optim.AdamW(net.parameters())\n"
#: Name -> (script, bytes of the GPU or None for an H200's). What `eb.doctor` must say of each stands in the tests.
CAUSES = {
    "healthy": (RECORDED + "for _ in range(4): step(net, optimizer, batch())", None),
    "healthy-all-stacks": ("record(stacks='all')\nnet = model(); optimizer = torch.optim.AdamW(net.parameters())\nfor _ in range(3): step(net, optimizer, batch())", None),
    "begun-late": (
        "net = model(); optimizer = torch.optim.AdamW(net.parameters())\nfor _ in range(2): step(net, optimizer, batch())\nrecord()\n"
        "for _ in range(3): step(net, optimizer, batch())", None,
    ),
    "kept-losses": (RECORDED + "history = []\nfor _ in range(4): history.append(step(net, optimizer, batch())); history.append(loss_of(net, batch(1)))", None),
    "kept-logits": (RECORDED + "seen = []\nfor _ in range(5):\n    step(net, optimizer, batch())\n    with torch.no_grad(): seen.append(net(batch(2)))", None),
    "kept-varied": (RECORDED + "seen = []\nfor n in (64, 96, 80, 128, 112, 72):\n    step(net, optimizer, batch(2, n))\n    seen.append(net(batch(1, n)).detach())", None),
    "kept-until-it-dies": (RECORDED + "history = []\nfor _ in range(40): step(net, optimizer, batch()); history.append(loss_of(net, batch()))", 3 * 2**29),
    "too-large-a-batch": (RECORDED + "for _ in range(3): step(net, optimizer, batch(32, 256))", 3 * 2**29),
    "states-do-not-fit": ("record()\nnet = model(1024, 16); optimizer = torch.optim.AdamW(net.parameters())\nfor _ in range(3): step(net, optimizer, batch(1, 64))", 2_600 * 2**20),
    "pinned": ("record()\nkept = []\nfor n in range(12):\n    large = torch.empty(12 * 2**20 + n * 2**20, dtype=torch.uint8, device='cuda')\n"
               "    kept.append(torch.empty(3 * 2**19, dtype=torch.uint8, device='cuda')); del large\n"
               "    large = torch.empty(15 * 2**20, dtype=torch.uint8, device='cuda'); kept.append(large[:1].clone()); del large", None),
    "in-pieces": (
        "record()\nlarge = [torch.empty(60 * 2**20, dtype=torch.uint8, device='cuda') for _ in range(11)]\nlarge.clear()\n"
        "kept = [torch.empty(34 * 2**20, dtype=torch.uint8, device='cuda') for _ in range(11)]\n"
        "more = torch.empty(200 * 2**20, dtype=torch.uint8, device='cuda')", 3 * 2**29,
    ),
    "varied-lengths": ("record()\nnet = model(); optimizer = torch.optim.SGD(net.parameters())\nfor n in (64, 200, 90, 260, 120, 330, 150, 410): step(net, optimizer, batch(4, n))", None),
}  # fmt: skip


def rehearsed(script: str, memory: int | None) -> dict:
    """The snapshot that a script leaves, at its end or where it died."""
    where = place.find()
    variables = devices.environment(devices.find("h200", where.manifest["capabilities"]), 1, memory)
    body = "".join(f"    {line}\n" for line in script.splitlines())
    whole = f"{BEGIN}try:\n{body}except torch.OutOfMemoryError: pass\ntorch.cuda.memory._dump_snapshot('left.pickle')\n"
    with tempfile.TemporaryDirectory() as folder, surroundings(where, variables) as (environment, _):
        environment = {n: v for n, v in environment.items() if not n.startswith("EVERYBYTE_REHEARSAL_REPORTS")}
        Path(folder, "train.py").write_text(whole, encoding="utf-8")
        subprocess.run([str(where.python), "train.py"], env=environment, cwd=folder, check=True)
        return tidy(read(Path(folder) / "left.pickle")[0])


def main():
    """Write the files of the names given, or of all."""
    OUT.mkdir(exist_ok=True)
    for name in sys.argv[1:] or CAUSES:
        data = gzip.compress(pickle.dumps(rehearsed(*CAUSES[name]), protocol=4), mtime=0)
        (OUT / f"{name}.pickle.gz").write_bytes(data)
        print(f"{name}: {len(data):,} B")


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        main()
