"""The readable Llama computes what Hugging Face's does, and keeps what its closed form says."""

import pytest
import torch

import everybyte as eb
from everybyte.formulas import formula
from everybyte.reference import Llama, unlike_llama
from everybyte.setup import PRECISIONS

LLAMA = eb.Model(
    name="tiny-llama", layers=2, width=64, heads=4, head_width=16, kv_heads=2, vocabulary=331, positions=64,
    learned_positions=0, ffn_width=176, gated=True, fused=False, tied=False, qkv_bias=False, out_bias=False, ffn_bias=False,
    norm="rmsnorm",
)  # fmt: skip
FULL = LLAMA.replace(kv_heads=4)


@pytest.mark.parametrize("attention", ["eager", "flash"])
@pytest.mark.parametrize("model", [LLAMA, FULL, LLAMA.replace(kv_heads=1)], ids=lambda m: str(m.kv_heads))
def test_it_computes_the_loss_of_hugging_faces_llama(model, attention):
    transformers = pytest.importorskip("transformers")
    config = transformers.LlamaConfig(
        hidden_size=64, intermediate_size=176, num_hidden_layers=2, num_attention_heads=4, vocab_size=331,
        num_key_value_heads=model.kv_heads, max_position_embeddings=64, rms_norm_eps=1e-5, initializer_range=0.3,
    )  # fmt: skip
    torch.manual_seed(0)
    theirs = transformers.LlamaForCausalLM(config)
    ours = Llama(model, eb.Setup(batch=3, sequence=20, attention=attention))
    names = {
        "model.embed_tokens": "token", "model.norm": "norm", "lm_head": "head", "model.layers": "blocks",
        "self_attn.o_proj": "attention.out", "self_attn": "attention", "input_layernorm": "norm1",
        "post_attention_layernorm": "norm2", "_proj": "",
    }  # fmt: skip
    weights = {}
    for name, weight in theirs.state_dict().items():
        for old, new in names.items():
            name = name.replace(old, new)
        weights[name] = weight
    ours.load_state_dict(weights)
    tokens = torch.randint(331, (3, 21))
    inputs, targets = tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()
    expected = theirs(input_ids=inputs, labels=inputs, shift_labels=targets).loss
    torch.testing.assert_close(ours(inputs, targets), expected, rtol=1e-5, atol=1e-5)
    assert expected > 6  # weights large enough for attention to matter


@pytest.mark.parametrize("model", [m for m in eb.models().values() if not unlike_llama(m)], ids=lambda m: m.name)
def test_the_catalogs_llamas_have_their_parameters(model):
    with torch.device("meta"):
        module = Llama(model, eb.Setup(batch=1, sequence=8))
    assert sum(p.numel() for p in module.parameters()) == model.parameters


def test_llama_2_and_3_are_llamas_and_gpt2_and_mixtral_are_not():
    named = {name for name, m in eb.models().items() if not unlike_llama(m)}
    assert {"llama-2-7b", "llama-3-8b", "llama-3-70b"} <= named
    assert not {"gpt2", "mixtral-8x7b"} & named
    with pytest.raises(ValueError, match="Model.learned_positions: 1024 of gpt2 is not a Llama's; allowed: 0"):
        Llama(eb.model("gpt2"), eb.Setup())
    with pytest.raises(ValueError, match=r"Setup.dropout: 0.1 with tiny-llama, a Llama; allowed: 0.0"):
        eb.dry_run(LLAMA, eb.Setup(sequence=8, dropout=0.1))


def kept_by_a_block(model, setup):
    """Bytes of activations that one more block adds after forward."""
    more, fewer = (eb.dry_run(model.replace(layers=layers), setup).parts_at("after_forward") for layers in (3, 2))
    return more["activations"] - fewer["activations"]


@pytest.mark.parametrize("shape", [(2, 32), (3, 31), (1, 1), (2, 33)])
@pytest.mark.parametrize("model", [LLAMA, FULL, LLAMA.replace(width=48, head_width=8, kv_heads=1)], ids=str)
@pytest.mark.parametrize("precision", PRECISIONS)
def test_a_block_keeps_what_its_formula_says_to_the_byte(precision, model, shape):
    if precision == "fp32":
        model = model.replace(kv_heads=model.heads)
    setup = eb.Setup(batch=shape[0], sequence=shape[1], precision=precision)
    assert kept_by_a_block(model, setup) == formula("activations.llama").at(model, setup)


@pytest.mark.parametrize("precision", ["fp32", "bf16-mixed", "bf16-master"])
def test_llama_2_7bs_block_to_the_byte(precision):
    setup = eb.Setup(batch=1, sequence=1024, precision=precision)
    assert kept_by_a_block(eb.model("llama-2-7b"), setup) == formula("activations.llama").at(
        eb.model("llama-2-7b"), setup
    )


def test_grouped_heads_in_fp32_bring_the_scores_back():
    setup = eb.Setup(batch=2, sequence=64)
    kept, form = kept_by_a_block(LLAMA, setup), formula("activations.llama").at(LLAMA, setup)
    assert kept > form + 4 * 2 * 4 * 64 * 64  # no fp32 kernel takes them: softmax's result is kept, and more


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("attention", ["eager", "flash"])
@pytest.mark.parametrize("loss", ["plain", "chunked"])
def test_every_setup_runs_dry(precision, attention, loss):
    trace = eb.dry_run(LLAMA, eb.Setup(batch=2, sequence=16, precision=precision, attention=attention, loss=loss))
    assert trace.phases["after_backward"] > trace.phases["rest"] > 0
    assert trace.parts_at("after_step")["activations"] == trace.parts_at("after_backward")["activations"]
