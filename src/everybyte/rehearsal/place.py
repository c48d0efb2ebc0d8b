"""The environment of rehearsals: PyTorch's CUDA build and the stubs, without NVIDIA's packages.

NVIDIA's libraries beside the stubs would be found first, or overwrite them, and PyTorch would crash. So an environment that has
them is refused before anything is written, and empty packages with their names keep pip from installing them.
"""

import json
import os
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ..common import checks, children, files
from . import libraries, stubs

#: The environment's folder in the project, and the variable that names another one.
FOLDER, VARIABLE = ".venv-rehearsal", "EVERYBYTE_REHEARSAL_VENV"
#: Release of PyTorch -> the version of it that was tried, the default first. What was tried: a GPT's steps in one file, eager and
#: compiled; Hugging Face's Llama; FSDP1 and FSDP2 on rank 0 of 2; FSDP1 on two processes. Of 2.5 and 2.4 not Hugging Face's Llama, and
#: FSDP2 by its name of then; of 2.4 nothing compiled; 2.11 by what labs/README.md says of the H200's record.
TORCHES = {
    "2.13": "2.13.0", "2.12": "2.12.1", "2.11": "2.11.0", "2.10": "2.10.0", "2.9": "2.9.1", "2.8": "2.8.0", "2.7": "2.7.1",
    "2.6": "2.6.0", "2.5": "2.5.1", "2.4": "2.4.1",
}  # fmt: skip
DEFAULT = next(iter(TORCHES.values()))
#: Packages that the labs need beside it.
BESIDE = ("numpy>=2", "tqdm>=4.66", "bitsandbytes>=0.50", "lion-pytorch>=0.2.5", "peft>=0.21")
#: Packages of NVIDIA's without a library: they ask the stubs.
HARMLESS = ("nvidia_ml_py",)
#: The content of the empty packages' INSTALLER files.
INSTALLER = "everybyte-rehearsal"
PROJECT = Path(__file__).resolve().parents[3]
#: A requirement in PyTorch's metadata that is NVIDIA's, and not installed, or Triton: name, extras, versions.
_REQUIRED = re.compile(r"^Requires-Dist: ((?:nvidia|cuda|triton)[\w-]*)(?:\[(.*?)\])?\s*\(?([^;)]*)", re.M)
#: Seconds that pip gets to clean up when it is interrupted.
GRACE = 5.0
#: What says of a layer, an environment over another, which that is, and what was installed into it (`versions`).
LAYER = "layer.json"
_REAL_GPU = ("/dev/nvidiactl", "/dev/nvidia0", "/dev/dxg")


@dataclass(frozen=True)
class Place:
    """An environment that a rehearsal can run in.

    Attributes:
        folder: of the environment. python: its interpreter. stubs: the folder of the libraries that do nothing.
        manifest: PyTorch's and CUDA's versions, and the capabilities that there are kernels for.
    """

    folder: Path
    python: Path
    stubs: Path
    manifest: dict


def check_machine() -> None:
    """Raise ValueError where the stubs, assembler for Linux on x86-64, cannot be built."""
    if sys.platform != "linux" or platform.machine() != "x86_64":
        here = f"{platform.system()} on {platform.machine()}"
        raise ValueError(
            f"rehearse: it needs Linux on x86-64, and this is {here}; allowed: there, or `everybyte dry-run`, anywhere"
        )
    for tool, package in (("gcc", "gcc"), ("readelf", "binutils"), ("as", "binutils")):
        if not shutil.which(tool):
            raise ValueError(f"rehearse: {tool} is not there, and makes the stubs; install {package}, and say it again")


def check_python(python: Path) -> None:
    """Raise ValueError where a Python has no Python.h: Triton compiles with it."""
    include = libraries.said(python, "-c", "import sysconfig; print(sysconfig.get_path('include'))").strip()
    if not (Path(include) / "Python.h").exists():
        raise ValueError(f"rehearse: Python.h is not in {include}, and Triton compiles its launcher with it; install python3-dev "
                         "(python3-devel), or `everybyte rehearse --set-up --without-triton`")  # fmt: skip


def real_gpu() -> bool:
    """Whether this machine seems to have an NVIDIA GPU."""
    return any(Path(path).exists() for path in _REAL_GPU)


def where(folder: str | os.PathLike | None = None) -> Path:
    """The environment's folder: the one given, that of the variable, the project's, or one in the working folder."""
    if folder or os.environ.get(VARIABLE):
        return Path(folder or os.environ[VARIABLE]).absolute()
    there = PROJECT / FOLDER
    return there if there.exists() or (PROJECT / "pyproject.toml").exists() else Path.cwd() / FOLDER


