"""Hugging Face's models, from their configs alone: what they keep, and how their GPT-2 differs from the book's."""

import socket

import pytest
import torch

import everybyte as eb
from everybyte.ask.choices import DTYPE_BYTES, PRECISIONS

transformers = pytest.importorskip("transformers")

LAYERS, WIDTH, HEADS, VOCABULARY, POSITIONS = 3, 48, 3, 331, 64
OURS = eb.Model(
    name="ours",
    layers=LAYERS,
    width=WIDTH,
    heads=HEADS,
    vocabulary=VOCABULARY,
    positions=POSITIONS,
    ffn_width=4 * WIDTH,
)


def gpt2(**changes):
    dropouts = dict.fromkeys(("attn_pdrop", "embd_pdrop", "resid_pdrop"), 0.0)
    return transformers.GPT2Config(
        use_cache=False,
        **dropouts,
        n_layer=LAYERS,
        n_embd=WIDTH,
        n_head=HEADS,
        vocab_size=VOCABULARY,
        n_positions=POSITIONS,
        **changes,
    )


def llama(**changes):
    sizes = {"hidden_size": 64, "intermediate_size": 176, "num_hidden_layers": 2, "num_attention_heads": 4}
    return transformers.LlamaConfig(**sizes | {"vocab_size": 331, "max_position_embeddings": 64} | changes)


@pytest.fixture(autouse=True)
def no_network(monkeypatch):
    def refuse(*_):
        raise AssertionError("a connection was tried")

    monkeypatch.setattr(socket.socket, "connect", refuse)


def differences(setup, activation):
    """Bytes that Hugging Face's GPT-2 keeps after forward, beyond ours, each with its reason."""
    B, S = setup.batch, setup.sequence
    tokens, precision = B * S, setup.dtypes
    c = DTYPE_BYTES[precision.compute]
    reasons = {"labels, moved on by one and padded": 8 * tokens}
    if activation == "gelu_new":  # tanh's formula in steps: x, tanh, 1 + tanh and x / 2 are kept where gelu keeps x
        each = 3 * c
        if precision.autocast:  # pow asks for fp32, so that three of them are, and their product is cast for the matrix
            each = 3 * 4 + 2 - 2
        reasons["GELU in steps"] = LAYERS * tokens * 4 * WIDTH * each
    if setup.attention == "eager":
        reasons["a mask of every layer's own, as a buffer"] = -LAYERS * POSITIONS**2 * DTYPE_BYTES[precision.weights]
        reasons["a mask of every layer's own, as backward keeps it"] = -LAYERS * S**2
    if precision.weights != "fp32":  # logits are upcast before log-softmax
        reasons["log-probabilities in fp32"] = 2 * tokens * VOCABULARY
        reasons["the loss and its total weight in fp32"] = 2 + 2
    elif precision.autocast:
        reasons["log-probabilities in fp32 alone, not in 16 bits too"] = -2 * tokens * VOCABULARY
    return reasons


@pytest.mark.sampled(8)
@pytest.mark.parametrize("activation", ["gelu", "gelu_new"])
@pytest.mark.parametrize("dropout", [0.0, 0.1])
@pytest.mark.parametrize("attention", ["eager", "flash"])
@pytest.mark.parametrize("precision", PRECISIONS)
def test_gpt2_and_ours_differ_by_what_is_named(precision, attention, dropout, activation):
    setup = eb.Setup(batch=2, sequence=32, precision=precision, attention=attention, dropout=dropout)
    theirs, ours = eb.dry_run(gpt2(activation_function=activation), setup), eb.dry_run(OURS, setup)
    assert theirs.model.parameters == ours.model.parameters
    assert theirs.phases["after_forward"] - ours.phases["after_forward"] == sum(differences(setup, activation).values())
    parts, expected = theirs.parts_at("rest"), ours.parts_at("rest")
    assert {p: parts[p] - expected[p] for p in parts if parts[p] != expected[p] and p != "buffers"} == {}


@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
def test_where_the_architectures_agree_so_do_the_peaks(optimizer):
    setup = eb.Setup(batch=4, sequence=64, optimizer=optimizer)
    config = gpt2(activation_function="gelu")
    config.vocab_size = 1999
    theirs, ours = eb.dry_run(config, setup), eb.dry_run(OURS.replace(vocabulary=1999), setup)
    assert (theirs.peak, theirs.peak_at) == (ours.peak, ours.peak_at)
    assert ours.peak_at == "loss backward"


def test_the_config_is_left_as_it_was():
    config = gpt2()
    before = config.to_dict()
    eb.dry_run(config, eb.Setup(batch=1, sequence=8, dropout=0.3))
    assert config.to_dict() == before


