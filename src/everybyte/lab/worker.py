"""The process that measures: `python -m everybyte.lab.worker`. A request a line comes in, an answer a line goes out, in JSON.

`{"ask": "device", "device": …}` asks what the device is, `gpus` in its place how many ranks there is room for; `{"ask": "measure", "device": …, "model": {…}, "setup": {…}, …}`
for a measurement. An answer holds `found`, or `error` for bad input. Whatever else is printed goes to standard error. The
process ends with its input, and with its parent, also while it loads PyTorch.
"""

import json
import os
import sys
import threading
import time

from ..setup import Setup
from .measurement import model_from_dict
from .process import PARENT

#: Ranks that a CPU may be given at once.
PROCESSES = 8


def answer(request: dict) -> dict:
    """What a request is answered with."""
    try:
        import torch

        from .ranks import run_as_rank
        from .run import describe, find
    except ImportError as error:
        return {"error": f"measure: {error}; it needs PyTorch: pip install 'everybyte[dryrun]'"}
    try:
        device = find(request["device"])
        if request["ask"] == "device":
            return {"found": describe(device)}
        if request["ask"] == "gpus":
            return {"found": torch.cuda.device_count() if device.type == "cuda" else PROCESSES}
        model, setup = model_from_dict(request["model"]), Setup(**request["setup"])
        found, clean = run_as_rank(model, setup, device, **request["options"])
    except ValueError as error:
        return {"error": str(error)}
    return {"found": found | {"model": request["model"], "setup": request["setup"]}, "clean": clean}


def main() -> None:
    """Answer until the input ends."""
    parent = int(os.environ.get(PARENT, os.getppid()))  # who may be gone by now
    threading.Thread(target=_end_with_parent, args=(parent,), daemon=True).start()
    answers = os.fdopen(os.dup(1), "w", buffering=1, encoding="utf-8")
    os.dup2(2, 1)  # a library that prints must not spoil an answer
    for line in sys.stdin:
        answers.write(json.dumps(answer(json.loads(line)), allow_nan=False) + "\n")


def _end_with_parent(parent):
    """A parent that was killed can tell nobody; memory must not wait for a step that nobody waits for."""
    while os.getppid() == parent:
        time.sleep(0.5)
    os._exit(1)


if __name__ == "__main__":
    main()
