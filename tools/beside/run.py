"""Scripts on a GPU, and the same in a rehearsal, beside each other: what PyTorch's allocator counted of each.

    python tools/beside/run.py OUT.jsonl                     # on a machine with a GPU; goes on where it stopped
    python tools/beside/run.py OUT.jsonl --rehearse h200     # where there is none

Each line of the file is a case of `cases.py`: what `tell.py` wrote, and what the script printed after FOUND.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parents[1] / "tests"))
import cases  # noqa: E402
import kernel_shapes  # noqa: E402

SCRIPTS = (
    HERE / "scripts",
    HERE.parents[1] / "tests" / "rehearsal" / "scripts",
    HERE.parents[1] / "tests" / "rehearsal",
)
#: Seconds that a case may take; what a script prints before its numbers, in JSON.
EACH, PRINTED = 150, ("FOUND", "MILLISECONDS")


def command(case, told, folder):
    """The words that run a case."""
    script = next(path for path in (place / f"{case['script']}.py" for place in SCRIPTS) if path.exists())
    words = [str(folder) if word == "FOLDER" else word for word in case["words"]]
    return [str(HERE / "tell.py"), str(told), str(script), *words]


def run(case, rehearse, deadline, lock, snapshots=None):
    """A line of the record."""
    with tempfile.TemporaryDirectory() as made:
        told, variables = Path(made) / "told.json", dict(os.environ) | case.get("environment", {})
        if snapshots:
            variables["BESIDE_SNAPSHOT"] = str(snapshots / f"{case['name'].replace(' ', '_')}.pickle.gz")
        words = command(case, told, made)
        if rehearse:
            asked = ["--gpu", rehearse, "--steps", "0", *case.get("options", [])]
            words = [str(Path(sys.executable).parent / "everybyte"), "rehearse", *asked, "--", "python", *words]
        else:
            words = [sys.executable, *words]
            variables |= {"BESIDE_LOCK": f"{lock}:{case['how']}", "BESIDE_IMPORTS": case["imports"]}
        start = time.monotonic()
        try:
            seconds = min(EACH, max(1, deadline - start))
            done = subprocess.run(words, env=variables, capture_output=True, text=True, timeout=seconds)
            out, err, status = done.stdout, done.stderr, done.returncode
        except subprocess.TimeoutExpired as late:
            out, err, status = "", str(late.stderr or b"")[-1500:], "late"
        said = json.loads(told.read_text(encoding="utf-8")) if told.exists() else None
    if status:
        print(err[-1500:], file=sys.stderr)
    if said and case["how"] == "shared":
        said.pop("driver_used", None)  # the whole GPU's
    found = {name: parsed(out.partition(name)[2].split("\n")[0].strip()) for name in PRINTED if name in out}
    return {"group": case["group"], "name": case["name"], "status": status, "told": said, "printed": found}


def parsed(text):
    """A line that a script printed: as JSON, where it is."""
    try:
        return json.loads(text)
    except ValueError:
        return text


def main():
    """Run the cases that the file has not."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--rehearse", metavar="GPU", help="rehearse, on this GPU of `everybyte gpus`")
    parser.add_argument("--groups", nargs="+", help="of cases (default all)")
    parser.add_argument("--only", nargs="+", help="names of cases (default all)")
    parser.add_argument("--snapshots", type=Path, metavar="FOLDER", help="keep PyTorch's memory snapshot of each")
    parser.add_argument("--jobs", type=int, default=2, help="how many at once")
    parser.add_argument("--seconds", type=float, default=3600, help="for all of them")
    options = parser.parse_args()
    there = (
        [json.loads(line) for line in options.out.read_text(encoding="utf-8").splitlines()]
        if options.out.exists()
        else []
    )
    done = {line["name"] for line in there if line["status"] != "late"}
    asked = [c for c in cases.cases(kernel_shapes.asked()) if not options.groups or c["group"] in options.groups]
    todo = [c for c in asked if c["name"] not in done and (not options.only or c["name"] in options.only)]
    if options.snapshots:
        options.snapshots.mkdir(parents=True, exist_ok=True)
    deadline, writing = time.monotonic() + options.seconds, threading.Lock()
    options.out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile() as lock, ThreadPoolExecutor(options.jobs) as pool:

        def one(case):
            if time.monotonic() < deadline - 3:
                line = run(case, options.rehearse, deadline, lock.name, options.snapshots)
                with writing, options.out.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(line) + "\n")
                print(f"{line['status']!s:>4}  {case['name']}", flush=True)

        for running in [pool.submit(one, case) for case in todo]:
            running.result()


if __name__ == "__main__":
    main()
