"""What the book promises of speed and agreement, measured: `make bench` (all), or `bench.py` and one of speed, deriving,
derivations (of Hugging Face configurations: half an hour), grid.

Times depend on the machine; what counts is the ratio to PyTorch's MemTracker, taken in the same run.
"""

import subprocess
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from itertools import chain
from statistics import median

import derivations
import grid
from tqdm.auto import tqdm

import everybyte as eb
from everybyte.budget import not_derived
from everybyte.tables import Table


def seconds(function, times=5):
    """The median time of some calls, after one that warms up."""
    function()
    taken = []
    for _ in range(times):
        start = time.perf_counter()
        function()
        taken.append(time.perf_counter() - start)
    return median(taken)


def fresh(code):
    """The median time of a new interpreter that runs `code`, less an empty one's."""
    run = [lambda c=c: subprocess.run([sys.executable, "-c", c], check=True) for c in (code, "pass")]
    return seconds(run[0]) - seconds(run[1])


def speed():
    """Times beside their bounds, and MemTracker beside the dry run."""
    import referee

    setup = eb.Setup(batch=8, sequence=1024)
    small, xl = eb.model("gpt2"), eb.model("gpt2-xl")
    rows = [("import everybyte", fresh("import everybyte"), "0.5 s")]
    first = "import everybyte as eb; eb.budget(eb.model('gpt2'), eb.Setup())"
    rows.append(("import, and a first budget", fresh(first), "0.3 s"))
    rows.append(("a budget after the first", seconds(lambda: eb.budget(xl, setup), 200), "0.001 s"))
    planned = "eb.plan(eb.model('gpt2-xl'), eb.Setup(), eb.gpu('rtx-4090'))"
    rows.append(("import, and a first plan", fresh(f"import everybyte as eb; {planned}"), "1 s"))
    for name in ("step", "block", "checkpointing", "planning", "sharding"):
        opened = fresh(f"from everybyte import explore; explore.{name}()") - fresh("from everybyte import explore")
        rows.append((f"explore.{name}, from the call to its picture", opened, "1 s"))
    rows.append(("dry run, gpt2", seconds(lambda: eb.dry_run(small, setup)), "1.5 s"))
    ours = seconds(lambda: eb.dry_run(xl, setup))
    rows.append(("dry run, gpt2-xl", ours, "4 s"))
    eager = setup.replace(attention="eager")  # where CUDA's choices and the CPU's are the same
    start = time.perf_counter()
    _, peak = referee.mem_tracker(xl, eager)
    theirs = time.perf_counter() - start
    trace = eb.dry_run(xl, eager)
    rows.append(("MemTracker, gpt2-xl, eager (two steps)", theirs, ""))
    rows.append(("dry run, gpt2-xl, eager", seconds(lambda: eb.dry_run(xl, eager), 3), ""))
    print(Table(["what", "seconds", "bound"], [[what, f"{taken:.4f}", bound] for what, taken, bound in rows]))
    print(f"MemTracker / dry run: {theirs / rows[-1][1]:.0f} x; bound 20 x")
    counters = 4 * sum(a.part == "parameters" for a in trace.allocations)
    print(
        f"peaks: MemTracker {peak:,} B, of which {counters:,} B step counters, on the CPU's side; dry run {trace.peak:,} B"
    )


def agreement(seeds=5000):
    """Every step of the grid, and `seeds` random ones of any architecture, saved and shared in any way: predicted and counted."""
    drawn = (grid.everything(seed)[:2] for seed in range(seeds))
    configurations = [step for step in chain(grid.steps(), drawn) if not_derived(*step) is None]
    with ProcessPoolExecutor() as pool:
        work = pool.map(grid.disagreements, *zip(*configurations, strict=True), chunksize=8)
        found = [
            (model.name, setup, wrong)
            for (model, setup), wrong in zip(configurations, tqdm(work, total=len(configurations)), strict=True)
            if wrong
        ]
    for model, setup, wrong in found[:20]:
        print(model, setup, *wrong, sep="\n  ")
    print(
        f"{len(configurations):,} configurations that are derived, each exact and in 512-byte blocks: {len(found):,} disagree"
    )
    return bool(found)


def deriving():
    """Times of derivations and of what is asked of them, beside their bounds."""
    import numpy

    setup, rows = eb.Setup(sequence=1024, precision="bf16-mixed"), []
    for name, bound in (("gpt2", 5), ("llama-3.1-8b", 15), ("llama-3.1-70b", 15)):
        start = time.perf_counter()
        found = eb.derive(eb.model(name), setup, keep=False)
        rows.append((f"derive, {name}", time.perf_counter() - start, f"{bound} s"))
    compiled, gpu = found.compiled(), eb.gpu("h200")
    batches, sequences = numpy.arange(1, 101)[:, None], numpy.arange(64, 6464, 64)[None, :]
    rows.append(
        ("its peak at one point", seconds(lambda: [compiled(8, 1024) for _ in range(1000)]) / 1000, "0.00002 s")
    )
    rows.append(("its peak at 10,000 points", seconds(lambda: found.peaks(batches, sequences)), "0.2 s"))
    rows.append(("fit, derived", seconds(lambda: eb.fit(found, setup, gpu)), "0.05 s"))
    print(Table(["what", "seconds", "bound"], [[what, f"{taken:.6f}", bound] for what, taken, bound in rows]))


if __name__ == "__main__":
    wanted = sys.argv[1:] or ["speed", "deriving", "derivations", "grid"]
    if "speed" in wanted:
        speed()
    if "deriving" in wanted:
        deriving()
    wrong = derivations.main([]) if "derivations" in wanted else 0
    sys.exit(wrong or (agreement() if "grid" in wanted else 0))
