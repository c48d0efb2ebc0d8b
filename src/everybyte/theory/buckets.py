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
    """Numbers of each parameter as its gradient comes: of the blocks, which are alike, two are run; of those before experts two too."""
    dense = model.dense_layers if model.experts else 0
    first, rest = min(dense, 2), min(model.layers - dense, 2)
    layers = first + rest
    lora = lora and replace(lora, dtype="fp32", base=None)
    setup = Setup(batch=2, sequence=2, precision="bf16-mixed" if autocast else "fp32", adapters=lora)
    step = Step(model, setup, (layers,), (), 1, (1,), dense=first)
    step.run()
    names = [(p.name, int(p.numbers)) for p in step.tape.arrived if not p.name.endswith(alone)]

    def block(number):
        return [numbers for name, numbers in names if name.startswith(f"blocks.{number}.")]

    start = next(i for i, (name, _) in enumerate(names) if name.startswith("blocks."))
    after = [numbers for name, numbers in names[start:] if not name.startswith("blocks.")]
    blocks = block(layers - 1) * (model.layers - dense) + block(first - 1) * dense
    return [*(numbers for _, numbers in names[:start] if last), *blocks, *after * embeddings]
