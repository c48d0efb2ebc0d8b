"""What a rehearsed process compiles: choices that a GPU would time, CUDA graphs, and the caches of both.

No time passes on a GPU that does nothing, so whatever is timed is a tie. The first choice that runs wins, as in Triton and Inductor
where times are equal.
"""

import importlib.util
import os
import sys

from .. import units
from . import others

#: The folders of Triton's and Inductor's caches.
TRITON, INDUCTOR = "TRITON_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR"
#: The variable that has matrices padded wherever Inductor times whether to.
PADDED = "EVERYBYTE_REHEARSAL_PADDED"
_counts = {"benchmarks": 0, "graphs": 0, "paddings": 0, "padded": 0}


def hooks() -> dict:
    """Module -> what is called with it after its import. Read before the script runs, which may change the environment."""
    folder, padded = os.environ.get(INDUCTOR), PADDED in os.environ
    _counts["padded"] = padded

    def own_folder(module):
        """Never a folder of the script's: a run on a GPU would find choices there that a tie made."""
        if folder:
            os.environ[INDUCTOR] = folder

    return {
        "torch._dynamo.trace_rules": leave_out,
        "triton.runtime.autotuner": first_that_runs,
        "triton.runtime.jit": note_what_is_written,
        "torch._inductor.runtime.benchmarking": count_benchmarks,
        "torch._inductor.runtime.cache_dir_utils": own_folder,
        "torch._inductor.fx_passes.pad_mm": lambda pad_mm: choose_padding(pad_mm, padded),
    }


def leave_out(rules) -> None:
    """Have Dynamo compile none of what decides sizes: it is called by operators, and no part of the script."""
    for name in ("sizes", "followed", "known", "reads"):
        rules.add(f"everybyte.rehearsal.{name}")


def note_what_is_written(jit) -> None:
    """Have Triton's kernels make unknown the constants that they are given: one may be what they write into."""

    @others.instead(jit.JITFunction)
    def run(original, self, *args, **kwargs):
        for content in others.contents:
            content.written([*args, *kwargs.values()])
        return original(self, *args, **kwargs)


def first_that_runs(autotuner) -> None:
    """Have Triton's autotuner take the first configuration that runs on this GPU, and compile no other.

    The benchmark is Triton's own, with its buffer of 256 MiB, its hooks and copies. No choice is kept on disk: a second rehearsal
    asks for what the first one did.
    """
    tuner = autotuner.Autotuner

    @others.instead(tuner)
    def run(original, self, *args, **kwargs):
        self._found = False
        return original(self, *args, **kwargs)

    @others.instead(tuner)
    def _bench(bench, self, *args, config, **meta):
        if self._found:
            return [float("inf")] * 3
        times = bench(self, *args, config=config, **meta)
        first = times[0] if isinstance(times, list | tuple) else times
        self._found = first != float("inf")  # else it takes more than this GPU has
        _counts["benchmarks"] += self._found
        return times

    def check_disk_cache(self, key, configs, benchmark):
        benchmark()
        return False

    tuner.check_disk_cache = check_disk_cache


def count_benchmarks(benchmarking) -> None:
    """Count what Inductor times; to 2.5 it does so by Triton's clock."""

    @others.instead(getattr(benchmarking, "InductorBenchmarker", benchmarking.TritonBenchmarker))
    def benchmark_gpu(original, self, *args, **kwargs):
        _counts["benchmarks"] += 1
        return original(self, *args, **kwargs)


def choose_padding(pad_mm, padded: bool) -> None:
    """Where Inductor times whether to pad a product's matrices: do so, or leave them as a tie does; and count it.

    To PyTorch 2.6 the function's name is `should_pad`.
    """
    name = next((name for name in ("is_padded_faster", "should_pad") if hasattr(pad_mm, name)), None)
    if name is None:
        raise ValueError("rehearse.torch: 2.4 with torch.compile: what Inductor pads is not told there; allowed: 2.5 to 2.13, or a script "
                         "that does not compile")  # fmt: skip

    @others.instead(pad_mm, name=name)
    def is_padded_faster(original, key, plain, with_padding):
        _counts["paddings"] += 1
        return original(key, plain, 0.0 if padded else with_padding)


def watch_graphs(torch) -> None:
    """Count the captures of CUDA graphs."""

    @others.instead(torch.cuda.graphs.CUDAGraph)
    def capture_begin(original, self, *args, **kwargs):
        _counts["graphs"] += 1
        return original(self, *args, **kwargs)


def in_pools(snapshot: dict, device: int) -> int:
    """Bytes of a device's CUDA graphs that only *reserved* counts: of their pools, those of no live tensor."""
    pools = (s for s in snapshot["segments"] if s["device"] == device and any(s.get("segment_pool_id", ())))
    return sum(segment["total_size"] - segment["active_size"] for segment in pools)


def captured() -> bool:
    """Whether a CUDA graph was captured in this process."""
    return _counts["graphs"] > 0


def notes(peak_steps: list[int], pools: int) -> list[str]:
    """Sentences for the report. peak_steps: of each device, in which step its peak is, if steps were. pools: of `in_pools`."""
    count, said = _counts["benchmarks"], []
    if count:
        said.append(
            f"compiled kernels ran {count:,} benchmark{'s' * (count > 1)}, each a tie: a GPU may choose otherwise"
        )
    paddings, padded = _counts["paddings"], _counts["padded"]
    if paddings:
        how = "padded, as a GPU may choose" if padded else "not padded; `--padded` rehearses the other choice"
        said.append(
            f"Inductor timed whether to pad the matrices of {paddings:,} product{'s' * (paddings > 1)}: they are {how}"
        )
    elif padded:
        said.append("Inductor timed no padding: `--padded` changed nothing")
    if count and 0 in peak_steps:
        said.append("the peak is in step 0, where kernels are tuned: buffers of benchmarks may be in it")
    if pools:
        said.append(
            f"CUDA graphs hold {units.text(pools)} in pools of their own: once they are recorded, only reserved counts it"
        )
    return said


def explain_missing_triton() -> None:
    """After the traceback of a script that fails for want of Triton, say what brings it."""

    @others.instead(sys)
    def excepthook(original, kind, error, trace):
        original(kind, error, trace)
        if _wants_triton(error) and importlib.util.find_spec("triton") is None:
            print("everybyte: Triton is not in the environment of rehearsals; `everybyte rehearse --set-up` installs it (0.2 GB to "
                  "fetch); or, eagerly, which takes other memory: TORCHDYNAMO_DISABLE=1", file=sys.stderr)  # fmt: skip


def _wants_triton(error):
    while error is not None:
        module = getattr(error, "name", None) if isinstance(error, ImportError) else None
        if (module or "").partition(".")[0] == "triton" or "working triton installation" in str(error):
            return True
        error = error.__cause__ or error.__context__
    return False
