"""Interview questions with answers of thirty seconds, and numbers for the model, GPU and setup that the reader chooses.

The texts are in `cards.toml`, with numbers as names in braces; `numbers` computes them when they are shown.
"""

from typing import Any

from ...answers.headroom import find_gpu
from ...ask.setup import Setup
from ...catalog import Gpu, Model, model
from ...common import checks
from ...derivation import Derivation
from .cards import PARTS, Card, cards, read_cards
from .case import GPUS, Case, Derived
from .deck import Deck
from .numbers import NUMBERS


def interview(of="llama-3.1-8b", gpu: Gpu | str = "h100-80gb", setup: Setup | None = None) -> Deck:
    """The deck for a model, a GPU and a setup; by default Hugging Face's Llama 3.1 8B, all in bf16, ZeRO-3 on 8 GPUs with two sequences of 4,096 tokens each.

    Args:
        of: a `Model`, or its name in the catalog; or a derivation of another model, which has peaks under its own setup, but no
            numbers of a model's dimensions. gpu: of the catalog, also by name.
        setup: for a derivation, its own with any batch and sequence; by default its own.

    Raises:
        ValueError: naming the field, the value and what is allowed.
    """
    of = model(of) if isinstance(of, str) else of
    derived = isinstance(of, Derivation)
    if not derived and not isinstance(of, Model):
        raise ValueError(
            f"interview.of: a {type(of).__name__} is no model; allowed: a Model, a name of the catalog, or what eb.derive returns"
        )
    if setup is None and derived:
        setup = of.setup
    elif setup is None:
        few = min(4096, of.positions or 4096)
        setup = Setup(batch=2, sequence=few, precision="bf16", gpus=GPUS, sharding="zero3")
    checks.kind("interview", "setup", setup, Setup)
    setup = setup.of(of.own)
    if not derived:
        setup.check_model(of)
    asked: Any = Derived(of) if derived else of
    return Deck(Case(asked, setup, gpu=find_gpu(gpu)), tuple(cards().values()))
