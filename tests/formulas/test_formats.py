"""The formats held against torch.finfo, against every code of the small formats, and against real storage."""

import math
from fractions import Fraction
from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from everybyte import formula
from everybyte.ask.choices import DTYPE_BYTES
from everybyte.formulas.formats import BLOCKS, FLOATS

TORCH = {
    "fp32": torch.float32,
    "bf16": torch.bfloat16,
    "fp16": torch.float16,
    "fp8 e5m2": torch.float8_e5m2,
    "fp8 e4m3": torch.float8_e4m3fn,
}
FP64 = {"exponent_bits": 11, "mantissa_bits": 52, "top_reserved": 1, "top_nan": 0}
IN_TORCH = [(FLOATS[name], dtype) for name, dtype in TORCH.items()] + [(FP64, torch.float64)]


def of(item, values, **more):
    return formula(f"formats.{item}")(**values, **more)


@pytest.mark.parametrize(("values", "dtype"), IN_TORCH, ids=lambda x: str(x) if isinstance(x, torch.dtype) else "")
def test_torch_says_the_same(values, dtype):
    info = torch.finfo(dtype)
    assert of("bits", values) == info.bits == 8 * dtype.itemsize
    assert of("largest", values) == info.max == -info.min
    assert of("smallest_normal", values) == info.smallest_normal == info.tiny
    assert of("epsilon", values) == info.eps
    smallest = of("smallest", values)
    assert torch.tensor(smallest, dtype=torch.float64).to(dtype).double().item() == smallest
    assert torch.tensor(smallest / 2, dtype=torch.float64).to(dtype).double().item() == 0


def codes(values):
    """Every finite number of a format that is at least 0, ascending, from its codes by IEEE's rule."""
    e, m = values["exponent_bits"], values["mantissa_bits"]
    bias = 2 ** (e - 1) - 1
    count = (2**e - 1) * 2**m if values["top_reserved"] else 2 ** (e + m) - values["top_nan"]
    fields = [(code >> m, code % 2**m) for code in range(count)]
    return [
        (Fraction(1 if field else 0) + Fraction(rest, 2**m)) * Fraction(2) ** (max(field, 1) - bias)
        for field, rest in fields
    ]


@pytest.mark.parametrize("name", ["fp16", "bf16", "fp8 e5m2", "fp8 e4m3", "fp4 e2m1"])
def test_every_code(name):
    values, numbers = FLOATS[name], codes(FLOATS[name])
    assert numbers[0] == 0 and numbers[1] == of("smallest", values) and numbers[-1] == of("largest", values)
    one = numbers.index(1)
    assert numbers[one + 1] - 1 == of("epsilon", values)
    assert numbers[2 ** values["mantissa_bits"]] == of("smallest_normal", values)
    for low, high in pairwise(numbers[1:]):
        assert high - low == of("spacing", values, magnitude=math.log2(low))


@pytest.mark.parametrize("name", ["fp16", "bf16", "fp8 e5m2", "fp8 e4m3"])
def test_every_code_is_torch_s(name):
    dtype = TORCH[name]
    whole = torch.int16 if dtype.itemsize == 2 else torch.int8
    numbers = codes(FLOATS[name])
    stored = torch.arange(len(numbers), dtype=whole).view(dtype).double().tolist()
    assert stored == [float(x) for x in numbers]


def test_fp4_is_the_seven_that_its_specification_lists():
    assert [float(x) for x in codes(FLOATS["fp4 e2m1"])] == [0, 0.5, 1, 1.5, 2, 3, 4, 6]


def test_tf32_has_the_range_of_fp32_and_the_steps_of_fp16():
    assert of("smallest_normal", FLOATS["tf32"]) == of("smallest_normal", FLOATS["fp32"])
    assert of("epsilon", FLOATS["tf32"]) == of("epsilon", FLOATS["fp16"])
    assert of("bits", FLOATS["tf32"]) == 19


def test_whole_numbers_stay_whole():
    largest = formula("formats.largest").at(**FLOATS["fp32"])
    assert largest == (2**24 - 1) * 2**104 and isinstance(largest, int)
    assert isinstance(formula("formats.bytes").at(parameters=3, **FLOATS["fp32"]), int)
    assert of("bias", FP64) == 1023 and isinstance(of("bias", FP64), int)


@given(st.integers(1, 2**40), st.sampled_from(sorted(DTYPE_BYTES)))
def test_setup_and_formats_agree_on_bytes(count, name):
    assert of("bytes", FLOATS[name], parameters=count) == count * DTYPE_BYTES[name]


@pytest.mark.parametrize(("bits", "dtype"), [(8, torch.int8), (16, torch.int16), (32, torch.int32)])
def test_integers(bits, dtype):
    info = torch.iinfo(dtype)
    assert of("integer.largest", {"quantized_bits": bits}) == info.max == -info.min - 1
    stored = torch.zeros(7, dtype=dtype).untyped_storage().nbytes()
    assert of("integer.bytes", {"quantized_bits": bits, "parameters": 7}) == stored


@pytest.mark.parametrize(
    ("name", "bits"),
    [
        ("NF4", Fraction(9, 2)),
        ("NF4, double quantization", 4 + Fraction(8, 64) + Fraction(32, 64 * 256)),
        ("MXFP4", Fraction(17, 4)),
        ("MXFP8", Fraction(33, 4)),
        ("NVFP4", Fraction(9, 2)),
        ("8-bit optimizer state", Fraction(65, 8)),
    ],
)
def test_published_bits_of_block_formats(name, bits):
    assert Fraction(of("blocks.bits", BLOCKS[name])) == bits
    assert formula("formats.blocks.bits").given(**BLOCKS[name]) == bits


def test_bitsandbytes_4096_squared():
    """What quantize_4bit of bitsandbytes 0.50.2 stores for a 4096 x 4096 tensor: codes, scales, scales of scales."""
    assert of("blocks.bytes", BLOCKS["NF4"], parameters=4096**2) == 8_388_608 + 1_048_576
    double = of("blocks.bytes", BLOCKS["NF4, double quantization"], parameters=4096**2)
    assert double == 8_388_608 + 262_144 + 4_096


@given(
    st.integers(1, 10**5), st.sampled_from([2, 4, 8]), st.integers(1, 300), st.sampled_from([8, 16, 32]), st.integers(1, 300),
    st.sampled_from([0, 32]),
)  # fmt: skip
def test_blocks_are_counted_one_by_one(count, bits, block, scale, outer, outer_scale):
    scales = len(range(0, count, block))
    outers = len(range(0, scales, outer))
    expected = -(-count * bits // 8) + scales * scale // 8 + outers * outer_scale // 8
    values = {"quantized_bits": bits, "quantization_block": block, "scale_bits": scale, "outer_block": outer}
    assert of("blocks.bytes", values, outer_scale_bits=outer_scale, parameters=count) == expected


@given(st.integers(1, 1000), st.sampled_from(sorted(BLOCKS)))
def test_full_blocks_cost_their_bits(count, name):
    values = BLOCKS[name]
    full = values["quantization_block"] * values["outer_block"] * count
    assert 8 * of("blocks.bytes", values, parameters=full) == full * Fraction(of("blocks.bits", values))
