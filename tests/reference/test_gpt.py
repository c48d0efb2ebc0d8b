"""The reference model: causal, tied, of the catalog's size, the same with either attention."""

import math

import pytest
import torch
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode

import everybyte as eb
from everybyte.reference import GPT

TINY = eb.Model(name="tiny", layers=3, width=24, heads=2, vocabulary=37, positions=20)
SETUP = eb.Setup(batch=3, sequence=20, dropout=0.1)


def gpt(setup=SETUP, model=TINY):
    torch.manual_seed(0)
    return GPT(model, setup).initialize()


def tokens(setup=SETUP, model=TINY):
    torch.manual_seed(2)
    return torch.randint(model.vocabulary, (setup.batch, setup.sequence))


def logits(module, tokens):
    """What the head gives: the model itself returns the loss alone."""
    seen = []
    hook = module.head.register_forward_hook(lambda module, inputs, output: seen.append(output.detach()))
    module(tokens, tokens)
    hook.remove()
    return torch.cat([s.flatten(0, -2) for s in seen]).view(*tokens.shape, -1)


@pytest.mark.sampled(8)
@pytest.mark.parametrize("name", [n for n, m in eb.models("reference").items() if m.family == "gpt"])
@pytest.mark.parametrize("attention", ["eager", "flash"])
def test_as_many_parameters_as_the_catalog_says(name, attention):
    model = eb.model(name, code="reference")
    with torch.device("meta"):
        module = GPT(model, eb.Setup(attention=attention, sequence=8))
    count = sum(p.numel() for p in module.parameters())
    assert count == model.parameters
    assert model.published in (None, count)


SWITCHES = (
    {},
    *({s: False} for s in ("tied", "qkv_bias", "out_bias", "ffn_bias", "norm_bias", "fused")),
    {"ffn_width": 17},
)
OPT = TINY.replace(name="tiny-opt", fused=False, activation="relu", learned_positions=22)


