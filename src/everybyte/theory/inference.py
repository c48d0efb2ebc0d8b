"""Inference as programs of operations: what one pass of Hugging Face's models takes over new tokens, with a cache of older ones.

There are two kinds of pass: a prefill takes a whole prompt with an empty cache, a decode step one token with all others in the
cache. No gradient is recorded, so a tensor goes as soon as the program no longer refers to it. The programs follow transformers
5.23, `models/*/modeling_*.py`, line by line: a variable that is rebound,
and a function that returns, free what they held. Attention is the kernel that CUDA takes for 16 bits: flash attention where there
is no mask, the memory-efficient kernel where a window asks for one.
"""

from dataclasses import replace
from functools import lru_cache

from ..catalog.decoders import decoder
from ..catalog.weights import layers, weights
from .course import Course
from .letters import Letter, least, over, product, up
from .schedule import Loop, nested, stretched
from .tape import BOOL, FP32, INT32, INT64, Piece, Storage, Tape, Type
from .tensors import Tensor, contiguous_strides, new, several
from .training import Fields

#: The parts of an inference pass's memory.
PARTS = ("parameters", "buffers", "cache", "activations")
#: The memory-efficient kernel takes masks whose rows are multiples of so many numbers.
MASK_MULTIPLE = 16
#: A number in 16 bits: bf16 or fp16.
HALF = Type("bf16", 2)


class _Fields(Fields):
    LETTERS = Fields.LETTERS | {
        "query_rank": "r_q", "latent_rank": "r_c", "rope_width": "D_r", "value_width": "D_v", "dense_layers": "L_d",
        "shared_experts": "E_s", "window": "W_n",
    }  # fmt: skip


def letters(model, batch, tokens, before=0, stored=None, room=0) -> dict[str, int]:
    """The value of each letter: `tokens` new ones in each of `batch` sequences, and `before` older ones.

    stored: for how many of these the cache's tensors have room; by default for all. Of a window shorter than a prompt they have the
    whole prompt until the next step. room: tokens that a static cache has room for; 0 for one that grows.
    """
    fields = {letter: getattr(model, field) for field, letter in _Fields.LETTERS.items()}
    return fields | {
        "B": batch,
        "S": tokens,
        "T": before + tokens,
        "T_0": before if stored is None else stored,
        "T_m": room,
    }


def cached(model) -> list[tuple]:
    """(heads, width) of each of the two tensors that a layer of a model keeps for each token.

    Keys and values of the key and value heads; with latent attention (DeepSeek-AI 2024, arXiv:2405.04434, equations 9 to 13) the
    compressed latent, and the rotary part of the key, which all heads share.
    """
    if model.latent:
        return [(1, model.latent_rank), (1, model.rope_width)]
    return [(model.kv_heads, model.head_width)] * 2


def program(model, static=False) -> type:
    """The program of a model's passes. static: with a cache whose room does not grow.

    Raises:
        ValueError: where there is none, naming the field.
    """
    found = PROGRAMS.get(decoder(model), Llama)
    if model.head_width % 8 or model.head_width > 256:
        raise ValueError(
            f"Model.head_width: {model.head_width} of {model.name} is padded by the kernel of attention; allowed: multiples of 8 up to 256"
        )
    if static and found is OPT:
        raise ValueError(
            f"Model.name: {model.name} with a static cache: Hugging Face's OPT reads from it how long it is, which a dry run cannot; "
            "allowed: cache 'dynamic' or 'paged'"
        )
    if static and model.window:
        raise ValueError(
            f"Model.window: {model.window} of {model.name} with a static cache is not derived; allowed: 0, or cache 'dynamic' or 'paged'"
        )
    return found


def course(model, values) -> Course:
    """The course of a pass for the values of `letters`: a prefill, or with a cache a decode step.

    Raises:
        ValueError: where no program here is the model's.
    """
    tokens, before, window, room = values["S"], values["T_0"], model.window, values["T_m"]
    program(model, room > 0)
    if room:  # all its room is attended to, but by a prompt, whose keys are cut out of it
        masked, attended = tokens == 1, room
    else:
        masked = 0 < window <= values["T"]
        attended = min(before, window - 1) + tokens if masked and before else before + tokens
    padded = masked and attended % MASK_MULTIPLE > 0
    return _course(
        replace(model, name="", published=None, source=""), before > 0, tokens == 1, masked, padded, room > 0
    )


