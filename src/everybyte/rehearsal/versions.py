"""Other versions of PyTorch, and of packages, beside the default environment of rehearsals: a folder each, made at its first use.

A version of PyTorch is an environment of its own, which has the default's other packages as links to the same files. Packages are
a layer: an environment whose path goes on with that of the one below. Neither changes the default.
"""

import csv
import hashlib
import json
import os
import re
import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from ..common import checks, files
from ..common.tables import Table
from . import place
from .place import Place

#: The folder of environments ends so, after the default's name; an environment that is whole has this file.
SUFFIX, WHOLE = "-versions", "whole"
#: Packages that belong to an environment's PyTorch: they are not linked, and no layer has them.
OWN = re.compile(r"torch|triton|nvidia.*|cuda-(toolkit|bindings|pathfinder)|pip|setuptools")
#: The first line of a script that Python runs.
_PYTHON = re.compile(rb"#!/.*/python[\d.]*$")
#: The most characters of a layer's name: Linux reads so long a first line of a script, with the folder before it.
_LONG = 60


def root(folder: str | os.PathLike | None = None) -> Path:
    """The folder of the other environments: beside the default, with its name before it."""
    default = place.where(folder)
    return default.with_name(default.name + SUFFIX)


def environment(
    torch: str | None = None,
    packages: Sequence[str] = (),
    folder: str | os.PathLike | None = None,
    say: Callable[[str], None] = print,
) -> Path:
    """The folder of an environment with a version of PyTorch and of packages. One that is not there is made, from pip's index.

    Args:
        torch: a release ("2.9") or a version ("2.9.0"); by default what the default environment has.
        packages: `name==version` each, of what the default's should not be taken. folder: of the default environment.
        say: is called with what is done, where something is.

    Raises:
        ValueError: for a release that was not tried, a package without a version, PyTorch among the packages; where pip fails.
    """
    place.check_machine()
    wish, names = torch and place.version(torch), requirements(packages)
    base = _at(wish, folder)
    if wish and not (base / WHOLE).exists() and place.version_in(place.where(folder)) != wish:
        set_up(wish, folder, say=say)
    return layer(place.find(base), names, root(folder), say).folder if names else base


def find(torch: str, packages: Sequence[str] = ()) -> str:
    """The folder of an environment that is there, with a version of PyTorch ("" for the default's) and of packages; none is made.

    Raises:
        ValueError: where there is none, with the command that makes it.
    """
    wish = {
        "torch": place.version(torch) if torch else place.version_in(place.where()),
        "packages": requirements(packages),
    }
    for said in _listed():
        if said["whole"] and {name: said[name] for name in wish} == wish:
            return said["folder"]
    asked = ["--torch", torch] * bool(torch) + ["--with", *packages] * bool(packages)
    raise ValueError(f"rehearse: no environment has that; `everybyte rehearse {' '.join(asked)}` makes it")


def set_up(
    torch: str | None = None,
    folder: str | os.PathLike | None = None,
    triton: bool = True,
    say: Callable[[str], None] = print,
) -> Path:
    """Make or mend the environment of a version of PyTorch; its folder. Arguments and errors as `place.set_up` has them."""
    wish = torch and place.version(torch)
    here, default = _at(wish, folder), place.where(folder)
    if here == default:
        return place.set_up(here, wish or place.DEFAULT, say, triton=triton).folder
    with _locked(here):
        _make(here, wish, default, say, triton)
    return here


def _at(wish, folder):
    """Where a version of PyTorch is, or will be: the default environment, where it has it, or is to be made with it."""
    default = place.where(folder)
    return default if wish in (None, place.version_in(default) or place.DEFAULT) else root(folder) / f"torch-{wish}"