def test_it_computes_the_loss_of_hugging_faces_opt():
    transformers = pytest.importorskip("transformers")
    config = transformers.OPTConfig(
        hidden_size=24, word_embed_proj_dim=24, num_hidden_layers=3, num_attention_heads=2, ffn_dim=96, vocab_size=37,
        max_position_embeddings=20, dropout=0.0, init_std=0.5,
    )  # fmt: skip
    torch.manual_seed(0)
    theirs = transformers.OPTForCausalLM(config)
    ours = GPT(OPT, SETUP.replace(dropout=0.0))
    names = {
        "model.decoder.": "", "embed_tokens": "token", "embed_positions": "position", "final_layer_norm": "norm",
        "self_attn_layer_norm": "norm1", "layers": "blocks", "self_attn.out_proj": "attention.out", "self_attn": "attention",
        "_proj": "", "fc1": "mlp.up", "fc2": "mlp.down", "lm_head": "head",
    }  # fmt: skip
    weights = {}
    for name, weight in theirs.state_dict().items():
        for old, new in names.items():
            name = name.replace(old, "norm2" if new == "norm" and "layers" in name else new)
        weights[name] = weight
    ours.load_state_dict(weights)
    assert ours.position.weight.shape == (22, 24)
    batch, targets = tokens(), tokens().flip(0)
    expected = theirs(input_ids=batch, labels=batch, shift_labels=targets).loss
    torch.testing.assert_close(ours(batch, targets), expected, rtol=1e-5, atol=1e-5)
    assert expected > 5
    batch = batch[:, :7].contiguous()  # a position further on would be another row of the table
    expected = theirs(input_ids=batch, labels=batch, shift_labels=batch).loss
    torch.testing.assert_close(ours(batch, batch), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("checkpointing", ["full", "selective", "operations"])
@pytest.mark.parametrize("attention", ["eager", "flash"])
@pytest.mark.parametrize("model", [TINY, OPT], ids=lambda m: m.name)
def test_what_backward_makes_again_is_what_forward_made(model, attention, checkpointing):
    setup, batch = SETUP.replace(dropout=0.0, attention=attention), tokens()
    modules = [gpt(setup.replace(checkpointing=how), model) for how in ("none", checkpointing)]
    losses = [module(batch, batch) for module in modules]
    for loss in losses:
        loss.backward()
    assert losses[0] == losses[1]
    for x, y in zip(modules[0].parameters(), modules[1].parameters(), strict=True):
        assert torch.equal(x.grad, y.grad)


def test_operations_are_not_made_twice_where_their_results_are_kept():
    ran = []

    class Ran(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            ran.append(func.overloadpacket.__name__)
            return func(*args, **(kwargs or {}))

    def forwards(checkpointing):
        module, batch = gpt(SETUP.replace(dropout=0.0, checkpointing=checkpointing)), tokens()
        ran.clear()
        with Ran():
            module(batch, batch).backward()
        return {name: ran.count(name) for name in ("addmm", "_scaled_dot_product_flash_attention_for_cpu", "gelu")}

    attention = "_scaled_dot_product_flash_attention_for_cpu"
    assert forwards("none") == {"addmm": 4 * 3, attention: 3, "gelu": 3}
    assert forwards("operations") == {"addmm": 4 * 3, attention: 3, "gelu": 2 * 3}
    assert forwards("full") == {
        "addmm": 4 * 3 + 3 * 3,
        attention: 2 * 3,
        "gelu": 2 * 3,
    }  # not the last: nobody needs it


@pytest.mark.parametrize("changes", SWITCHES, ids=str)
def test_every_switch_changes_the_module_as_it_changes_the_formula(changes):
    model = TINY.replace(**changes)
    assert sum(p.numel() for p in gpt(model=model).parameters()) == model.parameters


def test_tied_weights_share_their_storage_through_training():
    module = gpt()
    assert module.head.weight is module.token.weight
    module = module.to(torch.bfloat16).to(torch.float32)
    assert module.head.weight.data_ptr() == module.token.weight.data_ptr()
    module(tokens(), tokens()).backward()
    torch.optim.SGD(module.parameters(), lr=1.0).step()
    assert torch.equal(module.head.weight, module.token.weight)
    untied = gpt(model=TINY.replace(tied=False))
    assert untied.head.weight.data_ptr() != untied.token.weight.data_ptr()


@pytest.mark.parametrize("chunked", [False, True])
@pytest.mark.parametrize("attention", ["eager", "flash"])
def test_later_tokens_change_nothing_earlier(attention, chunked):
    changes = {"loss": "chunked", "loss_chunks": 3} if chunked else {}
    module, early = gpt(SETUP.replace(attention=attention, **changes)).eval(), tokens()
    for cut in (1, 7, 19):
        late = early.clone()
        late[:, cut:] = (late[:, cut:] + 1) % TINY.vocabulary
        before, after = logits(module, early), logits(module, late)
        torch.testing.assert_close(after[:, :cut], before[:, :cut])
        assert not torch.isclose(after[:, cut:], before[:, cut:]).all(dim=-1).any()


def test_every_earlier_token_counts():
    module, first = gpt().eval(), tokens()
    for place in (0, 5, 18):
        other = first.clone()
        other[:, place] = (other[:, place] + 1) % TINY.vocabulary
        assert not torch.isclose(logits(module, other)[:, -1], logits(module, first)[:, -1]).all()


@pytest.mark.parametrize("model", [TINY, TINY.replace(heads=1), TINY.replace(width=32, heads=4)], ids=lambda m: m.width)
@pytest.mark.parametrize("sequence", [1, 2, 13, 20])
def test_eager_and_flash_attention_give_the_same(model, sequence):
    setup = SETUP.replace(dropout=0.0, sequence=sequence)
    batch = tokens(setup, model)
    modules = [gpt(setup.replace(attention=attention), model) for attention in ("eager", "flash")]
    a, b = (logits(module, batch) for module in modules)
    torch.testing.assert_close(a, b)
    for module in modules:
        module(batch, batch).backward()
    for x, y in zip(modules[0].parameters(), modules[1].parameters(), strict=True):
        torch.testing.assert_close(x.grad, y.grad, rtol=1e-4, atol=1e-6)


def test_attention_by_hand():
    """One token at a time: softmax over the past, weights times values."""
    setup = SETUP.replace(attention="eager")
    attention = gpt(setup).eval().blocks[0].attention
    x = torch.randn(2, 5, 24)
    q, k, v = attention.qkv(x).split(24, dim=-1)
    D, rows = 12, []
    for b in range(2):
        for s in range(5):
            heads = []
            for h in range(0, 24, D):
                scores = torch.stack([q[b, s, h : h + D] @ k[b, t, h : h + D] / math.sqrt(D) for t in range(s + 1)])
                heads.append(scores.softmax(0) @ v[b, : s + 1, h : h + D])
            rows.append(torch.cat(heads))
    torch.testing.assert_close(attention(x), attention.out(torch.stack(rows).view(2, 5, 24)), rtol=1e-4, atol=1e-6)


def test_the_loss_is_the_mean_over_all_tokens():
    module, batch, targets = gpt().eval(), tokens(), tokens().flip(0)
    found = logits(module, batch).log_softmax(-1).gather(-1, targets.unsqueeze(-1))
    torch.testing.assert_close(module(batch, targets).detach(), -found.mean())
    chunked = gpt(SETUP.replace(loss="chunked", loss_chunks=7)).eval()
    torch.testing.assert_close(chunked(batch, targets).detach(), -found.mean())


@pytest.mark.parametrize("attention", ["eager", "flash"])
def test_dropout_drops_in_training_and_not_in_evaluation(attention):
    setup = SETUP.replace(attention=attention)
    module, without = gpt(setup), gpt(setup.replace(dropout=0.0))
    batch = tokens()
    drawn = {module(batch, batch).item() for _ in range(3)}
    assert len(drawn) == 3
    module.eval()
    assert module(batch, batch).item() == module(batch, batch).item() == without(batch, batch).item()


def test_dropout_stands_in_four_places(monkeypatch):
    places = []
    monkeypatch.setattr(F, "dropout", lambda x, p, training: places.append((tuple(x.shape), p, training)) or x)
    gpt(SETUP.replace(attention="eager"))(tokens(), tokens())
    residual, scores = ((3, 20, 24), 0.1, True), ((3, 2, 20, 20), 0.1, True)
    assert places == [residual] + [scores, residual, residual] * 3


@pytest.mark.parametrize("name", [n for n, m in eb.models("reference").items() if m.family != "gpt"])
def test_other_architectures_are_refused_and_the_field_named(name):
    model = eb.model(name, code="reference")
    with pytest.raises(ValueError, match=rf"Model\.\w+: .* of {name} is not a GPT's; allowed: ") as error:
        GPT(model, eb.Setup(sequence=8))
    field = str(error.value).split(":")[0].removeprefix("Model.")
    assert f"Model.{field}: {getattr(model, field)!r} of" in str(error.value)


def test_a_sequence_too_long_is_refused():
    with pytest.raises(ValueError, match=r"Setup\.sequence: 21 is more than the 20 positions of tiny"):
        GPT(TINY, SETUP.replace(sequence=21))


def test_initialization():
    module = gpt(model=TINY.replace(width=96, layers=8, vocabulary=500))
    for name, p in module.named_parameters():
        if "norm" in name and name.endswith("weight"):
            assert torch.equal(p, torch.ones_like(p))
        elif name.endswith("bias"):
            assert not p.any()
        else:
            residual = name.endswith(("attention.out.weight", "mlp.down.weight"))
            assert p.std().item() == pytest.approx(0.02 / math.sqrt(16) if residual else 0.02, rel=0.1)


def test_only_the_eager_model_keeps_causal_masks():
    assert list(gpt(SETUP).buffers()) == []
    masks = list(gpt(SETUP.replace(attention="eager")).named_buffers())
    assert [name for name, _ in masks] == [f"blocks.{i}.attention.past" for i in range(3)]
    assert all(torch.equal(mask[0, 0], torch.ones(20, 20).tril()) for _, mask in masks)
    assert not any("past" in name for name in gpt(SETUP.replace(attention="eager")).state_dict())
