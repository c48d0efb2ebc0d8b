"""Adapters: the theory is peft's own code on the book's models, byte for byte; what does not go with them is refused by name."""

import json
import sys
from dataclasses import replace

import grid
import pytest
import witnesses
from agreeing import agree

import everybyte as eb
from everybyte.answers.plan import work
from everybyte.formulas import formula

#: One small twin of each family: its catalog's name, and what is smaller.
SMALL = {"layers": 3, "width": 64, "heads": 4, "kv_heads": 2, "head_width": 16, "vocabulary": 101, "ffn_width": 176}
TWINS = {
    "gpt2": {"layers": 3, "width": 48, "heads": 2, "vocabulary": 101},
    "llama-3.1-8b": SMALL,
    "qwen2.5-7b": SMALL,
    "gemma-2b": SMALL | {"kv_heads": 1},
    "mistral-7b": SMALL,
}
#: (precision, data type of the adapters, of the frozen weights).
TYPES = [
    ("fp32", "fp32", None), ("bf16-mixed", "fp32", None), ("bf16-mixed", "fp32", "bf16"), ("bf16-mixed", "bf16", "bf16"),
    ("bf16", "fp32", None), ("bf16", "bf16", None), ("bf16-master", "bf16", None), ("fp16-mixed", "fp32", None),
]  # fmt: skip


def twin(name):
    return eb.model(name, code="reference").replace(**TWINS[name])


@pytest.mark.sampled(1)
@pytest.mark.parametrize("start", range(0, 16, 4))
def test_any_step_to_the_byte(start):
    pytest.importorskip("peft")
    agree(grid.adapted, range(start, start + 4), "", refused=True)


@pytest.mark.parametrize("name", TWINS)
def test_families(name):
    """Each twin with two of the eight ways to choose data types, and each way on one twin or more."""
    pytest.importorskip("peft")
    place, model = list(TWINS).index(name), twin(name)
    for precision, dtype, base in (TYPES[place], TYPES[(place + 5) % len(TYPES)]):
        for checkpointing in ("none", "full"):
            lora = eb.Lora(8, "all-linear", dtype, base)
            setup = eb.Setup(batch=2, sequence=16, precision=precision, checkpointing=checkpointing, adapters=lora)
            assert not witnesses.disagreements(model, setup), (model, setup)


@pytest.mark.parametrize("targets", [("v",), ("down",), ("out", "up")])
def test_targets_behind_the_queries(targets):
    """The first block then holds no rotary angles: the second lets them go, whatever the number of blocks."""
    pytest.importorskip("peft")
    for layers, accumulation in ((4, 1), (6, 2)):
        setup = eb.Setup(
            batch=2, sequence=16, precision="bf16", accumulation=accumulation, adapters=eb.Lora(8, targets)
        )
        assert not witnesses.disagreements(twin("llama-3.1-8b").replace(layers=layers), setup), layers


@pytest.mark.parametrize("name", ["gpt2", "llama-3.1-8b", "qwen2.5-7b", "gemma-2b"])
def test_dropout_of_adapters(name):
    """peft's own `lora_dropout`, over any weights, to the byte."""
    pytest.importorskip("peft")
    precision, dtype, base = TYPES[list(TWINS).index(name)]
    setup = eb.Setup(batch=2, sequence=16, precision=precision, adapters=eb.Lora(8, "all-linear", dtype, base, 0.05))
    assert not witnesses.disagreements(twin(name), setup)
    pytest.importorskip("bitsandbytes")
    lora = eb.Lora(8, ("out", "up"), base="bf16", dropout=0.05)
    setup = setup.replace(precision="bf16-mixed", quantization="nf4", adapters=lora)
    assert not witnesses.disagreements(twin(name), setup)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("start", range(0, 24, 3))
