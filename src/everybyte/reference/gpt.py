"""A GPT after nanoGPT, or an OPT: B sequences of S tokens, a residual stream of width H, A heads of width D = H / A."""

import math
from functools import partial

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils import checkpoint

from ..ask.setup import Setup
from ..catalog import Model

ACTIVATIONS = {"gelu": F.gelu, "gelu_tanh": partial(F.gelu, approximate="tanh"), "relu": F.relu, "silu": F.silu}
aten = torch.ops.aten
#: What checkpointing by operations keeps the results of: matrix products, and attention's kernels.
PRODUCTS = [
    aten.mm.default, aten.addmm.default, aten.bmm.default, aten._grouped_mm.default,
    aten._scaled_dot_product_flash_attention.default, aten._scaled_dot_product_efficient_attention.default,
    aten._scaled_dot_product_cudnn_attention.default, aten._scaled_dot_product_flash_attention_for_cpu.default,
]  # fmt: skip


class Attention(nn.Module):
    """Causal self-attention."""

    def __init__(self, model: Model, setup: Setup):
        super().__init__()
        self.heads, self.flash, self.dropout = model.heads, setup.attention == "flash", setup.dropout
        self.again = setup.checkpointing == "selective"
        self.fused = model.fused
        if self.fused:
            self.qkv = nn.Linear(model.width, 3 * model.width, bias=model.qkv_bias)
        else:
            self.q, self.k, self.v = (nn.Linear(model.width, model.width, bias=model.qkv_bias) for _ in range(3))
        self.out = nn.Linear(model.width, model.width, bias=model.out_bias)
        if not self.flash:  # the flash kernel knows which positions come later; the eager one reads it here
            past = torch.tril(torch.ones(model.positions, model.positions))
            self.register_buffer("past", past.view(1, 1, model.positions, model.positions), persistent=False)

    def forward(self, x):  # (B, S, H)
        B, S, _ = x.shape
        if self.fused:
            q, k, v = self.qkv(x).chunk(3, dim=2)  # three views of one (B, S, 3H) tensor
        else:
            q, k, v = self.q(x), self.k(x), self.v(x)  # (B, S, H) each
        q = q.view(B, S, self.heads, -1).transpose(1, 2)  # (B, A, S, D)
        k = k.view(B, S, self.heads, -1).transpose(1, 2)
        v = v.view(B, S, self.heads, -1).transpose(1, 2)
        attend = self.flash_attention if self.flash else self.eager_attention
        y = checkpoint.checkpoint(attend, q, k, v, use_reentrant=False) if self.again else attend(q, k, v)
        y = y.transpose(1, 2).contiguous().view(B, S, -1)  # the heads side by side again
        return F.dropout(self.out(y), self.dropout, self.training)

    def flash_attention(self, q, k, v):
        return F.scaled_dot_product_attention(q, k, v, dropout_p=self.dropout if self.training else 0.0, is_causal=True)

    def eager_attention(self, q, k, v):
        S = q.size(2)
        scores = (q @ k.transpose(-2, -1)) * (1.0 / math.sqrt(k.size(-1)))  # (B, A, S, S): the square
        scores = scores.masked_fill(self.past[:, :, :S, :S] == 0, float("-inf"))
        weights = F.dropout(F.softmax(scores, dim=-1), self.dropout, self.training)
        return weights @ v  # (B, A, S, D)


class MLP(nn.Module):
    """Two matrices with a function between them: GPT's GELU, OPT's ReLU."""

    def __init__(self, model: Model, setup: Setup):
        super().__init__()
        self.dropout, self.activation = setup.dropout, ACTIVATIONS[model.activation]
        self.up = nn.Linear(model.width, model.ffn_width, bias=model.ffn_bias)
        self.down = nn.Linear(model.ffn_width, model.width, bias=model.ffn_bias)

    def forward(self, x):  # (B, S, H) -> (B, S, F) -> (B, S, H)
        return F.dropout(self.down(self.activation(self.up(x))), self.dropout, self.training)


