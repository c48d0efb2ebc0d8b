"""What of a setup does not go with a model: tried by whatever is given both."""

from math import prod

from ..ask.choices import DTYPE_BYTES, LIBRARIES, OWN, PRECISIONS, TENSOR_OPTIMIZERS
from ..ask.mesh import Part, divided, worst_routing
from ..ask.schedules import TWO_STAGES
from ..catalog.weights import linears, trained
from .row import Rule, only, table
from .setups import BESIDE_MESH, FSDP, by_torchao


def _impls(s):
    """Implementations of the optimizer that are counted over divided weights."""
    return TENSOR_OPTIMIZERS.get(s.optimizer, ())


def _uneven(s, m):
    """(size's name, size, whose, what is left over) of the first that `tensor` does not divide; None where there is none."""
    whose = dict.fromkeys(divided(m), f" of {m.name}") | {"sequence": ""}
    sizes = divided(m) | ({"sequence": s.own_sequence} if s.mesh.sequence_parallel else {})
    left = ((name, size, whose[name], size % s.mesh.tensor) for name, size in sizes.items())
    return next((one for one in left if one[-1]), None)


def _even(s, m):
    (name, size, *_), parts = _uneven(s, m), s.mesh.tensor
    divisors = [d for d in range(1, size + 1) if size % d == 0]
    near = [max(d for d in divisors if d < parts), *[d for d in divisors if d > parts][:1]]
    sizes = [n for n in (size - size % parts, size + parts - size % parts) if n]
    return f"{' or '.join(map(str, near))}, or {name} of {' or '.join(map(str, sizes))}"


def _room(s):
    """Codes of 4 bits that one number has room for as they are stored: a byte, or under FSDP a number of forward's type."""
    return 2 * (DTYPE_BYTES[s.dtypes.compute] if s.fsdp else 1)


def _first(m, bad):
    """(path, numbers) of the first linear layer with a bad number of numbers; None where there is none."""
    return next(((path, weight.numbers) for path, weight in linears(m) if bad(weight.numbers)), None)


def _tiny(s, m):
    """The first that bitsandbytes takes for a transposed one."""
    return _first(m, lambda numbers: numbers <= _room(s))


def _cut_off(s, m):
    """The first of whose codes bitsandbytes allocates too few numbers: (n + 1) // room."""
    return _first(m, lambda numbers: 0 < numbers % _room(s) < _room(s) - 1)


def _stages(s):
    return s.mesh.pipeline * s.mesh.stages


def _shortest(s, m):
    """Blocks of the shortest stage."""
    return m.layers // _stages(s)


def _tied(gradients):
    """Why a pipeline's ends are not one weight."""
    return lambda s, m: (
        f"with pipeline {s.mesh.pipeline} and {m.name}, whose first and last stage have a copy each of one weight, whose gradients "
        f"{gradients}"
    )  # fmt: skip


def _experts_why(s, m):
    if not m.experts:
        return f", and {m.name} has no experts"
    many, left = divmod(m.experts, s.mesh.expert)
    below, above = many * s.mesh.expert, (many + 1) * s.mesh.expert
    return f", and {m.name} has {m.experts} experts, {left} too many for {below} and {above - m.experts} too few for {above}"


def _divisors(number):
    return ", ".join(str(n) for n in range(2, number + 1) if number % n == 0) or "1"


