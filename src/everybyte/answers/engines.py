"""What an inference engine decides as it starts: weights, its profile run, and how many pages, tokens and requests the rest holds.

The named engine is vLLM's V1, release 0.11; facts by file of its repository. `vllm/v1/worker/gpu_worker.py`, `determine_available_memory`:
total x utilization, less weights, the profile run's peak and what it took outside PyTorch. `gpu_model_runner.py`, `profile_run`,
`_dummy_run`, `_dummy_sampler_run`: what that run makes. `v1/core/kv_cache_utils.py`: groups of layers, blocks, tokens, concurrency.
`v1/kv_cache_interface.py`: a page, and the most pages of a request, by kind of layer. `engine/arg_utils.py`: defaults by GPU.
SGLang's: `model_runner.py`, `profile_max_num_token`.

What is derived was held to what engines printed: `published/engines.toml`.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from fractions import Fraction
from typing import Literal, final, get_args

from .. import units
from ..ask.choices import DTYPE_BYTES
from ..catalog import Gpu, Model
from ..catalog.hybrids import STATE_TYPES, Hybrid
from ..catalog.outside import context as cuda_context
from ..catalog.weights import PACKED, packed, summed
from ..common import checks
from ..common.tables import Shown, Table, sized
from ..rules import ENGINE, HYBRID, SERVED, STATELESS, check

Name = Literal["vllm", "sglang"]
#: Bytes of a number in an engine's cache.
CACHED = {"bf16": 2, "fp16": 2, "fp8": 1}
KEPT = ("bf16", "fp16", *PACKED)
#: What torch.sort holds beside its input, for a number: sorted values (4) and their places (8); the places before (8); values and
#: places once more (4 + 8). Rehearsed: PyTorch 2.13's sort of (1024, 128256) numbers in fp32 on an H100.
SORTED = 32
#: Bytes of a logit in the sampler of the profile run: in 16 bits, in fp32, and sorted, for top-p.
SAMPLED = 2 + 4 + SORTED
#: Rows that an embedding is padded to a multiple of. Source: `vocab_parallel_embedding.py`.
PADDED = 64
#: What a start of vLLM 0.11 takes outside PyTorch, by GPUs of the engine: of one, and of more with NCCL. Source: llm-d/llm-d-benchmark,
#: config_explorer/empirical-vllm-memory-results.md: 0.13 to 0.14 GiB, and 0.54 to 0.55 GiB of two. CUDA's context was there before.
OUTSIDE = (round(0.13 * 2**30), round(0.55 * 2**30))
#: Tokens that a block is a multiple of, where it grows to hold a state: of keys and values, and of a latent. Source: vLLM 0.11,
#: `model_executor/models/config.py`, `HybridAttentionMambaModelConfig`.
ALIGNED, LATENT_ALIGNED = 16, 64
#: Ends of the names of weights that are whole on each GPU, beside norms and routers: what compresses to a latent is.
_WHOLE = ("out.bias", "down.bias", "query_down.weight", "latent_down.weight")
#: A group has the most layers of a kind, not the least, where these are fewer than so many times those.
ALIKE = Fraction(5, 4)


@dataclass(frozen=True)
class Kind:
    """Layers of one kind: `full`, `sliding`, `chunked`, `latent`, or `state`, of which a request has as many pages however long it is.

    Attributes:
        layers: how many. token: bytes that one token leaves in one of them, on one GPU. window: in tokens; 0 for none. each: pages of
            a request in a layer with a state.
    """

    name: str
    layers: int
    token: int
    window: int = 0
    each: int = 1

    def pages(self, context: int, batched: int, block: int) -> int:
        """Pages that a request of so many tokens has at most in one layer: of a window, what a step of `batched` tokens may see."""
        if self.name == "state":
            return self.each
        if self.name == "sliding":
            return -(-min(self.window - 1 + batched, context) // block) + 1
        seen = min(self.window + batched, context) if self.name == "chunked" else context
        return -(-seen // block)


@final
@dataclass(frozen=True, kw_only=True)
class Engine:
    """An engine that serves a model: what `eb.serve` and a `Rollout` take.

    Sizes are whole bytes or text such as "0.39 GiB". None, and 0 of counts: as the engine has it, by the GPU.

    Attributes:
        name: `vllm` or `sglang`. utilization: of the GPU's memory: `gpu_memory_utilization`, or `mem_fraction_static`.
        batched: tokens of one pass at most, `max_num_batched_tokens`: a longer prompt is prefilled in chunks of so many.
        sequences: requests at once at most, `max_num_seqs`. block: tokens of a page.
        weights: their data type. cache: that of keys and values. tensor_parallel: GPUs that divide a copy.
        draft: a model that drafts: its weights and its layers' pages stand beside.
        states: (layers, bytes of one on a GPU) of layers with a state in place of keys (Mamba, gated delta nets), beside the model's own, which
            are then those with attention alone; with `loaded` and `profile`, or `pages`. Attention's block grows until its page holds a
            state. Of a Hugging Face config `eb.serve` reads them.
        state_dtype: of recurrent states, `--mamba-ssm-cache-dtype`; auto: as vLLM has it by the config (0.10.2: the model's own type).
        state_pages: pages of a request in each layer with a state: 1, and 2 where prefixes are cached, `--mamba-cache-mode align`.
        loaded: bytes of weights on each GPU, where the log is to be believed. profile: the peak of its run. outside: what it took
            outside PyTorch. graphs: what captured CUDA graphs take; release 0.11 does not count them, so they stand in the rest.
        pages: bytes for pages, `--kv-cache-memory-bytes` or the log's "Available KV cache memory"; the rest is then not asked.

    Raises:
        ValueError: naming the field, the value and what is allowed.
    """

    name: Name = "vllm"
    utilization: float = 0.9
    batched: int = 0
    sequences: int = 0
    block: int = 0
    weights: str = "bf16"
    cache: str = "bf16"
    tensor_parallel: int = 1
    draft: Model | None = None
    states: tuple[int, int] | None = None
    state_dtype: str = "auto"
    state_pages: int = 1
    loaded: int | None = None
    profile: int | None = None
    outside: int | None = None
    graphs: int = 0
    pages: int | None = None

    def __post_init__(self):
        checks.one_of("Engine", "name", self.name, get_args(Name))
        checks.one_of("Engine", "weights", self.weights, KEPT)
        checks.one_of("Engine", "cache", self.cache, CACHED)
        checks.one_of("Engine", "state_dtype", self.state_dtype, ("auto", *STATE_TYPES))
        checks.probability("Engine", "utilization", self.utilization, one=True)
        if not self.utilization:
            raise ValueError(f"Engine.utilization: {self.utilization!r}; allowed: more than 0, up to 1")
        for name in ("loaded", "profile", "outside", "graphs", "pages"):
            self._size(name)
        for name in ("batched", "sequences", "block", "tensor_parallel", "state_pages"):
            checks.whole("Engine", name, getattr(self, name), int(name in ("tensor_parallel", "state_pages")), 2**27)
        if self.draft is not None:
            checks.kind("Engine", "draft", self.draft, Model)
        if self.states is not None:
            if not (isinstance(self.states, tuple) and len(self.states) == 2):
                raise ValueError(f"Engine.states: {checks.shown(self.states)}; allowed: (layers, bytes of each)")
            for value in self.states:
                checks.whole("Engine", "states", value, 1, 2**40)
        check(ENGINE, self)

    def _size(self, name):
        value = getattr(self, name)
        if isinstance(value, str):
            try:
                object.__setattr__(self, name, round(units.parse(value)))
            except ValueError as error:
                raise ValueError(f"Engine.{name}: {error}") from None
        if getattr(self, name) is not None:
            checks.whole("Engine", name, getattr(self, name), 0, 2**50)

    @classmethod
    def read(cls, text: str) -> "Engine":
        """From a command's text: `utilization=0.9 batched=8192 pages=20GiB`, each left out at its default."""
        names = [f.name for f in fields(cls) if f.name not in ("draft", "states")]
        return cls(**checks.words("Engine", text, names))

    def on(self, gpu: Gpu) -> "Engine":
        """With the numbers that it has by itself on that GPU. SGLang's follow from its pool, and no chunk of a prompt bounds that."""
        if self.name == "sglang":
            return replace(self, block=self.block or 1)
        large = gpu.memory >= 70 * units.UNITS["GiB"] and not gpu.name.startswith("a100")
        return replace(
            self,
            batched=self.batched or (8192 if large else 2048),
            sequences=self.sequences or (1024 if large else 256),
            block=self.block or 16,
        )

    def heads(self, model: Model) -> int:
        """Key and value heads on each GPU: where they are fewer than GPUs, one, which several have."""
        return -(-model.kv_heads // self.tensor_parallel)

    def numbers(self, model: Model) -> int:
        """Weights on each GPU: matrices and tables divided by rows or columns, each expert's too; norms and routers whole; heads as `heads`.

        Source: vLLM, `model_executor/layers/linear.py`, `QKVParallelLinear`; `models/deepseek_v2.py`, `ReplicatedLinear`.
        """

        def share(weight):
            name, rows = weight.name, weight.shape[0]
            if "norm" in name or name.endswith(_WHOLE) or name.startswith("mlp.router."):
                return weight.numbers
            if name.startswith(("attention.k.", "attention.v.")):
                return weight.numbers // model.kv_heads * self.heads(model)
            if name.startswith("attention.qkv."):
                mine = (model.heads // self.tensor_parallel + 2 * self.heads(model)) * model.head_width
                return weight.numbers // rows * mine
            return weight.numbers // self.tensor_parallel

        return summed(model, share)

    def standing(self, model: Model) -> dict[str, int]:
        """Part -> bytes on each GPU once the model is loaded: weights, and one table of the rotary positions in 16 bits."""
        if self.loaded is not None:
            return {"weights, as loaded": self.loaded}
        found = {}
        for what, one in (("", model), ("the draft's ", self.draft)):
            if one is not None:
                packs = self.weights not in DTYPE_BYTES
                found[f"{what}weights, {self.weights}"] = packed(one, self.weights) if packs else 2 * self.numbers(one)
                turning = one.rope_width if one.latent else 0 if one.has_positions else one.turning
                found[f"{what}rotary table"] = one.positions * turning * 2
        return {name: size for name, size in found.items() if size}

    def kinds(self, model: Model) -> list[Kind]:
        """The layers of a model, and of a draft, by kind."""
        found = []
        for one in filter(None, (model, self.draft)):
            if one.latent:
                found.append(Kind("latent", one.layers, (one.latent_rank + one.rope_width) * CACHED[self.cache]))
                continue
            token, near = 2 * self.heads(one) * one.head_width * CACHED[self.cache], one.windowed_layers
            found.append(Kind("full", one.layers - near, token))
            found.append(Kind("chunked" if one.chunked else "sliding", near, token, one.window))
        return [kind for kind in found if kind.layers]

    def grown(self, model: Model) -> int:
        """Tokens of the least block of attention whose page holds a state; 0 without states."""
        if self.states is None:
            return 0
        aligned = LATENT_ALIGNED if model.latent else ALIGNED
        return -(-self.states[1] // (self.kinds(model)[0].token * aligned)) * aligned

    def pool(self, model: Model) -> "Pool":
        """How pages are laid out. Raises ValueError where it is not derived, naming the field."""
        check(SERVED, self, model)
        kinds, block = self.kinds(model), self.block
        if self.states is not None:
            block = max(block, self.grown(model))
            kinds = [*kinds, Kind("state", self.states[0], kinds[0].token, each=self.state_pages)]
        if len({(kind.name, kind.window) for kind in kinds}) == 1:
            return Pool((kinds[0],), sum(k.layers * k.token for k in kinds) * block, block)
        counts = [kind.layers for kind in kinds]
        size = max(counts) if max(counts) < ALIKE * min(counts) else min(counts)
        groups = [kind for kind in kinds for _ in range(-(-kind.layers // size))]
        return Pool(tuple(groups), size * kinds[0].token * block, block, size)

    def profiled(self, model: Model, gpu: Gpu) -> dict[str, int]:
        """Part -> bytes of the profile run's largest moment, with `batched` tokens and `sequences` rows of logits.

        Either a layer's MLP, of an eager pass, with the embedding's rows, the residual stream and the norm's output beside it; or the
        sampler: all hidden states, those of each request's last token twice, and `SAMPLED` bytes a logit.
        """
        width, inner = 2 * model.width, 2 * model.ffn_width // self.tensor_parallel
        layer = (3 if model.gated else 2) * inner
        if model.experts:
            expert = 2 * model.expert_width // self.tensor_parallel
            visits = model.experts_per_token * (max(2 * expert, width) + expert)
            layer = max(layer if model.dense_layers else 0, visits)
        rows = min(self.sequences, self.batched)
        logits = rows * (2 * -(-model.vocabulary // PADDED) * PADDED + (SAMPLED - 2) * model.vocabulary)
        forward = {"hidden states": 3 * width * self.batched, "the widest layer": layer * self.batched}
        sampler = {"hidden states": width * (self.batched + 2 * rows), "logits, sorted": logits}
        most = max(forward, sampler, key=lambda moment: sum(moment.values()))
        return most | {"cuBLAS's workspace": gpu.cublas_workspace}


@dataclass(frozen=True)
class Pool:
    """Pages of one size for all groups of layers: a block has a page for each layer of a group.

    Attributes:
        groups: the kind of each. bytes: of a block; block: its tokens. layers: of a group; 0 where there is one group.
    """

    groups: tuple[Kind, ...]
    bytes: int
    block: int
    layers: int = 0

    def blocks(self, context: int, batched: int) -> int:
        """Blocks that a request of so many tokens has at most, of all groups."""
        return sum(group.pages(context, batched, self.block) for group in self.groups)


@dataclass(frozen=True, eq=False, repr=False)
class EngineServing(Shown):
    """What an engine decides on a GPU.

    Attributes:
        model, gpu, engine: as asked, with the engine's own numbers; of a hybrid its layers with attention.
        context: `max_model_len`. concurrency: as asked, or None.
        requested: bytes that it may use. parts: what it takes of these before pages. pages: bytes for them; negative where nothing is left.
        pool: how these are laid out. hybrid: what a config said; None for a `Model`.
    """

    model: Model
    gpu: Gpu
    engine: Engine
    context: int
    concurrency: int | None
    requested: int
    parts: Mapping[str, int] = field(compare=False)
    pages: int
    pool: Pool
    hybrid: Hybrid | None = None

    @property
    def blocks(self) -> int:
        """Blocks that the pages are."""
        return max(self.pages, 0) // self.pool.bytes

    @property
    def tokens(self) -> int:
        """Tokens that the engine prints: blocks of one group, in tokens. (Since release 0.21 it prints `most` x `context`.)"""
        return self.blocks // len(self.pool.groups) * self.pool.block

    @property
    def each(self) -> int:
        """Blocks of one request of `context` tokens."""
        return self.pool.blocks(self.context, self.engine.batched)

    @property
    def most(self) -> Fraction:
        """Requests of `context` tokens at once, as the engine prints: with what is left over as a fraction."""
        return Fraction(self.blocks, self.each)

    @property
    def fits(self) -> bool:
        """Whether one request fits, without which an engine does not start; or as many as asked."""
        return self.most >= (self.concurrency or 1)

    @property
    def beside(self) -> int:
        """Bytes that stand beside weights and pages as long as it runs: outside PyTorch, and captured graphs."""
        return _outside(self.engine) + self.engine.graphs

    @property
    def profiled(self) -> int:
        """Bytes of the profile run, in which its passes have room; 0 where nobody says."""
        if not self.parts:
            return self.engine.profile or 0
        stands = sum(self.engine.standing(self.model).values()) + self.parts.get("outside PyTorch", 0)
        return self.requested - self.pages - stands

    @property
    def free(self) -> int:
        """Bytes of the GPU's memory that it leaves: CUDA's context, captured graphs and other processes stand there."""
        return self.gpu.memory - self.requested

    def sharing(self, lengths: Iterable[int], prefix: int = 0) -> int:
        """Blocks of requests of these lengths, in tokens, whose first `prefix` tokens are the same: whole blocks of it are held once.

        Raises:
            ValueError: where layers have a window; for a prefix longer than a request.
        """
        lengths, block = list(lengths), self.pool.block
        if len(self.pool.groups) > 1 or self.pool.groups[0].window:
            raise ValueError(
                f"sharing: {self.model.name} has layers with a window or a state, which is not derived; allowed: none"
            )
        checks.whole("sharing", "prefix", prefix, 0, min(lengths))
        shared = prefix // block
        return shared + sum(-(-length // block) - shared for length in lengths)

    def table(self) -> Table:
        """From the GPU's memory to pages, tokens and requests."""
        engine = self.engine
        title = f"{self.model.name} on {self.gpu.name}, {engine.name} at {engine.utilization:g}"
        title += "" if self.fits else ": does not start" if self.concurrency is None else ": does not fit"
        rows: list[tuple[object, ...]] = [sized("memory x utilization", self.requested)]
        rows += [sized(f"− {name}", size) for name, size in self.parts.items()]
        rows += [sized("pages", self.pages), sized(f"a block of {self.pool.block} tokens", self.pool.bytes)]
        rows += [("blocks", self.blocks, ""), ("tokens", self.tokens, "")]
        rows.append((f"requests of {self.context:,}", f"{float(self.most):.2f}", f"{self.each:,} blocks each"))
        if engine.graphs:
            rows.append(sized("CUDA graphs, beside", engine.graphs))
        return Table((title, "", ""), rows)

    def said(self) -> list[str]:
        """What the table does not say."""
        said = []
        if len(self.pool.groups) > 1:
            kinds = ", ".join(f"{many} {kind.name}" for kind, many in Counter(self.pool.groups).items())
            said.append(f"Groups of {self.pool.layers} layers, each with its own pages of the one pool: {kinds}.")
        if self.engine.pages is None:
            said.append(
                "Not in it, but in what the engine leaves of the GPU: CUDA's context, captured graphs, other processes."
            )
        said += self._states()
        if "the widest layer" in self.parts:
            said.append("The profile run is an eager pass; a compiled one may take less.")
        heads = self.model.kv_heads
        if self.engine.tensor_parallel > 1 and self.model.latent:
            said.append(f"Each of {self.engine.tensor_parallel} GPUs holds the whole latent cache.")
        elif heads < self.engine.tensor_parallel:
            said.append(f"{self.engine.tensor_parallel // heads} GPUs hold the same key and value head.")
        return said

    def _states(self):
        """What is said of a hybrid's states."""
        if self.hybrid and self.engine.states:
            layers, size = self.engine.states
            yield (
                f"{layers} of {self.hybrid.layers} layers have a state of {size:,} B on each GPU, recurrent in {self.engine.state_dtype}; "
                f"a page of {self.pool.block} tokens holds it."
            )
            if self.context > self.hybrid.positions:
                yield f"The config has {self.hybrid.positions:,} positions: vLLM takes more with VLLM_ALLOW_LONG_MAX_MODEL_LEN=1."

    def as_dict(self) -> dict:
        """As JSON holds it: whole bytes."""
        engine = asdict(self.engine) | {"draft": self.engine.draft.name if self.engine.draft else None}
        return {
            "model": {"name": self.model.name, "parameters": int((self.hybrid or self.model).parameters)},
            "gpu": {"name": self.gpu.name, "memory": self.gpu.memory},
            "engine": engine, "context": self.context, "concurrency": self.concurrency, "fits": self.fits,
            "requested": self.requested, "parts": dict(self.parts), "pages": self.pages, "block": self.pool.bytes,
            "blocks": self.blocks, "tokens": self.tokens, "each": self.each, "most": float(self.most), "free": self.free,
            "groups": [asdict(group) for group in self.pool.groups], "said": self.said(),
        }  # fmt: skip


def _of(hybrid: Hybrid, engine: Engine) -> tuple[Model, Engine, dict[str, int]]:
    """(A hybrid's layers with attention, the engine with its states and weights, these by part). Raises ValueError, naming the field."""
    check(HYBRID, engine, hybrid)
    if hybrid.attention is None:
        raise ValueError(
            f"serve.model: {hybrid.name} has no layers with attention; allowed with an engine: a model that has some"
        )
    own = "fp16" if engine.weights == "fp16" else "bf16"
    dtype = hybrid.dtype or own if engine.state_dtype == "auto" else engine.state_dtype
    states = hybrid.states.layers, hybrid.states.page(engine.tensor_parallel, dtype)
    stands = hybrid.standing(engine.tensor_parallel, PADDED) if engine.loaded is None and engine.pages is None else {}
    engine = replace(engine, states=states, state_dtype=dtype, loaded=sum(stands.values()) or engine.loaded)
    return hybrid.attention, engine, stands


def _outside(engine):
    """Bytes that it takes outside PyTorch; of SGLang's, which come of the rest of its fraction, 0."""
    usual = OUTSIDE[engine.tensor_parallel > 1] if engine.name == "vllm" else 0
    return usual if engine.outside is None else engine.outside


def _check_memory(engine, gpu, requested, concurrency):
    """Raise ValueError for what the GPU does not have, or more requests at once than the engine takes."""
    if engine.pages is not None and engine.pages > (left := gpu.memory - (engine.loaded or 0)):
        raise ValueError(f"Engine.pages: {engine.pages:,} bytes on {gpu.name}; allowed: up to {left:,}, which it has")
    if engine.name == "vllm" and engine.pages is None and requested > (left := gpu.memory - cuda_context(gpu).least):
        raise ValueError(
            f"Engine.utilization: {engine.utilization:g} of {gpu.name} is more than CUDA's context leaves, and vLLM does not start; "
            f"allowed: up to {int(left / gpu.memory * 1000) / 1000:g}"
        )
    check_requests("serve.concurrency", engine, concurrency or 0)


def check_requests(owner: str, engine: Engine, number: int) -> None:
    """Raise ValueError, beginning with the owner, for more requests at once than an engine takes, on a GPU, takes."""
    if 0 < engine.sequences < number:
        raise ValueError(
            f"{owner}: {number:,}, and the engine takes {engine.sequences:,} requests at once; allowed: up to {engine.sequences:,}, or "
            f"Engine(sequences={number})"
        )


def _check_block(engine, model, gpu):
    """Raise ValueError for a block that holds no state, or where what a block is a multiple of is not known."""
    least = engine.grown(model)
    if 0 < engine.block < least:
        raise ValueError(f"Engine.block: {engine.block} holds no state of {model.name}; allowed: 0, or {least} or more")
    if least and not engine.block and gpu.capability.startswith("10.") and (model.latent or model.head_width == 256):
        raise ValueError(
            f"Engine.block: 0 on {gpu.name}, where releases of vLLM differ in what a block of {model.name} is a multiple of; allowed: "
            "that of the log's 'Setting attention block size to ... tokens'"
        )


def served(
    model: Model | Hybrid, gpu: Gpu, context: int, engine: Engine, concurrency: int | None = None
) -> EngineServing:
    """What that engine decides on that GPU for requests of up to `context` tokens. Raises ValueError, naming the field."""
    hybrid = model if isinstance(model, Hybrid) else None
    attends, engine, stands = _of(model, engine) if isinstance(model, Hybrid) else (model, engine, {})
    if hybrid is None:
        check(STATELESS, engine, attends)
    check(SERVED, engine, attends)
    _check_block(engine, attends, gpu)
    engine = engine.on(gpu)
    pool = engine.pool(attends)
    usable, parts = gpu.memory, dict[str, int]()
    if engine.name == "sglang":  # a fraction of what is free before; the rest is for activations and graphs
        usable -= cuda_context(gpu).most
    requested = int(usable * Fraction(str(engine.utilization)))
    _check_memory(engine, gpu, requested, concurrency)
    if engine.pages is None:
        parts |= stands or engine.standing(attends)
        if engine.name == "vllm":
            stated = {"the profile run, as stated": engine.profile or 0}
            parts |= engine.profiled(attends, gpu) if engine.profile is None else stated
            parts["outside PyTorch"] = _outside(engine)
    pages = requested - sum(parts.values()) if engine.pages is None else engine.pages
    return EngineServing(attends, gpu, engine, context, concurrency, requested, parts, pages, pool, hybrid)
