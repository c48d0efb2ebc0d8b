"""Try a built wheel where nothing else is: installed in an environment of its own, from an empty folder.

    python -m pip wheel --no-deps -w dist . && python tools/wheel.py dist/everybyte-*.whl

It brings sympy and no torch; the command budgets and fits; what needs torch says in one sentence what to install.
"""

import json
import os
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

#: In bytes: the parts add up to it, and the tests of the theory say so of GPT-2's step.
STEP = ("gpt2", "--batch", "8", "--sequence", "1024", "--precision", "bf16-mixed")


def main(wheel: Path) -> None:
    """Raises RuntimeError where the installed package does not do what it promises."""
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        venv.create(folder / "env", with_pip=True)
        scripts = folder / "env" / ("Scripts" if os.name == "nt" else "bin")
        clean = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "EVERYBYTE"))}
        (folder / "empty").mkdir()

        def run(*command, status=0):
            done = subprocess.run(
                [str(scripts / command[0]), *command[1:]], cwd=folder / "empty", env=clean, capture_output=True, text=True,
            )  # fmt: skip
            if done.returncode != status or "Traceback" in done.stderr:
                raise RuntimeError(f"{' '.join(command)}: status {done.returncode}\n{done.stdout}{done.stderr}")
            return done.stdout, done.stderr

        def holds(condition, what):
            if not condition:
                raise RuntimeError(what)

        run("python", "-m", "pip", "install", "--disable-pip-version-check", "-q", str(wheel.resolve()))
        installed, _ = run("python", "-m", "pip", "list", "--format=json", "--disable-pip-version-check")
        names = {package["name"].lower() for package in json.loads(installed)} - {"pip", "setuptools"}
        holds(names == {"everybyte", "sympy", "mpmath"}, f"it brings {', '.join(sorted(names))}")
        version, _ = run("python", "-c", "import everybyte; print(everybyte.__version__)")
        holds(version.strip() == wheel.name.split("-")[1], f"{wheel.name} says that it is {version.strip()}")
        step = json.loads(run("everybyte", "budget", *STEP, "--json")[0])
        holds(step["peak"] == sum(step["parts"].values()) > 8 * 10**9, f"a budget of {step['peak']} bytes")
        fits = json.loads(run("everybyte", "fit", "gpt2", "--gpu", "rtx-4090", "--json")[0])
        holds(fits["value"] >= 1, f"a fit of {fits['value']}")
        holds("gpt2-xl" in run("everybyte", "models")[0], "the catalog of models is not there")
        formulas = "import everybyte as eb; print(eb.formula('flops.forward').expr)"
        holds(run("python", "-c", formulas)[0].strip(), "a formula does not print")
        _, refused = run("everybyte", "dry-run", *STEP, status=2)
        holds("torch" in refused and len(refused.strip().splitlines()) == 1, f"without torch it says: {refused}")
        print(f"{wheel.name}: installs, budgets, fits, and says what it needs for more")


if __name__ == "__main__":
    try:
        main(Path(sys.argv[1]))
    except RuntimeError as error:
        sys.exit(str(error))
