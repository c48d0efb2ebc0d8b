"""A setup is checked when it is made, and when it is copied."""

import dataclasses
import json
import typing
from importlib import resources

import pytest

import everybyte as eb
from everybyte.ask.choices import (
    CHOICES,
    COMMON_OPTIMIZERS,
    DTYPE_BYTES,
    LIBRARIES,
    OPTIMIZER_IMPLS,
    OPTIMIZERS,
    OWN,
    PRECISIONS,
)

GOOD = {
    "batch": [1, 8, 4096],
    "sequence": [1, 1024, 131072],
    "precision": ["fp32", "bf16-mixed", "fp16-mixed", "bf16-master", "bf16", "bf16-megatron", "bf16-deepspeed", "own"],
    "optimizer": [
        "sgd",
        "momentum",
        "adam",
        "adamw",
        "rmsprop",
        "lion",
        "adafactor",
        "muon",
        "adamw8bit",
        "paged-adamw8bit",
        "torchao-adamw8bit",
        "adamw4bit",
        "adamwfp8",
    ],
    "optimizer_impl": ["foreach", "loop", "fused"],
    "attention": ["eager", "flash"],
    "linear_attention": ["torch", "fla"],
    "dropout": [0, 0.0, 0.1, 0.999],
    "loss": ["plain", "chunked", "linear-cross-entropy"],
    "loss_chunks": [8],
    "master_gradients": ["bf16"],
    "checkpointing": ["none", "full", "every-k", "selective", "operations", "one-in-k", "second-products"],
    "checkpoint_every": [2],
    "accumulation": [1, 2, 2**20],
    "sharding": ["none", "zero1", "zero2", "zero3"],
    "gpus": [1, 2, 3, 1024, 2**20],
    "fsdp_version": [2],
    "sharding_units": ["block"],
    "resharding": ["usual"],
    "resharding_gpus": [8],
    "muon_gather": ["each"],
    "replicas": [1],
    "offload": ["none"],
    "no_sync": [False],
    "optimizer_in_backward": [False, True],
    "buckets": ["copies"],
    "adapters": [None, eb.Lora(), eb.Lora(8, ("q", "v"))],
    "quantization": ["none"],
    "loop": ["plain", "nanogpt", "trainer", "torchtitan", "accelerate"],
    "outputs": ["dropped", "kept"],
    "zero_grad": ["end", "start", "backward"],
    "clip": ["none", "foreach", "loop"],
    "mesh": [eb.Mesh()],
}
BAD = {
    "batch": [0, -1, 1.5, 8.0, "8", True, None, 2**25],
    "sequence": [0, -1, 1.5, "1024", False, 2**28],
    "precision": ["fp16", "bf16-mix", "", 16, []],
    "optimizer": ["adamW", "adam8bit", None, 2],
    "optimizer_impl": ["for-each", "Foreach", True],
    "attention": ["flash2", "sdpa"],
    "linear_attention": ["FLA", "triton", None, True],
    "dropout": [-0.1, 1, 1.0, 2, float("nan"), float("inf"), "0.1", True],
    "loss": ["fused", "Plain", None],
    "loss_chunks": [0, -1, 8.0, "8", True, None, 9],
    "master_gradients": ["fp16", "none", None],
    "checkpointing": ["half", None],
    "checkpoint_every": [0, -1, 2.0, None, 3],
    "accumulation": [0, -1, 1.0, True, 2**21],
    "sharding": ["zero4", "fsdp", "ZeRO1", None, 3],
    "gpus": [0, -1, 1.0, True, "1", 2**20 + 1],
    "fsdp_version": [0, 1, 3, 2.0, "2", True, None],
    "sharding_units": ["layer", "model", "block+ends", None],
    "resharding": ["root", "last", None],
    "resharding_gpus": [4, 1, 0, True, None],
    "muon_gather": ["owner", "all-to-all", "all", None],
    "replicas": [0, -1, 2, 1.0, True],
    "offload": ["cpu", "CPU", "nvme", True, None],
    "no_sync": [True, 0, 1, "no", None],
    "optimizer_in_backward": [0, 1, "yes", None],
    "buckets": ["view", "views", None],
    "adapters": ["lora", 16, True, ("q", "v")],
    "mesh": ["tensor=2", None, 2],
    "quantization": ["nf4", "int8", "NF4", None, True, 4],
    "loop": ["lightning", "Plain", None, True],
    "outputs": ["keep", True],
    "zero_grad": ["before", True],
    "clip": [1.0, "fused", True],
}