def _cut(s, m):
    """(rows' name, rows, those left over, experts of a GPU) that FSDP does not cut evenly among GPUs that have the same; None where it does."""
    if not s.fsdp or s.expert_shards * s.mesh.expert <= m.experts:
        return None
    rows = {"expert_width": 2 * Part(m, s.mesh.tensor).expert_width, "width": m.width}
    left = ((name, size, size % s.expert_shards, m.experts // s.mesh.expert) for name, size in rows.items())
    return next((one for one in left if one[2]), None)


def _heads(s, m):
    """(query heads, key heads) of one GPU that has a part of each matrix."""
    return m.heads // s.mesh.tensor, m.kv_heads // s.mesh.tensor


def _step(s):
    """Numbers in 16 bytes of an expert's row."""
    return 4 if s.base_dtype == "fp32" and not (s.fsdp and s.dtypes.autocast) else 8


def _ragged(s, m):
    """The size by which experts' rows are no multiple of 16 bytes, in words; None where they are."""
    for name in ("width", "expert_width"):
        size, whole = getattr(Part(m, s.mesh.tensor), name), getattr(m, name)
        if size % _step(s):
            return f"{name} is {size}" + (f", of {whole}" if size != whole else "")
    return None


def _odd(s, m):
    """(name, numbers, bytes) of the first weight of which one GPU's share in fp32 is no multiple of 16 bytes; None where all are."""
    shares = ((w.name, -(-w.shape[0] // s.shards) * prod(w.shape[1:])) for w in trained(m, s.adapters))
    return next(((name, numbers, 4 * numbers) for name, numbers in shares if numbers % 4), None)


_FITTING = table(
    Rule("precision", lambda s, m: s.precision in OWN, "with {m.name}, a Model, which has dimensions alone",
         ", ".join((*PRECISIONS, *LIBRARIES))),
    only("linear_attention", "torch", why="with {m.name}, a Model, none of which has linear attention",
         instead="eb.dry_run and eb.derive take the config of one of Hugging Face's that has"),
    Rule("Model.head_width", lambda s, m: m.causal and not m.has_positions and (m.rope_width or m.turning) % 2,
         "of {m.name}, of which rotary positions turn pairs of numbers", "those of which an even number turns"),
)  # fmt: skip
#: Of matrices that are divided, whoever made the model: a module of somebody's own is none.
TENSOR = table(Rule("replicas", lambda s, m: s.replicas > 1 and not s.mesh.alone, BESIDE_MESH, "1, or no mesh")) + table(
    only("offload", "none"),
    only("loss", "plain"),
    only("sharding", "none", "zero2", "zero3", allowed=f"'none' with one GPU of data, or {FSDP}"),
    Rule("sharding", lambda s, m: s.ddp, f"{BESIDE_MESH}; DDP takes no weights that are divided", FSDP),
    Rule("precision", lambda s, m: s.dtypes.loss_scaling, allowed="fp32, bf16-master, bf16, or bf16-mixed under FSDP"),
    Rule("precision", lambda s, m: s.dtypes.autocast and not s.fsdp, allowed=f"fp32, bf16-master, bf16, or {FSDP}"),
    Rule("optimizer", lambda s, m: not s.fsdp and not _impls(s), allowed=f"{', '.join(TENSOR_OPTIMIZERS)}, or {FSDP}"),
    Rule("optimizer_impl", lambda s, m: not s.fsdp and s.optimizer_impl not in _impls(s),
         "of {s.optimizer!r} " + BESIDE_MESH, lambda s, m: f"{', '.join(_impls(s))}, or {FSDP}"),
    why=BESIDE_MESH,
    when=lambda s, m: s.mesh.tensor > 1,
)  # fmt: skip
_EVEN = table(
    Rule("Mesh.tensor", _uneven, "does not divide the {f[0]} of {f[1]}{f[2]}: {f[3]} left over", _even),
    when=lambda s, m: s.mesh.tensor > 1,
)
_QUANTIZED = table(
    Rule("quantization", lambda s, m: m.experts and m.family,
         "with {m.name}, whose experts' matrices are no linear layers", "'none', or a model without experts"),
    Rule("quantization", _tiny, "with {f[0]} of {m.name}, of {f[1]} numbers, which bitsandbytes takes for a transposed weight",
         lambda s, m: f"'none', or {_room(s) + 1} numbers and more"),
    Rule("quantization", _cut_off,
         "with sharding {s.sharding!r} and {f[0]} of {m.name}, of {f[1]} numbers, the last of which bitsandbytes has no room for where codes are "
         "stored as {s.dtypes.compute}",
         lambda s, m: f"'none', sharding 'none' or 'zero1', or a multiple of {_room(s)} numbers"),
    when=lambda s, m: s.quantization != "none",
)  # fmt: skip
_STAGES = table(
    Rule("Mesh.pipeline", lambda s, m: _stages(s) > m.layers,
         lambda s, m: f"GPUs in a row with {s.mesh.stages} stages each are {_stages(s)} stages, and {m.name} has {m.layers} blocks",
         "at most {m.layers} stages"),
    Rule("checkpoint_every", lambda s, m: s.segment > _shortest(s, m),
         lambda s, m: f"is more than the {_shortest(s, m)} blocks of the shortest of {_stages(s)} stages of {m.name}",
         lambda s, m: f"1 to {_shortest(s, m)}"),
    Rule("Mesh.tensor", lambda s, m: s.mesh.tensor > 1 and m.tied, _tied("are divided in two ways, is not derived"),
         "1, or an untied model"),
    Rule("offload", lambda s, m: s.offload == "cpu" and m.tied, _tied("GPUs cannot add in the memory of the CPU"),
         "'none', or an untied model"),
    Rule("sharding", lambda s, m: s.fsdp and m.tied and s.mesh.schedule in TWO_STAGES,
         "with schedule {s.mesh.schedule!r} and {m.name}, whose embedding and head are one weight, which cannot be in "
         "the units of two stages", "'none', another schedule, or an untied model"),
    when=lambda s, m: s.mesh.pipeline > 1,
)  # fmt: skip


def _efficient(s, m):
    """Whether attention has a mask or values of another width, which flash attention takes not in any data type."""
    return not m.family and 0 < m.window <= s.sequence or m.latent_rank and m.value_width != m.head_width


def _unfit(s, m):
    """Whether the memory-efficient kernel takes no heads so wide."""
    multiple = 4 if s.dtypes.compute == "fp32" else 8
    return _efficient(s, m) and (m.head_width % multiple or m.latent_rank and m.value_width % multiple)


_KERNEL = table(
    Rule("attention", lambda s, m: m.head_width % 4 if s.dtypes.compute == "fp32" else m.head_width > 256,
         "takes no heads of width {m.head_width} in {s.dtypes.compute}, which {m.name} has",
         lambda s, m: f"'eager', or widths that are {'multiples of 4' if s.dtypes.compute == 'fp32' else 'at most 256'}"),
    Rule("attention", _unfit,
         "takes no heads of width {m.head_width} in {s.dtypes.compute} with a mask or with values of another width, which {m.name} has",
         lambda s, m: f"'eager', or widths that are multiples of {4 if s.dtypes.compute == 'fp32' else 8}"),
    when=lambda s, m: s.attention == "flash",
)  # fmt: skip
_EXPERTS = table(
    Rule("Mesh.expert", lambda s, m: not m.experts or m.experts % s.mesh.expert, _experts_why, lambda s, m: _divisors(m.experts)),
    Rule("Mesh.routing", lambda s, m: s.mesh.routing > worst_routing(m, s.mesh.expert),
         "with {m.name}, whose tokens visit {m.experts_per_token} different ones of {m.experts} experts",
         lambda s, m: f"at most {worst_routing(m, s.mesh.expert):g}, where all that can comes to one GPU"),
    Rule("Mesh.expert", _cut,
         "of {s.shards} GPUs: {s.expert_shards} have the same {f[3]} of {m.name}'s experts, whose {f[1]} rows ({f[0]}) FSDP cannot cut "
         "evenly: {f[2]} left over", "such GPUs as divide {f[1]}"),
    when=lambda s, m: s.mesh.expert > 1,
)  # fmt: skip
_ULYSSES = table(
    Rule("Mesh.context", lambda s, m: _heads(s, m)[0] % s.mesh.context, "GPUs share heads with mesh {s.mesh}, and {m.name} has {m.heads}",
         lambda s, m: _divisors(_heads(s, m)[0])),
    Rule("Mesh.context", lambda s, m: _heads(s, m)[1] % s.mesh.context and s.mesh.context % _heads(s, m)[1],
         "GPUs share key heads with mesh {s.mesh}, and {m.name} has {m.kv_heads}: neither divides the other",
         "a divisor of the key heads, or a multiple, for which each is repeated"),
    when=lambda s, m: s.mesh.rotation == "ulysses",
)  # fmt: skip
_RING = table(
    Rule("precision", lambda s, m: m.kv_heads != m.heads,
         "with mesh {s.mesh}: no ring takes fewer key heads than query heads in fp32, and {m.name} has {m.kv_heads} "
         "and {m.heads}", "precisions that compute in 16 bits"),
    Rule("sequence", lambda s, m: s.sequence % (64 * s.mesh.context),
         "with mesh {s.mesh} in fp32, whose kernel pads rows to 32",
         lambda s, m: f"a multiple of {64 * s.mesh.context}, as {-(-s.sequence // (64 * s.mesh.context)) * 64 * s.mesh.context}"),
    when=lambda s, m: s.mesh.context > 1 and s.mesh.rotation != "ulysses" and s.dtypes.compute == "fp32",
)  # fmt: skip
_SIZES = table(
    Rule("gpus", lambda s, m: by_torchao(s) and s.fsdp and not s.dtypes.master and _odd(s, m),
         "with optimizer {s.optimizer!r} and sharding {s.sharding!r}: of {m.name}'s {f[0]} each has {f[1]} numbers, {f[2]} bytes, so that gradients "
         "beside it start at no multiple of 16, and torchao's compiled step copies some of them, which is not derived",
         "GPUs whose shares are multiples of 4 numbers, or precision 'bf16-master'", "everybyte rehearse runs a script with it"),
    Rule("checkpointing", lambda s, m: s.checkpointing == "second-products" and m.experts,
         "with {m.name}, of whose experts torchtitan's list of what is saved differs from release to release", "others"),
    Rule("checkpoint_every", lambda s, m: max(s.segment, s.cycle) > m.layers, "is more than the {m.layers} blocks of {m.name}",
         "1 to {m.layers}"),
    Rule("sequence", lambda s, m: m.positions and s.sequence > m.positions,
         "is more than the {m.positions} positions of {m.name}", "1 to {m.positions}"),
    Rule("precision", lambda s, m: m.experts and not m.chunked and _ragged(s, m),
         "multiplies experts' matrices in rows of 16 bytes, and {f} in {m.name}", lambda s, m: f"multiples of {_step(s)}"),
    Rule("sequence", lambda s, m: m.window and s.sequence > m.window and m.family,
         "is more than the window of {m.window} tokens of {m.name}, and the book's reference has no mask for a window",
         "1 to {m.window}"),
    Rule("sharding_units", lambda s, m: s.sharding_units == "block+ends" and m.tied,
         "with {m.name}, whose embedding and head are one weight, which cannot be in two units", "'block' or 'model'"),
)  # fmt: skip
#: In the order in which they are tried. `flash`: the kernel for 16 bits takes heads up to 256 wide, the one for fp32 multiples of 4
#: (PyTorch's `native/transformers/cuda/sdp_utils.cpp`); for others `scaled_dot_product_attention` falls back to the scores.
MODEL = (*_FITTING, *TENSOR, *_EVEN, *_QUANTIZED, *_STAGES, *_KERNEL, *_EXPERTS, *_ULYSSES, *_RING, *_SIZES)
