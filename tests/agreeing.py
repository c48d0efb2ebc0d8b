"""Runs drawn at random, held to the byte."""

import witnesses

import everybyte as eb
from everybyte.theory.budget import not_derived


def agree(draw, seeds, third="rank", refused=False):
    """Of each run that `draw` gives, the witnesses say the same: on the GPU of its `third`, in blocks of it, or whatever it is.

    refused: what the theory does not derive is passed over; elsewhere it is an error.
    """
    for seed in seeds:
        model, setup, where = draw(seed)
        if refused and not_derived(model, setup) is not None:
            continue
        more = {"rank": {"rank": where}, "block": {"blocks": (where,)}, "": {}}[third]
        assert not witnesses.disagreements(model, setup, **more), (seed, model, setup, where)


def to_the_byte(model, setup):
    """Formula and dry run say the same of a step: phases, parts, the peak and where it is."""
    predicted, counted = eb.budget(model, setup), eb.dry_run(model, setup)
    assert predicted.phases == counted.phases and predicted.peak == counted.peak
    assert predicted.parts == counted.parts and predicted.peak_at == counted.peak_at
