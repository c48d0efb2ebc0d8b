"""What Transformer Engine's own code gives a quantized tensor: `python tools/beside/quantizers.py FOLDER OUT.jsonl`.

FOLDER has its Python package, as the wheel `transformer_engine` unpacks. Its C++ half, which no registry has as a wheel, is absent: of
that, names of types are asked alone. Each line of the file is a quantizer's `inner_tensor_specs`, which the package says mirror what
the C++ half makes, for a shape, rows or columns, on Hopper or Blackwell.
"""

import ast
import enum
import importlib
import json
import sys
import types
from pathlib import Path

import torch

SHAPES = ((4096, 4096), (14336, 4096), (8192, 2048), (160, 96), (1056, 7168))


class Nothing(type):
    """A class whose attributes are all 0."""

    def __getattr__(cls, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return 0


class Absent(types.ModuleType):
    """A module that is not here: any name is a class with nothing in it."""

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return Nothing(name, (), {})


def cpp(package):
    """The C++ half: names of types, as the package itself repeats them."""
    tree = ast.parse((package / "pytorch" / "constants.py").read_text(encoding="utf-8"))
    (said,) = [node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == "DType"]
    members = [node.targets[0].id for node in said.body if isinstance(node, ast.Assign)]

    half = Absent("transformer_engine_torch")
    half.DType = enum.IntEnum("DType", members, start=0)
    return half


def main():
    """Write the lines."""
    folder, out = map(Path, sys.argv[1:])
    package = folder / "transformer_engine"
    for name in (
        "",
        ".common",
        ".pytorch",
        ".pytorch.tensor",
        ".pytorch.tensor.storage",
    ):  # without what they import first
        module = (Absent if name == ".common" else types.ModuleType)(f"transformer_engine{name}")
        module.__path__ = [str(package / name[1:].replace(".", "/"))]
        sys.modules[module.__name__] = module
    sys.modules["transformer_engine_torch"] = cpp(package)
    (version,) = [
        path.name.split("-")[1].removesuffix(".dist") for path in folder.glob("transformer_engine-*.dist-info")
    ]
    tensors = {name: importlib.import_module(f"transformer_engine.pytorch.tensor.{name}_tensor")
               for name in ("float8", "float8_blockwise", "mxfp8", "nvfp4")}  # fmt: skip
    e4 = sys.modules["transformer_engine_torch"].DType.kFloat8E4M3
    blocks = tensors["float8_blockwise"].Float8BlockQuantizer
    made = {
        "tensor": tensors["float8"].Float8CurrentScalingQuantizer(e4, torch.device("cpu")),
        "1 by 128": blocks(e4, rowwise=True, columnwise=True, block_scaling_dim=1),
        "128 by 128": blocks(e4, rowwise=True, columnwise=True, block_scaling_dim=2),
        "MXFP8": tensors["mxfp8"].MXFP8Quantizer(e4),
        "NVFP4": tensors["nvfp4"].NVFP4Quantizer(),
    }
    lines = []
    for name, quantizer in made.items():
        for gpu in ("hopper", "blackwell") if name == "tensor" else ("",):
            tensors["float8"].is_non_tn_fp8_gemm_supported = lambda gpu=gpu: gpu == "blackwell"
            for shape in SHAPES:
                for rows, columns in ((True, False), (False, True), (True, True)):
                    quantizer.set_usage(rowwise=rows, columnwise=columns)
                    inner = quantizer.inner_tensor_specs(shape)
                    size = sum(torch.Size(s).numel() * t.itemsize for s, t in inner.values())
                    usage = {"rows": rows, "columns": columns}
                    lines.append({"form": name, "gpu": gpu, "shape": shape, **usage, "bytes": size, "version": version})
    out.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")


if __name__ == "__main__":
    main()
