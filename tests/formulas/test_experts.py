"""The worst imbalance of experts, beside every way that few tokens can choose theirs."""

from itertools import combinations, product

import pytest

import everybyte as eb
from everybyte.ask.mesh import worst_routing


@pytest.mark.parametrize(
    "experts, each, gpus", [(e, k, g) for e in (2, 4, 6) for k in (1, 2, 3) for g in (2, 3) if k <= e and e % g == 0]
)
def test_the_worst_imbalance_is_reached_and_never_passed(experts, each, gpus):
    """One token on each GPU chooses any of its experts: the most that come to the first GPU's, over those that one GPU sends."""
    own = experts // gpus
    choices = list(combinations(range(experts), each))
    worst = (
        max(sum(expert < own for chosen in tokens for expert in chosen) for tokens in product(choices, repeat=gpus))
        / each
    )
    model = eb.model("mixtral-8x7b", code="reference").replace(experts=experts, experts_per_token=each)
    assert worst == worst_routing(model, gpus)
    assert eb.formula("experts.worst").at(model, eb.Setup(gpus=gpus, mesh=eb.Mesh(expert=gpus))) == worst


def test_mixtral_on_eight_gpus():
    """A GPU has one expert, and a token's two are different: half of all rows come here at most."""
    assert worst_routing(eb.model("mixtral-8x7b", code="reference"), 8) == 4
    run = eb.Setup(batch=1, sequence=64, precision="bf16", gpus=8)
    model = eb.model("mixtral-8x7b", code="reference").replace(layers=2)
    assert eb.budget(model, run.replace(mesh=eb.Mesh(expert=8, routing=4))).peak > 0
    with pytest.raises(
        ValueError, match="Mesh.routing: 8.0 with mixtral-8x7b, .*allowed: at most 4, where all that can"
    ):
        eb.budget(model, run.replace(mesh=eb.Mesh(expert=8, routing=8)))