def _cases(values):
    return [pytest.param(f, v, id=f"{f}={v!r}") for f, several in values.items() for v in several]


def test_every_field_has_good_and_bad_values():
    fields = {f.name for f in dataclasses.fields(eb.Setup)}
    assert fields == GOOD.keys() == BAD.keys()


@pytest.mark.parametrize(("field", "value"), _cases(GOOD))
def test_good_value(field, value):
    assert getattr(eb.Setup(**{field: value}), field) == value


@pytest.mark.parametrize(("field", "value"), _cases(BAD))
def test_bad_value_is_named(field, value):
    with pytest.raises(ValueError) as error:
        eb.Setup(**{field: value})
    assert str(error.value).startswith(f"Setup.{field}: {value!r} ")
    with pytest.raises(ValueError):
        eb.Setup().replace(**{field: value})


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("precision", "bf16-mix", "did you mean 'bf16-mixed'"),
        ("optimizer", "adamW", "'adamw'"),
        ("batch", 0, "from 1 to 16,777,216"),
        ("dropout", 1.0, r"\[0, 1\)"),
        ("attention", "sdpa", "allowed: eager, flash"),
    ],
)
def test_error_says_what_is_allowed(field, value, message):
    with pytest.raises(ValueError, match=message):
        eb.Setup(**{field: value})


@pytest.mark.parametrize("where", ["fp32", "both"])
def test_gradient_buffers_belong_to_bf16_master(where):
    assert eb.Setup(precision="bf16-master", master_gradients=where).master_gradients == where
    for precision in PRECISIONS.keys() - {"bf16-master"}:
        with pytest.raises(ValueError, match=rf"Setup\.master_gradients: '{where}' needs .*'{precision}'"):
            eb.Setup(precision=precision, master_gradients=where)


@pytest.mark.parametrize(
    ("field", "value", "said"),
    [
        ("optimizer", "adamw_torch_fused", "is optimizer 'adamw' with optimizer_impl 'fused'; allowed: sgd, "),
        ("attention", "sdpa", "is attention 'flash', .*; allowed: eager, flash"),
        ("precision", "bfloat16", "is precision 'bf16', .* 'bf16-mixed'; allowed: fp32, "),
        ("loss", "liger", "is another package's, .*; allowed: plain, .*; everybyte rehearse runs a script with it"),
    ],
)
def test_a_name_that_trainers_use_says_what_it_is_here(field, value, said):
    with pytest.raises(ValueError, match=rf"^Setup\.{field}: '{value}' {said}"):
        eb.Setup(**{field: value})
    assert eb.Setup(optimizer="adamw", optimizer_impl="fused", attention="flash", precision="bf16-mixed")


def test_a_name_of_fsdp_says_how_it_is_asked_for():
    with pytest.raises(
        ValueError, match=r"^Setup\.sharding: 'fsdp1' is sharding 'zero3' .* with fsdp_version 1; allowed: none,"
    ):
        eb.Setup(gpus=8, sharding="fsdp1")


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"sharding": "none"}, r"fsdp_version: 1 needs sharding 'zero2' or 'zero3', not 'none'"),
        ({"gpus": 1}, "gpus: 1 with fsdp_version 1: PyTorch divides nothing there"),
        (
            {"sharding_units": "model"},
            "sharding_units: 'model' with fsdp_version 1 is not derived; .*'block'; everybyte rehearse",
        ),
        ({"resharding": "root"}, "resharding: 'root' with fsdp_version 1"),
        ({"replicas": 2}, "replicas: 2 with fsdp_version 1"),
        ({"offload": "cpu"}, "offload: 'cpu' with fsdp_version 1"),
        ({"precision": "bf16-master"}, "precision: 'bf16-master' with fsdp_version 1"),
        ({"optimizer_in_backward": True}, "optimizer_in_backward: True with fsdp_version 1"),
        ({"optimizer": "muon"}, "optimizer: 'muon' with fsdp_version 1"),
        ({"clip": "foreach"}, "clip: 'foreach' with fsdp_version 1"),
        ({"adapters": eb.Lora()}, "adapters: .* with fsdp_version 1"),
        ({"mesh": eb.Mesh(tensor=2)}, "mesh: .* with fsdp_version 1"),
    ],
)
def test_what_does_not_go_with_fsdp1_is_refused_by_name(changes, why):
    with pytest.raises(ValueError, match=rf"^Setup\.{why}"):
        eb.Setup(**{"gpus": 4, "sharding": "zero3", "fsdp_version": 1} | changes)


