"""Fine-tunes a small Llama in 4 bits by peft's LoRA under FSDP2, loaded as QLoRA's users load it. It knows nothing of rehearsals."""

import os
import sys

import torch
import torch.distributed as dist
from peft import LoraConfig, get_peft_model
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from transformers import BitsAndBytesConfig, LlamaConfig, LlamaForCausalLM

folder, rank, world = sys.argv[1], int(os.environ["LOCAL_RANK"]), int(os.environ["WORLD_SIZE"])
torch.cuda.set_device(rank)
dist.init_process_group("nccl")
config = LlamaConfig(
    hidden_size=128, intermediate_size=352, num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=2, vocab_size=20_003,
)  # fmt: skip
LlamaForCausalLM(config).to(torch.bfloat16).save_pretrained(folder)
bits = BitsAndBytesConfig(
    load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_use_double_quant=True, bnb_4bit_compute_dtype=torch.bfloat16,
    bnb_4bit_quant_storage=torch.bfloat16,
)  # fmt: skip
base = LlamaForCausalLM.from_pretrained(
    folder, dtype=torch.bfloat16, quantization_config=bits, device_map={"": rank}, use_cache=False
)
base.gradient_checkpointing_enable({"use_reentrant": False})
model = get_peft_model(base, LoraConfig(r=8, lora_alpha=16, target_modules="all-linear", task_type="CAUSAL_LM"))
mesh = init_device_mesh("cuda", (world,))
for layer in base.model.layers:
    fully_shard(layer, mesh=mesh)
fully_shard(model, mesh=mesh)
optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=2e-4)
model.train()
for _ in range(3):
    tokens = torch.randint(config.vocab_size, (2, 256), device="cuda")
    batch = {"input_ids": tokens, "labels": tokens.clone()}
    loss = model(**batch).loss
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
dist.destroy_process_group()
