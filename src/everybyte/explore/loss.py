"""Chapter 16's explorer: the loss's logits-sized tensors against all blocks' activations, as the vocabulary grows."""

from ..ask.setup import Setup
from ..catalog import Model
from ..formulas import formula
from ..formulas.symbols import L
from .controls import OF_STATES, Choice, a_gpt, asked, attention_of, check_setup, gpts, model_of, opens
from .explorer import Explorer, told
from .pictures import Lines

_CHUNKS = (2, 8, 64)


@opens
def loss(model: Model | None = None, setup: Setup | None = None) -> Explorer:
    """Bytes of the logits-sized tensors at the loss's worst moment, and of what all blocks keep, against the vocabulary.

    Args:
        model, setup: what it opens with, a model of your own too; by default GPT-2, and what the other explorers show.

    Raises:
        ValueError: a model that is not of GPT-2's architecture, a batch or a sequence that is no power of two.
    """
    from ..catalog import models

    start = a_gpt(model)
    check_setup("loss", setup, *OF_STATES, "batch", "sequence", "attention")
    sizes = {m.vocabulary: name for name, m in reversed(models().items())}
    vocabularies = {"(the model's)": {}} | {f"{v:,}, as {sizes[v]}": {"vocabulary": v} for v in sorted(sizes)}
    chunks = {"plain": {"chunked": 0, "loss_chunks": 1}}
    chunks |= {f"in {n} chunks": {"chunked": 1, "loss_chunks": n} for n in _CHUNKS}
    controls = [
        model_of(gpts() | {start.name: start}, start),
        Choice("vocabulary", "vocabulary", vocabularies, kind="slider"),
        *asked(setup, "precision"),
        attention_of(setup),
        Choice("loss", "loss", chunks),
        *asked(setup, "batch", "sequence"),
    ]
    curves = [
        ("loss", "the loss's logits-sized tensors", formula("loss.logits")),
        ("activations", "what all blocks keep", L * formula("activations.block").given(dropout=0)),
    ]
    values = sorted({2**i for i in range(8, 20)} | set(sizes) | {start.vocabulary})
    return told("loss", controls, Lines("vocabulary", "vocabulary", values, curves, log=True))
