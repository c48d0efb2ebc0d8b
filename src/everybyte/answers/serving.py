"""What a model takes where it generates: weights, cache, the largest moment of each pass; and how many sequences a GPU holds."""

from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from inspect import signature
from typing import Literal

from ..ask.choices import DTYPE_BYTES
from ..catalog import Gpu, Model
from ..catalog.configs import from_config
from ..catalog.hybrids import Hybrid, hybrid
from ..catalog.weights import PACKED, packed
from ..common import checks
from ..common.search import most
from ..common.tables import Shown, Table, sized
from ..theory import inference
from .engines import Engine, EngineServing, served
from .headroom import ROUNDING, Headroom, find_gpu, kept_free, left

#: How keys and values are kept: tensors that grow by a copy, as `transformers` does by default; tensors with room for the whole context
#: from the prefill on; pages, as vLLM's.
CACHES = ("dynamic", "static", "paged")
PAGE = 16  # tokens in a page, as vLLM's
#: Bytes of a number in a cache, by data type.
CACHE_TYPES = {"bf16": 2, "fp16": 2, "fp8": 1, "int8": 1}
#: How weights are kept: in 16 bits, or the linear layers of the blocks in fewer; fp8: experts' matrices
#: too, with a scale a block of 128 by 128, as DeepSeek-V3; nf4: as bitsandbytes does with double quantization.
WEIGHTS = ("bf16", "fp16", *PACKED)
#: Sequences at once, at most.
MOST = 2**20
#: Tokens of a hybrid whose passes a dry run counts, at most two minutes for each number of sequences: its torch code takes a prompt by
#: chunks, Mamba's by tokens.
COUNTED, BY_TOKENS = 2**16, {"mamba": 2**11, "falcon_mamba": 2**11}


