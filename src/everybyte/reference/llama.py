"""A Llama: RMS norms, rotary positions, a gated MLP, and fewer key and value heads (K) than query heads (A).

Of its kind are Mistral, Qwen (biases; norms of queries and keys), GLM (a part of each head turns), Gemma (GELU, offset norms,
scaled embeddings), Phi-3 (one matrix for query, key and value, and one for gate and up), and Mixtral.
"""

import math

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils import checkpoint

from ..ask.setup import Setup
from ..catalog import Model
from .gpt import ACTIVATIONS, loss_of, through
from .mixtral import Experts


def turns(S, R, device, positions=None, base=10_000.0):
    """Cosine and sine by which a token turns the pairs of R numbers of a head where it stands: (S, 1, R/2) each."""
    speeds = base ** -(torch.arange(0, R, 2, dtype=torch.float32, device=device) / R)
    places = torch.arange(S, dtype=torch.float32, device=device) if positions is None else positions.float()
    angles = places[:, None, None] * speeds
    del places
    return angles.cos(), angles.sin()


def rotate(x, cos, sin):  # (B, S, A, D), (S, 1, R/2) each: of every head the first R numbers turn
    R, D = 2 * cos.size(-1), x.size(-1)
    if R == D:
        return rotate_all(x, cos, sin)
    first, rest = x.split((R, D - R), dim=-1)
    return torch.cat((rotate_all(first, cos, sin), rest), dim=-1)


def rotate_all(x, cos, sin):  # (B, S, A, R)
    a, b = x.float().chunk(2, dim=-1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1).type_as(x)


class OffsetNorm(nn.RMSNorm):
    """Gemma's RMS norm, which multiplies by 1 + weight."""

    def reset_parameters(self):
        nn.init.zeros_(self.weight)

    def forward(self, x):
        return F.rms_norm(x, self.normalized_shape, 1 + self.weight, self.eps)


def norm(model, width):
    """The model's norm of that width."""
    return (OffsetNorm if model.norm_offset else nn.RMSNorm)(width, eps=1e-5)


