"""What of a setup no witness runs, or formulas alone do not derive: tried where the step is asked for."""

from ..ask.choices import LIBRARIES, PRECISIONS
from ..ask.schedules import SPLIT
from .row import Rule, only, table, unlike
from .setups import FSDP


def _with_mesh(s):
    return f"with mesh {s.mesh}"


def _split(s):
    return s.mesh.schedule in SPLIT


def _beside(s):
    sharding = f" and sharding 'none' on {s.gpus} gpus" if s.mesh.size == s.mesh.pipeline else ""
    return f"{_with_mesh(s)}{sharding}, whose backward is divided, is not derived"


def _objective(s, o):
    return f"with objective {o.method!r}"


#: Of pipelines.
PIPELINE = (
    *table(
        Rule("Mesh.schedule", lambda s: _split(s) and (s.mesh.size > s.mesh.pipeline or s.mesh.expert > 1 or s.ddp), _beside,
             "schedules whose is not"),
        Rule("checkpointing", lambda s: _split(s) and s.checkpointing == "operations",
             lambda s: f"{_with_mesh(s)}, whose backward is divided: PyTorch runs a block's backward once where it is checkpointed so",
             "'none', 'full', or schedules whose is not"),
        Rule("loss", lambda s: s.ddp and s.loss != "plain",
             lambda s: f"{_with_mesh(s)} on {s.gpus} gpus: the head would be of no stage's DDP", "'plain'"),
        Rule("precision", lambda s: s.dtypes.autocast and not s.fsdp,
             lambda s: f"{_with_mesh(s)}: PyTorch runs forwards and backwards of a schedule in one go, and autocast is for forwards alone",
             f"fp32, bf16-master, bf16, or {FSDP}"),
        when=lambda s: s.mesh.pipeline > 1,
    ),
    *table(
        Rule("offload", lambda s: _split(s) and s.offload != "none",
             lambda s: f"{_with_mesh(s)}, whose backward is divided, is not derived", "'none', or another schedule"),
        Rule("sharding", lambda s: _split(s) and s.sharding == "zero3",
             lambda s: f"with schedule {s.mesh.schedule!r}, whose second half of a backward comes when weights have been let go",
             "'zero2', or another schedule"),
        Rule("checkpointing", lambda s: s.checkpointing == "operations" and s.mesh.expert > 1 and s.sharding == "zero3"
             and s.accumulation > 1 and s.mesh.schedule not in ("gpipe", "looped-bfs"),
             lambda s: f"{_with_mesh(s)} and sharding 'zero3': a forward after a backward finds experts gathered, and PyTorch allows no "
             "gathering where such a block is recomputed", "'none', 'full', 'every-k', 'selective', or sharding 'zero2'"),
        only("loss", "plain", why=lambda s: f"{_with_mesh(s)}: the head would be of no stage's unit"),
        only("sharding_units", "block", "model", why=lambda s: f"{_with_mesh(s)}: a stage has not both ends"),
        when=lambda s: s.mesh.pipeline > 1 and s.fsdp,
    ),
)  # fmt: skip
#: Of pipelines whose order no formula follows, beside.
SCHEDULE = (
    *PIPELINE,
    *table(Rule("Mesh.schedule", _split, "is not derived", instead="eb.dry_run takes it"), when=lambda s: s.mesh.pipeline > 1),
)  # fmt: skip
#: Of formulas, with a model.
FORMULA = table(
    unlike(instead="eb.dry_run and eb.derive take it"),
    Rule("dropout", lambda s, m: s.dropout and m.family == "llama", lambda s, m: f"with {m.name}, a Llama, which has none", "0.0"),
    Rule("loss", lambda s, m: s.sharding_units == "block+ends" and s.loss == "chunked",
         "with sharding_units 'block+ends' is not derived, as FSDP then meets the head once for each chunk",
         "'plain', or other units", "eb.dry_run takes it"),
)  # fmt: skip
#: Of a GPU, in the model's place.
GPU = table(
    Rule("precision", lambda s, gpu: s.dtypes.needs_bf16, lambda s, gpu: f"on {gpu.name}, which has no bf16",
         ", ".join(name for name, row in PRECISIONS.items() if not row.needs_bf16)),
    when=lambda s, gpu: not gpu.bf16,
)  # fmt: skip
#: Of an `Objective`, in the model's place: its own step; and its models beside one another.
OBJECTIVE = table(
    only("loss", "plain", why=lambda s, o: f"{_objective(s, o)}: log-probabilities are taken from all logits at once"),
    only("dropout", 0.0, why=lambda s, o: f"{_objective(s, o)}: the old log-probabilities and the reference's were made without it"),
    Rule("mesh", lambda s, o: not s.mesh.alone, lambda s, o: f"{_objective(s, o)} is not derived", "no mesh"),
    Rule("adapters", lambda s, o: o.method == "value" and s.adapters, "with objective 'value', whose new head trains whole", "None"),
    Rule("adapters", lambda s, o: s.adapters and s.distributed,
         lambda s, o: f"on {s.gpus} gpus {_objective(s, o)} is not derived", "one GPU, or None"),
    Rule("sharding", lambda s, o: o.reference != "before" and s.distributed,
         lambda s, o: f"on {s.gpus} gpus with a reference in the step is not derived", "one GPU, or Objective.reference 'before'"),
)  # fmt: skip
ALIGNED = table(
    only("offload", "none", why=lambda s, o: f"with {o.method} is not derived"),
    Rule("adapters", lambda s, o: s.adapters and o.method == "ppo", "with ppo, whose value model has a new head, is not derived", "None"),
    Rule("attention", lambda s, o: s.attention == "eager" and o.family == "gpt" and o.method != "dpo",
         lambda s, o: f"with {o.method}: the masks of {o.model.name}'s frozen models are not counted", "'flash'"),
)  # fmt: skip
#: Of a search for layouts, which varies none of these.
LAYOUT = table(
    only("adapters", None), only("offload", "none"), only("replicas", 1), only("sharding_units", "block"), only("no_sync", False),
    only("buckets", "copies"),
    why="is not searched", instead="eb.budget takes one layout",
)  # fmt: skip
#: Of a plan for a model of one's own, whose kind is in the model's place.
PLANNED = table(
    only("gpus", 1), only("sharding", "none"),
    why=lambda s, kind: f"with a {kind}, for which what is sent is not counted", instead="eb.dry_run says what one setup takes",
)  # fmt: skip
#: Of a derivation; of one with letters for every dimension.
DERIVED = table(
    only("loss", "plain", "chunked", why="is not derived: its chunks are powers of two, which no formula in batch and sequence has",
         allowed="'plain', 'chunked'", instead="eb.budget and eb.dry_run take it"),
)  # fmt: skip
LETTERS = table(
    only("loss", "plain"), only("offload", "none"), only("gpus", 1), only("sharding", "none"), only("adapters", None),
    Rule("checkpoint_every", lambda s: s.segment > 1, allowed="1"),
    why="with letters 'all'", instead="eb.derive takes it with letters 'BS'",
)  # fmt: skip
#: Of a step that PyTorch's compiler cuts.
CUT = table(
    only("precision", "fp32"), only("attention", "flash"), only("checkpointing", "none"), only("loss", "plain"),
    why="compiled is not followed",
)  # fmt: skip
#: Of a recipe that clips gradients.
CLIPPED = table(
    only("sharding", "none", "zero2", "zero3", why="adds gradients up within its step, and none can be clipped before"),
    Rule("precision", lambda s: s.precision in LIBRARIES, "keeps gradients that are no weight's", "'bf16-master'"),
    Rule("master_gradients", lambda s: s.dtypes.master and s.master_gradients != "bf16", "are no weight's", "'bf16'"),
)  # fmt: skip
