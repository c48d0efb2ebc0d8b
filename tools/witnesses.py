"""What prediction and dry run say of one step, held to each other byte for byte."""

from collections.abc import Iterable
from dataclasses import replace
from functools import lru_cache

import everybyte as eb
from everybyte.dryrun import PARTS, SHARED_PARTS

#: Exact bytes, and as CUDA's allocator rounds.
BLOCKS = (1, 512)


def disagreeing(drawn, seeds: Iterable[int]) -> dict[int, list[str]]:
    """Of the runs that `drawn` gives for these seeds, those of which prediction and dry run say different things."""
    return {seed: wrong for seed in seeds if (wrong := disagreements(*drawn(seed)[:2]))}


@lru_cache(4)
def dry(model: eb.Model, setup: eb.Setup, rank: int = 0):
    """A dry run, once for those who ask for it one after another."""
    return eb.dry_run(model, setup, rank=rank)


def disagreements(model: eb.Model, setup: eb.Setup, blocks=BLOCKS, rank: int = 0) -> list[str]:
    """What prediction and dry run say differently, in words: at every moment and at the peak, part by part.

    One dry run serves every block. A part that the prediction does not name counts as predicted to hold nothing.
    """
    exact, found = dry(model, setup, rank), []
    host = eb.budget(model, setup, 1, rank).host
    if host != exact.host:
        found.append(f"host: {host} predicted, {exact.host} counted")
    for block in blocks:
        trace, budget = replace(exact, rounding=block), eb.budget(model, setup, block, rank)
        said = [(moment, budget.parts_at(moment), trace.parts_at(moment)) for moment in trace.marks]
        said += [("at the peak", budget.parts, trace.parts), ("", budget.phases, trace.phases)]
        pairs = {f"{what} {moment}": (b.get(what, 0), t[what]) for moment, b, t in said for what in t}
        pairs |= {"peak": (budget.peak, trace.peak), "peak_at": (budget.peak_at, trace.peak_at)}
        found += [f"{what}, block {block}: {a} predicted, {b} counted" for what, (a, b) in pairs.items() if a != b]
    return found


def _course(witness, phase_of):
    """[(phase, {part: bytes})] of each place of a witness's timeline."""
    lines, kinds = witness.timeline(), (*PARTS, *SHARED_PARTS)
    return [
        (phase_of(place), {part: lines[part][place] for part in kinds if part in lines and lines[part][place]})
        for place in range(len(witness.live))
    ]


def _split(witness, phase_of):
    """The places outside the optimizer's step, and the most that lives in it."""
    places = _course(witness, phase_of)
    inside = [sum(parts.values()) for phase, parts in places if phase == "optimizer step"]
    return [parts for phase, parts in places if phase != "optimizer step"], max(inside, default=None)


def first_difference(model: eb.Model, setup: eb.Setup, block: int = 1, rank: int = 0) -> str | None:
    """The first place at which the timelines differ, with what the ledger calls it; None where there is none."""
    budget, trace = eb.budget(model, setup, block, rank), replace(dry(model, setup, rank), rounding=block)
    marks = set(trace.marks.values())
    predicted, most = _split(budget, lambda i: budget.operations[i][1])
    counted, seen = _split(trace, lambda i: "mark" if i in marks else trace.operations[i][1])
    names = [name for name, moment, _ in budget.operations if moment != "optimizer step"]
    if len(predicted) != len(counted):
        return f"{len(predicted)} operations predicted, {len(counted)} counted"
    if most != seen:
        return f"optimizer step: {most} predicted, {seen} counted"
    different = (i for i in range(len(predicted)) if predicted[i] != counted[i])
    return next((f"{i}, {names[i]}: {predicted[i]} predicted, {counted[i]} counted" for i in different), None)
