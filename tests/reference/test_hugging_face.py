"""The readable decoders beside Hugging Face's own: with the same weights they say the same, pass by pass, in every kind of cache."""

import re

import pytest
import torch
from small_decoders import small

import everybyte as eb
from everybyte.catalog.decoders import DECODERS
from everybyte.dryrun.hugging_face import decoder_config
from everybyte.reference.hugging_face import cache, decoder, decoders, training

transformers = pytest.importorskip("transformers")
#: Of a path in Hugging Face's modules, what it is in the book's; in this order.
NAMES = [
    (r"^(model|transformer|gpt_neox)\.", ""), (r"^decoder\.", ""), (r"^(layers|h)\.", "blocks."),
    ("^(embed_tokens|wte|embed_in)", "token"), ("^(wpe|embed_positions)", "position"), ("^(lm_head|embed_out)", "head"),
    (r"^(ln_f|norm|final_layer_norm)\b", "norm"), ("input_layernorm|ln_1|self_attn_layer_norm", "norm1"),
    ("post_attention_layernorm|ln_2|final_layer_norm", "norm2"), ("pre_feedforward_layernorm", "norm3"), ("post_feedforward_layernorm", "norm4"), (r"self_attn|\battn\b", "attention"),
    ("query_key_value|qkv_proj|c_attn", "qkv"), (r"attention\.(dense|c_proj|out_proj)", "attention.out"),
    ("q_a_proj", "query_down"), ("q_a_layernorm", "query_norm"), ("q_b_proj", "query_up"), ("kv_a_proj_with_mqa", "latent_down"),
    ("kv_a_layernorm", "latent_norm"), ("kv_b_proj", "latent_up"), (r"\bo_proj", "out"), (r"\b([qkv])_proj", r"\1"),
    (r"mlp\.gate\.e_score_correction_bias", "mlp.router.bias"), (r"mlp\.gate\.weight", "mlp.router.weight"),
    ("feed_forward", "mlp"), (r"mlp\.experts", "mlp"), ("shared_experts?", "shared"), ("gate_up_proj", "gate_up"), ("(gate|up|down)_proj", r"\1"),
    (r"(?<=\d\.)fc1|mlp\.(c_fc|dense_h_to_4h)", "mlp.up"), (r"(?<=\d\.)fc2|mlp\.(c_proj|dense_4h_to_h)", "mlp.down"),
]  # fmt: skip


def same_weights(kind, theirs, ours):
    """Put Hugging Face's weights into the book's decoder."""
    found = {}
    for name, tensor in theirs.state_dict().items():
        if kind == "gpt2" and re.search(r"(c_attn|c_proj|c_fc)\.weight", name):  # which multiplies from the other side
            tensor = tensor.T
        if kind == "gpt_oss" and tensor.dim() == 3:
            tensor = tensor.transpose(1, 2)
        for theirs_is, ours_is in NAMES:
            name = re.sub(theirs_is, ours_is, name)
        if kind == "deepseek_v3":
            name = name.replace("attention.out", "attention.latent_out")
        found[name] = tensor
    assert found.keys() == ours.state_dict().keys()
    ours.load_state_dict(found)


def both(kind, seed, **changes):
    """(the book's decoder, Hugging Face's, the model), with random weights in fp32."""
    torch.manual_seed(seed)
    model = small(kind, seed).replace(**changes)
    config = decoder_config(model)
    config._attn_implementation = "eager" if model.eager_alone else "sdpa"
    if rope := getattr(config, "rope_parameters", None):
        for table in [rope] if "rope_theta" in rope else rope.values():
            table["rope_theta"] = 10_000.0
    if hasattr(config, "rms_norm_eps"):
        config.rms_norm_eps = 1e-6
    theirs = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    for p in theirs.parameters():
        torch.nn.init.normal_(p, std=0.3 if p.dim() > 1 else 1.0)
    ours = decoders.DECODERS[kind](model).eval()
    same_weights(kind, theirs, ours)
    return ours, theirs, config, model


def same_passes(ours, theirs, layers, kept, vocabulary):
    tokens = torch.randint(vocabulary, (2, 37))
    with torch.no_grad():
        for new in (tokens, tokens[:, :1], tokens[:, 1:2]):
            found = ours(new, layers)
            wanted = theirs(new, past_key_values=kept, use_cache=True, logits_to_keep=1).logits
            torch.testing.assert_close(found, wanted, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("kind", [kind for kind in DECODERS if kind != "llama4_text"])  # whose cache is of chunks
def test_the_same_logits_over_a_cache_that_grows(kind):
    ours, theirs, config, model = both(kind, 5, **{"window": 0} if 0 in DECODERS[kind]["window"] else {})
    same_passes(ours, theirs, growing(model), transformers.DynamicCache(config=config), model.vocabulary)


def growing(model):
    eager = model.eager_alone
    kinds = (model.windowed(i) for i in range(model.layers))
    return [cache.Window(model.window, eager) if near else cache.Growing(eager) for near in kinds]


@pytest.mark.parametrize("kind", ["mistral", "phi3", "gemma2", "gemma3", "gpt_oss"])
@pytest.mark.parametrize("window", [16, 37, 38, 60])
def test_the_same_logits_over_a_window(kind, window):
    ours, theirs, config, model = both(kind, 6, window=window)
    same_passes(ours, theirs, growing(model), transformers.DynamicCache(config=config), model.vocabulary)


@pytest.mark.parametrize("kind", ["gpt2", "qwen3", "deepseek_v3", "mixtral"])
def test_the_same_logits_in_a_room(kind):
    ours, theirs, config, model = both(kind, 7, window=0)
    kept = transformers.StaticCache(config=config, max_cache_len=50)
    same_passes(ours, theirs, [cache.Room(50) for _ in ours.blocks], kept, model.vocabulary)


@pytest.mark.parametrize(
    "kind",
    ["llama", "qwen3", "mistral", "gemma2", "gemma3", "gpt_oss", "qwen3_moe", "deepseek_v3", "glm4_moe", "llama4_text"],
)
def test_the_same_loss_in_training(kind):
    ours, theirs, config, model = both(kind, 9, **{"window": 16} if 16 in DECODERS[kind]["window"] else {})
    attention = {"eager": "eager", "sdpa": "flash"}[config._attn_implementation]
    ours = ours.trained(model, eb.Setup(attention=attention))
    ours.loss = training.CausalLoss()
    tokens = torch.randint(model.vocabulary, (2, 37))
    loss, logits = training.outputs_of(ours, tokens, tokens)
    wanted = theirs(tokens, labels=tokens)
    torch.testing.assert_close(logits, wanted.logits, rtol=1e-3, atol=1e-3)
    torch.testing.assert_close(loss, wanted.loss)


def test_a_pass_ends_with_the_next_token():
    ours, theirs, config, model = both("llama", 8)
    tokens = torch.randint(model.vocabulary, (2, 9))
    with torch.no_grad():
        longer = decoder.extended(ours, tokens, tokens, [cache.Growing() for _ in ours.blocks])
        wanted = theirs(tokens).logits[:, -1].argmax(-1)
    assert longer.shape == (2, 10) and longer[:, :-1].equal(tokens) and longer[:, -1].equal(wanted)