class Block(nn.Module):
    """Attention and MLP, each on a normed copy of the residual stream and added back to it."""

    def __init__(self, model: Model, setup: Setup):
        super().__init__()
        self.norm1 = nn.LayerNorm(model.width, bias=model.norm_bias)
        self.attention = Attention(model, setup)
        self.norm2 = nn.LayerNorm(model.width, bias=model.norm_bias)
        self.mlp = MLP(model, setup)

    def forward(self, x):
        x = x + self.attention(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class Loss(nn.Module):
    """Cross-entropy of the next token, averaged."""

    def forward(self, logits, targets):  # (B, S, V), (B, S)
        return F.cross_entropy(logits.view(-1, logits.size(-1)), targets.view(-1))


class ChunkedLoss(nn.Module):
    """Head and cross-entropy, some tokens at a time: no more than one chunk's logits ever exist.

    Forward keeps none of them. Backward makes each chunk's again, turns them into gradients, and lets them go.
    """

    def __init__(self, chunks: int):
        super().__init__()
        self.chunks = chunks

    def forward(self, head, x, targets):  # the head itself, (B, S, H), (B, S)
        def loss_of(x, targets):  # (C, H), (C,) for a chunk of C tokens
            return F.cross_entropy(head(x), targets, reduction="sum")

        chunks = zip(x.view(-1, x.size(-1)).chunk(self.chunks), targets.view(-1).chunk(self.chunks), strict=True)
        losses = [checkpoint.checkpoint(loss_of, *chunk, use_reentrant=False) for chunk in chunks]
        return sum(losses) / targets.numel()


class LinearCrossEntropy(nn.Module):
    """Head and cross-entropy in one function, some tokens at a time: each chunk's logits become gradients in forward.

    Nothing is computed twice. Autocast has no rule for it: what it is given in fp32 is multiplied in fp32.
    """

    def __init__(self):
        super().__init__()
        if not hasattr(nn, "LinearCrossEntropyOptions"):
            raise ValueError(
                f"Setup.loss: 'linear-cross-entropy' needs PyTorch 2.13, and this is {torch.__version__}; allowed: 'plain', 'chunked'"
            )

    def forward(self, head, x, targets):  # the head itself, (B, S, H), (B, S)
        rows, options = x.view(-1, x.size(-1)), nn.LinearCrossEntropyOptions()  # without options all logits exist
        return F.linear_cross_entropy(rows, head.weight, targets.view(-1), options=options)


def loss_of(setup: Setup) -> nn.Module:
    """What makes the loss: of the logits, or where `with_head` says so of the head and what it is given."""
    if setup.loss == "chunked":
        return ChunkedLoss(setup.loss_chunks)
    return Loss() if setup.loss == "plain" else LinearCrossEntropy()


def through(blocks, setup: Setup, x, *others):
    """The blocks one after another.

    Under checkpointing forward keeps of each segment the input alone, and backward makes the rest again; by operations, a
    segment is a block, and what its matrix products and attention gave is kept too.
    """

    def run(blocks, x):
        for block in blocks:
            x = block(x, *others)
        return x

    again, segment = {"use_reentrant": False}, setup.segment
    if setup.checkpointing == "operations":
        again["context_fn"] = partial(checkpoint.create_selective_checkpoint_contexts, PRODUCTS)
        segment = 1
    if not segment:
        return run(blocks, x)
    for first in range(0, len(blocks), segment):
        x = checkpoint.checkpoint(run, list(blocks)[first : first + segment], x, **again)
    return x


class GPT(nn.Module):
    """Tokens in, loss out. The logits live only inside `forward`: whoever returned them would keep them through backward.

    Raises:
        ValueError: where `model` is not of GPT-2's architecture, nor of OPT's.
    """

    def __init__(self, model: Model, setup: Setup):
        super().__init__()
        if unlike := model.unlike_reference("gpt"):
            raise ValueError(unlike)
        setup.check_model(model)
        self.setup, self.dropout = setup, setup.dropout
        self.token = nn.Embedding(model.vocabulary, model.width)
        self.position = nn.Embedding(model.learned_positions, model.width)
        self.first = model.learned_positions - model.positions  # OPT's first two rows are no position's
        self.blocks = nn.ModuleList(Block(model, setup) for _ in range(model.layers))
        self.norm = nn.LayerNorm(model.width, bias=model.norm_bias)
        self.head = nn.Linear(model.width, model.vocabulary, bias=False)
        if model.tied:
            self.head.weight = self.token.weight
        self.with_head, self.loss = setup.loss != "plain", loss_of(setup)

    def forward(
        self, tokens, targets, positions=None
    ):  # (B, S), (B, S), (S,): where tokens stand, if not one after another
        if positions is None:
            positions = torch.arange(self.first, self.first + tokens.size(1), device=tokens.device)
        x = through(self.blocks, self.setup, self.embed(tokens, positions))
        if self.with_head:
            return self.loss(self.head, self.norm(x), targets)
        return self.loss(self.head(self.norm(x)), targets)

    def embed(self, tokens, positions):  # (B, S), (S,) -> (B, S, H)
        return F.dropout(self.token(tokens) + self.position(positions), self.dropout, self.training)

    @torch.no_grad()
    def initialize(self):
        """GPT-2's initialization: normal, 0.02, the residual projections scaled down by the root of their number."""
        for name, p in self.named_parameters():
            if name.endswith(("out.weight", "down.weight")):
                p.normal_(0.0, 0.02 / math.sqrt(2 * len(self.blocks)))
            elif p.dim() > 1:
                p.normal_(0.0, 0.02)
            elif name.endswith("bias"):
                p.zero_()
        return self
