"""The catalog's GPUs are plausible; what is no GPU is refused."""

import dataclasses

import pytest

import everybyte as eb

MIB = 2**20
GPUS = list(eb.gpus().values())
NVIDIA = [g for g in GPUS if g.title.startswith("NVIDIA")]


def test_the_catalog_reaches_from_small_to_large():
    assert len(GPUS) >= 24
    wanted = {"t4", "rtx-3060", "rtx-4090", "a100-80gb", "h100-80gb", "h200", "b200", "mi300x"}
    wanted |= {"b300", "gb200", "gb300", "rtx-pro-6000", "gb10", "gh200", "mi355x"}
    assert wanted <= eb.gpus().keys()


@pytest.mark.parametrize(
    ("name", "memory"),
    [
        ("h100-80gb", 81090 * MIB),
        ("h200", 143156 * MIB),
        ("mi300x", 196592 * MIB),
        ("rtx-4090", 24217 * MIB),
        ("rtx-2080-ti", 11019 * MIB),
        ("gh200", 189 * 2**29),
        ("b300", round(267.69 * 2**30)),
        ("gb200", round(184.31 * 2**30)),
        ("rtx-pro-6000", round(94.97 * 2**30)),
        ("mi355x", round(287.98 * 2**30)),
    ],
)
def test_memory_is_what_such_a_card_reported(name, memory):
    assert eb.gpu(name).memory == memory
    assert eb.gpu(name).memory_source == "reported"


@pytest.mark.parametrize("gpu", GPUS, ids=lambda g: g.name)
def test_memory_is_a_little_less_than_advertised(gpu):
    assert 0.85 <= gpu.memory / (gpu.advertised_gb * 2**30) <= 1


@pytest.mark.parametrize("gpu", GPUS, ids=lambda g: g.name)
def test_rates_are_plausible(gpu):
    assert 250e9 <= gpu.bandwidth <= 10e12
    assert 10e12 <= gpu.bf16_flops <= 3e15
    assert gpu.peer_link < gpu.bandwidth
    assert gpu.host_link < gpu.bandwidth
    # A FLOP for each byte of memory traffic: sparse figures, or Gbit for GB, would fall outside.
    assert 20 <= gpu.bf16_flops / gpu.bandwidth <= (460 if gpu.unified else 450)  # GB10's memory is a CPU's, LPDDR5x


@pytest.mark.parametrize("gpu", GPUS, ids=lambda g: g.name)
def test_products_in_fp32_are_slower_by_what_the_chip_s_units_are(gpu):
    """A clock's rounding aside, the ratio to 16 bits is a whole number, alike in all chips of a generation and kind."""
    ratio = {
        "6.0": 2, "7.0": 8, "7.5": 4 if gpu.name == "rtx-2080-ti" else 8, "8.0": 16, "9.0": 14.8, "10.0": 30, "10.3": 30, "12.0": 4 if gpu.name == "rtx-pro-6000" else 2,
        "gfx90a": 4, "gfx942": 8, "gfx950": 16,
    }  # fmt: skip
    geforce = (
        gpu.name.startswith("rtx-")
        and gpu.name not in ("rtx-a6000", "rtx-6000-ada", "rtx-pro-6000")
        or gpu.name == "a10g"
    )
    found = gpu.flops("bf16") / gpu.flops("fp32")
    assert found == pytest.approx(ratio.get(gpu.capability, 2 if geforce else 4), rel=0.07)
    assert gpu.flops("fp16") == gpu.bf16_flops and gpu.flops("fp32") == gpu.fp32_flops


@pytest.mark.parametrize("gpu", GPUS, ids=lambda g: g.name)
def test_entry_states_its_source(gpu):
    assert gpu.source
    assert gpu.title


@pytest.mark.parametrize("gpu", NVIDIA, ids=lambda g: g.name)
def test_bf16_from_ampere_on(gpu):
    assert gpu.bf16 == (float(gpu.capability) >= 8)


@pytest.mark.parametrize(
    "rising",
    [
        ["p100", "v100-16gb", "a100-40gb", "h100-80gb", "h200", "b300"],
        ["rtx-3060", "rtx-3090", "rtx-4090", "rtx-5090"],
        ["t4", "a10", "l40s", "a100-80gb-pcie", "a100-80gb", "h100-nvl"],
        ["mi250x", "mi300x", "mi325x", "mi355x"],
    ],
)
def test_bandwidth_rises_from_one_generation_to_the_next(rising):
    bandwidths = [eb.gpu(name).bandwidth for name in rising]
    assert bandwidths == sorted(set(bandwidths))


@pytest.mark.parametrize(
    ("name", "both_directions"),
    [
        ("v100-16gb", 300),
        ("a100-80gb", 600),
        ("h100-80gb", 900),
        ("h200", 900),
        ("b200", 1800),
        ("b300", 1800),
        ("gb200", 1800),
        ("gb300", 1800),
    ],
)
def test_peer_link_is_half_of_nvlinks_advertised_sum(name, both_directions):
    assert 2 * eb.gpu(name).peer_link == both_directions * 10**9


