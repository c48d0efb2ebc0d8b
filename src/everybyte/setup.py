"""One training configuration, checked when it is made."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import Literal, final

from . import checks, pipelines
from .catalog import Model
from .catalog.weights import layers, linears, weights
from .choices import (  # noqa: F401  whoever has a setup finds here what its fields may be
    ATTENTIONS,
    BUCKETS,
    CHECKPOINTINGS,
    CHOICES,
    COMMON_OPTIMIZERS,
    DTYPE_BYTES,
    EVERY_PRECISION,
    LIBRARIES,
    LIBRARY_OPTIMIZERS,
    LIMITS,
    LOSSES,
    MASTER_GRADIENTS,
    MOST_RANK,
    NOT_SHARDED,
    OFFLOADS,
    OPTIMIZER_IMPLS,
    OPTIMIZERS,
    OWN,
    PRECISIONS,
    SHARDING_UNITS,
    SHARDINGS,
    SUMMED,
    TENSOR_OPTIMIZERS,
    Attention,
    Buckets,
    Checkpointing,
    Loss,
    MasterGradients,
    Offload,
    Optimizer,
    OptimizerImpl,
    OptimizerName,
    Precision,
    PrecisionName,
    Quantization,
    Sharding,
    ShardingUnits,
)  # fmt: skip
from .mesh import DIVIDED, TOGETHER, Mesh, divided


@final
@dataclass(frozen=True)
class Lora:
    """Low-rank adapters: beside each targeted linear layer W two small matrices, so that it gives W x + B A x; they alone train.

    Source: Hu et al. 2021, arXiv:2106.09685; peft, tuners/lora/layer.py, `Linear.forward`.

    Attributes:
        rank: rows of each A and columns of each B.
        targets: names of linear layers, each matched at the end of a module's path, as peft does; or `all-linear`, every linear
            layer but the output head. Of a `Model`: the blocks' `q`, `k`, `v`, `qkv`, `out`, `gate`, `up`, `down`, `router`, those
            that it has.
        dtype: of the adapters: `fp32`, as peft makes them by default, or `bf16` over 16-bit weights, as with
            `autocast_adapter_dtype=False`.
        base: the data type of the frozen weights; by default the precision's. `bf16` with `bf16-mixed`: the model is loaded in 16
            bits, and trained under autocast.
        dropout: peft's `lora_dropout`, probability in [0, 1) with which a number of what A is given becomes 0.

    Raises:
        ValueError: naming the field, the value and what is allowed.
    """

    rank: int = 16
    targets: tuple[str, ...] | str = "all-linear"
    dtype: Literal["fp32", "bf16"] = "fp32"
    base: Literal["fp32", "bf16"] | None = None
    dropout: float = 0.0

    def __post_init__(self):
        checks.whole("Lora", "rank", self.rank, 1, MOST_RANK)
        if not isinstance(self.targets, str) or self.targets != "all-linear":
            given = [self.targets] if isinstance(self.targets, str) else self.targets
            names = tuple(dict.fromkeys(given)) if isinstance(given, list | tuple) else ()
            if not names or not all(isinstance(name, str) and name for name in names):
                raise ValueError(
                    f"Lora.targets: {checks.shown(self.targets)} is no list of linear layers' names; allowed: names, or 'all-linear'"
                )
            object.__setattr__(self, "targets", names)
        checks.one_of("Lora", "dtype", self.dtype, ("fp32", "bf16"))
        if self.base is not None:
            checks.one_of("Lora", "base", self.base, ("fp32", "bf16"))
        checks.probability("Lora", "dropout", self.dropout)

    @classmethod
    def read(cls, text: str) -> "Lora":
        """From a command's text: `rank=16 targets=q,v dtype=bf16`, each left out at its default."""
        said = checks.words("Lora", text, [f.name for f in fields(cls)])
        if isinstance(said.get("targets"), str) and said["targets"] != "all-linear":
            said["targets"] = tuple(said["targets"].split(","))
        return cls(**said)

    def __str__(self):
        targets = self.targets if isinstance(self.targets, str) else ",".join(self.targets)
        rest = [f"{name}={value}" for name, value in (("base", self.base), ("dropout", self.dropout)) if value]
        return " ".join([f"rank={self.rank} targets={targets} dtype={self.dtype}", *rest])

    def takes(self, path: str) -> bool:
        """Whether it stands beside the linear layer of that path, in a block."""
        if self.targets == "all-linear":
            return True
        return any(_ends(path, target) for target in self.targets)

    def check_model(self, model: Model) -> None:
        """Raise ValueError where a target matches no linear layer of the model's blocks, or the rank is over a target's width."""
        self.chosen(
            {path: weight.shape[1] for path, weight in linears(model)},
            f"in the blocks of {model.name}",
            f" in {model.name}",
        )

    def chosen(self, widths: Mapping[str, int], among: str, inside: str = "") -> list[str]:
        """The paths, of linear layers with their inputs' widths, that it stands beside.

        Args:
            among, inside: where the layers are, in the words of an error.

        Raises:
            ValueError: where a target matches none of them, or the rank is over a target's width.
        """
        for target in () if isinstance(self.targets, str) else self.targets:
            if not any(_ends(path, target) for path in widths):
                short = ", ".join(dict.fromkeys(path.rpartition(".")[2] for path in widths))
                raise ValueError(f"Lora.targets: {target!r} matches no linear layer {among}; allowed: {short}")
        found = [path for path in widths if self.takes(path)]
        width, path = min((widths[path], path) for path in found)
        if self.rank > width:
            raise ValueError(
                f"Lora.rank: {self.rank} is more than the width {width} of {path}{inside}; allowed: 1 to {width}"
            )
        return found


