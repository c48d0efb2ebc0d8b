"""Text from a decoder of Hugging Face's on the first GPU, a token at a time, as `generate` does it: what each pass asks for, as JSON.

python generate.py OUT.json MODEL_TYPE BATCH PROMPT STEPS ROOM NAME=VALUE ...

ROOM: tokens that a static cache has room for; 0 for one that grows.
"""

import json
import sys

import torch
from transformers import AutoConfig, AutoModelForCausalLM, DynamicCache, StaticCache, masking_utils

out, kind, *numbers = sys.argv[1:7]
batch, prompt, steps, room = map(int, numbers)
fields = {name: json.loads(value) for name, value in (word.split("=") for word in sys.argv[7:])}
config = AutoConfig.for_model(kind, **fields)
config._attn_implementation = "sdpa"
masking_utils.find_packed_sequence_indices = lambda position_ids: (
    None
)  # a row is one sequence; else it is read from the GPU
torch.set_default_device("cuda")
model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).eval()
cache = StaticCache(config=config, max_cache_len=room) if room else DynamicCache(config=config)
tokens = torch.zeros(batch, prompt, dtype=torch.int64)
said = []
with torch.no_grad():
    for step in range(1 + steps):
        torch.cuda.reset_peak_memory_stats()
        new = tokens[:, -1:] if step else tokens
        logits = model(new, past_key_values=cache, use_cache=True, logits_to_keep=1).logits[:, -1]
        logits = logits.to(copy=True, dtype=torch.float32)
        token = logits.argmax(dim=-1)
        del logits
        tokens = torch.cat([tokens, token[:, None]], dim=-1)
        del token
        said.append(torch.cuda.memory_stats()["requested_bytes.all.peak"])
with open(out, "w") as file:
    json.dump(said, file)
