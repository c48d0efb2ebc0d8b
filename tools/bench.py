"""What the book promises of speed and agreement, measured: `make bench` (all), or `bench.py` and one of speed, deriving,
serving, evidence, reserved (beside every shipped rehearsal), rehearsing (where `make rehearsal` has made its environment),
derivations (of Hugging Face configurations: half an hour), grid, meshes (any model on GPUs in any dimensions), families (transformers'
code: `families.py`).

Times depend on the machine; what counts is the ratio to PyTorch's MemTracker, taken in the same run.
"""

import re
import subprocess
import sys
import time
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from itertools import chain
from statistics import median

import derivations
import families
import grid
import meshed
import witnesses
from tqdm.auto import tqdm

import everybyte as eb
from everybyte.ask.mesh import DIMENSIONS
from everybyte.common.tables import Table
from everybyte.theory.budget import not_derived


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
    people = "import everybyte as eb; eb.budget(eb.model('llama-3.2-1b'), eb.Setup(precision='bf16'))"
    rows.append(("import, and a first budget of Hugging Face's code", fresh(people), "0.5 s"))
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


def serving():
    """CPU time of what each model of the catalog serves, with nothing remembered, beside its bound."""
    from everybyte.theory import inference

    rows, refused = [], 0
    for name in eb.models():
        model = eb.model(name)
        for cache in ("dynamic", "static", "paged"):
            try:
                taken = []
                for _ in range(2):
                    inference._course.cache_clear()
                    start = time.process_time()  # the machine may have others to serve
                    eb.serve(model, "h200", min(model.positions or 8192, 8192), cache=cache)
                    taken.append(time.process_time() - start)
            except ValueError:
                refused += 1
            else:
                rows.append((min(taken), name, cache))
    rows.sort(reverse=True)
    print(
        f"{len(rows)} answers of eb.serve, {refused} refused; bound 0.05 s; the middle one {rows[len(rows) // 2][0]:.4f} s; the slowest:"
    )
    print(Table(["model", "cache", "seconds"], [[name, cache, f"{taken:.4f}"] for taken, name, cache in rows[:5]]))


