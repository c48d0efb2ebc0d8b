"""By how much real steps take longer than the computed time, of which ranges are made.

What others measured stands in `tests/published_steps.py`. The 38 runs of MosaicML's llm-foundry with sequences of 2,048 tokens set
`rates.TOGETHER`; its 32 others, torchtitan's and Megatron's set nothing: half of these are within 9 % of the computed time, and the worst, of
the longest sequences, with attention kernels of 2023, takes 36 % longer. Of 53 steps measured on one H200 14 set rates; of the 39 others half
are within 8 %. Ten steps are off by more than 25 %, the worst takes twice as long: models so small that Python is slower than the GPU, and
bitsandbytes' code.
"""

from collections.abc import Mapping

from ..ask.choices import OPTIMIZERS
from ..ask.setup import Setup

#: How many times as long as computed a step took, at least and at most, rounded outwards, by what kind of run it is: where Python does not
#: start operations as fast as the GPU does them; where bitsandbytes' code runs; in fp32; of sequences of up to `SHORT` tokens, and of longer ones.
SHORT = 4096
LAUNCHED, BITSANDBYTES, WIDE, MIXED, LONG = (0.8, 2.0), (1.15, 1.35), (1.0, 1.25), (0.85, 1.15), (0.9, 1.4)


def between(setup: Setup, terms: Mapping[str, float]) -> tuple[float, float]:
    """What a computed time is multiplied with, for the least and the most that a step is expected to take. terms: `Load.seconds`."""
    if terms["launch"]:
        return LAUNCHED
    if setup.quantization != "none" or OPTIMIZERS[setup.optimizer].package == "bitsandbytes":
        return BITSANDBYTES
    if setup.dtypes.compute == "fp32":
        return WIDE
    return MIXED if setup.sequence <= SHORT else LONG
