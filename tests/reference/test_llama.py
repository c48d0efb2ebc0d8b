"""The readable Llama computes what Hugging Face's does, and keeps what its closed form says."""

import pytest
import torch

import everybyte as eb
from everybyte.ask.choices import PRECISIONS
from everybyte.reference import Llama, mixtral

LLAMA = eb.Model(
    name="tiny-llama", layers=2, width=64, heads=4, head_width=16, kv_heads=2, vocabulary=331, positions=64,
    learned_positions=0, ffn_width=176, gated=True, fused=False, tied=False, qkv_bias=False, out_bias=False, ffn_bias=False,
    norm="rmsnorm",
)  # fmt: skip
FULL = LLAMA.replace(kv_heads=4)


QWEN3 = LLAMA.replace(name="tiny-qwen3", qk_norm=True)
GEMMA = LLAMA.replace(
    name="tiny-gemma", kv_heads=1, tied=True, activation="gelu_tanh", norm_offset=True, scaled_embedding=True
)
MIXTRAL = LLAMA.replace(name="tiny-mixtral", experts=4, experts_per_token=2, expert_width=48)
#: Of Hugging Face's: the configuration and the model.
THEIRS = {
    "tiny-llama": ("LlamaConfig", "LlamaForCausalLM"),
    "tiny-qwen3": ("Qwen3Config", "Qwen3ForCausalLM"),
    "tiny-gemma": ("GemmaConfig", "GemmaForCausalLM"),
    "tiny-mixtral": ("MixtralConfig", "MixtralForCausalLM"),
}
#: A part of a weight's name there -> here.
NAMES = {
    "model.embed_tokens": "token", "model.norm": "norm", "lm_head": "head", "model.layers": "blocks",
    "self_attn.o_proj": "attention.out", "self_attn": "attention", "input_layernorm": "norm1",
    "post_attention_layernorm": "norm2", "mlp.experts.gate_up_proj": "mlp.gate_up", "mlp.experts.down_proj": "mlp.down",
    "mlp.gate.weight": "mlp.router.weight", "_proj": "",
}  # fmt: skip


def hugging_faces(model):
    """Hugging Face's model of those dimensions, its weights drawn and large enough for attention to matter; and ours with them."""
    transformers = pytest.importorskip("transformers")
    config, made = (getattr(transformers, name) for name in THEIRS[model.name])
    sizes = (
        {"num_local_experts": model.experts, "num_experts_per_tok": model.experts_per_token} if model.experts else {}
    )
    config = config(
        hidden_size=model.width, intermediate_size=model.expert_width or model.ffn_width, num_hidden_layers=model.layers,
        num_attention_heads=model.heads, num_key_value_heads=model.kv_heads, head_dim=model.head_width, vocab_size=331,
        max_position_embeddings=64, rms_norm_eps=1e-5, tie_word_embeddings=model.tied, initializer_range=0.3,
        rope_parameters={"rope_type": "default", "rope_theta": 10_000.0}, **sizes,
    )  # fmt: skip
    torch.manual_seed(0)
    theirs = made(config)
    with torch.no_grad():
        for name, weight in theirs.named_parameters():
            if "norm" in name:
                weight += torch.rand_like(weight)  # else a norm of ones is like one without weights

    def ours(setup):
        module, weights = Llama(model, setup), {}
        for name, weight in theirs.state_dict().items():
            for old, new in NAMES.items():
                name = name.replace(old, new)
            weights[name] = weight
        module.load_state_dict(weights)
        return module

    return theirs, ours


