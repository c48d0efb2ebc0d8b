"""Libraries that stand where PyTorch looks for NVIDIA's, and do nothing: written, compiled, and marked as what they are."""

import hashlib
import json
import re
import tempfile
import zipfile
from collections import defaultdict
from pathlib import Path

from ..common import files
from . import libraries
from .libraries import said

NATIVE = Path(__file__).resolve().parent / "native"
#: The library of all bodies, and what says how the stubs were made.
BODIES, MANIFEST = "libeverybyte-rehearsal.so", "everybyte-rehearsal.json"
#: Functions with "Create" in their names whose first argument is no place for a handle.
_NO_HANDLE = re.compile(r"cudnnBackend|cufftCreate|cudaStreamCreate|cudaEventCreate|cuTensorMap|GraphConditional")
#: Functions that say how many bytes of workspace another needs -> the places of the pointers behind which they do: none. What
#: cuSOLVER and cuSPARSE take in truth is in no header. Their C functions say it as an int, the others as a size_t.
_SIZED = {
    "cusolverDn[SDCZ](geqrf|getrf|potrf)": (5,), "cusolverDn[SDCZ]gesvd": (3,), "cusolverDn[SDCZ]gesvdaStridedBatched": (16,),
    "cusolverDn[SDCZ]gesvdj": (12,), "cusolverDn[SDCZ]gesvdjBatched": (11,), "cusolverDn[SDCZ](sy|he)ev(d|jBatched)": (7,),
    "cusolverDn[SDCZ]sytrf": (4,), "cusolverDn[SDCZ](or|un)gqr": (7,), "cusolverDn[SDCZ](or|un)mqr": (11,),
    "cusolverDnXgeev": (17, 18), "cusolverDnXgeqrf": (10, 11), "cusolverDnXpotrf": (8, 9), "cusolverDnX(syevd|syevBatched|sytrs)": (11, 12),
    "cusparse(SpMM|SDDMM|SpSM)": (10,), "cusparseSp[MS]V": (9,), "cusparseX(coo|csr)sort": (6,),
}  # fmt: skip
_REGISTERS = ("%rdi", "%rsi", "%rdx", "%rcx", "%r8", "%r9")
_VERSIONS = {"CUDNN_VERSION_SAID": 92000, "NCCL_VERSION_SAID": 22907}
#: Marks in NVIDIA's headers that a compiler for the host has no use for.
_MARKS = (
    "__device_builtin__ __host__ __device__ __align__(n) __builtin_align__(n) __device_builtin_texture_type__ "
    "__device_builtin_surface_type__ __cudart_builtin__ __CUDA_DEPRECATED CUDARTAPI __location__(x)"
)
_MACROS = """\
.macro function name
.globl \\name
.type \\name, @function
.balign 16
\\name:
.endm
.macro answered name
function \\name
jmp answer_\\name@PLT
.endm
.macro counted name, number
function \\name
lock incq empty+16*\\number+8(%rip)
.endm
.macro nothing name, number
counted \\name, \\number
xor %eax, %eax
ret
.endm
.macro handle name, number
counted \\name, \\number
jmp rehearsal_handle@PLT
.endm
.text
"""


def answers() -> set[str]:
    """Functions that have a body."""
    return {name for path in NATIVE.glob("*.c") for name in re.findall(r"\bANSWER\((\w+)\)\(", path.read_text("utf-8"))}


def source() -> str:
    """Which generator and bodies these are: a SHA-256 of their text."""
    paths = [*sorted(NATIVE.iterdir()), Path(__file__), Path(libraries.__file__)]
    return hashlib.sha256(b"\0".join(path.read_bytes() for path in paths)).hexdigest()


def assembly(soname: str, functions, bodies: set[str]) -> str:
    """A library in GNU assembler: each function jumps to its body, or counts the call and returns 0 (and a handle, if asked)."""
    lines, empty = [_MACROS], []
    for name in sorted(functions):
        if name in bodies:
            lines.append(f"answered {name}")
            continue
        if places := sized(name):
            lines += [
                f"function {name}",
                *(line for place in places for line in _zero(place, not re.match("cusolverDn[SDCZ]", name))),
            ]
            lines += ["xor %eax, %eax", "ret"]
            continue
        kind = "handle" if "Create" in name and not _NO_HANDLE.search(name) else "nothing"
        lines.append(f"{kind} {name}, {len(empty)}")
        empty.append(name)
    lines += [".data", ".balign 16", "empty:", *(f".quad name{i}, 0" for i in range(len(empty))), ".quad 0, 0"]
    lines += [".section .rodata", *(f'name{i}: .asciz "{name}"' for i, name in enumerate(empty))]
    lines += [f'library: .asciz "{soname}"', ".text", "report:", "lea library(%rip), %rdi", "lea empty(%rip), %rsi"]
    lines += ["jmp rehearsal_report@PLT", '.section .fini_array, "aw"', ".quad report"]
    return "\n".join([*lines, '.section .note.GNU-stack, "", @progbits', ""])


def sized(name: str) -> tuple[int, ...]:
    """The places of a function's arguments behind which it says how large a workspace is; none where it says none."""
    return next((places for names, places in _SIZED.items() if re.fullmatch(f"{names}_bufferSize(Ext)?", name)), ())


