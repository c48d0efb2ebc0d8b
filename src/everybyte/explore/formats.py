"""Chapter 12's explorer: what exponent and mantissa bits can hold, and what becomes of a gradient."""

from ..formulas.formats import FLOATS
from ..formulas.symbols import mu, sigma
from .beside import said
from .controls import Choice, Slider
from .explorer import Explorer, told
from .pictures import Ranges

_SHOWN = ("fp32", "bf16", "fp16", "fp8 e5m2", "fp8 e4m3")


def formats() -> Explorer:
    """The range of a number format with the bits that the reader gives it, beside fp32, bf16, fp16 and fp8.

    A gradient of magnitude 2^x, times a loss scale, is marked: each format keeps it, rounds it (to nearest, ties to
    even), loses it to 0, or it overflows.
    """
    tops = said("formats")["tops"]
    controls = [
        Slider("exponent_bits", "exponent bits", 2, 8, 5),
        Slider("mantissa_bits", "mantissa bits", 1, 23, 10),
        Choice("top", "top exponent", tops),
        Slider("magnitude", "gradient, log2", -160.0, 130.0, -20.25, 0.25),
        Slider("scale", "loss scale, log2", 0, 32, 0),
    ]
    presets = {name: _preset(FLOATS[name], tops) for name in _SHOWN}
    presets["a gradient that fp16 loses"] = {**presets["fp16"], "magnitude": -26.0, "scale": 0}
    presets["scaled by 2^16"] = {**presets["fp16"], "magnitude": -26.0, "scale": 16}
    presets["scaled too far"] = {**presets["fp16"], "magnitude": 0.0, "scale": 16}
    bounds = {name: f"formats.{name}" for name in ("smallest", "largest", "epsilon", "spacing")}
    bounds["normal"] = "formats.smallest_normal"
    picture = Ranges({name: FLOATS[name] for name in _SHOWN}, "yours", bounds, "magnitude", "scaled gradient")
    return told("formats", controls, picture, presets=presets, derived=[("magnitude", mu + sigma)])


def _preset(bits, tops):
    top = {name: value for name, value in bits.items() if name.startswith("top_")}
    label = next(label for label, values in tops.items() if values == top)
    return {name: bits[name] for name in ("exponent_bits", "mantissa_bits")} | {"top": label}
