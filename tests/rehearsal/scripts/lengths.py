"""A Llama of Hugging Face's trained on batches of many shapes, as anyone writes it. It knows nothing of rehearsals.

python lengths.py SIZES.json BATCHES.json: the configuration's fields, and (batch, sequence) of each step. After each step it prints the most
bytes reserved, and requested, in it, and those reserved at its end.
"""

import json
import sys
from pathlib import Path

import torch
from transformers import LlamaConfig, LlamaForCausalLM

sizes, batches = (json.loads(Path(name).read_text()) for name in sys.argv[1:3])
clear = int(sys.argv[3]) if len(sys.argv) > 3 else 0
model = LlamaForCausalLM(LlamaConfig(**sizes, use_cache=False)).to(torch.bfloat16).cuda()
optimizer = torch.optim.AdamW(model.parameters())


def step(batch, sequence):
    tokens = torch.randint(sizes["vocab_size"], (batch, sequence))
    tokens, labels = tokens.cuda(), tokens.cuda()
    loss = model(input_ids=tokens, labels=labels).loss
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()


for number, (batch, sequence) in enumerate(batches, 1):
    torch.cuda.reset_peak_memory_stats()
    step(batch, sequence)
    requested = torch.cuda.memory_stats()["requested_bytes.all.peak"]
    print("step", torch.cuda.max_memory_reserved(), requested, torch.cuda.memory_reserved(), flush=True)
    if clear and number % clear == 0:
        torch.cuda.empty_cache()
