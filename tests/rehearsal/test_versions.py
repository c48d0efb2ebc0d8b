"""Other versions of PyTorch and of packages: a folder each, and the default as it was. Without a network: the wheels are made here."""

import subprocess
import sys
import types
import zipfile

import pytest

from everybyte.command import main
from everybyte.rehearsal import compiled, others, place, versions


def wheel(folder, name, version, requires=()):
    """A wheel of one module that knows its version."""
    info, tag = f"{name}-{version}.dist-info", "py3-none-any"
    metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
    texts = {
        f"{name}.py": f"version = {version!r}\n",
        f"{info}/METADATA": metadata + "".join(f"Requires-Dist: {one}\n" for one in requires),
        f"{info}/WHEEL": f"Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: {tag}\n",
        f"{info}/entry_points.txt": f"[console_scripts]\n{name} = {name}:print\n",
    }
    texts[f"{info}/RECORD"] = "".join(f"{file},,\n" for file in [*texts, f"{info}/RECORD"])
    path = folder / f"{name}-{version}-{tag}.whl"
    with zipfile.ZipFile(path, "w") as file:
        for at, text in texts.items():
            file.writestr(at, text)
    return path


@pytest.fixture(scope="module")
def wheels(tmp_path_factory):
    folder = tmp_path_factory.mktemp("wheels")
    for said in [("torch", "2.13.0"), ("torch", "2.14.0"), ("below", "1.0"), ("above", "1.0", ["below>=1"])]:
        wheel(folder, *said)
    for version in ("2.0", "3.0"):
        wheel(folder, "below", version)
    wheel(folder, "newer", "1.0", ["torch>=2.14"])
    return folder


@pytest.fixture(scope="module")
def base(tmp_path_factory, wheels):
    """An environment with pip, a PyTorch of one module, and a package."""
    folder = tmp_path_factory.mktemp("home") / "env"
    subprocess.run([sys.executable, "-m", "venv", folder], check=True)
    site = place.site_packages(folder)
    packages = [wheels / "torch-2.13.0-py3-none-any.whl", wheels / "below-1.0-py3-none-any.whl"]
    subprocess.run(
        [folder / "bin/python", "-m", "pip", "install", "-q", "--no-deps", "--no-index", *packages], check=True
    )
    (site / "torch").mkdir()
    (site / "torch" / "version.py").write_text("__version__ = '2.13.0+cu130'\n")
    return place.Place(
        folder, folder / "bin" / "python", folder / "stubs", {"torch": "2.13.0+cu130", "capabilities": [90]}
    )


@pytest.fixture
def offline(monkeypatch, base, wheels):
    """pip has the wheels alone; the environment below a layer is `base`."""
    for name, value in {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(wheels)}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv(place.VARIABLE, str(base.folder))
    find = place.find
    monkeypatch.setattr(place, "find", lambda folder: base if str(folder) == str(base.folder) else find(folder))


def runs(python, text):
    return subprocess.run([python, "-c", text], capture_output=True, text=True, check=True).stdout.split()


def files(folder):
    return {path: path.lstat().st_mtime_ns for path in folder.rglob("*") if "__pycache__" not in path.parts}


def test_packages_are_a_layer_found_again_and_what_is_below_stays(base, offline, tmp_path):
    said, before = [], files(base.folder)
    made = versions.layer(base, {"above": "1.0", "below": "2.0"}, tmp_path, said.append)
    assert made.folder.name == "torch-2.13.0+above-1.0+below-2.0" and made.stubs == base.stubs
    assert made.manifest["packages"] == {"above": "1.0", "below": "2.0"} and "above==1.0, below==2.0 over" in said[0]
    see = "import above, below, torch; print(above.version, below.version, torch.version)"
    assert runs(made.python, see) == ["1.0", "2.0", "2.13.0"]
    assert files(base.folder) == before and runs(base.python, "import below; print(below.version)") == ["1.0"]
    assert (made.folder / "bin" / "pip").read_text().startswith(f"#!{made.folder}")
    again = versions.layer(base, {"above": "1.0", "below": "2.0"}, tmp_path, lambda text: pytest.fail(text))
    assert again.folder == made.folder


