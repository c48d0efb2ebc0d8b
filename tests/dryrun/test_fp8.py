"""A product in 8 bits saves what one in 16 bits does, and gives the same result where 8 bits hold every number."""

from functools import partial

import torch
from torch.nn import functional as F

import everybyte as eb
from everybyte.dryrun import fp8

SIZES = 64, 32, 96


def test_the_same_is_saved_and_the_peak_is_higher():
    setup, batch = eb.Setup(precision="bf16", optimizer="sgd"), {"x": (SIZES[:2], torch.bfloat16)}
    wide, low = (eb.dry_run(partial(fp8.Mlp, m, *SIZES), setup, batch=batch) for m in (F.linear, fp8.linear))
    assert low.phases["after_forward"] == wide.phases["after_forward"]
    assert low.peak > wide.peak
    kept = eb.dry_run(partial(fp8.Mlp, fp8.saving, *SIZES), setup, batch=batch)
    inputs = SIZES[0] * (SIZES[1] + SIZES[2])  # of both products, a byte each less
    assert low.phases["after_forward"] - kept.phases["after_forward"] == inputs


def test_small_whole_numbers_are_multiplied_exactly():
    torch.manual_seed(0)
    made = [torch.randint(-2, 3, shape).bfloat16() for shape in ((32, 16), (48, 16), (32, 48))]
    found = []
    for multiply in (F.linear, fp8.linear, fp8.saving):
        x, weight = (t.clone().requires_grad_() for t in made[:2])
        out = multiply(x, weight)
        out.backward(made[2])
        found.append((out, x.grad, weight.grad))
    assert all(map(torch.equal, found[0], found[1])) and all(map(torch.equal, found[0], found[2]))