def _ends(path, target):
    """Whether a target names that path, as peft matches them."""
    return f".{path}".endswith(f".{target}")


@final
@dataclass(frozen=True, kw_only=True)
class Setup:
    """A training configuration: what runs, in which data types, with which switches.

    Attributes:
        batch: sequences in one forward on one GPU.
        sequence: tokens in one sequence.
        accumulation: forwards and backwards, on a batch each, whose gradients add up before the optimizer's step.
        precision: a key of `PRECISIONS`, `LIBRARIES` or `OWN`. `*-mixed` is autocast over fp32 weights; `bf16-master` keeps bf16
            weights and an fp32 copy in the optimizer. On one GPU that is also done as two libraries do it: `bf16-megatron` adds
            gradients up in one fp32 buffer, and drops the 16-bit ones as they come; `bf16-deepspeed` has both until the step ends.
            `own` leaves a module of your own, or what a Hugging Face config makes, in the data types that it is made in.
        optimizer: a key of `OPTIMIZERS`.
        optimizer_impl: the optimizer's implementation: all tensors at once operation by operation (`foreach`, PyTorch's
            default on CUDA), one after another (`loop`), or in one kernel (`fused`); by default the first of its `impls`. Of
            `muon`, whose own step is a loop, that of the AdamW for what is no matrix of a block. Under `zero1` an optimizer has one
            vector, its share of all numbers: `adafactor` factors nothing there, and 8-bit states are in blocks of it.
        attention: `eager` (the scores exist) or `flash` (they never do).
        dropout: probability, in [0, 1).
        loss: `plain` (all tokens' logits exist), `chunked` (one chunk's, recomputed in backward), or `linear-cross-entropy`
            (one chunk's, which become gradients in forward: `torch.nn.functional.linear_cross_entropy` with its default options).
        loss_chunks: for `chunked` only: into how many chunks of tokens, of equal size but for a smaller last one. Where
            the tokens do not divide so, `torch.chunk` makes fewer.
        master_gradients: for `bf16-master` only: `bf16`, `fp32` or `both`.
        checkpointing: what forward does not save and backward recomputes: `none`; `full` (each block keeps its input alone);
            `every-k` (so does each segment of `checkpoint_every` blocks); `selective` (attention, between the projections);
            `operations` (in each block, the results of matrix products and of attention kernels are kept, and the rest is made
            again).
        checkpoint_every: for `every-k` only: blocks in a segment; the last one may be shorter.
        gpus: how many train one model, each on a batch of its own.
        sharding: what they divide among them: `none`, so that each holds all of it (DDP, from two GPUs on); `zero1`, the
            optimizer's states; `zero2` and `zero3`, gradients and weights too (FSDP), where weights once gathered stay
            through backward (`zero2`), or are freed after forward and gathered again (`zero3`).
        sharding_units: for `zero2` and `zero3` only: what is gathered at a time: each `block`, and the rest with the root;
            `block+ends`, each block, the token embedding, the last norm with the head, and the rest with the root; or the
            whole `model`.
        replicas: for `zero2` and `zero3` only: how many groups of GPUs hold all of it, each dividing it (HSDP); a divisor
            of `gpus`.
        offload: for `zero2` and `zero3` only: `cpu` keeps each GPU's share of weights, gradients and states in the memory of the
            CPU, which runs the optimizer; weights are copied to the GPU to be gathered, gradients back as they come.
        no_sync: for `zero2` and `zero3` with several batches (`accumulation`) only: whole gradients add up on each GPU, and only
            the last batch's backward divides them; otherwise each one does.
        buckets: for DDP only: beside the gradients stand `copies` of them to be averaged, or they are `views` of these.
        adapters: a `Lora`, which trains in place of the model's weights; None for full fine-tuning. On one GPU, or under DDP, ZeRO and FSDP.
        quantization: with adapters only: `nf4` keeps the linear layers of blocks in 4 bits, quantized from the data type of matrix
            products, as bitsandbytes does with double quantization (QLoRA); or `none`.
        mesh: a `Mesh`, what is divided beside the batch; `gpus` are all of its GPUs, and `accumulation` the micro-batches of a
            pipeline. By default nothing is.

    Raises:
        ValueError: naming the field, the value and what is allowed.
    """

    batch: int = 8
    sequence: int = 1024
    accumulation: int = 1
    precision: PrecisionName = "fp32"
    optimizer: OptimizerName = "adamw"
    optimizer_impl: OptimizerImpl = None  # type: ignore[assignment]  # the optimizer's usual one
    attention: Attention = "flash"
    dropout: float = 0.0
    loss: Loss = "plain"
    loss_chunks: int = 8
    master_gradients: MasterGradients = "bf16"
    checkpointing: Checkpointing = "none"
    checkpoint_every: int = 2
    sharding: Sharding = "none"
    gpus: int = 1
    sharding_units: ShardingUnits = "block"
    replicas: int = 1
    offload: Offload = "none"
    no_sync: bool = False
    buckets: Buckets = "copies"
    adapters: Lora | None = None
    quantization: Quantization = "none"
    mesh: Mesh = Mesh()

    def __post_init__(self):
        if isinstance(self.adapters, Mapping):  # as JSON holds it
            object.__setattr__(self, "adapters", _lora_of(self.adapters))
        if isinstance(self.mesh, Mapping):
            object.__setattr__(self, "mesh", Mesh.of(self.mesh))
        checks.one_of("Setup", "precision", self.precision, CHOICES["precision"])
        if isinstance(self.optimizer, str) and self.optimizer in SUMMED:
            raise ValueError(
                f"Setup.optimizer: {self.optimizer!r} is not derived: chapter 24 sums its states; allowed: {', '.join(OPTIMIZERS)}"
            )
        checks.one_of("Setup", "optimizer", self.optimizer, OPTIMIZERS)
        if self.optimizer_impl is None:
            usual = "fused" if self.precision in LIBRARIES else OPTIMIZERS[self.optimizer].impls[0]
            object.__setattr__(self, "optimizer_impl", usual)
        for field, (least, most) in LIMITS.items():
            checks.whole("Setup", field, getattr(self, field), least, most)
        for field, allowed in CHOICES.items():
            checks.one_of("Setup", field, getattr(self, field), allowed)
        checks.probability("Setup", "dropout", self.dropout)
        if self.master_gradients != "bf16" and self.precision != "bf16-master":
            raise ValueError(
                f"Setup.master_gradients: {self.master_gradients!r} needs precision 'bf16-master', not {self.precision!r}"
            )
        if self.loss == "chunked":
            checks.whole("Setup", "loss_chunks", self.loss_chunks, 1, self.batch * self.sequence)
        elif self.loss_chunks != 8:
            raise ValueError(f"Setup.loss_chunks: {self.loss_chunks!r} needs loss 'chunked', not {self.loss!r}")
        if self.checkpoint_every != 2 and self.checkpointing != "every-k":
            raise ValueError(
                f"Setup.checkpoint_every: {self.checkpoint_every!r} needs checkpointing 'every-k', not {self.checkpointing!r}"
            )
        self._check_optimizer()
        self._check_mesh()
        self._check_library()
        self._check_own()
        self._check_loss()
        self._check_context()
        self._check_experts()
        self._check_gpus()
        self._check_adapters()

    def _check_optimizer(self):
        """Which implementation and which sharding go with the optimizer."""
        row = OPTIMIZERS[self.optimizer]
        if self.optimizer_impl not in row.impls:
            raise ValueError(
                f"Setup.optimizer_impl: {self.optimizer_impl!r} is none of {self.optimizer}'s; allowed: {', '.join(row.impls)}"
            )
        found = NOT_SHARDED.get((row.algorithm, self.fsdp)) if self.sharding != "none" else None
        if found:
            why, raised = found
            there = [name for name, row in OPTIMIZERS.items() if (row.algorithm, self.fsdp) not in NOT_SHARDED]
            raise ValueError(
                f"Setup.optimizer: {self.optimizer!r} with sharding {self.sharding!r}: {' '.join([why, ' or '.join(map(repr, raised))]).strip()}; "
                f"allowed there: {', '.join(there)}"
            )

    def _check_library(self):
        """What goes with the loops of libraries."""
        if self.precision not in LIBRARIES:
            return
        for field, fine, allowed in (
            ("optimizer", self.optimizer in LIBRARY_OPTIMIZERS, ", ".join(LIBRARY_OPTIMIZERS)),
            ("optimizer_impl", self.optimizer_impl == "fused", "'fused', as its Adam is one kernel"),
            ("gpus", self.gpus == 1, "1, or precision 'bf16-master'"),
            ("sharding", self.sharding == "none", "'none', or precision 'bf16-master'"),
            ("adapters", self.adapters is None, "None, or precision 'bf16-master'"),
        ):
            if not fine:
                raise ValueError(
                    f"Setup.{field}: {getattr(self, field)!r} with precision {self.precision!r} is not derived; allowed: {allowed}"
                )

    def _check_own(self):
        """What goes with data types that no one but the module knows."""
        for field, fine, allowed in (
            ("sharding", self.sharding == "none", "'none'"),
            ("adapters", self.adapters is None, "None"),
            ("mesh", self.mesh.alone, "no mesh"),
        ):
            if self.precision in OWN and not fine:
                raise ValueError(
                    f"Setup.{field}: {getattr(self, field)} with precision {self.precision!r} is not derived; allowed: {allowed}, or "
                    f"precision {', '.join(PRECISIONS)}"
                )

    def _check_loss(self):
        """What goes with head and loss in one function of PyTorch's."""
        if self.loss != "linear-cross-entropy":
            return
        if not self.mesh.alone:
            raise ValueError(
                f"Setup.loss: {self.loss!r} with mesh {self.mesh} is not derived; allowed: 'plain', or no mesh"
            )
        if self.sharding_units == "block+ends":
            raise ValueError(
                f"Setup.loss: {self.loss!r} with sharding_units 'block+ends', which gather the head's weight where the head is "
                "called: the function takes the weight alone; allowed: 'plain', or other units"
            )
        lora = self.adapters
        if isinstance(lora, Lora) and self.dtypes.autocast and lora.base == "bf16":
            raise ValueError(
                f"Setup.loss: {self.loss!r} with precision {self.precision!r} over weights in bf16: autocast has no rule for the "
                "function, and PyTorch does not multiply the norm's fp32 by the head's bf16; allowed: 'plain', 'chunked', or "
                "Lora.base 'fp32'"
            )

    def _check_adapters(self):
        """Which precisions, optimizers and GPUs go with adapters."""
        lora, own = self.adapters, self.dtypes
        if lora is None:
            if self.quantization != "none":
                raise ValueError(
                    f"Setup.quantization: {self.quantization!r} without adapters: no optimizer moves weights of 4 bits; allowed: "
                    "adapters=Lora(...), or 'none'"
                )
            return
        if not isinstance(lora, Lora):
            raise ValueError(f"Setup.adapters: {checks.shown(lora)} is no Lora; allowed: a Lora, or None")
        if not self.mesh.alone:
            raise ValueError(f"Setup.adapters: {lora} with mesh {self.mesh} is not derived; allowed: None, or no mesh")
        for field, found, allowed in (
            ("quantization", self.fsdp and self.quantization != "none", "'none', or sharding 'none' or 'zero1'"),
        ):
            if found:
                raise ValueError(
                    f"Setup.{field}: {getattr(self, field)!r} with adapters {lora} and sharding {self.sharding!r} is not derived; "
                    f"allowed: {allowed}"
                )
        if self.optimizer == "muon":
            raise ValueError(
                "Setup.adapters: every adapter is a matrix of a block, and 'muon' has an AdamW for other weights, of which there "
                f"are none; allowed: {', '.join(name for name in OPTIMIZERS if name != 'muon')}"
            )
        if lora.base not in (None, own.weights) and (self.precision, lora.base) != ("bf16-mixed", "bf16"):
            raise ValueError(
                f"Lora.base: {lora.base!r} with precision {self.precision!r}; allowed: {own.weights!r}"
                + (" or 'bf16'" if self.precision == "bf16-mixed" else "")
            )
        allowed = ("fp32",) if self.base_dtype == "fp32" else ("bf16",) if own.master else ("fp32", "bf16")
        if self.quantization != "none":
            if own.master:
                raise ValueError(
                    f"Setup.quantization: {self.quantization!r} with precision {self.precision!r}: peft makes adapters over 4-bit "
                    "weights in fp32, which need no copies; allowed: fp32, bf16-mixed, fp16-mixed, bf16"
                )
            allowed = ("fp32",)
        if lora.dtype not in allowed:
            why = "over 16-bit weights with fp32 copies" if own.master else f"over weights in {self.base_dtype}"
            why = "over 4-bit weights" if self.quantization != "none" else why
            raise ValueError(
                f"Lora.dtype: {lora.dtype!r} {why}, precision {self.precision!r}; allowed: {' or '.join(map(repr, allowed))}"
            )

    def _check_mesh(self):
        """Which numbers of GPUs go with the mesh."""
        mesh = self.mesh
        if not isinstance(mesh, Mesh):
            raise ValueError(f"Setup.mesh: {checks.shown(mesh)} is no Mesh; allowed: a Mesh")
        if self.gpus % mesh.size:
            below, above = self.gpus // mesh.size * mesh.size, -(-self.gpus // mesh.size) * mesh.size
            near = f"{below} or {above}" if below else f"{above}"
            raise ValueError(
                f"Setup.gpus: {self.gpus} are no multiple of the {mesh.size} GPUs of the mesh ({mesh}); allowed: a multiple, as {near}"
            )
        pipelines.check(mesh, self.accumulation)
        if self.sharers % mesh.expert:
            raise ValueError(
                f"Mesh.expert: {mesh.expert} does not divide the {self.sharers} GPUs of data and context; allowed: a divisor"
            )

    def _check_tensor(self):
        """Which switches go with matrices that are divided."""
        fsdp = "sharding 'zero2' or 'zero3'"
        impls = TENSOR_OPTIMIZERS.get(self.optimizer, ())
        refused = (
            ("adapters", self.adapters is not None, "allowed: None"),
            ("offload", self.offload != "none", "allowed: 'none'"),
            ("loss", self.loss != "plain", "allowed: 'plain'"),
            ("checkpointing", self.checkpointing == "operations", "allowed: none, full, every-k, selective"),
            ("sharding", self.sharding == "zero1", f"allowed: 'none' with one GPU of data, or {fsdp}"),
            ("sharding", self.ddp, f"DDP takes no weights that are divided; allowed: {fsdp}"),
            ("precision", self.dtypes.loss_scaling, "allowed: fp32, bf16-master, bf16, or bf16-mixed under FSDP"),
            (
                "precision", self.dtypes.autocast and not self.fsdp, f"allowed: fp32, bf16-master, bf16, or {fsdp}",
            ),
            ("master_gradients", self.master_gradients != "bf16", "allowed: 'bf16'"),
            ("no_sync", self.no_sync, "allowed: False"),
            ("replicas", self.replicas > 1, "allowed: 1"),
            ("optimizer", not impls and not self.fsdp, f"allowed: {', '.join(TENSOR_OPTIMIZERS)}, or {fsdp}"),
            (
                "optimizer_impl", self.optimizer_impl not in impls and not self.fsdp,
                f"allowed of {self.optimizer}: {', '.join(impls)}, or {fsdp}",
            ),
        )  # fmt: skip
        for field, found, allowed in refused:
            if found:
                value = getattr(self, field)
                raise ValueError(f"Setup.{field}: {value!r} with mesh {self.mesh} is not derived; {allowed}")

    def _check_experts(self):
        """Which sharing goes with experts that are divided."""
        parts = self.mesh.expert
        if parts == 1:
            return
        for field, refused, allowed in (
            ("sharding", self.sharding == "zero1", "'none', 'zero2' or 'zero3'"),
            ("buckets", self.buckets != "copies", "'copies'"),
            ("replicas", self.replicas > 1, "1"),
            ("adapters", self.adapters is not None, "None"),
        ):
            if refused:
                raise ValueError(
                    f"Setup.{field}: {getattr(self, field)!r} with mesh {self.mesh} is not derived; allowed: {allowed}"
                )

    def _check_context(self):
        """Which sequences and attentions go around a ring."""
        parts = self.mesh.context
        if parts == 1:
            return
        if self.sequence % (2 * parts):
            below, above = (n * 2 * parts for n in (self.sequence // (2 * parts), -(-self.sequence // (2 * parts))))
            near = f"{below} or {above}" if below else f"{above}"
            raise ValueError(
                f"Setup.sequence: {self.sequence} does not make two equal pieces for each of the {parts} GPUs of mesh {self.mesh}: "
                f"{self.sequence % (2 * parts)} tokens are left; allowed: a multiple of {2 * parts}, as {near}"
            )
        if self.attention != "flash":
            raise ValueError(
                f"Setup.attention: {self.attention!r} with mesh {self.mesh}: no ring forms the scores; allowed: 'flash'"
            )
        if self.dropout:
            raise ValueError(
                f"Setup.dropout: {self.dropout} with mesh {self.mesh}: PyTorch's ring attention keeps the random state of its last "
                "part alone; allowed: 0.0"
            )
        if self.replicas > 1:
            raise ValueError(
                f"Setup.replicas: {self.replicas} with mesh {self.mesh}: groups of rings that each hold the model are not derived; "
                "allowed: 1"
            )

    def _check_gpus(self):
        """Which switches belong to which sharding."""
        checks.flag("Setup", "no_sync", self.no_sync)
        if self.no_sync and not (self.fsdp and self.accumulation > 1):
            raise ValueError(
                f"Setup.no_sync: True needs sharding 'zero2' or 'zero3' and accumulation from 2 on, not {self.sharding!r} and "
                f"{self.accumulation}; allowed: False"
            )
        for field, usual in (("sharding_units", "block"), ("replicas", 1), ("offload", "none")):
            if getattr(self, field) != usual and not self.fsdp:
                raise ValueError(
                    f"Setup.{field}: {getattr(self, field)!r} needs sharding 'zero2' or 'zero3', not {self.sharding!r}"
                )
        if self.sharers % self.replicas:
            among = "gpus" if self.mesh.alone else "GPUs of data and context"
            raise ValueError(
                f"Setup.replicas: {self.replicas} does not divide the {self.sharers} {among}; allowed: a divisor"
            )
        if self.buckets != "copies" and not self.ddp:
            raise ValueError(
                f"Setup.buckets: {self.buckets!r} needs sharding 'none' and gpus from 2 on, not {self.sharding!r} and "
                f"{self.gpus}"
            )
        if self.dtypes.loss_scaling and self.sharding != "none":
            raise ValueError(
                f"Setup.precision: {self.precision!r} with sharding {self.sharding!r}: each GPU would see its own share of "
                "the gradients alone, and scale the loss by itself; allowed: fp32, bf16-mixed, bf16-master, bf16"
            )
        if self.master_gradients != "bf16" and self.distributed:
            raise ValueError(
                f"Setup.master_gradients: {self.master_gradients!r} needs one GPU and sharding 'none', not {self.gpus} and "
                f"{self.sharding!r}"
            )

    @property
    def fsdp(self) -> bool:
        """Whether weights are divided too, and gathered to be used."""
        return self.sharding in ("zero2", "zero3")

    @property
    def data(self) -> int:
        """Groups of GPUs that each train on a batch of their own."""
        return self.gpus // self.mesh.size

    @property
    def sharers(self) -> int:
        """GPUs with the same part of the model, which divide it, or average its gradients: those of data and context."""
        return self.data * self.mesh.context

    def sharer(self, rank: int) -> int:
        """Which of `sharers` a GPU is."""
        place = self.mesh.rank(rank, self.data)
        return place["data"] * self.mesh.context + place["context"]

    @property
    def shards(self) -> int:
        """Parts into which sharding cuts."""
        return self.sharers // self.replicas

    @property
    def own_sequence(self) -> int:
        """Tokens of each sequence that one GPU has."""
        return self.sequence // self.mesh.context

    @property
    def expert_shards(self) -> int:
        """GPUs of a group that have the same experts, among which FSDP divides them."""
        return self.shards // self.mesh.expert

    @property
    def ddp(self) -> bool:
        """Whether every one of several GPUs holds everything."""
        return self.sharers > 1 and self.sharding == "none"

    @property
    def distributed(self) -> bool:
        """Whether the step communicates."""
        return self.gpus > 1 or self.sharding != "none"

    @property
    def segment(self) -> int:
        """Blocks that are checkpointed together, and that backward recomputes together; 0 for none."""
        return {"full": 1, "every-k": self.checkpoint_every}.get(self.checkpointing, 0)

    @property
    def dtypes(self) -> Precision:
        """The data type of each role under this setup's `precision`."""
        return EVERY_PRECISION[self.precision]

    @property
    def kept_gradients(self) -> MasterGradients:
        """Where gradients are kept over 16-bit weights: as `master_gradients` says, or a library's own loop."""
        loops: dict[str, MasterGradients] = {"bf16-megatron": "fp32", "bf16-deepspeed": "both"}
        return loops.get(self.precision, self.master_gradients)

    @property
    def base_dtype(self) -> str:
        """The data type of the model's own weights between steps."""
        return (self.adapters and self.adapters.base) or self.dtypes.weights

    @property
    def trained_dtype(self) -> str:
        """The data type of what trains: the weights, or their adapters."""
        return self.adapters.dtype if self.adapters else self.dtypes.weights

    @property
    def state_dtype(self) -> str:
        """The data type of the optimizer's states: of adapters their own, unless the optimizer has copies of them."""
        return self.dtypes.states if self.dtypes.master or not self.adapters else self.adapters.dtype

    @property
    def reduced_dtype(self) -> str:
        """The data type in which GPUs add gradients up."""
        return self.dtypes.weights if self.fsdp and self.dtypes.autocast else self.trained_dtype

    @property
    def update_bytes(self) -> int:
        """Bytes that the optimizer's step reads and writes for each parameter; ValueError where its time is not theirs."""
        row = OPTIMIZERS[self.optimizer]
        if row.passes is None:
            raise ValueError(
                f"plan.setup: the step of optimizer {self.optimizer!r} is matrix products, whose time is not derived; allowed: "
                f"{', '.join(name for name, other in OPTIMIZERS.items() if other.passes)}; eb.fit and eb.budget answer for its "
                "memory"
            )
        own = DTYPE_BYTES[self.dtypes.master or self.trained_dtype]
        return own * row.passes[row.impls.index(self.optimizer_impl)] + row.quantized

    def replace(self, **changes) -> "Setup":
        """A copy with some fields changed, checked again. The optimizer's usual implementation becomes the other's usual one."""
        usual = self.optimizer_impl == OPTIMIZERS[self.optimizer].impls[0]
        if changes.get("optimizer") in list(OPTIMIZERS) and usual:
            changes = {"optimizer_impl": None} | changes
        if changes.get("precision") in list(LIBRARIES) and usual:
            changes = {"optimizer_impl": None} | changes
        return replace(self, **changes)

    def check_derived(self, owner: str) -> None:
        """Raise ValueError where the mesh divides what `owner` does not count divided."""
        if not self.mesh.derived:
            raise ValueError(f"{owner}.setup: mesh {self.mesh} is not derived; allowed: {TOGETHER}")

    def check_rank(self, owner: str, model: Model, rank: int, without: tuple[str, ...] = ()) -> None:
        """Raise ValueError where there is no such GPU, or FSDP gives it less than the first of `model`.

        Args:
            without: groups of weights that none of those that divide the weights with it has.
        """
        checks.whole(owner, "rank", rank, 0, self.gpus - 1)
        place, parts = self.sharer(rank) % self.shards, self.mesh.expert
        for weight in weights(_Part(model, self.mesh.tensor)) if self.fsdp and place else ():
            rows, shards, mine = int(weight.shape[0]), self.shards, place
            if parts > 1 and weight.name in ("mlp.gate_up", "mlp.down"):
                rows, shards, mine = rows // parts, self.expert_shards, place // parts
                if shards * parts > model.experts:
                    continue  # cut along another dimension, evenly
            each = -(-rows // shards)
            there = weight.count and layers(model)[weight.group] and weight.group not in without
            if there and (mine + 1) * each > rows:
                raise ValueError(
                    f"{owner}.rank: {rank} has less than {each} of the {rows} rows of {weight.name} in {model.name}, which its "
                    f"{shards} GPUs divide; allowed: 0, and others whose shares are as large; eb.dry_run takes it"
                )

    def check_undivided(self, owner: str, instead: str = "") -> None:
        """Raise ValueError where there is a mesh, which `owner` does not know."""
        if not self.mesh.alone:
            raise ValueError(f"{owner}.setup: mesh {self.mesh} is not derived; allowed: none{instead}")

    def _check_parts(self, model):
        """What the mesh's `tensor` must divide."""
        parts = self.mesh.tensor
        sizes = divided(model)
        if self.mesh.sequence_parallel:
            sizes["sequence"] = self.own_sequence
        for name, size in sizes.items():
            if size % parts:
                near = [d for d in range(1, size + 1) if size % d == 0]
                below, above = max(d for d in near if d < parts), [d for d in near if d > parts][:1]
                raise ValueError(
                    f"Mesh.tensor: {parts} does not divide the {name} of {size}{'' if name == 'sequence' else f' of {model.name}'}: "
                    f"{size % parts} left over; allowed: {' or '.join(map(str, [below, *above]))}, or {name} of "
                    f"{' or '.join(str(n) for n in (size - size % parts, size + parts - size % parts) if n)}"
                )

    def as_dict(self) -> dict:
        """The fields as JSON holds them."""
        return asdict(self)

    def check_model(self, model: Model) -> None:
        """Raise ValueError where this setup does not fit `model`: its positions, blocks, tied ends, or heads no flash kernel takes.

        The kernel for 16 bits takes heads up to 256 wide, the one for fp32 multiples of 4 (PyTorch's
        `native/transformers/cuda/sdp_utils.cpp`); for others `scaled_dot_product_attention` falls back to the scores.
        """
        if self.precision in OWN:
            raise ValueError(
                f"Setup.precision: {self.precision!r} with {model.name}, a Model, which has dimensions alone; allowed: "
                f"{', '.join((*PRECISIONS, *LIBRARIES))}"
            )
        if self.adapters:
            self.adapters.check_model(model)
        if self.replicas > 1 and not self.mesh.alone:
            raise ValueError(
                f"Setup.replicas: {self.replicas} with mesh {self.mesh} is not derived; allowed: 1, or no mesh"
            )
        if self.mesh.tensor > 1 and (self.mesh.derived or self.mesh.pipeline > 1):
            self._check_tensor()
            self._check_parts(model)
        if self.quantization != "none" and model.experts and model.family:
            raise ValueError(
                f"Setup.quantization: {self.quantization!r} with {model.name}, whose experts' matrices are no linear layers; "
                "allowed: 'none', or a model without experts"
            )
        for path, weight in linears(model) if self.quantization != "none" else ():
            if weight.numbers <= 2:
                raise ValueError(
                    f"Setup.quantization: {self.quantization!r} with {path} of {model.name}, of {weight.numbers} numbers, which "
                    "bitsandbytes takes for a transposed weight; allowed: 'none', or 3 numbers and more"
                )
        if self.mesh.pipeline > 1:
            pipelines.check_blocks(model.layers, model.name, self.mesh, self.segment)
            if self.mesh.tensor > 1 and model.tied:
                raise ValueError(
                    f"Mesh.tensor: {self.mesh.tensor} with pipeline {self.mesh.pipeline} and {model.name}, whose first and last stage have a "
                    "copy each of one weight, whose gradients are divided in two ways, is not derived; allowed: 1, or an untied model"
                )
            if self.offload != "none" and model.tied:
                raise ValueError(
                    f"Setup.offload: {self.offload!r} with pipeline {self.mesh.pipeline} and {model.name}, whose first and last stage have a "
                    "copy each of one weight, whose gradients GPUs cannot add in the memory of the CPU; allowed: 'none', or an untied model"
                )
            if self.fsdp and model.tied and self.mesh.schedule in pipelines.TWO_STAGES:
                raise ValueError(
                    f"Setup.sharding: {self.sharding!r} with schedule {self.mesh.schedule!r} and {model.name}, whose embedding and head are "
                    "one weight, which cannot be in the units of two stages; allowed: 'none', another schedule, or an untied model"
                )
        width, compute = model.head_width, self.dtypes.compute
        allowed = "multiples of 4" if compute == "fp32" else "at most 256"
        if self.attention == "flash" and (width % 4 if compute == "fp32" else width > 256):
            raise ValueError(
                f"Setup.attention: 'flash' takes no heads of width {width} in {compute}, which {model.name} has; "
                f"allowed: 'eager', or widths that are {allowed}"
            )
        parts = self.mesh.expert
        if parts > 1 and (not model.experts or model.experts % parts):
            below, above = model.experts // parts * parts, -(-model.experts // parts) * parts
            near = [n for n in range(2, (model.experts or 0) + 1) if model.experts % n == 0]
            why = (
                f"{model.name} has {model.experts} experts, {model.experts % parts} too many for {below} and "
                f"{above - model.experts} too few for {above}"
                if model.experts
                else f"{model.name} has no experts"
            )
            raise ValueError(f"Mesh.expert: {parts}, and {why}; allowed: {', '.join(map(str, near)) if near else '1'}")
        rows = self.expert_shards
        own = {"expert_width": 2 * _Part(model, self.mesh.tensor).expert_width, "width": model.width}
        for name, size in own.items() if parts > 1 and self.fsdp and rows * parts > model.experts else ():
            if size % rows:
                raise ValueError(
                    f"Mesh.expert: {parts} of {self.shards} GPUs: {rows} have the same {model.experts // parts} of {model.name}'s experts, whose "
                    f"{size} rows ({name}) FSDP cannot cut evenly: {size % rows} left over; allowed: such GPUs as divide {size}"
                )
        if self.mesh.context > 1 and compute == "fp32":
            if model.kv_heads != model.heads:
                raise ValueError(
                    f"Setup.precision: {self.precision!r} with mesh {self.mesh}: no ring takes fewer key heads than query heads in "
                    f"fp32, and {model.name} has {model.kv_heads} and {model.heads}; allowed: precisions that compute in 16 bits"
                )
            step = 64 * self.mesh.context
            if self.sequence % step:
                raise ValueError(
                    f"Setup.sequence: {self.sequence} with mesh {self.mesh} in fp32, whose kernel pads rows to 32; allowed: a multiple "
                    f"of {step}, as {-(-self.sequence // step) * step}"
                )
        if self.segment > model.layers:
            raise ValueError(
                f"Setup.checkpoint_every: {self.checkpoint_every} is more than the {model.layers} blocks of {model.name}; "
                f"allowed: 1 to {model.layers}"
            )
        if model.positions and self.sequence > model.positions:
            raise ValueError(
                f"Setup.sequence: {self.sequence} is more than the {model.positions} positions of {model.name}; "
                f"allowed: 1 to {model.positions}"
            )
        if model.experts and model.family:
            step = 4 if self.base_dtype == "fp32" and not (self.fsdp and self.dtypes.autocast) else 8
            part = _Part(model, self.mesh.tensor)
            for field in ("width", "expert_width"):
                if getattr(part, field) % step:
                    share = "" if getattr(part, field) == getattr(model, field) else f", of {getattr(model, field)}"
                    raise ValueError(
                        f"Setup.precision: {self.precision!r} multiplies experts' matrices in rows of 16 bytes, and "
                        f"{field} is {getattr(part, field)}{share} in {model.name}; allowed: multiples of {step}"
                    )
        if model.window and self.sequence > model.window and model.family:
            raise ValueError(
                f"Setup.sequence: {self.sequence} is more than the window of {model.window} tokens of {model.name}, and the "
                f"book's reference has no mask for a window; allowed: 1 to {model.window}"
            )
        if self.sharding_units == "block+ends" and model.tied:
            raise ValueError(
                f"Setup.sharding_units: 'block+ends' with {model.name}, whose embedding and head are one weight, which "
                "cannot be in two units; allowed: 'block' or 'model'"
            )


class _Part:
    """A model's fields as those of one GPU of `parts` that divide its matrices."""

    def __init__(self, model, parts):
        self._model, self._parts = model, parts

    def __getattr__(self, name):
        found = getattr(self._model, name)
        return found // self._parts if name in DIVIDED else found


def _lora_of(said):
    """A `Lora` from what JSON holds of it."""
    for name in said:
        checks.one_of("Lora", "field", name, [f.name for f in fields(Lora)])
    return Lora(**said)
