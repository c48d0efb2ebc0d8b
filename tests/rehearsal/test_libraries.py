"""What PyTorch's libraries want of NVIDIA's, from what readelf says of them."""

import pytest

from everybyte.rehearsal import libraries

DYNAMIC = """
 0x0000000000000001 (NEEDED)             Shared library: [libcudart.so.13]
 0x0000000000000001 (NEEDED)             Shared library: [libcublasLt.so.13]
 0x0000000000000001 (NEEDED)             Shared library: [libc10_cuda.so]
 0x000000000000000f (RPATH)              Library rpath: [$ORIGIN/../../nvidia/cudnn/lib:$ORIGIN/../../nvidia/cu13/lib:$ORIGIN]
"""
VERSIONS = """
Version needs section '.gnu.version_r' contains 2 entries:
  000000: Version: 1  File: libcudart.so.13  Cnt: 1
  0x0010:   Name: libcudart.so.13  Flags: none  Version: 5
  0x0020: Version: 1  File: libc.so.6  Cnt: 1
  0x0030:   Name: GLIBC_2.2.5  Flags: none  Version: 6
"""
SYMBOLS = """
   Num:    Value          Size Type    Bind   Vis      Ndx Name
     1: 0000000000000000     0 FUNC    GLOBAL DEFAULT  UND cudaMalloc@libcudart.so.13 (5)
     2: 0000000000000000     0 FUNC    GLOBAL DEFAULT  UND ncclAllGather
     3: 0000000000000000     0 FUNC    GLOBAL DEFAULT  UND memcpy@GLIBC_2.2.5 (6)
     4: 0000000000001000    12 FUNC    GLOBAL DEFAULT   12 _ZN2at4addEv
"""


def test_what_readelf_says():
    assert libraries.needed(DYNAMIC) == ["libcudart.so.13", "libcublasLt.so.13"]
    assert libraries.origins(VERSIONS) == {"libcudart.so.13": "libcudart.so.13", "GLIBC_2.2.5": "libc.so.6"}
    assert libraries.imported(SYMBOLS) == [
        ("cudaMalloc", "libcudart.so.13"), ("ncclAllGather", None), ("memcpy", "GLIBC_2.2.5"),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("name", "library"),
    [
        ("cudaMalloc", "libcudart.so.13"), ("cuMemCreate", "libcuda.so.1"), ("cublasLtMatmul", "libcublasLt.so.13"),
        ("cublasSgemm_v2", "libcublas.so.13"), ("ncclAllGather", "libnccl.so.2"), ("nvmlInit_v2", "libnvidia-ml.so.1"),
        ("__cudaRegisterFatBinary", "libcudart.so.13"), ("cusparseLtInit", None), ("memcpy", None), ("_ZN6cudaFooEv", None),
    ],
)  # fmt: skip
def test_whose_a_function_is(name, library):
    there = ["libcublas.so.13", "libcublasLt.so.13", "libcudart.so.13", "libnccl.so.2"]
    assert libraries.owner(name, there) == library


@pytest.mark.parametrize("cuda", ["12", "13"])
def test_libraries_of_both_cudas_are_nvidia_s(cuda):
    """The names that PyTorch 2.5 to 2.9 link with, and those of 2.11 to 2.13: other numbers."""
    sonames = {
        "12": "cublas.so.12 cublasLt.so.12 cudart.so.12 cudnn.so.9 cufft.so.11 cufile.so.0 cupti.so.12 curand.so.10 cusolver.so.11 "
        "cusparse.so.12 cusparseLt.so.0 nccl.so.2 nvrtc.so.12 nvshmem_host.so.3 nvToolsExt.so.1",
        "13": "cublas.so.13 cublasLt.so.13 cudart.so.13 cudnn.so.9 cufft.so.12 cufile.so.0 cupti.so.13 curand.so.10 cusolver.so.12 "
        "cusparse.so.12 cusparseLt.so.0 nccl.so.2 nvrtc.so.13 nvshmem_host.so.3",
    }[cuda].split()  # fmt: skip
    assert all(libraries.NVIDIA.fullmatch(f"lib{name}") for name in sonames)
    there = [f"lib{name}" for name in sonames]
    assert libraries.owner("cublasSgemm_v2", there) == f"libcublas.so.{cuda}"
    assert libraries.owner("cudaMalloc", there) == f"libcudart.so.{cuda}"
    assert libraries.owner("cufftExecC2C", there) == {"12": "libcufft.so.11", "13": "libcufft.so.12"}[cuda]


def test_what_is_asked_for_by_name_also_at_the_end_of_a_longer_string():
    text = b"\0cuMemCreate\0Can't find nvmlInit_v2\0curious\0cudaMalloc\0acuMemMap\0"
    assert libraries.asked_by_name(text) == ["cuMemCreate", "nvmlInit_v2"]


def site(folder, text):
    (folder / "torch").mkdir()
    (folder / "torch" / "version.py").write_text(text)
    return folder


def test_versions(tmp_path):
    found = site(tmp_path, "__version__ = '2.13.0+cu130'\ncuda: Optional[str] = '13.0'\n")
    assert libraries.cuda_version(found) == 13000 and libraries.torch_version(found) == "2.13.0+cu130"


def test_a_pytorch_without_cuda_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"^rehearsal\.torch: it is built without CUDA.*make rehearsal"):
        libraries.cuda_version(site(tmp_path, "__version__ = '2.13.0+cpu'\ncuda: Optional[str] = None\n"))
    with pytest.raises(ValueError, match=r"^rehearsal\.torch: it is not installed there"):
        libraries.cuda_version(tmp_path / "elsewhere")


@pytest.mark.parametrize(
    ("text", "numbers"),
    [
        (b"sm_90\0kernel hsm_70 sm_75 sm_80 sm_86 sm_90 sm_100 sm_120\0", [70, 75, 80, 86, 90, 100, 120]),  # 2.8's
        (b"\0sm_50 sm_60 sm_90\0", [50, 60, 90]),  # 2.5's
    ],
)
def test_capabilities_are_those_of_pytorch_s_list(tmp_path, text, numbers):
    library = tmp_path / "libtorch_python.so"
    library.write_bytes(text)
    assert libraries.architectures(library) == numbers
    library.write_bytes(b"\0nothing\0")
    with pytest.raises(ValueError, match=r"^rehearsal\.torch: libtorch_python\.so does not say what GPUs"):
        libraries.architectures(library)
