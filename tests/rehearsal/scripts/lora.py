"""Fine-tunes a Llama of 1B by peft's LoRA, its weights made on the GPU in bf16. It knows nothing of rehearsals."""

import torch
from peft import LoraConfig, get_peft_model
from transformers import LlamaConfig, LlamaForCausalLM

config = LlamaConfig(
    hidden_size=2048,
    intermediate_size=8192,
    num_hidden_layers=16,
    num_attention_heads=32,
    num_key_value_heads=8,
    head_dim=64,
    vocab_size=128_256,
    tie_word_embeddings=True,
)
torch.set_default_dtype(torch.bfloat16)
with torch.device("cuda"):
    base = LlamaForCausalLM(config)
base.config.use_cache = False
base.gradient_checkpointing_enable()
base.enable_input_require_grads()
model = get_peft_model(base, LoraConfig(r=16, lora_alpha=32, target_modules="all-linear", task_type="CAUSAL_LM"))
model.print_trainable_parameters()
optimizer = torch.optim.AdamW((p for p in model.parameters() if p.requires_grad), lr=2e-4)
model.train()
for _ in range(3):
    tokens = torch.randint(config.vocab_size, (4, 1024), device="cuda")
    loss = model(input_ids=tokens, labels=tokens.clone()).loss
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
