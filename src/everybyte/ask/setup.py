"""One training configuration, checked when it is made."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, ClassVar, Literal, final

from .. import rules
from ..catalog import Model
from ..catalog.weights import layers, learned, linears
from ..common import checks
from . import choices
from .choices import CHOICES, DTYPE_BYTES, LIBRARIES, LIMITS, LOOPS, OPTIMIZERS, OWNED
from .mesh import Mesh, Part


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
            `autocast_adapter_dtype=False`, or over 4-bit weights, as TRL casts them.
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
        checks.whole("Lora", "rank", self.rank, 1, choices.MOST_RANK)
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
        """Whether it stands beside the linear layer of that path, in a block of a model."""
        return self.targets == "all-linear" or any(_named([path], target) for target in self.targets)

    def check_model(self, model: Model) -> None:
        """Raise ValueError where a target matches no linear layer of the model's blocks, or the rank is over a target's width."""
        widths = {path: weight.shape[1] for path, weight in linears(model)}
        self.chosen(widths, f"in the blocks of {model.name}", f" in {model.name}")

    def chosen(self, widths: Mapping[str, int], among: str, inside: str = "") -> list[str]:
        """The paths, of linear layers with their inputs' widths, that it stands beside.

        Args:
            among, inside: where the layers are, in the words of an error.

        Raises:
            ValueError: where a target matches none of them, or the rank is over a target's width.
        """
        taken = set(widths) if self.targets == "all-linear" else set()
        for target in () if isinstance(self.targets, str) else self.targets:
            if not (named := _named(widths, target)):
                short = ", ".join(dict.fromkeys(path.rpartition(".")[2] for path in widths))
                raise ValueError(f"Lora.targets: {target!r} matches no linear layer {among}; allowed: {short}")
            taken.update(named)
        found = [path for path in widths if path in taken]
        if not found:
            raise ValueError(f"Setup.adapters: {self} with no linear layer {among}; allowed: None")
        width, path = min((widths[path], path) for path in found)
        if self.rank > width:
            raise ValueError(
                f"Lora.rank: {self.rank} is more than the width {width} of {path}{inside}; allowed: 1 to {width}"
            )
        return found


#: What transformers calls the linear layers of a block -> the book's name.
NAMES = {
    "q_proj": "q", "k_proj": "k", "v_proj": "v", "o_proj": "out", "out_proj": "out", "qkv_proj": "qkv", "gate_proj": "gate", "up_proj": "up",
    "down_proj": "down", "gate_up_proj": "gate_up", "query_key_value": "qkv", "dense": "out", "fc1": "up", "fc2": "down",
    "dense_h_to_4h": "up", "dense_4h_to_h": "down",
}  # fmt: skip


def _named(paths, target):
    """The paths that a target names, as peft matches them; where it names none, those that the other code calls so."""
    wanted, last = NAMES.get(target, target), lambda path: path.rpartition(".")[2]
    alike = [path for path in paths if NAMES.get(last(path), last(path)) == wanted]
    return [path for path in paths if f".{path}".endswith(f".{target}")] or alike


def _are_own(taken):
    """That some fields are the model's own, in words."""
    return f"Not said, and so as the model has it: {', '.join(f'{name} {value}' for name, value in taken.items())}"


