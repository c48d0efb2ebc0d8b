"""Every operation of a derived step, and what lives while it runs."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

_NUMBER = re.compile(r"(?<=\.)\d+(?=\.|$)")


@dataclass(frozen=True)
class Course:
    """The operations of a step in their order; of layers that are all alike the first and the last.

    Attributes:
        operations: (name, phase, owner) each. changes: of each what lives more, or less, than at the one before: (number of the
            column, how many tensors).
        repeats: (number of the first operation of a turn, how many a turn has, how often it comes). Of several turns the last
            one stands behind the first.
    """

    operations: tuple[tuple[str, str, str], ...]
    changes: tuple[tuple[tuple[int, int], ...], ...]
    repeats: tuple[tuple[int, int, int], ...]

    def unrolled(
        self, sizes: Sequence[tuple[str, int] | None]
    ) -> tuple[list[tuple[str, str, str]], dict[str, list[int]]]:
        """(operations, {part: live bytes at each}), layer after layer.

        Args:
            sizes: of each column its part and its bytes; None for what is in no part of the GPU.
        """
        steps: dict[str, list[int]] = {found[0]: [0] * len(self.changes) for found in sizes if found}
        for i, changed in enumerate(self.changes):
            for column, n in changed:
                if found := sizes[column]:
                    steps[found[0]][i] += n * found[1]
        lines = {part: list(accumulate(line)) for part, line in steps.items()}
        operations = self._unrolled(list(self.operations), _between)
        return operations, {part: self._unrolled(line, _on_the_line) for part, line in lines.items()}

    def _unrolled(self, line, between):
        found, done = [], 0
        for start, length, times in self.repeats:
            found += line[done:start]
            first, last = line[start : start + length], line[start + (times > 1) * length :][:length]
            for turn in range(times):
                found += [between(a, b, turn, times - 1) for a, b in zip(first, last, strict=True)]
            done = start + (1 + (times > 1)) * length
        return found + line[done:]


def _on_the_line(first, last, turn, turns):
    return first + (last - first) * turn // (turns or 1)


def _between(first, last, turn, turns):
    """An operation of a turn: its owner's numbers lie between the first turn's and the last one's."""
    numbers = zip(_NUMBER.findall(first[2]), _NUMBER.findall(last[2]), strict=True)
    found = iter([str(_on_the_line(int(a), int(b), turn, turns)) for a, b in numbers])
    return first[0], first[1], _NUMBER.sub(lambda _: next(found), first[2])