@lru_cache(128)
def _course(model, decode, alone, masked, padded, static):
    """Run a pass of as many layers as tell all apart, on numbers that tell a prompt from one token."""
    tape, fields = Tape(), _Fields(model)
    tape.grad, tape.phase = False, "decode" if decode else "prefill"
    tokens, before = Letter(1 if alone else 8, "S"), Letter(8, "T_0") if decode else 0
    number = Letter(model.layers, "L")
    loops = [Loop.of(number, 3, 1)]
    if model.experts and model.dense_layers:
        loops = [Loop.of(fields.dense_layers, 3, 1), Loop.of(number - fields.dense_layers, 3, 1)]
    network = program(model)(tape, fields, tokens, before, masked, padded, static)
    rest = [*_weights(model, fields, number), *network.buffers()]
    rest.append(Piece(product((network.b, network.total)), INT64.width, "activations"))  # the tokens
    caches = []
    for group, loop in enumerate(loops):
        for turn in range(loop.turns):
            held = [_held(tape, *kept) for kept in network.kept(before)] if decode else []
            times = loop.times if turn == loop.middle else 1
            rest += [Piece(p.numbers, p.width, p.part, times) for x in held for p in x.storage.pieces]
            mixture = bool(model.experts) and group == len(loops) - 1
            caches.append(((("segment", group), ("block", turn)), held, mixture))
    network.run(caches)
    tape.running = False
    found = {"segment": None, "block": lambda place: loops[place.get("segment") or 0]}
    return Course(nested(stretched(tape.operations, found), found), rest, [], PARTS)


def _held(tape, shape, type):
    """A tensor of the cache that stands before the pass."""
    return Tensor(shape, contiguous_strides(shape), Storage(tape, [Piece(product(shape), type.width, "cache")]), type)


def _weights(model, fields, number):
    times = {"embeddings": 1, "last": 1, "block": number, "dense": number, "mixture": 0}
    if model.experts:
        times |= {"dense": fields.dense_layers, "mixture": number - fields.dense_layers}
    for weight in weights(fields):
        if weight.count and layers(model)[weight.group] and weight.name != "mlp.router.bias":  # which is a buffer
            yield Piece(product(weight.shape), HALF.width, "parameters", weight.count * times[weight.group])


