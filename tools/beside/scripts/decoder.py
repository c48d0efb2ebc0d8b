"""A decoder of Hugging Face's in the plainest loop: `python decoder.py MODEL_TYPE BATCH SEQUENCE WORDS NAME=VALUE ...`.

WORDS, joined by commas: bf16 (weights too) or mixed (autocast) or fp32; eager or sdpa; full for checkpointing; compile, for the whole
model, or blocks, for each of its blocks; fused; steady, to count the last step's peak alone; times, to print them; left, to print after
FOUND each step's requested bytes over its start, after forward and at most, and its reserved ones.
It knows nothing of rehearsals.
"""

import json
import sys
import time

import torch
from transformers import AutoConfig, AutoModelForCausalLM

kind, batch, sequence, words = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4].split(",")
fields = {name: json.loads(value) for name, value in (word.split("=", 1) for word in sys.argv[5:])}
config = AutoConfig.for_model(kind, use_cache=False, **fields)
dtype = torch.bfloat16 if "bf16" in words else torch.float32
with torch.device("cuda"):
    model = AutoModelForCausalLM.from_config(
        config, attn_implementation="eager" if "eager" in words else "sdpa", dtype=dtype
    )
model.train()
if "full" in words:
    model.gradient_checkpointing_enable({"use_reentrant": False})
if "compile" in words:
    model.compile()
if "blocks" in words:
    for block in model.model.layers:
        block.compile()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, fused="fused" in words, foreach="fused" not in words)
torch.manual_seed(0)
left = []


def counted(name):
    """Bytes of the allocator's."""
    return torch.cuda.memory_stats()[name]


def step():
    tokens = torch.randint(config.vocab_size, (batch, sequence), device="cuda")
    labels = tokens.clone()
    with torch.autocast("cuda", torch.bfloat16, enabled="mixed" in words):
        loss = model(input_ids=tokens, labels=labels).loss
    left.append(counted("requested_bytes.all.current"))
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()


for number in range(3):
    if "left" in words or ("steady" in words and number == 2):
        torch.cuda.reset_peak_memory_stats()
    start = counted("requested_bytes.all.current")
    step()
    left[-1] = [left[-1] - start, counted("requested_bytes.all.peak") - start, counted("reserved_bytes.all.peak")]
if "left" in words:
    print("FOUND", json.dumps(left))
if "times" in words:
    taken = []
    for _ in range(8):
        torch.cuda.synchronize()
        start = time.perf_counter()
        step()
        torch.cuda.synchronize()
        taken.append(1000 * (time.perf_counter() - start))
    print("MILLISECONDS", json.dumps([round(t, 2) for t in taken]))