@pytest.mark.parametrize("sharding", ["zero2", "zero3"])
def test_fsdps_switches_belong_to_fsdp(sharding):
    setup = eb.Setup(gpus=8, sharding=sharding, sharding_units="model", replicas=4)
    assert setup.fsdp and setup.distributed and not setup.ddp
    for other in ("none", "zero1"):
        with pytest.raises(ValueError, match=rf"Setup\.sharding_units: 'model' needs .*'zero3', not '{other}'"):
            eb.Setup(gpus=8, sharding=other, sharding_units="model")
        with pytest.raises(ValueError, match=rf"Setup\.replicas: 4 needs .*'zero3', not '{other}'"):
            eb.Setup(gpus=8, sharding=other, replicas=4)
        with pytest.raises(ValueError, match=rf"Setup\.offload: 'cpu' needs .*'zero3', not '{other}'"):
            eb.Setup(gpus=8, sharding=other, offload="cpu")
    for replicas in (3, 16):
        with pytest.raises(ValueError, match=rf"Setup\.replicas: {replicas} does not divide the 8 gpus"):
            setup.replace(replicas=replicas)


def test_no_sync_belongs_to_fsdp_with_several_batches():
    for sharding in ("zero2", "zero3"):
        assert eb.Setup(gpus=2, sharding=sharding, accumulation=2, no_sync=True).no_sync
        with pytest.raises(
            ValueError, match=r"Setup\.no_sync: True needs .* and accumulation from 2 on, not .* and 1; .* False"
        ):
            eb.Setup(gpus=2, sharding=sharding, no_sync=True)
    for sharding in ("none", "zero1"):
        with pytest.raises(
            ValueError, match=rf"Setup\.no_sync: True needs sharding 'zero2' or 'zero3' .* not '{sharding}'"
        ):
            eb.Setup(gpus=2, sharding=sharding, accumulation=2, no_sync=True)


def test_one_weight_cannot_be_in_two_units():
    setup = eb.Setup(gpus=2, sharding="zero3", sharding_units="block+ends")
    setup.check_model(eb.model("llama-2-7b", code="reference"))
    with pytest.raises(
        ValueError, match=r"Setup\.sharding_units: 'block\+ends' with gpt2, .* one weight.*'block' or 'model'"
    ):
        setup.check_model(eb.model("gpt2"))


def test_buckets_belong_to_ddp():
    assert eb.Setup(gpus=2, buckets="views").ddp and not eb.Setup().distributed
    for others in ({"gpus": 1}, {"gpus": 2, "sharding": "zero1"}, {"gpus": 2, "sharding": "zero3"}):
        with pytest.raises(ValueError, match=r"Setup\.buckets: 'views' needs sharding 'none' and gpus from 2 on"):
            eb.Setup(buckets="views", **others)


@pytest.mark.parametrize("sharding", ["zero1", "zero2", "zero3"])
def test_loss_scaling_is_not_divided(sharding):
    assert eb.Setup(gpus=4, precision="fp16-mixed").ddp
    with pytest.raises(
        ValueError, match=rf"Setup\.precision: 'fp16-mixed' with sharding '{sharding}': .* allowed: fp32"
    ):
        eb.Setup(precision="fp16-mixed", sharding=sharding)


