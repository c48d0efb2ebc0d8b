"""A small training script with a leak, as people write them: chapter 42 reads what it left behind."""

import torch
from torch import nn
from torch.nn.functional import cross_entropy

WIDTH, LAYERS, VOCABULARY, BATCH, SEQUENCE = 512, 4, 8192, 8, 512


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.up = nn.Linear(WIDTH, 4 * WIDTH)
        self.down = nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x):
        return x + self.down(nn.functional.gelu(self.up(self.norm(x))))


def loss_of(model, tokens, targets):
    with torch.autocast("cuda", torch.bfloat16):
        logits = model(tokens)
    return cross_entropy(logits.flatten(0, 1).float(), targets.flatten())


def train(model, optimizer, steps):
    history = []
    for _ in range(steps):
        tokens, targets = torch.ones(2, BATCH, SEQUENCE, dtype=torch.long, device="cuda")
        loss_of(model, tokens, targets).backward()
        optimizer.step()
        optimizer.zero_grad()
        history.append(loss_of(model, tokens[:1], targets[:1]))  # to see whether it learns
    return history


torch.cuda.memory._record_memory_history(stacks="python")
model = nn.Sequential(nn.Embedding(VOCABULARY, WIDTH), *[Block() for _ in range(LAYERS)])
model = model.append(nn.Linear(WIDTH, VOCABULARY)).cuda()
optimizer = torch.optim.AdamW(model.parameters())
history = train(model, optimizer, steps=4)
torch.cuda.memory._dump_snapshot("train.pickle")
print(torch.cuda.memory_summary())
