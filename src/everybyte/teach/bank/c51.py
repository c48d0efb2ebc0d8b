"""Exercises of chapter 51: a state in place of a square."""

from random import Random

from . import Case, answers, formula, program


def crossing(width=4, both=2):
    """Tokens at which an attention layer of Qwen3-Next holds as much as the states of one of its linear layers."""
    return 32 * 128 * 128 * width // (both * 2 * 256 * 2)


def loop(copies=2):
    return copies * 4096 * 32 * 128 * 128 * 4


def pairs(rows=128, width=4):
    return 4096 * 64 * rows * 32 * width


def layers():
    draw = Random(51)
    for number in range(6):
        sizes = {
            "batch": draw.randint(1, 4),
            "sequence": draw.randrange(65, 9000),
            "state_key_heads": (keys := draw.choice((2, 8, 16))),
            "state_heads": keys * draw.randint(1, 3),
            "state_rows": draw.choice((64, 128, 256)),
            "chunk": draw.choice((16, 32, 64)),
        }
        asked = formula("delta.kernel")(**sizes, compute_bytes=2)
        yield Case(f"layer {number}", tuple(sizes.values()), asked)


def kernel(batch, sequence, key_heads, heads, rows, chunk, *, roots=True, square=True, states=False):
    """Normalized queries and keys, decays, and the matrix within chunks."""
    token = key_heads * (2 * rows * 2 + 8 * roots) + heads * (4 + 2 * chunk * square)
    return batch * sequence * token + states * batch * -(-sequence // chunk) * heads * rows * rows * 2


ANSWERS = {
    "51.1": answers(crossing, width=2, both=1),
    "51.2": answers(loop, copies=1),
    "51.3": answers(pairs, rows=1, width=2),
    "51.4": program(kernel, layers, roots=False, square=False, states=True),
}
