"""A quantized matrix with its scales, and what a linear layer saves for backward in each library's recipe."""

from types import MappingProxyType

from sympy import Integer, ceiling

from ..common import checks
from .formats import formats
from .registry import register
from .symbols import SYMBOLS, k_cols, k_rows, n_cols, n_rows, q_bits, q_cols, q_rows, z_s, z_t

_scales = k_rows * ceiling(ceiling(n_rows / q_rows) / k_rows) * k_cols * ceiling(ceiling(n_cols / q_cols) / k_cols)
BYTES = register("quantized.bytes", ceiling(q_bits * n_rows * n_cols / 8) + z_s * _scales + z_t)

#: How a matrix is quantized along its rows: values of the formula's symbols. None: all columns of a row share a scale.
#: `tiled`: scales as tensor cores read them, in tiles of 128 by 4; `multiples of 4`: as Transformer Engine keeps those of 128.
FORMS = formats(
    "quantized_bits block_rows block_columns scale_bytes tile_rows tile_columns tensor_scale_bytes",
    {
        "bf16": (16, 1, 1, 0, 1, 1, 0),
        "FP8": (8, 1, 1, 0, 1, 1, 0),
        "FP8, a scale a tensor": (8, 1, 1, 0, 1, 1, 4),
        "FP8, a scale a row": (8, 1, None, 4, 1, 1, 0),
        "FP8, 16 bits a row": (8, 1, None, 2, 1, 1, 0),
        "FP8, 1 by 128": (8, 1, 128, 4, 1, 1, 0),
        "FP8, 128 by 128": (8, 128, 128, 4, 1, 1, 0),
        "FP8, 1 by 128, multiples of 4": (8, 1, 128, 4, 4, 1, 0),
        "FP8, 128 by 128, multiples of 4": (8, 128, 128, 4, 1, 4, 0),
        "MXFP8": (8, 1, 32, 1, 1, 1, 0),
        "MXFP8, tiled": (8, 1, 32, 1, 128, 4, 0),
        "MXFP4": (4, 1, 32, 1, 1, 1, 0),
        "MXFP4, tiled": (4, 1, 32, 1, 128, 4, 0),
        "NVFP4": (4, 1, 16, 1, 1, 1, 4),
        "NVFP4, tiled": (4, 1, 16, 1, 128, 4, 4),
    },
)
#: Recipe -> (what, form, transposed) of each tensor that a linear layer saves beside its weight: T tokens of K numbers are its input,
#: N by K its weight. Along the transposed matrix's rows run the sums of the weight's gradient, or of the input's.
RECIPES = MappingProxyType(
    {
        "bf16": (("input", "bf16", False),),
        "torchao fp8, eager": (("input", "bf16", False),),
        "torchao fp8, compiled": (("input", "FP8, a scale a tensor", False),),
        "torchao fp8 by rows, compiled": (("input", "FP8, 16 bits a row", True),),
        "torchao MXFP8, eager": (("input", "bf16", False),),
        "torchao NVFP4": (("input", "NVFP4, tiled", True), ("weight", "NVFP4, tiled", True)),
        "Transformer Engine fp8, Hopper": (
            ("input", "FP8, a scale a tensor", True),
            ("weight", "FP8, a scale a tensor", False),
            ("weight", "FP8", True),
        ),
        "Transformer Engine fp8, Blackwell": (
            ("input", "FP8, a scale a tensor", False),
            ("weight", "FP8, a scale a tensor", False),
        ),
        "Transformer Engine fp8, 128": (
            ("input", "FP8, 1 by 128, multiples of 4", True),
            ("weight", "FP8, 128 by 128, multiples of 4", False),
            ("weight", "FP8, 128 by 128, multiples of 4", True),
        ),
        "Transformer Engine MXFP8": (
            ("input", "MXFP8, tiled", True),
            ("weight", "MXFP8, tiled", False),
            ("weight", "MXFP8, tiled", True),
        ),
        "Transformer Engine NVFP4": (
            ("input", "NVFP4, tiled", True),
            ("weight", "NVFP4, tiled", False),
            ("weight", "NVFP4, tiled", True),
        ),
    }
)


def quantized(form: str, rows: int, columns: int) -> int:
    """Bytes of a matrix of (rows, columns) in a form of `FORMS`, scales and their padding with it.

    Raises:
        ValueError: for a form that is none, sizes that are no positive whole numbers, or 4 bits and an odd number of columns.
    """
    checks.one_of("quantized", "form", form, FORMS)
    for name, size in (("rows", rows), ("columns", columns)):
        checks.whole("quantized", name, size, 1)
    if FORMS[form]["quantized_bits"] == 4 and columns % 2:
        raise ValueError(f"quantized.columns: {columns} is odd, and two numbers of 4 bits make one byte")
    return int(_of(form, rows, columns))


def saved(recipe: str, tokens, inputs, outputs) -> dict:
    """{"input": bytes, "weight": bytes} that a linear layer of (outputs, inputs) saves for backward of so many tokens.

    Sizes are whole numbers or letters. The weight as it stands between steps is not in it: saving that takes nothing. Nor are a few
    scalars, such as the scale of the weight in `torchao fp8, compiled`.

    Raises:
        ValueError: for a recipe that is none.
    """
    checks.one_of("saved", "recipe", recipe, RECIPES)
    sizes = {"input": (tokens, inputs), "weight": (outputs, inputs)}
    found = {what: Integer(0) for what in sizes}
    for what, form, transposed in RECIPES[recipe]:
        rows, columns = reversed(sizes[what]) if transposed else sizes[what]
        found[what] += _of(form, rows, columns)
    return found


def _of(form, rows, columns):
    said = FORMS[form] | {"matrix_rows": rows, "matrix_columns": columns}
    said["block_columns"] = said["block_columns"] or columns
    return BYTES.expr.subs({SYMBOLS[name].symbol: value for name, value in said.items()}, simultaneous=True)