def test_what_is_below_and_fits_is_not_installed_again(base, offline, tmp_path):
    made = versions.layer(base, {"above": "1.0"}, tmp_path, lambda text: None)
    site = place.site_packages(made.folder)
    assert {path.name for path in site.glob("*.py")} == {"above.py"}
    assert (made.folder / "bin" / "below").read_text().startswith(f"#!{made.folder / 'bin' / 'python'}\n")


def test_a_package_that_needs_another_pytorch_is_refused_and_half_a_layer_is_made_again(base, offline, tmp_path):
    with pytest.raises(ValueError, match=r"pip install.*failed: .*"):
        versions.layer(base, {"newer": "1.0"}, tmp_path, lambda text: None)
    here = tmp_path / "torch-2.13.0+newer-1.0"
    assert here.exists() and not (here / place.LAYER).exists()
    (here / "rest").touch()
    with pytest.raises(ValueError, match="failed"):
        versions.layer(base, {"newer": "1.0"}, tmp_path, lambda text: None)
    assert not (here / "rest").exists()


def test_a_layer_over_a_pytorch_that_is_another_now_is_refused(base, offline, tmp_path, monkeypatch):
    made = versions.layer(base, {"below": "3.0"}, tmp_path, lambda text: None)
    monkeypatch.setitem(base.manifest, "torch", "2.11.0+cu130")
    with pytest.raises(
        ValueError, match=r"below-3\.0 was laid over PyTorch 2\.13\.0\+cu130, and env has 2\.11\.0\+cu130"
    ):
        place.find(made.folder)


def test_the_command_makes_a_layer_and_lists_it(base, offline, capfd):
    assert main(["rehearse", "--with", "below==2.0"]) == 0
    out, err = capfd.readouterr()
    assert "PyTorch 2.13.0+cu130, below 2.0" in out and "a folder of their own, torch-2.13.0+below-2.0" in err
    assert main(["rehearse", "--list"]) == 0
    out, _ = capfd.readouterr()
    assert "below==2.0" in out and str(versions.root() / "torch-2.13.0+below-2.0") in out and "rm -r FOLDER" in out
    assert [said["packages"] for said in versions.there()] == [{}, {"below": "2.0"}]


@pytest.mark.parametrize(
    ("packages", "said"),
    [
        (["transformers"], "'transformers'; allowed: a name and its version"),
        (["transformers>=5"], "'transformers>=5'; allowed: a name and its version"),
        (["--index-url=x==1"], "'--index-url=x==1'; allowed: a name"),
        (["torch==2.9.0"], "'torch==2.9.0' belongs to PyTorch; allowed: --torch VERSION"),
        (["nvidia_cudnn_cu12==9.1"], "'nvidia_cudnn_cu12==9.1' belongs to PyTorch"),
        (["peft==0.1", "PEFT==0.2"], "peft in two versions, 0.1 and 0.2"),
    ],
)
def test_what_is_no_package_with_its_version(packages, said):
    with pytest.raises(ValueError, match=f"^rehearse.packages: {said}"):
        versions.requirements(packages)


def test_one_set_of_packages_has_one_name():
    assert list(versions.requirements(["peft==0.1", "Hugging_Face.Hub==1"]).items()) == [
        ("hugging-face-hub", "1"),
        ("peft", "0.1"),
    ]


def test_a_release_of_pytorch_is_the_version_of_it_that_was_tried():
    assert place.version("2.9") == "2.9.1" and place.version("2.9.0") == "2.9.0"
    assert all(version.startswith(release) for release, version in place.TORCHES.items())
    for said in ("2.3", "3", "2.9.1+cu128", "nightly", "2.9.1.0", 2.9):
        with pytest.raises(
            ValueError, match=r"^rehearse\.torch: .*allowed: 2\.13, 2\.12, .*, 2\.4, or a version of theirs"
        ):
            place.version(said)