def test_an_nvlink_bridge_joins_two_pcie_cards_and_a_longer_ring_goes_over_pcie():
    bridged = {g.name for g in GPUS if g.bridged}
    assert bridged == {
        "rtx-2080-ti", "rtx-3090", "rtx-a6000", "a30", "a40", "a100-80gb-pcie", "h100-pcie", "h100-nvl",
    }  # fmt: skip
    for card in map(eb.gpu, sorted(bridged)):
        assert card.bridged == 2 and card.network == 0 and card.ring(1) == card.ring(2) == card.peer_link
        assert card.ring(2, apart=2) == card.ring(4) == card.ring(8) == card.host_link < card.peer_link
    for card in GPUS:
        assert card.name in bridged or card.unified or card.ring(8) == (card.peer_link or card.host_link)
    slow = eb.Gpu(memory="24 GiB", peer_link=3, host_link=5, bridged=4)
    assert [slow.ring(n) for n in (2, 4, 8)] == [3, 3, 3]
    with pytest.raises(ValueError, match=r"^Gpu\.bridged: 2 without a peer_link"):
        eb.Gpu(memory="24 GiB", host_link=5, bridged=2)
    with pytest.raises(ValueError, match=r"^Gpu\.bridged: 9 is not a whole number from 0 to 8"):
        eb.Gpu(memory="24 GiB", peer_link=5, bridged=9)


def test_host_links_are_pcie_or_nvlink_c2c():
    # 16 lanes (or twice 8) at 8, 16, 32 GT/s, 128 bits sent as 130.
    pcie = [round(16 * rate * 1e9 * 128 / 130 / 8, -6) for rate in (8, 16, 32)]
    assert {g.host_link for g in GPUS if not g.name.startswith("g")} == set(pcie)
    assert [eb.gpu(name).host_link for name in ("gh200", "gb200", "gb300", "gb10")] == [450e9, 225e9, 225e9, 0]


@pytest.mark.parametrize(
    ("wrong", "near"), [("h100", "h100-80gb"), ("rtx4090", "rtx-4090"), ("A100-80GB", "a100-80gb")]
)
def test_unknown_name_lists_near_matches(wrong, near):
    with pytest.raises(ValueError, match=f"did you mean.*'{near}'"):
        eb.gpu(wrong)


@pytest.mark.parametrize("field", ["memory", "bandwidth", "bf16_flops", "fp32_flops", "host_link", "advertised_gb"])
@pytest.mark.parametrize("value", [-1, 1.5, True, 2**61])
def test_amounts_are_checked(field, value):
    with pytest.raises(ValueError, match=rf"Gpu\.{field}: {value!r} "):
        dataclasses.replace(eb.gpu("t4"), **{field: value})


def test_a_gpu_may_be_given_by_its_size():
    card = eb.Gpu(memory="24 GiB")
    assert card == eb.Gpu(memory=24 * 2**30) and card.title == card.name == "GPU of 24.00 GiB"
    assert card.memory_source == "data sheet" and not card.rated and all(g.rated != g.unified for g in GPUS)
    assert card.cublas_workspace == max(g.cublas_workspace for g in NVIDIA)
    for value, said in (
        (0, "0 is not a whole number from 1"),
        ("24", "value: '24' is not a number followed by a unit"),
    ):
        with pytest.raises(ValueError, match=rf"^Gpu\.memory: {said}"):
            eb.Gpu(memory=value)


@pytest.mark.parametrize(
    ("field", "value", "allowed"),
    [
        ("peer_link", -1, "0 to"),
        ("bf16", 1, "True or False"),
        ("memory_source", "guess", "reported, nvidia-smi, data sheet"),
    ],
)
def test_other_fields_are_checked(field, value, allowed):
    with pytest.raises(ValueError, match=rf"Gpu\.{field}: {value!r} .*{allowed}"):
        dataclasses.replace(eb.gpu("t4"), **{field: value})


def test_what_fits_a_gpu_without_memory_of_its_own_is_asked_of_the_reader():
    """What is in use of the host's memory is said, or the question refused by name; hipBLASLt's scratch stands beside hipBLAS's."""
    spark, setup = eb.gpu("gb10"), eb.Setup(batch=1, sequence=128)
    with pytest.raises(
        ValueError, match=r"^Headroom\.other: None on gb10, which has no memory of its own.*MemAvailable"
    ):
        eb.fit(eb.model("gpt2"), setup, "gb10")
    with pytest.raises(ValueError, match=r"^Gpu\.host_link: 0 of the gb10"):
        eb.plan(eb.model("gpt2"), setup, "gb10", eb.Headroom(other=20 * 2**30))
    assert eb.fit(eb.model("gpt2"), setup, "gb10", headroom=eb.Headroom(other=20 * 2**30)).fits
    assert [g.name for g in GPUS if g.unified] == ["gb10"] and spark.ring(1) == 0
    terms = {
        name: {t.name: t.bytes for t in eb.Headroom().terms(eb.gpu(name))} for name in ("mi300x", "mi355x", "b300")
    }
    assert [terms[name]["workspace"] for name in terms] == [2 * 204 * MIB, 2 * 204 * MIB, 64 * MIB]
