"""The process that measures: `python -m everybyte.lab.worker`. Each line that comes in is a request, in JSON, and each
line that goes out is an answer.

`{"ask": "device", "device": …}` asks what the device is; `gpus` in its place, how many ranks there is room for; and
`{"ask": "measure", "device": …, "model": {…}, "setup": {…}, "options": {…}}` asks for a measurement. An answer holds
`found`, or `error` for bad input. Whatever else is printed goes to standard error. The process ends with its input, and
with its parent, also while it loads PyTorch.
"""

import json
import os
import sys
import threading
import time

from .process import PARENT


def main() -> None:
    """Answer requests until the input ends."""
    threading.Thread(target=_end_with, args=(int(os.environ.get(PARENT, os.getppid())),), daemon=True).start()
    answers = os.fdopen(os.dup(1), "w", buffering=1, encoding="utf-8")
    os.dup2(2, 1)  # a library that prints must not spoil an answer
    for line in sys.stdin:
        answers.write(json.dumps(_answer(json.loads(line)), allow_nan=False) + "\n")


def _end_with(parent):
    """End this process when its parent has ended: a killed parent cannot end it."""
    while os.getppid() == parent:
        time.sleep(0.5)
    os._exit(1)


def _answer(request):
    try:
        from .ranks import answer
    except ImportError as error:
        return {"error": f"measure: {error}; it needs PyTorch: pip install 'everybyte[dryrun]'"}
    return answer(request)


if __name__ == "__main__":
    main()
