"""A data set's lengths, and the batches that a collator makes of them, in the order in which they are trained."""

import os
from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from random import Random
from typing import Any, NamedTuple

from ..common import checks, files

#: Collator -> what it makes of the sequences of a batch.
COLLATORS: dict[str, str] = {
    "pad": "each padded to the longest of its batch",
    "tokens": "as many sequences as a budget of padded tokens holds, each padded to the longest",
    "flatten": "one row, one sequence after another without padding",
    "bins": "as flatten, of sequences put together, the longest first, up to so many tokens",
    "pack": "all tokens in a row, cut into sequences of equal length; what is left at the end is dropped",
}
#: Order -> what comes when.
ORDERS: dict[str, str] = {
    "given": "as the lengths are given",
    "random": "shuffled",
    "grouped": "shuffled, then sorted within 50 batches, the longest of all first: transformers' group_by_length",
    "ascending": "the shortest first",
    "descending": "the longest first",
    "largest-first": "shuffled; the step with the largest batch first, and in each step the largest micro-batch first",
}
#: transformers sorts within so many batches. Source: `trainer_pt_utils.py`, `get_length_grouped_indices`.
_GROUPED = 50
#: The most lengths, and bytes of a file of them.
MOST, MOST_BYTES = 10**7, 10**8


class Batch(NamedTuple):
    """The shape that a collator gives a batch. tokens: those that are no padding."""

    batch: int
    sequence: int
    tokens: int


class Lengths:
    """Tokens of each sequence of a data set.

    Args:
        said: whole numbers; sequences of tokens, such as a column `input_ids` of Hugging Face's `datasets`; {tokens: how many};
            or a file: of JSON, or a number a line, or a number of tokens and how many sequences have them.

    Attributes:
        tokens: of each, in order. ordered: whether they came in an order, which a histogram has not.

    Raises:
        ValueError: what is none of these, no sequence, or one without tokens.
    """

    def __init__(self, said: "Lengths | str | os.PathLike | Mapping | Iterable"):
        if isinstance(said, str | os.PathLike):
            said = _read(said)
        self.tokens: list[int]
        self.ordered: bool
        if isinstance(said, Lengths):
            self.tokens, self.ordered = said.tokens, said.ordered
            return
        self.ordered = not isinstance(said, Mapping)
        if isinstance(said, Mapping):
            self.tokens = _counted(said)
        elif isinstance(said, Iterable):
            self.tokens = [_length(one) for one in said]
        else:
            raise ValueError(
                f"lengths: {checks.shown(said)}; allowed: whole numbers, {{tokens: how many}}, a column, a file"
            )
        checks.whole("lengths", "sequences", len(self.tokens), 1, MOST)
        for one in set(self.tokens):
            checks.whole("lengths", "tokens", one, 1, 2**27)

    def __len__(self):
        return len(self.tokens)

    def __repr__(self):
        return f"Lengths({len(self):,} sequences of {min(self.tokens):,} to {max(self.tokens):,} tokens)"


def _length(one: Any) -> int:
    if isinstance(one, bool | str | bytes):
        raise ValueError(f"lengths: {checks.shown(one)}; allowed: a number of tokens, or the tokens")
    if hasattr(one, "__len__"):
        return len(one)
    try:
        return one.__index__()
    except (AttributeError, TypeError):
        raise ValueError(f"lengths: {checks.shown(one)}; allowed: a number of tokens, or the tokens") from None


def _counted(said):
    found: list[int] = []
    for tokens, many in said.items():
        number = checks.natural(tokens) if isinstance(tokens, str) else _length(tokens)
        if number is None:
            raise ValueError(f"lengths: {checks.shown(tokens)}; allowed: a number of tokens")
        checks.whole("lengths", f"sequences of {number:,} tokens", many, 0, MOST - len(found))
        found += [number] * many
    return found


def _read(path):
    """The lengths, or the histogram, of a file."""
    text = files.read("lengths", path, MOST_BYTES).decode(errors="replace")
    if text.lstrip()[:1] in ("[", "{"):
        return files.parsed(text)
    rows = [line.replace(",", " ").split() for line in text.splitlines() if line.strip()]
    numbers = [[checks.natural(word) for word in row] for row in rows]
    if wrong := next(
        (i for i, row in enumerate(numbers) if None in row or len(row) != len(numbers[0]) or len(row) > 2), None
    ):
        raise ValueError(
            f"lengths: {os.fspath(path)}: {checks.shown(' '.join(rows[wrong]))}; allowed: a number a line, or two"
        )
    if not numbers or None in numbers[0] or len(numbers[0]) > 2:
        raise ValueError(f"lengths: {os.fspath(path)} begins with no number; allowed: a number a line, or two, or JSON")
    if len(numbers[0]) == 1:
        return [row[0] for row in numbers]
    found: Counter = Counter()
    for tokens, many in numbers:
        found[tokens] += many
    return found


