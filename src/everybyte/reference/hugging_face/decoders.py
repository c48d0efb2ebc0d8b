"""GPT-2, OPT, Llama and its like, Gemma 2 and 3, gpt-oss, GPT-NeoX, DeepSeek-V3, GLM-4.5, Llama 4."""

import torch
from torch import nn
from torch.nn import functional as F

from ..llama import GatedMLP
from .cache import kinds
from .decoder import MLP, Attention, Block, Decoder, layer_norm, rms_norm
from .mixtures import BiasedExperts, Everybody, Experts, NarrowExperts, SharedExperts
from .parts import (
    ComplexRotary,
    Conv1D,
    HalfRotary,
    OffsetNorm,
    RMSNorm,
    Rotary,
    WeightlessNorm,
    attend_capped,
    attend_in_own_type,
    attend_narrowly,
    attend_with_sinks,
    turn,
    turn_and_join,
    turn_complex,
    turn_halves,
    turn_pairs,
    turn_then_join,
)

# GPT-2.


class GPT2Attention(Attention):
    linear, eagerly = Conv1D, staticmethod(attend_narrowly)

    def forward(self, x, mask, layer):
        q, k, v = self.qkv(x).chunk(3, dim=2)
        k, v = self.apart(k, self.heads), self.apart(v, self.heads)
        q = self.apart(q, self.heads)
        k, v = layer.update(k, v)
        return self.attended(q, k, v, mask)


class GPT2Block(Block):
    def forward(self, x, mask, layer):
        residual = x
        x = self.norm1(x)
        attended, _scores = self.attention(x, mask, layer)
        attended = F.dropout(attended, self.dropout, self.training)
        x = attended + residual
        residual = x
        x = self.norm2(x)
        inner = self.mlp(x)
        inner = F.dropout(inner, self.dropout, self.training)
        return residual + inner


class GPT2(Decoder):
    norm_of = staticmethod(layer_norm)

    def block(self, model, i):
        return GPT2Block(self.norm_of, model, GPT2Attention(model), MLP(model, Conv1D))

    def hidden(self, tokens, cache):
        rows = self.embed(tokens)
        places = self.places(rows, cache)
        learned = self.position(places)
        x = rows + learned
        mask = cache[0].mask(rows)
        x = F.dropout(x, self.dropout, self.training)
        for block, layer in self.layers(cache, places):
            x = block(x, mask, layer)
        return self.norm(x)


# OPT.


class OPTAttention(Attention):
    own_dropout = True  # of its configurations, 0.0

    def forward(self, x, mask, layer):
        q = self.q(x) * self.head**-0.5
        q = self.apart(q, self.heads)
        k, v = self.k(x), self.v(x)
        k, v = self.apart(k, self.heads), self.apart(v, self.heads)
        k, v = layer.update(k, v)
        return self.attended(q, k, v, mask, scale=1.0)


class OPTBlock(Block):
    def forward(self, x, mask, layer):
        residual = x
        x = self.norm1(x)
        x, _scores = self.attention(x, mask, layer)
        x = F.dropout(x, self.dropout, self.training)
        x = residual + x
        residual = x
        x = self.norm2(x)
        x = self.mlp.up(x)  # in the open: what is normed goes as soon as it has been used
        x = self.mlp.activation(x)
        x = self.mlp.down(x)
        x = F.dropout(x, self.dropout, self.training)
        return residual + x


class OPT(Decoder):
    norm_of = staticmethod(layer_norm)

    def block(self, model, i):
        return OPTBlock(self.norm_of, model, OPTAttention(model), MLP(model))

    def hidden(self, tokens, cache):
        rows = self.embed(tokens)
        seen = cache[0].seen
        ones = torch.ones(rows.size(0), seen + rows.size(1), device=rows.device)  # a place is how many stand before
        places = torch.cumsum(ones, dim=1)
        places = (places * ones - 1).long()
        places = places[:, seen:]
        mask = cache[0].mask(rows)
        learned = self.position(places + 2)
        x = rows + learned
        for block, layer in self.layers(cache, places):
            x = block(x, mask, layer)
        return self.norm(x)


# Llama, Mistral, Ministral, Qwen 2.5 and 3, Gemma, Phi-3, Mixtral.