def agreement(seeds=5000):
    """Every step of the grid, and `seeds` random ones of any architecture, saved and shared in any way, and of each a tenth as many
    with adapters, on one GPU or several, in a library's loop, with what saves memory besides, or whose sequences are shared, matrices or experts divided, or layers
    cut into a pipeline, or whose small optimizer has a share: predicted and counted."""
    drawn = (grid.everything(seed)[:2] for seed in range(seeds))
    configurations = [step for step in chain(grid.steps(), drawn) if not_derived(*step) is None]
    for draw in (grid.adapted, grid.apart, grid.library, grid.spared, grid.flat):
        configurations += [step for *step, _ in map(draw, range(seeds // 10)) if not_derived(*step) is None]
    configurations = [(*step, grid.BLOCKS, 0) for step in configurations]
    for draw in (grid.ring, grid.divided, grid.visited, grid.halved, grid.crossed, grid.piped, grid.staged, grid.lean):
        meshed = map(draw, range(seeds // 10))
        configurations += [(m, setup, grid.BLOCKS, rank) for m, setup, rank in meshed if not_derived(m, setup) is None]
    with ProcessPoolExecutor() as pool:
        work = pool.map(witnesses.disagreements, *zip(*configurations, strict=True), chunksize=8)
        found = [
            (model.name, setup, wrong)
            for (model, setup, *_), wrong in zip(configurations, tqdm(work, total=len(configurations)), strict=True)
            if wrong
        ]
    for model, setup, wrong in found[:20]:
        print(model, setup, *wrong, sep="\n  ")
    print(
        f"{len(configurations):,} configurations that are derived, each exact and in 512-byte blocks: {len(found):,} disagree"
    )
    return bool(found)


#: Of a refusal what is its own: sizes, and what its mesh is.
OWN = re.compile(
    r"; .*|(?<=mesh) [^:;,]*?(?= is |[:;,]|$)|(?<=meshed) \d+|(sequence_parallel|loss_parallel|rotation|routing|schedule|stages)=\S+ "
    r"|\d+(\.\d+)?(?!\w)"
)


def meshes(count=500, at_once=256):
    """At least `count` random runs on GPUs in any dimensions, as anybody may ask for them: how many are refused and why, how many
    priced, and of how many the witnesses say different things, each as it is found."""
    priced, refused, wrong, seeds = Counter(), Counter(), [], 0
    with ProcessPoolExecutor() as pool, tqdm(total=count) as bar:
        while priced.total() < count:
            drawn = range(seeds, seeds := seeds + at_once)
            for seed, (why, found) in zip(drawn, pool.map(meshed.outcome, drawn, chunksize=8), strict=True):
                if why:
                    refused[OWN.sub(lambda match: "" if match[0][0] == ";" or match[1] else "…", why)] += 1
                    bar.set_postfix(refused=refused.total(), wrong=len(wrong), refresh=False)
                    continue
                model, asked, _ = meshed.meshed(seed)
                cut = [name for name in (*DIMENSIONS, "expert") if asked["mesh"].get(name, 1) > 1]
                cut += [asked["sharding"]] if asked["gpus"] > 1 else []
                priced["mixture" if model.experts else model.family, ", ".join(cut) or "nothing"] += 1
                if found:
                    wrong.append(seed)
                    bar.write("\n  ".join([f"meshed.meshed({seed})", *found[:5]]))
                bar.update()
    rows = [[*key, number] for key, number in sorted(priced.items())]
    print(Table(["model", "divided by", "priced"], rows))
    print(Table(["refused, by reason", "layouts"], [[why, number] for why, number in refused.most_common()]))
    print(
        f"{seeds:,} random layouts and ranks: {refused.total():,} refused, {priced.total():,} priced, each exact and in 512-byte blocks: "
        f"{len(wrong):,} disagree"
    )
    return bool(wrong)


def deriving():
    """Times of derivations and of what is asked of them, beside their bounds."""
    import numpy

    setup, rows = eb.Setup(sequence=1024, precision="bf16-mixed"), []
    for name, bound in (("gpt2", 5), ("llama-3.1-8b", 15), ("llama-3.1-70b", 15)):
        model = eb.model(name)
        eb.dry_run(model, setup)  # what PyTorch loads at the first, it has then
        start = time.process_time()  # the machine may have others to serve
        eb.dry_run(model, setup)
        once, start = time.process_time() - start, time.process_time()
        found = eb.derive(model, setup, keep=False)
        took = time.process_time() - start
        rows += [(f"derive, {name}, CPU", took, f"{bound} s"), ("times a dry run of it", took / once, "")]
    compiled, gpu = found.compiled(), eb.gpu("h200")
    batches, sequences = numpy.arange(1, 101)[:, None], numpy.arange(64, 6464, 64)[None, :]
    rows.append(
        ("its peak at one point", seconds(lambda: [compiled(8, 1024) for _ in range(1000)]) / 1000, "0.00002 s")
    )
    rows.append(("its peak at 10,000 points", seconds(lambda: found.peaks(batches, sequences)), "0.2 s"))
    rows.append(("fit, derived", seconds(lambda: eb.fit(found, setup, gpu)), "0.05 s"))
    print(Table(["what", "seconds", "bound"], [[what, f"{taken:.6f}", bound] for what, taken, bound in rows]))


def evidence():
    """Times of the simulator, of a snapshot and of the monitor, beside their bounds."""
    import pickle
    import tempfile
    from pathlib import Path

    import torch

    from everybyte.dryrun.requests import requests

    trace = eb.dry_run(eb.model("gpt2-xl"), eb.Setup(batch=8, sequence=1024, precision="bf16-mixed"))
    asked = requests(trace, eb.gpu("h200").cublas_workspace)
    count = len(asked.beginning) + len(asked.first) + 2 * len(asked.steady)
    played = seconds(lambda: trace.on("h200"), 3)
    rows = [(f"gpt2-xl's beginning and three steps, {count:,} requests, played", played, "")]
    rows.append(("of it one step", played * len(asked.steady) / count, "0.5 s"))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "large.pickle"
        path.write_bytes(pickle.dumps(snapshot_of(100_000)))
        read = seconds(lambda: eb.draw.png(eb.snapshot(path, progress=False).main.figure()), 3)
        rows.append((f"a snapshot of 100,000 events, {path.stat().st_size / 1e6:.0f} MB, read and drawn", read, "5 s"))
    net = torch.nn.Sequential(*[torch.nn.Linear(1024, 1024) for _ in range(8)])
    optimizer = torch.optim.AdamW(net.parameters())
    start = time.perf_counter()
    with eb.Monitor(device="cpu") as monitor:
        for _ in range(100):
            net(torch.ones(256, 1024)).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
    elapsed = time.perf_counter() - start
    print(Table(["what", "seconds", "bound"], [[what, f"{taken:.4f}", bound] for what, taken, bound in rows]))
    print(
        f"the monitor's share of {elapsed / 100 * 1e3:.1f} ms a step on the CPU: {monitor.spent / elapsed:.3%}; bound 1 %"
    )


def snapshot_of(count):
    """A snapshot with so many events, with frames as deep as a training script's."""
    frames = [
        [{"filename": f"/x/{i % 13}.py", "line": i % 100, "name": f"f{d}"} for d in range(12)] for i in range(200)
    ]
    events, mib = [], 2**20
    for i in range(count // 2):
        event = {"size": mib, "stream": 0, "frames": frames[i % 200]}
        events.append(event | {"action": "alloc", "addr": i % 400 * mib})
        events.append(event | {"action": "free_requested", "addr": (i - 300) % 400 * mib})
    block = {"size": mib, "requested_size": mib, "state": "active_allocated", "frames": []}
    segment = {"address": 0, "total_size": 300 * mib, "allocated_size": 300 * mib, "blocks": [block] * 300}
    return {"segments": [segment], "device_traces": [events]}


def reserved(shelf="h200"):
    """What dry runs say that the allocator reserves, beside each shipped rehearsal that came to its end."""
    from everybyte.rehearsal import shipped

    found, rows = [r for r in shipped(shelf).found.values() if not r.oom], []
    for rehearsal in tqdm(found):
        said = eb.dry_run(rehearsal.model, rehearsal.setup).on(shelf).reserved
        rows.append((said / rehearsal.reserved - 1, rehearsal))
    within = [sum(abs(off) <= share for off, _ in rows) for share in (0.01, 0.02, 0.05)]
    print(
        f"{len(rows)} rehearsed steps on {shelf}: reserved within 1, 2, 5 %: {', '.join(map(str, within))}; bound: 95 % within 2 %"
    )
    for off, r in sorted(rows, key=lambda row: -abs(row[0]))[: len(rows) - within[1]]:
        print(f"  {off:+.1%} {r.reserved:,} B {r.model.name} {r.setup}")


def rehearsing():
    """Times of making the stubs and of a rehearsed step, beside their bounds; where there is an environment for it."""
    import tempfile
    from pathlib import Path

    from everybyte.rehearsal import place, steps, stubs

    here, gpu = place.find(), eb.gpu("h200")
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        start = time.perf_counter()
        stubs.build(place.site_packages(here.folder), str(here.python), out=Path(folder) / "stubs")
        rows.append(("the stubs, headers fetched", time.perf_counter() - start, "15 s"))
    with steps.worker(here, gpu) as worker:
        start = time.perf_counter()
        worker.ask(120, ask="device", device=None)
        rows.append(("a worker, started", time.perf_counter() - start, ""))
        step = eb.model("gpt2"), eb.Setup(precision="bf16-mixed"), gpu, 120.0
        rows.append(("GPT-2, two warm-up steps and one counted", seconds(lambda: steps.one(worker, *step), 3), "5 s"))
    print(Table(["what", "seconds", "bound"], [[what, f"{taken:.1f}", bound] for what, taken, bound in rows]))


if __name__ == "__main__":
    wanted = sys.argv[1:] or [
        "speed",
        "deriving",
        "serving",
        "evidence",
        "reserved",
        "derivations",
        "meshes",
        "families",
        "grid",
    ]
    if "speed" in wanted:
        speed()
    if "deriving" in wanted:
        deriving()
    if "evidence" in wanted:
        evidence()
    if "serving" in wanted:
        serving()
    if "reserved" in wanted:
        reserved()
    if "rehearsing" in wanted:
        rehearsing()
    wrong = derivations.main([]) if "derivations" in wanted else 0
    wrong |= meshes() if "meshes" in wanted else 0
    wrong |= families.main() if "families" in wanted else 0
    sys.exit(wrong or (agreement() if "grid" in wanted else 0))
