"""BERT large as Hugging Face's guide to one GPU trains it: dummy sequences of 512 tokens, the Trainer's steps written out.

PyTorch was of before 1.11 there: softmax kept its input beside its result, and `zero_grad` left gradients as zeros.
`--today` has neither.
"""

import argparse

import torch
from torch.nn import functional as F
from transformers import Adafactor, BertConfig, BertForSequenceClassification


class Softmax(torch.autograd.Function):
    """It keeps what it is given and what it gives."""

    @staticmethod
    def forward(ctx, x):
        y = torch.softmax(x, -1)
        ctx.save_for_backward(x, y)
        return y

    @staticmethod
    def backward(ctx, grad):
        x, y = ctx.saved_tensors
        return torch._softmax_backward_data(grad, y, -1, x.dtype)


def softmax(x, dim):
    return Softmax.apply(x.float() if torch.is_autocast_enabled("cuda") else x)


def optimizer_of(model, name):
    """The guide's: PyTorch's AdamW tensor by tensor, Adafactor, or bitsandbytes' 8-bit Adam, whose embeddings' states stay in fp32."""
    if name == "adafactor":
        return Adafactor(model.parameters(), lr=1e-3, scale_parameter=False, relative_step=False)
    if name == "adam8bit":
        from bitsandbytes.optim import Adam8bit

        return Adam8bit(model.parameters(), lr=1e-3)
    return torch.optim.AdamW(model.parameters(), lr=1e-3, foreach=False)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    for name, default in (("batch", 4), ("accumulation", 1), ("steps", 3)):
        parser.add_argument(f"--{name}", type=int, default=default)
    for name in ("half", "checkpoint", "today"):
        parser.add_argument(f"--{name}", action="store_true")
    parser.add_argument("--optimizer", choices=("adamw", "adafactor", "adam8bit"), default="adamw")
    given = parser.parse_args()
    if not given.today:
        F.softmax = softmax
    config = BertConfig(
        hidden_size=1024,
        num_hidden_layers=24,
        num_attention_heads=16,
        intermediate_size=4096,
        attn_implementation="eager",
    )
    model = BertForSequenceClassification(config).train().to("cuda")
    if given.checkpoint:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": True})
    adam = optimizer_of(model, given.optimizer) if given.steps else None
    scaler = torch.amp.GradScaler("cuda", enabled=given.half)
    for _ in range(given.steps):
        for _ in range(given.accumulation):
            ids = torch.full((given.batch, 512), 100).to("cuda")
            labels = torch.zeros(given.batch, dtype=torch.int64).to("cuda")
            with torch.autocast("cuda", torch.float16, enabled=given.half):
                loss = model(input_ids=ids, labels=labels).loss / given.accumulation
            scaler.scale(loss).backward()
        scaler.unscale_(adam)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(adam)
        scaler.update()
        model.zero_grad(set_to_none=given.today)


main()
