"""Generating for real, on tensors without data: Hugging Face's decoder and its cache, pass by pass; every byte is counted."""

import warnings
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import accumulate

import torch

from ..catalog import Model
from ..catalog.decoders import decoder
from ..common import checks
from ..reference.adapters import base_parameters, package
from .cuda import Kernels
from .hugging_face import GROUPED, NAMES, NARROW, Recipe, as_on_cuda, config_of, named_difference
from .tracker import Tracker

_SILU = NAMES | GROUPED | NARROW
#: transformers' `model_type` -> how its configuration is made, of those that the book's references build too.
_DECODERS = {
    "llama": Recipe("llama-3.1-8b", "LlamaConfig", _SILU),
    "mistral": Recipe("mistral-7b", "MistralConfig", _SILU | {"window": "sliding_window"}),
    "qwen2": Recipe("qwen2.5-7b", "Qwen2Config", NAMES | GROUPED),
    "qwen3": Recipe("qwen3-8b", "Qwen3Config", _SILU),
    "gemma": Recipe("gemma-2b", "GemmaConfig", _SILU),
    "phi3": Recipe("phi-3-mini", "Phi3Config", NAMES | GROUPED | {"window": "sliding_window"}, more=lambda m: {"pad_token_id": 0}),
    "mixtral": Recipe(
        "mixtral-8x7b", "MixtralConfig",
        NAMES | GROUPED | {"expert_width": "intermediate_size", "experts": "num_local_experts", "experts_per_token": "num_experts_per_tok"},
        more=lambda m: {"sliding_window": None},
    ),
    "gpt2": Recipe(
        "gpt2", "GPT2Config",
        {"layers": "n_layer", "width": "n_embd", "heads": "n_head", "vocabulary": "vocab_size", "positions": "n_positions",
         "ffn_width": "n_inner", "tied": "tie_word_embeddings"},
        more=lambda m: {"activation_function": {"gelu_tanh": "gelu_new"}.get(m.activation, m.activation)},
    ),
    "opt": Recipe(
        "opt-125m", "OPTConfig", NAMES | {"ffn_width": "ffn_dim", "embedding_width": "word_embed_proj_dim"},
        more=lambda m: {"activation_function": m.activation},
    ),
}  # fmt: skip


@dataclass(frozen=True, eq=False)
class Counted:
    """One pass that was counted.

    Attributes:
        name: `prefill`, or which decode step. rest: bytes before it, weights and cache among them. peak: the most while it
            ran. peak_at: (operation, module) there. lived: bytes that lived while each of its operations that took any ran.
        cache: bytes that hold keys and values after it.
    """

    name: str
    rest: int
    peak: int
    peak_at: tuple[str, str]
    lived: list[int]
    cache: int


def dry_serve(
    model: Model, batch: int, prompt: int, steps: int = 1, dtype: str = "bf16", room: int | None = None
) -> list[Counted]:
    """Run a prefill and some decode steps of Hugging Face's decoder of those dimensions, and count the bytes.

    As `generate` does without a mask or processors of logits: a `DynamicCache`, the logits of the last token alone, the next
    token by argmax. The weights are random and have no data; nothing is downloaded.

    Args:
        model: a `Model`. batch: sequences. prompt: tokens of each. steps: decode steps after the prefill. dtype: of the weights.
        room: tokens of each sequence that a `StaticCache` has room for from the prefill on; None for a `DynamicCache`. Passes are not
            compiled.

    Raises:
        ValueError: where no decoder of Hugging Face is the model, transformers is not installed, or the sequences are longer than
            the model's positions.
    """
    checks.kind("dry_serve", "model", model, Model)
    checks.whole("dry_serve", "batch", batch, 1, 2**20)
    checks.whole("dry_serve", "steps", steps, 0, 64)
    checks.whole("dry_serve", "prompt", prompt, 1, (model.positions or 2**27) - steps)
    checks.one_of("dry_serve", "dtype", dtype, ("bf16", "fp16"))
    if room is not None:
        checks.whole("dry_serve", "room", room, prompt + steps, model.positions or 2**27)
    config, tracker, found = _config(model), Tracker(), []
    with ExitStack() as stack:
        stack.enter_context(warnings.catch_warnings())
        warnings.simplefilter("ignore")
        transformers = package("transformers", "dry_serve.model", extra="models")
        stack.enter_context(torch.no_grad())
        stack.enter_context(Kernels(tracker.loss_of))
        stack.enter_context(tracker)
        stack.enter_context(as_on_cuda())
        config._attn_implementation = "sdpa"
        with torch.device("meta"):
            kind = torch.bfloat16 if dtype == "bf16" else torch.float16
            module = transformers.AutoModelForCausalLM.from_config(config, dtype=kind).eval()
        if base_parameters(module) != model.parameters:
            named_difference(model, module)
        if room is None:
            cache = transformers.DynamicCache(config=config)
        else:
            cache = transformers.StaticCache(config=config, max_cache_len=room)
        tokens = torch.empty(batch, prompt, dtype=torch.int64, device="meta")
        tracker.restart()
        stack.enter_context(tracker.watching(module))
        for step in range(1 + steps):
            start = tracker.now
            tracker.phase = "decode" if step else "prefill"
            tokens = _next(module, tokens, cache, tokens[:, -1:] if step else tokens)
            tracker.mark("end")
            found.append((f"decode {step}" if step else "prefill", start, tracker.now))
    live = lived(tracker)
    return [counted(tracker, live, *span) for span in found]


def _next(module, tokens, cache, new):
    """The tokens with one more."""
    out = module(new, past_key_values=cache, use_cache=True, logits_to_keep=1)
    logits = out.logits[:, -1].to(copy=True, dtype=torch.float32)
    del out
    token = logits.argmax(dim=-1)
    del logits
    return torch.cat([tokens, token[:, None]], dim=-1)


def lived(tracker) -> list[int]:
    """Bytes that live while each operation runs, by its number."""
    changes = [0] * (tracker.now + 2)
    for a in tracker.allocations:
        if not a.host:
            changes[a.birth] += a.bytes
            changes[tracker.now + 1 if a.death is None else a.death + 1] -= a.bytes
    return list(accumulate(changes))


def counted(tracker, live, name, start, end) -> Counted:
    """What was counted between two operations. live: as of `lived`."""
    taken = [a for a in tracker.allocations if not a.host and a.birth < end]
    places = sorted({a.birth for a in taken if a.birth > start})
    at = max(places, key=live.__getitem__)
    operation, _, owner = tracker.operations[at]
    joined = (a for a in taken if a.operation == "cat" and a.owner.endswith(("attn", "attention")))
    cache = sum(a.bytes for a in joined if a.death is None or a.death >= end)
    return Counted(name, live[start], live[at], (operation, owner), [live[i] for i in places], cache)


def _config(model):
    kind = decoder(model)
    if kind not in _DECODERS:
        return config_of(model)
    transformers = package("transformers", "dry_serve.model", extra="models")
    found = _DECODERS[kind]
    sizes = {name: getattr(model, field) for field, name in found.names.items()}
    if "sliding_window" in sizes:
        sizes["sliding_window"] = sizes["sliding_window"] or None
    ends = {"bos_token_id": None, "eos_token_id": None}
    return getattr(transformers, found.config)(**ends | sizes | found.more(model))