@pytest.mark.parametrize("precision", ["bf16", "bf16-mixed"])
def test_dropout_and_attention_are_the_setups(precision):
    setup = eb.Setup(batch=2, sequence=32, precision=precision)
    flash, eager, dropped = (
        eb.dry_run(gpt2(), setup.replace(**changes)) for changes in ({}, {"attention": "eager"}, {"dropout": 0.2})
    )
    assert "_scaled_dot_product_flash_attention" in {name for name, _, _ in flash.operations}
    assert "_softmax" in {name for name, _, _ in eager.operations}
    masks = [a for a in dropped.owners(dropped.marks["after_forward"]) if a.operation == "native_dropout"]
    assert "native_dropout" not in {name for name, _, _ in flash.operations}
    assert len({a.owner for a in masks}) == 1 + 2 * LAYERS


@pytest.mark.sampled(8)
@pytest.mark.parametrize("kv_heads", [4, 2])
@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3", "mistral"])
def test_other_families_run_in_every_precision(family, precision, kv_heads):
    classes = {
        "llama": transformers.LlamaConfig, "qwen2": transformers.Qwen2Config,
        "qwen3": transformers.Qwen3Config, "mistral": transformers.MistralConfig,
    }  # fmt: skip
    config = classes[family](
        hidden_size=64, intermediate_size=176, num_hidden_layers=2, num_attention_heads=4, head_dim=16, vocab_size=331,
        num_key_value_heads=kv_heads, max_position_embeddings=64,
    )  # fmt: skip
    setup = eb.Setup(batch=2, sequence=32, precision=precision)
    trace = eb.dry_run(config, setup)
    names = {name for name, phase, _ in trace.operations if phase == "forward"}
    if setup.dtypes.compute != "fp32":
        assert "_scaled_dot_product_flash_attention" in names
    else:  # CUDA has no fp32 kernel for fewer key than query heads: the scores exist
        assert ("_safe_softmax" if kv_heads == 2 else "_scaled_dot_product_efficient_attention") in names
    assert trace.parts_at("rest")["parameters"] == trace.model.parameters * DTYPE_BYTES[setup.dtypes.weights]
    assert trace.parts_at("after_forward")["loss"] >= 2 * 32 * 331 * 4


def test_a_batch_may_say_more_than_tokens_and_labels():
    tokens = (2, 32), torch.int64
    batch = {"input_ids": tokens, "labels": tokens, "position_ids": tokens}
    setup = eb.Setup(batch=2, sequence=32)
    given, made = eb.dry_run(llama(), setup, batch=batch), eb.dry_run(llama(), setup)
    assert given.phases["after_forward"] >= made.phases["after_forward"]


def test_a_masks_values_are_asked_for_by_name():
    tokens = (2, 32), torch.int64
    batch = {"input_ids": tokens, "labels": tokens, "attention_mask": tokens}
    with pytest.raises(ValueError, match="needs the values in a tensor") as error:
        eb.dry_run(llama(), eb.Setup(batch=2, sequence=32), batch=batch)
    assert "in module 'model'" in error.value.__notes__[0]


def test_llama_2_7b_is_counted():
    setup = eb.Setup(batch=1, sequence=4096, precision="bf16-mixed")
    trace = eb.dry_run(transformers.LlamaConfig(max_position_embeddings=4096), setup)
    assert trace.model == type(trace.model)("LlamaForCausalLM", 6_738_415_616)
    assert trace.model.parameters == eb.model("llama-2-7b", code="reference").parameters


def mixtral(**changes):
    return transformers.MixtralConfig(
        hidden_size=64, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, vocab_size=331,
        max_position_embeddings=64, num_local_experts=4, **changes,
    )  # fmt: skip


@pytest.mark.parametrize("precision", PRECISIONS)
def test_experts_run_in_every_precision(precision):
    setup = eb.Setup(batch=2, sequence=32, precision=precision)
    trace = eb.dry_run(mixtral(), setup)
    rows = [a for a in trace.owners(trace.marks["after_forward"]) if a.operation == "_grouped_mm"]
    size = DTYPE_BYTES[setup.dtypes.weights]  # no operation of autocast's: it runs in the weights' data type
    assert {a.bytes for a in rows} == {2 * 32 * 2 * n * size for n in (2 * 48, 64)}
    for changes in ({"sharding": "zero3", "gpus": 4}, {"checkpointing": "full"}):
        if precision != "fp16-mixed" or "gpus" not in changes:
            assert eb.dry_run(mixtral(), setup.replace(**changes)).peak > 0


def test_experts_that_ask_for_values_are_refused_by_name():
    with pytest.raises(ValueError, match=r"^MixtralConfig\.experts_implementation: 'eager' .*; allowed: 'grouped_mm'"):
        eb.dry_run(mixtral(experts_implementation="eager"), eb.Setup(batch=2, sequence=32))


def test_a_configuration_that_made_a_model_is_as_before():
    """transformers notes in it that experts run eagerly, of a model without experts too."""
    config, setup = llama(), eb.Setup(batch=2, sequence=32)
    before = eb.dry_run(config, setup).peak
    with torch.device("meta"):
        transformers.AutoModelForCausalLM.from_config(config)
    assert config._experts_implementation == "eager" and eb.dry_run(config, setup).peak == before