@pytest.mark.parametrize("attention", ["eager", "flash"])
@pytest.mark.parametrize(
    "model", [LLAMA, FULL, LLAMA.replace(kv_heads=1), QWEN3, GEMMA, MIXTRAL], ids=lambda m: f"{m.name}-{m.kv_heads}"
)
def test_it_computes_the_loss_and_the_gradients_of_hugging_faces(model, attention):
    theirs, ours = hugging_faces(model)
    ours = ours(eb.Setup(batch=3, sequence=20, attention=attention))
    tokens = torch.randint(331, (3, 21))
    inputs, targets = tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()
    expected = theirs(input_ids=inputs, labels=inputs, shift_labels=targets).loss
    loss = ours(inputs, targets)
    torch.testing.assert_close(loss, expected, rtol=1e-5, atol=1e-5)
    assert expected > 6
    loss.backward()
    expected.backward()
    there = {id(p): n for n, p in theirs.named_parameters()}
    assert len(there) == len(list(ours.parameters()))
    torch.testing.assert_close(ours.token.weight.grad, theirs.get_input_embeddings().weight.grad, rtol=1e-3, atol=1e-4)
    last = theirs.model.layers[-1].mlp
    down = last.experts.down_proj if model.experts else last.down_proj.weight
    mine = ours.blocks[-1].mlp.down
    torch.testing.assert_close((mine if model.experts else mine.weight).grad, down.grad, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("model", [QWEN3, GEMMA, MIXTRAL], ids=lambda m: m.name)
@pytest.mark.parametrize("checkpointing", ["full", "selective", "operations"])
def test_what_backward_makes_again_is_what_forward_made(model, checkpointing):
    setup, losses, grads = eb.Setup(batch=3, sequence=20), [], []
    for how in ("none", checkpointing):
        torch.manual_seed(0)
        module = Llama(model, setup.replace(checkpointing=how))
        tokens = torch.randint(331, (3, 20))
        losses.append(module(tokens, tokens))
        losses[-1].backward()
        grads.append([p.grad for p in module.parameters()])
    assert losses[0] == losses[1] and all(map(torch.equal, *grads))


class Experts(torch.nn.Module):
    """Experts of either making, with a loss."""

    def __init__(self, experts):
        super().__init__()
        self.experts = experts

    def forward(self, x):
        return self.experts(x).float().mean()


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("shape", [(3, 20), (1, 1)])
def test_experts_take_the_bytes_that_hugging_faces_take(precision, shape):
    pytest.importorskip("transformers")
    from transformers.models.mixtral import modeling_mixtral

    config, _ = (getattr(modeling_mixtral, name) for name in THEIRS["tiny-mixtral"])
    config = config(hidden_size=64, intermediate_size=48, num_local_experts=4, num_experts_per_tok=2)
    config._experts_implementation = "grouped_mm"
    setup = eb.Setup(precision=precision)
    batch = (((*shape, 64), {"bf16": torch.bfloat16}.get(setup.dtypes.weights, torch.float32)),)
    ours = eb.dry_run(lambda: Experts(mixtral.Experts(MIXTRAL)), setup, batch=batch)
    theirs = eb.dry_run(lambda: Experts(modeling_mixtral.MixtralSparseMoeBlock(config)), setup, batch=batch)
    assert (ours.phases, ours.peak) == (theirs.phases, theirs.peak)
    # One after the other, each is made and goes as theirs; the weights alone stand in another order.
    course = [
        [(a.bytes, a.birth, a.death) for a in t.allocations if a.birth and t.operations[a.birth][1] != "optimizer step"]
        for t in (ours, theirs)
    ]
    assert course[0] == course[1] and len(course[0]) > 40


@pytest.mark.sampled(8)
@pytest.mark.parametrize(
    "model", [m for m in eb.models("reference").values() if m.family == "llama"], ids=lambda m: m.name
)
def test_the_catalogs_llamas_have_their_parameters(model):
    with torch.device("meta"):
        module = Llama(model, eb.Setup(batch=1, sequence=8))
    assert sum(p.numel() for p in module.parameters()) == model.parameters


def test_a_gpt_and_dropout_are_refused():
    with pytest.raises(ValueError, match="Model.norm: 'layernorm' of gpt2 is not a Llama's; allowed: 'rmsnorm'"):
        Llama(eb.model("gpt2"), eb.Setup())
    with pytest.raises(ValueError, match=r"Setup.dropout: 0.1 with tiny-llama, a Llama; allowed: 0.0"):
        eb.dry_run(LLAMA, eb.Setup(sequence=8, dropout=0.1))


def kept_by_a_block(model, setup):
    """Bytes of activations that one more block adds after forward."""
    more, fewer = (eb.dry_run(model.replace(layers=layers), setup).parts_at("after_forward") for layers in (3, 2))
    return more["activations"] - fewer["activations"]


def test_grouped_heads_in_fp32_bring_the_scores_back():
    setup = eb.Setup(batch=2, sequence=64)
    grouped, whole = (kept_by_a_block(m, setup) for m in (LLAMA, FULL))
    narrower = 4 * 2 * 64 * 2 * 2 * 16  # keys and values of two heads less, as they are kept
    assert (
        grouped > whole - narrower + 4 * 2 * 4 * 64 * 64
    )  # no fp32 kernel takes them: softmax's result is kept, and more


@pytest.mark.sampled(16)
@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("attention", ["eager", "flash"])
@pytest.mark.parametrize("loss", ["plain", "chunked"])
@pytest.mark.parametrize("model", [LLAMA, QWEN3, GEMMA, MIXTRAL], ids=lambda m: m.name)
def test_every_setup_runs_dry(precision, attention, loss, model):
    trace = eb.dry_run(model, eb.Setup(batch=2, sequence=16, precision=precision, attention=attention, loss=loss))
    assert trace.phases["after_backward"] > trace.phases["rest"] > 0
    assert trace.parts_at("after_step")["activations"] == trace.parts_at("after_backward")["activations"]
