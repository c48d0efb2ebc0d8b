"""What formulas were not derived for: rows that a formula is registered with. Of a model and a setup, either may be missing."""

from collections.abc import Iterable
from functools import partial

from ..ask import schedules
from ..ask.choices import LIBRARIES
from . import row
from .row import Rule, only, table, unlike

#: Words of many rows.
OF_MODEL = "of {m.name}"
BUDGET, DRY_RUN = "eb.budget answers", "eb.dry_run answers"


def given(rows: Iterable[Rule], model=None, setup=None) -> list[Rule]:
    """The rows of a model and a setup, of those that are given."""
    return [row for row in rows if (model if row.name.startswith("Model") else setup) is not None]


def first(rows: Iterable[Rule], model=None, setup=None) -> Rule | None:
    """The first row that is broken by a model or a setup, of those that are given; None where none is."""
    return row.first(given(rows, model, setup), setup, model)


def refused(rows: Iterable[Rule], model=None, setup=None) -> str | None:
    """What that row says."""
    return row.broken(given(rows, model, setup), setup, model)


def models(*allowed: tuple, instead: str = BUDGET) -> tuple[Rule, ...]:
    """Rows of fields of a model, each with the one value that is allowed."""
    return tuple(only(f"Model.{name}", value, why=OF_MODEL, instead=instead) for name, value in allowed)


def _wide(s, m):
    """Whether products are in fp32."""
    return s is not None and s.dtypes.compute == "fp32"


