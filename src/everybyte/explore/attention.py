"""Chapter 15's explorer: what one block keeps with eager and with flash attention, as the sequence grows."""

from ..ask.setup import Setup
from ..catalog import Model
from ..formulas import SYMBOLS, bindings, formula
from .controls import Choice, Slider, asked, dropout_of, opens
from .explorer import Explorer, told
from .pictures import Lines

#: Widths of a head that published models have; 36 is there because it is no multiple of eight.
_WIDTHS = (16, 32, 36, 48, 64, 80, 96, 128, 192, 256)
_HEADS = 128


@opens
def attention(model: Model | None = None, setup: Setup | None = None) -> Explorer:
    """Bytes that one GPT block keeps for backward, eager and flash, against the sequence: where the square overtakes the rest.

    Args:
        model: whose heads and head width it opens with; by default GPT-2's. The rest of the block is GPT-2's.
        setup: whose batch, sequence, precision and dropout it opens with; by default what the other explorers show.

    Raises:
        ValueError: a model with more than 128 heads, a batch or a sequence that is no power of two.
    """
    from ..catalog import models

    gpt2 = models()["gpt2"]
    start = model or gpt2
    if start.heads > _HEADS:
        raise ValueError(f"attention.model: {start.name} has {start.heads} heads; allowed: 1 to {_HEADS}")
    widths = sorted({*_WIDTHS, start.head_width})
    wide = {f"{d} wide": {"head_width": d, "narrow": int(d % 8 > 0)} for d in widths}
    controls = [
        Slider("heads", "heads", 1, _HEADS, start.heads),
        Choice("head_width", "width of a head", wide, f"{start.head_width} wide", kind="slider"),
        *asked(setup, "precision"),
        dropout_of(setup),
        *asked(setup, "batch", "sequence"),
    ]
    block, square = formula("activations.block"), formula("attention.scores")
    curves = [
        ("eager", "eager block", block.given(eager=1)),
        ("activations", "flash block", block.given(eager=0)),
        ("scores", "eager squares", square.given(eager=1)),
    ]
    width = SYMBOLS["heads"].symbol * SYMBOLS["head_width"].symbol
    picture = Lines("sequence", "sequence (tokens)", None, curves)
    derived = [("width", width), ("ffn_width", 4 * width)]
    return told("attention", controls, picture, base=bindings(gpt2, None), derived=derived)
