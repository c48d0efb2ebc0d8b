"""Head and loss in one function: the theory is PyTorch's own code as it runs on CUDA, byte for byte."""

import grid
import pytest
import witnesses
from agreeing import agree

import everybyte as eb
from everybyte.ask.choices import PRECISIONS
from everybyte.theory.structure import rows_at_once

torch = pytest.importorskip("torch")
if not hasattr(torch.nn, "LinearCrossEntropyOptions"):
    pytest.skip("PyTorch 2.13 has it", allow_module_level=True)

SETUP = eb.Setup(batch=4, sequence=32, loss="linear-cross-entropy")
SMALL = {
    "layers": 2, "width": 64, "heads": 4, "kv_heads": 2, "head_width": 16, "vocabulary": 1013, "ffn_width": 176,
}  # fmt: skip
GPT = eb.Model(name="a GPT", layers=2, width=48, heads=2, vocabulary=1001, positions=64)
MODELS = {
    "gpt": GPT,
    "fewer words than width": GPT.replace(vocabulary=31, tied=False),  # a row of inputs finds no place in one of logits
    "half as many": GPT.replace(vocabulary=19, tied=False),  # nor in fp32's
    "llama": eb.model("llama-3.1-8b", code="reference").replace(**SMALL),
    "gemma": eb.model("gemma-2b", code="reference").replace(**SMALL | {"kv_heads": 1}),
}


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("name", MODELS)
def test_the_theory_is_pytorch_s_own_code(name, precision):
    shape = [(3, 33), (1, 1), (8, 64)][list(PRECISIONS).index(precision) % 3]
    setup = SETUP.replace(batch=shape[0], sequence=shape[1], precision=precision)
    assert not witnesses.disagreements(MODELS[name], setup)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("start", range(0, 200, 4))
def test_any_step_to_the_byte(start):
    agree(grid.one_function, range(start, start + 4), "block", refused=True)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_every_operation_of_the_loss(precision):
    """Of the loss's forward all that lives at each operation that takes bytes, chunk after chunk; no peak hides it."""
    model, setup = GPT, SETUP.replace(precision=precision, batch=6)
    said, seen = eb.budget(model, setup), eb.dry_run(model, setup)

    def lives(witness, taken):
        lines = list(zip(*witness.timeline().values(), strict=True))
        return [sum(lines[i]) for i, operation in enumerate(witness.operations) if operation[2] == "loss" and taken(i)]

    born = {a.birth for a in seen.allocations if a.bytes}
    found = lives(seen, born.__contains__)
    assert lives(said, lambda i: True) == found and len(found) > 40


@pytest.mark.parametrize(
    "changes",
    [
        {"accumulation": 2}, {"checkpointing": "full"}, {"gpus": 2}, {"gpus": 4, "sharding": "zero1"},
        {"gpus": 4, "sharding": "zero3"}, {"gpus": 4, "sharding": "zero2", "precision": "bf16-mixed"},
        {"adapters": eb.Lora(4)}, {"adapters": eb.Lora(4, dtype="bf16"), "precision": "bf16"},
        {"adapters": eb.Lora(4), "quantization": "nf4", "precision": "bf16"}, {"precision": "bf16-megatron"},
    ],
)  # fmt: skip
def test_with_other_ways_to_save(changes):
    if "adapters" in changes:
        pytest.importorskip("peft")
    if "quantization" in changes:
        pytest.importorskip("bitsandbytes")
    for name in ("gpt", "llama"):
        assert not witnesses.disagreements(MODELS[name], SETUP.replace(**changes)), name


def test_the_chunks_are_pytorch_s():
    options = torch.nn.LinearCrossEntropyOptions()
    for batch, sequence, width, vocabulary in (
        (8, 1024, 768, 50257), (1, 1, 768, 50257), (3, 77, 64, 5), (4, 8192, 4096, 128256), (1, 513, 1600, 1600), (2, 9, 7, 7000),
    ):  # fmt: skip
        model = GPT.replace(width=width, heads=1, vocabulary=vocabulary)
        chosen = options._adjust(batch * sequence, width, vocabulary, torch.float32, torch.device("cuda"))
        assert rows_at_once(model, eb.Setup(batch=batch, sequence=sequence)) == chosen.batch_chunk_size
        assert (chosen.acc_policy, chosen.acc_dtype) == ("compact", torch.float32)


