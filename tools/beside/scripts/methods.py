"""Ways to train with less, one at a time, on a small Llama of Hugging Face's: `python methods.py METHOD BATCH SEQUENCE NAME=VALUE ...`.

METHODS below. It prints, after FOUND, what PyTorch's allocator had at its peak in each of three steps. It knows nothing of rehearsals.
"""

import json
import sys

import torch
from transformers import LlamaConfig, LlamaForCausalLM

method, batch, sequence = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
fields = {name: json.loads(value) for name, value in (word.split("=", 1) for word in sys.argv[4:])}
config = LlamaConfig(use_cache=False, **fields)
if method == "liger":
    from liger_kernel.transformers import apply_liger_kernel_to_llama

    apply_liger_kernel_to_llama()
with torch.device("cuda"):
    model = LlamaForCausalLM._from_config(config, dtype=torch.bfloat16)
model.train()
parameters = list(model.parameters())


def optimizer_of(some):
    """The method's optimizer of some parameters."""
    if method in ("8bit", "4bit", "fp8"):
        from torchao import optim

        return {"8bit": optim.AdamW8bit, "4bit": optim.AdamW4bit, "fp8": optim.AdamWFp8}[method](some, lr=1e-5)
    if method == "sgd":
        return torch.optim.SGD(some, lr=1e-5, momentum=0.9)
    if method == "adafactor":
        return torch.optim.Adafactor(some, lr=1e-5)
    return torch.optim.AdamW(some, lr=1e-5, foreach=method == "foreach")


if method == "backward":  # each parameter's step in its hook
    optimizers = {parameter: optimizer_of([parameter]) for parameter in parameters}

    def hook(parameter):
        """A parameter's step; its gradient goes."""
        optimizers[parameter].step()
        optimizers[parameter].zero_grad()

    for parameter in parameters:
        parameter.register_post_accumulate_grad_hook(hook)
elif method == "muon":
    matrices = [p for p in model.model.layers.parameters() if p.ndim == 2]
    rest = [p for p in parameters if not any(p is m for m in matrices)]
    optimizers = {None: torch.optim.Muon(matrices, lr=1e-5), 0: optimizer_of(rest)}
else:
    optimizers = {None: optimizer_of(parameters)}
found = []
for _ in range(3):
    torch.cuda.reset_peak_memory_stats()
    tokens = torch.randint(config.vocab_size, (batch, sequence), device="cuda")
    if method in ("offload", "pinned"):
        with torch.autograd.graph.save_on_cpu(pin_memory=method == "pinned"):
            loss = model(input_ids=tokens, labels=tokens.clone()).loss
    else:
        loss = model(input_ids=tokens, labels=tokens.clone()).loss
    loss.backward()
    if method != "backward":
        for optimizer in optimizers.values():
            optimizer.step()
            optimizer.zero_grad()
    del loss
    stats = torch.cuda.memory_stats()
    found.append([stats[f"{name}_bytes.all.peak"] for name in ("requested", "allocated", "reserved")])
print("FOUND", json.dumps(found))
