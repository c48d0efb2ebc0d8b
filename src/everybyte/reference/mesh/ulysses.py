"""DeepSpeed-Ulysses: each of c GPUs has S / c tokens of every sequence, and for attention it swaps heads for tokens.

Everything but attention works on tokens one by one. Before attention each GPU sends each other GPU its tokens of that one's heads,
and gets all tokens of its own A / c heads. Attention is then the usual one, on fewer heads. A second exchange brings its result back.
A GPU has neighboring tokens: each has whole rows of attention's square, so no GPU has more work than another.

Where there are fewer key heads than GPUs, each is sent to several of them. The order of the copies is that of DeepSpeed's
`UlyssesSPAttentionHF`, which transformers and accelerate call.
Sources: Jacobs et al. (2023), arXiv:2309.14509; Bekman et al., Arctic Long Sequence Training (2025), arXiv:2506.13996, section 3;
DeepSpeed, deepspeed/runtime/sequence_parallel/ulysses_sp.py.
"""

from contextlib import contextmanager

import torch
from torch import distributed as dist
from torch.nn import functional as F


def all_tokens(x, gpus, group):  # (S / c, B, A, D) -> (S, B, A / c, D)
    S, B, A, D = x.shape
    if A < gpus:
        x = x.repeat_interleave(gpus // A, dim=2)
    x = x.reshape(S, B, gpus, -1, D).permute(2, 0, 1, 3, 4).contiguous()  # (c, S / c, B, A / c, D): a part for each GPU
    x = Exchange.apply(x, group)
    return x.reshape(gpus * S, B, -1, D)


def own_tokens(x, gpus, group):  # (S, B, A D / c) -> (S / c, B, A D)
    S, B, _ = x.shape
    sent = x.reshape(gpus, S // gpus, B, -1).contiguous()
    came = Exchange.apply(sent, group).permute(1, 2, 0, 3)  # (S / c, B, c, A D / c)
    return came.reshape(S // gpus, B, -1)


class Exchange(torch.autograd.Function):
    """One part for each GPU, the first dimension; of what comes, one from each. Gradients go back the same way."""

    @staticmethod
    def forward(context, x, group):
        context.group = group
        out = x.new_empty(*x.shape)
        dist.all_to_all_single(out, x, group=group)
        return out

    @staticmethod
    def backward(context, gradient):
        sent = gradient.contiguous()
        out = sent.new_empty(*sent.shape)
        dist.all_to_all_single(out, sent, group=context.group)
        return out, None


def exchanged(attend, q, k, v, gpus, group, **options):
    """Attention of this GPU's queries to all tokens: (B, A, S / c, D) by (B, K, S / c, D).

    Args:
        attend: attention of some heads on all tokens. gpus: how many share the sequence, a process group's.
    """
    D = q.shape[3]
    q, k, v = q.permute(2, 0, 1, 3), k.permute(2, 0, 1, 3), v.permute(2, 0, 1, 3)  # (S / c, B, A, D)
    q, k, v = all_tokens(q, gpus, group), all_tokens(k, gpus, group), all_tokens(v, gpus, group)  # (S, B, A / c, D)
    q = q.permute(1, 2, 0, 3).contiguous()  # (B, A / c, S, D)
    k = k.permute(1, 2, 0, 3).contiguous()
    v = v.permute(1, 2, 0, 3).contiguous()
    x = token_by_token(attend, q, k, v, options)  # (B, S, A / c, D)
    S, B = x.shape[1], x.shape[0]
    x = x.permute(1, 0, 2, 3).reshape(S, B, -1)
    x = own_tokens(x, gpus, group)  # (S / c, B, A D)
    return x.reshape(S // gpus, B, -1, D).permute(1, 2, 0, 3)  # (B, A, S / c, D)


def token_by_token(attend, q, k, v, options):
    """The result of attention as transformers gives it on: (B, S, A, D)."""
    out = attend(q, k, v, **options)
    return out.transpose(1, 2).contiguous()


@contextmanager
def exchanging(ring, inputs):
    """Within it each of the inputs has this GPU's own tokens, in place, and attention swaps heads for tokens.

    Args:
        ring: a device mesh of one dimension. inputs: (B, S) each, and positions (S,).
    """
    group, gpus, whole = ring.get_group(), ring.size(), F.scaled_dot_product_attention
    place = dist.get_rank(group)
    for x in inputs:
        own = x.chunk(gpus, dim=-1)[place].clone()
        x.resize_(own.shape).copy_(own)
        del own

    def attention(q, k, v, **options):
        return exchanged(whole, q, k, v, gpus, group, **options)

    F.scaled_dot_product_attention = attention
    try:
        yield
    finally:
        F.scaled_dot_product_attention = whole
