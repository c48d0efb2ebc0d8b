"""Exercises of chapter 18: what would your own model take?"""

from ...ask.setup import Setup
from ...formulas.symbols import B, S
from ..asking import peak
from . import answers

_MIXED = Setup(precision="bf16-mixed", sequence=64)


def _llama(batch, sequence):
    """The two instants of Llama 3.1 8B all in bf16, as the chapter derives them: loss backward, optimizer step."""
    tokens = batch * sequence
    return 7_998_740 * tokens + 512 * sequence + 48_181_568_520, 16 * tokens + 80_302_612_740


def _peak(batch):
    return peak("gpt2", _MIXED, batch=batch)


def _straight(batch):
    return _peak(1) + (batch - 1) * (_peak(2) - _peak(1))


def _padded(sequence, multiple=32):
    return 4 * 16 * 8 * (-(-sequence // multiple) * multiple)


ANSWERS = {
    "18.1": answers(
        lambda: max(_llama(4, 4096)),
        step=lambda: min(_llama(4, 4096)),
        both=lambda: sum(_llama(4, 4096)),
        one=lambda: _llama(1, 4096)[0],
    ),
    "18.2": answers(64 * B * S**2, sequence=8192 * B * S, batch=32 * B**2 * S**2, heads=4 * B * S**2),
    "18.3": answers(lambda: _peak(256), published=lambda: _straight(256), constant=839_746 * 64 * 256),
    "18.4": answers(32, difference=lambda: _padded(33) - _padded(32), sixteen=16, sixty_four=64),
}
