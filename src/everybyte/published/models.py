"""The models of torchtitan and of Megatron-LM: the book's models with their differences."""

from collections import Counter

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

from ..ask.setup import Setup
from ..catalog import Model
from ..reference import gpt, llama

aten = torch.ops.aten
_ATTENTION = (aten._scaled_dot_product_flash_attention.default, aten._scaled_dot_product_efficient_attention.default)


class ComplexAttention(llama.GroupedAttention):
    """torchtitan's attention: rotary embeddings by complex numbers in fp32; key and value heads repeated for their query heads."""

    def forward(self, x, turns, _):  # (B, S, H), (S, D/2)
        B, S, D = x.size(0), x.size(1), 2 * turns.size(1)
        q, k, v = (layer(x).view(B, S, -1, D) for layer in (self.q, self.k, self.v))  # (B, S, A or K, D)
        q, k = self.turned(q, turns), self.turned(k, turns)
        heads = [t.transpose(1, 2) for t in (q, self.repeated(k), self.repeated(v))]  # (B, A, S, D) each
        y = F.scaled_dot_product_attention(*heads, is_causal=True)
        return self.out(y.transpose(1, 2).contiguous().view(B, S, -1))

    def turned(self, x, turns):  # (B, S, A, D)
        pairs = torch.view_as_complex(x.float().reshape(*x.shape[:-1], -1, 2))
        return torch.view_as_real(pairs * turns[None, : x.shape[1], None]).flatten(3).type_as(x)

    def repeated(self, x):  # (B, S, K, D) -> (B, S, A, D)
        B, S, K, D = x.shape
        return x[:, :, :, None].expand(B, S, K, self.heads // K, D).reshape(B, S, -1, D)


class Fp32Loss(gpt.Loss):
    """torchtitan's loss, of logits in fp32."""

    def forward(self, logits, targets):  # (B, S, V), (B, S)
        return super().forward(logits.float(), targets)


def _every_second_product():
    """Contexts of a checkpoint that keeps attention and every second matrix product."""
    seen = Counter()

    def policy(context, op, *_, **__):
        if op is aten.mm.default:
            seen[context.is_recompute] += 1
        kept = op in _ATTENTION or (op is aten.mm.default and seen[context.is_recompute] % 2)
        return CheckpointPolicy.MUST_SAVE if kept else CheckpointPolicy.PREFER_RECOMPUTE

    return create_selective_checkpoint_contexts(policy)


class Llama(llama.Llama):
    """torchtitan's, of December 2024: `torchtitan/models/llama/model.py` and `parallelisms/parallelize_llama.py`.

    Args:
        recompute: `nothing`, `blocks` or `every second product`.
    """

    def __init__(self, model: Model, recompute: str, sequence: int):
        super().__init__(model, Setup(sequence=sequence))
        for block in self.blocks:
            block.attention = ComplexAttention(model, self.setup)
        self.loss, self.recompute = Fp32Loss(), recompute
        self.register_buffer("turns", torch.empty(sequence, self.turning // 2, dtype=torch.complex64))

    def forward(self, tokens, labels):  # (B, S), (B, S)
        x = self.embed(tokens)  # (B, S, H)
        for block in self.blocks:
            x = self.run(block, x, self.turns, None)
        return self.loss(self.head(self.norm(x)), labels)

    def run(self, block, *given):
        if self.recompute == "nothing":
            return block(*given)
        how = {"context_fn": _every_second_product} if self.recompute == "every second product" else {}
        return checkpoint(block, *given, use_reentrant=False, preserve_rng_state=False, **how)


class InPlaceLoss(torch.autograd.Function):
    """Megatron's loss: one fp32 copy of the logits becomes the softmax, and then the gradient, in place."""

    @staticmethod
    def forward(ctx, logits, labels):  # (B, S, V / t), (B, S)
        scores = logits.float()
        scores -= scores.amax(-1, keepdim=True)
        picked = scores.gather(-1, labels[..., None])[..., 0]
        total = scores.exp_().sum(-1)
        scores /= total[..., None]
        ctx.save_for_backward(scores, labels)
        return total.log() - picked

    @staticmethod
    def backward(ctx, gradient):
        scores, labels = ctx.saved_tensors
        one = torch.full_like(labels, -1, dtype=scores.dtype)
        scores.scatter_add_(-1, labels[..., None], one[..., None])
        return scores.mul_(gradient[..., None]), None


class DividedAttention(gpt.Attention):
    """Megatron's attention with some of the heads, and fewer key and value heads than query heads."""

    def __init__(self, model: Model, setup: Setup, tensor: int):
        super().__init__(model, setup)
        self.widths = [n // tensor * model.head_width for n in (model.heads, model.kv_heads, model.kv_heads)]
        self.qkv, self.out = nn.Linear(model.width, sum(self.widths)), nn.Linear(self.widths[0], model.width)

    def forward(self, x):  # (B, S, H)
        B, S, D = x.size(0), x.size(1), x.size(2) // self.heads
        q, k, v = (part.reshape(B, S, -1, D).transpose(1, 2) for part in self.qkv(x).split(self.widths, -1))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True, dropout_p=self.dropout, enable_gqa=True)
        return F.dropout(self.out(y.transpose(1, 2).reshape(B, S, -1)), self.dropout)  # (B, S, H)


class GPTPart(gpt.GPT):
    """One GPU's part of Megatron's GPT: see `megatron.gpt`."""

    def __init__(self, model: Model, layers: int, tensor: int, vocabulary: int, embeds: bool):
        shares = {"vocabulary": vocabulary // tensor, "ffn_width": model.ffn_width // tensor}
        part = model.replace(layers=layers, kv_heads=model.heads, activation="gelu_tanh", **shares)
        super().__init__(part, Setup(sequence=model.positions, dropout=0.1))
        for block in self.blocks:
            block.attention = DividedAttention(model, self.setup, tensor)
        if not embeds:
            del self.token, self.position

    def forward(self, labels, tokens=None, stream=None):  # (B, S), (B, S) or (B, S, H)
        if stream is None:
            positions = torch.arange(tokens.size(1), device=tokens.device)
            stream = self.embed(tokens, positions)
        stream = gpt.through(self.blocks, self.setup, stream)
        return InPlaceLoss.apply(self.head(self.norm(stream)), labels).mean()