class LlamaAttention(Attention):
    def __init__(self, model):
        super().__init__(model)
        self.fused = model.fused
        self.q_norm, self.k_norm = (RMSNorm(self.head) if model.qk_norm else nn.Identity() for _ in "qk")

    def forward(self, x, turns, mask, layer):
        if self.fused:
            made = self.qkv(x)
            heads = self.heads, self.kv_heads, self.kv_heads
            q, k, v = (self.apart(t, n) for t, n in zip(made.split(self.widths, dim=-1), heads, strict=True))
            q, k = turn_and_join(q, k, *turns)
        else:
            q = self.normed(self.q_norm, self.q(x), self.heads)
            k = self.normed(self.k_norm, self.k(x), self.kv_heads)
            v = self.apart(self.v(x), self.kv_heads)
            q, k = turn(q, k, *turns)
        k, v = layer.update(k, v)
        return self.attended(q, k, v, mask)

    def normed(self, norm, x, heads):
        return norm(x.view(*x.shape[:-1], heads, self.head)).transpose(1, 2)


class LlamaBlock(Block):
    def __init__(self, model, attention, mlp):
        super().__init__(rms_norm, model, attention, mlp)
        self.drops = model.fused  # Phi-3's alone

    def forward(self, x, turns, mask, layer):
        residual = x
        x = self.norm1(x)
        x, _scores = self.attention(x, turns, mask, layer)
        x = residual + self.dropped(x)
        residual = x
        x = self.norm2(x)
        x = self.mlp(x)
        return residual + self.dropped(x)

    def dropped(self, x):
        return F.dropout(x, self.dropout * self.drops, self.training)


class Llama(Decoder):
    """All layers are of one kind: there is one mask.

    Attributes:
        tables: of the speeds by which tokens turn.
    """

    norm_of, tables, mixture = staticmethod(rms_norm), 1, Experts

    def __init__(self, model):
        super().__init__(model)
        self.rotary = Rotary(model.rope_width or model.turning)
        self.scale = torch.tensor(model.width**0.5) if model.scaled_embedding else None

    def block(self, model, i):
        return LlamaBlock(model, LlamaAttention(model), self.mixture(model) if model.experts else GatedMLP(model))

    def entered(self, rows):
        return rows

    def rows(self, tokens):
        rows = self.token(tokens)
        return rows if self.scale is None else rows * self.scale.to(rows.dtype)

    def hidden(self, tokens, cache):
        rows = self.embed(tokens)
        places = self.places(rows, cache)
        masks = {kind: layer.mask(rows) for kind, layer in self.kinds(cache).items()}
        x = self.entered(rows)
        turns = self.turns(x, places, cache)
        for block, layer in self.layers(cache, places):
            x = block(x, turns[layer.near], masks[type(layer)], layer)
        return self.norm(x)

    def kinds(self, cache):
        """Each kind of layer that has a mask -> a layer of it."""
        return kinds(cache)

    def turns(self, x, places, cache):
        """Whether a layer is near -> its cosines and sines."""
        return (self.rotary(x, places),) * 2


class Windowed(Llama):
    """Ministral, Qwen 2.5 and 3: layers are of two kinds. The mask of those that attend to all tokens is made though there be none."""

    def kinds(self, cache):
        whole = next((layer for layer in cache if not layer.near), None)
        return kinds([*cache, whole or cache[0].beside()])


class QwenMixture(Llama):
    """Qwen 3 with experts."""

    mixture = NarrowExperts


# Gemma 2 and 3.


class GemmaAttention(LlamaAttention):
    """Queries and keys are normed once the heads stand apart."""

    def __init__(self, model):
        super().__init__(model)
        if model.qk_norm:
            self.q_norm, self.k_norm = OffsetNorm(self.head), OffsetNorm(self.head)

    def forward(self, x, turns, mask, layer):
        q = self.apart(self.q(x), self.heads)
        k = self.apart(self.k(x), self.kv_heads)
        v = self.apart(self.v(x), self.kv_heads)
        q = self.q_norm(q)
        k = self.k_norm(k)
        q, k = turn(q, k, *turns)
        k, v = layer.update(k, v)
        return self.attended(q, k, v, mask)


class CappedAttention(GemmaAttention):
    attend = eagerly = staticmethod(attend_capped)


class GemmaBlock(Block):
    """A norm before and a norm after attention, and MLP."""

    def __init__(self, model, attention):
        super().__init__(rms_norm, model, attention, GatedMLP(model))
        self.norm3, self.norm4 = rms_norm(model, model.width), rms_norm(model, model.width)

    def forward(self, x, turns, mask, layer):
        residual = x
        x = self.norm1(x)
        x, _scores = self.attention(x, turns, mask, layer)
        x = self.norm2(x)
        x = residual + x
        residual = x
        x = self.norm3(x)
        x = self.mlp(x)
        x = self.norm4(x)
        return residual + x


class CappedHead(nn.Linear):
    """Logits pass through a scaled tanh."""

    def forward(self, x):
        logits = super().forward(x)
        logits = logits / 30.0
        logits = torch.tanh(logits)
        return logits * 30.0


