"""DDP's buckets: gradients that are averaged together."""

from dataclasses import replace
from functools import lru_cache

from ..ask.setup import Lora, Setup
from .training import Step

#: Bytes at which DDP closes its first bucket, and each other one.
FIRST_BUCKET, BUCKET = 2**20, 25 * 2**20


@lru_cache(256)
def buckets(
    model,
    width: int,
    alone: tuple[str, ...] = (),
    autocast: bool = False,
    ends=(True, True),
    lora: Lora | None = None,
) -> list[int]:
    """Bytes of each of DDP's buckets: gradients in the order in which backward makes them, `width` bytes a number.

    `alone`: what the names of those end with that DDP leaves alone. `autocast`: whether weights are cast, biases before them: then
    a weight's gradient comes before its bias's. `ends`: of a stage of a pipeline, whether it has the embeddings, and norm and head.
    `lora`: what trains in place of the weights, if anything does.

    Source: PyTorch, torch/csrc/distributed/c10d/reducer.cpp, compute_bucket_assignment_by_size.
    """
    found, size = [], 0
    for numbers in _in_order(model, alone, autocast, lora, *ends):
        size += numbers * width
        if size >= (BUCKET if found else FIRST_BUCKET):
            found.append(size)
            size = 0
    return found + [size] * (size > 0)


def _in_order(model, alone, autocast, lora, embeddings, last):
    """Numbers of each parameter as its gradient comes: of the blocks, which are alike, two are run."""
    layers = min(model.layers, 2)
    lora = lora and replace(lora, dtype="fp32", base=None)
    setup = Setup(batch=2, sequence=2, precision="bf16-mixed" if autocast else "fp32", adapters=lora)
    step = Step(model, setup, (layers,), (), 1, 1)
    step.run()
    names = [(p.name, int(p.numbers)) for p in step.tape.arrived if not p.name.endswith(alone)]
    block = [numbers for name, numbers in names if name.startswith(f"blocks.{layers - 1}.")]
    first = next(i for i, (name, _) in enumerate(names) if name.startswith("blocks."))
    after = [numbers for name, numbers in names[first:] if not name.startswith("blocks.")]
    return [*(numbers for _, numbers in names[:first] if last), *block * model.layers, *after * embeddings]
