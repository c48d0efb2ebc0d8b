"""Exercises of chapter 53: diffusion."""

from random import Random

from . import MIB, Case, answers, formula, program

#: Flux's sizes, and one picture.
FLUX = {"width": 3072, "heads": 24, "head_width": 128, "batch": 1}


def tokens(side=16, words=512, pixels=1024):
    return (pixels // side) ** 2 + words


def kept(rank=2, pixels=1024, single=38, double=19):
    """Bytes that the blocks save."""
    said = FLUX | {"sequence": tokens(pixels=pixels), "adapter_rank": rank}
    return formula("diffusion.blocks")(**said, single_layers=single, double_layers=double)


def alone():
    """What the blocks with one stream save."""
    return 38 * formula("diffusion.single")(**FLUX, sequence=tokens(), adapter_rank=2)


def less(one=4, other=2):
    return kept(one, 512) - kept(other, 512)


def block(batch, tokens, width, heads, rank, *, of_rank=6, of_heads=12):
    return batch * tokens * (34 * width + of_heads * heads + of_rank * rank + 8)


def blocks():
    draw = Random(53)
    for number in range(8):
        heads, rank, batch, count = (
            draw.randint(1, 24),
            draw.choice([1, 2, 4, 16, 64]),
            draw.randint(1, 4),
            draw.randrange(64, 5000),
        )
        said = {"batch": batch, "sequence": count, "width": 128 * heads, "heads": heads, "adapter_rank": rank}
        yield Case(f"block {number}", (batch, count, 128 * heads, heads, rank), formula("diffusion.single")(**said))


ANSWERS = {
    "53.1": answers(tokens, words=0, side=8),
    "53.2": answers(kept, double=alone, single=0),
    "53.3": answers(less(), half=kept(4, 512) // 2 // MIB * MIB),
    "53.4": program(block, blocks, rank={"of_rank": 0}, heads={"of_heads": 4}),
}
