"""One of two processes that train, keep checkpoints, and may be killed: `run_and_die.py FOLDER RANK SHARDING PRECISION DIES`.

`DIES`: `no`; `step`: rank 1 kills itself after step 3; `save`: it does so while the checkpoint of step 4 is being written.
The last losses and a checksum of the weights go to FOLDER/RANK.json.
"""

import json
import os
import signal
import sys
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed import checkpoint

import everybyte as eb
from everybyte.lab import checkpoints
from everybyte.reference import GPT, Trainer
from everybyte.reference.text import text_batch

MODEL = eb.Model(name="small", layers=2, width=20, heads=2, vocabulary=257, positions=24)
STEPS, EVERY = 6, 2


def main(folder, rank, sharding, precision, dies):
    torch.set_num_threads(1)
    setup = eb.Setup(
        batch=2, sequence=16, gpus=2, sharding=sharding, precision=precision, attention="eager", dropout=0.1
    )
    store = dist.FileStore(str(folder / f"store-{os.environ['ATTEMPT']}"), 2)
    dist.init_process_group("gloo", rank=rank, world_size=2, store=store, timeout=timedelta(seconds=20))
    torch.manual_seed(0)
    trainer = Trainer(GPT(MODEL, setup).initialize(), setup)
    torch.manual_seed(1 + rank)  # dropout is each rank's own
    batch = text_batch(MODEL.vocabulary, setup, "cpu")
    start, losses = checkpoints.load(trainer, folder / "kept"), []
    for _ in range(start):
        batch()
    for step in range(start + 1, STEPS + 1):
        losses.append(trainer.step(batch).item())
        if dies == "step" and step == 3 and rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        if dies == "save" and step == 4 and rank == 1:
            checkpoint.save = lambda *_, **__: os.kill(os.getpid(), signal.SIGKILL)
        if step % EVERY == 0:
            checkpoints.save(trainer, folder / "kept", step)
    weights = [p.full_tensor() if hasattr(p, "full_tensor") else p for p in trainer.module.parameters()]
    said = {"start": start, "losses": losses, "weights": [w.double().sum().item() for w in weights]}
    (folder / f"{rank}.json").write_text(json.dumps(said))
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), *sys.argv[3:])
