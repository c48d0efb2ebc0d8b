"""What of a setup no witness runs, or formulas alone do not derive: tried where the step is asked for."""

from dataclasses import replace

from ..ask.choices import LIBRARIES, PRECISIONS
from ..ask.schedules import ALL_FIRST, SCHEDULES, SPLIT
from ..catalog.decoders import decoder, untrained
from .engines import undivided
from .row import Rule, Unlike, only, table
from .setups import FSDP

#: Checkpointing that saves the results of some operations.
_KEEPS = ("operations", "second-products")


def _split(s):
    return s.mesh.schedule in SPLIT


def _beside(s):
    sharding = f" and sharding 'none' on {s.gpus} gpus" if s.mesh.size == s.mesh.pipeline else ""
    return f"with mesh {s.mesh}{sharding}, whose backward is divided, is not derived"


def _mlps(m):
    """The widths of a model's MLPs, by name."""
    return ("expert_width",) * (m.mixture_layers > 0) + ("ffn_width",) * (m.mixture_layers < m.layers)


#: In whose place stands a step that is `Trainer`'s own.
PLAIN_LOOP = Rule("loop", lambda s, *_: s.looped, "with outputs {s.outputs!r}, zero_grad {s.zero_grad!r} and clip {s.clip!r}",
                  "what loop 'plain' does by default")  # fmt: skip
