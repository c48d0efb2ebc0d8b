"""A small compiled model: what its forward leaves, and what PyTorch's partitioner says that it saves. Arguments: a mode, the vocabulary."""

import sys

import torch
from torch import nn
from torch._inductor import compile_fx

saved = []  # bytes of a forward graph's outputs, each storage once, without those of its inputs
partition = compile_fx.min_cut_rematerialization_partition


def noted(*args, **kwargs):
    forward, backward = partition(*args, **kwargs)
    made = {node: node.meta["val"].untyped_storage() for node in forward.graph.nodes if "val" in node.meta
            and isinstance(node.meta["val"], torch.Tensor)}  # fmt: skip
    given = {made[node]._cdata for node in forward.graph.nodes if node.op == "placeholder" and node in made}
    outputs = [made[node] for node in forward.graph.output_node().args[0] if node in made]
    saved.append(sum({s._cdata: s.nbytes() for s in outputs if s._cdata not in given}.values()))
    return forward, backward


compile_fx.min_cut_rematerialization_partition = noted


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.norm = nn.Embedding(words, 128), nn.LayerNorm(128)
        self.up, self.down, self.head = nn.Linear(128, 512), nn.Linear(512, 128), nn.Linear(128, words)

    def forward(self, tokens, targets):
        x = self.embed(tokens)
        x = x + self.down(nn.functional.gelu(self.up(self.norm(x))))
        return nn.functional.cross_entropy(self.head(x), targets)


def live():
    return torch.cuda.memory_stats()["requested_bytes.all.current"]


mode, words = sys.argv[1], int(sys.argv[2])
net = Net().cuda()
model = torch.compile(net, mode=mode)
optimizer = torch.optim.AdamW(net.parameters())
tokens = torch.randint(0, words, (2048,), device="cuda")
for _ in range(4):
    before = live()
    loss = model(tokens, tokens)
    left = live() - before
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    del loss
print("FOUND", left, *saved)