class Gemma2(Windowed):
    head_of = CappedHead

    def block(self, model, i):
        return GemmaBlock(model, CappedAttention(model))


class Gemma3(Windowed):
    """Tokens turn by other speeds in layers with the window."""

    def __init__(self, model):
        super().__init__(model)
        self.near = Rotary(model.turning)
        if any(not model.windowed(i) for i in range(model.layers)):
            self.tables = 2
        else:
            self.rotary = self.near

    def block(self, model, i):
        return GemmaBlock(model, GemmaAttention(model))

    def turns(self, x, places, cache):
        found = {layer.near for layer in cache}
        return {near: (self.near if near else self.rotary)(x, places) for near in found}


# gpt-oss.


class SinkAttention(LlamaAttention):
    def __init__(self, model):
        super().__init__(model)
        self.sinks = nn.Parameter(torch.zeros(model.heads))

    def forward(self, x, turns, mask, layer):
        q = self.apart(self.q(x), self.heads)
        k = self.apart(self.k(x), self.kv_heads)
        v = self.apart(self.v(x), self.kv_heads)
        q, k = turn_halves(q, k, *turns)
        k, v = layer.update(k, v)
        return self.attended(q, k, v, mask)

    def attend(self, q, k, v, mask, scale, dropout):
        return attend_with_sinks(q, k, v, mask, self.sinks, dropout)

    eagerly = attend


class GptOssBlock(LlamaBlock):
    def forward(self, x, turns, mask, layer):
        residual = x
        x = self.norm1(x)
        x, _beside = self.attention(x, turns, mask, layer)
        x = residual + x
        residual = x
        x = self.norm2(x)
        x, _beside = self.mlp(x)
        return residual + x


class GptOss(Windowed):
    def __init__(self, model):
        super().__init__(model)
        self.rotary = HalfRotary(model.turning)

    def block(self, model, i):
        return GptOssBlock(model, SinkAttention(model), BiasedExperts(model))


# GPT-NeoX.


class NeoXAttention(Attention):
    def forward(self, x, turns, mask, layer):
        made = self.qkv(x)
        made = made.view(*x.shape[:-1], self.heads, 3 * self.head).transpose(1, 2)
        q, k, v = made.chunk(3, dim=-1)
        q, k = turn_then_join(q, k, *turns)
        k, v = layer.update(k, v)
        return self.attended(q, k, v, mask)


class NeoXBlock(Block):
    def forward(self, x, turns, mask, layer):  # attention and MLP beside one another
        attended, _scores = self.attention(self.norm1(x), turns, mask, layer)
        attended = F.dropout(attended, self.dropout, self.training)
        inner = self.mlp(self.norm2(x))
        inner = F.dropout(inner, self.dropout, self.training)
        return inner + attended + x


class NeoX(Llama):
    """Pythia."""

    norm_of = staticmethod(layer_norm)

    def entered(self, rows):
        return F.dropout(rows, self.dropout, self.training)

    def block(self, model, i):
        return NeoXBlock(self.norm_of, model, NeoXAttention(model), MLP(model))


# DeepSeek-V3.


class LatentAttention(Attention):
    """Keys and values are compressed to R numbers a token, which are cached, and expanded for every pass.

    Source: DeepSeek-AI 2024, arXiv:2405.04434, equations 9 to 13.
    """

    def __init__(self, model):
        nn.Module.__init__(self)
        self.head, self.turned, self.value = model.head_width, model.rope_width, model.value_width
        self.rank, straight = model.latent_rank, model.head_width - model.rope_width
        self.straight = straight
        self.query_down = nn.Linear(model.width, model.query_rank, bias=False)
        self.query_norm = RMSNorm(model.query_rank)
        self.query_up = nn.Linear(model.query_rank, model.heads * model.head_width, bias=False)
        self.latent_down = nn.Linear(model.width, model.latent_rank + model.rope_width, bias=False)
        self.latent_norm = RMSNorm(model.latent_rank)
        self.latent_up = nn.Linear(model.latent_rank, model.heads * (straight + model.value_width), bias=False)
        self.latent_out = nn.Linear(model.heads * model.value_width, model.width, bias=False)

    def forward(self, x, turns, mask, layer):
        B, S, _ = x.shape
        q = self.query_up(self.query_norm(self.query_down(x)))
        q = q.view(B, S, -1, self.head).transpose(1, 2)
        straight, q_turned = q.split((self.straight, self.turned), dim=-1)
        compressed = self.latent_down(x)
        latent, k_turned = compressed.split((self.rank, self.turned), dim=-1)
        latent = self.latent_norm(latent)
        latent, k_turned = latent.view(B, 1, S, self.rank), k_turned.view(B, 1, S, self.turned)
        q_turned, k_turned = turn_pairs(q_turned, k_turned, *turns)
        latent, k_turned = layer.update(latent, k_turned)
        q = torch.cat((straight, q_turned), dim=-1)
        k, v = self.expanded(latent, k_turned)
        y, scores = self.attend(q, k, v, mask, None, self.dropout)
        y = y.reshape(B, S, -1).contiguous()
        return self.latent_out(y), scores

    def expanded(self, latent, turned):  # (B, 1, T, R) and (B, 1, T, D_r) -> (B, A, T, D), (B, A, T, D_v)
        B, _, T, _ = latent.shape
        made = self.latent_up(latent).view(B, T, -1, self.straight + self.value).transpose(1, 2)
        straight, v = made.split((self.straight, self.value), dim=-1)
        turned = turned.expand(-1, straight.size(1), -1, -1)
        k = made.new_empty(*made.shape[:-1], self.head)
        k[..., : self.straight] = straight
        k[..., self.straight :] = turned
        return k, v


