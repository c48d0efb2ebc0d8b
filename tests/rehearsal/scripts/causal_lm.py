"""Trains a causal language model of Hugging Face's, as their `run_clm` does: accelerate, accumulation, a schedule, clipping.

It knows nothing of rehearsals. Models come from configurations, text from a generator: nothing is downloaded.
"""

import argparse

import torch
from accelerate import Accelerator
from torch.utils.data import DataLoader
from transformers import AutoModelForCausalLM, GPT2Config, LlamaConfig, get_scheduler

CONFIGS = {
    "gpt2": GPT2Config(),
    "llama-1b": LlamaConfig(
        hidden_size=2048,
        intermediate_size=8192,
        num_hidden_layers=16,
        num_attention_heads=32,
        num_key_value_heads=8,
        head_dim=64,
        vocab_size=128_256,
        max_position_embeddings=131_072,
        tie_word_embeddings=True,
    ),
}

parser = argparse.ArgumentParser()
parser.add_argument("model", choices=CONFIGS)
parser.add_argument("--batch", type=int, default=8)
parser.add_argument("--length", type=int, default=1024)
parser.add_argument("--accumulation", type=int, default=1)
parser.add_argument("--attention", default="sdpa")
parser.add_argument("--checkpointing", action="store_true")
parser.add_argument("--on", default="cpu", help="where the weights are made")
parser.add_argument("--steps", type=int, default=3)
options = parser.parse_args()

accelerator = Accelerator(mixed_precision="bf16", gradient_accumulation_steps=options.accumulation)
torch.manual_seed(0)
config = CONFIGS[options.model]
with torch.device(options.on):
    model = AutoModelForCausalLM.from_config(config, attn_implementation=options.attention)
model.config.use_cache = False
if options.checkpointing:
    model.gradient_checkpointing_enable()

rows = torch.randint(config.vocab_size, (options.steps * options.accumulation * options.batch, options.length))
loader = DataLoader([{"input_ids": row, "labels": row.clone()} for row in rows], batch_size=options.batch, shuffle=True)
decayed = [p for p in model.parameters() if p.dim() > 1]
others = [p for p in model.parameters() if p.dim() < 2]
groups = [{"params": decayed, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}]
optimizer = torch.optim.AdamW(groups, lr=5e-5)
schedule = get_scheduler("cosine", optimizer, num_warmup_steps=1, num_training_steps=options.steps)
model, optimizer, loader, schedule = accelerator.prepare(model, optimizer, loader, schedule)

model.train()
for batch in loader:
    with accelerator.accumulate(model):
        loss = model(**batch).loss
        accelerator.backward(loss)
        if accelerator.sync_gradients:
            accelerator.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
print("loss", loss.item())
