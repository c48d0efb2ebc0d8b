"""torchao's own quantized tensors and linear layers on tensors without data: what its code makes of a shape, counted."""

import torch
from torch import nn

from ..common import checks
from . import saving

#: Recipes of torchao's float8 training, by its names.
RECIPES = ("bf16", "tensorwise", "rowwise", "rowwise_with_gw_hp")


def stored(rows: int, columns: int) -> dict[str, int]:
    """{form: bytes} of a matrix of (rows, columns) that torchao quantizes: data, scales and their padding.

    Forms are named as in `formulas/quantized.py`. Columns are a multiple of 32.

    Raises:
        ValueError: for other columns.
    """
    if columns % 32:
        raise ValueError(f"stored.columns: {columns!r} is no multiple of 32, as torchao's blocks need")
    from torchao.float8.config import ScalingGranularity
    from torchao.float8.float8_scaling_utils import hp_tensor_to_float8_dynamic
    from torchao.float8.float8_training_tensor import LinearMMConfig
    from torchao.prototype.mx_formats.mx_tensor import MXTensor
    from torchao.prototype.mx_formats.nvfp4_tensor import NVFP4Tensor

    wide, e4 = torch.empty(rows, columns, dtype=torch.bfloat16, device="meta"), torch.float8_e4m3fn
    axis = {"scaling_granularity": ScalingGranularity.AXISWISE, "axiswise_dim": -1}
    made = {
        "FP8, a scale a tensor": hp_tensor_to_float8_dynamic(wide, e4, LinearMMConfig()),
        "FP8, a scale a row": hp_tensor_to_float8_dynamic(wide, e4, LinearMMConfig(), **axis),
    }
    whole = torch.ones((), device="meta")
    for tiled, word in ((False, ""), (True, ", tiled")):
        for name, kind in (("MXFP8", e4), ("MXFP4", torch.float4_e2m1fn_x2)):
            made[name + word] = MXTensor.to_mx(wide, kind, 32, is_swizzled_scales=tiled)
        made["NVFP4" + word] = NVFP4Tensor.to_nvfp4(wide, per_tensor_scale=whole, is_swizzled_scales=tiled)
    return {name: saving.size(tensor) for name, tensor in made.items()}


def linear(recipe: str, inputs: int, outputs: int, device: str = "cpu") -> nn.Module:
    """A linear layer in bf16 without a bias, converted by torchao's float8 training; with `bf16` left as it is.

    Raises:
        ValueError: for a recipe that is none of `RECIPES`.
    """
    checks.one_of("linear", "recipe", recipe, RECIPES)
    model = nn.Sequential(nn.Linear(inputs, outputs, bias=False, dtype=torch.bfloat16, device=device))
    if recipe == "bf16":
        return model
    from torchao.float8 import Float8LinearConfig, convert_to_float8_training

    return convert_to_float8_training(model, config=Float8LinearConfig.from_recipe_name(recipe))