def cache_bytes(model: Model | Hybrid, tokens: int, dtype: str = "bf16", page: int = 1) -> int:
    """Bytes of one sequence's keys and values: layers x 2 x heads x width x tokens, these in whole pages.

    With latent attention the compressed latent and the shared rotary key. A layer with a window keeps its last W - 1 tokens, as the
    next one is of the W that it attends to; other layers keep all. A hybrid's states, of any number of tokens, are among them as
    transformers has them. Source: Kwon et al. 2023, arXiv:2309.06180 (pages); DeepSeek-AI 2024, arXiv:2405.04434, equations 9 to 13
    (latent); transformers 5.23, `cache_utils.py`, `DynamicSlidingWindowLayer` (windows), `LinearAttentionLayer` (states).
    """
    checks.one_of("serve", "cache_dtype", dtype, CACHE_TYPES)
    checks.whole("serve", "page", page, 1, 2**16)
    if isinstance(model, Hybrid):
        keys = cache_bytes(model.attention, tokens, dtype, page) if model.attention else 0
        return keys + model.states.layers * model.states.held()
    numbers = sum(heads * width for heads, width in inference.cached(model))
    near = model.windowed_layers
    pages = (model.layers - near) * -(-tokens // page) + near * -(-min(tokens, max(model.window - 1, 0)) // page)
    return numbers * pages * page * CACHE_TYPES[dtype]


def weight_bytes(model: Model | Hybrid, dtype: str = "bf16") -> int:
    """Bytes of a model's weights as they are served: in one of `WEIGHTS`."""
    checks.one_of("serve", "weights", dtype, WEIGHTS)
    if isinstance(model, Model) and dtype not in DTYPE_BYTES:
        return packed(model, dtype)
    return model.parameters * DTYPE_BYTES[dtype]


@dataclass(frozen=True)
class Moment:
    """The largest moment of a pass: `name`, `bytes`, and by part."""

    name: str
    bytes: int
    parts: dict[str, int] = field(compare=False)


@dataclass(frozen=True, eq=False, repr=False)
class Serving(Shown):
    """What so many sequences take on a GPU, and whether they fit.

    Attributes:
        model, gpu: as asked. context: tokens of a sequence when it ends, prompt: at its beginning. concurrency: sequences at
            once, as asked or the most that fit; None where not one does. weights, cache, cache_dtype, page: as asked.
        headroom: what is kept free; usable: what is left for tensors.
        moments: the largest of each kind of pass, of a growing cache; of pages what stands, since an engine's passes are its own.
        next: the bytes that one sequence more would take; None where the concurrency was asked for.
    """

    model: Model | Hybrid
    gpu: Gpu
    context: int
    prompt: int
    concurrency: int | None
    weights: str
    cache: str
    cache_dtype: str
    page: int
    headroom: Headroom
    usable: int
    moments: tuple[Moment, ...]
    next: int | None = None

    @property
    def peak(self) -> int:
        """Bytes of the largest moment; where nothing fits, of one sequence."""
        return max(moment.bytes for moment in self.moments)

    @property
    def fits(self) -> bool:
        """Whether that fits."""
        return self.concurrency is not None and self.peak <= self.usable

    @property
    def free(self) -> int:
        """Bytes that are left; negative where it does not fit."""
        return self.usable - self.peak

    @cached_property
    def per_token(self) -> int:
        """Bytes of the cache for one token of one sequence."""
        attends = self.model.attention if isinstance(self.model, Hybrid) else self.model
        return cache_bytes(attends.replace(window=0), 1, self.cache_dtype) if attends else 0

    @property
    def held(self) -> int:
        """Bytes of the whole cache at the full context."""
        return (self.concurrency or 1) * cache_bytes(self.model, self.context, self.cache_dtype, self.page)

    @property
    def _state(self):
        """What a sequence of a hybrid has beside its tokens, in words."""
        if not isinstance(self.model, Hybrid):
            return ""
        return f" and {self.model.states.layers * self.model.states.held():,} B a sequence"

    def table(self) -> Table:
        """Weights, cache and the largest moments, beside what is usable."""
        many, end = "not one sequence", ""
        if self.concurrency is not None:
            many, end = f"{self.concurrency:,} sequence{'s' * (self.concurrency > 1)}", " do not fit" * (not self.fits)
        title = f"{self.model.name} on {self.gpu.name}: {many} of {self.context:,} tokens{end}"
        rows = [
            (f"weights, {self.weights}", weight_bytes(self.model, self.weights)),
            (f"cache, {self.per_token:,} B a token{self._state}", self.held),
            *((moment.name, moment.bytes) for moment in self.moments),
            ("usable", self.usable),
            left(self.free),
        ]
        return Table((title, "bytes", ""), [sized(*row) for row in rows])

    def said(self) -> list[str]:
        """What the table does not say."""
        return [self._kept(), *self._near()]

    def _near(self):
        """What is said of layers with a state, or with a window."""
        model = self.model
        if isinstance(model, Hybrid):
            yield (
                f"{model.states.layers} of {model.layers} layers have a state, of {model.states.held():,} B a sequence however long it is: in "
                "fp32, with the last tokens of a short convolution in 16 bits, as transformers keeps them."
            )
            if self.context > model.positions > 0:
                yield f"The config has {model.positions:,} positions."
        elif near := model.windowed_layers:
            what = "chunks" if model.chunked else "a window"
            yield f"{near} of {model.layers} layers have {what} of {model.window:,} tokens, of which each keeps {model.window - 1:,}."

    def _kept(self):
        """What is said of how the cache is kept."""
        if self.cache == "paged":
            waste = (self.page - 1) * self.per_token
            return (
                f"Pages of {self.page} tokens, {self.page * self.per_token:,} B each; of the last at most {waste:,} B a sequence are "
                "not used. An engine's own passes and buffers are not counted: the number is the most that the cache allows. "
                "engine=eb.Engine() counts them."
            )
        grows = "grows by a copy"
        if self.cache == "static":
            grows = "has room for the whole context from the prefill on, and passes are not compiled"
        slow = " Layers with a state run its torch code, as where their kernels' packages are not installed."
        return (
            f"Counted as transformers generates, all prompts in one batch: the cache {grows}.{slow * isinstance(self.model, Hybrid)} Not in it: "
            f"cuBLAS's workspace, which each rehearsed pass takes besides, {self.gpu.cublas_workspace:,} B, and which the headroom keeps free; "
            "other scratch of kernels, of which a rehearsal shows none. It decides by live tensors, each rounded to 512 bytes: what PyTorch's "
            "allocator keeps in pieces beside them as the cache grows is not counted, and a rehearsal of the script has it."
        )

    def as_dict(self) -> dict:
        """As JSON holds it: whole bytes."""
        return {
            "model": {"name": self.model.name, "parameters": int(self.model.parameters)},
            "gpu": {"name": self.gpu.name, "memory": self.gpu.memory},
            "context": self.context, "prompt": self.prompt, "concurrency": self.concurrency, "fits": self.fits,
            "weights": {"dtype": self.weights, "bytes": weight_bytes(self.model, self.weights)},
            "cache": {
                "kind": self.cache, "dtype": self.cache_dtype, "page": self.page, "per_token": self.per_token, "bytes": self.held,
            },
            "headroom": {t.name: t.bytes for t in self.headroom.terms(self.gpu)},
            "usable": self.usable, "peak": self.peak, "free": self.free, "next": self.next,
            "moments": [{"name": m.name, "bytes": m.bytes, "parts": m.parts} for m in self.moments],
            "said": self.said(),
        }  # fmt: skip


def serve(
    model,
    gpu: Gpu | str,
    context: int,
    concurrency: int | None = None,
    *,
    prompt: int | None = None,
    cache: Literal["dynamic", "static", "paged"] = "dynamic",
    weights: str = "bf16",
    cache_dtype: str = "bf16",
    page: int = PAGE,
    headroom: Headroom | None = None,
    engine: Engine | None = None,
) -> Serving | EngineServing:
    """How many sequences of so many tokens a GPU generates at once; or what `concurrency` of them take.

    Args:
        model: a `Model` that generates; or a Hugging Face config: of a decoder as the catalog's, which is read as a `Model`, or of a
            hybrid, whose layers have a recurrent state in place of keys and values or beside them (Qwen3-Next, Qwen3.5, Kimi Linear,
            Falcon-H1, Nemotron-H, Granite 4, Bamba), or of a Mamba, which has these alone. A hybrid's passes are counted by dry runs, in seconds for each number of
            sequences; with an engine its states are as vLLM has them.
        gpu: a `Gpu`, a name of the catalog, or a size as "24 GiB". context: tokens of a sequence when it ends. prompt: of these the
            prompt's; by default all but the last, the largest prefill.
        cache: `dynamic`, as transformers' `DynamicCache`: prefill and decode step are derived to the byte, for weights and cache in
            16 bits; `static`, as its `StaticCache`, with room for `context` tokens, so derived too (without `torch.compile`, which
            `generate` asks for with it on CUDA); `paged`: what stands, weights and whole pages, for any data types.
        weights: one of `WEIGHTS`. cache_dtype: one of `CACHE_TYPES`. page: tokens in each. headroom: what is kept free of tensors.
        engine: in place of these, an `Engine`: what it decides as it starts, and what it prints.

    Raises:
        ValueError: naming the field, the value and what is allowed: a context beyond the model's positions, a prompt that leaves
            nothing to generate, data types that the kind of cache does not take, a model whose passes are not derived.
    """
    model = _subject(model)
    checks.one_of("serve", "cache", cache, CACHES)
    if concurrency is not None:
        checks.whole("serve", "concurrency", concurrency, 1, MOST)
    if engine is not None:
        beside = {"prompt": prompt, "cache": cache, "weights": weights, "cache_dtype": cache_dtype, "page": page}
        return _by(engine, model, gpu, context, concurrency, beside | {"headroom": kept_free("serve", headroom)})
    prompt = _check_tokens(model, context, prompt, isinstance(model, Hybrid) and cache != "paged")
    page = _check_kept(model, cache, weights, cache_dtype, page)
    headroom, gpu = kept_free("serve", headroom), find_gpu(gpu)
    _check_gpu(gpu, cache, weights=weights, cache_dtype=cache_dtype)
    usable = headroom.usable(gpu)

    @lru_cache(None)
    def moments(number):
        return tuple(_moments(model, number, context, prompt, cache, weights, cache_dtype, page))

    def size(number):
        return max(moment.bytes for moment in moments(number))

    found = concurrency or largest(size, usable)
    after = size(found + 1) if found and not concurrency and found < MOST else None
    kept = (weights, cache, cache_dtype, page, headroom, usable)
    return Serving(model, gpu, context, prompt, found, *kept, moments(found or 1), after)


def _weights(config):
    """The numbers of each weight of a config's language model, by its name. Raises ImportError without PyTorch."""
    from ..dryrun.hugging_face import weights

    return weights(config)


def _subject(model):
    """The `Model` or the hybrid of a Hugging Face config; a `Model` as it is. Raise ValueError for what is none of these."""
    if isinstance(model, Model) or not hasattr(model, "get_text_config"):
        checks.kind("serve", "model", model, Model)
        return model
    return hybrid(model, _weights) or from_config(model)


def _by(engine, model, gpu, context, concurrency, beside):
    """What an engine decides. Raise ValueError for what is said beside it."""
    checks.kind("serve", "engine", engine, Engine)
    unsaid = {name: said.default for name, said in signature(serve).parameters.items()} | {"headroom": Headroom()}
    for name, value in beside.items():
        if value != unsaid[name]:
            raise ValueError(
                f"serve.{name}: {checks.shown(value)} with an engine; allowed: what Engine(...) says of it"
            )
    _check_tokens(model, context, None)
    card = find_gpu(gpu)
    for name in ("weights", "cache"):
        if getattr(engine, name) == "bf16" and not card.bf16:
            raise ValueError(f"Engine.{name}: 'bf16' on {card.name}, which has no bf16; allowed: 'fp16'")
    return served(model, card, context, engine, concurrency)


def _check_tokens(model, context, prompt, counts=False):
    """The tokens of a prompt. Raise ValueError where the context or the prompt is none that the model takes, or that a dry run counts."""
    longest = 2**27 if isinstance(model, Hybrid) else model.positions or 2**27  # what a config says is no table's size
    if counts and isinstance(context, int) and context > (allowed := BY_TOKENS.get(model.kind, COUNTED)):
        raise ValueError(
            f"serve.context: {context:,} of {model.name}, whose passes a dry run counts piece by piece; allowed: up to {allowed:,}, or "
            "cache 'paged' or an engine"
        )
    if isinstance(context, int) and not isinstance(context, bool) and context > longest:
        raise ValueError(
            f"serve.context: {context:,} is beyond the {longest:,} positions of {model.name}; allowed: 2 to {longest:,}"
        )
    checks.whole("serve", "context", context, 2, longest)
    prompt = context - 1 if prompt is None else prompt
    checks.whole("serve", "prompt", prompt, 1, context - 1)
    return prompt


def _check_kept(model, cache, weights, cache_dtype, page):
    """Tokens in a page. Raise ValueError for what no cache is kept in, or a model whose passes are not derived."""
    checks.one_of("serve", "weights", weights, WEIGHTS)
    checks.one_of("serve", "cache_dtype", cache_dtype, CACHE_TYPES)
    checks.whole("serve", "page", page, 1, 2**16)
    if isinstance(model, Hybrid) and not model.whole:
        raise ValueError(
            f"serve.model: a config of images and text, of which {model.name} alone is counted; allowed: its text_config, or an engine "
            "with loaded=... or pages=..."
        )
    if isinstance(model, Hybrid) and model.stored:
        raise ValueError(
            f"serve.model: a config whose quantization_config stores weights of {model.name} in fewer bits, which are not counted; allowed: "
            "a config without it, or an engine with loaded=... or pages=..."
        )
    if cache == "paged":
        if isinstance(model, Hybrid) and weights not in ("bf16", "fp16"):
            raise ValueError(
                f"serve.weights: {weights!r} with {model.name}, of a config, is not counted; allowed: 'bf16' or 'fp16'"
            )
        if not model.causal:
            raise ValueError(f"Model.causal: False of {model.name}, which does not generate; allowed: True")
        return page
    sixteen = "'bf16' or 'fp16', or cache 'paged'"
    for name, value in (("weights", weights), ("cache_dtype", cache_dtype)):
        if value not in ("bf16", "fp16"):
            raise ValueError(f"serve.{name}: {value!r} with cache {cache!r}; allowed: {sixteen}")
    if page != PAGE:
        raise ValueError(f"serve.page: {page!r} with cache {cache!r}; allowed: with cache 'paged'")
    if isinstance(model, Model):
        inference.check(model, cache == "static")
    elif (width := model.attention.head_width if model.attention else 8) % 8 or width > 256:
        raise ValueError(
            f"serve.cache: heads of {width} of {model.name} are padded by the kernel of attention; allowed: multiples of 8 up to 256, or "
            "cache 'paged'"
        )
    return 1


def _check_gpu(gpu, cache, **types):
    """Raise ValueError where the GPU has no bf16, or none of the kernels that a growing cache's passes are derived with."""
    for name, value in types.items():
        if value == "bf16" and not gpu.bf16:
            raise ValueError(f"serve.{name}: 'bf16' on {gpu.name}, which has no bf16; allowed: 'fp16'")
    if cache != "paged" and not gpu.flash:
        raise ValueError(
            f"serve.cache: {cache!r} on {gpu.name}, whose capability {gpu.capability} has no flash attention, with which the passes "
            "are derived; allowed: 'paged', which counts what stands, or a GPU of capability 8.0 or more"
        )


def largest(size, usable):
    """The largest number whose size, bytes that grow with it, is usable; None where 1 is not."""
    return most(lambda number: size(number) - usable, 1, MOST)


def _moments(model, number, context, prompt, cache, weights, cache_dtype, page):
    """The largest moment of each kind of pass; of pages what stands."""
    if cache == "paged":
        held = number * cache_bytes(model, context, cache_dtype, page)
        parts = {"parameters": weight_bytes(model, weights), "cache": held}
        return [Moment("weights and pages", sum(parts.values()), parts)]
    if isinstance(model, Hybrid):
        return _counted(model, number, context, prompt, cache, weights)
    last, long = context - 1, model.window and context - 1 > prompt
    if cache == "static":
        prefill = inference.letters(model, number, prompt, room=context)
        decodes = [inference.letters(model, number, 1, last, room=context)]
    else:
        prefill = inference.letters(model, number, prompt)
        decodes = [inference.letters(model, number, 1, last, min(last, model.window) if long else last)]
        if long:  # the whole prompt's keys stand until the first step has joined its own
            decodes.append(inference.letters(model, number, 1, prompt, prompt))

    def moment(name, values):
        found = inference.course(model, values, weights).at(values, ROUNDING).budget()
        return Moment(f"{name}, its largest moment", found.peak, found.parts)

    steps = [moment("decode", values) for values in decodes]
    return [moment("prefill", prefill), max(steps, key=lambda one: one.bytes)]


def _counted(model, number, context, prompt, cache, weights):
    """The largest moment of each kind of pass of a hybrid, by dry runs. Raises ImportError without PyTorch."""
    from ..dryrun.inference import dry_serve

    kept = {"dtype": weights, "room": context if cache == "static" else None, "rounding": ROUNDING}
    prefill, decode = dry_serve(model.config, number, context - 1, 1, **kept)
    if prompt < context - 1:
        (prefill,) = dry_serve(model.config, number, prompt, 0, **kept)
    stands = weight_bytes(model, weights)

    def moment(name, peak):
        return Moment(
            f"{name}, its largest moment", peak, {"parameters": stands, "cache and activations": peak - stands}
        )

    return [moment("prefill", prefill.peak), moment("decode", decode.peak)]