class Collator(NamedTuple):
    """How sequences become batches.

    Attributes:
        collate: one of `COLLATORS`. order: one of `ORDERS`. batch: sequences in a batch; of `bins` and `pack` rows. longest: tokens
            above which a sequence is cut; of `bins` and `pack` those of a row. accumulation: micro-batches of a step.
        tokens: the budget of `tokens`. pad_to: rows are padded to a multiple of it; or to the least of these lengths that holds them.
        seed: of what is shuffled, by Python's generator: another shuffle than PyTorch's.
    """

    collate: str
    order: str
    batch: int
    longest: int
    accumulation: int = 1
    tokens: int | None = None
    pad_to: int | tuple[int, ...] = 1
    seed: int = 0

    def check(self, lengths: Lengths) -> None:
        """Raise ValueError for what does not go together."""
        checks.one_of("epoch", "collate", self.collate, COLLATORS)
        checks.one_of("epoch", "order", self.order, ORDERS)
        checks.whole("epoch", "seed", self.seed, 0)
        if self.order == "given" and not lengths.ordered:
            raise ValueError(
                f"epoch.order: 'given' of a histogram, which has none; allowed: {', '.join(list(ORDERS)[1:])}"
            )
        if (self.collate == "tokens") != (self.tokens is not None):
            allowed = "a number of padded tokens" if self.collate == "tokens" else "None; it is of collate='tokens'"
            raise ValueError(f"epoch.tokens: {self.tokens!r} with collate={self.collate!r}; allowed: {allowed}")
        if self.tokens is not None:
            checks.whole("epoch", "tokens", self.tokens, 1, 2**31)
        if not isinstance(self.pad_to, tuple):
            checks.whole("epoch", "pad_to", self.pad_to, 1, 2**20)
        elif not self.pad_to or list(self.pad_to) != sorted({n for n in self.pad_to if type(n) is int and n > 0}):
            raise ValueError(
                f"epoch.pad_to: {checks.shown(self.pad_to)}; allowed: a whole number, or lengths, the shortest first"
            )

    def steps(self, lengths: Lengths) -> list[list[Batch]]:
        """The micro-batches of each step of an epoch; those at the end that fill no step are dropped.

        Raises:
            ValueError: what `check` says; where there is no whole step.
        """
        self.check(lengths)
        random = Random(self.seed)
        batches = [self._shape(rows) for rows in self._batches(self._sorted(lengths, random), random)]
        each = self.accumulation
        steps = [batches[i : i + each] for i in range(0, len(batches) - each + 1, each)]
        if not steps:
            raise ValueError(
                f"epoch.lengths: {len(lengths):,} sequences make {len(batches):,} batches, and a step has {each:,}; allowed: more "
                "sequences, or a smaller Setup.batch or accumulation"
            )
        if self.order == "largest-first":
            steps = [sorted(step, key=_size, reverse=True) for step in steps]
            steps.insert(0, steps.pop(max(range(len(steps)), key=lambda i: _size(steps[i][0]))))
        return steps

    def _sorted(self, lengths, random):
        tokens = [min(one, self.longest) for one in lengths.tokens] if self.collate != "pack" else list(lengths.tokens)
        if self.order in ("ascending", "descending"):
            return sorted(tokens, reverse=self.order == "descending")
        if self.order != "given":
            random.shuffle(tokens)
        if self.order == "grouped":
            many = self.batch * max(1, min(len(tokens) // (self.batch * 4), _GROUPED))
            groups = [sorted(tokens[i : i + many], reverse=True) for i in range(0, len(tokens), many)]
            longest = max(range(len(groups)), key=lambda i: groups[i][0])
            groups[0][0], groups[longest][0] = groups[longest][0], groups[0][0]
            return [one for group in groups for one in group]
        return tokens

    def _batches(self, tokens: Sequence[int], random: Random) -> Iterable[list[int]]:
        """The sequences of each batch; of `pack` its rows, of `bins` what its bins hold."""
        if self.collate == "pack":
            rows = [self.longest] * (sum(tokens) // self.longest)
            yield from (rows[i : i + self.batch] for i in range(0, len(rows) - self.batch + 1, self.batch))
        elif self.collate == "bins":
            bins = _bins(tokens, self.longest)  # the fullest first
            if self.order != "descending":
                random.shuffle(bins)
            if self.order == "ascending":
                bins.sort()
            yield from (bins[i : i + self.batch] for i in range(0, len(bins), self.batch))
        elif self.collate == "tokens":
            group: list[int] = []
            for one in tokens:
                if (alone := self._padded(one)) > (self.tokens or 0):
                    raise ValueError(
                        f"epoch.tokens: {self.tokens:,}, and one row has {alone:,}; allowed: as many, or more"
                    )
                if group and (len(group) + 1) * self._padded(max(*group, one)) > (self.tokens or 0):
                    yield group
                    group = []
                group.append(one)
            yield group
        else:
            yield from ([*tokens[i : i + self.batch]] for i in range(0, len(tokens), self.batch))

    def _padded(self, longest):
        if isinstance(self.pad_to, int):
            return -(-longest // self.pad_to) * self.pad_to
        if longest > self.pad_to[-1]:
            raise ValueError(
                f"epoch.pad_to: {self.pad_to[-1]:,} at most, and a row has {longest:,}; allowed: a length that holds it"
            )
        return self.pad_to[bisect_left(self.pad_to, longest)]

    def _shape(self, rows):
        if self.collate in ("flatten", "bins"):
            return Batch(1, self._padded(sum(rows)), sum(rows))
        return Batch(len(rows), self._padded(max(rows)), sum(rows))


def _size(batch):
    return batch.batch * batch.sequence


def _bins(tokens, most):
    """Tokens of each bin of up to `most`, the fullest first: the longest sequence first, into the bin that it fills best.

    As trl's `bfd`.
    """
    room: list[int] = []  # left in each bin, in order
    for one in sorted(tokens, reverse=True):
        place = bisect_left(room, one)
        insort(room, (room.pop(place) if place < len(room) else most) - one)
    return [most - left for left in room]