def version(said: str) -> str:
    """A version of PyTorch that a release or a version names: 2.9.1 for "2.9".

    Raises:
        ValueError: where no version of that release was tried.
    """
    numbers = re.fullmatch(r"(\d+\.\d+)(\.\d+)?", said) if isinstance(said, str) else None
    if numbers is None or numbers[1] not in TORCHES:
        why = "no version" if numbers is None else "of a release that was not tried on the stubs"
        raise ValueError(f"rehearse.torch: {checks.shown(said)} is {why}; allowed: {', '.join(TORCHES)}, or a version of theirs, "
                         f"such as {DEFAULT}")  # fmt: skip
    return said if numbers[2] else TORCHES[said]


def site_packages(folder: Path) -> Path | None:
    """The folder of an environment's packages; None where there is no such environment."""
    return next(iter(sorted(folder.glob("lib/python3.*/site-packages"))), None)


def version_in(folder: Path) -> str | None:
    """The version of an environment's PyTorch, without its CUDA; None where there is none."""
    site = site_packages(folder)
    if site is None or not (site / "torch" / "version.py").exists():
        return None
    return libraries.torch_version(site).partition("+")[0]


def nvidia(site: Path) -> list[str]:
    """NVIDIA's packages in a folder of packages, by name; where there are none, NVIDIA's libraries that are no stubs."""
    packages = [
        info.name.removesuffix(".dist-info")
        for info in sorted(site.glob("nvidia_*.dist-info"))
        if not is_empty(info) and info.name.split("-")[0] not in HARMLESS
    ]
    return packages or [
        str(path.relative_to(site)) for path in sorted(site.glob("nvidia/**/lib*.so*")) if not _stub(path)
    ]


def is_empty(info: Path) -> bool:
    """Whether a package, by its folder of metadata, is one of the empty ones."""
    installer = info / "INSTALLER"
    return installer.exists() and installer.read_text(encoding="utf-8").strip() == INSTALLER


def _stub(path):
    small = path.is_file() and path.stat().st_size < 2**20
    return path.name == stubs.BODIES or small and stubs.BODIES.encode() in path.read_bytes()


def refuse_nvidia(site: Path) -> None:
    """Raise ValueError where NVIDIA's own libraries are in an environment."""
    if found := nvidia(site):
        names = ", ".join(found[:3]) + (f" and {len(found) - 3} more" if len(found) > 3 else "")
        raise ValueError(
            f"rehearse: {site.parents[2].name} has NVIDIA's own libraries ({names}), and stubs beside them would crash; "
            f"allowed: an environment without them, by `make rehearsal`, or {VARIABLE}=FOLDER"
        )


def find(folder: str | os.PathLike | None = None) -> Place:
    """The environment of rehearsals. Stubs that were built from other sources, or for another PyTorch, are built again.

    Raises:
        ValueError: where there is none, or it has NVIDIA's own libraries, saying what to do.
    """
    check_machine()
    folder = where(folder)
    if (folder / LAYER).exists():
        layer = files.parsed((folder / LAYER).read_bytes())
        base = find(layer["base"])
        if base.manifest["torch"] != layer["torch"]:
            raise ValueError(f"rehearse: {folder.name} was laid over PyTorch {layer['torch']}, and {base.folder.name} has "
                             f"{base.manifest['torch']}; allowed: the first, or delete {folder}")  # fmt: skip
        return Place(folder, folder / "bin" / "python", base.stubs, base.manifest | {"packages": layer["packages"]})
    site = site_packages(folder)
    if site is None or not (site / "torch").exists():
        raise ValueError(f"rehearse: there is no environment for it in {folder.name}; `make rehearsal` sets it up, or "
                         "`everybyte rehearse --set-up` (PyTorch's CUDA build, 0.5 GB to fetch)")  # fmt: skip
    refuse_nvidia(site)
    python = folder / "bin" / "python"
    place = libraries.folder(site)
    manifest = _manifest(place)
    if (
        manifest is None
        or manifest["source"] != stubs.source()
        or manifest["torch"] != libraries.torch_version(site)
        # pip deletes them with a package; that those there are stubs is known already
        or not all((place / name).is_file() for name in (stubs.BODIES, *manifest["libraries"]))
    ):
        manifest = stubs.build(site, str(python))
    return Place(folder, python, place, manifest)


def _manifest(place):
    path = place / stubs.MANIFEST
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else None


def set_up(folder: str | os.PathLike | None = None, torch: str = DEFAULT, say=print, triton: bool = True) -> Place:
    """Create or complete the environment: PyTorch's CUDA build without NVIDIA's packages, its other requirements, the stubs.

    Args:
        triton: whether to install Triton, for scripts that compile (0.2 GB to fetch); one that is there stays.

    Raises:
        ValueError: where this machine cannot, the network is missing, or NVIDIA's own packages are there: then nothing is written.
    """
    check_machine()
    torch = version(torch)
    folder = where(folder)
    there = site_packages(folder)
    if there is not None:
        refuse_nvidia(there)
    if real_gpu():
        say("This machine has a GPU: `everybyte measure` says more than any rehearsal.")
    if there is None:
        say(f"An environment for rehearsals, {folder.name}")
        run([sys.executable, "-m", "venv", str(folder)])
    if (site := site_packages(folder)) is None:
        raise ValueError(f"rehearse: {folder} has no folder of packages, which `python -m venv` makes")
    if triton:
        check_python(folder / "bin" / "python")
    pip = pip_of(folder)
    if version_in(folder) != torch:
        say(f"PyTorch {torch}, built for CUDA: 0.5 GB to fetch, to 2.10 0.9 GB")
        run([*pip, "--no-deps", f"torch==={torch}"])
    if triton:
        install_triton(site, pip, say)
    stand_in(site)
    hold(folder, site)
    run([*pip, f"torch==={torch}", *BESIDE])
    refuse_nvidia(site)
    return find(folder)