@final
@dataclass(frozen=True, kw_only=True)
class Setup:
    """A training configuration: what runs, in which data types, with which switches.

    What is not said of `OWNED` is as the model has it, once a witness is asked about one; what is said is honored, or refused.

    Attributes:
        batch, sequence: sequences in one forward on one GPU, and tokens in each: 1,024, or as many as the model has positions.
        accumulation: forwards and backwards, on a batch each, whose gradients add up before the optimizer's step.
        precision: a key of `PRECISIONS`, `LIBRARIES` or `OWN`. `*-mixed` is autocast over fp32 weights; `bf16-master`
            keeps bf16 weights, and an fp32 copy in the optimizer. Two libraries do that otherwise, on one GPU:
            `bf16-megatron` adds gradients up in one fp32 buffer and frees the 16-bit ones as they come, on several with `zero1`, its
            distributed optimizer;
            `bf16-deepspeed` has both until the step ends. `own` leaves a module of your own, or a Hugging Face model,
            in the data types that it is made in. By default `fp32`; of a Hugging Face config what its `dtype` says, as
            `from_pretrained` with `dtype="auto"` does: `bf16`, or `own` of another type than fp32.
        optimizer: a key of `OPTIMIZERS`. Under `zero1` it has one vector, its share of all numbers: `adafactor` factors
            nothing there, and 8-bit states are in blocks of it. Under FSDP `muon` makes each matrix's update whole, as
            `muon_gather` says; what PyTorch's own makes of `DTensor`s depends on sizes and on the machine.
        optimizer_impl: all tensors at once, operation by operation (`foreach`, PyTorch's default on CUDA), one after
            another (`loop`), or in one kernel (`fused`); by default the optimizer's first. `muon`'s own step is a loop;
            its AdamW, for what is no matrix of a block, has this implementation.
        optimizer_in_backward: whether each weight has an optimizer of its own, which moves it as soon as its gradient has come, and drops
            the gradient (`register_post_accumulate_grad_hook`): they never stand all at once.
        attention: `eager` (the scores exist) or `flash` (they never do). By default the model's own: `flash` where its code has it.
        linear_attention: of transformers' layers with a delta rule in attention's place (Qwen3-Next, Qwen3.5, OLMo-Hybrid, Kimi Linear):
            its PyTorch code (`torch`), or the Triton kernels of flash-linear-attention, which it takes where `fla-core` is installed (`fla`):
            by a dry run, of what release 0.6.0 allocates on a GPU with an H100's shared memory, whether or not it is installed here.
        dropout: probability, in [0, 1). By default the model's own: 0.0 of the book's models, 0.1 of transformers' GPT-2, OPT and BERT.
            Of a config it is each of its dropouts that is not 0.0.
        loss: `plain` (all tokens' logits exist), `chunked` (one chunk's, recomputed in backward), or `linear-cross-entropy`
            (one chunk's, which become gradients in forward: `torch.nn.functional.linear_cross_entropy` with its default options).
        loss_chunks: for `chunked`: how many chunks of equally many tokens, the last one smaller. `torch.chunk` may make
            fewer.
        master_gradients: for `bf16-master`: where gradients are kept, as backward makes them (`bf16`), in an fp32
            buffer, or `both`.
        checkpointing: what is not saved and recomputed in backward: `none`; all of each block but its input (`full`),
            or of each segment of `checkpoint_every` blocks (`every-k`); attention, between the projections
            (`selective`); all of a block but the results of matrix products and attention kernels (`operations`). And torchtitan's
            two that it calls selective: all of the last of each `checkpoint_every` blocks (`one-in-k`); all of each block but
            attention, reduce-scatters and the first, third, fifth ... matrix product without a bias (`second-products`).
        checkpoint_every: for `every-k`: blocks in a segment; the last one may be shorter. For `one-in-k`: of how many blocks one is
            recomputed.
        gpus: how many train one model, each on a batch of its own.
        sharding: what they divide: `none` (DDP, from two GPUs on); the optimizer's states (`zero1`); gradients and
            weights too (FSDP), which stay gathered through backward (`zero2`), or are freed after forward and gathered
            again (`zero3`).
        fsdp_version: for FSDP: PyTorch's `fully_shard`, which cuts each weight along its rows (2); or `FullyShardedDataParallel`, which lays a
            unit's weights in one flat tensor and cuts that (1), with `use_orig_params=True` and else as PyTorch has it by default.
        sharding_units: for FSDP: what is gathered at a time: each `block`, and the rest with the root; `block+ends`,
            each block, the token embedding, the last norm with the head, and the rest with the root; or the whole
            `model`.
        resharding: for `zero3`: which units are freed after forward. `usual`: all but the root, and but norm and head of `block+ends`, as
            PyTorch has it and torchtitan. The `root` too, as torchtune and accelerate have it (`reshard_after_forward=True`); norm and
            head too (`ends`: torchtitan's `always`); or the last block neither (`not-last`: torchtitan's until 2025). `group`: every unit
            leaves its share among a few of the GPUs (`reshard_after_forward=8`), from which backward gathers it.
        resharding_gpus: for `group`: how many GPUs hold a unit between forward and backward; a divisor of those that divide the weights.
        muon_gather: for `muon` under FSDP: how updates become whole matrices, in bf16. `each`: all GPUs gather one after another, and
            every GPU computes each (arXiv:2502.16982). Otherwise of as many matrices of one shape as there are GPUs each GPU gets one,
            which it alone computes, and gives the others their rows of it back: by one gather and one scatter for each matrix (`owner`),
            as Megatron-FSDP's Muon does, or by one `all-to-all` there and one back, as Dion's, with zeros where fewer are left. One batch is
            under way at a time; theirs are more.
        replicas: for FSDP: how many groups of GPUs each divide the whole among them (HSDP); a divisor of `gpus`.
        offload: for FSDP: `cpu` keeps each GPU's share of weights, gradients and states in the memory of the CPU, which
            runs the optimizer; weights are copied to the GPU to be gathered, gradients back as they come. With any sharding `activations`
            copies to the CPU what forward saves for backward, weights among it, and back as backward asks for each
            (`torch.autograd.graph.save_on_cpu(pin_memory=True)`); of what is recomputed its inputs.
        no_sync: for FSDP with several batches (`accumulation`): whole gradients add up on each GPU, and only the last
            batch's backward divides them; otherwise each one does. In a pipeline the last one alone does in any
        case.
        buckets: for DDP: the averaged buckets are `copies` beside the gradients, or the gradients are `views` of them.
        adapters: a `Lora`, which trains in place of the model's weights; None for full fine-tuning.
        quantization: with adapters: `nf4` stores the blocks' linear layers in 4 bits, with a scale in 8 bits for each
            64 numbers, as bitsandbytes does with double quantization (QLoRA); or `none`. FSDP divides the codes, stored as numbers of
            forward's type (`bnb_4bit_quant_storage`), and gathers them as they are; scales stay whole on every GPU.
        loop: whose training loop it is, a key of `LOOPS`: `plain`, or nanoGPT's, torchtitan's, transformers' `trainer`, accelerate's. What
            it does with outputs, gradients and their norm the next three say; said otherwise they are a loop of your own, `plain`.
        outputs: what a forward gives, its logits among it: `dropped` before backward, with all that a step names when it ends; or
            `kept`, as `outputs = model(**batch)` in a `for` keeps it, until the next forward has given its own.
        zero_grad: where the step drops gradients: at its `end`; at its `start`, so that they live between steps; or before its first
            `backward`, so that they live through forward too.
        clip: `none`, or `clip_grad_norm_` before the optimizer's step, norms of all tensors at once (`foreach`, PyTorch's default on
            CUDA) or one after another (`loop`).
        mesh: a `Mesh`, what is divided beside the batch; `gpus` are all of its GPUs, and `accumulation` the
            micro-batches of a pipeline.

    Raises:
        ValueError: naming the field, the value and what is allowed.
    """

    batch: int = 8
    sequence: int = None  # type: ignore[assignment]  # the model's own, as of the others in `OWNED`
    accumulation: int = 1
    precision: choices.PrecisionName = None  # type: ignore[assignment]
    optimizer: choices.OptimizerName = "adamw"
    optimizer_impl: choices.OptimizerImpl = None  # type: ignore[assignment]  # the optimizer's usual one
    optimizer_in_backward: bool = False
    attention: choices.Attention = None  # type: ignore[assignment]
    linear_attention: choices.LinearAttention = "torch"
    dropout: float = None  # type: ignore[assignment]
    loss: choices.Loss = "plain"
    loss_chunks: int = 8
    master_gradients: choices.MasterGradients = "bf16"
    checkpointing: choices.Checkpointing = "none"
    checkpoint_every: int = 2
    sharding: choices.Sharding = "none"
    gpus: int = 1
    fsdp_version: int = 2
    sharding_units: choices.ShardingUnits = "block"
    resharding: choices.Resharding = "usual"
    resharding_gpus: int = 8
    muon_gather: choices.MuonGather = "each"
    replicas: int = 1
    offload: choices.Offload = "none"
    no_sync: bool = False
    buckets: choices.Buckets = "copies"
    adapters: Lora | None = None
    quantization: choices.Quantization = "none"
    loop: choices.LoopName = "plain"
    outputs: choices.Outputs = None  # type: ignore[assignment]  # the loop's, as the next two
    zero_grad: choices.ZeroGrad = None  # type: ignore[assignment]
    clip: choices.Clip = None  # type: ignore[assignment]
    mesh: Mesh = Mesh()
    #: Of `OWNED`: what nobody has said, and what is a model's own.
    _unsaid: ClassVar[frozenset[str]] = frozenset()
    _taken: ClassVar[frozenset[str]] = frozenset()

    def __post_init__(self):
        object.__setattr__(self, "_unsaid", frozenset(name for name in OWNED if getattr(self, name) is None))
        for name in self._unsaid:
            object.__setattr__(self, name, OWNED[name])
        for name, kind in (("adapters", Lora), ("mesh", Mesh)):
            if isinstance(said := getattr(self, name), Mapping):  # as JSON holds it
                for field in said:
                    checks.one_of(kind.__name__, "field", field, [f.name for f in fields(kind)])
                object.__setattr__(self, name, kind(**said))
        for name, said in choices.APART.items():
            value = getattr(self, name)
            if why := isinstance(value, str) and said.get(value.lower()):
                raise ValueError(f"Setup.{name}: {value!r} {why.format(', '.join(CHOICES[name]))}")
        for name in ("precision", "optimizer", "loop"):  # what others are by
            checks.one_of("Setup", name, getattr(self, name), CHOICES[name])
        if self.optimizer_impl is None:
            usual = "fused" if self.precision in LIBRARIES else OPTIMIZERS[self.optimizer].impls[0]
            object.__setattr__(self, "optimizer_impl", usual)
        for name, usual in vars(LOOPS[self.loop]).items():
            if getattr(self, name) is None:
                object.__setattr__(self, name, usual)
        for field, (least, most) in LIMITS.items():
            checks.whole("Setup", field, getattr(self, field), least, most)
        for field, allowed in CHOICES.items():
            checks.one_of("Setup", field, getattr(self, field), allowed)
        checks.probability("Setup", "dropout", self.dropout)
        if self.loss == "chunked":
            checks.whole("Setup", "loss_chunks", self.loss_chunks, 1, self.batch * self.sequence)
        for field in ("no_sync", "optimizer_in_backward"):
            checks.flag("Setup", field, getattr(self, field))
        if not isinstance(self.mesh, Mesh):
            raise ValueError(f"Setup.mesh: {checks.shown(self.mesh)} is no Mesh; allowed: a Mesh")
        if self.adapters is not None and not isinstance(self.adapters, Lora):
            raise ValueError(f"Setup.adapters: {checks.shown(self.adapters)} is no Lora; allowed: a Lora, or None")
        rules.check(rules.SETUP, self)

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
    def looped(self) -> bool:
        """Whether the step is another than `Trainer.step`, which drops outputs, and gradients at its end, and clips none."""
        return self.loop != "plain" or vars(LOOPS["plain"]) != {n: getattr(self, n) for n in vars(LOOPS["plain"])}

    @property
    def segment(self) -> int:
        """Blocks that are checkpointed together, and that backward recomputes together; 0 for none."""
        return {"full": 1, "every-k": self.checkpoint_every}.get(self.checkpointing, 0)

    @property
    def cycle(self) -> int:
        """Of how many blocks in a row no two need be checkpointed alike."""
        return self.checkpoint_every if self.checkpointing == "one-in-k" else 1

    @property
    def dtypes(self) -> choices.Precision:
        """The data type of each role under this setup's `precision`."""
        return choices.EVERY_PRECISION[self.precision]

    @property
    def kept_gradients(self) -> choices.MasterGradients:
        """Where gradients are kept over 16-bit weights: as `master_gradients` says, or a library's own loop."""
        loops: dict[str, choices.MasterGradients] = {"bf16-megatron": "fp32", "bf16-deepspeed": "both"}
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
                f"plan.setup: the time of optimizer {self.optimizer!r} is not derived; allowed: "
                f"{', '.join(name for name, other in OPTIMIZERS.items() if other.passes)}; eb.fit and eb.budget answer for its "
                "memory"
            )
        own = DTYPE_BYTES[self.dtypes.master or self.trained_dtype]
        return own * row.passes[row.impls.index(self.optimizer_impl)] + row.quantized

    def replace(self, **changes) -> "Setup":
        """A copy with some fields changed, checked again. What is usual of an optimizer, or of a loop, becomes what is usual of another."""
        usual = self.optimizer_impl == OPTIMIZERS[self.optimizer].impls[0]
        if usual and (changes.get("optimizer") in list(OPTIMIZERS) or changes.get("precision") in list(LIBRARIES)):
            changes = {"optimizer_impl": None} | changes
        if changes.get("loop") in list(LOOPS):
            row = vars(LOOPS[self.loop])
            changes = {name: None for name, usual in row.items() if getattr(self, name) == usual} | changes
        changes = dict.fromkeys(self._unsaid) | changes
        found = replace(self, **changes)
        object.__setattr__(found, "_taken", self._taken - changes.keys())
        return found

    def of(self, own: Mapping[str, Any]) -> "Setup":
        """What is left unsaid of `OWNED` as a model has it: what every witness does first.

        Args:
            own: a field of `OWNED` -> the model's own value, as `Model.own` says it; of `sequence` the most. A field that is not named
                is as of the book's own models.

        Raises:
            ValueError: where the model's own value does not go with what is said; it says whose it is.
        """
        unsaid = {name: value for name, value in own.items() if name in self._unsaid}
        if "sequence" in unsaid:
            unsaid["sequence"] = min(unsaid["sequence"], self.sequence)
        taken = {name: value for name, value in unsaid.items() if value != getattr(self, name)}
        if not taken:
            return self
        try:
            found = replace(self, **taken)
        except ValueError as error:
            raise ValueError(f"{error}. {_are_own(taken)}") from error
        object.__setattr__(found, "_taken", frozenset(taken))
        return found

    @property
    def taken(self) -> dict[str, Any]:
        """Fields that are the model's own, as nobody has said them, where the book's own models have another value."""
        return {name: getattr(self, name) for name in OWNED if name in self._taken}

    def owned(self) -> str:
        """The same in words; empty where there are none."""
        return _are_own(self.taken) if self.taken else ""

    def check_rank(self, owner: str, model: Model, rank: int, without: tuple[str, ...] = ()) -> None:
        """Raise ValueError where there is no such GPU, or FSDP gives it less than the first of `model`.

        Args:
            without: groups of weights that none of those that divide the weights with it has.
        """
        checks.whole(owner, "rank", rank, 0, self.gpus - 1)
        place, parts = self.sharer(rank) % self.shards, self.mesh.expert
        for weight in learned(Part(model, self.mesh.tensor)) if self.fsdp and place else ():
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

    def as_dict(self) -> dict:
        """The fields as JSON holds them."""
        return asdict(self)

    def changed(self) -> dict[str, Any]:
        """The same, of fields that are not as in a `Setup()`."""
        usual = Setup().as_dict()
        return {name: value for name, value in self.as_dict().items() if value != usual[name]}

    def check_model(self, model: Model) -> None:
        """Raise ValueError where this setup does not fit `model`: its positions, blocks, tied ends, or heads no flash kernel takes."""
        if self.adapters:
            self.adapters.check_model(model)
        rules.check(rules.MODEL, self, model)
