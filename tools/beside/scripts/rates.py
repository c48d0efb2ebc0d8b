"""How fast this GPU is: JSON rows of [what, milliseconds, useful operations, or bytes moved]. Alone on it."""

import json
from functools import partial

import torch
from torch.nn.functional import cross_entropy, scaled_dot_product_attention

rows = []


def timed(what, run, amount, repeats=8):
    for _ in range(3):
        run()
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    torch.cuda.synchronize()
    start.record()
    for _ in range(repeats):
        run()
    end.record()
    torch.cuda.synchronize()
    rows.append([what, start.elapsed_time(end) / repeats, amount])


bf16 = torch.bfloat16
for dtype in (bf16, torch.float32):
    for m, k, n in (
        (16384, 2048, 8192),
        (8192, 768, 3072),
        (16384, 4096, 14336),
        (4096, 2048, 128256),
        (8192, 8192, 8192),
    ):
        a, b = torch.randn(m, k, device="cuda", dtype=dtype), torch.randn(k, n, device="cuda", dtype=dtype)
        if dtype is torch.float32 and m * k * n > 3e11:
            continue
        timed(f"product {dtype} {m} {k} {n}", lambda a=a, b=b: a @ b, 2 * m * k * n, 4 if dtype is torch.float32 else 8)
        del a, b
x = torch.empty(2**30, dtype=torch.uint8, device="cuda")
y = torch.empty_like(x)
timed("copy", partial(y.copy_, x), 2 * 2**30)
f = torch.empty(2**28, device="cuda")
timed("add in place fp32", partial(f.add_, 1.0), 2 * f.nbytes)
del x, y, f
backends = torch.nn.attention.SDPBackend
for heads, kv, width in ((32, 8, 64), (32, 8, 128)):
    for length in (1024, 4096, 16384):
        batch = max(1, 16384 // length)
        q, k, v = (
            torch.randn(batch, n, length, width, device="cuda", dtype=bf16, requires_grad=True) for n in (heads, kv, kv)
        )
        square = 4 * batch * heads * length * length * width  # both products of forward, all squares
        for name in ("FLASH_ATTENTION", "CUDNN_ATTENTION"):
            for causal in (True, False):
                with torch.nn.attention.sdpa_kernel(getattr(backends, name)):
                    how = {"is_causal": causal, "enable_gqa": True}
                    out = scaled_dot_product_attention(q, k, v, **how)
                    g = torch.randn_like(out)
                    what = f"{name} {'causal' if causal else 'full'} {heads} {width} {length}"
                    timed(
                        f"{what} forward",
                        lambda q=q, k=k, v=v, h=how: scaled_dot_product_attention(q, k, v, **h),
                        square,
                    )
                    timed(
                        f"{what} backward",
                        lambda o=out, q=q, k=k, v=v, g=g: torch.autograd.grad(o, (q, k, v), g, retain_graph=True),
                        square,
                    )
        del q, k, v, out, g
logits = torch.randn(8192, 50257, device="cuda", requires_grad=True)
targets = torch.randint(50257, (8192,), device="cuda")
timed("cross entropy fp32 forward and backward", lambda: cross_entropy(logits, targets).backward(), logits.nbytes)
for impl in ("foreach", "fused"):
    weights = [torch.randn(4096, 4096, device="cuda", requires_grad=True) for _ in range(16)]
    for w in weights:
        w.grad = torch.randn_like(w)
    timed(f"adamw {impl}", torch.optim.AdamW(weights, **{impl: True}).step, sum(w.numel() for w in weights))
    del weights
print("FOUND", json.dumps(rows))
