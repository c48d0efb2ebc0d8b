"""Segments divided into blocks, and pools of free blocks in the order of the allocator's search."""

from bisect import bisect_left, insort
from dataclasses import dataclass
from typing import Any

#: States of a block.
FREE, ALLOCATED, WAITING = "free", "allocated", "waiting"


@dataclass(slots=True, eq=False)
class Block:
    """A piece of a segment.

    Attributes:
        address, size: bytes. pool: its `Pool`. serial: of its segment, in the order of the driver's allocations.
        mapped: whether it has physical memory; only blocks of an expandable segment may have none.
        before, after: its neighbors in the segment, None at an end.
        state: `FREE`, `ALLOCATED`, or `WAITING` for other streams that may still use it.
        requested: the request's bytes, while it is allocated or waiting.
        age: the count of its pool's searches when it became free.
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
        """Keep `size` bytes at the front; return the rest as a new block."""
        rest = Block(self.address + size, self.size - size, self.pool, self.serial, self.mapped, self, self.after)
        if self.after is not None:
            self.after.before = rest
        self.after, self.size = rest, size
        return rest

    def take_over(self, neighbor: "Block") -> None:
        """Merge with a neighbor."""
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
    """The free blocks of one stream, small or large, and the unmapped blocks of growing segments.

    The order of the search: by size, then by the segment's age, then by address.
    Source: `BlockComparatorSizeCounterAddress`.

    Attributes:
        stream: of its blocks. small: whether for requests up to 1 MiB. expandable: whether its segments grow, by `page` bytes.
        free, unmapped: sort keys of its blocks, in order. blocks: all of these, by address.
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
        """Add a free block; one that is not mapped, for growth."""
        insort(*self._place(block))
        self.blocks[block.address] = block

    def remove(self, block: Block) -> None:
        """Remove a block."""
        places, place = self._place(block)
        del places[bisect_left(places, place)]
        del self.blocks[block.address]

    def best(self, size: int) -> Block | None:
        """The first block of at least `size` bytes; None where there is none.

        A block that can grow, in a growing segment, counts with its largest possible size.
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