def _zero(place, wide):
    """Assembler that writes zero behind an argument: the first six are in registers, the others on the stack."""
    register = _REGISTERS[place] if place < len(_REGISTERS) else "%rax"
    load = [] if place < len(_REGISTERS) else [f"mov {8 * (place - len(_REGISTERS) + 1)}(%rsp), %rax"]
    return [*load, f"mov{'q' if wide else 'l'} $0, ({register})"]


def add_bodies(functions: dict[str, dict[str, str | None]], bodies: set[str]) -> None:
    """Add bodies that PyTorch's libraries do not link with: looked up by name, or asked of the runtime by other packages (bitsandbytes).

    Args:
        functions: library -> function -> its version; the runtime's functions all have one.
    """
    for name in bodies:
        if re.match(r"cu[A-Z]|nvml|cuda[A-Z]", name):
            if (library := libraries.owner(name, functions)) is None:
                raise ValueError(f"{name}: of no library of NVIDIA's; allowed: a name that begins as theirs do")
            there = functions.setdefault(library, {})
            there.setdefault(name, next(iter(there.values()), None) if name.startswith("cuda") else None)


def version_script(functions: dict[str, str | None]) -> str:
    """The linker's script that gives functions the versions that they are imported with; empty where none has one."""
    names = defaultdict(list)
    for name, version in functions.items():
        names[version].append(name)
    return "".join(f"{v} {{ global: {'; '.join(sorted(n))}; }};\n" for v, n in sorted(names.items(), key=str) if v)


def build(site: Path, python: str) -> dict:
    """Make the stubs for the PyTorch in a folder of packages, where it looks for NVIDIA's libraries.

    Args:
        site: holds `torch`. python: of that environment; its pip fetches NVIDIA's headers, 2 MB, which are not kept.

    Returns:
        The manifest: versions, capabilities that PyTorch has kernels for, and which sources made it.
    """
    cuda, version = libraries.cuda_version(site), libraries.torch_version(site)
    out = libraries.folder(site)
    functions, bodies = libraries.wanted(libraries.torch_libraries(site)), answers()
    add_bodies(functions, bodies)
    built_for = libraries.architectures(site / "torch" / "lib" / "libtorch_python.so")
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as made:
        work = Path(made)
        include = _headers(work, python, cuda)
        (work / "crt").mkdir()
        (work / "crt" / "host_defines.h").write_text(
            "".join(f"#undef {mark.partition('(')[0]}\n#define {mark}\n" for mark in _MARKS.split())
        )
        compile_ = ["gcc", "-O2", "-shared", "-fPIC", "-w", f"-L{out}", "-Wl,-rpath,$ORIGIN"]
        told = {"CUDA_VERSION_SAID": cuda, "ARCHITECTURES": ",".join(map(str, built_for)), **_VERSIONS}
        told["DRIVER"] = f'"{out / libraries.DRIVER}"'
        defined = [f"-D{name}={value}" for name, value in told.items()]
        sources = sorted(NATIVE.glob("*.c"))
        said(*compile_, f"-I{work}", f"-I{include}", *defined, *sources, "-o", out / BODIES, "-ldl", "-lpthread")
        for soname, wanted in functions.items():
            (work / "stub.S").write_text(assembly(soname, wanted, bodies))
            script = version_script(wanted)
            (work / "stub.map").write_text(script)
            versioned = [f"-Wl,--version-script={work / 'stub.map'}"] if script else []
            bodies_too = ["-Wl,--no-as-needed", f"-l:{BODIES}"]
            said(*compile_, work / "stub.S", "-o", out / soname, f"-Wl,-soname,{soname}", *bodies_too, *versioned)
        linked = out / libraries.DRIVER.removesuffix(".1")  # Triton to 3.2 links with it by this name
        linked.unlink(missing_ok=True)
        linked.symlink_to(libraries.DRIVER)
    manifest = {
        "torch": version,
        "cuda": cuda,
        "capabilities": sorted(built_for),
        "source": source(),
        "libraries": {soname: len(wanted) for soname, wanted in sorted(functions.items())},
    }
    with files.whole(out / MANIFEST) as file:
        file.write(f"{json.dumps(manifest, indent=1)}\n".encode())
    return manifest


def _headers(work, python, cuda):
    """NVIDIA's headers of that CUDA, from its package, which is not installed."""
    package = "nvidia-cuda-runtime" if cuda >= 13000 else f"nvidia-cuda-runtime-cu{cuda // 1000}"
    wish = f"{package}=={cuda // 1000}.{cuda // 10 % 100}.*"
    try:
        said(python, "-m", "pip", "download", "-q", "--no-deps", "--only-binary=:all:", "-d", work, wish)
    except ValueError as error:
        raise ValueError(
            f"rehearsal.headers: {wish} could not be fetched (its headers say how CUDA lays out a device's properties); "
            "allowed: a network, or a folder of wheels for pip"
        ) from error
    with zipfile.ZipFile(next(work.glob("*.whl"))) as wheel:
        names = [name for name in wheel.namelist() if re.fullmatch(r"[\w./-]+\.(h|hpp)", name) and ".." not in name]
        wheel.extractall(work, names)
    return next(work.rglob("driver_types.h")).parent
