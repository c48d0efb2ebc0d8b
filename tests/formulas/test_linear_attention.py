"""What a layer with a state saves and takes, against transformers' torch code on tensors without data."""

from itertools import accumulate
from random import Random

import pytest
import ran
import torch
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.models.kimi_linear.modeling_kimi_linear import chunk_kimi_delta_attention
from transformers.models.mamba2.modeling_mamba2 import mamba2_chunk_scan
from transformers.models.qwen3_next.modeling_qwen3_next import (
    torch_chunk_gated_delta_rule,
    torch_recurrent_gated_delta_rule,
)

import everybyte as eb

#: One layer of Qwen3-Next (`gdn`) and of Kimi Linear (`kda`), as `tools/beside/scripts/linear_attention.py` has them.
SHAPES = {
    kind: {"state_key_heads": keys, "state_heads": 32, "state_rows": 128, "state_columns": 128, "chunk": 64}
    for kind, keys in (("gdn", 16), ("kda", 32))
}
RULES = {"gdn torch": "delta.saved", "gdn fla": "delta.kernel", "kda torch": "kimi.saved", "kda fla": "kimi.kernel"}
NORMED = {"use_qk_l2norm_in_kernel": True}


class Called(nn.Module):
    """A function whose inputs are weights."""

    def __init__(self, function, shapes, options):
        super().__init__()
        self.function, self.options = function, options
        for name, shape in shapes.items():
            setattr(self, name, nn.Parameter(torch.empty(shape)))

    def forward(self, nothing):
        made = self.function(**dict(self.named_parameters()), **self.options)
        return (made[0] if isinstance(made, tuple) else made).sum()


def counted(function, shapes, precision, **options):
    """(bytes that autograd saves, the most that live) of one call, beside inputs, their gradients and the loss."""
    setup = eb.Setup(precision=precision, optimizer="sgd")
    trace = eb.dry_run(lambda: Called(function, shapes, options), setup, batch={"nothing": ((1,), torch.bool)})
    end, live = trace.marks["after_forward"], [0] * (len(trace.operations) + 1)
    for a in trace.allocations:
        beside = a.part in ("parameters", "gradients") or a.operation in ("ones_like", "sum") and a.bytes < 5
        if not beside and a.bytes > 1:
            live[max(a.birth, 0)] += a.bytes
            live[-1 if a.death is None else a.death + 1] -= a.bytes
    live = list(accumulate(live))
    return live[end], max(live)


def delta(batch, sequence, key_heads, heads, rows, columns, decays=()):
    keys, values = (batch, sequence, key_heads, rows), (batch, sequence, heads)
    return {"query": keys, "key": keys, "value": (*values, columns), "g": (*values, *decays), "beta": values}


def drawn(seed, widths, chunk=64):
    """Sizes by their names in the formulas: three chunks or more."""
    random = Random(seed)
    keys = random.choice((1, 2, 3))
    length = random.choice((random.randrange(2 * chunk + 1, 7 * chunk), 3 * chunk, 5 * chunk))
    rows, columns = random.choices(widths, k=2)
    return {
        "batch": random.choice((1, 2, 3)), "sequence": length, "state_key_heads": keys,
        "state_heads": keys * random.choice((2, 4)), "state_rows": rows, "state_columns": columns, "chunk": chunk,
    }  # fmt: skip


@pytest.mark.parametrize("seed", range(6))
def test_the_delta_rule_by_chunks(seed):
    at = drawn(seed, (8, 24, 64, 96, 128, 256))
    saved, taken = counted(torch_chunk_gated_delta_rule, delta(*list(at.values())[:-1]), "bf16", **NORMED)
    assert saved == eb.formula("delta.saved")(**at)
    if min(at["state_rows"], at["state_columns"]) >= at["chunk"]:
        assert taken == eb.formula("delta.taken")(**at)


@pytest.mark.parametrize("seed", range(4))
def test_kimi_s_by_chunks(seed):
    at = drawn(seed, (8, 24, 40))
    at["state_key_heads"] = at["state_heads"]
    shapes = delta(*list(at.values())[:-1], decays=(at["state_rows"],))
    saved, _ = counted(chunk_kimi_delta_attention, shapes, ("bf16", "fp32")[seed % 2], **NORMED)
    assert saved == eb.formula("kimi.saved")(**at)