#: Of pipelines.
PIPELINE = (
    *table(
        Rule("Mesh.schedule", lambda s: _split(s) and (s.mesh.size > s.mesh.pipeline or s.mesh.expert > 1 or s.ddp),
             _beside, "schedules whose is not"),
        Rule("checkpointing", lambda s: s.checkpointing == "one-in-k",
             "with mesh {s.mesh}, whose stages begin in the midst of such blocks, is not derived", "'none', 'full', or no pipeline"),
        Rule("checkpointing", lambda s: _split(s) and s.checkpointing in _KEEPS,
             "with mesh {s.mesh}, whose backward is divided: PyTorch runs a block's backward once where it is checkpointed so",
             "'none', 'full', or schedules whose is not"),
        Rule("loss", lambda s: s.ddp and s.loss != "plain",
             "with mesh {s.mesh} on {s.gpus} gpus: the head would be of no stage's DDP", "'plain'"),
        Rule("precision", lambda s: s.dtypes.autocast and not s.fsdp,
             "with mesh {s.mesh}: PyTorch runs forwards and backwards of a schedule in one go, and autocast is for "
             "forwards alone",
             f"fp32, bf16-master, bf16, or {FSDP}"),
        when=lambda s: s.mesh.pipeline > 1,
    ),
    *table(
        Rule("offload", lambda s: _split(s) and s.offload == "cpu",
             "with mesh {s.mesh}, whose backward is divided, is not derived", "'none', or another schedule"),
        Rule("sharding", lambda s: _split(s) and s.sharding == "zero3",
             "with schedule {s.mesh.schedule!r}, whose second half of a backward comes when weights have been let go",
             "'zero2', or another schedule"),
        Rule("checkpointing", lambda s: s.checkpointing in _KEEPS and s.mesh.expert > 1 and s.sharding == "zero3"
             and s.accumulation > 1 and s.mesh.schedule not in ALL_FIRST,
             "with mesh {s.mesh} and sharding 'zero3': a forward after a backward finds experts gathered, and PyTorch allows no "
             "gathering where such a block is recomputed", "'none', 'full', 'every-k', 'selective', or sharding 'zero2'"),
        only("loss", "plain", why="with mesh {s.mesh}: the head would be of no stage's unit"),
        only("sharding_units", "block", "model", why="with mesh {s.mesh}: a stage has not both ends"),
        when=lambda s: s.mesh.pipeline > 1 and s.fsdp,
    ),
)  # fmt: skip
#: Of pipelines whose order no formula follows, beside.
SCHEDULE = (
    *PIPELINE,
    *table(Rule("Mesh.schedule", lambda s: not SCHEDULES[s.mesh.schedule].predicted, "is not derived", instead="eb.dry_run takes it"), when=lambda s: s.mesh.pipeline > 1),
)  # fmt: skip
#: Of the steps of transformers' code, with a model: what its own code does not do, and what is not derived of it.
_UNLIKE = "with {m.name}, which transformers' code runs, is not derived"
_UNDIVIDED = (
    Rule("mesh", lambda s, m: not s.mesh.alone, allowed="no mesh"),
    only("loss", "plain"),
    only("checkpointing", "none", "full"),
    only("sharding_units", "block", "model"),
)
TRANSFORMERS = table(
    Unlike("Model.code", lambda s, m: (why := untrained(m)) and (m.code == "reference" and m.unlike_reference() or why), instead="eb.dry_run and eb.derive take what transformers builds"),
    Rule("Model.full_every", lambda s, m: m.period > 64, "blocks of {m.name} that are not alike are too many to follow", "at most 64"),
    Rule("precision", lambda s, m: s.precision in LIBRARIES, allowed=", ".join(PRECISIONS)),
    why=_UNLIKE,
    instead="eb.dry_run takes it",
    when=lambda s, m: m.family is None,
) + table(
    Rule("attention", lambda s, m: m.eager_alone and s.attention != "eager", "is not what transformers' {m.name} has", "'eager'"),
    when=lambda s, m: m.family is None,
) + table(
    *_UNDIVIDED,
    Rule("adapters", lambda s, m: s.adapters and decoder(m) == "gpt2", allowed="None"),
    why=_UNLIKE,
    instead="the book's code takes it: eb.model(name, code='reference')",
    when=lambda s, m: m.family is None and m.replace(code="reference").family,
) + table(
    *_UNDIVIDED,
    Rule("adapters", lambda s, m: s.adapters and m.shared_experts,
         "with {m.name}: peft takes experts' matrices for those of the shared one, which is not derived", "None", "eb.dry_run takes it"),
    why=_UNLIKE,
    when=lambda s, m: m.family is None and not m.replace(code="reference").family,
)  # fmt: skip
#: Of formulas, with a model.
FORMULA = TRANSFORMERS + table(
    Rule("checkpoint_every", lambda s, m: s.cycle > 24, "blocks of {m.name} that are not checkpointed alike are too many to follow", "1 to 24",
         "eb.dry_run takes it"),
    Rule("fsdp_version", lambda s, m: s.fsdp_version == 1 and m.experts and m.dense_layers,
         "with {m.name}, whose blocks are of two kinds, is not derived", "2", "eb.dry_run takes it"),
    Rule("dropout", lambda s, m: s.dropout and m.family == "llama", "with {m.name}, a Llama, which has none", "0.0"),
    Rule("loss", lambda s, m: s.sharding_units == "block+ends" and s.loss == "chunked",
         "with sharding_units 'block+ends' is not derived, as FSDP then meets the head once for each chunk",
         "'plain', or other units", "eb.dry_run takes it"),
)  # fmt: skip
#: Of a GPU, in the model's place.
GPU = table(
    Rule("precision", lambda s, gpu: s.dtypes.needs_bf16, "on {m.name}, which has no bf16",
         ", ".join(name for name, row in PRECISIONS.items() if not row.needs_bf16)),
    when=lambda s, gpu: not gpu.bf16,
)  # fmt: skip
#: Of an `Objective`, in the model's place: its own step; and its models beside one another.
OBJECTIVE = table(
    PLAIN_LOOP,
    only("optimizer_in_backward", False, why="with objective {m.method!r} is not derived"),
    only("fsdp_version", 2, why="with objective {m.method!r} is not derived"),
    only("loss", "plain", why="with objective {m.method!r}: log-probabilities are taken from all logits at once"),
    only("dropout", 0.0,
         why="with objective {m.method!r}: the old log-probabilities and the reference's were made without it"),
    Rule("mesh", lambda s, o: not s.mesh.alone, "with objective {m.method!r} is not derived", "no mesh"),
    Rule("adapters", lambda s, o: o.method == "value" and s.adapters, "with objective 'value', whose new head trains whole", "None"),
    Rule("adapters", lambda s, o: s.adapters and s.distributed,
         "on {s.gpus} gpus with objective {m.method!r} is not derived", "one GPU, or None"),
    Rule("sharding", lambda s, o: o.in_step and s.distributed,
         "on {s.gpus} gpus with a reference in the step is not derived", "one GPU, or Objective.reference 'before'"),
)  # fmt: skip
ALIGNED = table(
    only("offload", "none", why="with {m.method} is not derived"),
    Rule("adapters", lambda s, o: s.adapters and o.method == "ppo", "with ppo, whose value model has a new head, is not derived", "None"),
    Rule("attention", lambda s, o: s.attention == "eager" and o.family == "gpt" and o.method != "dpo",
         "with {m.method}: the masks of {m.model.name}'s frozen models are not counted", "'flash'"),
)  # fmt: skip
#: Of a `Rollout`, in the setup's place: alone; with a model.
GENERATING = table(
    Rule("Rollout.tensor_parallel", lambda r: r.weights == "shared" and r.tensor_parallel > 1,
         "with the trainer's own weights, which are not divided so", "1, or weights 'copy'"),
    Rule("Rollout.tensor_parallel", lambda r: r.engine is not None and r.tensor_parallel > 1, "with an engine, which says it itself", "Engine(tensor_parallel=...)"),
    Rule("Rollout.weights", lambda r: r.engine is not None and r.weights == "shared", "with an engine, which has its own", "'copy'"),
    Rule("Rollout.versions", lambda r: r.versions > 1 and (r.asleep or r.weights == "shared"),
         "of an engine that sleeps, or has the trainer's own weights", "1, or asleep False and weights 'copy'"),
    Rule("Rollout.level", lambda r: r.level != 2 and not r.asleep, "of an engine that does not sleep", "2, or asleep True"),
    Rule("Rollout.staged", lambda r: not r.staged and not r.asleep, "of an engine that does not sleep", "True, or asleep True"),
    Rule("Rollout.bucket", lambda r: r.bucket and r.weights == "shared", "with the trainer's own weights, which nobody sends", "0, or weights 'copy'"),
    Rule("Rollout.offloaded", lambda r: r.offloaded and r.weights == "shared",
         "with the trainer's own weights, which the engine needs on the GPU", "False, or weights 'copy'"),
)  # fmt: skip
ROLLOUT = table(
    Rule("Rollout.context", lambda r, m: m.positions and r.context > m.positions,
         "is more than the {m.positions} positions of {m.name}", "1 to {m.positions}"),
    Rule("Rollout.tensor_parallel",
         lambda r, m: r.tensor_parallel > 1 and (m.experts and m.ffn_bias or m.learned_positions and m.has_positions),
         "with {m.name} is not derived", "1, or a Llama, whose experts have no biases"),
    Rule("Rollout.tensor_parallel", lambda r, m: undivided(r.tensor_parallel, m, _mlps(m)), "does not divide {f} of {m.name}", "a divisor"),
)  # fmt: skip
#: Of a search for layouts, which varies none of these.
LAYOUT = table(
    only("adapters", None), only("offload", "none"), only("replicas", 1), only("sharding_units", "block"), only("resharding", "usual"), only("muon_gather", "each"), only("fsdp_version", 2), only("no_sync", False),
    only("buckets", "copies"), only("optimizer_in_backward", False), PLAIN_LOOP,
    why="is not searched", instead="eb.budget takes one layout",
)  # fmt: skip
#: Of a plan for a model of one's own, whose kind is in the model's place.
PLANNED = table(
    only("gpus", 1), only("sharding", "none"),
    why="with a {m}, for which what is sent is not counted", instead="eb.dry_run says what one setup takes",
)  # fmt: skip
#: Of a derivation; of one with letters for every dimension.
DERIVED = table(
    replace(PLAIN_LOOP, instead="eb.budget and eb.dry_run take it"),
    only("loss", "plain", "chunked", why="is not derived: its chunks are powers of two, which no formula in batch and sequence has",
         allowed="'plain', 'chunked'", instead="eb.budget and eb.dry_run take it"),
)  # fmt: skip
LETTERS = table(
    only("loss", "plain"), only("offload", "none"), only("gpus", 1), only("sharding", "none"), only("adapters", None),
    only("checkpointing", "none", "full", "every-k", "selective", "operations"), only("optimizer_in_backward", False),
    Rule("checkpoint_every", lambda s: s.segment > 1, allowed="1"),
    why="with letters 'all'", instead="eb.derive takes it with letters 'BS'",
)  # fmt: skip
#: Of weights that a step's own code first makes whole on the GPU, in fp32, as the book's does. Others come as they stay: in their
#: types, and of several GPUs in shares.
WHOLE = table(
    Rule("Model.code", lambda s, m: m.family is None, allowed="'reference', of a model that the book has code of"),
    Rule("mesh", lambda s, m: s.mesh.size > 1 or (s.mesh.expert > 1 and s.sharding == "zero1"), allowed="no mesh"),
    only("quantization", "none"),
    Rule("precision", lambda s, m: s.precision in LIBRARIES, allowed=", ".join(PRECISIONS)),
    why="with whole=True: how its weights are made is not derived",
    instead="whole=False takes them as they come, and so does None",
)
#: Of what PyTorch's allocator reserves.
RESERVED = table(
    only("fsdp_version", 2, why="with reserved bytes is not derived: PyTorch gives no block back that another stream has used before it is asked for "
         "the next", instead="eb.budget and eb.dry_run say the bytes that are asked for, everybyte rehearse what is reserved"),
)  # fmt: skip
#: Of a step that PyTorch's compiler cuts.
CUT = table(
    only("precision", "fp32"), only("attention", "flash"), only("checkpointing", "none"), only("loss", "plain"),
    why="compiled is not followed",
)  # fmt: skip
#: Of a recipe that clips gradients.
CLIPPED = table(
    only("optimizer_in_backward", False, why="drops each gradient within backward"),
    replace(PLAIN_LOOP, allowed="what loop 'plain' does by default: the recipe says how it clips"),
    only("sharding", "none", "zero2", "zero3", why="adds gradients up within its step, and none can be clipped before"),
    Rule("precision", lambda s: s.precision in LIBRARIES, "keeps gradients that are no weight's", "'bf16-master'"),
    Rule("master_gradients", lambda s: s.dtypes.master and s.master_gradients != "bf16", "are no weight's", "'bf16'"),
)  # fmt: skip
