"""What does not go together in a setup, whatever the model: tried when one is made."""

from ..ask.choices import LIBRARIES, LIBRARY_OPTIMIZERS, LOOPS, NOT_SHARDED, OPTIMIZERS, OWN, PRECISIONS
from ..ask.schedules import ANY_STAGES, ONE_STAGE, SCHEDULES, TWO_STAGES
from .row import Rule, multiples, needs, only, table

FSDP = "sharding 'zero2' or 'zero3'"
#: Optimizers that step through numbers in a row as through any others.
_ROWS = tuple(name for name, row in OPTIMIZERS.items() if row.states is not None)
#: Words of many rules.
BESIDE_MESH = "with mesh {s.mesh} is not derived"
_IN_A_ROW = "schedule {s.mesh.schedule!r} on {s.mesh.pipeline} GPUs in a row"


def _not_sharded(s):
    """Why the optimizer's step over shares is not derived, and what its code raises."""
    found = NOT_SHARDED.get((OPTIMIZERS[s.optimizer].algorithm, s.fsdp)) if s.sharding != "none" else None
    return found and f"{found[0]} {' or '.join(map(repr, found[1]))}".strip()


def _sharded(s):
    return ", ".join(name for name, row in OPTIMIZERS.items() if (row.algorithm, s.fsdp) not in NOT_SHARDED)


def by_torchao(s):
    """Whether torchao steps."""
    return OPTIMIZERS[s.optimizer].package == "torchao"


def _unviewed(s):
    """What torchao's states raise where a `DTensor` has them: `aten.view` leaves out that they stand for 16 bits."""
    return (
        f"with optimizer {s.optimizer!r} and sharding {s.sharding!r}: torchao's states of `DTensor`s are fp32's, and its step over "
        "others raises 'attempting to run unimplemented operator/function: func=<OpOverload(op='aten.view', overload='dtype')>'"
    )


def _least(s):
    """Micro-batches that a schedule has at least."""
    return SCHEDULES[s.mesh.schedule].least * s.mesh.pipeline