#: Of setups, whatever the formula.
UNADAPTED = (only("adapters", None, allowed="None, as formulas speak of models that train whole", instead=BUDGET),)
SPOKEN = table(
    Rule("loop", lambda s, m: s.looped,
         "with outputs {s.outputs!r}, zero_grad {s.zero_grad!r} and clip {s.clip!r}, of which formulas do not speak",
         "what loop 'plain' does by default"),
    Rule("precision", lambda s, m: s.precision in LIBRARIES),
    only("optimizer_in_backward", False), only("resharding", "usual"), only("muon_gather", "each"), only("fsdp_version", 2),
    only("loss", "plain", "chunked"),
    only("linear_attention", "torch", why=", of which formulas of a step do not speak", instead=DRY_RUN),
    why=", of which formulas do not speak", instead=BUDGET,
)  # fmt: skip
#: Of what each parameter takes in a step: a bias by which a router chooses is counted among them, and is a buffer.
COUNTED = (only("Model.corrected", False, why="of {m.name}: its routers' biases are buffers", instead=BUDGET),)
#: Of the book's own code; of any architecture that it builds; of what stands on one GPU that trains by itself.
BOOK = (only("Model.code", "reference", why=OF_MODEL, instead=BUDGET),)
ANY = (unlike(instead=DRY_RUN),)
_ALONE = "one GPU, for which it was derived"
ONE_GPU = (*ANY, Rule("sharding", lambda s, m: s.distributed, "on {s.gpus} GPUs", _ALONE, BUDGET))
#: With grouped heads no kernel takes fp32.
_grouped = partial(Rule, "Model.kv_heads", lambda s, m: m.kv_heads < m.heads, when=_wide)
_UNFLASHED = "of {m.name} with Setup.precision {s.precision!r}, which no flash kernel takes"
KERNEL = (_grouped(_UNFLASHED, "16 bits, or as many as heads", BUDGET), *ANY)
#: Of what was read off a GPT's step.
GPT = (
    unlike("gpt", instead=BUDGET),
    *models(("fused", True)),
    only("Model.activation", "gelu", "gelu_tanh", why=OF_MODEL, instead=BUDGET),
    Rule("batch", lambda s, m: m is not None and s.batch * s.sequence * m.heads == 1 and m.head_width % 8,
         ", with one token and one head", "2 or more"),
)  # fmt: skip
BLOCKS = (only("checkpointing", "none", "full", "every-k", "selective", instead=BUDGET), *GPT)
ALL_BLOCKS = (*ONE_GPU, *BLOCKS)
PLAIN = (only("loss", "plain", instead=BUDGET), *ALL_BLOCKS)
ONE_BATCH = (only("accumulation", 1, instead=BUDGET), *PLAIN)
#: The loop goes from tensor to tensor in a GPT's order.
LOOPED = (*ONE_GPU, *table(*GPT, when=lambda s, m: s is not None and s.optimizer_impl == "loop"))
#: Of what was read off a Llama's step.
LLAMA = table(
    unlike("llama"),
    *models(("experts", 0), ("qk_norm", False), ("norm_offset", False), ("fused", False), ("rotary_percent", 100)),
    Rule("Model.head_width", lambda s, m: m.head_width % 8, OF_MODEL, "multiples of 8"),
    only("attention", "flash"), only("checkpointing", "none"),
    _grouped("in fp32", "as many as heads"),
    instead=BUDGET,
)  # fmt: skip
#: Of compiled blocks.
_COMPILED = (
    only("attention", "flash"), only("dropout", 0.0), only("checkpointing", "none"),
    Rule("Model.head_width", lambda s, m: m.head_width % 8, OF_MODEL, "multiples of 8"),
)  # fmt: skip
COMPILED_GPT = (only("precision", "fp32", "bf16", "bf16-master"), *_COMPILED, *GPT)
COMPILED_LLAMA = (only("precision", "bf16", "bf16-master"), *_COMPILED, *BOOK, *LLAMA)
#: Of latent attention as Hugging Face's code computes it, with a kernel and no cast.
LATENT = table(
    only("Model.latent", True, why=OF_MODEL),
    Rule("Model.value_width", lambda s, m: m.value_width == m.head_width,
         "of {m.name}, as wide as a head, for which flash attention runs", "another"),
    only("attention", "flash"), only("checkpointing", "none"), only("dropout", 0.0),
    Rule("precision", lambda s, m: s.dtypes.autocast, "casts", "bf16, bf16-master"),
    Rule("precision", lambda s, m: s.dtypes.compute == "fp32",
         "keeps the compressed keys as they come, the rotary key beside them", "bf16, bf16-master"),
    instead=BUDGET,
)  # fmt: skip
#: Of a dense decoder.
DENSE = (
    *models(("experts", 0), ("latent_rank", 0), instead=""),
    Rule("Model.embedding_width", lambda s, m: m.embedding_width != m.width, OF_MODEL, "{m.width}"),
)
#: Of FSDP's units.
ROOT = (Rule("sharding_units", lambda s, m: s.sharding_units == "block+ends", allowed="'block'"), *ANY)
LLAMA_BLOCK = (
    unlike("llama"),
    *(only(f"Model.{name}", 0, why=OF_MODEL, allowed=f"{value!r}, or fsdp.block")
      for name, value in (("experts", 0), ("qk_norm", False), ("fused", False))),
)  # fmt: skip
#: Of rings: flash attention as it is; a GPU that is neither the first nor the last; where no other instant takes more.
_HALVES = "precisions that compute in 16 bits, as flash attention does"
AROUND = (only("Mesh.rotation", "all-gather", "all-to-all", why="goes around no ring", instead="ulysses.* answer"),)
_UNPADDED = (
    Rule("precision", lambda s, m: s.dtypes.compute == "fp32", allowed=_HALVES),
    Rule("Model.head_width", lambda s, m: m.head_width % 8, "of {m.name} is padded", "multiples of 8"),
)
SWAPPED = (only("Mesh.rotation", "ulysses", why="swaps no heads", instead="context.* answer"), *_UNPADDED)
RING_KERNEL = (*AROUND, *_UNPADDED)
RING = (
    Rule("Mesh.context", lambda s, m: s.mesh.context < 3, allowed="3 or more, where a GPU is neither the first nor the last"),
    *RING_KERNEL,
)  # fmt: skip
GROUPED = (
    Rule("Model.kv_heads", lambda s, m: 2 * m.kv_heads > m.heads,
         "of {m.name} with {m.heads} heads: another instant takes more", "at most half of the heads", BUDGET),
    *RING,
)  # fmt: skip
#: Of matrices that are divided: what a block keeps in 16 bits; what a GPU holds.
SIXTEEN_BITS = (
    *models(("family", "gpt")),
    Rule("precision", lambda s, m: s.dtypes.compute == "fp32", allowed="bf16, bf16-master", instead=BUDGET),
    only("attention", "flash"),
    only("checkpointing", "none"),
    Rule("Model.activation", lambda s, m: m.activation == "relu", "of {m.name}, which saves its result alone",
         instead=BUDGET),
    Rule("Model.head_width", lambda s, m: m.head_width % 8, allowed="a multiple of eight, which flash attention does not pad"),
)  # fmt: skip
WHOLE = (
    only("Model.family", "gpt", "llama", why=OF_MODEL, instead=BUDGET),
    *models(("experts", 0), ("qk_norm", False)),
    Rule("sharding", lambda s, m: s.fsdp, "divides them once more", "'none'", BUDGET),
    only("Mesh.pipeline", 1, why="divides them once more", instead=BUDGET),
)
#: Of experts' rows, and of their weights.
_CASTS = "casts rows between router and experts"
CAST = (Rule("precision", lambda s, m: s.dtypes.autocast, _CASTS, "bf16, bf16-master, fp32", BUDGET),)
SHARDED = (Rule("sharding", lambda s, m: s.fsdp, "divides experts' weights once more", "'none'", BUDGET),)
#: Of DeepEP's buffers: whole nodes of eight; rows that its copies take.
NODES = (
    Rule("Mesh.expert", lambda s, m: s.mesh.expert > 8 and s.mesh.expert % 8, "is no number of whole nodes of 8 GPUs", "2 to 8, or a multiple of 8"),
)  # fmt: skip
TILED = (Rule("Model.width", lambda s, m: m.width % 32, OF_MODEL, "multiples of 32"),)
#: Of pipelines; with stages of equally many blocks; with buffers between GPUs.
ORDERED = (
    Rule("Mesh.schedule", lambda s, m: schedules.SCHEDULES[s.mesh.schedule].hops is None, ", whose forwards no closed formula counts", "others",
         "everybyte.ask.schedules.in_flight answers"),
)  # fmt: skip
EVEN = (
    Rule("Mesh.pipeline", lambda s, m: m is not None and m.layers % (s.mesh.pipeline * s.mesh.stages),
         lambda s, m: f": {s.mesh.pipeline * s.mesh.stages} stages do not divide the {m.layers} blocks of {m.name}", "a divisor", BUDGET),
    *ORDERED,
)  # fmt: skip
BUFFERED = (
    Rule("Mesh.schedule", lambda s, m: s.mesh.schedule in schedules.TWO_STAGES, ", whose middle stages share a GPU", "others", DRY_RUN),
    *ORDERED,
)  # fmt: skip
#: Of adapters beside every linear layer.
ALL_TARGETS = table(
    only("Lora.targets", "all-linear", instead=BUDGET, when=lambda s, m: s is not None and s.adapters is not None)
)