@pytest.mark.parametrize("others", [{"gpus": 2}, {"sharding": "zero1"}, {"gpus": 2, "sharding": "zero3"}])
def test_gradient_buffers_belong_to_one_gpu(others):
    assert eb.Setup(precision="bf16-master", **others).distributed
    with pytest.raises(ValueError, match=r"Setup\.master_gradients: 'both' needs one GPU and sharding 'none'"):
        eb.Setup(precision="bf16-master", master_gradients="both", **others)


def test_sequence_must_fit_the_models_positions():
    gpt2 = eb.model("gpt2")
    eb.Setup(sequence=1024).check_model(gpt2)
    with pytest.raises(ValueError, match=r"Setup\.sequence: 1025 .*1024 positions of gpt2; allowed: 1 to 1024"):
        eb.Setup(sequence=1025).check_model(gpt2)


def test_experts_rows_are_of_16_bytes():
    mixtral = eb.model("mixtral-8x7b", code="reference")
    for precision, step in (("fp32", 4), ("bf16-mixed", 4), ("bf16-master", 8), ("bf16", 8)):
        setup = eb.Setup(precision=precision)
        setup.check_model(mixtral)
        setup.check_model(mixtral.replace(width=4096 + step, head_width=128))
        for field in ("width", "expert_width"):
            with pytest.raises(
                ValueError, match=rf"Setup\.precision: .* {field} is 4098 in .*; allowed: multiples of {step}"
            ):
                setup.check_model(mixtral.replace(head_width=128, **{field: 4098}))
    with pytest.raises(ValueError, match=r"multiples of 8"):
        eb.Setup(precision="bf16-mixed", sharding="zero3").check_model(mixtral.replace(width=4100, head_width=128))


def test_a_window_bounds_the_sequence_of_a_model_that_the_reference_builds():
    mistral = eb.model("mistral-7b", code="reference")
    eb.Setup(sequence=4096).check_model(mistral)
    with pytest.raises(ValueError, match=r"Setup\.sequence: 4097 .* window of 4096 tokens of mistral-7b.*1 to 4096"):
        eb.Setup(sequence=4097).check_model(mistral)
    eb.Setup(sequence=4097).check_model(eb.model("gpt-oss-20b"))  # another's own code has the mask


@pytest.mark.parametrize("precision", PRECISIONS)
def test_flash_attention_takes_what_its_kernels_take(precision):
    setup, full = eb.Setup(precision=precision), precision == "fp32"
    for width in (1, 2, 4, 6, 60, 64, 250, 256, 258, 260, 512):
        model = eb.Model(name="m", layers=1, width=2 * width, heads=2, vocabulary=8, positions=1024)
        setup.replace(attention="eager").check_model(model)
        if width % 4 == 0 if full else width <= 256:
            setup.check_model(model)
            continue
        with pytest.raises(ValueError, match=rf"Setup\.attention: 'flash' .* {width} in .* m has; allowed: 'eager'"):
            setup.check_model(model)
        with pytest.raises(ValueError, match=rf"width {width}"):
            eb.budget(model, setup)


@pytest.mark.parametrize("precision", PRECISIONS)
def test_flash_attention_takes_every_model_of_the_catalog(precision):
    for model in eb.models("reference").values():
        eb.Setup(precision=precision, sequence=64).check_model(model)


def test_a_model_without_positions_takes_any_sequence():
    eb.Setup(sequence=2**20).check_model(eb.Model(layers=1, width=8, heads=1, vocabulary=8))


def test_a_copy_changes_only_what_is_named():
    setup = eb.Setup(batch=2, precision="bf16")
    copy = setup.replace(sequence=128)
    assert copy.as_dict() == setup.as_dict() | {"sequence": 128}
    assert setup.sequence == 1024


def test_json_gives_the_same_setup_back():
    setup = eb.Setup(batch=4, precision="bf16-master", master_gradients="both", dropout=0.1)
    assert eb.Setup(**json.loads(json.dumps(setup.as_dict()))) == setup


