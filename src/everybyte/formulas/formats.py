"""What one number costs, and what it can hold: floating-point, integer and block formats."""

from types import MappingProxyType

from sympy import Max, ceiling, floor

from .registry import register
from .symbols import P, e_bits, m_bits, mu, nan, q_bits, q_block, q_outer, q_outer_scale, q_scale, top

_IEEE = "IEEE 754-2019, section 3.4"
_FP8 = "Micikevicius et al. 2022, arXiv:2209.05433, table 1"
_MX = "OCP Microscaling Formats (MX) 1.0, section 5"
_BNB = "bitsandbytes 0.50, functional.py, quantize_4bit"


def _float(exponent_bits, mantissa_bits, top_reserved=1, top_nan=0):
    bits = {"exponent_bits": exponent_bits, "mantissa_bits": mantissa_bits}
    return MappingProxyType({**bits, "top_reserved": top_reserved, "top_nan": top_nan})


def _blocks(quantized_bits, quantization_block, scale_bits, outer_block=1, outer_scale_bits=0):
    return MappingProxyType({
        "quantized_bits": quantized_bits, "quantization_block": quantization_block, "scale_bits": scale_bits,
        "outer_block": outer_block, "outer_scale_bits": outer_scale_bits,
    })  # fmt: skip


#: Floating-point formats: the symbols' values by name in code. tf32 is how tensor cores read fp32: stored, it is fp32.
FLOATS = MappingProxyType(
    {
        "fp32": _float(8, 23),
        "tf32": _float(8, 10),
        "bf16": _float(8, 7),
        "fp16": _float(5, 10),
        "fp8 e5m2": _float(5, 2),
        "fp8 e4m3": _float(4, 3, top_reserved=0, top_nan=1),
        "fp4 e2m1": _float(2, 1, top_reserved=0),
    }
)
#: Block formats: numbers of a few bits that share scales. Beside them a tensor may keep a constant (a table, one fp32 scale).
BLOCKS = MappingProxyType(
    {
        "NF4": _blocks(4, 64, 32),
        "NF4, double quantization": _blocks(4, 64, 8, 256, 32),
        "MXFP4": _blocks(4, 32, 8),
        "NVFP4": _blocks(4, 16, 8),
        "MXFP8": _blocks(8, 32, 8),
        "8-bit optimizer state": _blocks(8, 256, 32),
    }
)


def _register(name, title, expr, unit, source, *assumptions):
    return register(
        f"formats.{name}", title, expr, unit, source=source, chapter="12_number_formats", assumptions=assumptions
    )


_bias = 2 ** (e_bits - 1) - 1
_normal = 1 - _bias
_number = "one sign bit; exponent bits e and mantissa bits m; the smallest exponent field holds zero and the subnormals"

BITS = _register("bits", "bits of a floating-point number", 1 + e_bits + m_bits, "bit", _IEEE, "one sign bit")
BIAS = _register("bias", "what the exponent field has too much", _bias, "", _IEEE, _number)
LARGEST = _register(
    "largest",
    "largest finite number",
    (2 - 2**-m_bits * (1 + nan)) * 2 ** (_bias + 1 - top),
    "",
    f"{_IEEE}; {_FP8}",
    _number,
    "[top reserved] is 1 for IEEE's formats; 0 for fp8 e4m3, where [top NaN] is 1, and for fp4, where it is 0",
)
NORMAL = _register("smallest_normal", "smallest normal number", 2**_normal, "", _IEEE, _number)
SMALLEST = _register("smallest", "smallest positive number, a subnormal", 2 ** (_normal - m_bits), "", _IEEE, _number)
EPSILON = _register("epsilon", "spacing just above one", 2**-m_bits, "", _IEEE, _number)
SPACING = _register(
    "spacing",
    "spacing of the numbers from 2^floor(mu) up to its double",
    2 ** (Max(floor(mu), _normal) - m_bits),
    "",
    _IEEE,
    _number,
    "the number is within the format's range",
)
BYTES = _register(
    "bytes", "P floating-point numbers, packed", ceiling(BITS.expr * P / 8), "B", _IEEE, "tf32 is stored as fp32"
)

INTEGER_LARGEST = _register(
    "integer.largest", "largest whole number", 2 ** (q_bits - 1) - 1, "", "two's complement", "one is of the sign"
)
INTEGER_BYTES = _register(
    "integer.bytes",
    "P whole numbers, packed",
    ceiling(q_bits * P / 8),
    "B",
    "two int4 make one byte",
    "no scale is counted",
)

_scales = ceiling(P / q_block)
BLOCK_BITS = _register(
    "blocks.bits",
    "bits of one number with its share of the scales",
    q_bits + q_scale / q_block + q_outer_scale / (q_block * q_outer),
    "bit",
    f"Dettmers et al. 2023 (QLoRA), arXiv:2305.14314, section 3; {_MX}",
    "every block is full",
    "what a tensor keeps once (NF4's tables, the mean of its scales, NVFP4's fp32 scale) is left out",
)
BLOCK_BYTES = _register(
    "blocks.bytes",
    "a tensor of P numbers with its scales",
    ceiling(q_bits * P / 8) + ceiling(q_scale * _scales / 8) + ceiling(q_outer_scale * ceiling(_scales / q_outer) / 8),
    "B",
    f"{_BNB}; optim/optimizer.py, init_state; {_MX}",
    "blocks run through the whole tensor, and the last of them may be short",
    "what a tensor keeps once (NF4's tables, the mean of its scales, NVFP4's fp32 scale) is left out",
)
