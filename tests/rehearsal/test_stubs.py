"""The libraries that do nothing: as text, and where there is a compiler, called."""

import ctypes
import platform
import shutil
import subprocess
import sys

import pytest

from everybyte.rehearsal import stubs

BODY = """
#include <stdint.h>
static uint64_t said;
int answer_cudaMalloc(void **out, unsigned long size) { *out = (void *)size; return 7; }
uint64_t rehearsal_handle(void **out) { *out = (void *)42; return 0; }
void rehearsal_report(const char *library, void *empty) { }
"""


def test_every_body_is_found_and_no_two_files_answer_the_same():
    names = stubs.answers()
    assert {
        "cudaMalloc",
        "cudaGetDeviceProperties",
        "cuMemCreate",
        "ncclAllGather",
        "cublasLtMatmulAlgoGetHeuristic",
    } <= names
    texts = [path.read_text(encoding="utf-8") for path in stubs.NATIVE.glob("*.c")]
    for name in names:
        assert sum(text.count(f"\nint ANSWER({name})(") for text in texts) <= 1, name


def test_the_source_says_which_stubs_they_are(monkeypatch, tmp_path):
    before = stubs.source()
    shutil.copytree(stubs.NATIVE, tmp_path / "native")
    with (tmp_path / "native" / "memory.c").open("a") as file:
        file.write("/* changed */\n")
    monkeypatch.setattr(stubs, "NATIVE", tmp_path / "native")
    assert stubs.source() != before and len(before) == 64


def test_versions_are_kept():
    functions = {"cudaMalloc": "libcudart.so.13", "cudaFree": "libcudart.so.13", "cuInit": None}
    assert stubs.version_script(functions) == "libcudart.so.13 { global: cudaFree; cudaMalloc; };\n"
    assert stubs.version_script({"cuInit": None}) == ""


def test_what_another_package_asks_the_runtime_for_has_the_runtime_s_version():
    functions = {"libcudart.so.13": {"cudaMalloc": "libcudart.so.13"}}
    stubs.add_bodies(functions, {"cudaMalloc", "cudaMemPrefetchAsync", "cuInit", "ncclAllGather"})
    assert functions == {
        "libcudart.so.13": {"cudaMalloc": "libcudart.so.13", "cudaMemPrefetchAsync": "libcudart.so.13"},
        "libcuda.so.1": {"cuInit": None},
    }
    assert "cudaMemPrefetchAsync" in stubs.answers()  # bitsandbytes' CUDA library links with it


@pytest.mark.skipif(
    sys.platform != "linux" or not shutil.which("gcc") or "x86" not in platform.machine(),
    reason="needs gcc on Linux, x86-64",
)
def test_a_library_of_stubs(tmp_path):
    (tmp_path / "body.c").write_text(BODY)
    functions = dict.fromkeys(("cudaMalloc", "cudaFree", "cublasCreate_v2", "cudaEventCreate"))
    (tmp_path / "stub.S").write_text(stubs.assembly("libcudart.so.13", functions, {"cudaMalloc"}))
    compiler = ["gcc", "-shared", "-fPIC"]
    subprocess.run([*compiler, tmp_path / "body.c", "-o", tmp_path / "libbody.so"], check=True)
    made = ["-o", tmp_path / "libstub.so", f"-L{tmp_path}", "-lbody", f"-Wl,-rpath,{tmp_path}"]
    subprocess.run([*compiler, tmp_path / "stub.S", *made], check=True)
    library, out = ctypes.CDLL(str(tmp_path / "libstub.so")), ctypes.c_void_p()
    assert library.cudaMalloc(ctypes.byref(out), ctypes.c_ulong(123)) == 7 and out.value == 123  # its body was asked
    assert library.cudaFree(out) == 0
    assert library.cublasCreate_v2(ctypes.byref(out)) == 0 and out.value == 42  # who asks for a handle gets one
    event = ctypes.c_void_p(9)
    assert library.cudaEventCreate(ctypes.byref(event)) == 0 and event.value == 9
