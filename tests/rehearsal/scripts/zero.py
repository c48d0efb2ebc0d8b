"""Trains blocks of two matrices under DeepSpeed, with a ZeRO stage of a configuration in JSON. It knows nothing of rehearsals."""

import contextlib
import json
import os
import sys

import deepspeed
import torch
from torch import nn

WIDTH, ROWS, BLOCKS, ACCUMULATION, STEPS = 512, 1024, 8, 2, 2
CONFIGURATION = """
{"train_micro_batch_size_per_gpu": 1, "gradient_clipping": 1.0, "bf16": {"enabled": true},
 "optimizer": {"type": "AdamW", "params": {"lr": 1e-4, "torch_adam": true}}}
"""


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x):  # (rows, width)
        return x + self.down(nn.functional.gelu(self.up(self.norm(x))))


stage = int(sys.argv[1])
settings = json.loads(CONFIGURATION) | {
    "gradient_accumulation_steps": ACCUMULATION,
    "zero_optimization": {"stage": stage},
}
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
deepspeed.init_distributed("nccl")
with deepspeed.zero.Init(config_dict_or_path=settings) if stage == 3 else contextlib.nullcontext():
    net = nn.Sequential(*(Block() for _ in range(BLOCKS)))
engine, *_ = deepspeed.initialize(model=net, config=settings, model_parameters=net.parameters())
for _ in range(STEPS * ACCUMULATION):
    x = torch.randn(ROWS, WIDTH, device=engine.device, dtype=torch.bfloat16)
    engine.backward(engine(x).float().square().mean())
    engine.step()
