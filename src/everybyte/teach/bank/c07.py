"""Exercises of lab 7: leaks."""

from ..exercise import Exercise

_MIB, _GIB = 2**20, 2**30


def _graph(rows, inputs=64, hidden=256):
    """Bytes that a kept loss of the lab's model holds: the input, GELU's input and output, the output, and the loss."""
    return 4 * (rows * inputs + 2 * rows * hidden + rows + 1)


EXERCISES = [
    Exercise(
        id="07.1",
        title="What a step leaves behind with 128 rows",
        difficulty=1,
        minutes=4,
        unit="B",
        answer=lambda: _graph(128),
        mistakes={
            "that is with the lab's 32 rows": lambda: _graph(32),
            "the loss itself is kept too: 4 bytes": lambda: _graph(128) - 4,
            "GELU's input and its output are both saved": lambda: 4 * (128 * 64 + 128 * 256 + 128 + 1),
        },
        hints=(
            "Everything but the loss itself has a row for each row of the batch.",
            "4 · (64 + 256 + 256 + 1) bytes a row, and 4 for the loss.",
        ),
    ),
    Exercise(
        id="07.2",
        title="Steps until the hook's leak fills 1 GiB",
        difficulty=2,
        minutes=5,
        unit="steps",
        answer=lambda: _GIB // (4 * 32 * 256),
        mistakes={
            "GiB, not GB": lambda: 10**9 // (4 * 32 * 256),
            "a number has 4 bytes": lambda: _GIB // (32 * 256),
        },
        hints=("One output of the first layer stays in each step.", "32 rows of 256 numbers, 4 bytes each: 32 KiB."),
    ),
    Exercise(
        id="07.3",
        title="What the closure holds when it reads one number of the batch",
        difficulty=2,
        minutes=4,
        unit="B",
        answer=lambda: 4 * 32 * 64,
        mistakes={
            "a view keeps the whole storage": lambda: 4,
            "a row is a view too": lambda: 4 * 64,
        },
        hints=(
            "What does the closure refer to: a number, or a tensor?",
            "`batch[0, 0]` is a view, and a view keeps the storage of all 32 × 64 numbers.",
        ),
    ),
]
