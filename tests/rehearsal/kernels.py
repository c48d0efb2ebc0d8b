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


def looked_up(tokens, vocabulary, width, dtype):
    at, gradient = torch.zeros(tokens, dtype=torch.int64, device="cuda"), made(tokens, width, dtype=dtype)
    return extra(lambda: torch.ops.aten.embedding_dense_backward(gradient, at, vocabulary, -1, False))


def attended(batch, heads, sequence, width, dropout, dtype):
    """(forward's, backward's)"""
    torch.backends.cuda.enable_cudnn_sdp(False)
    torch.backends.cuda.enable_math_sdp(False)
    qkv = made(batch, sequence, 3, heads, width, dtype=dtype)  # as a model has them: views of one product
    q, k, v = (x.transpose(1, 2) for x in qkv.unbind(2))
    if dtype == BF16:
        forward = lambda: torch.ops.aten._scaled_dot_product_flash_attention(q, k, v, dropout, True)  # noqa: E731
        out, lse, _, _, n, m, seed, offset, _ = forward()
        backward = torch.ops.aten._scaled_dot_product_flash_attention_backward
        return extra(forward), extra(
            lambda: backward(out, q, k, v, out, lse, None, None, n, m, dropout, True, seed, offset)
        )
    forward = lambda: torch.ops.aten._scaled_dot_product_efficient_attention(q, k, v, None, True, dropout, True)  # noqa: E731
    out, lse, seed, offset = forward()
    backward = torch.ops.aten._scaled_dot_product_efficient_attention_backward
    grads = [True, True, True, False]
    return extra(forward), extra(lambda: backward(out, q, k, v, None, out, lse, seed, offset, dropout, grads, True))


asked = json.loads(sys.argv[1])
found = {"sum": summed, "norm": normed, "embedding": looked_up, "attention": attended}
types = {"bf16": BF16, "fp32": FP32}
print(
    "FOUND",
    json.dumps([found[what](*(types.get(x, x) if isinstance(x, str) else x for x in how)) for what, *how in asked]),
)
