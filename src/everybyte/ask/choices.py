"""What a setup's fields may be: precisions, optimizers, switches, and the bounds of numbers."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, Literal, get_args

from ..common import checks

PrecisionName = Literal[
    "fp32", "bf16-mixed", "fp16-mixed", "bf16-master", "bf16", "bf16-megatron", "bf16-deepspeed", "own"
]  # fmt: skip
OptimizerName = Literal[
    "sgd", "momentum", "adam", "adamw", "rmsprop", "lion", "adafactor", "muon", "adamw8bit", "paged-adamw8bit",
    "torchao-adamw8bit", "adamw4bit", "adamwfp8",
]  # fmt: skip
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

    @property
    def needs_bf16(self) -> bool:
        """Whether it computes or stores in bf16."""
        return "bf16" in (self.weights, self.compute)


PRECISIONS: Mapping[PrecisionName, Precision] = MappingProxyType(
    {
        "fp32": Precision("fp32", "fp32", "fp32"),
        "bf16-mixed": Precision("fp32", "bf16", "fp32", autocast=True),
        "fp16-mixed": Precision("fp32", "fp16", "fp32", autocast=True, loss_scaling=True),
        "bf16-master": Precision("bf16", "bf16", "fp32", master="fp32"),
        "bf16": Precision("bf16", "bf16", "bf16"),
    }
)

#: `bf16-master` as two libraries have it, gradients in fp32 included: their own loops, on one GPU, with Adam in one kernel.
LIBRARIES: Mapping[PrecisionName, Precision] = MappingProxyType(
    dict.fromkeys(("bf16-megatron", "bf16-deepspeed"), PRECISIONS["bf16-master"])
)
#: Of a module of one's own, or a Hugging Face config: each tensor in the data type that it is made in, and nothing cast.
OWN: Mapping[PrecisionName, Precision] = MappingProxyType({"own": Precision("own", "own", "own")})
EVERY_PRECISION = {**PRECISIONS, **LIBRARIES, **OWN}


@dataclass(frozen=True, kw_only=True)
class Optimizer:
    """One optimizer: a row of `OPTIMIZERS`.

    Attributes:
        algorithm: whose states it keeps and whose temporaries its step makes.
        states: tensors as large as the weights that it keeps from step to step; None where its states have other sizes.
        impls: its implementations, the usual one first.
        passes: numbers that the step of each of `impls` reads and writes for each parameter, operation by operation; None
            where its time is not derived.
        quantized: bytes of 8-bit state that the step reads and writes for each parameter besides.
        paged: whether states of large tensors stand in memory that the driver moves between GPU and CPU.
        code: its class, by its module; options: what it is made with beside the implementation.
        package: what its code comes in, where that is not PyTorch.
    """

    algorithm: Literal["sgd", "momentum", "adam", "rmsprop", "lion", "adafactor", "muon", "adam8bit", "torchao"]
    states: int | None
    impls: tuple[str, ...] = ("foreach", "loop", "fused")
    passes: tuple[int, ...] | None
    quantized: int = 0
    paged: bool = False
    code: str
    options: Mapping[str, float] = field(default_factory=dict, hash=False)
    package: str | None = None

    @property
    def common(self) -> bool:
        """Whether PyTorch has it in every implementation, and in any precision, sharding and mesh."""
        return self.package is None and self.states is not None and "fused" in self.impls


_ADAM8BIT = Optimizer(
    algorithm="adam8bit", states=None, impls=("fused",), passes=(3,), quantized=4, code="bitsandbytes.optim.AdamW8bit", options={"lr": 3e-4},
    package="bitsandbytes",
)  # fmt: skip
_TORCHAO = Optimizer(
    algorithm="torchao", states=None, impls=("loop",), passes=None, code="torchao.optim.AdamW8bit", options={"lr": 3e-4}, package="torchao"
)  # fmt: skip
#: Sources: PyTorch, torch/optim/adam.py, adamw.py, sgd.py, _adafactor.py, _muon.py; aten/src/ATen/native/cuda/
#: fused_adam_utils.cuh; lion_pytorch/lion_pytorch.py; bitsandbytes/optim/optimizer.py; torchao/optim/adam.py.
OPTIMIZERS: Mapping[OptimizerName, Optimizer] = MappingProxyType(
    {
        "sgd": Optimizer(algorithm="sgd", states=0, passes=(3, 3, 3), code="torch.optim.SGD", options={"lr": 1e-3}),
        "momentum": Optimizer(
            algorithm="momentum", states=1, passes=(8, 8, 5), code="torch.optim.SGD", options={"lr": 1e-3, "momentum": 0.9}
        ),
        "adam": Optimizer(algorithm="adam", states=2, passes=(18, 18, 7), code="torch.optim.Adam", options={"lr": 3e-4}),
        "adamw": Optimizer(algorithm="adam", states=2, passes=(20, 20, 7), code="torch.optim.AdamW", options={"lr": 3e-4}),
        "rmsprop": Optimizer(
            algorithm="rmsprop", states=1, impls=("foreach", "loop"), passes=(13, 13), code="torch.optim.RMSprop", options={"lr": 1e-3}
        ),
        "lion": Optimizer(
            algorithm="lion", states=1, impls=("loop",), passes=(21,), code="lion_pytorch.Lion", options={"lr": 1e-4}, package="lion-pytorch"
        ),
        "adafactor": Optimizer(
            algorithm="adafactor", states=None, impls=("loop", "foreach"), passes=(17, 19), code="torch.optim.Adafactor", options={"lr": 1e-2}
        ),
        "muon": Optimizer(algorithm="muon", states=None, passes=None, code="torch.optim.Muon", options={"lr": 1e-3}),
        "adamw8bit": _ADAM8BIT,
        "paged-adamw8bit": replace(_ADAM8BIT, paged=True, code="bitsandbytes.optim.PagedAdamW8bit"),
        "torchao-adamw8bit": _TORCHAO,
        "adamw4bit": replace(_TORCHAO, code="torchao.optim.AdamW4bit"),
        "adamwfp8": replace(_TORCHAO, code="torchao.optim.AdamWFp8"),
    }
)  # fmt: skip
#: (algorithm, whether under FSDP, whose shares are `DTensor`s; otherwise under ZeRO-1, whose share is a row of numbers) -> why it is
#: not derived there, and what its code raises, of PyTorch 2.13 and bitsandbytes 0.50.
NOT_SHARDED: Mapping[tuple[str, bool], tuple[str, tuple[str, ...]]] = MappingProxyType(
    {
        ("adafactor", True): ("its mean of each column is over rows that other GPUs have, and PyTorch raises",
                              ("in-place operations that require placement changes are not supported",)),
        ("adam8bit", True): ("bitsandbytes raises",
                             ("got mixed torch.Tensor and DTensor", "does not have a sharding strategy registered")),
        ("muon", False): ("the share is a row of many weights' numbers, and PyTorch raises", ("Muon only supports 2D parameters",)),
    }
)  # fmt: skip
#: Those that PyTorch has in every implementation, and whose states are as large as the weights.
COMMON_OPTIMIZERS = tuple(name for name, row in OPTIMIZERS.items() if row.common)
LoopName = Literal["plain", "nanogpt", "trainer", "torchtitan", "accelerate"]
Outputs = Literal["dropped", "kept"]
ZeroGrad = Literal["end", "start", "backward"]
Clip = Literal["none", "foreach", "loop"]


@dataclass(frozen=True, kw_only=True)
class Loop:
    """One training loop: a row of `LOOPS`, whose code `reference/loops/` has by its name.

    Attributes:
        outputs: whether what a forward gives, its logits among it, is dropped before backward, or kept until the next forward has
            given its own. zero_grad: where a step drops gradients: at its end, at its start, or before its first backward.
        clip: whether gradients are scaled to a norm, and how the norms are taken, as `torch.nn.utils.clip_grad_norm_` has it.
    """

    outputs: Outputs = "dropped"
    zero_grad: ZeroGrad = "end"
    clip: Clip = "none"


#: Sources: nanoGPT, train.py; transformers 5.23, trainer.py, `_run_epoch` and `training_step`; torchtitan, trainer.py, `train_step`;
#: accelerate 1.15, examples/nlp_example.py.
LOOPS: Mapping[LoopName, Loop] = MappingProxyType(
    {
        "plain": Loop(),
        "nanogpt": Loop(outputs="kept", clip="foreach"),
        "trainer": Loop(clip="foreach"),
        "torchtitan": Loop(zero_grad="start", clip="foreach"),
        "accelerate": Loop(outputs="kept"),
    }
)
#: What the values mean, `Setup` says.
OptimizerImpl = Literal["foreach", "loop", "fused"]
Attention = Literal["eager", "flash"]
LinearAttention = Literal["torch", "fla"]
Loss = Literal["plain", "chunked", "linear-cross-entropy"]
Checkpointing = Literal["none", "full", "every-k", "selective", "operations", "one-in-k", "second-products"]
Sharding = Literal["none", "zero1", "zero2", "zero3"]
ShardingUnits = Literal["block", "block+ends", "model"]
Resharding = Literal["usual", "root", "ends", "not-last", "group"]
Offload = Literal["none", "cpu", "activations"]
MuonGather = Literal["each", "owner", "all-to-all"]
Buckets = Literal["copies", "views"]
MasterGradients = Literal["bf16", "fp32", "both"]
Quantization = Literal["none", "nf4"]
#: A field -> the values that it may have; of one that is a whole number the least and the most.
CHOICES = MappingProxyType(
    {
        "precision": get_args(PrecisionName), "optimizer": get_args(OptimizerName), "optimizer_impl": get_args(OptimizerImpl),
        "attention": get_args(Attention), "linear_attention": get_args(LinearAttention), "loss": get_args(Loss),
        "master_gradients": get_args(MasterGradients),
        "checkpointing": get_args(Checkpointing), "sharding": get_args(Sharding), "sharding_units": get_args(ShardingUnits),
        "resharding": get_args(Resharding), "muon_gather": get_args(MuonGather),
        "offload": get_args(Offload), "buckets": get_args(Buckets), "quantization": get_args(Quantization),
        "loop": get_args(LoopName), "outputs": get_args(Outputs), "zero_grad": get_args(ZeroGrad), "clip": get_args(Clip),
    }
)  # fmt: skip
OPTIMIZER_IMPLS, ATTENTIONS, LOSSES = CHOICES["optimizer_impl"], CHOICES["attention"], CHOICES["loss"]
CHECKPOINTINGS, SHARDINGS, SHARDING_UNITS = CHOICES["checkpointing"], CHOICES["sharding"], CHOICES["sharding_units"]
OFFLOADS, BUCKETS, MASTER_GRADIENTS = CHOICES["offload"], CHOICES["buckets"], CHOICES["master_gradients"]
#: Fields of which each model has its own value -> what they are while no model is known, and of the book's own models.
OWNED: Mapping[str, Any] = MappingProxyType(
    {"sequence": 1024, "precision": "fp32", "attention": "flash", "dropout": 0.0}
)
#: The largest rank that is taken for one.
MOST_RANK = 2**14
_LOW = "is not derived: chapter 27 sums what a linear layer saves, and `everybyte rehearse` runs a script's own; allowed: {}"
#: Field -> what a chapter adds up and no step here has, or what is another name for a value -> what is said of it, before those allowed.
APART: Mapping[str, Mapping[str, str]] = MappingProxyType(
    {
        "precision": dict.fromkeys(("fp8", "float8", "mxfp8", "mxfp4", "nvfp4"), _LOW)
        | dict.fromkeys(("bfloat16", "pure-bf16"), "is precision 'bf16', weights and states too, or autocast's 'bf16-mixed'; allowed: {}"),
        "optimizer": {
            "galore": "is not derived: chapter 24 sums its states; allowed: {}; everybyte rehearse runs a script with it",
            "adamw_torch": "is optimizer 'adamw'; allowed: {}",
            "adamw_torch_fused": "is optimizer 'adamw' with optimizer_impl 'fused'; allowed: {}",
            "adamw_bnb_8bit": "is optimizer 'adamw8bit'; allowed: {}",
            "paged_adamw_8bit": "is optimizer 'paged-adamw8bit'; allowed: {}",
        },
        "attention": {
            "sdpa": "is attention 'flash', PyTorch's scaled_dot_product_attention; allowed: {}",
            "flash_attention_2": "is the flash-attn package's, which is not derived, and 'flash' is PyTorch's; allowed: {}",
        },
        "loss": {"liger": "is another package's, which is not derived; allowed: {}; everybyte rehearse runs a script with it"},
        "sharding": {
            "fsdp1": "is sharding 'zero3' (FULL_SHARD) or 'zero2' (SHARD_GRAD_OP) with fsdp_version 1; allowed: {}",
            "fsdp2": "is sharding 'zero3' or 'zero2' (reshard_after_forward=False); allowed: {}",
        },
    }
)  # fmt: skip
#: Optimizers of the libraries in `LIBRARIES`.
LIBRARY_OPTIMIZERS = ("adamw", "adam")
#: Optimizers whose step over divided weights, without FSDP, is counted, and in which forms.
TENSOR_OPTIMIZERS = MappingProxyType({"adamw": ("foreach", "fused"), "adam": ("foreach", "fused"), "sgd": ("foreach",)})
LIMITS = MappingProxyType(
    {
        "batch": (1, 2**24), "sequence": (1, 2**27), "accumulation": (1, 2**20), "loss_chunks": (1, checks.ABSURD),
        "checkpoint_every": (1, 2**20), "resharding_gpus": (2, 2**20), "gpus": (1, 2**20), "fsdp_version": (1, 2), "replicas": (1, 2**20),
    }
)  # fmt: skip
