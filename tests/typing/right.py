"""Public use that a type checker passes: run by no test, read by mypy, which holds the types that are asserted."""

from fractions import Fraction
from typing import assert_type

import everybyte as eb
from everybyte.catalog import Described

gpt2 = eb.model("gpt2")
wider = gpt2.replace(name="wider", width=1536)
own = eb.Model(layers=2, width=64, heads=4, vocabulary=100, kv_heads=2)
assert_type(gpt2.ffn_width, int)  # the dimensions that follow others are numbers to those who read them
assert_type(gpt2.kv_heads * gpt2.head_width, int)
assert_type(gpt2.published, int | None)

setup = eb.Setup(batch=8, sequence=1024, precision="bf16-mixed", checkpointing="full", dropout=0.1)
predicted = eb.budget(gpt2, setup)
assert_type(predicted.peak, int)
assert_type(predicted.parts, dict[str, int])

counted = eb.dry_run(own, setup.replace(batch=2))
assert_type(counted, eb.Trace)
described: Described = counted.model
assert_type(eb.compare(predicted, counted).agree, bool)

found = eb.fit(gpt2, setup, "h100-80gb", vary="batch")
assert_type(found.value, int | None)
assert_type(eb.plan(gpt2, setup, eb.gpu("rtx-4090")), eb.Plan)

formula = eb.derive(own, setup)
assert_type(formula, eb.Derivation)
assert_type(formula.at(batch=8, sequence=1024).peak, int)

settled = [eb.settle(claim) for claim in eb.claims().values()]
numbers = [s.computed for s in settled if isinstance(s.computed, Fraction)]
assert_type(numbers, list[Fraction])
