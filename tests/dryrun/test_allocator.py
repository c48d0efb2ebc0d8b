"""What PyTorch's CUDA build asks of its own allocator on a driver that does nothing, and what a dry run counts."""

import pytest

import everybyte as eb

#: cuBLAS's two workspaces on a GPU of compute capability 9.0: beside what the step's tensors take.
CUBLAS = 2 * 33_554_432
#: Bytes that were requested at the peak (PyTorch 2.13, capability 9.0), by a step of GPT-2 that differs from `Setup()` so.
REQUESTED = [
    (11_389_516_808, {}),
    (16_279_550_984, {"attention": "eager"}),
    (8_686_658_348, {"precision": "bf16-mixed"}),
    (15_992_611_340, {"precision": "bf16-mixed", "attention": "eager"}),
    (8_686_658_364, {"precision": "fp16-mixed"}),
    (6_727_079_716, {"precision": "bf16-master"}),
    (8_180_510_212, {"precision": "bf16", "attention": "eager"}),
    (2_789_035_016, {"batch": 1}),
    (2_555_907_076, {"batch": 1, "sequence": 128}),
    (22_476_635_144, {"attention": "eager", "dropout": 0.1}),
    (11_546_803_208, {"dropout": 0.1}),
    (6_266_675_208, {"precision": "bf16-mixed", "attention": "eager", "checkpointing": "every-k", "checkpoint_every": 4}),
    (6_144_909_836, {"precision": "bf16-mixed", "attention": "eager", "checkpointing": "full"}),
    (6_677_216_264, {"attention": "eager", "checkpointing": "every-k", "checkpoint_every": 4}),
    (11_384_798_216, {"checkpointing": "selective"}),
    (8_732_271_116, {"precision": "bf16-mixed", "attention": "eager", "checkpointing": "selective"}),
    (7_243_020_296, {"loss": "chunked"}),
    (4_774_608_936, {"precision": "bf16-mixed", "loss": "chunked", "loss_chunks": 64}),
    (4_515_434_512, {"batch": 2, "accumulation": 4}),
]  # fmt: skip


@pytest.mark.sampled(5)
@pytest.mark.parametrize(("requested", "changes"), REQUESTED, ids=str)
def test_the_peak_is_what_cudas_own_code_requests(requested, changes):
    assert eb.dry_run(eb.model("gpt2"), eb.Setup(**changes)).peak == requested - CUBLAS


def scores(trace, operation="_softmax_backward_data"):
    return [a for a in trace.allocations if a.operation == operation]


def test_softmaxs_backward_takes_one_more_tensor_while_it_runs():
    model = eb.Model(name="m", layers=2, width=16, heads=2, vocabulary=11, positions=32)
    trace = eb.dry_run(model, eb.Setup(batch=3, sequence=20, attention="eager", precision="bf16-mixed"))
    made = scores(trace)
    assert [a.bytes for a in made] == [4 * 3 * 2 * 20 * 20] * 4  # fp32, though the products run in bf16
    assert [a.death - a.birth for a in made[1::2]] == [0, 0] and all(a.death > a.birth for a in made[::2])
    assert not scores(trace, "_log_softmax_backward_data")[1:]  # of the loss, whose kernel takes none


def test_attentions_seed_is_on_the_cpu():
    model = eb.Model(name="m", layers=2, width=16, heads=2, vocabulary=11, positions=32)
    trace = eb.dry_run(model, eb.Setup(batch=3, sequence=20))
    made = scores(trace, "_scaled_dot_product_efficient_attention")
    assert [a.bytes for a in made if a.host] == [8] * 4
    assert len([a for a in made if not a.host]) == 4 and not trace.host
    assert all(a.bytes > 8 for a in trace.owners() if a.operation == made[0].operation)
    sixteen = eb.dry_run(model, eb.Setup(batch=3, sequence=20, precision="bf16"))
    kept = scores(sixteen, "_scaled_dot_product_flash_attention")
    assert not any(a.host for a in kept) and [a.bytes for a in kept].count(16) == 2