def install(names: Sequence[str], folder: str | os.PathLike | None = None, say=print) -> Place:
    """Install packages into the environment, PyTorch and the empty packages held where they are.

    Raises:
        ValueError: where there is no environment, and where pip fails: a package that needs another PyTorch is refused by it.
    """
    place = find(folder)
    if (place.folder / LAYER).exists():
        raise ValueError(
            f"rehearse.install: {place.folder.name} is a layer; allowed: --with, for another set of packages"
        )
    if (site := site_packages(place.folder)) is not None:
        hold(place.folder, site)
    say(f"{', '.join(names)} into {place.folder.name}")
    run([*pip_of(place.folder), *held(place.folder), *names])
    return find(folder)


def pip_of(folder: Path) -> list[str]:
    """The words with which an environment's pip installs what follows them."""
    return [str(folder / "bin" / "python"), "-m", "pip", "install", "--disable-pip-version-check", "-q"]


def hold(folder: Path, site: Path) -> None:
    """Have every pip of the environment, a reader's own too, keep PyTorch, Triton and the empty packages: by its configuration.

    Args:
        site: where these are; of a layer it is another environment's.
    """
    lines = [f"torch=={libraries.torch_version(site).partition('+')[0]}"]
    for info in sorted(site.glob("*.dist-info")):
        name, number = info.name.removesuffix(".dist-info").rsplit("-", 1)
        if name == "triton" or is_empty(info):
            lines.append(f"{name.replace('_', '-')}=={number}")
    (folder / "constraints.txt").write_text("\n".join([*lines, ""]), encoding="utf-8")
    (folder / "pip.conf").write_text(f"[install]\nconstraint = {folder / 'constraints.txt'}\n", encoding="utf-8")


def held(folder: Path) -> list[str]:
    """The words with which pip reads what `hold` wrote, whatever its configuration is."""
    return ["-c", str(folder / "constraints.txt")]


def install_triton(site: Path, pip: list[str], say) -> None:
    """Install the Triton that PyTorch's metadata require, where it is not there; the empty package in its place goes."""
    wish = next((versions.strip() for name, _, versions in _requirements(site) if name == "triton"), None)
    there = list(site.glob("triton-*.dist-info"))
    if wish is None or any(f"=={info.name[7:-10]}" == wish and not is_empty(info) for info in there):
        return
    say(f"triton{wish}, for scripts that compile: 0.2 GB to fetch")
    for info in filter(is_empty, there):
        shutil.rmtree(info)
    run([*pip, "--no-deps", f"triton{wish}"])


def _requirements(site):
    metadata = next(site.glob("torch-*.dist-info")) / "METADATA"
    return _REQUIRED.findall(metadata.read_text(encoding="utf-8"))


def run(command: list[str]) -> str:
    """Run pip or venv, whose output goes to standard error; its warnings. Raise ValueError with its last words where it fails."""
    done = children.run(command, grace=GRACE, stdout=sys.stderr, stderr=subprocess.PIPE, text=True)
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["it said nothing"])[-1]
        raise ValueError(
            f"rehearse: {' '.join(command[1:4])} failed: {last}; it needs a network, or a folder of wheels for pip"
        )
    return done.stderr


def stand_in(site: Path) -> list[str]:
    """Write an empty package for what PyTorch requires of NVIDIA's, and of Triton where it is not there, so that pip counts it as
    installed; their names."""
    made = []
    for name, extras, wish in _requirements(site):
        version = next((v for how, v in re.findall(r"(==|>=)\s*([\w.]+)", wish)), "0")
        info = site / f"{name.replace('-', '_')}-{version}.dist-info"
        if info.exists():
            continue
        provided = "".join(f"Provides-Extra: {extra.strip()}\n" for extra in extras.split(",") if extra)
        summary = "Empty: it stands in for NVIDIA's in a rehearsal, which has no GPU"
        texts = {
            "METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\nSummary: {summary}\n{provided}",
            "INSTALLER": INSTALLER + "\n",
            "WHEEL": "Wheel-Version: 1.0\nGenerator: everybyte\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        }
        info.mkdir()
        for file, text in texts.items():
            (info / file).write_text(text, encoding="utf-8")
        (info / "RECORD").write_text(
            "".join(f"{info.name}/{file},,\n" for file in [*texts, "RECORD"]), encoding="utf-8"
        )
        made.append(name)
    return made
