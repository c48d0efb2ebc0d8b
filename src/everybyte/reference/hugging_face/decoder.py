"""What the decoders are made of: attention, an MLP, norms, and the passes of a model. B sequences of S new tokens, with a cache of
older ones."""

from collections.abc import Callable

import torch
from torch import nn
from torch.utils import checkpoint

from ..gpt import ACTIVATIONS
from .cache import Chunk, Near, Nothing
from .parts import OffsetNorm, PlainNorm, RMSNorm, WideNorm, attend, attend_eagerly, gelu_tanh


class Attention(nn.Module):
    """Causal self-attention: what `heads` gives, over the new tokens and the cache."""

    linear = nn.Linear
    #: What attends, and what does where the scores exist; with which probability one becomes 0.
    attend: Callable = staticmethod(attend)
    eagerly: Callable = staticmethod(attend_eagerly)
    dropout = 0.0
    #: Whether that is not what a setup says.
    own_dropout = False

    def __init__(self, model):
        super().__init__()
        self.heads, self.kv_heads, self.head = model.heads, model.kv_heads, model.head_width
        queries, keys = model.heads * model.head_width, model.kv_heads * model.head_width
        self.widths = queries, keys, keys
        if model.fused:
            self.qkv = self.linear(model.width, sum(self.widths), bias=model.qkv_bias)
        else:
            self.q, self.k, self.v = (nn.Linear(model.width, width, bias=model.qkv_bias) for width in self.widths)
        self.out = self.linear(queries, model.width, bias=model.out_bias)

    def apart(self, x, heads):  # (B, S, A D) -> (B, A, S, D)
        return x.view(*x.shape[:-1], heads, self.head).transpose(1, 2)

    def attended(self, q, k, v, mask, scale=None):  # -> (B, S, H), and the scores where they exist
        y, scores = self.attend(q, k, v, mask, scale, self.dropout)
        y = y.reshape(*y.shape[:-2], -1).contiguous()
        return self.out(y), scores


class Block(nn.Module):
    """A norm and attention, a norm and an MLP."""

    dropout = 0.0

    def __init__(self, norm_of, model, attention, mlp):
        super().__init__()
        self.norm1, self.attention = norm_of(model, model.width), attention
        self.norm2, self.mlp = norm_of(model, model.width), mlp


class MLP(nn.Module):
    """Two matrices with a function between them."""

    def __init__(self, model, linear=nn.Linear):
        super().__init__()
        self.activation = gelu_tanh if model.activation == "gelu_tanh" else ACTIVATIONS[model.activation]
        self.up = linear(model.width, model.ffn_width, bias=model.ffn_bias)
        self.down = linear(model.ffn_width, model.width, bias=model.ffn_bias)

    def forward(self, x):
        return self.down(self.activation(self.up(x)))


def layer_norm(model, width):
    return nn.LayerNorm(width, bias=model.norm_bias)


def rms_norm(model, width):
    return (OffsetNorm if model.norm_offset else WideNorm if model.sinks else PlainNorm if model.chunked else RMSNorm)(
        width
    )


class Decoder(nn.Module):
    """Tokens in, the last one's logits out; with labels loss and all logits, as `...ForCausalLM`."""

    #: Whether backward recomputes the blocks; whether what they get requires a gradient though no embedding trains, as peft has it then.
    recomputes = leaf = False
    dropout = 0.0
    head_of = nn.Linear

    def __init__(self, model):
        super().__init__()
        self.token = nn.Embedding(model.vocabulary, model.width)
        if model.has_positions:
            self.position = nn.Embedding(model.learned_positions, model.width)
        self.blocks = nn.ModuleList(self.block(model, i) for i in range(model.layers))
        self.norm = self.norm_of(model, model.width)
        self.head = self.head_of(model.width, model.vocabulary, bias=False)
        if model.tied:
            self.head.weight = self.token.weight

    def forward(self, tokens, cache, labels=None):  # (B, S), a layer's each, (B, S) -> (B, 1, V), or (), (B, S, V)
        x = self.hidden(tokens, cache)
        if labels is None:
            return self.head(x[:, -1:])
        logits = self.head(x)
        loss = self.loss(logits, labels)
        return loss, logits

    def embed(self, tokens):
        rows = self.rows(tokens)
        return rows.requires_grad_() if self.leaf else rows

    def rows(self, tokens):
        return self.token(tokens)

    def trained(self, model, setup):
        """Bound to how a setup trains it: which attention, with which dropout, what backward recomputes. Returns the decoder."""
        self.recomputes = setup.checkpointing == "full"
        self.leaf = self.recomputes and setup.adapters is not None
        eager = setup.attention == "eager"
        full, near = Nothing(eager), (Chunk if model.chunked else Near)(model.window, eager)
        self.nothing = [near if model.windowed(i) else full for i in range(len(self.blocks))]
        for module in self.modules():
            if not (isinstance(module, Attention) and module.own_dropout):
                module.dropout = setup.dropout
            if isinstance(module, Attention) and eager:
                module.attend = module.eagerly
        return self

    def layers(self, cache, places):
        """Each block with its layer of the cache; a block that backward recomputes is called by `checkpoint`."""
        for block, layer in zip(self.blocks, cache, strict=True):
            yield (recomputed(block, places) if self.recomputes else block), layer

    def places(self, x, cache):  # (1, S): where the new tokens stand
        places = torch.arange(x.size(1), device=x.device) + cache[0].seen
        return places.unsqueeze(0)


def recomputed(block, places):
    """A block under `GradientCheckpointingLayer`, which saves its input and holds all that stands beside it: the places too."""

    def call(x, *others):
        def run(blocks, x, places=places):
            return blocks[0](x, *others)

        return checkpoint.checkpoint(run, [block], x, use_reentrant=False)

    return call


def extended(decoder, tokens, new, cache):
    """A pass, and what generation makes of it: the tokens with one more, of the largest logit. (B, T), (B, S) -> (B, T + 1)."""
    wide = decoder(new, cache)[:, -1].float()
    token = wide.argmax(dim=-1)
    del wide
    return torch.cat((tokens, token[:, None]), dim=-1)