def requirements(packages: Sequence[str]) -> dict[str, str]:
    """Package -> version, in the order of their names.

    Raises:
        ValueError: where one has no version, or two, or is PyTorch's own.
    """
    found: dict[str, str] = {}
    for said in packages:
        parts = re.fullmatch(r"([A-Za-z0-9](?:[\w.-]*[A-Za-z0-9])?)==([A-Za-z0-9][\w.!+]*)", said)
        if not parts:
            raise ValueError(
                f"rehearse.packages: {checks.shown(said)}; allowed: a name and its version, such as transformers==5.12.1"
            )
        name = re.sub(r"[-_.]+", "-", parts[1]).lower()
        if OWN.fullmatch(name):
            raise ValueError(
                f"rehearse.packages: {checks.shown(said)} belongs to PyTorch; allowed: --torch VERSION, and other packages"
            )
        if found.setdefault(name, parts[2]) != parts[2]:
            raise ValueError(
                f"rehearse.packages: {name} in two versions, {found[name]} and {parts[2]}; allowed: one of them"
            )
    return dict(sorted(found.items()))


def layer(base: Place, packages: dict[str, str], folder: Path, say: Callable[[str], None]) -> Place:
    """The layer with some packages over an environment. One that is not there is made: what those below have, and fits, stays theirs.

    Args:
        packages: of `requirements`. folder: where layers are.

    Raises:
        ValueError: where pip fails: a version that is not there, or that needs another PyTorch.
    """
    torch = base.manifest["torch"].partition("+")[0]
    name = "+".join([f"torch-{torch}", *(f"{package}-{version}" for package, version in packages.items())])
    if len(name) > _LONG:
        name = f"{name[: _LONG - 9]}-{hashlib.sha256(name.encode()).hexdigest()[:8]}"
    here = folder / name
    with _locked(here):
        if not (here / place.LAYER).exists():
            _lay(here, base, packages, say)
    return place.find(here)


def _lay(here, base, packages, say):
    """Make a layer; its file, which says that it is whole, is written last."""
    shutil.rmtree(here, ignore_errors=True)  # half of one, where its making was interrupted
    wish = [f"{name}=={version}" for name, version in packages.items()]
    say(f"{', '.join(wish)} over PyTorch {base.manifest['torch']}: a folder of their own, {here.name}")
    place.run([str(base.python), "-m", "venv", "--without-pip", str(here)])
    site, below = place.site_packages(here), place.site_packages(base.folder)
    (site / "below.pth").write_text(f"import site; site.addsitedir({str(below)!r})\n", encoding="utf-8")
    place.hold(here, below)
    for line in place.run([*place.pip_of(here), *place.held(here), *wish]).splitlines():
        if "but you have" in line:  # pip's words on a package below that needs another version
            say(f"{line.strip()} To have another of it: --with NAME==VERSION")
    _scripts(base.folder, here)
    said = {"base": str(base.folder), "torch": base.manifest["torch"], "packages": packages}
    with files.whole(here / place.LAYER) as file:
        file.write(json.dumps(said).encode())


def _make(here, torch, default, say, triton):
    """Make an environment of another PyTorch, with the default's packages, or go on with it; the file that says so is written last."""
    say(f"PyTorch {torch} beside {default.name}: a folder of its own, {here.name}, some 2 GB")
    theirs = place.site_packages(default)
    if place.site_packages(here) is None:
        python = str(default / "bin" / "python") if theirs else sys.executable
        place.run([python, "-m", "venv", str(here)])
    if theirs is not None:
        linked = share(theirs, place.site_packages(here))
        _scripts(default, here)
        say(f"the same files as in {default.name}: {', '.join(linked)}")
    place.set_up(here, torch, say, triton=triton)
    (here / WHOLE).touch()


