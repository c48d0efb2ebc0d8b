"""Why what was seen is not what was predicted: the difference tensor by tensor, to the byte."""

from collections import Counter, defaultdict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import Any

from .. import units
from ..catalog import gpus
from ..common.tables import Shown, Table
from ..evidence import Message
from ..step.witness import Witness
from .sides import STAGES, Block, Side, side

#: Parts that are one in an alignment: frames tell no more.
_GROUPS = {"buffers": "parameters", "master": "optimizer", "momentum": "optimizer", "variance": "optimizer"}
_GROUPS |= {"parameters": "parameters", "optimizer": "optimizer"}
#: The look of a stage that has no part.
_LOOKS = {"workspaces": "workspace", "rounding": "unsplit", "reserved": "cached", "outside": "other"}
#: More blocks than these are not aligned by their order. cuBLAS has a workspace for each thread that multiplies: forward's, backward's.
_MOST, _THREADS = 30_000, 2
#: A message has two decimals of its unit; a large segment is asked for in multiples of so many bytes. Source: `CUDACachingAllocator.cpp`.
_ROUNDED, _SEGMENT = 0.005, 2 * 2**20


@dataclass(frozen=True)
class Gap:
    """One term of a difference.

    Attributes:
        stage: one of `STAGES`. what: in words. part: of the palette. tensors: how many, 0 where that is not counted.
        bytes: seen less predicted. explained: whether it is known what they are.
    """

    stage: str
    what: str
    part: str
    tensors: int
    bytes: int
    explained: bool = True

    @property
    def said(self) -> str:
        """What it is, and how many, in words."""
        many = f" (×{self.tensors:,})" if self.tensors > 1 else ""
        return f"{'' if self.explained else 'not explained: '}{self.what}{many}"


@dataclass(frozen=True, eq=False, repr=False)
class Explanation(Shown):
    """The difference between two sides, in terms that sum to it.

    Attributes:
        predicted, seen: bytes. names: of both sides, in words. reach: the outermost of `STAGES` that was seen, up to which both count.
        rows: a `Gap` for each term, by stage, the largest first. matched: how many tensors both sides have.
    """

    predicted: int
    seen: int
    names: tuple[str, str]
    reach: str
    rows: list[Gap] = field(default_factory=list)
    matched: int = 0

    @property
    def difference(self) -> int:
        """Seen less predicted, in bytes."""
        return self.seen - self.predicted

    @property
    def unexplained(self) -> int:
        """Bytes of the terms of which it is not known what they are, whatever their signs."""
        return sum(abs(row.bytes) for row in self.rows if not row.explained)

    def table(self, rows: int = 12) -> Table:
        """The terms; of each stage the largest, the others in one row."""
        now, cells = self.predicted, [["", "predicted", "", self.predicted, units.text(self.predicted)]]
        for stage in STAGES[: STAGES.index(self.reach) + 1]:
            of = [row for row in self.rows if row.stage == stage]
            shown, rest = of[:rows], of[rows:]
            cells += [[stage, row.said, row.part, row.bytes, units.signed(row.bytes)] for row in shown]
            if rest:
                size = sum(row.bytes for row in rest)
                cells.append([stage, f"{len(rest)} smaller terms", "", size, units.signed(size)])
            now += sum(row.bytes for row in of)
            if stage == "workspaces" and self.reach not in STAGES[:2]:
                cells.append(["", "so many bytes are asked for", "", now, units.text(now)])
        cells.append(["", "seen", "", self.seen, units.text(self.seen)])
        return Table(["", "what", "part", "bytes", "size"], cells, f"{self.names[0]}, and {self.names[1]}")

    def said(self) -> list[str]:
        """What is the same, and what is left unexplained."""
        share = f"{self.unexplained / self.seen:.3%}" if self.seen else "0%"
        same = f"{self.matched:,} tensors are the same in both; " if self.matched else ""
        return [f"{same}not explained: {units.text(self.unexplained)}, {share} of what was seen"]

    def figure(self):
        """The terms as a waterfall from predicted to seen: matplotlib's figure, with its text as `alt`."""
        from .. import draw

        return draw.waterfall(self)

    def as_dict(self) -> dict:
        """As JSON holds it."""
        return {
            "predicted": {"who": self.names[0], "bytes": self.predicted}, "seen": {"who": self.names[1], "bytes": self.seen},
            "reach": self.reach, "difference": self.difference, "unexplained": self.unexplained, "matched": self.matched,
            "rows": [vars(row) for row in self.rows],
        }  # fmt: skip


