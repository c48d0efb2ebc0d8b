"""Generating for real, on tensors without data: Hugging Face's decoder and its cache, pass by pass; every byte is counted."""

import copy
import inspect
import warnings
from contextlib import contextmanager
from dataclasses import dataclass

import torch

from ..catalog import Model
from ..common import checks
from ..reference.adapters import base_parameters, package
from .autocast import autocast_as_on_cuda
from .cuda import Kernels
from .hugging_face import as_on_cuda, check_own, decoder_config, is_config, kernel, named, named_difference
from .trace import reading
from .tracker import Tracker


@dataclass(frozen=True, eq=False)
class Counted:
    """One pass that was counted.

    Attributes:
        name: `prefill`, or which decode step. rest: bytes before it, weights and cache among them. peak: the most while it
            ran. peak_at: (operation, module) there. lived: bytes that lived while each of its operations that took any ran.
        cache: bytes that hold keys and values after it, and states.
    """

    name: str
    rest: int
    peak: int
    peak_at: tuple[str, str]
    lived: list[int]
    cache: int


def dry_serve(
    model, batch: int, prompt: int, steps: int = 1, dtype: str = "bf16", room: int | None = None, rounding: int = 1
) -> list[Counted]:
    """Run a prefill and some decode steps of Hugging Face's decoder of those dimensions, and count the bytes.

    As `generate` does without a mask or processors of logits: a `DynamicCache`, the logits of the last token alone, the next
    token by argmax. The weights are random and have no data; nothing is downloaded. Layers with a recurrent state run as transformers'
    torch code, which it takes where the packages of their kernels are not installed.

    Args:
        model: a `Model`, or a Hugging Face config of a language model, with the attention that it says. batch: sequences. prompt: tokens of each. steps: decode steps
            after the prefill. dtype: of the weights.
        room: tokens of each sequence that a `StaticCache` has room for from the prefill on; None for a `DynamicCache`. Passes are not
            compiled.
        rounding: bytes; each allocation is rounded up to a multiple of it, 512 for CUDA's allocator.

    Raises:
        ValueError: where no decoder of Hugging Face is the model, transformers is not installed, or the sequences are longer than
            the model's positions.
    """
    own = is_config(model)
    if not own:
        checks.kind("dry_serve", "model", model, Model)
    longest = 2**27 if own else model.positions or 2**27
    checks.whole("dry_serve", "batch", batch, 1, 2**20)
    checks.whole("dry_serve", "steps", steps, 0, 64)
    checks.whole("dry_serve", "prompt", prompt, 1, longest - steps)
    checks.whole("dry_serve", "rounding", rounding, 1, 2**30)
    checks.one_of("dry_serve", "dtype", dtype, ("bf16", "fp16"))
    if room is not None:
        checks.whole("dry_serve", "room", room, prompt + steps, longest)
    if own:
        check_own("dry_serve.model", model)
    config = copy.deepcopy(model) if own else decoder_config(model)
    config._attn_implementation = getattr(config, "_attn_implementation", None) or kernel(config)
    with named(model, "generate"):
        return _served(config, model, batch, prompt, steps, dtype, room, rounding)


def _served(config, model, batch, prompt, steps, dtype, room, rounding):
    """The passes of `dry_serve`, whose model the config makes."""
    own, tracker, ends, held = is_config(model), Tracker(), [("rest", 0)], []
    transformers = package("transformers", "dry_serve.model", extra="models")
    with without_gradients(tracker):
        with torch.device("meta"):
            kind = torch.bfloat16 if dtype == "bf16" else torch.float16
            module = transformers.AutoModelForCausalLM.from_config(config, dtype=kind).eval()
        if not own and base_parameters(module) != model.parameters:
            named_difference(model, module)
        if room is None:
            cache = transformers.DynamicCache(config=config)
        else:
            cache = transformers.StaticCache(config=config, max_cache_len=room)
        tokens = torch.empty(batch, prompt, dtype=torch.int64, device="meta")
        tracker.restart()
        with tracker.watching(module):
            for step in range(1 + steps):
                tracker.phase = "decode" if step else "prefill"
                tokens = _next(module, tokens, cache, tokens[:, -1:] if step else tokens)
                ends.append((f"decode {step}" if step else "prefill", tracker.mark("end")))
                held.append(_held(cache) if own else None)
    return counted(tracker, ends, held, rounding)


def _next(module, tokens, cache, new):
    """The tokens with one more."""
    takes = inspect.signature(module.forward).parameters
    kept = {"cache_params" if "cache_params" in takes else "past_key_values": cache}  # as Mamba-2's calls it
    last = {"logits_to_keep": 1} if "logits_to_keep" in takes else {}
    out = module(new, use_cache=True, **kept, **last)
    logits = out.logits[:, -1].to(copy=True, dtype=torch.float32)
    del out
    token = logits.argmax(dim=-1)
    del logits
    return torch.cat([tokens, token[:, None]], dim=-1)


def _held(cache):
    """Bytes of a cache's tensors: keys, values, and states."""
    found = [x for layer in cache.layers for x in (getattr(layer, "keys", None), getattr(layer, "values", None))]
    for layer in cache.layers:
        found += [x for name in ("conv_states", "recurrent_states") for x in getattr(layer, name, {}).values()]
    return sum(x.nbytes for x in found if x is not None)


@contextmanager
def without_gradients(tracker: Tracker):
    """Within it PyTorch acts as on CUDA, without gradients, and the tracker follows it."""
    with warnings.catch_warnings(), torch.no_grad(), Kernels(tracker.loss_of), autocast_as_on_cuda():
        with tracker, as_on_cuda():
            warnings.simplefilter("ignore")
            yield


def counted(tracker: Tracker, ends: list[tuple[str, int]], held=(), rounding: int = 1) -> list[Counted]:
    """What was counted of each pass.

    ends: (name, the number of the mark at its end), the beginning of the first before them. held: bytes of the cache after each; where
    none are said, of what attention joins.
    """
    moments = reading(tracker.operations, tracker.allocations, rounding).moments
    live = [sum(moment.live.values()) for moment in moments]
    found = []
    for i, ((_, start), (name, end)) in enumerate(zip(ends, ends[1:], strict=False)):
        places = [i for i in range(start + 1, end) if moments[i].operation.taken]
        at = max(places, key=live.__getitem__)
        operation, _, owner = tracker.operations[at]
        joined = (a for a in tracker.allocations if a.operation == "cat" and a.owner.endswith(("attn", "attention")))
        cache = sum(a.bytes for a in joined if not a.host and a.birth < end and (a.death is None or a.death >= end))
        cache = cache if i >= len(held) or held[i] is None else held[i]
        found.append(Counted(name, live[start], live[at], (operation, owner), [live[i] for i in places], cache))
    return found