def test_a_setup_cannot_be_changed_and_can_be_a_key():
    setup = eb.Setup()
    with pytest.raises(dataclasses.FrozenInstanceError):
        setup.batch = 1
    assert {setup: 1}[eb.Setup()] == 1


@pytest.mark.parametrize(
    ("precision", "weights", "compute", "states", "master"),
    [
        ("fp32", 4, 4, 4, 0),
        ("bf16-mixed", 4, 2, 4, 0),
        ("fp16-mixed", 4, 2, 4, 0),
        ("bf16-master", 2, 2, 4, 4),
        ("bf16", 2, 2, 2, 0),
    ],
)
def test_bytes_of_each_role(precision, weights, compute, states, master):
    dtypes = eb.Setup(precision=precision).dtypes
    width = DTYPE_BYTES | {None: 0}
    assert [width[d] for d in (dtypes.weights, dtypes.compute, dtypes.states, dtypes.master)] == [
        weights, compute, states, master,
    ]  # fmt: skip
    assert dtypes.autocast == precision.endswith("-mixed")
    assert dtypes.loss_scaling == (precision == "fp16-mixed")


def test_named_values_are_all_tried():
    assert [*PRECISIONS, *LIBRARIES, *OWN] == GOOD["precision"]
    assert list(OPTIMIZERS) == GOOD["optimizer"]
    assert list(OPTIMIZER_IMPLS) == GOOD["optimizer_impl"]
    assert {field: list(allowed) for field, allowed in CHOICES.items() if len(GOOD[field]) > 1} == {
        field: GOOD[field] for field in CHOICES if len(GOOD[field]) > 1
    }


@pytest.mark.parametrize("field", CHOICES)
def test_an_editor_knows_the_values_of_a_choice(field):
    annotation = {f.name: f.type for f in dataclasses.fields(eb.Setup)}[field]
    assert typing.get_args(annotation) == CHOICES[field]
    assert (resources.files(eb) / "py.typed").is_file()


def test_an_optimizer_is_a_row():
    for name, row in OPTIMIZERS.items():
        assert eb.Setup(optimizer=name).optimizer_impl == row.impls[0]
        assert set(row.impls) <= set(OPTIMIZER_IMPLS)
        if row.passes:
            assert len(row.passes) == len(row.impls) and min(row.passes) > (row.states or 0)
    assert COMMON_OPTIMIZERS == ("sgd", "momentum", "adam", "adamw")


def test_another_optimizer_brings_its_usual_implementation():
    assert eb.Setup().optimizer_impl == "foreach"
    assert eb.Setup().replace(optimizer="adafactor").optimizer_impl == "loop"
    assert eb.Setup(optimizer="lion").replace(optimizer="adamw").optimizer_impl == "foreach"
    assert eb.Setup(optimizer_impl="fused").replace(optimizer="adam").optimizer_impl == "fused"
    for changes, field in (
        ({"optimizer": "lion", "optimizer_impl": "foreach"}, "optimizer_impl: 'foreach' .* allowed: loop"),
        ({"optimizer": "adafactor", "sharding": "zero3", "gpus": 2}, "optimizer: 'adafactor' .* allowed: sgd"),
    ):
        with pytest.raises(ValueError, match=rf"^Setup\.{field}"):
            eb.Setup(**changes)
    with pytest.raises(ValueError, match=r"^Setup\.optimizer_impl: 'fused'"):
        eb.Setup(optimizer_impl="fused").replace(optimizer="lion")


@pytest.mark.parametrize("value", [[], {}, None, 8])
def test_a_replaced_optimizer_that_is_none_is_named(value):
    with pytest.raises(ValueError, match="Setup.optimizer"):
        eb.Setup().replace(optimizer=value)


@pytest.mark.parametrize("precision", ["fp8", "NVFP4"])
def test_eight_and_four_bits_are_refused_by_name(precision):
    with pytest.raises(
        ValueError, match=rf"^Setup\.precision: '{precision}' is not derived: chapter 27 sums what a linear"
    ):
        eb.Setup(precision=precision)
