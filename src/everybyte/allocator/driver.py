"""The driver as an allocator sees it: it allocates ranges of addresses with memory, or refuses."""

#: The driver allocates multiples of this many bytes.
PAGE = 2 * 2**20


class Driver:
    """Memory of a GPU: each request gets the lowest gap of addresses that is wide enough.

    With a real driver's addresses, the allocator's choices differ only between blocks of equal size.

    Attributes:
        memory: bytes of the GPU; None for no limit. used: allocated bytes.
    """

    def __init__(self, memory: int | None = None):
        self.memory, self.used = memory, 0
        self._ranges: list[tuple[int, int]] = []  # (address, bytes), in order

    def take(self, size: int) -> int | None:
        """Allocate `size` bytes and return their address; None where there is too little memory."""
        whole = -(-size // PAGE) * PAGE
        return self.reserve(whole) if self.map(0, whole) else None

    def give(self, address: int, size: int) -> None:
        """Free what `take` allocated."""
        self.unmap(address, -(-size // PAGE) * PAGE)
        self.forget(address)

    def reserve(self, size: int) -> int:
        """Reserve a range of `size` bytes of addresses without memory, and return its address."""
        at, place = 0, len(self._ranges)
        for number, (address, length) in enumerate(self._ranges):
            if at + size <= address:
                place = number
                break
            at = address + length
        self._ranges.insert(place, (at, size))
        return at

    def forget(self, address: int) -> None:
        """Free a range of addresses."""
        place = next(i for i, (at, _) in enumerate(self._ranges) if at == address)
        del self._ranges[place]

    def map(self, address: int, size: int) -> bool:
        """Map memory to `size` bytes of addresses; return whether there is enough."""
        if self.memory is not None and self.used + size > self.memory:
            return False
        self.used += size
        return True

    def unmap(self, address: int, size: int) -> None:
        """Unmap the memory of addresses."""
        self.used -= size
