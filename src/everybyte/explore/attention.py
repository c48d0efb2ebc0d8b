"""Chapter 15's explorer: what one block keeps with eager and with flash attention, as the sequence grows."""

from ..catalog import Model
from ..formulas import SYMBOLS, bindings, formula
from ..setup import Setup
from .controls import Choice, Slider, opens, precision_label, shared
from .explorer import Explorer
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
    controls = [
        Slider("heads", "heads", 1, _HEADS, start.heads),
        Choice("head_width", "width of a head", {f"{d} wide": {"head_width": d, "narrow": int(d % 8 > 0)} for d in widths},
               f"{start.head_width} wide", kind="slider"),
        shared("precision", setup and precision_label(setup)),
        Choice("dropout", "dropout", {"no dropout": {"dropout": 0}, "dropout": {"dropout": 1}},
               "dropout" if setup and setup.dropout else "no dropout"),
        shared("batch", setup and f"{setup.batch:,}"),
        shared("sequence", setup and f"{setup.sequence:,}"),
    ]  # fmt: skip
    block, square = formula("activations.block"), formula("attention.scores")
    curves = [
        ("eager", "eager block", block.given(eager=1)),
        ("activations", "flash block", block.given(eager=0)),
        ("scores", "eager squares", square.given(eager=1)),
    ]
    width = SYMBOLS["heads"].symbol * SYMBOLS["head_width"].symbol
    plain = {"precision": "fp32", "dropout": "no dropout", "batch": "8"}
    gpt = {"heads": 12, "head_width": "64 wide", "sequence": "1,024"}
    presets = {
        "GPT-2, fp32": plain | gpt,
        "GPT-2, autocast": plain | gpt | {"precision": "bf16-mixed"},
        "GPT-2, fp32 with dropout": plain | gpt | {"dropout": "dropout"},
        "Llama 2's heads, 4,096": plain
        | {"heads": 32, "head_width": "128 wide", "sequence": "4,096", "precision": "bf16", "batch": "1"},
    }
    return Explorer(
        "What one block keeps, as the sequence grows",
        controls,
        Lines("sequence", "sequence (tokens)", None, curves),
        presets,
        base=bindings(gpt2, None),
        derived=[("width", width), ("ffn_width", 4 * width)],
        subject=("heads", "head_width", "precision", "dropout"),
        also=("batch", "width"),
    )
