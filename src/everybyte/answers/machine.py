"""Whether this machine has what the book needs: a verdict in one word, and the details behind it.

The word follows from what the book needs and from nothing else, so that it is the same on every machine that is ready:
a GPU, which only the live labs use, and memory, which is free one moment and not the next, stand in the details.
"""

import sys
import tempfile
import warnings
from dataclasses import dataclass
from html import escape
from importlib.metadata import PackageNotFoundError, metadata, requires, version
from pathlib import Path

from .. import units
from ..common.tables import Table

PYTHON = (3, 11)
#: The package that brings them, with its extras.
_BOOK = __package__.partition(".")[0]
#: The extras of this package that the book is read with.
EXTRAS = ("dryrun", "notebooks")
#: The notebook server's extensions that draw the controls and the pictures of the explorers.
FRONT_ENDS = ("@jupyter-widgets/jupyterlab-manager", "anywidget")
#: Bytes of free memory below which a kernel with PyTorch and a browser beside it are tight.
MEMORY = 2 * units.UNITS["GiB"]
_INSTALL = "Run `make install` (or `pip install -e .[all]`), then restart the kernel."
_READY = "green: everything that this book needs is here"
_COLORS = {"green": "#009e73", "amber": "#e69f00"}


@dataclass(frozen=True)
class Finding:
    """One thing looked at. `ok` is None where nothing depends on it; `found` is in words; `mend`: what to do, where not ok."""

    what: str
    ok: bool | None
    found: str
    mend: str = ""


@dataclass(frozen=True)
class Verdict:
    """What was found on this machine: `green` where all that the book needs is here, else `amber`."""

    findings: tuple[Finding, ...]

    @property
    def missing(self) -> tuple[Finding, ...]:
        """What the book needs and did not find."""
        return tuple(f for f in self.findings if f.ok is False)

    @property
    def word(self) -> str:
        """`green` or `amber`."""
        return "amber" if self.missing else "green"

    def details(self) -> Table:
        """Everything looked at, with versions, the GPU and the free memory: different on every machine."""
        says = {True: "yes", False: "no", None: "optional"}
        return Table(("what", "ready", "found"), [(f.what, says[f.ok], f.found) for f in self.findings])

    def _lines(self):
        needs = [f"{f.what}: {f.found}. {f.mend}" for f in self.missing]
        return ["amber: the book needs more than is here", *needs] if needs else [_READY]

    def __repr__(self):
        return "\n  ".join(self._lines())

    def _repr_html_(self):
        style = f"border-left:4px solid {_COLORS[self.word]};padding:.3em .8em;margin:.3em 0"
        return f'<div role="note" style="{style}">{"<br>".join(map(escape, self._lines()))}</div>'


def book() -> Path:
    """The book's folder, of which `notebooks` is a part: the working folder's or one above it, or the one that this package is run from.

    Raises:
        ValueError: where there is none.
    """
    here = Path.cwd()
    for folder in (here, *here.parents, Path(__file__).resolve().parents[3]):
        if (folder / "notebooks" / "00_start_here.ipynb").is_file():
            return folder
    raise ValueError(f"book.folder: no notebooks in {here} or above it; allowed: a working folder within the book's")


def verdict() -> Verdict:
    """Look at Python, the packages and their versions, PyTorch, the front end of the explorers, and the folder.

    The bounds of the packages are those of this package's own installation. Loads torch; changes nothing.
    """
    return Verdict((_python(), *_packages(), _torch(), _front_end(), _writing(), _gpu(), _memory()))


def _python():
    found, wanted = (".".join(map(str, numbers)) for numbers in (sys.version_info[:3], PYTHON))
    return Finding("Python", sys.version_info[:2] >= PYTHON, found, f"Install Python {wanted} or newer.")


def _packages():
    """A finding for each package that the extras of the book name: installed, and within the bounds."""
    try:
        extras = metadata(_BOOK).get_all("Provides-Extra") or ()
        from packaging.requirements import Requirement
    except (PackageNotFoundError, ImportError) as error:
        return [Finding("the book's packages", False, f"{error.name or error} is not installed", _INSTALL)]
    if not set(EXTRAS) <= set(extras):
        return [Finding("the book's packages", False, "installed from an older copy of the book", _INSTALL)]
    wanted = {}
    for requirement in map(Requirement, requires(_BOOK)):
        if not requirement.marker or any(requirement.marker.evaluate({"extra": extra}) for extra in EXTRAS):
            wanted[requirement.name] = wanted.get(requirement.name, requirement.specifier) & requirement.specifier
    return [_package(name, bounds) for name, bounds in sorted(wanted.items())]


def _package(name, bounds):
    try:
        found = version(name)
    except PackageNotFoundError:
        return Finding(name, False, "not installed", _INSTALL)
    ok = bounds.contains(found, prereleases=True)
    return Finding(name, ok, found if ok else f"{found}, and the book needs {bounds}", _INSTALL)


def _torch():
    try:
        import torch
    except (ImportError, OSError) as error:  # OSError: one of its libraries does not load
        return Finding("PyTorch runs", False, f"{type(error).__name__} on import", "Install torch again.")
    cuda = torch.version.cuda
    return Finding("PyTorch runs", True, f"built for CUDA {cuda}" if cuda else "built without CUDA")


def _front_end():
    try:
        from jupyter_core.paths import jupyter_path
    except ImportError:
        return Finding("explorers", False, "jupyter_core is not installed", _INSTALL)
    folders = [Path(folder) for folder in jupyter_path("labextensions")]
    absent = [name for name in FRONT_ENDS if not any((folder / name).is_dir() for folder in folders)]
    found = f"JupyterLab lacks {' and '.join(absent)}" if absent else "their front end is in JupyterLab"
    return Finding("explorers", not absent, found, _INSTALL)


def _writing():
    for where, folder in (("this folder", "."), ("the folder for temporary files", None)):
        try:
            with tempfile.TemporaryFile(dir=folder) as file:
                file.write(b"0")
        except OSError as error:
            found = f"{where} cannot be written to ({error.strerror})"
            return Finding("writing", False, found, "Copy the book elsewhere.")
    return Finding("writing", True, "this folder and the one for temporary files")


def _gpu():
    try:
        import torch
    except (ImportError, OSError):
        return Finding("GPU", None, "not looked for: PyTorch does not run")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = torch.cuda.get_device_name(0) if torch.cuda.is_available() else ""
    return Finding("GPU", None, found or "none that PyTorch can use: everything but the live labs works")


def _memory():
    try:
        import psutil
    except ImportError:
        return Finding("free memory", None, "not looked for: psutil is not installed")
    free = psutil.virtual_memory().available
    scarce = f": tight, below {units.text(MEMORY)}; close other programs" if free < MEMORY else ""
    return Finding("free memory", None, units.text(free) + scarce)
