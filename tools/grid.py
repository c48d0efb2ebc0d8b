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
#: The moments that hold no activations.
STATES = ("rest", "after_step")


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


def disagreements(model: eb.Model, setup: eb.Setup, blocks=BLOCKS, moments=STATES) -> list[str]:
    """What prediction and dry run say differently, in words; one dry run serves every block.

    A part that the prediction does not name at one of its moments counts as predicted to hold nothing there.
    """
    exact, found = eb.dry_run(model, setup), []
    for block in blocks:
        trace, budget = replace(exact, block=block), eb.budget(model, setup, block)
        for moment in moments:
            predicted, counted = budget.parts_at(moment), trace.parts_at(moment)
            pairs = {f"{part} {moment}": (predicted.get(part, 0), counted[part]) for part in counted}
            pairs[moment] = budget.phases[moment], trace.phases[moment]
            found += [
                f"{what}, block {block}: {a:,} predicted, {b:,} counted" for what, (a, b) in pairs.items() if a != b
            ]
    return found
