"""The delta rule of one layer, and the layer, of Qwen3-Next (`gdn`) or Kimi Linear (`kda`): as torch code, or with FLA's kernels.

    python linear_attention.py gdn|kda torch|fla TOKENS...

Prints FOUND and rows of [what, tokens, bytes saved, the most in forward, the most in forward and backward], beside inputs and
weights; saved is beside the output too. Each is called twice, and the second call counts: the first tunes kernels.
"""

import json
import sys

kind, how, *tokens = sys.argv[1:]
if how == "torch":
    sys.modules["fla"] = None  # as where it is not installed

import torch  # noqa: E402
from transformers import KimiLinearConfig, Qwen3NextConfig  # noqa: E402
from transformers.models.kimi_linear import modeling_kimi_linear as kimi  # noqa: E402
from transformers.models.qwen3_next import modeling_qwen3_next as qwen  # noqa: E402

BF16 = torch.bfloat16
KEY_HEADS, HEADS, WIDTH, HIDDEN = (16, 32, 128, 2048) if kind == "gdn" else (32, 32, 128, 2304)


def asked(what):
    return torch.cuda.memory_stats()[f"requested_bytes.all.{what}"]


def zeros(*shape, dtype=BF16):
    return torch.zeros(shape, dtype=dtype, device="cuda", requires_grad=True)


def rule(length):
    """(the function, its inputs)."""
    keys, values = (1, length, KEY_HEADS, WIDTH), (1, length, HEADS, WIDTH)
    decay = values[:3] if kind == "gdn" else values
    inputs = {
        "query": zeros(*keys),
        "key": zeros(*keys),
        "value": zeros(*values),
        "g": zeros(*decay, dtype=torch.float32),
        "beta": zeros(*values[:3]),
    }
    called = qwen.torch_chunk_gated_delta_rule if kind == "gdn" else kimi.chunk_kimi_delta_attention
    if how == "fla":
        from fla.ops.gated_delta_rule import chunk_gated_delta_rule
        from fla.ops.kda import chunk_kda

        called = chunk_gated_delta_rule if kind == "gdn" else chunk_kda
        inputs = {{"query": "q", "key": "k", "value": "v"}.get(name, name): one for name, one in inputs.items()}
    return lambda: called(**inputs, use_qk_l2norm_in_kernel=True)[0], inputs.values()


def layer(length):
    """(the layer, its inputs)."""
    kinds = {"num_hidden_layers": 1, "layer_types": ["linear_attention"], "hidden_size": HIDDEN}
    if kind == "gdn":
        made = qwen.Qwen3NextGatedDeltaNet(Qwen3NextConfig(**kinds), 0)
    else:
        config = KimiLinearConfig(**kinds, linear_num_heads=HEADS, linear_head_dim=WIDTH)
        made = kimi.KimiLinearDeltaAttention(config, 0)
    made, states = made.to("cuda", BF16), zeros(1, length, HIDDEN)
    return lambda: made(states), [states, *made.parameters()]


def measured(what, length):
    """A row of what is found."""
    call, given = (rule if what == "rule" else layer)(length)
    for _ in range(2):
        for one in given:
            one.grad = None
        torch.cuda.reset_peak_memory_stats()
        before = asked("current")
        out = call()
        saved, forward = asked("current") - before - out.numel() * out.element_size(), asked("peak") - before
        torch.autograd.backward(out, torch.zeros_like(out))
        row = [what, length, saved, forward, asked("peak") - before]
        del out
    return row


torch.zeros(1, device="cuda") @ torch.zeros(1, device="cuda")  # cuBLAS's workspace is there before
print("FOUND", json.dumps([measured(what, int(length)) for what in ("rule", "layer") for length in tokens]))
