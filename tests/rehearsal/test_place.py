"""The environment of rehearsals: what is refused is refused before anything is written, in one sentence."""

import platform
import re
import shutil
import sys

import pytest

import everybyte as eb
from everybyte import rehearsal
from everybyte.command import main
from everybyte.rehearsal import devices, place, stubs

METADATA = """Metadata-Version: 2.1
Name: torch
Version: 2.13.0
Requires-Dist: filelock
Requires-Dist: cuda-toolkit[cublas,cudart]==13.0.3; platform_system == "Linux"
Requires-Dist: cuda-bindings<14,>=13.0.3; platform_system == "Linux" and python_version < "3.15"
Requires-Dist: nvidia-cudnn-cu13==9.20.0.48; platform_system == "Linux"
Requires-Dist: triton==3.7.1; platform_system == "Linux"
"""


@pytest.fixture
def site(tmp_path):
    folder = tmp_path / "env" / "lib" / "python3.11" / "site-packages"
    (folder / "torch").mkdir(parents=True)
    (folder / "torch-2.13.0.dist-info").mkdir()
    (folder / "torch-2.13.0.dist-info" / "METADATA").write_text(METADATA)
    return folder


@pytest.fixture
def linux(monkeypatch):
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")
    monkeypatch.setattr(shutil, "which", lambda tool, path=None: f"/usr/bin/{tool}")


def files(folder):
    return {path: path.stat().st_mtime_ns for path in folder.rglob("*")}


def test_nvidia_s_own_packages_are_refused_before_anything_is_written(site, linux, monkeypatch):
    (site / "nvidia_cudnn_cu13-9.20.0.48.dist-info").mkdir()
    monkeypatch.setattr(place, "run", lambda command: pytest.fail("it runs"))
    before, folder = files(site.parents[3]), site.parents[2]
    for refuses in (place.find, place.set_up):
        with pytest.raises(
            ValueError, match=r"^rehearse: env has NVIDIA's own libraries \(nvidia_cudnn_cu13-9\.20\.0\.48\)"
        ):
            refuses(folder)
    assert files(site.parents[3]) == before


def test_nvidia_s_own_libraries_are_refused_also_without_a_package(site):
    (site / "nvidia" / "cu13" / "lib").mkdir(parents=True)
    (site / "nvidia" / "cu13" / "lib" / "libcudart.so.13").write_bytes(b"\x7fELF the real one")
    assert place.nvidia(site) == ["nvidia/cu13/lib/libcudart.so.13"]
    (site / "nvidia" / "cu13" / "lib" / "libcudart.so.13").write_bytes(b"\x7fELF " + stubs.BODIES.encode())
    assert place.nvidia(site) == [] and place.refuse_nvidia(site) is None


def test_a_package_of_nvidia_s_without_a_library_is_none(site):
    (site / "nvidia_ml_py-13.0.dist-info").mkdir()
    assert place.nvidia(site) == []


def test_pip_holds_pytorch_and_the_empty_packages(site, monkeypatch):
    (site / "torch" / "version.py").write_text("__version__ = '2.13.0+cu130'\n")
    place.stand_in(site)
    place.hold(site.parents[2], site)
    held = (site.parents[2] / "constraints.txt").read_text().split()
    assert {"torch==2.13.0", "nvidia-cudnn-cu13==9.20.0.48", "cuda-toolkit==13.0.3"} <= set(held)
    assert (site.parents[2] / "pip.conf").read_text().endswith("env/constraints.txt\n")


def test_empty_packages_keep_pip_from_bringing_the_real_ones(site):
    made = place.stand_in(site)
    assert made == ["cuda-toolkit", "cuda-bindings", "nvidia-cudnn-cu13", "triton"] and place.nvidia(site) == []
    text = (site / "cuda_toolkit-13.0.3.dist-info" / "METADATA").read_text()
    assert "Name: cuda-toolkit\nVersion: 13.0.3\n" in text and "Provides-Extra: cudart\n" in text
    assert "no GPU" in text and (site / "nvidia_cudnn_cu13-9.20.0.48.dist-info" / "RECORD").exists()
    assert place.stand_in(site) == []


def test_triton_comes_alone_and_takes_the_empty_package_s_place(site, monkeypatch):
    place.stand_in(site)
    runs = []
    monkeypatch.setattr(place, "run", lambda command: runs.append(command))
    place.install_triton(site, ["pip", "install"], say=lambda text: None)
    assert runs == [["pip", "install", "--no-deps", "triton==3.7.1"]] and not (site / "triton-3.7.1.dist-info").exists()
    (site / "triton-3.7.1.dist-info").mkdir()  # as pip would
    place.install_triton(site, ["pip", "install"], say=lambda text: pytest.fail(text))
    assert len(runs) == 1 and "triton" not in place.stand_in(site)


def test_triton_without_python_s_headers_is_one_sentence(tmp_path, monkeypatch):
    monkeypatch.setattr(place.libraries, "said", lambda *command: f"{tmp_path}\n")
    with pytest.raises(ValueError, match=r"Python\.h is not in .*; install python3-dev .*--set-up --without-triton"):
        place.check_python(tmp_path / "python")
    (tmp_path / "Python.h").touch()
    assert place.check_python(tmp_path / "python") is None