def test_any_step_on_several_gpus(start):
    """DDP, ZeRO and FSDP over peft's adapters: PyTorch's own code, to the byte."""
    pytest.importorskip("peft")
    agree(grid.apart, range(start, start + 3), "", refused=True)


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("gpt2", {"gpus": 2, "buckets": "views"}),
        ("llama-3.1-8b", {"gpus": 8, "sharding": "zero3"}),  # adapters in fp32: bf16 and fp32 are gathered as bytes
        ("llama-3.1-8b", {"gpus": 8, "sharding": "zero3", "precision": "bf16-mixed"}),
        ("qwen2.5-7b", {"gpus": 3, "sharding": "zero1"}),
        ("gemma-2b", {"gpus": 4, "sharding": "zero2", "replicas": 2, "accumulation": 2}),
        ("llama-3.1-8b", {"gpus": 8, "sharding": "zero3", "sharding_units": "block+ends"}),  # two units have none
        ("llama-3.1-8b", {"gpus": 2, "sharding": "zero3", "offload": "cpu"}),
        ("gpt2", {"gpus": 1, "sharding": "zero3", "offload": "cpu", "precision": "bf16-mixed"}),  # copied one by one
    ],
)
def test_families_on_several_gpus(name, changes):
    pytest.importorskip("peft")
    base = "bf16" if changes.get("precision") == "bf16-mixed" and name != "gpt2" else None
    setup = eb.Setup(batch=2, sequence=16, adapters=eb.Lora(8, base=base), **({"precision": "bf16"} | changes))
    model = twin(name).replace(tied=changes.get("sharding_units") is None and twin(name).tied)
    assert not witnesses.disagreements(model, setup)