def explain(predicted: Any, seen: Any) -> Explanation:
    """Explain the bytes between what was predicted and what was seen, tensor by tensor.

    Both sides are aligned by the order in which tensors were made, their bytes, and the lines that made them where both know them. Only
    what the seen side says is compared: tensors, workspaces, rounding, what is reserved, what lies outside the allocator. What a
    prediction does not say of these counts as 0, so that each is a term of its own.

    Args:
        predicted: a budget, dry run, derivation, rehearsal or its JSON, or (model, setup), of which a budget is made. seen: a snapshot
            or its file, the text of an out-of-memory error, `torch.cuda.memory_stats()`, a rehearsal, a measurement; or another of the
            former.

    Raises:
        ValueError: for what says nothing of memory.
    """
    before, after = side(predicted, "predicted"), side(seen)
    reach = after.reach
    same, only_before, only_after = _aligned(before, after)
    told, (where, rows) = _told(before, after), _died(before.source, after.source)
    rows = rows or (_tensors(only_before, only_after) if told else _lumps(before, after))
    rows += _around(before, after, reach)
    order = sorted((r for r in rows if r.bytes), key=lambda r: (STAGES.index(r.stage), -abs(r.bytes)))
    names = before.who, f"{after.who}: {where}" if where else after.who
    return Explanation(before.bytes(reach), after.bytes(reach), names, reach, order, same if told else 0)


def _told(*sides):
    return all(block.told for one in sides for block in one.blocks)


def _around(before: Side, after: Side, reach):
    """The terms around the tensors: what each side says of them, one less the other."""
    sums: dict[tuple[str, str], int] = defaultdict(int)
    words = {}
    for one, sign in ((before, -1), (after, 1)):
        for around in one.within(reach):
            sums[around.stage, around.key] += sign * around.bytes
            words[around.stage, around.key] = around.what
    return [Gap(stage, words[stage, key], _LOOKS[stage], 0, size) for (stage, key), size in sums.items()]


def _aligned(before: Side, after: Side) -> tuple[int, list[Block], list[Block]]:
    """(how many blocks are the same, those that only the one has, those that only the other has)."""
    one, other, same = list(before.blocks), list(after.blocks), 0
    ways: tuple[tuple[Callable, Callable[[Block], Any]], ...] = (
        (common, lambda b: (b.bytes, b.label)),
        (common, lambda b: (b.bytes, _GROUPS.get(b.part, ""))),
        (common, lambda b: b.bytes),
        (_by_size, lambda b: b.bytes),
    )
    if any(block.tensors > 1 for block in one + other):  # a report's rows are lines: their tensors may differ
        same, one, other = _same_lines(one, other)
    for pairs_of, key in ways:
        pairs = pairs_of([key(b) for b in one], [key(b) for b in other])
        same += sum(one[i].tensors for i, _ in pairs)
        taken, given = ({pair[side] for pair in pairs} for side in (0, 1))
        one = [b for i, b in enumerate(one) if i not in taken]
        other = [b for j, b in enumerate(other) if j not in given]
    return same, one, other


def _same_lines(one, other):
    """(how many blocks are of lines that made as many bytes on both sides, the other blocks of each)."""
    sums: tuple[Counter[str], Counter[str]] = Counter(), Counter()
    for blocks, of in zip((one, other), sums, strict=True):
        for block in blocks:
            of[block.label] += block.bytes
    alike = {label for label, _ in sums[0].items() & sums[1].items()}
    same = sum(block.tensors for block in one if block.label in alike)
    return same, *([block for block in blocks if block.label not in alike] for blocks in (one, other))


def common(one: Sequence, other: Sequence) -> list[tuple[int, int]]:
    """A longest common subsequence, as pairs of places. The rows of its table are whole numbers of as many bits as `other` is long.

    Source: Hyyrö 2004, "Bit-parallel LCS-length computation revisited".
    """
    if max(len(one), len(other), 1) > _MOST:
        return []
    places: dict[Any, int] = defaultdict(int)
    for j, key in enumerate(other):
        places[key] |= 1 << j
    mask = (1 << len(other)) - 1
    row, rows = mask, []
    for key in one:
        met = row & places.get(key, 0)
        row = ((row + met) | (row - met)) & mask
        rows.append(row)
    i, j, found = len(one), len(other), []
    while i and j:
        if rows[i - 1] >> (j - 1) & 1:
            j -= 1
            continue
        i -= 1
        if not i or rows[i - 1] >> (j - 1) & 1:
            j -= 1
            found.append((i, j))
    return found[::-1]


def _by_size(one, other):
    """Pairs of places of equal sizes that are not in the same order."""
    places = defaultdict(deque)
    for j, size in enumerate(other):
        places[size].append(j)
    return [(i, places[size].popleft()) for i, size in enumerate(one) if places[size]]


