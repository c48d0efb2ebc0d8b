"""Exercises of chapter 16: what would your own model take?"""

from ...formulas.symbols import B, S
from . import answers, run

SHORT = run("gpt2", precision="bf16-mixed", sequence=64)
ONE, TWO = (SHORT.peak(batch=batch) for batch in (1, 2))


def llama(batch, sequence=4096):
    """The two instants of Llama 3.1 8B all in bf16, as the chapter derives them: loss backward, optimizer step."""
    tokens = batch * sequence
    return 7_998_740 * tokens + 512 * sequence + 48_181_568_520, 16 * tokens + 80_302_612_740


ANSWERS = {
    "16.1": answers(max(llama(4)), step=min(llama(4)), both=sum(llama(4)), one=llama(1)[0]),
    "16.2": answers(64 * B * S**2, sequence=8192 * B * S, batch=32 * B**2 * S**2, heads=4 * B * S**2),
    "16.3": answers(SHORT.peak(batch=256), published=ONE + 255 * (TWO - ONE), constant=839_746 * 64 * 256),
    "16.4": answers(32, difference=4 * 16 * 8 * 32, sixteen=16, sixty_four=64),
}