def test_only_adapters_are_averaged_and_gathered_are_all():
    """Llama-3.1-8B, 8 GPUs: DDP's buckets and ZeRO-1's shares are the adapters'; FSDP divides frozen weights too."""
    model, lora = eb.model("llama-3.1-8b", code="reference"), eb.Lora(16)
    numbers = 32 * 16 * (3 * (4096 + 14336) + 2 * 8192 + 2 * 5120)
    setup = eb.Setup(batch=1, sequence=512, precision="bf16", checkpointing="full", adapters=lora, gpus=8)
    ddp, zero1, zero3 = (
        eb.budget(model, setup.replace(sharding=sharding)).moments["rest"] for sharding in ("none", "zero1", "zero3")
    )
    assert ddp["communication"] == 4 * numbers and ddp["optimizer"] == 8 * numbers
    assert zero1["optimizer"] == numbers and zero1["gradients"] == 4 * numbers
    assert ddp["parameters"] == zero1["parameters"] == 2 * model.parameters + 4 * numbers
    assert zero3["parameters"] == ddp["parameters"] // 8 and zero3["optimizer"] == numbers
    away = eb.budget(model, setup.replace(sharding="zero3", offload="cpu"))
    assert away.host == {"parameters": zero3["parameters"], "gradients": numbers // 2, "optimizer": numbers}
    assert not any(away.moments["rest"].values())
    (ring,) = work(model, setup).rings
    assert ring[0] == 2 * 7 * 4 * numbers // 8
    gathered = 2 * model.parameters + 4 * numbers  # once at least
    assert work(model, setup.replace(sharding="zero3")).rings[0][0] > 7 * gathered // 8


def test_a_loss_that_aligns_takes_adapters_on_one_gpu():
    with pytest.raises(
        ValueError, match=r"^Setup\.adapters: .* on 2 gpus with objective 'dpo' is not derived; allowed: one"
    ):
        eb.budget(
            eb.Objective(eb.model("llama-3.1-8b", code="reference"), "dpo", reference="before"),
            eb.Setup(adapters=eb.Lora(8), gpus=2),
        )


def test_what_dropout_keeps():
    """Beside each target a mask of one byte a number, and the dropped input in place of one that targets share."""
    setup = eb.Setup(batch=1, sequence=2048, precision="bf16")
    inputs = 2048 * (3 * 3584 + 3584 + 2 * 3584 + 18944)  # of q, k, v; out; gate, up; down
    usual, in_bf16 = eb.Lora(16), eb.Lora(16, dtype="bf16")
    dropped = [replace(lora, dropout=0.05) for lora in (usual, in_bf16)]
    masks, copies = (
        kept(setup.replace(adapters=after)) - kept(setup.replace(adapters=before))
        for before, after in zip((usual, in_bf16), dropped, strict=True)
    )
    assert masks == inputs
    shared = 2048 * 2 * (2 * 3584 + 18944)  # what three, two and one of the targets save without
    assert copies == 3 * inputs - shared


def test_dropout_is_a_word_of_a_command():
    lora = eb.Lora(16, ("q", "v"), dropout=0.05)
    assert str(lora) == "rank=16 targets=q,v dtype=fp32 dropout=0.05" and eb.Lora.read(str(lora)) == lora
    assert eb.Lora.read("dropout=0").dropout == 0
    setup = eb.Setup(adapters=lora)
    assert eb.Setup(**json.loads(json.dumps(setup.as_dict()))) == setup


def test_the_products_of_frozen_layers_are_counted_once():
    """Backward has no product for a frozen weight, nor for what comes before the first adapter."""
    pytest.importorskip("peft")
    for seed in (0, 3, 5, 8):
        model, setup, _ = grid.adapted(seed)
        assert work(model, setup).flops == eb.dry_run(model, setup).flops, (model, setup)
    whole = eb.Setup(batch=2, sequence=512, precision="bf16")
    ratio = work(eb.model("llama-3.1-8b", code="reference"), whole.replace(adapters=eb.Lora(16))).flops
    assert (
        0.66 < ratio / work(eb.model("llama-3.1-8b", code="reference"), whole).flops < 0.70
    )  # two thirds, and the adapters


def kept(setup):
    """Bytes that one layer of Qwen2.5-7B keeps of forward."""
    model = eb.model("qwen2.5-7b", code="reference")
    three, two = (eb.budget(model.replace(layers=n), setup) for n in (3, 2))
    return sum(a.phases["after_forward"] * sign - a.phases["rest"] * sign for a, sign in ((three, 1), (two, -1)))


def test_the_usual_adapters_keep_more_than_full_fine_tuning():
    """peft casts the input of each target to the adapters' fp32, and three targets that share one cast it three times."""
    setup = eb.Setup(batch=1, sequence=2048, precision="bf16")
    full, usual = kept(setup), kept(setup.replace(adapters=eb.Lora(16)))
    assert usual / full > 1.4
    assert kept(setup.replace(adapters=eb.Lora(16, dtype="bf16"))) == full + 2048 * 7 * 16 * 2  # A's results, for B
    assert kept(setup.replace(adapters=eb.Lora(16, ("q", "v"), "bf16"))) < full
    checkpointed = setup.replace(checkpointing="full")
    assert kept(checkpointed) == kept(checkpointed.replace(adapters=eb.Lora(16))) == 2 * 2048 * 3584


def test_what_trains_is_the_adapters():
    """A and B of each target: r (inputs + outputs) numbers; so many states, and nothing of the frozen weights'."""
    model = eb.model("llama-3.1-8b", code="reference")
    setup = eb.Setup(precision="bf16", sequence=16, adapters=eb.Lora(16, ("q", "v"), "bf16"))
    numbers = 32 * 16 * (4096 + 4096 + 4096 + 1024)
    rest = eb.budget(model, setup).moments["rest"]
    assert rest["parameters"] == 2 * (model.parameters + numbers)
    assert rest["optimizer"] == 2 * 2 * numbers
    usual = eb.budget(model, setup.replace(adapters=eb.Lora(16, ("q", "v")))).moments["rest"]
    assert usual["parameters"] == 2 * model.parameters + 4 * numbers and usual["optimizer"] == 2 * 4 * numbers


def test_a_setup_with_adapters_survives_json():
    setup = eb.Setup(adapters=eb.Lora(8, ["q", "v", "q"]))
    assert setup.adapters.targets == ("q", "v")
    assert eb.Setup(**json.loads(json.dumps(setup.as_dict()))) == setup
    assert eb.Lora.read(str(setup.adapters)) == setup.adapters
    assert hash(setup) == hash(eb.Setup(adapters=eb.Lora(8, ("q", "v"))))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"rank": 0}, r"^Lora\.rank: 0 is not a whole number from 1"),
        ({"rank": 8.0}, r"^Lora\.rank: 8\.0 is not"),
        ({"targets": ()}, r"^Lora\.targets: \(\) is no list .* 'all-linear'"),
        ({"targets": ("q", 3)}, r"^Lora\.targets: \('q', 3\) is no list"),
        ({"targets": None}, r"^Lora\.targets: None is no list"),
        ({"dtype": "fp16"}, r"^Lora\.dtype: 'fp16' is unknown; .*fp32, bf16"),
        ({"base": "nf4"}, r"^Lora\.base: 'nf4' is unknown"),
        ({"dropout": 1}, r"^Lora\.dropout: 1 is not a number in \[0, 1\)"),
        ({"dropout": "0.1"}, r"^Lora\.dropout: '0\.1' is not a number"),
    ],
)
def test_bad_adapters_are_named(fields, message):
    with pytest.raises(ValueError, match=message):
        eb.Lora(**fields)


