"""A training step of Megatron-LM's Llama or DeepSeek in Transformer Engine's modules, one GPU's part, with its distributed optimizer.

Said as their code has it: Transformer Engine 2.11, `pytorch/module/layernorm_linear.py` and `linear.py`, `attention/`,
`cross_entropy.py`; Megatron-LM, `core/models/gpt`, `core/tensor_parallel/layers.py`, `core/optimizer/distrib_optimizer.py`. Of a product
the weight's gradient goes into the fp32 buffer at once, and autograd is given a tensor of its shape that there is once. Collectives give
tensors without data; dropout is 0. Experts have room for as many rows as come where all are chosen alike (`--moe-pad-expert-input-to-capacity`).
"""

import argparse
from collections import deque

import torch
from torch import nn
from torch.autograd import Function

DUMMIES = {}


def gathered(x):
    """All GPUs' tokens."""
    return x if GIVEN.tensor == 1 else x.new_empty((x.size(0) * GIVEN.tensor, *x.shape[1:]))


def reduced(x):
    """This GPU's tokens of a sum."""
    return x if GIVEN.tensor == 1 else x.new_empty((x.size(0) // GIVEN.tensor, *x.shape[1:]))


def dummy(weight):
    if weight.shape not in DUMMIES:
        DUMMIES[weight.shape] = torch.empty_like(weight)
    return DUMMIES[weight.shape].detach()


class NormLinear(Function):
    """It keeps what it is given and what the norm gives, of its own tokens."""

    @staticmethod
    def forward(ctx, x, gain, weight):
        normed, scale = torch.empty_like(x), x.new_empty(x.size(0), dtype=torch.float32)
        ctx.save_for_backward(x, normed, scale, gain, weight)
        return gathered(normed) @ weight.T

    @staticmethod
    def backward(ctx, grad):
        x, normed, _, gain, weight = ctx.saved_tensors
        whole = gathered(normed)  # noqa: F841
        part = reduced(grad @ weight)  # noqa: F841
        return torch.empty_like(x), torch.empty_like(gain), dummy(weight)


class Linear(Function):
    """A product that no GPUs divide: of the matrix, or of each expert's by its rows."""

    @staticmethod
    def forward(ctx, x, *weights):
        ctx.save_for_backward(x, *weights)
        return x.new_empty((x.size(0), weights[0].size(0)))

    @staticmethod
    def backward(ctx, grad):
        x, *weights = ctx.saved_tensors
        return torch.empty_like(x), *map(dummy, weights)


class Moved(Function):
    """Rows in another order, or of other GPUs: as many, a new tensor; of tokens as many as given."""

    @staticmethod
    def forward(ctx, x, rows):
        ctx.rows = x.size(0)
        return x.new_empty((rows, x.size(1)))

    @staticmethod
    def backward(ctx, grad):
        return grad.new_empty((ctx.rows, grad.size(1))), None


class Spread(Function):
    """Keys and values of what both come of, by one kernel that turns the keys."""

    @staticmethod
    def forward(ctx, both, turned):
        ctx.shapes = both.shape, turned.shape
        rows, sizes = both.size(0), (GIVEN.size + GIVEN.turned, GIVEN.size)
        return tuple(both.new_empty((rows, GIVEN.heads, size)) for size in sizes)

    @staticmethod
    def backward(ctx, *grads):
        return tuple(map(grads[0].new_empty, ctx.shapes))


class RowLinear(Function):
    @staticmethod
    def forward(ctx, x, weight):
        ctx.save_for_backward(x, weight)
        return reduced(x @ weight.T)

    @staticmethod
    def backward(ctx, grad):
        _, weight = ctx.saved_tensors
        return gathered(grad) @ weight, dummy(weight)


class Head(Function):
    """Megatron's own layer: all tokens stand in a buffer that stays."""

    whole = None

    @staticmethod
    def forward(ctx, x, weight):
        if Head.whole is None and GIVEN.tensor > 1:
            Head.whole = gathered(x.detach())
        ctx.save_for_backward(x, weight)
        return (x if Head.whole is None else Head.whole) @ weight.T

    @staticmethod
    def backward(ctx, grad):
        _, weight = ctx.saved_tensors
        return reduced(grad @ weight), torch.empty_like(weight)


class Norm(Function):
    @staticmethod
    def forward(ctx, x, gain):
        ctx.save_for_backward(x, x.new_empty(x.size(0), dtype=torch.float32), gain)
        return torch.empty_like(x)

    @staticmethod
    def backward(ctx, grad):
        x, _, gain = ctx.saved_tensors
        return torch.empty_like(x), torch.empty_like(gain)


class Turn(Function):
    @staticmethod
    def forward(ctx, x):
        return torch.empty_like(x, memory_format=torch.contiguous_format)

    @staticmethod
    def backward(ctx, grad):
        return torch.empty_like(grad)


class Attention(Function):
    """It keeps queries, keys, values, its result and of each row one number; GPUs that share sequences exchange these for heads."""

    @staticmethod
    def forward(ctx, q, k, v):
        v = v.contiguous()
        if GIVEN.context > 1:
            q, k, v = map(torch.empty_like, (q, k, v))
        out, rows = q.new_empty((*q.shape[:2], v.size(2))), q.new_empty(q.shape[:2], dtype=torch.float32)
        ctx.save_for_backward(q, k, v, out, rows)
        return torch.empty_like(out) if GIVEN.context > 1 else out

    @staticmethod
    def backward(ctx, grad):
        if GIVEN.context > 1:
            grad = torch.empty_like(grad)  # noqa: F841
        found = tuple(map(torch.empty_like, ctx.saved_tensors[:3]))
        return tuple(map(torch.empty_like, found)) if GIVEN.context > 1 else found


class SwiGlu(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.new_empty((x.size(0), x.size(1) // 2))

    @staticmethod
    def backward(ctx, grad):
        return torch.empty_like(ctx.saved_tensors[0])


class Loss(Function):
    """The gradient takes the logits' place."""

    @staticmethod
    def forward(ctx, logits):
        rows = logits.new_empty(3 * logits.size(0) * GIVEN.tensor, dtype=torch.float32)
        ctx.save_for_backward(logits)
        return rows.new_empty(logits.size(0))

    @staticmethod
    def backward(ctx, grad):
        return ctx.saved_tensors[0]


class Rows(Function):
    """Of a table's rows each GPU has some; their sum is divided by tokens."""

    @staticmethod
    def forward(ctx, x):
        return reduced(x)

    @staticmethod
    def backward(ctx, grad):
        return gathered(grad)


def weight(*shape):
    return nn.Parameter(torch.empty(shape, dtype=torch.bfloat16, device="cuda"))


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        own, width = GIVEN.heads // GIVEN.tensor * GIVEN.size, GIVEN.width
        keys, ffn = GIVEN.keys // GIVEN.tensor, GIVEN.ffn // GIVEN.tensor
        self.norm1, self.norm2 = weight(width), weight(width)
        self.qkv, self.proj = weight(own + 2 * keys * GIVEN.size, width), weight(width, own)
        self.fc1, self.fc2 = weight(2 * ffn, width), weight(width, ffn)

    def forward(self, x):
        x = x + self.mixed(NormLinear.apply(x, self.norm1, self.qkv))
        return x + RowLinear.apply(SwiGlu.apply(NormLinear.apply(x, self.norm2, self.fc1)), self.fc2)

    def mixed(self, mixed):
        groups = GIVEN.keys // GIVEN.tensor
        each = GIVEN.heads // GIVEN.keys * GIVEN.size
        q, k, v = mixed.view(mixed.size(0), groups, -1).split([each, GIVEN.size, GIVEN.size], -1)
        q = q.reshape(q.size(0), -1, GIVEN.size)
        out = Attention.apply(Turn.apply(q), Turn.apply(k), v)
        return RowLinear.apply(out.view(out.size(0), -1), self.proj)


class Latent(nn.Module):
    """DeepSeek's attention: queries, and keys with values, come of narrow rows."""

    def __init__(self):
        super().__init__()
        width, queries, narrow = GIVEN.width, 1536, 512
        self.norm, self.norm_q, self.norm_kv = weight(width), weight(queries), weight(narrow)
        self.down_q, self.down_kv = weight(queries, width), weight(narrow + GIVEN.turned, width)
        self.up_q = weight(GIVEN.heads * (GIVEN.size + GIVEN.turned), queries)
        self.up_kv, self.proj = weight(2 * GIVEN.heads * GIVEN.size, narrow), weight(width, GIVEN.heads * GIVEN.size)

    def forward(self, x):
        x = Norm.apply(x, self.norm)
        q = NormLinear.apply(Linear.apply(x, self.down_q), self.norm_q, self.up_q).view(x.size(0), GIVEN.heads, -1)
        narrow, turned = Linear.apply(x, self.down_kv).split([512, GIVEN.turned], -1)
        both = NormLinear.apply(narrow.contiguous(), self.norm_kv, self.up_kv)
        k, v = Spread.apply(both, turned)
        return Linear.apply(Attention.apply(q, k, v).view(x.size(0), -1), self.proj)


class Mixture(nn.Module):
    """Experts, of which this GPU has some, each with room for its share of the rows; and one that every token visits."""

    def __init__(self):
        super().__init__()
        width, own = GIVEN.width, GIVEN.experts // GIVEN.spread
        self.norm, self.router = weight(width), weight(GIVEN.experts, width)
        self.shared1, self.shared2 = weight(2 * GIVEN.shared, width), weight(width, GIVEN.shared)
        self.own1 = nn.ParameterList(weight(2 * GIVEN.expert, width) for _ in range(own))
        self.own2 = nn.ParameterList(weight(width, GIVEN.expert) for _ in range(own))

    def forward(self, x):
        x, tokens = Norm.apply(x, self.norm), x.size(0)
        scores = (x @ self.router.T).float().softmax(-1)
        rows = -(-tokens * GIVEN.each // GIVEN.experts) * GIVEN.experts
        shared = Linear.apply(SwiGlu.apply(Linear.apply(x, self.shared1)), self.shared2)
        for _ in range(3):  # by experts, to their GPUs, by experts again
            x = Moved.apply(x, rows)
        x = Linear.apply(SwiGlu.apply(Linear.apply(x, *self.own1)), *self.own2)
        for count in (rows, rows, tokens):
            x = Moved.apply(x, count)
        return x + shared + 0 * scores.sum(-1, keepdim=True).to(x.dtype)


class Sparse(nn.Module):
    def __init__(self, dense):
        super().__init__()
        self.attention, self.mixture = Latent(), None if dense else Mixture()
        if dense:
            self.norm, self.fc1 = weight(GIVEN.width), weight(2 * GIVEN.ffn, GIVEN.width)
            self.fc2 = weight(GIVEN.width, GIVEN.ffn)

    def forward(self, x):
        x = x + self.attention(x)
        if self.mixture:
            return x + self.mixture(x)
        return x + Linear.apply(SwiGlu.apply(NormLinear.apply(x, self.norm, self.fc1)), self.fc2)


class Llama(nn.Module):
    def __init__(self):
        super().__init__()
        whole = 128 * GIVEN.tensor
        vocabulary = -(-GIVEN.vocabulary // whole) * 128
        self.token, self.blocks = (
            weight(vocabulary, GIVEN.width),
            nn.ModuleList(Sparse(n == 0) if GIVEN.experts else Block() for n in range(GIVEN.layers)),
        )
        if GIVEN.stages == 1:
            self.norm, self.head = weight(GIVEN.width), weight(vocabulary, GIVEN.width)

    def forward(self, tokens):
        x = Rows.apply(nn.functional.embedding(tokens, self.token))
        for block in self.blocks:
            x = block(x)
        if GIVEN.stages > 1:
            return x
        return Loss.apply(Head.apply(Norm.apply(x, self.norm), self.head)).mean()


class Optimizer(torch.optim.Optimizer):
    """Weights and fp32 gradients in buffers, of experts in others; of masters and states a share."""

    def __init__(self, params):
        super().__init__(params, {})
        params, own = list(reversed(params)), {p for name, p in llama.named_parameters() if ".own" in name}
        self.parts = [Buffers([p for p in params if p not in own], GIVEN.data)]
        if own:
            self.parts.append(Buffers([p for p in params if p in own], GIVEN.data // GIVEN.spread))

    def step(self):
        for part in self.parts:
            part.step()

    def zero_grad(self):
        for part in self.parts:
            part.gradients.zero_()


class Buffers:
    def __init__(self, params, shared):
        multiple = 128 * shared
        total = -(-sum(-(-p.numel() // 64) * 64 for p in params) // multiple) * multiple
        self.weights = torch.zeros(total, dtype=torch.bfloat16, device="cuda")
        self.gradients, first = torch.zeros(total, device="cuda"), 0
        for p in params:
            here = slice(first, first + p.numel())
            p.data, p.main_grad = self.weights[here].view_as(p), self.gradients[here].view_as(p)
            p.register_post_accumulate_grad_hook(added)
            first += -(-p.numel() // 64) * 64
        self.master, self.states = torch.zeros(total // shared, device="cuda"), []

    @torch.no_grad()
    def step(self):
        self.states = self.states or [torch.zeros_like(self.master) for _ in range(2)]
        self.master.add_(self.states[0].mul_(0.9))


@torch.no_grad()
def added(p):
    """What a product has not added itself."""
    if p.dim() == 1:
        p.main_grad.add_(p.grad)
    p.grad = None


def step():
    """All micro-batches. Of a pipeline it is the first stage: as many forwards ahead as stages follow; what was sent is freed but for its graph."""
    under_way = deque()
    for n in range(GIVEN.micro + GIVEN.stages - 1):
        if n < GIVEN.micro:
            y = llama(torch.zeros(GIVEN.length // GIVEN.context, dtype=torch.int64, device="cuda"))
            if GIVEN.stages > 1:
                shape, y.data = y.shape, torch.empty(1, dtype=y.dtype, device="cuda")
            under_way.append(y)
            del y
        if n >= GIVEN.stages - 1:
            y = under_way.popleft()
            grad = torch.ones_like(y) if GIVEN.stages == 1 else torch.empty(shape, dtype=y.dtype, device="cuda")
            # Megatron calls the engine itself: of a stage the output is a scalar by now, and its gradient is not
            torch.autograd.Variable._execution_engine.run_backward((y,), (grad,), False, False, (), True, True)
            del y, grad


def options():
    parser = argparse.ArgumentParser(description=__doc__)
    sizes = {"layers": 12, "width": 8192, "heads": 64, "keys": 8, "ffn": 28672, "vocabulary": 128256, "length": 4096}
    sizes |= {"experts": 0, "each": 6, "expert": 1536, "shared": 3072, "spread": 1, "turned": 64}
    sizes |= {"tensor": 2, "data": 4, "context": 1, "stages": 1, "micro": 4, "steps": 2}
    for name, default in sizes.items():
        parser.add_argument(f"--{name}", type=int, default=default)
    given = parser.parse_args()
    given.size = 128 if given.experts else given.width // given.heads
    return given


GIVEN = options()
# Transformer Engine's own cuBLAS workspace (`get_cublas_workspace_size_bytes`)
KEPT = torch.empty(32 << 20, dtype=torch.uint8, device="cuda")
llama = Llama()
adam = Optimizer(list(llama.parameters()))
for _ in range(GIVEN.steps):
    adam.zero_grad()
    step()
    adam.step()
