"""Hugging Face's Trainer on GPT-2, as anyone writes it. It knows nothing of rehearsals."""

import sys

import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

torch.manual_seed(0)
model = GPT2LMHeadModel(GPT2Config())
rows = torch.randint(50257, (32, 512))
data = [{"input_ids": row, "labels": row.clone()} for row in rows]
arguments = TrainingArguments(
    output_dir=sys.argv[1],
    per_device_train_batch_size=4,
    max_steps=4,
    bf16=True,
    optim="adamw_torch_fused",
    gradient_checkpointing=True,
    logging_steps=1,
    save_strategy="no",
    report_to=[],
)
Trainer(model=model, args=arguments, train_dataset=data).train()
