"""Rows on their way to experts: padding beside every split, DeepEP's buffers beside its own steps in whole numbers."""

from itertools import product
from math import ceil

import pytest

import everybyte as eb

DEEPSEEK = eb.model("deepseek-v3")
#: GPUs -> tokens that a channel holds over NVLink and over RDMA, to dispatch and to combine: DeepEP's own table at dd758ca.
CONFIGS = {8: (256, 128, 256, 128), 16: (288, 140, 288, 132), 64: (288, 128, 288, 128), 144: (720, 132, 720, 128)}


def up(number, multiple):
    return (number + multiple - 1) // multiple * multiple


@pytest.mark.parametrize(
    "experts, rows, multiple", [(e, r, a) for e in (1, 2, 3) for r in range(1, 12) for a in (1, 2, 4)]
)
def test_the_worst_split_is_reached_and_never_passed(experts, rows, multiple):
    splits = [s for s in product(range(rows + 1), repeat=experts) if sum(s) == rows]
    padded = [sum(up(n, multiple) for n in split) for split in splits]
    given = {
        "experts": experts,
        "expert": 1,
        "alignment": multiple,
        "batch": 1,
        "sequence": rows,
        "experts_per_token": 1,
        "routing": 1,
    }
    assert eb.formula("experts.padded_most")(**given) == max(padded)
    assert eb.formula("experts.padded_mean")(**given) == rows + experts * (multiple - 1) / 2
    # torchao's buffer: as many rows as came and a multiple for each expert, rounded up; an expert without rows has a multiple too
    buffer = eb.formula("experts.padded")(**given)
    assert buffer == up(rows + experts * multiple, multiple)
    assert buffer >= max(sum(up(max(n, multiple), multiple) for n in split) for split in splits)


def test_padding_follows_the_routing():
    setup = eb.Setup(batch=1, sequence=4096, precision="bf16", gpus=64, mesh=eb.Mesh(expert=64, routing=1.5))
    came = int(1.5 * 4096 * 8)
    assert eb.formula("experts.padded").at(DEEPSEEK, setup, alignment=16) == came + 4 * 16
    assert eb.formula("experts.padded_most").at(DEEPSEEK, setup, alignment=16) == 4 * 16 + (came - 4) // 16 * 16


def test_a_row_in_8_bits_has_its_scales():
    assert eb.formula("dispatch.row").at(DEEPSEEK, eight_bits=0) == 14_336
    assert eb.formula("dispatch.row").at(DEEPSEEK, eight_bits=1) == 7168 + 56 * 4
    assert eb.formula("dispatch.row").at(DEEPSEEK.replace(width=2880), eight_bits=1) == 2880 + 23 * 4


def nvlink(width, gpus, cores, tokens):
    """`Config::get_nvl_buffer_size_hint`, line by line."""
    channels, near, far = cores // 2, min(gpus, 8), max(gpus // 8, 1)
    total = channels * near * (2 * far + 3) * 4
    for each in (2 * width, 8, 128 * 8, 128 * 4, 128 * 4):
        total += channels * near * tokens * each
    return (total + 127) // 128 * 128


def rdma(width, gpus, cores, tokens):
    """`Config::get_rdma_buffer_size_hint`."""
    if gpus <= 8:
        return 0
    channels, far = cores // 2, gpus // 8
    total = channels * far * (8 * 2 + 2) * 2 * 4
    for each in (2 * width, 8, 128 * 8, 128 * 4, 128 * 4, 16):
        total += channels * far * tokens * each * 2
    return (total + 127) // 128 * 128


@pytest.mark.parametrize("gpus", CONFIGS)
@pytest.mark.parametrize("width, cores", [(7168, 24), (4096, 20), (2880, 20)])
def test_the_first_version_s_buffers(gpus, width, cores):
    model, setup = DEEPSEEK.replace(width=width), eb.Setup(gpus=gpus, mesh=eb.Mesh(expert=gpus))
    near, far, *_ = CONFIGS[gpus]
    if 256 % gpus:  # the formula asks nothing of the experts
        model = model.replace(experts=gpus)
    said = {"sending_multiprocessors": cores, "nvlink_tokens": near, "rdma_tokens": far}
    assert eb.formula("deepep.nvlink").at(model, setup, **said) == nvlink(width, gpus, cores, near)
    assert eb.formula("deepep.rdma").at(model, setup, **said) == rdma(width, gpus, cores, far)


def low_latency(tokens, width, experts):
    """`LowLatencyLayout` and `get_low_latency_rdma_size_hint`."""
    scales = width // 128
    dispatched, combined = 16 + max(width * 2, width + scales * 4), scales * 4 + width * 2
    total = 2 * max(tokens * dispatched, experts * tokens * combined)
    total += 2 * max(experts * tokens * dispatched, experts * tokens * combined)
    total += 2 * up(experts * 4, 128)
    return (total + 128) // 128 * 128


@pytest.mark.parametrize("tokens, width, experts", [(128, 7168, 256), (1, 4096, 8), (64, 128, 16), (3, 192, 5)])
def test_the_buffer_for_generation(tokens, width, experts):
    model = DEEPSEEK.replace(
        width=width, experts=experts, experts_per_token=min(8, experts), expert_groups=1, groups_per_token=1
    )
    assert eb.formula("deepep.low_latency").at(model, eb.Setup(batch=tokens, sequence=1)) == low_latency(
        tokens, width, experts
    )


def elastic(tokens, width, visits, eight, far, near):
    """`ElasticBuffer::calculate_buffer_size` of so many nodes of so many GPUs."""

    def layout(numbers, scales, sources):
        return up(numbers, 32) + up(4 * scales, 32) + up(visits * 8 + sources * 4, 32)

    there = layout(width if eight else 2 * width, ceil(width / 32) if eight else 0, 1 + visits)
    back = layout(2 * width, 0, 0)
    if far == 1:
        dispatch, combine = near * tokens * there, min(near, visits) * tokens * back
    else:
        dispatch = (near * (far * tokens) + tokens + far * (tokens + 1024)) * there
        combine = (min(near, visits) * (far * tokens) + far * (tokens + 1024) + min(far, visits) * tokens) * back
    return up(max(dispatch, combine), 2**21)


@pytest.mark.parametrize("far, near", [(1, 8), (1, 2), (8, 8), (2, 4), (4, 16)])
@pytest.mark.parametrize("eight", [0, 1])
@pytest.mark.parametrize("tokens, width, visits", [(4096, 7168, 8), (8192, 4096, 2), (100, 2048, 4)])
def test_the_second_version_s_buffer(far, near, eight, tokens, width, visits):
    model = DEEPSEEK.replace(width=width, experts_per_token=visits)
    setup = eb.Setup(batch=1, sequence=tokens, gpus=far * near, mesh=eb.Mesh(expert=far * near))
    found = eb.formula("deepep.elastic").at(model, setup, eight_bits=eight, domain=near)
    assert found == elastic(tokens, width, visits, eight, far, near)


def test_what_does_not_hold_is_refused():
    with pytest.raises(ValueError, match=r"deepep\.nvlink: Mesh\.expert: 12 is no number of whole nodes"):
        eb.formula("deepep.nvlink").at(
            DEEPSEEK, eb.Setup(gpus=12, mesh=eb.Mesh(expert=12)), sending_multiprocessors=24, nvlink_tokens=256
        )
    with pytest.raises(ValueError, match=r"deepep\.elastic: Model\.width: 100 of"):
        eb.formula("deepep.elastic").at(
            DEEPSEEK.replace(width=100), eb.Setup(gpus=8, mesh=eb.Mesh(expert=8)), eight_bits=1, domain=8
        )
