"""Exercises of lab 7: leaks."""

from . import GIB, answers


def graph(rows, inputs=64, hidden=256):
    """Bytes that a kept loss of the lab's model holds: the input, GELU's input and output, the output, and the loss."""
    return 4 * (rows * inputs + 2 * rows * hidden + rows + 1)


ANSWERS = {
    "07.1": answers(graph(128), lab=graph(32), loss=graph(128) - 4, gelu=4 * (128 * 64 + 128 * 256 + 128 + 1)),
    "07.2": answers(GIB // (4 * 32 * 256), decimal=10**9 // (4 * 32 * 256), one_byte=GIB // (32 * 256)),
    "07.3": answers(4 * 32 * 64, number=4, row=4 * 64),
}
