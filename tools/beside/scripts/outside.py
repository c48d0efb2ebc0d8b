"""What lies outside PyTorch's allocator, step by step, as the driver says it: JSON rows of [after what, used, reserved by the allocator].

Bytes used are the whole GPU's, so nothing else may run on it.
"""

import json
import os

import torch
import torch.distributed as dist

rows = []


def say(what):
    torch.cuda.synchronize()
    free, total = torch.cuda.mem_get_info()
    rows.append([what, total - free, torch.cuda.memory_stats().get("reserved_bytes.all.current", 0)])


def before():
    try:
        import pynvml

        pynvml.nvmlInit()
        rows.append(["nothing, by NVML", pynvml.nvmlDeviceGetMemoryInfo(pynvml.nvmlDeviceGetHandleByIndex(0)).used, 0])
    except Exception as error:
        rows.append([f"NVML: {error}", 0, 0])


before()
torch.cuda.init()
say("init")
x = torch.ones(1024, 1024, device="cuda")
say("a tensor")
x + 1
say("a kernel")
for dtype in (torch.float32, torch.bfloat16):
    y = x.to(dtype)
    y @ y
    say(f"a product in {dtype}")
torch.nn.functional.linear(y, y, y[0])
say("a product with a bias")
torch.nn.functional.layer_norm(y, (1024,))
torch.nn.functional.gelu(y).float().softmax(-1).sum()
say("norm, gelu, softmax")
q = torch.randn(2, 8, 512, 64, dtype=torch.bfloat16, device="cuda", requires_grad=True)
for backend in ("FLASH_ATTENTION", "CUDNN_ATTENTION", "EFFICIENT_ATTENTION"):
    with torch.nn.attention.sdpa_kernel(getattr(torch.nn.attention.SDPBackend, backend)):
        torch.nn.functional.scaled_dot_product_attention(q, q, q, is_causal=True).sum().backward()
    say(backend)
torch.nn.Conv2d(64, 64, 3, device="cuda")(torch.randn(4, 64, 32, 32, device="cuda")).sum().backward()
say("a convolution")
torch.linalg.eigh(x[:64, :64])
say("cuSOLVER")
torch.fft.fft(x)
say("cuFFT")
os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29517"}
dist.init_process_group("nccl", rank=0, world_size=1, device_id=torch.device("cuda", 0))
dist.all_reduce(x)
say("NCCL, one rank")
second = dist.new_group([0])
dist.all_reduce(x, group=second)
say("NCCL, a second group")
dist.destroy_process_group()
say("NCCL destroyed")
print("FOUND", json.dumps(rows))