@pytest.mark.parametrize(
    ("changes", "lora", "message"),
    [
        (
            {"mesh": eb.Mesh(context=2), "gpus": 2},
            {},
            r"^Setup\.adapters: .* with mesh context=2 is not derived; allowed: None",
        ),
        ({"optimizer": "muon"}, {}, r"^Setup\.adapters: .*'muon'.*allowed: sgd, .*adamw"),
        ({"precision": "fp32"}, {"dtype": "bf16"}, r"^Lora\.dtype: 'bf16' over weights in fp32.*allowed: 'fp32'"),
        (
            {"precision": "bf16-master"},
            {},
            r"^Lora\.dtype: 'fp32' over 16-bit weights with fp32 copies.*allowed: 'bf16'",
        ),
        ({"precision": "fp32"}, {"base": "bf16"}, r"^Lora\.base: 'bf16' with precision 'fp32'; allowed: 'fp32'"),
    ],
)
def test_what_does_not_go_with_adapters_is_named(changes, lora, message):
    with pytest.raises(ValueError, match=message):
        eb.Setup(adapters=eb.Lora(**lora), **changes)


@pytest.mark.parametrize("witness", [eb.budget, eb.dry_run])
@pytest.mark.parametrize(
    ("lora", "message"),
    [
        (
            eb.Lora(8, ("q_proj",)),
            r"^Lora\.targets: 'q_proj' matches no linear layer in the blocks of gpt2; allowed: qkv, out, up",
        ),
        (eb.Lora(8, ("qkv", "head")), r"^Lora\.targets: 'head' matches no linear layer"),
        (eb.Lora(49), r"^Lora\.rank: 49 is more than the width 48 of attention\.\w+ in gpt2; allowed: 1 to 48"),
    ],
)
def test_adapters_that_do_not_fit_the_model_are_named(witness, lora, message):
    with pytest.raises(ValueError, match=message):
        witness(twin("gpt2"), eb.Setup(batch=1, sequence=8, adapters=lora))


def test_a_package_that_is_not_there_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "peft", None)
    with pytest.raises(ValueError, match=r"^Setup\.adapters: .* needs peft.*everybyte\[adapters\]"):
        eb.dry_run(twin("gpt2"), eb.Setup(batch=1, sequence=8, adapters=eb.Lora(4)))


def test_a_formula_of_whole_training_refuses_adapters():
    with pytest.raises(ValueError, match=r"^formula optimizer\.states: Setup\.adapters: .*eb\.budget answers"):
        formula("optimizer.states").at(eb.model("gpt2"), eb.Setup(adapters=eb.Lora(4)))