def _left_over(batches, places):
    """Micro-batches that the rounds of an interleaved schedule leave."""
    return batches % max(1, batches // places)


def _near(s):
    even = [n for n in range(1, s.accumulation + s.mesh.pipeline + 1) if not _left_over(n, s.mesh.pipeline)]
    return f"such as {max(n for n in even if n < s.accumulation)} or {min(n for n in even if n > s.accumulation)}"


def _buffered(s):
    """Whether it is Megatron's distributed optimizer."""
    return s.precision == "bf16-megatron" and s.sharding == "zero1"


def _dtypes(s):
    """Data types of adapters."""
    if s.quantization != "none":
        return ("fp32", "bf16") if s.dtypes.compute == "bf16" else ("fp32",)
    if s.base_dtype == "fp32":
        return ("fp32",)
    return ("bf16",) if s.dtypes.master else ("fp32", "bf16")


def _over(s):
    if s.quantization != "none":
        return f"over 4-bit weights, precision {s.precision!r}"
    weights = "16-bit weights with fp32 copies" if s.dtypes.master else f"weights in {s.base_dtype}"
    return f"over {weights}, precision {s.precision!r}"


_USUAL = table(
    needs("master_gradients", "bf16", "precision", "bf16-master"),
    needs("loss_chunks", 8, "loss", "chunked"),
    needs("checkpoint_every", 2, "checkpointing", "every-k", "one-in-k"),
    Rule("optimizer_impl", lambda s: s.optimizer_impl not in OPTIMIZERS[s.optimizer].impls,
         "is none of {s.optimizer}'s", lambda s: ", ".join(OPTIMIZERS[s.optimizer].impls)),
    Rule("optimizer", _not_sharded, "with sharding {s.sharding!r}: {f}", _sharded),
    *table(
        Rule("mesh", lambda s: not s.mesh.alone, BESIDE_MESH, "no mesh"),
        only("offload", "none", "activations"),
        why="with optimizer 'muon' and sharding {s.sharding!r} is not derived",
        when=lambda s: s.optimizer == "muon" and s.fsdp,
    ),
    *table(
        Rule("mesh", lambda s: not s.mesh.alone, "with optimizer {s.optimizer!r} is not derived", "no mesh", "everybyte rehearse runs a script with it"),
        Rule("buckets", lambda s: s.buckets == "views" and s.ddp,
             "with optimizer {s.optimizer!r}: its compiled step copies a gradient that starts at no multiple of 16 bytes, as views of a bucket do",
             "'copies'"),
        when=by_torchao,
    ),
    *table(
        Rule("Lora.dtype", lambda s: s.adapters and s.state_dtype == "bf16", _unviewed, "'fp32', or sharding 'none' or 'zero1'"),
        Rule("precision", lambda s: s.state_dtype == "bf16", _unviewed, "fp32, bf16-mixed, bf16-master, or sharding 'none' or 'zero1'"),
        only("offload", "none", "activations",
             why="with optimizer {s.optimizer!r} and sharding {s.sharding!r} is not derived: its step is compiled for the CPU"),
        when=lambda s: by_torchao(s) and s.fsdp,
    ),
    Rule("gpus", lambda s: s.gpus % s.mesh.size, "are no multiple of the {s.mesh.size} GPUs of the mesh ({s.mesh})",
         lambda s: f"a multiple, as {multiples(s.gpus, s.mesh.size)}"),
)  # fmt: skip
_PIPELINE = table(
    Rule("Mesh.stages", lambda s: s.mesh.schedule in ONE_STAGE and s.mesh.stages != 1,
         "with schedule {s.mesh.schedule!r}, which runs one stage on each GPU",
         f"1, or schedule {', '.join(map(repr, ANY_STAGES[:-1]))} or {ANY_STAGES[-1]!r}"),
    Rule("Mesh.stages", lambda s: s.mesh.schedule in TWO_STAGES and s.mesh.stages != 2,
         "with schedule {s.mesh.schedule!r}, which runs two stages on each GPU", "2"),
    Rule("accumulation", lambda s: s.accumulation < _least(s), f"micro-batches with {_IN_A_ROW}",
         lambda s: f"from {_least(s)} on"),
    Rule("accumulation",
         lambda s: s.mesh.schedule.startswith("interleaved") and _left_over(s.accumulation, s.mesh.pipeline),
         lambda s: f"micro-batches do not divide into {s.accumulation // s.mesh.pipeline} equal rounds of "
         + _IN_A_ROW.format(s=s),
         _near),
    when=lambda s: s.mesh.pipeline > 1,
)  # fmt: skip
_EXPERT_PLACES = table(
    Rule("Mesh.expert", lambda s: s.sharers % s.mesh.expert, "does not divide the {s.sharers} GPUs of data and context",
         "a divisor"),
    when=lambda s: s.mesh.expert > 1,
)  # fmt: skip
_LIBRARY = table(
    only("optimizer", *LIBRARY_OPTIMIZERS, allowed=", ".join(LIBRARY_OPTIMIZERS)),
    only("optimizer_impl", "fused", allowed="'fused', as its Adam is one kernel"),
    Rule("gpus", lambda s: s.gpus > 1 and not _buffered(s),
         allowed="1, precision 'bf16-megatron' with sharding 'zero1', or 'bf16-master'"),
    Rule("sharding", lambda s: s.sharding != "none" and not _buffered(s),
         allowed="'none', 'zero1' of 'bf16-megatron', or precision 'bf16-master'"),
    Rule("mesh", lambda s: not s.mesh.alone, allowed="no mesh, or precision 'bf16-master'"),
    only("adapters", None, allowed="None, or precision 'bf16-master'"),
    why="with precision {s.precision!r} is not derived",
    when=lambda s: s.precision in LIBRARIES,
)  # fmt: skip
_ELSE = f"or precision {', '.join(PRECISIONS)}"
_OWN = table(
    only("sharding", "none", allowed=f"'none', {_ELSE}"),
    only("adapters", None, allowed=f"None, {_ELSE}"),
    Rule("mesh", lambda s: not s.mesh.alone, allowed=f"no mesh, {_ELSE}"),
    why="with precision {s.precision!r} is not derived",
    when=lambda s: s.precision in OWN,
)
_ONE_FUNCTION = table(
    Rule("loss", lambda s: not s.mesh.alone, BESIDE_MESH, "'plain', or no mesh"),
    Rule("loss", lambda s: s.sharding_units == "block+ends",
         "with sharding_units 'block+ends', which gather the head's weight where the head is called: the function takes the weight "
         "alone", "'plain', or other units"),
    Rule("loss", lambda s: s.adapters and s.dtypes.autocast and s.adapters.base == "bf16",
         "with precision {s.precision!r} over weights in bf16: autocast has no rule for the function, and PyTorch does "
         "not multiply the norm's fp32 by the head's bf16", "'plain', 'chunked', or Lora.base 'fp32'"),
    when=lambda s: s.loss == "linear-cross-entropy",
)  # fmt: skip
_ULYSSES = table(
    Rule("sequence", lambda s: s.sequence % s.mesh.context,
         lambda s: f"does not make equal pieces for the {s.mesh.context} GPUs of mesh {s.mesh}: {s.sequence % s.mesh.context} tokens are left",
         lambda s: f"a multiple of {s.mesh.context}, as {multiples(s.sequence, s.mesh.context)}"),
    only("attention", "flash", why="with mesh {s.mesh}: around scores that are formed one by one no heads are swapped"),
    only("replicas", 1, why="with mesh {s.mesh}: groups of GPUs that each hold the model are not derived"),
    when=lambda s: s.mesh.rotation == "ulysses",
)  # fmt: skip
_RING = table(
    Rule("sequence", lambda s: s.sequence % (2 * s.mesh.context),
         lambda s: f"does not make two equal pieces for each of the {s.mesh.context} GPUs of mesh {s.mesh}: "
         f"{s.sequence % (2 * s.mesh.context)} tokens are left",
         lambda s: f"a multiple of {2 * s.mesh.context}, as {multiples(s.sequence, 2 * s.mesh.context)}"),
    only("attention", "flash", why="with mesh {s.mesh}: no ring forms the scores"),
    only("dropout", 0.0,
         why="with mesh {s.mesh}: PyTorch's ring attention keeps the random state of its last part alone"),
    only("replicas", 1, why="with mesh {s.mesh}: groups of rings that each hold the model are not derived"),
    when=lambda s: s.mesh.context > 1 and s.mesh.rotation != "ulysses",
)  # fmt: skip
_EXPERTS = table(only("buckets", "copies"), only("replicas", 1), why=BESIDE_MESH, when=lambda s: s.mesh.expert > 1)
_GPUS = table(
    Rule("linear_attention", lambda s: s.linear_attention != "torch" and not s.mesh.alone, BESIDE_MESH, "'torch', or no mesh"),
    Rule("no_sync", lambda s: s.no_sync and not (s.fsdp and s.accumulation > 1),
         lambda s: f"needs {FSDP} and accumulation from 2 on, not {s.sharding!r} and {s.accumulation}", "False"),
    needs("fsdp_version", 2, "sharding", "zero2", "zero3"),
    needs("sharding_units", "block", "sharding", "zero2", "zero3"),
    needs("resharding", "usual", "sharding", "zero3"),
    needs("resharding_gpus", 8, "resharding", "group"),
    needs("muon_gather", "each", "optimizer", "muon"),
    needs("muon_gather", "each", "sharding", "zero2", "zero3"),
    Rule("resharding", lambda s: s.resharding == "ends" and s.sharding_units != "block+ends", "needs sharding_units 'block+ends', not {s.sharding_units!r}"),
    Rule("resharding", lambda s: s.resharding == "not-last" and s.sharding_units == "model", "needs sharding_units 'block' or 'block+ends', not 'model'"),
    Rule("resharding", lambda s: s.resharding != "usual" and s.mesh.pipeline > 1, BESIDE_MESH, "'usual', or no pipeline"),
    Rule("resharding", lambda s: s.resharding == "group" and s.mesh.tensor * s.mesh.expert > 1,
         "with mesh {s.mesh}: PyTorch raises 'Resharding to smaller mesh is not supported for DTensor parameters yet'", "another, or no such mesh"),
    Rule("resharding", lambda s: s.resharding == "group" and s.adapters and s.sharding_units == "block+ends",
         "with adapters and sharding_units 'block+ends': the token embedding's share stays when the step has ended, which is not derived",
         "another, or other units"),
    Rule("resharding_gpus", lambda s: s.resharding == "group" and (s.resharding_gpus >= s.shards or s.shards % s.resharding_gpus),
         "do not part the {s.shards} GPUs that divide the weights into smaller groups", "a divisor that is less"),
    needs("replicas", 1, "sharding", "zero2", "zero3"),
    Rule("offload", lambda s: s.offload == "cpu" and not s.fsdp, f"needs {FSDP}, not {{s.sharding!r}}", "'none' or 'activations'"),
    Rule("offload", lambda s: s.offload == "activations" and not s.mesh.alone, BESIDE_MESH, "'none', 'cpu', or no mesh"),
    Rule("replicas", lambda s: s.replicas > 1 and s.sharers % s.replicas,
         lambda s: f"does not divide the {s.sharers} {'gpus' if s.mesh.alone else 'GPUs of data and context'}", "a divisor"),
    Rule("buckets", lambda s: s.buckets != "copies" and not s.ddp,
         "needs sharding 'none' and gpus from 2 on, not {s.sharding!r} and {s.gpus}"),
    Rule("precision", lambda s: s.sharding != "none" and s.dtypes.loss_scaling,
         "with sharding {s.sharding!r}: each GPU would see its own share of the gradients alone, and scale the loss by "
         "itself",
         "fp32, bf16-mixed, bf16-master, bf16"),
    Rule("master_gradients", lambda s: s.master_gradients != "bf16" and s.distributed,
         "needs one GPU and sharding 'none', not {s.gpus} and {s.sharding!r}"),
)  # fmt: skip
_FLAT = table(
    Rule("gpus", lambda s: s.gpus == 1, "with fsdp_version 1: PyTorch divides nothing there, and holds all of it whole", "from 2 on"),
    *table(
        only("sharding_units", "block"),
        only("resharding", "usual"),
        only("replicas", 1),
        only("offload", "none", "activations"),
        only("optimizer_in_backward", False),
        only("adapters", None),
        only("precision", "fp32", "bf16-mixed", "bf16"),
        only("optimizer", *_ROWS),
        only("clip", "none"),
        Rule("mesh", lambda s: not s.mesh.alone, allowed="no mesh"),
        why="with fsdp_version 1 is not derived",
        instead="everybyte rehearse runs a script with it",
    ),
    when=lambda s: s.fsdp_version == 1,
)  # fmt: skip
_IN_BACKWARD = table(
    only("offload", "none", why="with optimizer_in_backward is not derived"),
    only("accumulation", 1, why="with optimizer_in_backward: gradients that have moved their weights are dropped, and cannot add up"),
    only("clip", "none", why="with optimizer_in_backward: no moment has all gradients, whose norm it takes"),
    Rule("precision", lambda s: s.dtypes.loss_scaling or s.dtypes.master, "with optimizer_in_backward is not derived", "fp32, bf16-mixed, bf16"),
    only("optimizer", *(name for name in OPTIMIZERS if name != "muon"), why="with optimizer_in_backward: its own code sorts all weights first"),
    Rule("sharding", lambda s: s.sharding == "zero1" or s.ddp,
         "with optimizer_in_backward on {s.gpus} gpus: a weight would be moved before its gradient is averaged", f"one GPU, or {FSDP}"),
    Rule("mesh", lambda s: not s.mesh.alone, "with optimizer_in_backward is not derived", "no mesh"),
    when=lambda s: s.optimizer_in_backward,
)  # fmt: skip
_WHOLE = table(
    only("quantization", "none", why="without adapters: no optimizer moves weights of 4 bits", allowed="adapters=Lora(...), or 'none'"),
    when=lambda s: s.adapters is None,
)  # fmt: skip
_ADAPTERS = table(
    Rule("adapters", lambda s: not s.mesh.alone, BESIDE_MESH, "None, or no mesh"),
    Rule("adapters", lambda s: s.optimizer == "muon",
         ": every adapter is a matrix of a block, and 'muon' has an AdamW for other weights, of which there are none",
         ", ".join(name for name in OPTIMIZERS if name != "muon")),
    Rule("Lora.base",
         lambda s: s.adapters.base not in (None, s.dtypes.weights) and (s.precision, s.adapters.base) != ("bf16-mixed", "bf16"),
         "with precision {s.precision!r}",
         lambda s: repr(s.dtypes.weights) + (" or 'bf16'" if s.precision == "bf16-mixed" else "")),
    Rule("quantization", lambda s: s.quantization != "none" and s.dtypes.master,
         "with precision {s.precision!r}: peft makes adapters over 4-bit weights in fp32, which need no copies",
         "fp32, bf16-mixed, fp16-mixed, bf16"),
    Rule("Lora.dtype", lambda s: s.adapters.dtype not in _dtypes(s), _over, lambda s: " or ".join(map(repr, _dtypes(s)))),
    when=lambda s: s.adapters is not None,
)  # fmt: skip


def _not_its(name):
    """A loop by name has its own value of a field."""
    return Rule(name, lambda s: s.loop != "plain" and getattr(s, name) != getattr(LOOPS[s.loop], name),
                "is not what loop {s.loop!r} does",
                lambda s: f"{getattr(LOOPS[s.loop], name)!r}, or loop 'plain'")  # fmt: skip


_LOOPS = (
    _not_its("outputs"), _not_its("zero_grad"), _not_its("clip"),
    *table(
        only("loss", "plain", why="with outputs 'kept': there are no logits of all tokens to be kept"),
        when=lambda s: s.outputs == "kept",
    ),
    *table(
        only("sharding", "none", "zero2", "zero3", why="with clip {s.clip!r}: it adds gradients up within its step, and none can be clipped before"),
        only("master_gradients", "bf16", why="with clip {s.clip!r}: gradients are no weight's"),
        when=lambda s: s.clip != "none",
    ),
    *table(
        Rule("precision", lambda s: s.precision in LIBRARIES, allowed=", ".join(PRECISIONS)),
        Rule("precision", lambda s: s.fsdp and s.dtypes.autocast and s.loop in ("trainer", "accelerate"), allowed="bf16, fp32, or sharding 'none'"),
        Rule("optimizer", lambda s: s.loop == "trainer" and s.dtypes.master and OPTIMIZERS[s.optimizer].algorithm == "adam8bit",
             allowed="adamw, or precision bf16"),
        only("offload", "none"),
        Rule("mesh", lambda s: not s.mesh.alone, allowed="no mesh"),
        why="with loop {s.loop!r}, outputs {s.outputs!r}, zero_grad {s.zero_grad!r} and clip {s.clip!r} is not derived",
        instead="loop 'plain' with outputs 'dropped', zero_grad 'end' and clip 'none' takes it",
        when=lambda s: s.looped,
    ),
)  # fmt: skip
#: In the order in which they are tried.
SETUP = (
    *_USUAL, *_PIPELINE, *_EXPERT_PLACES, *_LIBRARY, *_OWN, *_ONE_FUNCTION, *_ULYSSES, *_RING, *_EXPERTS, *_GPUS, *_FLAT, *_IN_BACKWARD, *_WHOLE, *_ADAPTERS, *_LOOPS,
)  # fmt: skip
