"""Every operation of a derived step, and what lives while it runs."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

from ..witness import NUMBER


@dataclass(frozen=True)
class Course:
    """The operations of a step in their order; of layers that are all alike the first and the last.

    Attributes:
        operations: (name, phase, owner) each. places: of each where in the step it is, in words. changes: of each what lives more, or less, than at the one before: (number of the
            column, how many tensors).
        repeats: (number of the first operation of a turn, how many a turn has, how often it comes). Of several turns the last
            one stands behind the first.
    """

    operations: tuple[tuple[str, str, str], ...]
    places: tuple[str, ...]
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

    def every_change(self) -> tuple[list[int], list[dict[int, int]]]:
        """Layer after layer, of each operation its number in `operations` and what lives more at it than at the one before."""
        turns = {start: (length, times) for start, length, times in self.repeats}
        numbers, changes, i = [], [], 0
        while i < len(self.changes):
            if i not in turns:
                numbers.append(i)
                changes.append(dict(self.changes[i]))
                i += 1
                continue
            length, times = turns[i]
            once = list(range(i, i + length))
            inside = [dict(self.changes[k]) for k in once]
            jump: dict[int, int] = {}  # from a turn's last operation to the next turn's first
            if times > 1:  # the last turn begins so many whole turns after the first
                within = _sum(inside[1:])
                jump = _sum([dict(self.changes[i + length]), within])
                jump = {c: jump.get(c, 0) // (times - 1) - within.get(c, 0) for c in {*jump, *within}}
            for turn in range(times):
                numbers += once
                changes += inside if turn == 0 else [{c: n for c, n in jump.items() if n}, *inside[1:]]
            i += (1 + (times > 1)) * length
        return numbers, changes

    def _unrolled(self, line, between):
        found, done = [], 0
        for start, length, times in self.repeats:
            found += line[done:start]
            first, last = line[start : start + length], line[start + (times > 1) * length :][:length]
            for turn in range(times):
                found += [between(a, b, turn, times - 1) for a, b in zip(first, last, strict=True)]
            done = start + (1 + (times > 1)) * length
        return found + line[done:]


def _sum(changes):
    found: dict[int, int] = {}
    for changed in changes:
        for column, n in changed.items():
            found[column] = found.get(column, 0) + n
    return found


def _on_the_line(first, last, turn, turns):
    return first + (last - first) * turn // (turns or 1)


def _between(first, last, turn, turns):
    """An operation of a turn: its owner's numbers lie between the first turn's and the last one's."""
    numbers = zip(NUMBER.findall(first[2]), NUMBER.findall(last[2]), strict=True)
    found = iter([str(_on_the_line(int(a), int(b), turn, turns)) for a, b in numbers])
    return first[0], first[1], NUMBER.sub(lambda _: next(found), first[2])
