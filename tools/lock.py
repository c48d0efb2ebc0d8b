"""Write constraints.txt and the locks: `make lock`, with uv and the network.

constraints.txt is what is edited: a version there is taken as it stands, a line that is not there is chosen anew, and everything that
the package, its build, its release or JupyterLite asks for is put in, for Linux, macOS and Windows, Python 3.11 and newer. The locks
have the same versions and the SHA-256 of each of their files that the index serves. Running it twice changes nothing.
"""

import re
import subprocess
import sys
import tomllib
from pathlib import Path

from lite import TOOLS

ROOT = Path(__file__).resolve().parents[1]
LOCKS = ROOT / "locks"
CONSTRAINTS = ROOT / "constraints.txt"
#: What the release runs: it builds the wheel and tries it.
RELEASE = ("build", "uv")
#: What only PyTorch's default build for Linux requires.
CUDA = re.compile(r"(nvidia|cuda)-|triton$")
#: uv resolves for a browser's Python too, which installs nothing from here.
ELSEWHERE = "== 'emscripten'"
HEAD = "# Written by `make lock`, from constraints.txt. For `pip install --require-hashes --no-deps`: see tools/install.py.\n"


def resolve(*requirements: str, project: bool = False) -> dict[str, str]:
    """{name: its lines of a lock} of what these requirements, and the project's with all extras, ask for."""
    said = subprocess.run(
        [sys.executable, "-m", "uv", "pip", "compile", "--quiet", "--universal", "--generate-hashes", "--python-version", "3.11", "--no-header",
         "--no-annotate", "--only-binary", ":all:", "-c", CONSTRAINTS, "-", *(["pyproject.toml", "--all-extras"] if project else [])],
        cwd=ROOT, input="\n".join(requirements), stdout=subprocess.PIPE, text=True, check=True,
    ).stdout  # fmt: skip
    found = {re.match(r"[\w.-]+", block)[0]: block for block in re.split(r"(?m)^(?=\w)", said) if block}
    return {name: block for name, block in found.items() if ELSEWHERE not in block}


def main() -> int:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    build = project["build-system"]["requires"]
    everything = resolve(*build, project=True)
    heavy = {name for name in everything if name == "torch" or CUDA.match(name)}
    locks = {
        "install": {name: block for name, block in everything.items() if name not in heavy},
        "torch": {name: everything[name] for name in sorted(heavy)},
        "release": resolve(*build, *RELEASE),
        "lite": resolve(*build, *TOOLS),
    }
    for name, blocks in locks.items():
        (LOCKS / f"{name}.txt").write_text(HEAD + "".join(blocks.values()), encoding="utf-8", newline="\n")
    pins = {tuple(re.match(r"(\S+)==(\S+)", block).groups()) for blocks in locks.values() for block in blocks.values()}
    said = [line for line in CONSTRAINTS.read_text(encoding="utf-8").splitlines() if line.startswith("#")]
    CONSTRAINTS.write_text("\n".join([*said, *map("==".join, sorted(pins)), ""]), encoding="utf-8", newline="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
