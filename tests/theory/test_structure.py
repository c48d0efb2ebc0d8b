"""What decides the form of a step is in its key, by exclusion; what others ask of an operation is its kind, not its title."""

from dataclasses import fields

import pytest

import everybyte as eb
from everybyte.step.course import KINDS, flat
from everybyte.theory import structure
from everybyte.theory.budget import course_of

SMALL = eb.Model(name="small", layers=3, width=48, heads=3, vocabulary=101, positions=40)


class Told:
    """Stands for a model or a setup, and notes which fields are read."""

    def __init__(self, of):
        self.of, self.read = of, set()

    def __getattr__(self, name):
        self.read.add(name)
        return getattr(self.of, name)


@pytest.mark.parametrize(
    ("value", "key", "lettered"),
    [(SMALL, structure._features, structure.LETTERED), (eb.Setup(), structure._switches, structure.LETTERED_SETUP)],
)
def test_every_field_is_in_the_key_but_those_that_are_named(value, key, lettered):
    told = Told(value)
    key(told)
    assert told.read == {f.name for f in fields(value)} - lettered
    assert lettered <= {f.name for f in fields(value)}


@pytest.mark.parametrize("attention", ["eager", "flash"])
@pytest.mark.parametrize("offload", ["none", "cpu"])
def test_kinds_are_what_communicates_and_nothing_else(attention, offload):
    setup = eb.Setup(
        batch=2, sequence=8, attention=attention, sharding="zero3", gpus=4, offload=offload, precision="bf16-mixed"
    )
    found = {}
    for operation in flat(course_of(SMALL, setup).items):
        found.setdefault(operation.kind, set()).add(operation.name.split(" ", 1)[-1])
    assert found.keys() <= {"", *KINDS}
    assert found["gathered"] == {"gathered"} and found["sent"] == {"sent"} and found["received"] == {"received"}
    assert found.get("from the host", set()) == ({"copied"} if offload == "cpu" else set())


def test_what_attention_copies_is_not_sent_to_the_gpu():
    """Eager attention copies tensors on the GPU, in operations whose titles end as those of offloading do."""
    plans = []
    for attention in ("eager", "flash"):
        setup = eb.Setup(
            batch=2, sequence=8, attention=attention, sharding="zero3", gpus=4, offload="cpu", precision="bf16-mixed"
        )
        rung = eb.plan(SMALL, setup, "h100-80gb").rungs[0]
        plans.append(rung.work.copied)
    # A share of the weights to the GPU for forward and for backward, and one of the gradients back: 4 bytes a number.
    assert plans[0] == plans[1] and 2 * SMALL.parameters < plans[0] <= 3 * SMALL.parameters
