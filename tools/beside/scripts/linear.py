"""One linear layer in 16, 8 or 4 bits: `python linear.py KIND TOKENS INPUTS OUTPUTS [compile]`, KIND of the branches below, or `gather`.

It prints, after FOUND, of a steady step: what autograd saves, as (shape, type, bytes) of each plain tensor, and what PyTorch's allocator
had over the step's start after forward, at most in forward, and at most in backward. `gather` and `gather8` print what FSDP2 holds of a
gathered weight. It knows nothing of rehearsals.
"""

import json
import os
import sys

import torch
from torch import nn

kind, tokens, inputs, outputs = sys.argv[1], *map(int, sys.argv[2:5])


def opened(tensor):
    """The plain tensors that a tensor is."""
    if not hasattr(tensor, "__tensor_flatten__"):
        return [tensor]
    return [inner for name in tensor.__tensor_flatten__()[0] for inner in opened(getattr(tensor, name))]


def float8(module, **more):
    """Converted by torchao, in a recipe of its names."""
    from torchao.float8 import Float8LinearConfig, convert_to_float8_training

    config = Float8LinearConfig(**more) if more else Float8LinearConfig.from_recipe_name(kind)
    return convert_to_float8_training(module, config=config)


def model_of(linear):
    """What multiplies by the linear layer's weight."""
    if kind == "bf16":
        return nn.Sequential(linear)
    if kind == "blockwise":
        from torchao.prototype.blockwise_fp8_training.linear import Float8BlockwiseLinear

        return Float8BlockwiseLinear.from_float(linear)
    if kind == "mxfp8":
        from torchao.prototype.moe_training.mxfp8_linear import MXFP8Linear

        with torch.device("meta"):
            made = MXFP8Linear(inputs, outputs, bias=False)
        made.weight = linear.weight
        return made
    if kind == "nvfp4":
        from torchao.prototype.moe_training.nvfp4_training.nvfp4_linear import nvfp4_linear

        seed = torch.zeros(1, dtype=torch.int64, device="cuda")
        linear.forward = lambda x: nvfp4_linear(x, linear.weight, sign_vector=[1] * 16, sr_seed=seed)
        return linear
    return float8(nn.Sequential(linear))


def counted(name="current"):
    """Bytes that the allocator was asked for."""
    return torch.cuda.memory_stats()[f"requested_bytes.all.{name}"]


def gathered():
    """What stands while FSDP2 has gathered the weight, over its shards."""
    from torch.distributed.fsdp import fully_shard

    torch.distributed.init_process_group("nccl")
    with torch.device("cuda"):
        model = nn.Sequential(nn.Linear(inputs, outputs, bias=False, dtype=torch.bfloat16))
    if kind == "gather8":
        model = float8(model, enable_fsdp_float8_all_gather=True)
    layer = fully_shard(model[0])
    layer.unshard()  # cuts in its first call what stays
    layer.reshard()
    torch.cuda.synchronize()
    start = counted()
    layer.unshard()
    torch.cuda.synchronize()
    found = {"gathered": counted() - start, "ranks": int(os.environ["WORLD_SIZE"])}
    torch.distributed.destroy_process_group()
    return found


def stepped():
    """What a steady step saves, and what it takes."""
    linear = nn.Linear(inputs, outputs, bias=False, device="cuda", dtype=torch.bfloat16)
    model = model_of(linear)
    if "compile" in sys.argv:
        model = torch.compile(model)
    sgd = torch.optim.SGD(linear.parameters(), lr=1e-3)
    x = torch.zeros(tokens, inputs, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    known = {linear.weight.data_ptr(): "weight", x.data_ptr(): "input"}
    for _ in range(3):
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        start, kept = counted(), {}

        def pack(tensor, kept=kept):
            for t in opened(tensor):
                looks = list(t.shape), str(t.dtype).removeprefix("torch."), t.untyped_storage().nbytes()
                kept[t.data_ptr()] = (known.get(t.data_ptr(), ""), *looks)
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            y = model(x)
        found = {"after forward": counted() - start, "in forward": counted("peak") - start}
        y.backward(torch.empty_like(y))
        del y
        found |= {"in backward": counted("peak") - start, "saved": list(kept.values())}
        sgd.step()
        sgd.zero_grad()
        x.grad = None
    return found


print("FOUND", json.dumps(gathered() if kind.startswith("gather") else stepped()))
