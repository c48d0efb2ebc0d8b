"""Several processes that train together over Gloo, and what each of them saw.

    found = together(Path("rings.py"), 4, "gpt, one ring of 4")

calls `seen(rank, processes, *names)` of the script in each of four processes and gives what the four returned, in the order of
their ranks. Each is forked with the imports done, where the system can.
"""

import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import time
from datetime import timedelta
from pathlib import Path


def loaded(script: Path):
    """A script as a module."""
    spec = importlib.util.spec_from_file_location(script.stem, script)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _start(arguments, errors):
    import warm  # of the tools, which a process that is started has not on its path

    if warm.can_fork():
        return warm.started(arguments, stderr=errors)
    return subprocess.Popen([sys.executable, *arguments], stderr=errors)


def together(script: Path, processes: int, *names: str, within: float = 300) -> list:
    """What each of so many processes saw.

    Raises:
        AssertionError: with what they said, where one ends with an error, or all have not ended within so many seconds.
    """
    with tempfile.TemporaryDirectory() as folder:
        place, there = Path(folder), []
        try:
            for rank in range(processes):
                with open(place / f"{rank}.err", "wb") as errors:
                    there.append(_start([__file__, str(script), folder, str(rank), str(processes), *names], errors))
            until = time.monotonic() + within
            while any(process.poll() is None for process in there) and time.monotonic() < until:
                if any(process.poll() for process in there):  # the others would wait for it
                    break
                time.sleep(0.02)
        finally:
            for process in there:
                process.kill()
                process.wait()
        said = [(place / f"{rank}.err").read_text(errors="replace") for rank in range(processes)]
        assert [process.returncode for process in there] == [0] * processes, "\n".join(said)
        return [json.loads((place / f"{rank}.json").read_text()) for rank in range(processes)]


def main(script: str, folder: str, rank: str, processes: str, *names: str) -> None:
    """One of them."""
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    store = dist.FileStore(os.path.join(folder, "store"), int(processes))
    dist.init_process_group(
        "gloo", rank=int(rank), world_size=int(processes), store=store, timeout=timedelta(seconds=300)
    )
    seen = loaded(Path(script)).seen(int(rank), int(processes), *names)
    (Path(folder) / f"{rank}.json").write_text(json.dumps(seen))
    dist.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
