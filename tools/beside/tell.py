"""Run a script, and write at its end what PyTorch's allocator counted, as JSON: `python tell.py FILE SCRIPT ARGUMENT...`.

The same on a GPU and in a rehearsal. On a GPU, with `BESIDE_LOCK=FILE:alone` or `FILE:shared` the script waits, its imports done, for others
that use the GPU; so the first process's start does not wait for the second's end. With `BESIDE_SNAPSHOT=FILE` PyTorch's memory snapshot of
the run is written there, compressed.
"""

import fcntl
import gzip
import importlib
import json
import os
import pickle
import runpy
import sys
import time
import traceback
from datetime import UTC, datetime
from importlib.metadata import version

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook

PACKAGES = ("torch", "triton", "transformers", "peft", "accelerate", "bitsandbytes", "torchaudio")
#: Packages that are imported by another name.
NAMED = {"fla": "fla-core"}
COUNTS = ("requested_bytes", "allocated_bytes", "active_bytes", "reserved_bytes")


def counts():
    """count -> (current, peak), in bytes; nothing where CUDA was not used."""
    if not torch.cuda.is_initialized():
        return {}
    stats = torch.cuda.memory_stats()
    return {name: [stats[f"{name}.all.current"], stats[f"{name}.all.peak"]] for name in COUNTS}


def waited(lock):
    """Hold the lock that the variable names until the process ends."""
    if not lock:
        return None
    path, _, how = lock.rpartition(":")
    file = open(path, "w", encoding="utf-8")  # noqa: SIM115
    fcntl.flock(file, fcntl.LOCK_EX if how == "alone" else fcntl.LOCK_SH)
    if how == "alone":
        settle()
    return file


def settle(seconds=8.0):
    """Wait until the GPU's memory is as before any process: the driver frees what a process had after its files."""
    import pynvml

    pynvml.nvmlInit()
    gpu, end = pynvml.nvmlDeviceGetHandleByIndex(0), time.monotonic() + seconds
    while pynvml.nvmlDeviceGetMemoryInfo(gpu).used > 2**30 and time.monotonic() < end:
        time.sleep(0.05)


def main():
    """Run what the arguments say."""
    file, script, *arguments = sys.argv[1:]
    for name in os.environ.get("BESIDE_IMPORTS", "").split():
        importlib.import_module(name)
    held = waited(os.environ.get("BESIDE_LOCK"))
    steps, start, error, snapshot = [], time.perf_counter(), None, os.environ.get("BESIDE_SNAPSHOT")
    if snapshot:
        torch.cuda.memory._record_memory_history(stacks="python", max_entries=200_000)
    register_optimizer_step_post_hook(lambda *_: steps.append(counts()))
    sys.argv, sys.path[0] = [script, *arguments], os.path.dirname(os.path.abspath(script))
    try:
        runpy.run_path(script, run_name="__main__")
    except SystemExit as left:
        error = None if not left.code else f"exit {left.code}"
    except BaseException as problem:
        traceback.print_exc()
        error = f"{type(problem).__name__}: {problem}"[:600]
    if torch.cuda.is_initialized():
        torch.cuda.synchronize()
    if snapshot:
        with gzip.open(snapshot, "wb") as out:
            pickle.dump(torch.cuda.memory._snapshot(), out)
    said = {"error": error, "end": counts(), "steps": steps[:8], "seconds": round(time.perf_counter() - start, 2)}
    if said["end"]:
        free, total = torch.cuda.mem_get_info()
        stats = torch.cuda.memory_stats()
        said |= {"device": torch.cuda.get_device_name(), "driver_used": total - free, "total": total}
        said |= {"retries": stats["num_alloc_retries"], "ooms": stats["num_ooms"]}
    said["versions"] = {
        NAMED.get(name, name): version(NAMED.get(name, name)) for name in (*PACKAGES, *NAMED) if sys.modules.get(name)
    }
    said["date"] = datetime.now(UTC).isoformat(timespec="seconds")
    with open(file, "w", encoding="utf-8") as out:
        json.dump(said, out)
    assert held or not os.environ.get("BESIDE_LOCK")  # until here, and until the process has ended
    sys.exit(1 if error else 0)


main()