def test_fit_and_plan_know_what_is_frozen():
    """Llama-3.1-8B, whose full fine-tuning needs more than 16 bytes a parameter, trains on one GPU of 24 GB."""
    model, gpu = eb.model("llama-3.1-8b", code="reference"), eb.gpu("rtx-4090")
    setup = eb.Setup(batch=1, sequence=1024, precision="bf16", checkpointing="full", adapters=eb.Lora(16, dtype="bf16"))
    assert eb.fit(model, setup, gpu).fits and not eb.fit(model, setup.replace(adapters=None), gpu).fits
    best = eb.plan(model, setup.replace(checkpointing="none", sequence=8192), gpu).best
    assert best is not None and best.setup.adapters == setup.adapters and best.peak <= eb.fit(model, setup, gpu).usable
    assert best._states <= eb.budget(model, best.setup).phases["after_backward"]


def test_hugging_face_s_models_take_their_own_names_and_the_books():
    pytest.importorskip("peft")
    transformers = pytest.importorskip("transformers")
    config = transformers.Qwen2Config(
        vocab_size=101, hidden_size=64, intermediate_size=176, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=64, tie_word_embeddings=False,
    )  # fmt: skip
    setup = eb.Setup(batch=2, sequence=16, precision="bf16", adapters=eb.Lora(4, ("q_proj", "v_proj"), "bf16"))
    trace = eb.dry_run(config, setup)
    adapters = 2 * 4 * (64 + 64 + 64 + 32)
    assert trace.parts_at("rest")["parameters"] == 2 * (trace.model.parameters + adapters)
    assert trace.parts_at("rest")["optimizer"] == 2 * 2 * adapters
    books = setup.replace(adapters=eb.Lora(4, ("q", "v"), "bf16"))
    assert eb.dry_run(config, books).phases == trace.phases
    with pytest.raises(
        ValueError, match=r"^Lora\.targets: 'query' matches no linear layer of Qwen2.*allowed: q_proj, k_proj"
    ):
        eb.dry_run(config, setup.replace(adapters=eb.Lora(4, ("query",))))


def test_another_codes_name_is_taken_only_where_a_module_has_not_the_targets_own():
    both = {"block.up": 64, "block.fc1": 64, "block.q_proj": 64}
    assert eb.Lora(4, ("up",)).chosen(both, "here") == ["block.up"]
    assert eb.Lora(4, ("fc1", "q")).chosen(both, "here") == ["block.fc1", "block.q_proj"]


# Frozen weights in 4 bits.

QLORA = eb.Setup(
    batch=1, sequence=2048, precision="bf16-mixed", checkpointing="full", optimizer="paged-adamw8bit", quantization="nf4",
    adapters=eb.Lora(16, base="bf16"),
)  # fmt: skip


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", ["gpt2", "llama-3.1-8b", "qwen2.5-7b", "gemma-2b"])
@pytest.mark.parametrize("precision", ["fp32", "bf16-mixed", "bf16"])
def test_families_in_4_bits(name, precision):
    pytest.importorskip("peft")
    pytest.importorskip("bitsandbytes")
    setup = eb.Setup(batch=2, sequence=16, precision=precision, quantization="nf4", adapters=eb.Lora(8, ("out", "up")))
    assert not witnesses.disagreements(twin(name), setup)


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("name", "dtype", "base", "changes"),
    [
        ("llama-3.1-8b", "bf16", None, {}),
        ("llama-3.1-8b", "fp32", None, {"gpus": 3, "checkpointing": "full"}),  # two data types are gathered as bytes
        ("gpt2", "fp32", None, {"precision": "bf16-mixed"}),  # biases and norms are cast, codes are not
        ("qwen2.5-7b", "bf16", "bf16", {"precision": "bf16-mixed", "sharding": "zero2", "replicas": 2}),
        ("gemma-2b", "fp32", None, {"precision": "fp32", "sharding_units": "model", "accumulation": 2}),
        ("gpt2", "fp32", None, {"precision": "bf16-mixed", "offload": "cpu", "gpus": 1}),  # copied one by one
        ("qwen2.5-7b", "fp32", None, {"resharding": "group", "resharding_gpus": 2}),
    ],
)
def test_families_in_4_bits_under_fsdp(name, dtype, base, changes):
    pytest.importorskip("peft")
    pytest.importorskip("bitsandbytes")
    usual = {"batch": 2, "sequence": 16, "precision": "bf16", "sharding": "zero3", "gpus": 4, "quantization": "nf4"}
    setup = eb.Setup(**usual | changes, adapters=eb.Lora(8, "all-linear", dtype, base))
    assert not witnesses.disagreements(twin(name), setup)


