"""Inference: what one pass of Hugging Face's decoders takes over new tokens, with a cache of older ones.

There are two kinds of pass: a prefill takes a whole prompt with an empty cache, a decode step one token with all others in the
cache. No gradient is recorded, so a tensor goes as soon as the program no longer refers to it. The program is the source of
`reference/hugging_face`. Attention is the kernel that CUDA takes for 16 bits: flash attention where there is no mask, the
memory-efficient kernel where a window asks for one. Gemma 2 and gpt-oss have the scores themselves.
"""

from dataclasses import replace
from functools import lru_cache

from ..ask.choices import DTYPE_BYTES
from ..ask.setup import Setup
from ..catalog.decoders import decoder
from ..catalog.weights import layers, learned
from .attention import MASK_MULTIPLE
from .course import Course
from .letters import Letter, product
from .programs import Network, source
from .schedule import nested, stretched
from .stand_in import stored
from .structure import Blocks
from .tape import FP32, INT64, Piece, Tape, Type
from .tensors import view
from .titles import Naming
from .training import Fields, buffers, occurrences

#: The parts of an inference pass's memory.
PARTS = ("parameters", "buffers", "cache", "activations")
#: A pass divides nothing and trains nothing.
ALONE = Setup(batch=1, sequence=8)


class _Fields(Fields):
    LETTERS = Fields.LETTERS | {
        "window": "W_n",
    }  # fmt: skip


def letters(model, batch, tokens, before=0, stored=None, room=0) -> dict[str, int]:
    """The value of each letter, for `tokens` new tokens in each of `batch` sequences and `before` older ones.

    stored: older tokens in the tensors of layers with a window; by default all. Those of a prompt that is longer hold it whole until
    the next step. room: tokens that a static cache has room for; 0 for a cache that grows.
    """
    fields = {letter: getattr(model, field) for field, letter in _Fields.LETTERS.items()}
    return fields | {
        "B": batch,
        "S": tokens,
        "T": before + tokens,
        "T_0": before,
        "T_w": before if stored is None else stored,
        "T_m": room,
    }


def cached(model) -> list[tuple]:
    """(heads, width) of the two tensors that a layer caches for each token.

    They are keys and values; with latent attention (DeepSeek-AI 2024, arXiv:2405.04434, equations 9 to 13) the
    compressed latent, and the rotary part of the key, which all heads share.
    """
    if model.latent:
        return [(1, model.latent_rank), (1, model.rope_width)]
    return [(model.kv_heads, model.head_width)] * 2


def check(model, static=False) -> None:
    """Raise ValueError where a model's passes are not derived, naming the field. static: with a cache whose room does not grow."""
    kind = decoder(model)
    if model.head_width % 8 or model.head_width > 256:
        raise ValueError(
            f"Model.head_width: {model.head_width} of {model.name} is padded by the kernel of attention; allowed: multiples of 8 up to 256"
        )
    for name in ("width", "expert_width") if model.experts else ():
        if (size := getattr(model, name)) % 8:
            raise ValueError(
                f"Model.{name}: {size} of {model.name}, whose experts' matrices are multiplied in rows of 16 bytes; allowed: multiples of 8"
            )
    if model.chunked:
        raise ValueError(f"Model.chunked: True of {model.name}, whose cache of chunks is not derived; allowed: False")
    if model.window == 1:  # what it slices off is [1 - window:], which is nothing
        raise ValueError(
            f"Model.window: 1 of {model.name}, of which transformers' cache keeps all tokens, is not derived; allowed: 0, or from 2 on"
        )
    if static and kind == "opt":
        raise ValueError(
            f"Model.name: {model.name} with a static cache: Hugging Face's OPT reads from it how long it is, which a dry run cannot; "
            "allowed: cache 'dynamic' or 'paged'"
        )
    if static and model.window:
        raise ValueError(
            f"Model.window: {model.window} of {model.name} with a static cache is not derived; allowed: 0, or cache 'dynamic' or 'paged'"
        )


def course(model, values, dtype="bf16") -> Course:
    """The course of a pass for the values of `letters`: a prefill, or with a cache a decode step. dtype: of weights and cache, `bf16` or `fp16`.

    They differ where scores exist: a softmax in fp32 casts bf16 before it, and reads fp16 as it is.

    Raises:
        ValueError: where no program here is the model's.
    """
    tokens, before, window, room = values["S"], values["T_0"], model.window, values["T_m"]
    check(model, room > 0)
    if room:  # all its room is attended to, but by a prompt, whose keys are cut out of it
        masked, attended = tokens == 1, room
    else:
        masked = 0 < window <= values["T"]
        attended = min(before, window - 1) + tokens if masked and before else before + tokens
    padded = masked and attended % MASK_MULTIPLE > 0
    alike = replace(model, name="", published=None, source="")
    return _course(alike, dtype, before > 0, values["B"] == 1, tokens == 1, masked, padded, room > 0)


