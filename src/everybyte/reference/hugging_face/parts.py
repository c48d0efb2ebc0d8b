"""What the decoders share: norms, positions that turn, the function of GPT-2's MLP, and attention."""

import math
from functools import partial

import torch
from torch import nn
from torch.nn import functional as F


def normed(x, eps):
    """x over the root of its mean square, of norms that have a function of their own for it."""
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps)


class RMSNorm(nn.Module):
    """A norm in fp32, operation by operation."""

    def __init__(self, width, eps=1e-6):
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.ones(width)), eps

    def forward(self, x):
        wide = x.float()
        mean = wide.pow(2).mean(-1, keepdim=True)
        wide = wide * torch.rsqrt(mean + self.eps)
        return self.weight * wide.to(x.dtype)


class WideNorm(RMSNorm):
    """gpt-oss's, which multiplies by the weight in fp32 too."""

    def forward(self, x):
        wide = x.float()
        mean = wide.pow(2).mean(-1, keepdim=True)
        wide = wide * torch.rsqrt(mean + self.eps)
        return (self.weight * wide).to(x.dtype)


class OffsetNorm(RMSNorm):
    """Gemma's, which multiplies by 1 + weight, in fp32 too."""

    def forward(self, x):
        wide = normed(x.float(), self.eps)
        wide = wide * (1.0 + self.weight.float())
        return wide.type_as(x)


class PlainNorm(RMSNorm):
    """Llama 4's, which multiplies by the weight last."""

    def forward(self, x):
        out = normed(x.float(), self.eps).type_as(x)
        return out * self.weight


class WeightlessNorm(nn.Module):
    """Llama 4's of queries and keys, which has no weight."""

    eps = 1e-6

    def forward(self, x):
        return normed(x.float(), self.eps).type_as(x)


def gelu_tanh(x):
    """GELU's approximation, operation by operation: `NewGELUActivation`."""
    return 0.5 * x * (1.0 + torch.tanh(math.sqrt(2.0 / math.pi) * (x + 0.044715 * torch.pow(x, 3.0))))


class Conv1D(nn.Linear):
    """GPT-2's linear layer, `addmm(bias, x, weight)`: autocast casts the last argument first, so the bias after weight and input."""

    bias_last = True


class Rotary(nn.Module):
    """Cosines and sines by which a token turns R numbers of each head where it stands."""

    def __init__(self, turned, base=10_000.0):
        super().__init__()
        speeds = 1.0 / base ** (torch.arange(0, turned, 2).float() / turned)
        self.register_buffer("speeds", speeds, persistent=False)
        self.register_buffer("first_speeds", speeds.clone(), persistent=False)  # for those that change with the length

    @torch.no_grad()
    def forward(self, x, places):  # (B, S, H), (1, S) -> (1, S, R) each
        angles = places[..., None].float() * self.speeds
        twice = torch.cat((angles, angles), dim=-1)
        cos, sin = twice.cos() * 1.0, twice.sin() * 1.0
        return cos.to(x.dtype), sin.to(x.dtype)


class HalfRotary(Rotary):
    """gpt-oss's, each once."""

    @torch.no_grad()
    def forward(self, x, places):  # (B, S, H), (1, S) -> (1, S, R/2) each
        angles = places[..., None].float() * self.speeds
        cos, sin = angles.cos() * 1.0, angles.sin() * 1.0
        return cos.to(x.dtype), sin.to(x.dtype)


class ComplexRotary(Rotary):
    """Llama 4's: complex numbers by which neighbors turn together."""

    @torch.no_grad()
    def forward(self, x, places):  # (B, S, H), (1, S) -> (1, S, R/2)
        angles = places[..., None].float() * self.speeds
        turns = torch.polar(torch.ones_like(angles), angles)
        return turns * 1.0


def turn_complex(q, k, turns):  # (B, S, A, D), (B, S, K, D), (1, S, D/2)
    first = torch.view_as_complex(q.float().reshape(*q.shape[:-1], -1, 2))
    second = torch.view_as_complex(k.float().reshape(*k.shape[:-1], -1, 2))
    q_turned = torch.view_as_real(first * turns[:, :, None, :]).flatten(3)
    k_turned = torch.view_as_real(second * turns[:, :, None, :]).flatten(3)
    return q_turned.type_as(q), k_turned.type_as(k)


def rotated(x, cos, sin):
    return x * cos + swapped(x) * sin