class Network:
    """What the programs share.

    Attributes:
        b: sequences. t: new tokens in each. total: tokens in each. all: those whose keys are attended to. masked: by a window, or where a room is not full.
        padded: whether the mask is. static: whether the cache has room for all from the first pass on.
    """

    def __init__(self, tape, model, t, before, masked, padded, static):
        self.tape, self.model, self.t, self.masked, self.padded = tape, model, t, masked, padded
        self.b, self.total, self.all = Letter(2, "B"), Letter(16, "T"), t + before
        self.static, self.room = static, Letter(24, "T_m")
        if static and (masked or model.latent):
            self.all = self.room
        elif masked and before:
            self.all = least(before, model.window - 1) + t

    def new(self, name, *shape, type=HALF, part=None):
        """A fresh tensor."""
        return new(self.tape, name, shape, type, part=part)

    def like(self, name, x, type=None):
        """A fresh tensor of a shape."""
        return new(self.tape, name, x.shape, type or x.type)

    def linear(self, name, x, outputs):
        """x W^T, with or without a bias."""
        return self.new(name, *x.shape[:-1], outputs)

    def kept(self, tokens):
        """(shape, type) of a layer's cache for so many tokens; of a window also its width, as a tensor, of a room how much is taken."""
        tokens = self.room if self.static else tokens
        found = [((self.b, heads, tokens, width), HALF) for heads, width in cached(self.model)]
        return found + [((1,), INT64)] * (self.model.window > 0) + [((), INT64)] * self.static

    def buffers(self):
        """What stands beside the weights: pieces."""
        return []

    def run(self, caches):
        """A pass, and what `generate` makes of it: the next token of each sequence, by the largest logit.

        Source: `generation/utils.py`, `_sample`, without processors of logits, which are made for the last token alone.
        """
        x = self.hidden(caches)
        logits = self.new("head", self.b, 1, self.model.vocabulary)
        del x
        wide = self.new("logits in fp32", self.b, self.model.vocabulary, type=FP32)
        del logits
        token = self.new("largest", self.b, type=INT64)
        del wide
        tokens = self.new("tokens joined", self.b, self.total + 1, type=INT64)
        del token
        self.tape.mark("end")
        return tokens

    def hidden(self, caches):
        """From the tokens to the last norm's output."""
        x, *others = self.embedded()  # others: what the model's own variables hold until it returns
        for place, held, mixture in caches:
            with self.tape.within(place=place):
                x = self.block(x, held, mixture, *others)
        return self.norm("last norm", x)

    def update(self, held):
        """A layer's cache with the new tokens, allocated beside the old. Source: `cache_utils.py`, `DynamicLayer.update`."""
        if self.static:
            return self.put(held)
        keys, values, *window = self.kept(self.all)
        if not held:
            held += [None, None, *(self.new("window", *shape, type=type, part="cache") for shape, type in window)]
        joined = self.new("keys joined", *keys[0], part="cache")
        if not window:  # with one, both old tensors stand until both are joined
            held[0] = joined
        held[:2] = joined, self.new("values joined", *values[0], part="cache")

    def put(self, held):
        """The new tokens, put into their room, which the first pass makes. Source: `cache_utils.py`, `StaticLayer.update`."""
        if not held:
            names = "keys' room", "values' room", "tokens counted"
            kept = zip(names, self.kept(None), strict=True)
            held += [self.new(name, *shape, type=type, part="cache") for name, (shape, type) in kept]
        self.numbered("places", self.t)

    def attention(self):
        """Attention's result, heads side by side; what the kernel makes besides goes at once. Source: `sdpa_attention_forward`."""
        model = self.model
        rows = self.b, model.heads, self.t
        if self.masked:
            return self.masked_attention(int(model.heads) // int(model.kv_heads))
        shapes = ((*rows, model.head_width), HALF), (rows, FP32), ((2,), INT64), ((), INT64)
        out = several(self.tape, "flash attention", *shapes)[0]
        return self.like("heads merged", out) if self.apart and self.t > 1 else out

    #: Whether a query's heads lie one after another, as `torch.cat` leaves them, and flash attention's result like them.
    apart = False

    def masked_attention(self, groups):
        """The memory-efficient kernel: keys and values repeated for a prompt, and the mask as numbers to add."""
        b, model = self.b, self.model
        several_heads = (
            groups > 1 and model.kv_heads > 1
        )  # one for all the groups is read again by a view, and its results lie in a row
        repeated = [
            self.new(f"{name} repeated", b, model.heads, self.all, model.head_width)
            for name in ("keys", "values") * (several_heads and self.t > 1)
        ]
        bias = self.bias()
        out = self.new("efficient attention", b, self.t, model.heads, model.head_width)
        del repeated, bias
        return self.like("heads merged", out) if several_heads and self.t == 1 else out

    def bias(self):
        """The mask as numbers to add."""
        infinity, zero = self.new("minus infinity", 1), self.new("zero", 1)
        bias = self.new("mask as numbers", self.b, 1, self.t, self.all)
        del infinity, zero
        if self.padded:  # Source: `native/transformers/attention.cpp`, `pad_bias`
            bias = self.new(
                "mask padded", self.b, self.model.heads, self.t, MASK_MULTIPLE * up(self.all, MASK_MULTIPLE)
            )
        return bias

    def mask(self):
        """Which keys each new token attends to. Source: `masking_utils.py`, `sliding_window_causal_mask_function`."""
        batch, head = self.new("sequences", self.b, type=INT64), self.new("heads", 1, type=INT64)
        queries = self.numbered("queries", self.t)
        keys = self.numbered("keys", self.all)
        if self.static:  # `causal_mask_function`
            mask = self.new("mask", self.t, self.all, type=BOOL)
            del batch, head, queries, keys
            return mask
        one = self.new("true", 1, type=BOOL)
        first = self.like("first that is attended to", queries)
        inside = self.new("inside the window", self.t, self.all, type=BOOL)
        del first
        inside = self.like("inside and true", inside)
        del one
        past = self.like("past", inside)
        mask = self.like("mask", inside)
        del batch, head, queries, keys, inside, past
        return mask

    def numbered(self, name, count):
        """So many numbers from any on."""
        counted = self.new(name, count, type=INT64)
        return self.like(f"{name} shifted", counted)

    def layer_norm(self, name, x):
        """Its result; each token's mean and deviation go at once."""
        rows = *x.shape[:-1], 1
        return several(self.tape, name, (x.shape, HALF), (rows, FP32), (rows, FP32))[0]

    norm = layer_norm


class GPT2(Network):
    """Source: `models/gpt2/modeling_gpt2.py`."""

    def embedded(self):
        """The sum of two tables' rows."""
        rows = self.new("token rows", self.b, self.t, self.model.width)
        positions = self.numbered("positions", self.t)
        learned = self.new("position rows", 1, self.t, self.model.width)
        x = self.like("embedding", rows)
        return x, rows, positions, learned, self.mask() if self.masked else None

    def block(self, x, held, mixture, *others):
        """One layer."""
        residual = x
        x = self.layer_norm("norm 1", x)
        attended = self.attend(x, held)
        x = self.like("residual 1", residual)
        residual = x
        x = self.layer_norm("norm 2", x)
        out = self.mlp(x)
        x = self.like("residual 2", residual)
        del attended, out
        return x

    def attend(self, x, held):
        """Attention."""
        qkv = self.linear("qkv", x, 3 * self.model.width)
        self.update(held)
        out = self.attention()
        out = self.linear("out", x, self.model.width)
        del qkv
        return out

    def mlp(self, x):
        """The MLP, with GELU's approximation as Hugging Face has it. Source: `activations.py`, `NewGELUActivation`."""
        x = self.linear("up", x, self.model.ffn_width)
        x = self.gelu(x)
        return self.linear("down", x, self.model.width)

    def gelu(self, x):
        """A kernel, or its approximation as a chain of operations."""
        if self.model.activation != "gelu_tanh":
            return self.like("gelu", x)
        half = self.like("gelu: half", x)
        inner = self.like("gelu: cube", x)
        for step in ("scaled cube", "sum", "scaled sum", "tanh", "plus one"):
            inner = self.like(f"gelu: {step}", x)
        out = self.like("gelu", x)
        del half, inner
        return out


class OPT(Network):
    """Source: `models/opt/modeling_opt.py`."""

    def embedded(self):
        """The sum of two tables' rows; positions are counted by a mask of ones."""
        rows = self.new("token rows", self.b, self.t, self.model.width)
        mask = self.new("ones", self.b, self.total, type=FP32)
        positions = self.like("ones counted", mask)
        masked = self.like("positions masked", mask)
        less = self.like("positions less one", mask)
        del masked
        positions = self.like("positions", less, INT64)
        del less
        shifted = self.new("positions shifted", self.b, self.t, type=INT64)
        learned = self.like("position rows", rows)
        del shifted
        return self.like("embedding", rows), rows, mask, positions, learned

    def block(self, x, held, mixture, *others):
        """One layer."""
        residual = x
        x = self.layer_norm("norm 1", x)
        x = self.attend(x, held)
        x = self.like("residual 1", residual)
        residual = x
        x = self.layer_norm("norm 2", x)
        x = self.linear("up", x, self.model.ffn_width)
        x = self.like("relu", x)
        x = self.linear("down", x, self.model.width)
        return self.like("residual 2", residual)

    def attend(self, x, held):
        """Attention."""
        q = self.linear("q", x, self.model.width)
        q = self.like("q scaled", q)
        k, v = self.linear("k", x, self.model.width), self.linear("v", x, self.model.width)
        self.update(held)
        del k, v
        out = self.attention()
        out = self.linear("out", x, self.model.width)
        del q
        return out


class Rotary(Network):
    """What models with rotary positions share."""

    @property
    def turned(self):
        """How much of each head turns."""
        return self.model.head_width

    def buffers(self):
        """The frequencies, twice: as they are, and as they were at first; Gemma's factor of the embeddings."""
        found = [Piece(over(self.turned, 2), FP32.width, "buffers", 2)]
        return found + [Piece(1, HALF.width, "buffers")] * self.model.scaled_embedding

    def embedded(self):
        """A table's rows, and the angles' cosines and sines."""
        rows = self.rows()
        positions = self.numbered("positions", self.t)
        mask = self.mask() if self.masked else None
        return rows, *self.angles(), rows, positions, mask

    def rows(self):
        """A table's rows."""
        return self.new("token rows", self.b, self.t, self.model.width)

    def angles(self):
        """Cosine and sine of each position's angles. Source: `LlamaRotaryEmbedding.forward`."""
        position = self.new("positions in fp32", 1, self.t, 1, type=FP32)
        angles = self.new("angles", 1, self.t, over(self.turned, 2), type=FP32)
        del position
        twice = self.new("angles twice", 1, self.t, self.turned, type=FP32)
        found = []
        for name in ("cosine", "sine"):
            plain = self.like(name, twice)
            found.append(self.like(f"{name} scaled", plain))
            del plain
        out = [self.like(f"{name} cast", twice, HALF) for name in ("cosine", "sine")]
        del angles, found
        return out

    def rotated(self, name, shape):
        """A head turned by its position: x cos + (-x2, x1) sin. Source: `apply_rotary_pos_emb`."""
        first = self.new(f"{name} cosine", *shape)
        half = self.new(f"{name} half negated", *shape[:-1], over(shape[-1], 2))
        swapped = self.new(f"{name} halves swapped", *shape)
        del half
        second = self.new(f"{name} sine", *shape)
        del swapped
        out = self.new(f"{name} rotated", *shape)
        del first, second
        return out

    def heads(self, number):
        """The shape of so many heads."""
        return self.b, number, self.t, self.turned

    def rms_norm(self, name, x):
        """In fp32, operation by operation. Source: `LlamaRMSNorm.forward`, `GemmaRMSNorm.forward`."""
        rows, wide = (*x.shape[:-1], 1), self.like(f"{name}: fp32", x, FP32)
        square = self.like(f"{name}: square", wide)
        mean = self.new(f"{name}: mean", *rows, type=FP32)
        del square
        shifted = self.new(f"{name}: plus epsilon", *rows, type=FP32)
        if self.model.norm_offset:
            del mean
        root = self.new(f"{name}: inverse root", *rows, type=FP32)
        del shifted
        wide = self.like(f"{name}: normed", wide)
        del root
        if not self.model.norm_offset:
            narrow = self.like(f"{name}: cast", wide, HALF)
            out = self.like(name, narrow)
            del narrow, mean
            return out
        weight = self.new(f"{name}: weight in fp32", x.shape[-1], type=FP32)
        one = self.like(f"{name}: 1 + weight", weight)
        del weight
        wide = self.like(f"{name}: times weight", wide)
        del one
        return self.like(name, wide, HALF)

    norm = rms_norm


class Llama(Rotary):
    """Llama, Mistral, Qwen 2.5 and 3, Gemma, Phi-3, Mixtral. Source: `models/llama/modeling_llama.py` and its like."""

    @property
    def apart(self):
        """Phi-3 joins the turned part of each head with the rest, though nothing is left."""
        return self.model.fused

    def rows(self):
        """A table's rows, in Gemma times the root of the width."""
        rows = super().rows()
        return self.like("embedding scaled", rows) if self.model.scaled_embedding else rows

    def block(self, x, held, mixture, *others):
        """One layer."""
        residual = x
        x = self.norm("norm 1", x)
        x = self.attend(x, held)
        x = self.like("residual 1", residual)
        residual = x
        x = self.norm("norm 2", x)
        x = self.mixture(x) if mixture else self.mlp(x, self.model.ffn_width)
        return self.like("residual 2", residual)

    def attend(self, x, held):
        """Attention."""
        model, heads = self.model, self.model.heads
        if model.fused:
            qkv = self.linear("qkv", x, (heads + 2 * model.kv_heads) * model.head_width)
            q = self.joined("q", heads)
            k = self.joined("k", model.kv_heads)
            self.update(held)
            del k
            out = self.attention()
            out = self.linear("out", x, model.width)
            del q, qkv
            return out
        q, k = self.projected("q", x, heads), self.projected("k", x, model.kv_heads)
        v = self.linear("v", x, model.kv_heads * model.head_width)
        q, k = self.rotated("q", self.heads(heads)), self.rotated("k", self.heads(model.kv_heads))
        self.update(held)
        del k, v
        out = self.attention()
        out = self.linear("out", x, model.width)
        del q
        return out

    def projected(self, name, x, heads):
        """Queries or keys, normed head by head where the model does so."""
        out = self.linear(name, x, heads * self.model.head_width)
        if not self.model.qk_norm:
            return out
        shape = self.b, self.t, heads, self.model.head_width
        return self.rms_norm(f"{name} norm", Tensor(shape, contiguous_strides(shape), out.storage, HALF))

    def joined(self, name, heads):
        """The turned part of each head, and the rest, joined: a copy though nothing is left."""
        turned = self.rotated(name, self.heads(heads))
        out = self.new(f"{name} joined", self.b, heads, self.t, self.model.head_width)
        del turned
        return out

    def mlp(self, x, inner, name=""):
        """act(gate) * up, then down."""
        gate = self.linear(f"{name}gate", x, 2 * inner if self.model.fused else inner)
        active = self.new(f"{name}activation", *x.shape[:-1], inner)
        if not self.model.fused:
            del gate
            up = self.linear(f"{name}up", x, inner)
        both = self.like(f"{name}product", active)  # noqa: F841  lives until the product below is made
        if not self.model.fused:
            del up
        del active
        return self.linear(f"{name}down", x, self.model.width)

    def mixture(self, x):
        """Experts without dropped tokens. Source: `MixtralTopKRouter.forward`, `integrations/moe.py`."""
        logits, scores, chosen = self.router(x)
        return self.experts(x)

    def router(self, x):
        """Each token's scores, those that are chosen, and their numbers."""
        model, tokens = self.model, self.b * self.t
        logits = self.new("router", tokens, model.experts)
        wide = self.like("router in fp32", logits, FP32)
        scores = self.like("router softmax", wide)
        del wide
        visits = tokens, model.experts_per_token
        values, numbers = several(self.tape, "largest scores", (visits, FP32), (visits, INT64))
        total = self.new("their sum", tokens, 1, type=FP32)
        del total, scores
        return logits, values, numbers

    def experts(self, x):
        """All experts by grouped products. Source: `grouped_mm_experts_forward`."""
        model = self.model
        visits = self.b * self.t * model.experts_per_token
        ids, order = several(self.tape, "visits sorted", ((visits,), INT64), ((visits,), INT64))
        rows = self.like("their tokens' numbers", order)
        gathered = self.new("tokens gathered", visits, model.width)
        del rows
        weights = self.new("scores gathered", visits, type=FP32)
        numbers = self.like("experts' numbers", ids, INT32)
        counts = self.new("visits counted", model.experts, type=INT32)
        offsets = self.like("visits added up", counts)
        out = self.new("experts' gate and up", visits, 2 * model.expert_width)
        active = self.new("experts' activation", visits, model.expert_width)
        out = self.like("experts' product", active)
        del active
        out = self.new("experts' down", visits, model.width)
        weighted = self.like("experts weighted", out, FP32)
        inverse = self.like("order inverted", order)
        count = self.like("visits numbered", order)
        del count
        weighted = self.like("experts in order", out, FP32)
        total = self.new("experts added", self.b * self.t, model.width, type=FP32)
        result = self.like("experts cast", total, HALF)
        del ids, gathered, weights, numbers, offsets, inverse, total, weighted, counts
        return result


class NeoX(Rotary):
    """Pythia. Source: `models/gpt_neox/modeling_gpt_neox.py`."""

    norm, apart = Network.layer_norm, True

    @property
    def turned(self):
        """How much of each head turns."""
        return over(self.model.head_width * self.model.rotary_percent, 100)

    def block(self, x, held, mixture, *others):
        """One layer: attention and MLP beside one another."""
        attended = self.attend(self.layer_norm("norm 1", x), held)
        out = self.mlp(self.layer_norm("norm 2", x))
        both = self.like("MLP and attention", x)
        result = self.like("residual", x)
        del attended, out, both
        return result

    def attend(self, x, held):
        """Attention."""
        heads = self.model.heads
        qkv = self.linear("qkv", x, 3 * self.model.width)
        q, k = self.rotated("q", self.heads(heads)), self.rotated("k", self.heads(heads))
        q = self.new("q joined", self.b, heads, self.t, self.model.head_width)
        k = self.like("k joined", q)
        self.update(held)
        del k
        out = self.attention()
        out = self.linear("out", x, self.model.width)
        del q, qkv
        return out

    def mlp(self, x):
        """The MLP."""
        inner = self.linear("up", x, self.model.ffn_width)
        inner = self.like("gelu", inner)
        return self.linear("down", x, self.model.width)


class Latent(Llama):
    """DeepSeek-V3. Source: `models/deepseek_v3/modeling_deepseek_v3.py`."""

    apart = True

    @property
    def turned(self):
        """How much of each head turns."""
        return self.model.rope_width

    def buffers(self):
        """The frequencies, and each router's biases: in 16 bits, as the module is made; in fp32 where a checkpoint is loaded."""
        model = self.model
        routers = Letter(model.layers, "L") - model.dense_layers
        return [*super().buffers(), Piece(model.experts, HALF.width, "buffers", routers)]

    def attend(self, x, held):
        """Latent attention: what is cached is compressed, and expanded for every pass."""
        model, (b, t) = self.model, (self.b, self.t)
        q = self.normed("q down", x, model.query_rank)
        q = self.new("q up", b, t, model.heads * model.head_width)
        latent = self.linear("latent down", x, model.latent_rank + model.rope_width)
        normed = self.rms_norm("latent norm", self.view(latent, b, t, model.latent_rank))
        turned = self.interleaved("q", model.heads)
        rotary = self.interleaved("k", 1)
        self.update(held)
        del normed, rotary
        query = self.new("q joined", b, model.heads, t, model.head_width)
        expanded = self.new(
            "latent up", b, self.all, model.heads * (model.head_width - model.rope_width + model.value_width)
        )
        keys = self.new("keys", b, model.heads, self.all, model.head_width)
        if int(model.value_width) == int(model.head_width) and not self.masked:
            out = self.attention()
        else:
            bias = self.bias() if self.masked else None
            out = self.new("efficient attention", b, t, model.heads, model.value_width)
            del bias
        out = self.linear("out", x, model.width)
        del q, latent, turned, query, expanded, keys
        return out

    def normed(self, name, x, outputs):
        """A product and its norm."""
        return self.rms_norm(f"{name} norm", self.linear(name, x, outputs))

    def view(self, x, *shape):
        """Some of the numbers of a tensor."""
        return Tensor(shape, contiguous_strides(shape), x.storage, x.type)

    def interleaved(self, name, heads):
        """A head turned by its position, pair by pair. Source: `apply_rotary_pos_emb_interleave`."""
        half = self.b, heads, self.t, over(self.turned, 2)
        sums = []
        for sign in ("-", "+"):
            first, second = self.new(f"{name} cosine", *half), self.new(f"{name} sine", *half)
            sums.append(self.new(f"{name} {sign}", *half))
            del first, second
        out = self.new(f"{name} rotated", self.b, heads, self.t, self.turned)
        del sums
        return out

    def mixture(self, x):
        """Experts that are chosen, and those that every token visits. Source: `DeepseekV3MoE.forward`."""
        logits, scores, numbers = self.router(x)
        out = self.experts(x)
        shared = self.mlp(x, self.model.expert_width * self.model.shared_experts, "shared ")
        result = self.like("experts and shared", x)
        del out, shared
        return result

    def router(self, x):
        """Groups of experts are chosen before experts. Source: `DeepseekV3TopkRouter.forward`."""
        model, tokens = self.model, self.b * self.t
        groups, chosen = (8, 4) if model.experts % 8 == 0 and model.experts >= 16 else (1, 1)
        each, grouped, visits = (tokens, model.experts), (tokens, groups), (tokens, model.experts_per_token)
        wide = self.new("router input in fp32", tokens, model.width, type=FP32)
        weight = self.new("router weight in fp32", model.experts, model.width, type=FP32)
        logits = self.new("router", *each, type=FP32)
        del wide, weight
        scores = self.like("router sigmoid", logits)
        choice = self.like("scores for choice", logits)
        best, _ = several(self.tape, "two largest of each group", ((*grouped, 2), FP32), ((*grouped, 2), INT64))
        del _
        total = self.new("groups' scores", *grouped, type=FP32)
        del best
        _, index = several(self.tape, "largest groups", ((tokens, chosen), FP32), ((tokens, chosen), INT64))
        del _
        mask = self.like("groups' mask", total)
        spread = self.new("groups' mask spread", *each, type=FP32) if groups > 1 else mask
        flags = self.new("mask as flags", *each, type=BOOL)
        others = self.like("mask inverted", flags)
        del flags
        choice = self.like("scores masked", logits)
        del others
        _, numbers = several(self.tape, "largest scores", (visits, FP32), (visits, INT64))
        del _
        gathered = self.new("their scores", *visits, type=FP32)
        sums = self.new("their sum", tokens, 1, type=FP32)
        safe = self.like("their sum plus epsilon", sums)
        del sums
        out = self.like("scores scaled", gathered)
        del scores, choice, total, index, mask, spread, gathered, safe
        return logits, out, numbers


#: transformers' `model_type` -> its program; the others have Llama's.
PROGRAMS = {"gpt2": GPT2, "opt": OPT, "gpt_neox": NeoX, "deepseek_v3": Latent}