@lru_cache(128)
def _course(model, dtype, decode, single, alone, masked, padded, static):
    """Trace a pass of few layers, with token counts that take the same branches."""
    tape, fields = Tape(), _Fields(model)
    tape.grad, tape.phase = False, "decode" if decode else "prefill"
    rows = MASK_MULTIPLE // 2 if padded else MASK_MULTIPLE
    new, before = Letter(1 if alone else rows, "S"), Letter(2 * rows, "T_0") if decode else 0
    within = Letter(2 * rows, "T_w") if decode else 0  # of layers with a window
    room, fields.window = Letter(3 * rows if padded else 2 * rows, "T_m"), Letter(rows if masked else 99, "W_n")
    every = model.full_every or 1  # blocks that stand in one turn of a loop
    found = Blocks(Letter(model.layers, "L"), ALONE, every, fields.dense_layers if model.experts else 0)
    (blocks,) = found.segments
    half = Type(dtype, DTYPE_BYTES[dtype])
    network = Decoder(tape, fields, decoder(model), blocks, every, found.dense, half)
    batch = Letter(1 if single else 2, "B")
    # Buffers are in 16 bits, as the module is made, unless it says another type; in fp32 where a checkpoint is loaded.
    types = half, FP32, getattr(network.module, "router_type", None) or half
    rest = [*_weights(model, fields), *buffers(fields, network.module, *(type.width for type in types))]
    cache, layer = [], source("hugging_face.cache")
    for i in range(blocks):
        near, eager = model.windowed(i), model.eager_alone
        kept = layer.Room(room) if static else layer.Window(fields.window, eager) if near else layer.Growing(eager)
        cache.append(kept)
        if decode:
            loop = found.block({"block": i // every})
            pieces = _held(kept, fields, batch, room if static else within if near else before, tape, half)
            times = loop.times if loop and i // every == loop.middle else 1
            rest += [Piece(p.numbers, p.width, p.part, times) for p in pieces]
    tokens = stored(tape, (batch, Letter(2 * rows, "T")), INT64)
    rest.append(Piece(product(tokens.shape), INT64.width, "activations"))
    fresh, tape.naming = view(tokens, (batch, new), tokens.strides), Naming()
    out = source("hugging_face.decoder").extended(network.module, tokens, fresh, cache)  # noqa: F841
    tape.mark("end")
    tape.running = False
    for kept in cache:
        for x in (kept.keys, kept.values, getattr(kept, "width", None), getattr(kept, "counted", None)):
            if x is not None:
                x.storage.assign("cache")
    repeated = {"block": found.block}
    return Course(nested(stretched(tape.operations, repeated), repeated), rest, [], PARTS)


def _held(layer, fields, batch, tokens, tape, half):
    """Fill a layer's cache with what it holds before the pass. Returns its pieces."""
    tensors = {
        name: ((batch, heads, tokens, width), half)
        for name, (heads, width) in zip(("keys", "values"), cached(fields), strict=True)
    }
    for name in ("width", "counted"):
        if hasattr(layer, name):
            tensors[name] = (), INT64
    pieces = []
    for name, (shape, type) in tensors.items():
        pieces.append(Piece(product(shape), type.width, "cache"))
        setattr(layer, name, stored(tape, shape, type, pieces[-1:]))
    layer.seen = getattr(layer, "counted", tokens)
    if hasattr(layer, "width"):
        layer.keys, layer.values = (x[:, :, 1 - layer.window :] for x in (layer.keys, layer.values))
    return pieces


class Decoder(Network):
    """A decoder of Hugging Face's on a tape.

    Args:
        tape, model: as a network's. kind: which of Hugging Face's. blocks: how many are traced. every: how many stand in one turn of
            a loop. first: how many of those that are traced have no experts. half: the type of weights and cache.
    """

    losses, casts = (), None

    def __init__(self, tape, model, kind, blocks, every, first, half):
        self.kind, self.every, self.buffer = kind, every, half
        super().__init__(tape, model, ALONE, [blocks], (), half, dense=first)

    def _built(self, model, setup):
        module = source("hugging_face.decoders").DECODERS[self.kind](model)
        module.on(self)
        return module


def _weights(model, fields):
    times = occurrences(fields)
    for weight in learned(fields):
        if weight.count and layers(model)[weight.group]:
            yield Piece(product(weight.shape), DTYPE_BYTES["bf16"], "parameters", weight.count * times[weight.group])