class GroupedAttention(nn.Module):
    """Causal self-attention in which A / K query heads share a key head and a value head."""

    def __init__(self, model: Model, setup: Setup):
        super().__init__()
        self.heads, self.kv_heads, self.flash = model.heads, model.kv_heads, setup.attention == "flash"
        self.again = setup.checkpointing == "selective"
        queries, keys = model.heads * model.head_width, model.kv_heads * model.head_width
        self.fused, self.widths = model.fused, (queries, keys, keys)
        if self.fused:
            self.qkv = nn.Linear(model.width, sum(self.widths), bias=model.qkv_bias)
        else:
            self.q, self.k, self.v = (nn.Linear(model.width, width, bias=model.qkv_bias) for width in self.widths)
        self.out = nn.Linear(queries, model.width, bias=False)
        self.q_norm, self.k_norm = (norm(model, model.head_width) if model.qk_norm else nn.Identity() for _ in range(2))

    def forward(self, x, cos, sin):  # (B, S, H)
        B, S, _ = x.shape
        made = iter(self.qkv(x).split(self.widths, dim=2)) if self.fused else (f(x) for f in (self.q, self.k, self.v))
        q = rotate(self.q_norm(next(made).view(B, S, self.heads, -1)), cos, sin).transpose(1, 2)  # (B, A, S, D)
        k = rotate(self.k_norm(next(made).view(B, S, self.kv_heads, -1)), cos, sin).transpose(1, 2)  # (B, K, S, D)
        v = next(made).view(B, S, self.kv_heads, -1).transpose(1, 2)
        attend = self.flash_attention if self.flash else self.eager_attention
        y = checkpoint.checkpoint(attend, q, k, v, use_reentrant=False) if self.again else attend(q, k, v)
        return self.out(y.transpose(1, 2).reshape(B, S, -1))

    def flash_attention(self, q, k, v):
        return F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=self.kv_heads < self.heads)

    def eager_attention(self, q, k, v):
        k, v = (t.repeat_interleave(self.heads // self.kv_heads, dim=1) for t in (k, v))
        scores = (q @ k.transpose(-2, -1)) * (1.0 / math.sqrt(k.size(-1)))  # (B, A, S, S)
        future = torch.ones(*scores.shape[-2:], dtype=torch.bool, device=q.device).triu(1)
        return F.softmax(scores.masked_fill(future, float("-inf")), dim=-1).type_as(v) @ v


class GatedMLP(nn.Module):
    """Three matrices, one of them through a function the gate of another: SwiGLU, or GeGLU."""

    def __init__(self, model: Model):
        super().__init__()
        self.activation = ACTIVATIONS[model.activation]
        self.fused = model.fused
        if self.fused:
            self.gate_up = nn.Linear(model.width, 2 * model.ffn_width, bias=False)
        else:
            self.gate, self.up = (nn.Linear(model.width, model.ffn_width, bias=False) for _ in range(2))
        self.down = nn.Linear(model.ffn_width, model.width, bias=False)

    def forward(self, x):  # (B, S, H) -> (B, S, F) -> (B, S, H)
        if self.fused:
            gate, up = self.gate_up(x).chunk(2, dim=2)  # two views of one (B, S, 2F) tensor
            return self.down(self.activation(gate) * up)
        return self.down(self.activation(self.gate(x)) * self.up(x))


class LlamaBlock(nn.Module):
    """Attention and MLP, each on a normed copy of the residual stream and added back to it."""

    def __init__(self, model: Model, setup: Setup):
        super().__init__()
        self.norm1 = norm(model, model.width)
        self.attention = GroupedAttention(model, setup)
        self.norm2 = norm(model, model.width)
        self.mlp = Experts(model) if model.experts else GatedMLP(model)

    def forward(self, x, cos, sin):
        x = x + self.attention(self.norm1(x), cos, sin)
        return x + self.mlp(self.norm2(x))


class Llama(nn.Module):
    """Tokens in, loss out, as `GPT`.

    Raises:
        ValueError: where `model` is not of Llama's architecture, or `setup` asks for dropout, which it has none of.
    """

    def __init__(self, model: Model, setup: Setup):
        super().__init__()
        if unlike := model.unlike_reference("llama"):
            raise ValueError(unlike)
        setup.check_model(model)
        if setup.dropout:
            raise ValueError(f"Setup.dropout: {setup.dropout} with {model.name}, a Llama; allowed: 0.0")
        self.setup, self.turning = setup, model.head_width * model.rotary_percent // 100  # numbers of each head
        self.scale = math.sqrt(model.width) if model.scaled_embedding else None
        self.token = nn.Embedding(model.vocabulary, model.width)
        self.blocks = nn.ModuleList(LlamaBlock(model, setup) for _ in range(model.layers))
        self.norm = norm(model, model.width)
        self.head = nn.Linear(model.width, model.vocabulary, bias=False)
        if model.tied:
            self.head.weight = self.token.weight
        self.with_head, self.loss = setup.loss != "plain", loss_of(setup)

    def forward(
        self, tokens, targets, positions=None
    ):  # (B, S), (B, S), (S,): where tokens stand, if not one after another
        x = self.embed(tokens)  # (B, S, H)
        cos, sin = turns(tokens.size(1), self.turning, tokens.device, positions)
        x = through(self.blocks, self.setup, x, cos, sin)
        if self.with_head:
            return self.loss(self.head, self.norm(x), targets)
        return self.loss(self.head(self.norm(x)), targets)

    def embed(self, tokens):  # (B, S) -> (B, S, H)
        x = self.token(tokens)
        return x * torch.tensor(self.scale, dtype=x.dtype) if self.scale else x  # by one number, rounded as weights are