def swapped(x):
    R = x.size(-1)
    return torch.cat((-x[..., R // 2 :], x[..., : R // 2]), dim=-1)


def paired(x, cos, sin):
    a, b = x[..., 0::2], x[..., 1::2]
    return torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1)


def halved(x, cos, sin):
    a, b = x.chunk(2, dim=-1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1)


def turn(q, k, cos, sin, how=rotated):  # (B, A, S, R), (B, K, S, R), (1, S, R) each
    cos, sin = cos.unsqueeze(1), sin.unsqueeze(1)
    return how(q, cos, sin), how(k, cos, sin)


#: gpt-oss: the first half of a head turns with the second.
turn_halves = partial(turn, how=halved)


def turn_and_join(q, k, cos, sin):
    """Phi-3: the first numbers of each head turn, and are joined with the rest."""
    cos, sin = cos.unsqueeze(1), sin.unsqueeze(1)
    R = cos.size(-1)
    q = torch.cat((rotated(q[..., :R], cos, sin), q[..., R:]), dim=-1)
    k = torch.cat((rotated(k[..., :R], cos, sin), k[..., R:]), dim=-1)
    return q, k


def turn_then_join(q, k, cos, sin):
    """GPT-NeoX: the same, joined when both have turned."""
    R = cos.size(-1)
    first, second = turn(q[..., :R], k[..., :R], cos, sin)
    first = torch.cat((first, q[..., R:]), dim=-1)
    second = torch.cat((second, k[..., R:]), dim=-1)
    return first, second


def turn_pairs(q, k, cos, sin):
    """DeepSeek: neighbors turn together."""
    R = cos.size(-1)
    return turn(q, k, cos[..., : R // 2], sin[..., : R // 2], paired)


def attend(q, k, v, mask=None, scale=None, dropout=0.0):
    """Heads side by side: (B, A, S, D) by (B, K, T, D) -> (B, S, A, D), and no scores. Source: `sdpa_attention_forward`."""
    S, groups, together = q.size(2), q.size(1) // k.size(1), False
    if groups > 1:
        if mask is None and k.size(-1) == v.size(-1):
            together = True
        elif S == 1:  # the query heads of one key head, as if they were tokens
            q = q.reshape(q.size(0), -1, groups, q.size(-1))
        else:
            k, v = repeated(k, groups), repeated(v, groups)
    causal = S > 1 and mask is None
    if causal and k.size(2) > S:
        k, v = k[:, :, :S], v[:, :, :S]
    y = F.scaled_dot_product_attention(
        q, k, v, attn_mask=mask, dropout_p=dropout, is_causal=causal, scale=scale, enable_gqa=together
    )
    y = y.reshape(y.size(0), -1, S, v.size(-1))
    return y.transpose(1, 2).contiguous(), None


def attend_eagerly(q, k, v, mask, scale=None, dropout=0.0, cap=0.0, narrow=False):
    """The same with the scores, which are returned too. cap: the scale of a tanh that they pass through; 0: they do not. narrow: whether
    softmax is in the scores' own type (Llama 4).

    Source: `eager_attention_forward`.
    """
    groups = q.size(1) // k.size(1)
    keys, values = (repeated(k, groups), repeated(v, groups)) if groups > 1 else (k, v)
    scores = torch.matmul(q, keys.transpose(2, 3)) * (q.size(-1) ** -0.5 if scale is None else scale)
    if cap:
        scores = scores / cap
        scores = torch.tanh(scores)
        scores = scores * cap
    scores = scores + mask
    scores = F.softmax(scores, dim=-1) if narrow else F.softmax(scores, dim=-1, dtype=torch.float32).to(q.dtype)
    scores = F.dropout(scores, dropout, True)
    y = torch.matmul(scores, values)
    return y.transpose(1, 2).contiguous(), scores


attend_capped = partial(attend_eagerly, cap=50.0)
attend_in_own_type = partial(attend_eagerly, narrow=True)


def attend_narrowly(q, k, v, mask, scale=None, dropout=0.0):
    """GPT-2's, whose softmax is in the scores' own type."""
    scores = torch.matmul(q, k.transpose(-1, -2)) * (q.size(-1) ** -0.5)
    scores = scores + mask
    scores = F.softmax(scores, dim=-1)
    scores = scores.to(v.dtype)
    scores = F.dropout(scores, dropout, True)
    y = torch.matmul(scores, v)
    return y.transpose(1, 2), scores


def attend_with_sinks(q, k, v, mask, sinks, dropout=0.0):
    """gpt-oss's: a learned score of each head stands beside those of the tokens, and its weight is dropped."""
    groups = q.size(1) // k.size(1)
    keys, values = (repeated(k, groups), repeated(v, groups)) if groups > 1 else (k, v)
    scores = torch.matmul(q, keys.transpose(2, 3)) * (q.size(-1) ** -0.5)
    scores = scores + mask
    sinks = sinks.reshape(1, -1, 1, 1).expand(q.size(0), -1, q.size(2), -1)
    joined = torch.cat((scores, sinks), dim=-1)
    joined = joined - joined.max(dim=-1, keepdim=True)[0]
    weights = F.softmax(joined, dim=-1, dtype=joined.dtype)
    kept = weights[..., :-1]
    scores = F.dropout(kept, dropout, True).to(v.dtype)
    y = torch.matmul(scores, values)
    return y.transpose(1, 2).contiguous(), scores


def repeated(x, groups):  # (B, K, T, D) -> (B, A, T, D)
    B, K, T, D = x.shape
    return x[:, :, None].expand(B, K, groups, T, D).reshape(B, K * groups, T, D)