def test_another_pytorch_is_beside_the_default_and_asked_for_once(base, offline, monkeypatch):
    made = []
    monkeypatch.setattr(place, "set_up", lambda folder, torch, say, triton: made.append((folder.name, torch)))
    monkeypatch.setattr(place, "check_machine", lambda: None)
    said = []
    folder = versions.environment("2.9", say=said.append)
    assert folder == base.folder.with_name("env-versions") / "torch-2.9.1" and made == [("torch-2.9.1", "2.9.1")]
    assert versions.environment("2.9.1", say=lambda text: pytest.fail(text)) == folder
    assert versions.environment("2.13") == versions.environment() == base.folder
    there, here = place.site_packages(base.folder), place.site_packages(folder)
    assert (here / "below.py").samefile(there / "below.py") and not (here / "torch").exists()  # one file on the disk
    assert said[-1] == "the same files as in env: below"


def test_packages_of_one_pytorch_are_not_shared(tmp_path):
    for name, requires, library in [
        ("pinned", "torch==2.13.0", b""), ("linked", "torch>=2", b"\0libc10.so\0"), ("free", "torch>=2", b"\0libc.so.6\0"),
        ("extra", 'torch==2.0; extra == "old"', b""), ("torch", "", b""),
    ]:  # fmt: skip
        info = tmp_path / "there" / f"{name}-1.0.dist-info"
        info.mkdir(parents=True)
        (tmp_path / "there" / f"{name}.so").write_bytes(library)
        (info / "METADATA").write_text(f"Name: {name}\n" + f"Requires-Dist: {requires}\n" * bool(requires))
        (info / "RECORD").write_text(f"{name}.so,,\n{info.name}/METADATA,,\n../../../bin/{name},,\n")
    assert versions.share(tmp_path / "there", tmp_path / "here") == ["extra", "free"]
    assert {path.name for path in (tmp_path / "here").glob("*.so")} == {"extra.so", "free.so"}


def test_names_that_pytorch_had_to_2_6():
    """`impl` has no word for what it overrides, Inductor's choice of padding and its clock are called otherwise."""
    done = []
    library = types.SimpleNamespace(impl=lambda name, function, key, *, with_keyset=False: done.append((name, key)))
    others.override(library, "nonzero", len)
    pads = types.SimpleNamespace(should_pad=lambda key, plain, padded: plain > padded)
    compiled.choose_padding(pads, padded=True)
    clocks = types.SimpleNamespace(TritonBenchmarker=type("Clock", (), {"benchmark_gpu": lambda self, call: 10.0}))
    compiled.count_benchmarks(clocks)
    before = compiled._counts["benchmarks"]
    assert done == [("nonzero", "CUDA")] and pads.should_pad("a", 10.0, 10.0)
    assert clocks.TritonBenchmarker().benchmark_gpu(len) == 10.0 and compiled._counts["benchmarks"] == before + 1
    with pytest.raises(ValueError, match=r"^rehearse\.torch: 2\.4 with torch\.compile: .*; allowed: 2\.5 to 2\.13"):
        compiled.choose_padding(types.SimpleNamespace(), padded=False)


def test_an_environment_is_found_and_none_is_made(monkeypatch, tmp_path):
    at = tmp_path / "layer"
    here = {"folder": str(at), "torch": "2.12.1", "packages": {"transformers": "5.12.1"}, "whole": True}
    monkeypatch.setattr(versions, "_listed", lambda: [here])
    assert versions.find("2.12.1", ["transformers==5.12.1"]) == str(at)
    makes = "everybyte rehearse --torch 2.9 --with transformers==5.12.1` makes it"
    with pytest.raises(ValueError, match=makes):
        versions.find("2.9", ["transformers==5.12.1"])
    monkeypatch.setattr(versions, "_listed", lambda: [here | {"whole": False}])
    with pytest.raises(ValueError, match="no environment has that"):
        versions.find("2.12.1", ["transformers==5.12.1"])


def test_a_package_is_imported_by_its_modules_whatever_its_name():
    import yaml  # noqa: F401, PyYAML's

    from everybyte.rehearsal import watch

    found = watch.packages(["pyyaml", "genanki"])
    assert found["pyyaml"] and "imported" not in found["pyyaml"]
    assert "genanki" in sys.modules or found["genanki"].endswith("(not imported)")