def _tensors(only_before, only_after):
    """The terms of blocks that are not the same, by what made them: where both sides know it, what it made in each."""
    places: dict[tuple[str, bool], tuple[list[Block], list[Block]]] = defaultdict(lambda: ([], []))
    for place, blocks in enumerate((only_before, only_after)):
        for block in blocks:
            places[block.label, block.named][place].append(block)
    return [_term(label, named, *sides) for (label, named), sides in places.items()]


def _term(label, named, was, now):
    part = (now or was)[0].part
    stage = "workspaces" if part == "workspace" else "tensors"
    if was and now:
        what = f"{label}: {_many(now)}, predicted {_many(was)}"
        return Gap(stage, what, part, 0, _bytes(now) - _bytes(was), named)
    where, blocks = ("only seen", now) if now else ("only predicted", was)
    each = f", {units.text(blocks[0].bytes)} each" if _alike(blocks) else ""
    return Gap(stage, f"{where}: {label}{each}", part, sum(b.tensors for b in blocks), _bytes(now) - _bytes(was), named)


def _bytes(blocks):
    return sum(block.bytes for block in blocks)


def _alike(blocks):
    """Whether all are known to have as many bytes."""
    return all(block.tensors == 1 and block.bytes == blocks[0].bytes for block in blocks)


def _many(blocks):
    """How many, and of how many bytes, in words."""
    if _alike(blocks):
        return f"{len(blocks):,} × " * (len(blocks) > 1) + units.text(blocks[0].bytes)
    return f"{units.text(_bytes(blocks))} in {sum(block.tensors for block in blocks):,} tensors"


def _lumps(before, after):
    """The terms where a side does not tell its tensors apart: the sum of all, and what it says by name."""
    sums, named = [0, 0], []
    for place, (one, sign) in enumerate(((before, -1), (after, 1))):
        for block in one.blocks:
            if block.apart:
                stage = "workspaces" if block.part == "workspace" else "tensors"
                named.append(Gap(stage, block.label, block.part, 0, sign * block.bytes))
            else:
                sums[place] += block.bytes
    size = sums[1] - sums[0]
    untold = " and ".join(one.who for one in (before, after) if not _told(one))
    for many in range(1, _THREADS + 1):
        if size in [many * space for space in _spaces()]:
            what = f"cuBLAS's workspaces, {many} by their size: the bytes are exactly theirs"
            return [*named, Gap("workspaces", what, "workspace", many, size)]
    return [*named, Gap("tensors", f"{untold} tells no tensors apart", "other", 0, size, False)]


def _spaces():
    """What cuBLAS's workspaces may take, a GPU of the catalog each."""
    return sorted({gpu.cublas_workspace for gpu in gpus().values()})


def _died(witness, said):
    """(Where in the predicted step it died, in words, the terms between the peak and what a message says); ("", []) where no place fits.

    A place fits where an operation takes what was asked for, and what lived there was allocated, as near as the message says it: in the
    first step, which has no optimizer's states yet, or a later one; with the workspaces of cuBLAS that may stand. The terms sum to what
    was seen less the peak.
    """
    if not isinstance(witness, Witness) or not isinstance(said, Message) or not said.asked or said.allocated is None:
        return "", []
    live, need, off = witness.live, said.allocated + said.asked, _error(said.asked)
    places = [i for i in range(1, len(live)) if -off <= said.asked - (live[i] - live[i - 1]) <= _SEGMENT + off]
    kept = [(0, 0), *((many, space) for space in _spaces() for many in (1, 2))]
    ways = product(places, {0, witness.parts_at("rest").get("optimizer", 0)}, kept)
    rests = {way: need - (live[way[0]] - way[1] + way[2][0] * way[2][1]) for way in ways}
    way = min(rests, key=lambda way: (abs(rests[way]), way), default=None)
    if way is None or abs(rests[way]) > off + _error(said.allocated) + _SEGMENT:
        return "", []
    place, made, (many, space) = way
    name, phase, _ = witness.operations[place]
    rows = [
        Gap("tensors", "never asked for: it died before the peak", "activations", 0, live[place] - witness.peak),
        Gap("tensors", "states of the optimizer: the first step had not made them yet", "optimizer", 0, -made),
        Gap("workspaces", "cuBLAS's workspaces, by their size", "workspace", many, many * space),
        Gap("tensors", "the decimals of the message, and what rounding adds", "other", 0, rests[way]),
    ]
    return f"by its bytes it died in {phase}, at {name}", rows


def _error(size):
    """How far a size may be from what a message says of it."""
    return round(_ROUNDED * units.UNITS[units.largest(size)])
