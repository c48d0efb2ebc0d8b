"""The training steps that the witnesses are held to, byte for byte: the tests take a slice, `make bench` all of it."""

from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import product

import everybyte as eb
from everybyte.setup import ATTENTIONS, MASTER_GRADIENTS, OPTIMIZER_IMPLS, OPTIMIZERS, PRECISIONS

GPT2_SIZES = ("gpt2", "gpt2-medium", "gpt2-large", "gpt2-xl")
#: (batch, sequence): a round one, and one that no power of two divides.
SHAPES = ((8, 1024), (3, 1000))
#: Exact bytes, and as CUDA's allocator rounds.
BLOCKS = (1, 512)


def states(
    models: Iterable[eb.Model] = (),
    shapes=SHAPES,
    precisions=tuple(PRECISIONS),
    optimizers=tuple(OPTIMIZERS),
    impls=OPTIMIZER_IMPLS,
    attentions=ATTENTIONS,
) -> Iterator[tuple[eb.Model, eb.Setup]]:
    """Every choice that decides what stands at rest and after the step; by default of the four GPT-2 sizes."""
    models = list(models) or [eb.model(name) for name in GPT2_SIZES]
    for model, (batch, sequence), precision, optimizer, impl, attention in product(
        models, shapes, precisions, optimizers, impls, attentions
    ):
        for gradients in MASTER_GRADIENTS if precision == "bf16-master" else ("bf16",):
            yield model, eb.Setup(
                batch=batch, sequence=sequence, precision=precision, optimizer=optimizer, optimizer_impl=impl,
                attention=attention, master_gradients=gradients,
            )  # fmt: skip


def disagreements(model: eb.Model, setup: eb.Setup, blocks=BLOCKS) -> list[str]:
    """What prediction and dry run say differently, in words; one dry run serves every block.

    A part that the prediction does not name at one of its moments counts as predicted to hold nothing there.
    """
    exact, found = eb.dry_run(model, setup), []
    for block in blocks:
        trace, budget = replace(exact, block=block), eb.budget(model, setup, block)
        for moment, predicted in budget.moments.items():
            for part, counted in trace.parts_at(moment).items():
                if predicted.get(part, 0) != counted:
                    found.append(
                        f"{part} {moment}, block {block}: {predicted.get(part, 0):,} predicted, {counted:,} counted"
                    )
        for phase, predicted in budget.phases.items():
            if predicted != trace.phases[phase]:
                found.append(f"{phase}, block {block}: {predicted:,} predicted, {trace.phases[phase]:,} counted")
    return found