def share(there: Path, here: Path) -> list[str]:
    """Link an environment's packages into another, file by file; their names.

    Left out is what belongs to a certain PyTorch: itself, Triton, NVIDIA's, what requires one version of it, or is linked with it.

    Args:
        there, here: folders of packages. Where they cannot share files, on two disks, these are copied.
    """
    names = []
    for info in sorted(there.glob("*.dist-info")):
        name = info.name.removesuffix(".dist-info").rsplit("-", 1)[0]
        if not (info / "RECORD").exists() or OWN.fullmatch(name.replace("_", "-").lower()) or place.is_empty(info):
            continue
        rows = csv.reader((info / "RECORD").read_text(encoding="utf-8").splitlines())
        paths = [Path(row[0]) for row in rows if row and ".." not in row[0] and (there / row[0]).is_file()]
        paths.sort(key=lambda path: path.parts[0] == info.name)  # last what says that it is installed
        if not _of_one_torch(info, [there / path for path in paths]):
            for path in paths:
                (here / path).parent.mkdir(parents=True, exist_ok=True)
                _linked(there / path, here / path)
            names.append(name)
    return names


def _of_one_torch(info, paths):
    """Whether a package requires one version of PyTorch, or is linked with its libraries."""
    wishes = re.findall(r"^Requires-Dist: torch(?![\w.-])(.*)$", (info / "METADATA").read_text(encoding="utf-8"), re.M)
    exact = any("==" in wish.partition(";")[0] for wish in wishes if "extra ==" not in wish)
    return exact or any(b"libc10.so" in path.read_bytes() for path in paths if wishes and path.suffix == ".so")


def _linked(there, here):
    if here.exists():
        return
    try:
        os.link(there, here)
    except OSError:
        shutil.copy2(there, here)


def _scripts(there, here):
    """Write an environment's scripts of Python into another's folder of programs, to be run by its Python; what is there stays."""
    for path in sorted((there / "bin").iterdir()):
        written = here / "bin" / path.name
        if path.is_symlink() or written.exists():
            continue
        first, _, text = path.read_bytes().partition(b"\n")
        if _PYTHON.match(first):
            written.write_bytes(f"#!{here / 'bin' / 'python'}\n".encode() + text)
            written.chmod(0o755)


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """A context that one process at a time has, of those that would make an environment."""
    import fcntl  # not on Windows, where nothing is rehearsed

    folder.parent.mkdir(parents=True, exist_ok=True)
    with folder.with_name(f"{folder.name}.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def there(folder: str | os.PathLike | None = None) -> list[dict]:
    """The environments that there are: the default, then the others by name. Each as `folder`, `torch`, `packages`, `bytes`, `whole`.

    `bytes` are those on the disk that no other environment shares.
    """
    return [said | {"bytes": _own_bytes(said["folder"])} for said in _listed(folder)]


def _listed(folder=None):
    """As `there` says them, but for the bytes, for which every file is looked at."""
    default, beside = place.where(folder), root(folder)
    others = [path for path in sorted(beside.glob("*")) if path.is_dir()] if beside.exists() else []
    return [_told(path, default) for path in [default, *others] if place.site_packages(path) is not None]


def _own_bytes(path):
    stats = (os.lstat(os.path.join(at, name)) for at, _, names in os.walk(path) for name in names)
    return sum(stat.st_size for stat in stats if stat.st_nlink == 1)


def _told(path, default):
    said = files.parsed((path / place.LAYER).read_bytes()) if (path / place.LAYER).exists() else {"packages": {}}
    return {
        "folder": str(path), "torch": said.get("torch", "").partition("+")[0] or place.version_in(path), "packages": said["packages"],
        "whole": path == default or "torch" in said or (path / WHOLE).exists(),
    }  # fmt: skip


def table(found: list[dict]) -> Table:
    """The environments, with what removes one."""
    from .. import units

    rows = [
        [said["torch"] or "", ", ".join("==".join(pair) for pair in said["packages"].items()), units.text(said["bytes"]),
         said["folder"] + ("" if said["whole"] else " (not finished: its next use goes on)")]
        for said in found
    ]  # fmt: skip
    caption = "Environments of rehearsals, the default first. To remove one, delete its folder; layers over it go with it: rm -r FOLDER"
    return Table(["PyTorch", "with", "of its own", "folder"], rows, caption)
