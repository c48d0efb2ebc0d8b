"""An epoch of sequences of many lengths, padded to the longest of each batch: `python epoch.py KIND BATCH STEPS ORDER WORDS NAME=VALUE ...`.

ORDER: random, largest (the largest batch first, the others at random) or sorted (by length). It prints, after FOUND, of each step the
sequence and what PyTorch's allocator had at its end. WORDS as `decoder.py`'s. It knows nothing of rehearsals.
"""

import json
import random
import sys

import torch
from transformers import AutoConfig, AutoModelForCausalLM

kind, batch, steps, order, words = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4], sys.argv[5].split(",")
fields = {name: json.loads(value) for name, value in (word.split("=", 1) for word in sys.argv[6:])}
draw = random.Random(0)
lengths = [max(16, min(4096, int(draw.lognormvariate(6.0, 0.8)))) for _ in range(batch * steps)]
if order == "sorted":
    lengths.sort()
longest = [max(lengths[i : i + batch]) for i in range(0, len(lengths), batch)]
if order == "largest":
    longest.insert(0, longest.pop(longest.index(max(longest))))
config = AutoConfig.for_model(kind, use_cache=False, **fields)
with torch.device("cuda"):
    model = AutoModelForCausalLM.from_config(
        config, attn_implementation="sdpa", dtype=torch.bfloat16 if "bf16" in words else torch.float32
    )
model.train()
if "full" in words:
    model.gradient_checkpointing_enable({"use_reentrant": False})
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5)
found = []
for number, sequence in enumerate(longest):
    tokens = torch.randint(config.vocab_size, (batch, sequence), device="cuda")
    with torch.autocast("cuda", torch.bfloat16, enabled="mixed" in words):
        loss = model(input_ids=tokens, labels=tokens.clone()).loss
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    del loss
    if "empty" in words and number % 10 == 9:
        torch.cuda.empty_cache()
    stats = torch.cuda.memory_stats()
    found.append([sequence, *(stats[f"{name}_bytes.all.peak"] for name in ("allocated", "reserved"))])
    found[-1].append(stats["reserved_bytes.all.current"])
print("FOUND", json.dumps(found))
