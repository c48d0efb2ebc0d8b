"""What PyTorch's CUDA build wants of NVIDIA's libraries: read from its own, with readelf."""

import mmap
import re
import subprocess
from collections import defaultdict
from pathlib import Path

from ..common import children

#: Libraries of NVIDIA's that PyTorch links with or opens by name.
NVIDIA = re.compile(
    r"lib(cuda|cudart|cublas|cublasLt|cudnn|cufft|cufile|cupti|curand|cusolver|cusparse|cusparseLt|nccl|nvrtc|nvshmem_host"
    r"|nvJitLink|nvToolsExt|nvidia-ml)\.so\.\d+"
)
#: A function's beginning -> whose it is, for those that are imported without a version. The longer ones come first.
OWNERS = {
    "cusparseLt": "cusparseLt", "cublasLt": "cublasLt", "cusolver": "cusolver", "cusparse": "cusparse", "nvshmem": "nvshmem_host",
    "curand": "curand", "cublas": "cublas", "cuFile": "cufile", "cupti": "cupti", "cudnn": "cudnn", "cufft": "cufft",
    "nvrtc": "nvrtc", "nccl": "nccl", "nvml": "nvidia-ml", "cuda": "cudart", "cu": "cuda",
}  # fmt: skip
#: What is opened by name at run time, so that no library says it needs it.
DRIVER, MANAGEMENT = "libcuda.so.1", "libnvidia-ml.so.1"
#: Libraries of PyTorch's that look functions up by name; a larger one is not searched.
ASKS_BY_NAME, LARGEST = re.compile(r"c10_cuda|torch_cuda\.so|torch_python|torch_nvshmem"), 60_000_000
#: Also as the end of a longer string: linkers merge them.
_BY_NAME = re.compile(rb"(?<!\w)((?:cu[A-Z]|nvml[A-Z])\w{3,60})\0")
_ARCHITECTURES = re.compile(rb"((?:(?:sm|compute)_\d+[af]? ?)+)\0")


def said(*command) -> str:
    """What a command prints.

    Raises:
        ValueError: where it fails, with its last words.
    """
    words = [str(word) for word in command]
    done = children.run(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    if done.returncode:
        raise ValueError(f"rehearsal: {Path(str(command[0])).name} failed: {done.stderr.strip()[-2000:]}")
    return done.stdout


def torch_libraries(site: Path) -> list[Path]:
    """PyTorch's own libraries in a folder of packages."""
    return sorted((site / "torch" / "lib").glob("*.so*")) + sorted((site / "torch").glob("_C*.so"))


def wanted(libraries: list[Path]) -> dict[str, dict[str, str | None]]:
    """Library of NVIDIA's -> function -> the version that it is imported with, or None."""
    found = defaultdict(dict)
    for path in libraries:
        for soname in needed(said("readelf", "-dW", path)):
            found[soname]
        versions = origins(said("readelf", "-VW", path))
        for name, version in imported(said("readelf", "--dyn-syms", "-W", path)):
            library = versions.get(version) if version else owner(name, found)
            if library and NVIDIA.fullmatch(library):
                found[library][name] = version
    for path in libraries:
        if ASKS_BY_NAME.search(path.name) and path.stat().st_size < LARGEST:
            for name in asked_by_name(path.read_bytes()):
                found[owner(name, found)].setdefault(name, None)
    return dict(found)


def needed(dynamic: str) -> list[str]:
    """NVIDIA's libraries in what `readelf -d` says that a library needs."""
    return [soname for soname in re.findall(r"\(NEEDED\).*\[(.*)\]", dynamic) if NVIDIA.fullmatch(soname)]


def origins(versions: str) -> dict[str, str]:
    """Version -> the library that it is asked of, from `readelf -V`."""
    found, library = {}, None
    for line in versions.splitlines():
        if match := re.search(r"File: (\S+)", line):
            library = match[1]
        elif library and (match := re.search(r"Name: (\S+)", line)):
            found[match[1]] = library
    return found


def imported(symbols: str) -> list[tuple[str, str | None]]:
    """(function, its version or None) of what `readelf --dyn-syms` calls undefined."""
    rows = (line.split() for line in symbols.splitlines())
    names = [row[7].partition("@") for row in rows if len(row) > 7 and row[6] == "UND"]
    return [(name, version.lstrip("@") or None) for name, _, version in names]


def owner(name: str, sonames) -> str | None:
    """The library among `sonames` that a function without a version belongs to; the driver's, where it is the driver's."""
    for beginning, library in OWNERS.items():
        if re.match(rf"(__)?{beginning}[A-Z_]|{beginning}x?_", name) and not name.startswith("_Z"):
            stem = f"lib{library}.so."
            unnamed = {"cuda": DRIVER, "nvidia-ml": MANAGEMENT}.get(library)
            return next((soname for soname in sonames if soname.startswith(stem)), unnamed)
    return None


def asked_by_name(text: bytes) -> list[str]:
    """Functions of the driver and of the management library that stand as strings in a library."""
    return sorted({name.decode() for name in _BY_NAME.findall(text)})


def architectures(library: Path) -> list[int]:
    """Compute capabilities (75 for 7.5) that PyTorch's kernels are compiled for, as `torch.cuda.get_arch_list()` has them.

    Raises:
        ValueError: where the library, `libtorch_python.so`, has no such list.
    """
    with library.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as text:
        found = max(_ARCHITECTURES.findall(text), key=len, default=b"")
    if not found:
        raise ValueError(
            f"rehearsal.torch: {library.name} does not say what GPUs it has kernels for; allowed: a wheel of PyTorch's"
        )
    return [int(number) for number in re.findall(rb"sm_(\d+)", found)]


def cuda_version(site: Path) -> int:
    """The CUDA that PyTorch was built for: 13000 for 13.0.

    Raises:
        ValueError: where there is no PyTorch, or it was built without CUDA.
    """
    path = site / "torch" / "version.py"
    if not path.exists():
        raise ValueError(
            "rehearsal.torch: it is not installed there; `make rehearsal` sets up an environment that has it"
        )
    match = re.search(r"^cuda\b.*?['\"](\d+)\.(\d+)", path.read_text(encoding="utf-8"), re.M)
    if not match:
        raise ValueError(
            "rehearsal.torch: it is built without CUDA, and a rehearsal runs the CUDA build; `make rehearsal`"
        )
    return 1000 * int(match[1]) + 10 * int(match[2])


def torch_version(site: Path) -> str:
    """PyTorch's version, as it says it."""
    text = (site / "torch" / "version.py").read_text(encoding="utf-8")
    return re.findall(r"__version__ = ['\"](.*?)['\"]", text)[0]


def folder(site: Path) -> Path:
    """Where PyTorch looks for NVIDIA's libraries, and the stubs go: the last such place of its run path."""
    dynamic = said("readelf", "-dW", site / "torch" / "lib" / "libtorch_cuda.so")
    paths = re.search(r"R(?:UN)?PATH\).*\[(.*)\]", dynamic)
    places = [place for place in paths[1].split(":") if "nvidia" in place] if paths else []
    if not places:
        raise ValueError("rehearsal.torch: it looks for NVIDIA's libraries in no folder of packages; allowed: a wheel")
    return Path(places[-1].replace("$ORIGIN", str(site / "torch" / "lib"))).resolve()