def test_the_delta_rule_token_by_token():
    at = drawn(3, (8, 24, 40)) | {"sequence": 37}
    saved, _ = counted(torch_recurrent_gated_delta_rule, delta(*list(at.values())[:-1]), "bf16", **NORMED)
    assert saved == eb.formula("state.loop")(**at)


@pytest.mark.parametrize("seed", range(6))
def test_mamba_2_s_by_chunks(seed):
    at, precision = drawn(seed, (16, 64, 128), (64, 128, 256)[seed // 2]), ("bf16", "fp32")[seed % 2]
    batch, length, groups, heads, rows, columns, chunk = at.values()
    narrow = {"B": (batch, length, groups, rows), "C": (batch, length, groups, rows)}
    shapes = {"hidden_states": (batch, length, heads, columns), "dt": (batch, length, heads), "A": (heads,)}
    shapes |= narrow | {"D": (heads,), "dt_bias": (heads,)}
    found = counted(mamba2_chunk_scan, shapes, precision, chunk_size=chunk, dt_softplus=True)
    half = precision == "bf16"
    rates = 4 * heads * half  # the model has A in fp32
    at |= {"compute_bytes": 4 - 2 * half, "half": int(half)}
    assert [one - rates for one in found] == [eb.formula(name)(**at) for name in ("ssd.saved", "ssd.taken")]


HELD = {
    "qwen3_next": (
        {"linear_num_value_heads": 4, "linear_num_key_heads": 2, "linear_key_head_dim": 8, "linear_value_head_dim": 24, "num_experts": 4,
         "num_experts_per_tok": 2, "moe_intermediate_size": 16, "shared_expert_intermediate_size": 16, "num_attention_heads": 4, "num_key_value_heads": 2},
        {"state_key_heads": 2, "state_heads": 4, "state_rows": 8, "state_columns": 24},
    ),
    "mamba2": (
        {"num_heads": 8, "head_dim": 16, "state_size": 24, "n_groups": 2, "expand": 2},
        {"state_key_heads": 2, "state_heads": 8, "state_rows": 24, "state_columns": 16},
    ),
}  # fmt: skip


@pytest.mark.parametrize("kind", HELD)
@pytest.mark.parametrize("tokens", [5, 70])
def test_what_a_layer_holds_while_it_generates(kind, tokens):
    """At any number of tokens the same, in the cache of transformers."""
    fields, sizes = HELD[kind]
    config = AutoConfig.for_model(kind, hidden_size=64, num_hidden_layers=4, vocab_size=97, **fields)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).eval()
        with torch.no_grad():
            told = model(input_ids=torch.zeros(3, tokens, dtype=torch.int64), use_cache=True)
    names = ("cache", "past_key_values", "cache_params")  # of transformers 5.24, and before
    layer = next(told[name] for name in names if name in told).layers[0]
    held = sum(x.nbytes for x in (*layer.conv_states.values(), *layer.recurrent_states.values()))
    assert held == eb.formula("state.held")(batch=3, weight_bytes=2, convolved=4, **sizes)


@pytest.mark.parametrize("name", RULES)
def test_rehearsed_rules(name):
    """PyTorch's CUDA code and FLA's kernels on a driver that does nothing: bytes saved, and the delta rule's most."""
    found = ran.scripts("rehearsals/linear_attention")[name]["printed"]["FOUND"]
    rows = [row[1:] for row in found if row[0] == "rule"]
    assert [row[0] for row in rows] == [512, 1000, 4096]
    for tokens, saved, _, most in rows:
        at = SHAPES[name[:3]] | {"batch": 1, "sequence": tokens, "compute_bytes": 2}
        assert saved == eb.formula(RULES[name])(**at)
        if name == "gdn torch":
            result = 2 * tokens * 32 * 128  # the result, and its gradient
            assert most == eb.formula("delta.taken")(**at) + 2 * result
