"""A small Llama of Hugging Face's in four training loops, as anyone writes them. It knows nothing of rehearsals.

python loops.py FOLDER LOOP BATCHES [bf16] [OPTIM]
"""

import sys

import torch
from torch.utils.data import DataLoader
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments

folder, loop, batches, mixed = sys.argv[1], sys.argv[2], int(sys.argv[3]), "bf16" in sys.argv
optim = next((word for word in sys.argv if word.startswith("adamw")), "adamw_torch_fused")
sizes = {
    "hidden_size": 128,
    "intermediate_size": 352,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "vocab_size": 20_003,
}
model = LlamaForCausalLM(LlamaConfig(**sizes, use_cache=False))
if not mixed:
    model = model.to(torch.bfloat16)
rows = torch.randint(20_003, (64, 128))
data = [{"input_ids": row, "labels": row.clone()} for row in rows]


def trainer():
    arguments = TrainingArguments(
        output_dir=folder, per_device_train_batch_size=4, gradient_accumulation_steps=batches, max_steps=4, bf16=mixed,
        logging_steps=100, save_strategy="no", report_to=[], optim=optim,
    )  # fmt: skip
    Trainer(model=model, args=arguments, train_dataset=data).train()


def accelerate():
    from accelerate import Accelerator

    accelerator = Accelerator(gradient_accumulation_steps=batches, mixed_precision="bf16" if mixed else "no")
    optimizer = torch.optim.AdamW(model.parameters())
    prepared, optimizer, loader = accelerator.prepare(model, optimizer, DataLoader(data, batch_size=4))
    for batch in loader:
        with accelerator.accumulate(prepared):
            outputs = prepared(**batch)
            loss = outputs.loss
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()


def plain():
    """Outputs are kept, gradients dropped before backward, and clipped."""
    model.cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    for batch in DataLoader(data, batch_size=4):
        batch = {name: tensor.cuda() for name, tensor in batch.items()}
        with torch.autocast("cuda", torch.bfloat16, enabled=mixed):
            outputs = model(**batch)
            loss = outputs.loss
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()


def torchtitan():
    def forward_backward(batch):
        with torch.autocast("cuda", torch.bfloat16, enabled=mixed):
            outputs = model(**batch)
            loss_sum = outputs.loss
            loss = loss_sum / batches
        del outputs
        loss.backward()
        return loss

    def train_step(batch_of):
        optimizer.zero_grad()
        microbatches, losses = [next(batch_of) for _ in range(batches)], []
        for batch in microbatches:
            batch["input_ids"] = batch["input_ids"].cuda()
            labels = batch["labels"].cuda()
            losses.append(forward_backward(batch | {"labels": labels}).detach())
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0, foreach=True)  # noqa: F841
        optimizer.step()
        total = torch.sum(torch.stack(losses))
        del total

    model.cuda()
    optimizer, batch_of = torch.optim.AdamW(model.parameters()), iter(DataLoader(data, batch_size=4))
    for _ in range(16 // batches):
        train_step(batch_of)


{"trainer": trainer, "accelerate": accelerate, "plain": plain, "torchtitan": torchtitan}[loop]()