def test_codes_are_divided_and_scales_are_not():
    """Llama-3.1-8B, 8 GPUs: of each weight in 4 bits a GPU has an eighth of the codes, and gathers them as they are."""
    model, lora = eb.model("llama-3.1-8b", code="reference"), eb.Lora(16, dtype="bf16")
    setup = eb.Setup(batch=1, sequence=512, precision="bf16", adapters=lora, sharding="zero3", gpus=8)
    packed = setup.replace(quantization="nf4")
    plain, in_4_bits = (eb.budget(model, each).moments["rest"]["parameters"] for each in (setup, packed))
    numbers = 32 * (2 * 4096**2 + 2 * 1024 * 4096 + 3 * 4096 * 14336)
    bits = numbers // 64 * (1 + 4 / 256) + 32 * 7 * (16 * 4 + 256 * 4 + 4) + 256 * 4
    assert in_4_bits == plain - 2 * numbers // 8 + numbers // 2 // 8 + bits
    twice = 2 * (2 * numbers - numbers // 2)  # for forward and for backward
    assert work(model, setup).rings[0][0] - work(model, packed).rings[0][0] == 7 * twice // 8


@pytest.mark.thorough("a whole Llama of 8 billion weights")
@pytest.mark.parametrize("name", ["llama-3.1-8b"])  # chapter 25 has Qwen2.5-7B too
def test_qlora_of_a_whole_model_on_a_card_of_24_gb(name):
    pytest.importorskip("peft")
    pytest.importorskip("bitsandbytes")
    model = eb.model(name, code="reference")
    assert not witnesses.disagreements(model, QLORA, (1,))
    assert eb.fit(model, QLORA, "rtx-4090", "sequence").value > 8192
    assert not eb.fit(model, QLORA.replace(quantization="none", precision="bf16", adapters=None), "rtx-4090").fits


def test_the_bits_of_a_weight():
    """4 bits, 8 bits a block of 64, 32 bits a block of 64 x 256, and two tables: bitsandbytes' own storages."""
    pytest.importorskip("bitsandbytes")
    from torch import bfloat16, empty

    from everybyte.catalog.weights import quantized
    from everybyte.reference.adapters import package

    functional = package("bitsandbytes", "").functional
    for shape in ((18944, 3584), (3, 21), (64, 4096)):
        codes, state = functional.quantize_4bit(
            empty(shape, dtype=bfloat16, device="meta"), compress_statistics=True, quant_type="nf4"
        )
        parts = [codes, state.code, state.absmax, state.state2.code, state.state2.absmax, state.offset]
        said = quantized(shape[0] * shape[1], lambda a, b: -(-a // b))
        assert [t.untyped_storage().nbytes() for t in parts] == [numbers * width for numbers, width in said]
        functional.name2qmap.clear()
    exact = sum(numbers * width for numbers, width in quantized(18944 * 3584, lambda a, b: -(-a // b)))
    assert exact == 35_026_180 and round(8 * exact / (18944 * 3584), 6) == 4.127082


def test_preparing_for_k_bit_training_upcasts_what_is_not_quantized():
    """Embedding, head and norms of Qwen2.5-7B in fp32 take 2.18 GB more; biases are cast back in the first forward."""
    model = eb.model("qwen2.5-7b", code="reference")
    usual, prepared = (
        eb.budget(model, QLORA.replace(adapters=eb.Lora(16, base=base))).moments["rest"] for base in ("bf16", None)
    )
    biases = 28 * (3584 + 512 + 512)
    assert prepared["parameters"] - usual["parameters"] == 2_180_656_128 - 2 * biases


@pytest.mark.parametrize(
    ("changes", "lora", "message"),
    [
        (
            {},
            None,
            r"^Setup\.quantization: 'nf4' without adapters: no optimizer moves weights of 4 bits; .*adapters=Lora",
        ),
        ({"precision": "fp16-mixed"}, {"dtype": "bf16"}, r"^Lora\.dtype: 'bf16' over 4-bit weights.*allowed: 'fp32'"),
        ({"precision": "bf16-master"}, {"dtype": "bf16"}, r"^Setup\.quantization: 'nf4' with precision 'bf16-master'"),
    ],
)
def test_what_does_not_go_with_4_bits_is_named(changes, lora, message):
    with pytest.raises(ValueError, match=message):
        eb.Setup(quantization="nf4", adapters=lora and eb.Lora(**lora), **changes)


def test_experts_in_4_bits_are_refused():
    with pytest.raises(ValueError, match=r"^Setup\.quantization: 'nf4' with mixtral-8x7b, whose experts"):
        eb.budget(eb.model("mixtral-8x7b", code="reference"), QLORA)


def test_a_weight_of_two_numbers_in_4_bits_is_refused():
    """bitsandbytes takes codes in one row for those of a transposed weight."""
    model = twin("llama-3.1-8b").replace(width=1, heads=1, kv_heads=1, head_width=2)
    setup = eb.Setup(batch=1, sequence=8, quantization="nf4", adapters=eb.Lora(1, "v"))
    with pytest.raises(ValueError, match=r"^Setup\.quantization: 'nf4' with attention\.q of .* 2 numbers"):
        eb.budget(model, setup)


def test_codes_that_do_not_fill_the_numbers_that_store_them_are_refused():
    """Of 45 numbers bitsandbytes allocates (45 + 1) // 4 numbers of two bytes, and its kernel writes 23 bytes."""
    model = twin("llama-3.1-8b").replace(width=5, heads=1, kv_heads=1, head_width=2, ffn_width=9)
    setup = eb.Setup(batch=1, sequence=8, quantization="nf4", precision="bf16", adapters=eb.Lora(1), gpus=2)
    eb.budget(model, setup)
    message = r"^Setup\.quantization: 'nf4' with sharding 'zero3' and attention\.q of .* 10 numbers.*allowed: .* multiple of 4"
    with pytest.raises(ValueError, match=message):
        eb.budget(model, setup.replace(sharding="zero3"))
    pytest.importorskip("bitsandbytes")
    from torch import bfloat16, nn

    from everybyte.reference.adapters import quantize
    from everybyte.reference.saving import packed

    module = nn.Sequential(nn.Linear(5, 9, device="meta"))
    quantize(module, bfloat16)
    with pytest.raises(ValueError, match=r"^Setup\.quantization: 0 has 45 numbers.*bfloat16; allowed: a multiple of 4"):
        packed(module, bfloat16, bfloat16)


def test_a_quantizer_that_is_not_there_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "bitsandbytes", None)
    with pytest.raises(ValueError, match=r"^Setup\.quantization: 'nf4' needs bitsandbytes.*everybyte\[adapters\]"):
        eb.dry_run(twin("llama-3.1-8b"), QLORA.replace(sequence=8, optimizer="adamw"))


def test_quantizing_leaves_bitsandbytes_as_it_was():
    """Its table of codes is the process's: one on meta would break every real quantization after it."""
    pytest.importorskip("peft")
    functional = pytest.importorskip("bitsandbytes").functional
    before = dict(functional.name2qmap)
    eb.dry_run(twin("llama-3.1-8b"), QLORA.replace(sequence=8, optimizer="adamw"))
    assert functional.name2qmap == before
