"""Segments cut into blocks, and pools of free blocks in the order in which the allocator looks through them."""

from bisect import bisect_left, insort

#: States of a block.
FREE, ALLOCATED, WAITING = "free", "allocated", "waiting"


class Block:
    """A piece of a segment.

    Attributes:
        address, size: bytes. requested: of them asked for, while it is allocated or waiting.
        pool: the `Pool` that it is of. serial: of its segment, in the order in which the driver gave them. before, after: its neighbors in the segment, None at an end.
        state: `FREE`, `ALLOCATED`, or `WAITING` for other streams that may still use it.
        mapped: whether memory stands behind it; of an expandable segment alone some blocks have none.
        uses: other streams that use it. events: how many of them it waits for. age: searches of its pool when it became free.
    """

    __slots__ = (
        "address",
        "after",
        "age",
        "before",
        "events",
        "mapped",
        "pool",
        "requested",
        "serial",
        "size",
        "state",
        "uses",
    )

    def __init__(self, address, size, pool, serial, mapped=True):
        self.address, self.size, self.pool, self.serial, self.mapped = address, size, pool, serial, mapped
        self.before = self.after = None
        self.state, self.requested, self.uses, self.events, self.age = FREE, 0, (), 0, 0

    @property
    def split(self) -> bool:
        """Whether it is not the whole of its segment."""
        return self.before is not None or self.after is not None

    def cut(self, size: int) -> "Block":
        """Leave `size` bytes at the front; the rest, as a new block."""
        rest = Block(self.address + size, self.size - size, self.pool, self.serial, self.mapped)
        rest.before, rest.after = self, self.after
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
    """The free blocks of one stream, small or large; and what of growing segments is not mapped.

    They are in the order in which they are tried: by size, then the oldest segment's, then by address.
    Source: `BlockComparatorSizeCounterAddress`.

    Attributes:
        stream: whose. small: whether for requests up to 1 MiB. expandable: whether its segments grow.
        page: bytes that such a segment grows by.
    """

    def __init__(self, stream, small, expandable, page):
        self.stream, self.small, self.expandable, self.page = stream, small, expandable, page
        self.free: list[tuple[int, int, int]] = []
        self.unmapped: list[int] = []
        self.blocks: dict[int, Block] = {}  # all that are free or not mapped, by address

    def put(self, block: Block) -> None:
        """Let a free block be found."""
        insort(self.free, (block.size, block.serial, block.address))
        self.blocks[block.address] = block

    def remove(self, block: Block) -> None:
        """Take a block out."""
        if block.mapped:
            del self.free[bisect_left(self.free, (block.size, block.serial, block.address))]
        else:
            del self.unmapped[bisect_left(self.unmapped, block.address)]
        del self.blocks[block.address]

    def put_unmapped(self, block: Block) -> None:
        """Keep what is not mapped."""
        insort(self.unmapped, block.address)
        self.blocks[block.address] = block

    def best(self, size: int) -> Block | None:
        """The first block of at least `size` bytes; None where there is none.

        Of a growing segment, the block that can still grow counts as large as it can get.
        """
        place = bisect_left(self.free, (size,))
        if place == len(self.free):
            return None
        block = self.blocks[self.free[place][2]]
        if self.expandable:
            for _, _, address in self.free[place + 1 :]:
                following = self.blocks[address]
                if _room(following) >= _room(block):
                    break
                block = following
        return block


def _room(block):
    after = block.after
    return block.size + (after.size if after is not None and not after.mapped else 0)
