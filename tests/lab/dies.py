"""A rank whose second process dies, or hangs, in the middle of its third step: `dies.py HOW FOLDER`."""

import os
import signal
import sys
import time
from pathlib import Path

from everybyte.lab import worker
from everybyte.reference import Trainer

HOW, FOLDER = sys.argv[1], Path(sys.argv[2])
forward, steps = Trainer.forward, 0


def dying(self, inputs):
    global steps
    steps += 1
    if steps == 3:
        noted = FOLDER / "pids"
        noted.mkdir(exist_ok=True)
        (noted / os.environ["RANK"]).write_text(str(os.getpid()))
        if os.environ["RANK"] == "1":
            os.kill(os.getpid(), signal.SIGKILL) if HOW == "dies" else time.sleep(600)
    return forward(self, inputs)


Trainer.forward = dying
worker.main()
