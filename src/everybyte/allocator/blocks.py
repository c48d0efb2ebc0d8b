"""Segments cut into blocks, and pools of free blocks in the order in which the allocator looks through them."""

from bisect import bisect_left, insort
from dataclasses import dataclass
from typing import Any

#: States of a block.
FREE, ALLOCATED, WAITING = "free", "allocated", "waiting"


@dataclass(slots=True, eq=False)
class Block:
    """A piece of a segment.

    Attributes:
        address, size: bytes. pool: the `Pool` that it is of. serial: of its segment, in the order in which the driver gave them.
        mapped: whether memory stands behind it; only of an expandable segment some blocks have none.
        before, after: its neighbors in the segment, None at an end.
        state: `FREE`, `ALLOCATED`, or `WAITING` for other streams that may still use it.
        requested: bytes that were asked for, while it is allocated or waiting.
        uses: other streams that use it. events: how many of them it waits for. age: searches of its pool when it became free.
    """

    address: int
    size: int
    pool: "Pool"
    serial: int
    mapped: bool = True
    before: Any = None
    after: Any = None
    state: str = FREE
    requested: int = 0
    uses: tuple[int, ...] = ()
    events: int = 0
    age: int = 0

    @property
    def split(self) -> bool:
        """Whether it is not the whole of its segment."""
        return self.before is not None or self.after is not None

    @property
    def end(self) -> int:
        """The address after its last byte."""
        return self.address + self.size

    def cut(self, size: int) -> "Block":
        """Leave `size` bytes at the front; the rest, as a new block."""
        rest = Block(self.address + size, self.size - size, self.pool, self.serial, self.mapped, self, self.after)
        if self.after is not None:
            self.after.before = rest
        self.after, self.size = rest, size
        return rest

    def take_over(self, neighbor: "Block") -> None:
        """Become one with a neighbor."""
        if neighbor is self.before:
            self.address, self.before = neighbor.address, neighbor.before
            if self.before is not None:
                self.before.after = self
        else:
            self.after = neighbor.after
            if self.after is not None:
                self.after.before = self
        self.size += neighbor.size


class Pool:
    """The free blocks of one stream, small or large, and what of growing segments is not mapped.

    They are in the order in which they are tried: by size, then the oldest segment's, then by address.
    Source: `BlockComparatorSizeCounterAddress`.

    Attributes:
        stream: whose. small: whether for requests up to 1 MiB. expandable: whether its segments grow, by so many bytes: `page`.
        free, unmapped: the places of its blocks, in order. blocks: all of these, by address.
    """

    def __init__(self, stream: int, small: bool, expandable: bool, page: int):
        self.stream, self.small, self.expandable, self.page = stream, small, expandable, page
        self.free: list[tuple[int, int, int]] = []
        self.unmapped: list[tuple[int]] = []
        self.blocks: dict[int, Block] = {}

    def _place(self, block) -> tuple[list, tuple]:
        if block.mapped:
            return self.free, (block.size, block.serial, block.address)
        return self.unmapped, (block.address,)

    def put(self, block: Block) -> None:
        """Let a free block be found; one that is not mapped, be grown into."""
        insort(*self._place(block))
        self.blocks[block.address] = block

    def remove(self, block: Block) -> None:
        """Take a block out."""
        places, place = self._place(block)
        del places[bisect_left(places, place)]
        del self.blocks[block.address]

    def best(self, size: int) -> Block | None:
        """The first block of at least `size` bytes; None where there is none.

        Of a growing segment, the block that can still grow counts as large as it can get.
        """
        place = bisect_left(self.free, (size,))
        if place == len(self.free):
            return None
        block = self.blocks[self.free[place][2]]
        if self.expandable:
            for *_, address in self.free[place + 1 :]:
                following = self.blocks[address]
                if _room(following) >= _room(block):
                    break
                block = following
        return block


def _room(block):
    after = block.after
    return block.size + (after.size if after is not None and not after.mapped else 0)
