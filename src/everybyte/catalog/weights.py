"""A model's weight tensors, listed once: names, shapes, and how many there are of each.

Dimensions may be whole numbers, of a `Model`, or symbols: then shapes and counts are expressions.
"""

from dataclasses import dataclass
from math import lcm, prod

#: Groups of weights that occur once in a model.
ENDS = ("embeddings", "last")
#: How many numbers of an NF4 weight share a scale; how many scales share a second one.
NF4_BLOCK, SCALES_BLOCK = 64, 256
#: Rows, and columns, of a weight in fp8 that share a scale.
FP8_BLOCK = 128


@dataclass(frozen=True, slots=True)
class Weight:
    """`count` tensors of one shape in one `group`: 1; 0 where the model has none; more where a group has several of that shape.

    Attributes:
        name: as in the book's reference, within its group. group: `embeddings`, `block` (each layer), `dense` (each layer
            with one MLP), `mixture` (each layer with experts), `last`.
    """

    name: str
    shape: tuple
    group: str
    count: object = 1

    def __post_init__(self):
        object.__setattr__(self, "count", 1 * self.count)  # a flag's True is the number 1 from here on

    @property
    def numbers(self):
        """Numbers in one tensor."""
        product = self.shape[0]
        for size in self.shape[1:]:
            product = product * size
        return product


def layers(m) -> dict:
    """{group: how often it occurs in the model}."""
    mixtures = m.mixture_layers
    return {"embeddings": 1, "block": m.layers, "dense": m.layers - mixtures, "mixture": mixtures, "last": 1}


def _linear(name, outputs, inputs, group, count, bias=0):
    weight = Weight(f"{name}.weight", (outputs, inputs), group, count)
    return [weight, Weight(f"{name}.bias", (outputs,), group, bias)]


def weights(m) -> list[Weight]:
    """Every weight tensor of a model, in the model's order. Tensors that it does not have are listed with `count` 0.

    Args:
        m: a `Model`, or an object with its fields as numbers or expressions (conditions as 0 or 1). `outputs`, where there is
            such a field: rows of the head, by default the vocabulary.
    """
    split, narrow = 1 - m.fused, 1 - m.latent
    queries, keys, head = m.heads * m.head_width, m.kv_heads * m.head_width, m.head_width
    tied, table = m.tied, (m.vocabulary, m.embedding_width)
    biases, latent, rank = narrow * m.qkv_bias, m.latent, m.query_rank

    def norm(name, width, group, count):
        gain = Weight(f"{name}.weight", (width,), group, count)
        return [gain, Weight(f"{name}.bias", (width,), group, count * m.norm_bias)]

    def mlp(name, inner, group, count):
        plain, gated = count * (1 - m.gated), count * m.gated
        return [
            *_linear(f"{name}.gate_up", 2 * inner, m.width, group, gated * m.fused, gated * m.fused * m.ffn_bias),
            *_linear(f"{name}.gate", inner, m.width, group, gated * split, gated * split * m.ffn_bias),
            *_linear(f"{name}.up", inner, m.width, group, plain + gated * split, (plain + gated * split) * m.ffn_bias),
            *_linear(f"{name}.down", m.width, inner, group, count, count * m.ffn_bias),
        ]

    return [
        Weight("token.weight", table, "embeddings"),
        Weight("position.weight", (m.learned_positions, m.width), "embeddings", m.has_positions),
        Weight("type.weight", (m.token_types, m.width), "embeddings", m.has_types),
        Weight("project.weight", (m.embedding_width, m.width), "embeddings", 2 * m.projected),
        *norm("embedding_norm", m.width, "embeddings", m.embedding_norm),
        *norm("norm1", m.width, "block", 1),
        *_linear("attention.qkv", queries + 2 * keys, m.width, "block", narrow * m.fused, biases * m.fused),
        *_linear("attention.q", queries, m.width, "block", narrow * split, biases * split),
        *_linear("attention.k", keys, m.width, "block", narrow * split, biases * split),
        *_linear("attention.v", keys, m.width, "block", narrow * split, biases * split),
        *_linear("attention.out", m.width, queries, "block", narrow, m.out_bias),
        *norm("attention.q_norm", head, "block", m.qk_norm),
        *norm("attention.k_norm", head, "block", m.qk_norm),
        Weight("attention.sinks", (m.heads,), "block", m.sinks),
        Weight("attention.query_down.weight", (rank, m.width), "block", latent),
        Weight("attention.query_norm.weight", (rank,), "block", latent),
        Weight("attention.query_up.weight", (queries, rank), "block", latent),
        Weight("attention.latent_down.weight", (m.latent_rank + m.rope_width, m.width), "block", latent),
        Weight("attention.latent_norm.weight", (m.latent_rank,), "block", latent),
        Weight("attention.latent_up.weight", (m.heads * (head - m.rope_width + m.value_width), m.latent_rank), "block", latent),
        Weight("attention.latent_out.weight", (m.width, m.heads * m.value_width), "block", latent),
        *norm("norm2", m.width, "block", m.block_norms - 1),
        *mlp("mlp", m.ffn_width, "dense", 1),
        Weight("mlp.gate_up", (m.experts, 2 * m.expert_width, m.width), "mixture", m.has_experts),
        Weight("mlp.down", (m.experts, m.width, m.expert_width), "mixture", m.has_experts),
        Weight("mlp.gate_up_bias", (m.experts, 2 * m.expert_width), "mixture", m.has_experts * m.ffn_bias),
        Weight("mlp.down_bias", (m.experts, m.width), "mixture", m.has_experts * m.ffn_bias),
        *_linear("mlp.router", m.experts, m.width, "mixture", m.has_experts, m.router_bias),
        *mlp("mlp.shared", m.expert_width * m.shared_experts, "mixture", m.has_shared),
        *norm("norm", m.width, "last", m.final_norm),
        Weight("head.weight", (getattr(m, "outputs", m.vocabulary), m.embedding_width), "last", 1 - tied),
        Weight("pooler.weight", (m.width, m.width), "last", m.pooler),
        Weight("pooler.bias", (m.width,), "last", m.pooler),
    ]  # fmt: skip