@pytest.mark.parametrize(("system", "machine"), [("darwin", "arm64"), ("win32", "AMD64"), ("linux", "aarch64")])
def test_elsewhere_than_linux_on_x86_64(monkeypatch, system, machine):
    monkeypatch.setattr(sys, "platform", system)
    monkeypatch.setattr(platform, "machine", lambda: machine)
    with pytest.raises(
        ValueError, match=rf"^rehearse: it needs Linux on x86-64, and this is \w+ on {machine}; allowed: .*dry-run"
    ):
        place.check_machine()


def test_without_a_compiler(monkeypatch, linux):
    monkeypatch.setattr(shutil, "which", lambda tool: None if tool == "gcc" else tool)
    with pytest.raises(ValueError, match="^rehearse: gcc is not there, and makes the stubs; install gcc"):
        place.check_machine()


def test_without_an_environment_it_says_how_to_make_one(tmp_path, linux, capsys, monkeypatch):
    monkeypatch.setenv(place.VARIABLE, str(tmp_path / "none"))
    assert main(["rehearse", "--", "python", "train.py"]) == 2
    out, err = capsys.readouterr()
    assert out == "" and "`make rehearsal` sets it up" in err and "everybyte rehearse --set-up" in err
    with pytest.raises(ValueError, match="^rehearse: there is no environment for it in none"):
        eb.rehearse(eb.model("gpt2"), eb.Setup())


def test_no_network_is_one_sentence(tmp_path, linux, monkeypatch):
    def fails(command, **options):
        return type("Done", (), {"returncode": 1, "stderr": "lots\nERROR: No matching distribution found for torch"})

    monkeypatch.setattr(place.children, "run", fails)
    with pytest.raises(ValueError, match="failed: ERROR: No matching distribution found for torch; it needs a network"):
        place.set_up(tmp_path / "new", say=lambda text: None)
    with pytest.raises(
        ValueError, match=r"^rehearse\.torch: '2\.3' is of a release that was not tried.*allowed: 2\.13, 2\.12, "
    ):
        place.set_up(tmp_path / "new", torch="2.3")


def test_a_real_gpu_is_better_and_said(tmp_path, linux, monkeypatch):
    (tmp_path / "nvidiactl").touch()
    monkeypatch.setattr(place, "_REAL_GPU", (str(tmp_path / "nvidiactl"),))
    monkeypatch.setattr(place, "run", lambda command: (_ for _ in ()).throw(ValueError("stop")))
    said = []
    with pytest.raises(ValueError, match="stop"):
        place.set_up(tmp_path / "new", say=said.append)
    assert said[0] == "This machine has a GPU: `everybyte measure` says more than any rehearsal."


def test_a_script_is_rehearsed_beside_a_real_gpu_and_told_what_is_better(tmp_path, monkeypatch, capsys):
    (tmp_path / "nvidia0").touch()
    monkeypatch.setattr(place, "_REAL_GPU", (str(tmp_path / "nvidia0"),))
    monkeypatch.setattr(
        rehearsal, "rehearse_script", lambda *_, **__: (_ for _ in ()).throw(ValueError("it would run"))
    )
    assert main(["rehearse", "--", "python", "train.py"]) == 2
    said = capsys.readouterr().err
    assert said == "This machine has a GPU: `everybyte measure` says more than a rehearsal.\neverybyte: it would run\n"


def test_a_gpu_of_the_catalog_as_the_stubs_are_told_of_it():
    found = devices.environment(devices.find("a100-80gb", [75, 80]), 2)
    assert found["REHEARSAL_MULTIPROCESSORS"] == "108" and found["REHEARSAL_SHARED"] == str(163 * 1024)
    assert found["REHEARSAL_CAPABILITY"] == "80" and found["REHEARSAL_GPUS"] == "2"
    assert found["REHEARSAL_NAME"] == "rehearsed NVIDIA A100 SXM4 80 GB (no GPU)"
    for gpu in eb.gpus().values():  # what has compute capability has all that stubs are told
        if re.fullmatch(r"[\d.]+", gpu.capability):
            assert gpu.multiprocessors and gpu.l2 and gpu.shared_memory, gpu.name


@pytest.mark.parametrize(
    ("name", "said"),
    [("mi300x", "is not NVIDIA's"), ("v100-16gb", "allowed: 7.5 or more"), ("h2000", "did you mean 'h200'")],
)
def test_a_gpu_that_cannot_be_rehearsed(name, said):
    with pytest.raises(ValueError, match=re.escape(said)):
        devices.find(name, [75, 80, 90])


def test_kernels_run_on_later_gpus_of_their_generation_alone():
    assert devices.find("rtx-4090", [50, 80, 86, 90]).capability == "8.9"
    with pytest.raises(ValueError, match=r"'b200' has compute capability 10\.0.*allowed: a newer PyTorch, by --torch$"):
        devices.find("b200", [50, 60, 70, 75, 80, 86, 90])  # PyTorch 2.5 to 2.7
