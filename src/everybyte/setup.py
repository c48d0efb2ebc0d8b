"""One training configuration, checked when it is made."""

from dataclasses import asdict, dataclass, replace
from types import MappingProxyType

from . import checks
from .catalog import Model

#: Bytes of one number of each data type that a training step stores.
DTYPE_BYTES = MappingProxyType({"fp32": 4, "bf16": 2, "fp16": 2})


@dataclass(frozen=True)
class Precision:
    """Which data type each role has. `master` is the optimizer's own copy of the weights, if any."""

    weights: str
    compute: str
    states: str
    autocast: bool = False
    master: str | None = None
    loss_scaling: bool = False


PRECISIONS = MappingProxyType(
    {
        "fp32": Precision("fp32", "fp32", "fp32"),
        "bf16-mixed": Precision("fp32", "bf16", "fp32", autocast=True),
        "fp16-mixed": Precision("fp32", "fp16", "fp32", autocast=True, loss_scaling=True),
        "bf16-master": Precision("bf16", "bf16", "fp32", master="fp32"),
        "bf16": Precision("bf16", "bf16", "bf16"),
    }
)
#: State tensors, as large as the weights, that each optimizer keeps from step to step.
OPTIMIZERS = MappingProxyType({"sgd": 0, "momentum": 1, "adam": 2, "adamw": 2})
OPTIMIZER_IMPLS = ("foreach", "loop", "fused")
ATTENTIONS = ("eager", "flash")
#: How head and cross-entropy run: on all tokens at once, or chunk by chunk.
LOSSES = ("plain", "chunked")
#: Where `bf16-master` keeps gradients: as backward makes them, in a persistent fp32 buffer, or both.
MASTER_GRADIENTS = ("bf16", "fp32", "both")
#: A field -> the values that it may have; the least and the most of one that is a whole number.
CHOICES = MappingProxyType(
    {
        "precision": tuple(PRECISIONS),
        "optimizer": tuple(OPTIMIZERS),
        "optimizer_impl": OPTIMIZER_IMPLS,
        "attention": ATTENTIONS,
        "loss": LOSSES,
        "master_gradients": MASTER_GRADIENTS,
        "checkpointing": ("none",),
        "sharding": ("none",),
    }
)
LIMITS = MappingProxyType(
    {"batch": (1, 2**24), "sequence": (1, 2**27), "loss_chunks": (1, checks.ABSURD), "gpus": (1, 1)}
)


@dataclass(frozen=True, kw_only=True)
class Setup:
    """A training configuration: what runs, in which data types, with which switches.

    Attributes:
        batch: sequences in one step on one GPU.
        sequence: tokens in one sequence.
        precision: a key of `PRECISIONS`. `*-mixed` is autocast over fp32 weights; `bf16-master` keeps bf16
            weights and an fp32 copy in the optimizer.
        optimizer: a key of `OPTIMIZERS`.
        optimizer_impl: PyTorch's implementation of the optimizer: `foreach` (the default on CUDA), `loop` or `fused`.
        attention: `eager` (the scores exist) or `flash` (they never do).
        dropout: probability, in [0, 1).
        loss: `plain` (all tokens' logits exist) or `chunked` (one chunk's, made again in backward).
        loss_chunks: for `chunked` only: into how many chunks of tokens, of equal size but for a smaller last one. Where
            the tokens do not divide so, `torch.chunk` makes fewer.
        master_gradients: for `bf16-master` only: `bf16`, `fp32` or `both`.
        checkpointing, sharding, gpus: one value each so far; the chapters that teach them add the others.

    Raises:
        ValueError: naming the field, the value and what is allowed.
    """

    batch: int = 8
    sequence: int = 1024
    precision: str = "fp32"
    optimizer: str = "adamw"
    optimizer_impl: str = "foreach"
    attention: str = "flash"
    dropout: float = 0.0
    loss: str = "plain"
    loss_chunks: int = 8
    master_gradients: str = "bf16"
    checkpointing: str = "none"
    sharding: str = "none"
    gpus: int = 1

    def __post_init__(self):
        for field, (least, most) in LIMITS.items():
            checks.whole("Setup", field, getattr(self, field), least, most)
        for field, allowed in CHOICES.items():
            checks.one_of("Setup", field, getattr(self, field), allowed)
        if isinstance(self.dropout, bool) or not isinstance(self.dropout, int | float) or not 0 <= self.dropout < 1:
            raise ValueError(f"Setup.dropout: {self.dropout!r} is not a number in [0, 1)")
        if self.master_gradients != "bf16" and self.precision != "bf16-master":
            raise ValueError(
                f"Setup.master_gradients: {self.master_gradients!r} needs precision 'bf16-master', not {self.precision!r}"
            )
        if self.loss == "chunked":
            checks.whole("Setup", "loss_chunks", self.loss_chunks, 1, self.batch * self.sequence)
        elif self.loss_chunks != 8:
            raise ValueError(f"Setup.loss_chunks: {self.loss_chunks!r} needs loss 'chunked', not {self.loss!r}")

    @property
    def dtypes(self) -> Precision:
        """The data type of each role under this setup's `precision`."""
        return PRECISIONS[self.precision]

    def replace(self, **changes) -> "Setup":
        """A copy with some fields changed, checked again."""
        return replace(self, **changes)

    def as_dict(self) -> dict:
        """The fields as JSON holds them."""
        return asdict(self)

    def check_model(self, model: Model) -> None:
        """Raise ValueError where this setup does not fit `model`: its positions, or heads that no flash kernel takes.

        The kernel for 16 bits takes heads up to 256 wide, the one for fp32 multiples of 4 (PyTorch's
        `native/transformers/cuda/sdp_utils.cpp`); for others `scaled_dot_product_attention` falls back to the scores.
        """
        width, compute = model.head_width, self.dtypes.compute
        allowed = "multiples of 4" if compute == "fp32" else "at most 256"
        if self.attention == "flash" and (width % 4 if compute == "fp32" else width > 256):
            raise ValueError(
                f"Setup.attention: 'flash' takes no heads of width {width} in {compute}, which {model.name} has; "
                f"allowed: 'eager', or widths that are {allowed}"
            )
        if model.positions and self.sequence > model.positions:
            raise ValueError(
                f"Setup.sequence: {self.sequence} is more than the {model.positions} positions of {model.name}; "
                f"allowed: 1 to {model.positions}"
            )