class DeepSeek(Llama):
    """Some layers with one MLP, then layers with experts.

    Attributes:
        router_type: the data type of its routers' biases; None: the module's.
    """

    attention: type[nn.Module] = LatentAttention
    router_type = None

    def block(self, model, i):
        mlp = GatedMLP(model) if i < model.dense_layers else SharedExperts(model, self.router_type)
        return LlamaBlock(model, self.attention(model), mlp)


# GLM-4.5.


class GLMAttention(LlamaAttention):
    """Of each head a part turns. Queries and keys are normed once all three projections have been made."""

    def forward(self, x, turns, mask, layer):
        q, k, v = (f(x).view(*x.shape[:-1], -1, self.head) for f in (self.q, self.k, self.v))
        q = self.q_norm(q)
        k = self.k_norm(k)
        q, k, v = q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)
        q, k = turn_then_join(q, k, *turns)
        k, v = layer.update(k, v)
        return self.attended(q, k, v, mask)


class GLM(DeepSeek):
    """Attention without compression."""

    attention, router_type = GLMAttention, torch.float32


# Llama 4.


class Llama4Attention(Attention):
    """Of layers with a window queries and keys turn, and are normed; of others queries are scaled by where they stand."""

    eagerly = staticmethod(attend_in_own_type)

    def __init__(self, model, turns):
        super().__init__(model)
        self.turns, self.norm = turns, WeightlessNorm()

    def forward(self, x, turns, mask, layer):
        B, S, _ = x.shape
        q = self.q(x).view(B, S, -1, self.head)
        k = self.k(x).view(B, S, -1, self.head)
        v = self.v(x).view(B, S, -1, self.head).transpose(1, 2)
        if self.turns:
            q, k = turn_complex(q, k, turns)
            q = self.norm(q)
            k = self.norm(k)
        else:
            places = torch.arange(S, device=x.device) + layer.seen
            scales = torch.log1p(torch.floor((places.float() + 1.0) / 8192)) * 0.1 + 1.0
            scales = scales.view(1, S, 1, 1).expand(B, S, 1, 1)
            q = (q * scales).to(q.dtype)
        q = q.transpose(1, 2)
        k = k.transpose(1, 2)
        k, v = layer.update(k, v)
        return self.attended(q, k, v, mask)


class Llama4Block(LlamaBlock):
    def forward(self, x, turns, mask, layer):
        residual = x
        x = self.norm1(x)
        attended, _scores = self.attention(x, turns, mask, layer)
        x = residual + attended
        residual = x
        x = self.norm2(x)
        x, _logits = self.mlp(x)
        return residual + x.view(residual.shape)


class Llama4(Windowed):
    def __init__(self, model):
        super().__init__(model)
        self.rotary = ComplexRotary(model.turning)

    def block(self, model, i):
        return Llama4Block(model, Llama4Attention(model, model.windowed(i)), Everybody(model))


#: transformers' `model_type` -> the class of its decoders.
DECODERS: dict[str, type] = {
    **dict.fromkeys(("llama", "mistral", "gemma", "phi3", "mixtral"), Llama),
    **dict.fromkeys(("ministral", "qwen2", "qwen3"), Windowed),
    "gemma2": Gemma2, "gemma3": Gemma3, "gpt2": GPT2, "opt": OPT, "gpt_neox": NeoX, "deepseek_v3": DeepSeek, "glm4_moe": GLM,
    "gpt_oss": GptOss, "qwen3_moe": QwenMixture, "llama4_text": Llama4,
}  # fmt: skip
