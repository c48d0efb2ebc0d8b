"""Generating for real, on tensors without data: Hugging Face's decoder and its cache, pass by pass; every byte is counted."""

import warnings
from contextlib import contextmanager
from dataclasses import dataclass

import torch

from ..catalog import Model
from ..common import checks
from ..reference.adapters import base_parameters, package
from .autocast import autocast_as_on_cuda
from .cuda import Kernels
from .hugging_face import as_on_cuda, decoder_config, kernel, named_difference
from .trace import reading
from .tracker import Tracker


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
    config, tracker, ends = decoder_config(model), Tracker(), [("rest", 0)]
    config._attn_implementation = kernel(config)
    transformers = package("transformers", "dry_serve.model", extra="models")
    with without_gradients(tracker):
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
        with tracker.watching(module):
            for step in range(1 + steps):
                tracker.phase = "decode" if step else "prefill"
                tokens = _next(module, tokens, cache, tokens[:, -1:] if step else tokens)
                ends.append((f"decode {step}" if step else "prefill", tracker.mark("end")))
    return counted(tracker, ends)


def _next(module, tokens, cache, new):
    """The tokens with one more."""
    out = module(new, past_key_values=cache, use_cache=True, logits_to_keep=1)
    logits = out.logits[:, -1].to(copy=True, dtype=torch.float32)
    del out
    token = logits.argmax(dim=-1)
    del logits
    return torch.cat([tokens, token[:, None]], dim=-1)


@contextmanager
def without_gradients(tracker: Tracker):
    """Within it PyTorch acts as on CUDA, without gradients, and the tracker follows it."""
    with warnings.catch_warnings(), torch.no_grad(), Kernels(tracker.loss_of), autocast_as_on_cuda():
        with tracker, as_on_cuda():
            warnings.simplefilter("ignore")
            yield


def counted(tracker: Tracker, ends: list[tuple[str, int]]) -> list[Counted]:
    """What was counted of each pass. ends: (name, the number of the mark at its end), the beginning of the first before them."""
    moments = reading(tracker.operations, tracker.allocations).moments
    live = [sum(moment.live.values()) for moment in moments]
    found = []
    for (_, start), (name, end) in zip(ends, ends[1:], strict=False):
        places = [i for i in range(start + 1, end) if moments[i].operation.taken]
        at = max(places, key=live.__getitem__)
        operation, _, owner = tracker.operations[at]
        joined = (a for a in tracker.allocations if a.operation == "cat" and a.owner.endswith(("attn", "attention")))
        cache = sum(a.bytes for a in joined if not a.host and a.birth < end and (a.death is None or a.death >= end))
        found.append(Counted(name, live[start], live[at], (operation, owner), [live[i] for i in places], cache))
    return found
