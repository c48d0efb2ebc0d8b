"""A model of pictures and text of Hugging Face's: `python pictures.py BATCH SIDE TOKENS WORDS`: Qwen 3 VL, small, one picture a sequence.

WORDS: bf16, full (checkpointing), frozen (the tower of pictures). It knows nothing of rehearsals.
"""

import json
import sys

import torch
from transformers import Qwen3VLConfig, Qwen3VLForConditionalGeneration

batch, side, tokens, words = int(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), sys.argv[4].split(",")
config = Qwen3VLConfig(
    text_config={
        "hidden_size": 1024, "intermediate_size": 3072, "num_hidden_layers": 4, "num_attention_heads": 16, "num_key_value_heads": 8,
        "head_dim": 64, "vocab_size": 32003, "use_cache": False,
        "rope_scaling": {"rope_type": "default", "mrope_section": [12, 10, 10], "mrope_interleaved": True},
    },
    vision_config={
        "hidden_size": 512, "intermediate_size": 2048, "depth": 6, "num_heads": 8, "out_hidden_size": 1024, "deepstack_visual_indexes": [1, 3],
        "num_position_embeddings": 2304,
    },
    image_token_id=32000, video_token_id=32001, vision_start_token_id=32002, vision_end_token_id=31999,
)  # fmt: skip
with torch.device("cuda"):
    model = Qwen3VLForConditionalGeneration._from_config(config, dtype=torch.bfloat16)
model.train()
if "full" in words:
    model.gradient_checkpointing_enable({"use_reentrant": False})
if "frozen" in words:
    model.model.visual.requires_grad_(False)
optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-5)
patches = side // 16
found = []
for _ in range(3):
    torch.cuda.reset_peak_memory_stats()
    ids = torch.randint(31000, (batch, tokens))  # on the CPU, as a processor gives them
    of_picture = (patches // 2) ** 2
    ids[:, 1 : 1 + of_picture] = 32000
    ids[:, 0] = 32002
    pixels = torch.randn(batch * patches**2, 3 * 2 * 16 * 16, device="cuda")
    grid = torch.tensor([[1, patches, patches]] * batch).cuda()
    ids, kinds = ids.cuda(), (ids == 32000).int().cuda()
    loss = model(
        input_ids=ids, pixel_values=pixels, image_grid_thw=grid, mm_token_type_ids=kinds, labels=ids.clone()
    ).loss
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    del loss
    stats = torch.cuda.memory_stats()
    found.append([stats[f"{name}_bytes.all.peak"] for name in ("requested", "allocated", "reserved")])
print("FOUND", json.dumps(found))
