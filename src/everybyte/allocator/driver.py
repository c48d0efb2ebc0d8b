"""The driver, as far as an allocator knows it: it hands out ranges of addresses with memory behind them, or refuses."""

#: What a driver hands out memory in.
PAGE = 2 * 2**20


class Driver:
    """Memory of a GPU: each request gets the lowest gap of addresses that is wide enough.

    Where a real driver's addresses are others, the allocator's choices differ only between blocks of one and the same size.

    Attributes:
        memory: bytes that can be had; None for no limit. used: bytes handed out.
    """

    def __init__(self, memory: int | None = None, start: int = 0):
        self.memory, self.used, self._start = memory, 0, start
        self._ranges: list[tuple[int, int]] = []  # (address, bytes), in order

    def take(self, size: int) -> int | None:
        """The address of `size` bytes; None where there are not as many."""
        whole = -(-size // PAGE) * PAGE
        return self.reserve(whole) if self.map(0, whole) else None

    def give(self, address: int, size: int) -> None:
        """Have back what `take` gave."""
        self.unmap(address, -(-size // PAGE) * PAGE)
        self.forget(address)

    def reserve(self, size: int) -> int:
        """The address of a range of `size` bytes with nothing behind it yet."""
        at, place = self._start, len(self._ranges)
        for number, (address, length) in enumerate(self._ranges):
            if at + size <= address:
                place = number
                break
            at = address + length
        self._ranges.insert(place, (at, size))
        return at

    def forget(self, address: int) -> None:
        """Have a range of addresses back."""
        place = next(i for i, (at, _) in enumerate(self._ranges) if at == address)
        del self._ranges[place]

    def map(self, address: int, size: int) -> bool:
        """Put memory behind `size` bytes of addresses; whether there is as much."""
        if self.memory is not None and self.used + size > self.memory:
            return False
        self.used += size
        return True

    def unmap(self, address: int, size: int) -> None:
        """Have the memory behind addresses back."""
        self.used -= size
