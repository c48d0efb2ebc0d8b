"""The text that the labs train on, and batches of it."""

from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist

from ..ask.setup import Setup

#: What the labs train on; `TEXT.md` says what it is.
TEXT = Path(__file__).with_name("alice.txt")
#: Bytes from one window's start to the next one's: a prime, so that windows wander over the whole text.
STRIDE = 7919


def text_batch(vocabulary: int, setup: Setup, device) -> Callable:
    """Windows of the text, a byte a token, and the same moved on by one as targets: (B, S) each, int64.

    Which windows follows from how many there were before: two batches of 4 hold what one of 8 does. A text shorter than
    a window starts over. Of several GPUs each takes the windows after those of the one before it.

    Raises:
        ValueError: where the vocabulary has no place for every byte.
    """
    if vocabulary < 256:
        raise ValueError(f"text_batch.vocabulary: {vocabulary} is too few for the text's bytes; allowed: 256 or more")
    B, S = setup.batch, setup.sequence
    text, (rank, gpus) = (
        TEXT.read_bytes(),
        (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1),
    )
    seen = rank * B
    text *= -(-(S + 2) // len(text))

    def tensor(starts):
        tokens = bytearray().join(text[start : start + S] for start in starts)
        return torch.frombuffer(tokens, dtype=torch.uint8).to(torch.int64).view(B, S).to(device)

    def batch():
        nonlocal seen
        starts = [n * STRIDE % (len(text) - S) for n in range(seen, seen + B)]
        seen += gpus * B
        return tensor(starts), tensor(start + 1 for start in starts)

    return batch
