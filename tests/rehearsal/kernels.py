"""What kernels take for themselves, each alone: a script for `rehearse_script`, which prints a JSON list of [what, ..., bytes]."""

import json
import sys

import torch

BF16, FP32 = torch.bfloat16, torch.float32


def extra(run):
    """The most bytes asked for while `run` runs, above what is there at its end."""
    run()
    torch.cuda.reset_peak_memory_stats()
    out = run()
    stats = torch.cuda.memory_stats()
    assert out is not None
    return stats["requested_bytes.all.peak"] - stats["requested_bytes.all.current"]


def made(*shape, dtype=FP32):
    return torch.empty(shape, dtype=dtype, device="cuda")


def summed(rows, outputs, dtype):
    x = made(rows, outputs, dtype=dtype)
    return extra(lambda: x.sum(0))


def normed(rows, width, dtype):
    x, weight, bias = made(rows, width, dtype=dtype), made(width, dtype=dtype), made(width, dtype=dtype)
    _, mean, rstd = torch.native_layer_norm(x, (width,), weight, bias, 1e-5)
    backward = torch.ops.aten.native_layer_norm_backward
    return extra(lambda: backward(x, x, (width,), mean, rstd, weight, bias, [True, True, True]))


def normed_by_root(rows, width, dtype):
    x, weight = made(rows, width, dtype=dtype), made(width, dtype=dtype)
    _, rstd = torch.ops.aten._fused_rms_norm(x, (width,), weight, 1e-5)
    return extra(lambda: torch.ops.aten._fused_rms_norm_backward(x, x, (width,), rstd, weight, [True, True]))


def visited(tokens, visits, experts, width, dtype):
    """(sort's, running sum's, backward's of rows by visit, of rows by token, a grouped product's, its weight's gradient's)"""
    visited = torch.zeros(tokens * visits, dtype=torch.int64, device="cuda")
    counts, rows = torch.zeros(experts, dtype=torch.int32, device="cuda"), made(len(visited), width, dtype=dtype)
    weight = made(experts, width, width, dtype=dtype).transpose(1, 2)
    add = [(made(to, width, dtype=dtype), [visited], rows, True, True) for to in (len(visited), tokens)]
    return [
        extra(lambda: torch.sort(visited)),
        extra(lambda: torch.cumsum(counts, 0, dtype=torch.int32)),
        *(extra(lambda how=how: torch.ops.aten._index_put_impl_(*how)) for how in add),
        extra(lambda: torch._grouped_mm(rows, weight, offs=counts)),
        extra(lambda: torch._grouped_mm(rows.transpose(0, 1), rows, offs=counts)),
    ]


def looked_up(tokens, vocabulary, width, dtype):
    at, gradient = torch.zeros(tokens, dtype=torch.int64, device="cuda"), made(tokens, width, dtype=dtype)
    return extra(lambda: torch.ops.aten.embedding_dense_backward(gradient, at, vocabulary, -1, False))


def shared(batch, heads, kv_heads, sequence, width, dtype):
    """`attended`, some query heads sharing a key head."""
    qkv = (made(batch, sequence, a, width, dtype=dtype).transpose(1, 2) for a in (heads, kv_heads, kv_heads))
    return flash(*qkv, 0.0)


def attended(batch, heads, sequence, width, dropout, dtype):
    """(forward's, backward's)"""
    torch.backends.cuda.enable_cudnn_sdp(False)
    torch.backends.cuda.enable_math_sdp(False)
    qkv = made(batch, sequence, 3, heads, width, dtype=dtype)  # as a model has them: views of one product
    q, k, v = (x.transpose(1, 2) for x in qkv.unbind(2))
    return flash(q, k, v, dropout) if dtype == BF16 else efficient(q, k, v, dropout)


def flash(q, k, v, dropout):
    forward = lambda: torch.ops.aten._scaled_dot_product_flash_attention(q, k, v, dropout, True)  # noqa: E731
    out, lse, _, _, n, m, seed, offset, _ = forward()
    backward = torch.ops.aten._scaled_dot_product_flash_attention_backward
    return extra(forward), extra(
        lambda: backward(out, q, k, v, out, lse, None, None, n, m, dropout, True, seed, offset)
    )


def efficient(q, k, v, dropout):
    forward = lambda: torch.ops.aten._scaled_dot_product_efficient_attention(q, k, v, None, True, dropout, True)  # noqa: E731
    out, lse, seed, offset = forward()
    backward = torch.ops.aten._scaled_dot_product_efficient_attention_backward
    grads = [True, True, True, False]
    return extra(forward), extra(lambda: backward(out, q, k, v, None, out, lse, seed, offset, dropout, grads, True))


asked = json.loads(sys.argv[1])
found = {"sum": summed, "norm": normed, "embedding": looked_up, "attention": attended}
found |= {"root norm": normed_by_root, "shared heads": shared, "visits": visited}
types = {"bf16": BF16, "fp32": FP32}
print(
    "FOUND",
    json.dumps([found[what](*(types.get(x, x) if isinstance(x, str) else x for x in how)) for what, *how in asked]),
)
