"""GPUs by the names that drivers give them."""

import pytest
import torch

import everybyte as eb
from everybyte.catalog import gpus
from everybyte.lab import run
from everybyte.lab.devices import recognize, slug

MIB = 1024**2


@pytest.mark.parametrize(
    ("name", "mib", "expected"),
    [
        ("NVIDIA H200", 143156, "h200"),
        ("NVIDIA H100 80GB HBM3", 81090, "h100-80gb"),
        ("NVIDIA H100 PCIe", 81008, "h100-pcie"),
        ("NVIDIA H100 NVL", 95320, "h100-nvl"),
        ("NVIDIA A100-SXM4-40GB", 40441, "a100-40gb"),
        ("NVIDIA A100-SXM4-80GB", 81222, "a100-80gb"),
        ("NVIDIA A100 80GB PCIe", 81154, "a100-80gb-pcie"),
        ("Tesla V100-SXM2-16GB", 16160, "v100-16gb"),
        ("Tesla T4", 15095, "t4"),
        ("NVIDIA A10G", 22587, "a10g"),
        ("NVIDIA A10", 23028, "a10"),
        ("NVIDIA L4", 22563, "l4"),
        ("NVIDIA GeForce RTX 4090", 24217, "rtx-4090"),
        ("NVIDIA GeForce RTX 4090 Laptop GPU", 16000, None),
        ("NVIDIA RTX 6000 Ada Generation", 48622, "rtx-6000-ada"),
        ("NVIDIA H200", 81000, None),  # a slice of one
        ("NVIDIA", 143156, None),
        ("", 143156, None),
    ],
)
def test_recognize(name, mib, expected):
    found = recognize(name, mib * MIB)
    assert (found and found.name) == expected


def test_every_gpu_of_the_catalog_is_recognized_by_its_title():
    assert {g.name: recognize(g.title, g.memory).name for g in gpus().values()} == {name: name for name in gpus()}


@pytest.mark.parametrize(
    ("name", "file"), [("NVIDIA GH200 480GB", "nvidia-gh200-480gb"), ("x86_64", "x86-64"), ("../", "device")]
)
def test_a_file_is_named_after_a_device(name, file):
    assert slug(name) == file


@pytest.mark.parametrize(
    "device", ["cpu:0", "meta", "mps", "xpu", "cuda:-1", "cuda:1:2", "CUDA", "", "cuda:٣", 0, 1.5, True]
)
def test_another_device_is_not_the_first_gpu(device, monkeypatch):
    monkeypatch.setattr(torch.cuda, "init", lambda: pytest.fail("it was taken for a GPU"))
    for refuse in (run.find, lambda name: eb.measure(eb.model("gpt2"), eb.Setup(), name)):
        with pytest.raises(
            ValueError, match=r"^measure\.device: .* is no device to measure on; allowed: 'cuda', 'cuda:1'"
        ):
            refuse(device)