def test_of_gpt2_the_loss_is_gone_from_the_peak():
    model = eb.model("gpt2")
    plain, chunked, fused = (
        eb.budget(model, eb.Setup(loss=loss)) for loss in ("plain", "chunked", "linear-cross-entropy")
    )
    assert plain.peak > chunked.peak > fused.peak
    both = 4 * 768 * (50257 + 8192)
    assert fused.phases["after_forward"] - plain.phases["after_forward"] == both - 4 * 8192 * (50257 + 768) - 4
    assert fused.parts["loss"] + fused.parts["gradients"] == 2 * both + 8 * 8192 + 2 * 4


def test_autocast_does_not_reach_it():
    """The logits of a chunk are fp32 under autocast as without it, and no cast of the head's weight is made."""
    casts = [
        eb.budget(GPT, SETUP.replace(precision="bf16-mixed", loss=loss)).parts_at("after_forward")["casts"]
        for loss in ("plain", "linear-cross-entropy")
    ]
    assert casts[0] - casts[1] == 2 * 1001 * 48


def test_it_is_the_plain_loss():
    from everybyte.reference import GPT as Reference

    def gradients(loss):
        torch.manual_seed(0)
        module = Reference(GPT, SETUP.replace(loss=loss)).initialize()
        tokens = torch.arange(4 * 32).view(4, 32) * 7 % 1001
        value = module(tokens, tokens.roll(-1))
        value.backward()
        return value.detach(), *(p.grad for p in module.parameters())

    for mine, plain in zip(gradients("linear-cross-entropy"), gradients("plain"), strict=True):
        torch.testing.assert_close(mine, plain, rtol=1e-4, atol=1e-7)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"gpus": 2, "mesh": eb.Mesh(tensor=2)}, r"^Setup\.loss: 'linear-cross-entropy' with mesh tensor=2 .*'plain'"),
        (
            {"gpus": 4, "sharding": "zero3", "sharding_units": "block+ends"},
            r"^Setup\.loss: .* 'block\+ends'.*'plain', or other units",
        ),
        (
            {"precision": "bf16-mixed", "adapters": eb.Lora(base="bf16")},
            r"^Setup\.loss: .* autocast has no rule .*'plain', 'chunked', or Lora\.base 'fp32'",
        ),
        ({"loss_chunks": 4}, r"^Setup\.loss_chunks: 4 needs loss 'chunked', not 'linear-cross-entropy'"),
    ],
)
def test_what_does_not_go_with_it_is_named(changes, message):
    with pytest.raises(ValueError, match=message):
        SETUP.replace(**changes)


def test_what_does_not_speak_of_it_refuses():
    with pytest.raises(
        ValueError, match=r"^formula loss\.logits: Setup\.loss: 'linear-cross-entropy'.*eb\.budget answers"
    ):
        eb.formula("loss.logits").at(GPT, SETUP)
    with pytest.raises(ValueError, match=r"^Setup\.loss: 'linear-cross-entropy' is not derived.*'plain', 'chunked'"):
        eb.derive(GPT, SETUP)
    with pytest.raises(ValueError, match=r"^peaks\.setup\.loss: 'linear-cross-entropy'"):
        eb.budget.__globals__["peaks"](GPT, SETUP, [1], [8])


def test_an_older_pytorch_is_named(monkeypatch):
    monkeypatch.delattr(torch.nn, "LinearCrossEntropyOptions")
    with pytest.raises(ValueError, match=r"^Setup\.loss: 'linear-cross-entropy' needs PyTorch 2\.13"):
        eb.dry_run(GPT, SETUP)


def test_fit_and_plan_take_it():
    model, gpu = eb.model("gpt2"), eb.gpu("rtx-4090")
    setup = eb.Setup(precision="bf16", loss="linear-cross-entropy")
    assert eb.fit(model, setup, gpu, "batch").value > eb.fit(model, setup.replace(loss="plain"), gpu, "batch").value
    best = eb.plan(model, setup.replace(batch=128), gpu).best
    assert best is not None and best.setup.loss == "linear-cross-entropy"