def learned(m) -> list[Weight]:
    """Those of `weights` that have a gradient: all but the biases by which a router chooses, which are buffers."""
    return [w for w in weights(m) if not (w.name == "mlp.router.bias" and m.corrected)]


def trained(m, lora) -> list[Weight]:
    """The tensors that a step trains: all weights, or with a `Lora` its matrices."""
    times = layers(m)
    found = adapters(m, lora.rank, lora.takes) if lora else learned(m)
    return [w for w in found if w.count and times[w.group]]


def numbers_of(m, lora, without: tuple[str, ...] = ()) -> int:
    """How many numbers a step trains; groups in `without` are left out."""
    return summed(m, lambda w: w.numbers, [w for w in trained(m, lora) if w.group not in without])


def buffered(m, gpus: int) -> int:
    """Numbers in Megatron's buffers, of weights and of gradients: each weight begins at a multiple of 64, and the end is one of 128.

    Source: Megatron-LM, megatron/core/optimizer/param_layout.py, `pad_param_start`, `pad_bucket_end`.
    """
    multiple = lcm(gpus, 128)
    return -(-summed(m, lambda w: -(-w.numbers // 64) * 64) // multiple) * multiple


def summed(m, each, found=None) -> int:
    """The sum of `each(weight)` over all tensors of a model, or over those in `found`."""
    times, found = layers(m), weights(m) if found is None else found
    return int(sum(w.count * times[w.group] * each(w) for w in found if w.count and times[w.group]))


def linears(m) -> list[tuple]:
    """(path, weight) of each linear layer of a block, in the model's order: those that adapters may be added to.

    A router in transformers' code is none: it multiplies by a parameter of its own.
    """
    times = layers(m)
    others = () if getattr(m, "family", "llama") else ("mlp.router.weight",)
    found = [w for w in weights(m) if w.group not in ENDS and times[w.group] and w.count and w.name not in others]
    return [(w.name.removesuffix(".weight"), w) for w in found if len(w.shape) == 2 and w.name.endswith(".weight")]


def quantized(numbers, up) -> list[tuple]:
    """(numbers, bytes per number) of each tensor that stores a weight of `numbers` numbers in NF4 with double quantization.

    These are the codes, two per byte; their table; an 8-bit scale per block; the table of these; an fp32 scale per block of
    scales; the scales' mean. Source: Dettmers et al. 2023, arXiv:2305.14314; bitsandbytes, functional.py, `quantize_4bit`.

    Args:
        up: a function of two numbers, their quotient rounded up.
    """
    blocks = up(numbers, NF4_BLOCK)
    return [(up(numbers, 2), 1), (16, 4), (blocks, 1), (256, 4), (up(blocks, SCALES_BLOCK), 4), (1, 4)]


def _up(a, b):
    return -(-a // b)


#: How a matrix is kept in fewer bits: a function of the weight, which gives (numbers, bytes of one) of each tensor that it becomes.
#: int8: a scale for each row. fp8: one for each block of 128 rows and columns, as DeepSeek-V3's checkpoint. nf4: as `quantized`.
PACKED = {
    "int8": lambda weight: [(weight.numbers, 1), (weight.shape[0], 4)],
    "fp8": lambda weight: [(weight.numbers, 1), (_blocks(weight), 4)],
    "nf4": lambda weight: quantized(weight.numbers, _up),
}


def _blocks(weight):
    """Blocks of a matrix, or of each expert's, that have a scale in fp8. Source: DeepSeek-AI 2024, arXiv:2412.19437, 3.3.2."""
    *experts, rows, columns = weight.shape
    return prod(experts) * _up(rows, FP8_BLOCK) * _up(columns, FP8_BLOCK)


def packed(m, kind: str) -> int:
    """Bytes of a model's weights of which the matrices are in fewer bits, a key of `PACKED`, and the rest in 16.

    In fp8 the experts' matrices are too, and routers are not: they are no linear layers in transformers' `FP8Linear`, `FP8Experts`.
    """
    matrices = {weight.name for _, weight in linears(m)}
    if kind == "fp8":
        matrices = matrices - {"mlp.router.weight"} | {w.name for w in weights(m) if len(w.shape) == 3}

    def size(weight):
        tensors = PACKED[kind](weight) if weight.name in matrices else [(weight.numbers, 2)]
        return sum(numbers * width for numbers, width in tensors)

    return summed(m, size)


def adapters(m, rank, takes) -> list[Weight]:
    """The two LoRA matrices of each linear layer whose path `takes` accepts: A of (rank, inputs), B of (outputs, rank).

    Args:
        m: as for `weights`. rank: a number or an expression.
    """
    return [
        Weight(f"{path}.lora_{letter}.weight", shape, weight.group)
        for path, weight in linears(m)
        if takes(path)
        for letter, shape in (("A", (rank, weight.shape[1])), ("B", (weight.shape[0], rank)))
    ]
