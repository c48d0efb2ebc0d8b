"""PyTorch's caching allocator for CUDA as a readable program: which block serves a request, and what is reserved.

Source: PyTorch 2.13, `c10/cuda/CUDACachingAllocator.cpp`; each rule names its function there. Not included: memory pools of
CUDA graphs and of `torch.cuda.MemPool`, and the driver's own allocator (`backend:cudaMallocAsync`).
"""

from .blocks import ALLOCATED, FREE, WAITING, Block, Pool
from .driver import Driver
from .settings import ROUNDING, SMALL, SMALL_SEGMENT, Settings, settings

#: Requests to the driver, by the names of a snapshot: for memory, and to give it back.
TAKES, GIVES = ("segment_alloc", "segment_map"), ("segment_free", "segment_unmap")


class OutOfMemory(RuntimeError):
    """A request that could not be served.

    Attributes:
        requested: bytes of the request. segment: bytes requested from the driver, which PyTorch's message names.
        allocated, reserved: bytes after the allocator freed what it could. rejected: whether it was refused before that.
    """

    def __init__(self, requested, segment, allocated, reserved, rejected=False):
        self.requested, self.segment, self.rejected = requested, segment, rejected
        self.allocated, self.reserved = allocated, reserved
        super().__init__(
            f"out of memory: {segment:,} B asked of the driver for {requested:,} B, with {allocated:,} B allocated and "
            f"{reserved:,} B reserved"
        )


class Allocator:
    """One GPU's allocator. Other streams are taken to be done with a block as soon as it is freed.

    Args:
        configuration: `Settings`, or the text of `PYTORCH_ALLOC_CONF`.
        memory: the driver's bytes for this process; None for no limit.
        total: bytes of the GPU, of which `per_process_memory_fraction` is a share; by default `memory`.
        driver: gives the addresses; by default the lowest free ones.

    Attributes:
        requested, allocated, reserved: bytes asked for, as PyTorch counts them until other streams are done; in the blocks that serve
            them; with what is kept for later.
        retries: how often all that was kept was given back to serve a request. log: (action, address, bytes) of each request to
            the driver: `segment_alloc`, `segment_free`, `segment_map`, `segment_unmap`.
        segments: the first block of each, by the segment's address. live: allocated blocks, by address.
    """

    def __init__(
        self,
        configuration: Settings | str = "",
        memory: int | None = None,
        total: int | None = None,
        driver: Driver | None = None,
    ):
        self.settings = settings(configuration) if isinstance(configuration, str) else configuration
        self.driver = driver or Driver(memory)
        self.total = total if total is not None else memory
        self.requested = self.allocated = self.reserved = self.retries = 0
        self.log: list[tuple[str, int, int]] = []
        self.pools: dict[tuple[int, bool], Pool] = {}
        self.segments: dict[int, Block] = {}
        self.live: dict[int, Block] = {}
        self._searches = {True: 0, False: 0}
        self._serial = 0
        share = self.settings.per_process_memory_fraction
        self.allowed = None if share == 1 or self.total is None else int(share * self.total)
        if share < 1 and self.total is None:
            raise ValueError("Allocator.total: missing; allowed: the GPU's bytes, of which a fraction is allowed")

    # -- requests

    def malloc(self, size: int, stream: int = 0) -> int:
        """The address of a block of at least `size` bytes, for work of `stream`. Source: `malloc`.

        Raises:
            OutOfMemory: where the driver has no more memory, and the cache too little to free.
        """
        wanted = self.settings.rounded(size)
        pool = self.pool(stream, wanted <= SMALL)
        if self._collects:
            self._searches[pool.small] += 1
        block = self._best(pool, wanted)
        if block is not None:
            pool.remove(block)
        else:
            if self._collects:
                self._collect()
            block = self._from_driver(pool, wanted, size)
        if self.splits(block, wanted):
            pool.put(self._aged(block.cut(wanted)))
        self.hand_out(block, size)
        return block.address

    def hand_out(self, block: Block, size: int) -> None:
        """Use a block for a request of `size` bytes. Source: `alloc_found_block`."""
        block.state, block.requested = ALLOCATED, size
        self.live[block.address] = block
        self.requested += size
        self.allocated += block.size

    def free(self, address: int) -> None:
        """Free a block; it can serve again. Source: `free`.

        Raises:
            ValueError: where no allocated block begins there.
        """
        self.complete(self.let_go(address))

    def let_go(self, address: int) -> Block:
        """The first half of `free`: the block is no longer allocated, and not yet free, as long as other streams may use it."""
        block = self.live.pop(address, None)
        if block is None:
            raise ValueError(f"Allocator.free: no block is allocated at {address}; allowed: what malloc gave, once")
        self.allocated -= block.size
        block.state = WAITING
        return block

    def complete(self, block: Block) -> None:
        """The second half of `free`: the block can serve again, with its free neighbors. Source: `free_block`."""
        self.requested -= block.requested
        block.state, block.requested = FREE, 0
        self._merge(block)
        block.pool.put(self._aged(block))

    def empty_cache(self) -> None:
        """Return unused segments, and unused pages of growing ones, to the driver. Source: `emptyCache`."""
        for small in (False, True):
            for pool in [p for (_, s), p in sorted(self.pools.items()) if s is small]:
                self._release_blocks(pool)

    # -- free blocks

    def pool(self, stream: int, small: bool) -> Pool:
        """The free blocks of a stream, for small requests or for large ones. Source: `get_pool`."""
        pool = self.pools.get((stream, small))
        if pool is None:
            page = SMALL_SEGMENT if small else self.settings.large_segment
            pool = self.pools[stream, small] = Pool(stream, small, self.settings.expandable_segments, page)
        return pool

    def find(self, size: int, stream: int = 0) -> int | None:
        """The address at which a cached block would serve a request; None where the driver is needed."""
        wanted = self.settings.rounded(size)
        block = self._best(self.pool(stream, wanted <= SMALL), wanted)
        return None if block is None else block.address

    def _best(self, pool, wanted):
        """Source: `get_free_block`."""
        block = pool.best(wanted)
        if block is None:
            return None
        limit = self.settings.unsplit_from
        if wanted < limit <= block.size:
            return None  # a block that is not split serves no small request
        if wanted >= limit and block.size >= wanted + self.settings.non_split_rounding:
            return None
        return block

    def splits(self, block: Block, wanted: int) -> bool:
        """Whether a block is split for a request. Source: `should_split`."""
        rest = block.size - wanted
        if block.pool.small or block.pool.expandable:
            return rest >= ROUNDING
        return wanted < self.settings.unsplit_from and rest > SMALL

    def _aged(self, block):
        block.age = self._searches[block.pool.small]
        return block

    def _merge(self, block):
        """Merge with free neighbors, where both are mapped or both are not. Source: `try_merge_blocks`."""
        for neighbor in (block.before, block.after):
            if neighbor is not None and neighbor.state is FREE and neighbor.mapped is block.mapped:
                block.pool.remove(neighbor)
                first = neighbor is block.before
                block.take_over(neighbor)
                if first and neighbor.address in self.segments and block.before is None:
                    self.segments[block.address] = block

    # -- the driver

    @property
    def _collects(self):
        return self.allowed is not None and self.settings.garbage_collection_threshold > 0

    def _from_driver(self, pool, wanted, size):
        """A block of new memory, if necessary after the cache is freed. Source: `malloc`."""
        block = self._new(pool, wanted, size)
        if block is None and self._release_available(pool, wanted):
            block = self._new(pool, wanted, size)
        if block is None:
            self.empty_cache()
            self.retries += 1
            block = self._new(pool, wanted, size)
        if block is None:
            raise OutOfMemory(size, self.settings.segment(wanted), self.allocated, self.reserved)
        return block

    def _new(self, pool, wanted, size):
        """A block of new memory; None where there is none. Source: `alloc_block`."""
        segment = self.settings.segment(wanted)
        after = self.reserved + segment
        if self.allowed is not None and after > self.allowed:
            return None
        if self.settings.throw_on_cudamalloc_oom and self.total is not None and after > self.total:
            raise OutOfMemory(size, segment, self.allocated, self.reserved, rejected=True)
        if pool.expandable:
            return self._grow(pool, wanted)
        address = self.driver.take(segment)
        if address is None:
            return None
        self._asked("segment_alloc", address, segment)
        return self.segment(address, segment, pool)

    def segment(self, address: int, size: int, pool: Pool, mapped: bool = True) -> Block:
        """A new segment, as one block."""
        self._serial += 1
        block = self.segments[address] = Block(address, size, pool, self._serial, mapped)
        return block

    def _asked(self, action, address, size):
        self.reserved += size if action in TAKES else -size
        self.log.append((action, address, size))

    def _release(self, block):
        """Source: `release_block`."""
        self._asked("segment_free", block.address, block.size)
        block.pool.remove(block)
        self.driver.give(block.address, block.size)
        del self.segments[block.address]

    def _release_blocks(self, pool):
        """Source: `release_blocks`."""
        blocks = [pool.blocks[address] for _, _, address in pool.free]
        for block in blocks:
            if pool.expandable:
                self._unmap(block)
            elif not block.split:
                self._release(block)

    def _release_available(self, pool, wanted):
        """Where large blocks are not split: free one that is large enough, or several, the largest first.

        Source: `release_available_cached_blocks`.
        """
        limit = self.settings.max_split_size
        if limit is None or pool.expandable:
            return False
        wanted, released = max(wanted, limit), 0
        large = [pool.blocks[address] for size, _, address in pool.free if size >= limit]
        enough = next((block for block in large if block.size >= wanted), None)
        for block in [enough] if enough else reversed(large):
            if released >= wanted:
                break
            released += block.size
            self._release(block)
        return released >= wanted

    def _collect(self):
        """Free the large blocks that have been free the longest, down to the threshold, before a request to the driver.

        Source: `garbage_collect_cached_blocks`.
        """
        threshold = int(self.settings.garbage_collection_threshold * self.allowed)
        target, reclaimed = self.reserved - threshold, 0
        pools = [pool for (_, small), pool in sorted(self.pools.items()) if not small and not pool.expandable]
        while reclaimed < target:
            blocks = [pool.blocks[address] for pool in pools for *_, address in pool.free]
            ages = {block: self._searches[False] - block.age for block in blocks if not block.split}
            if not ages:
                return
            mean = sum(ages.values()) / len(ages)
            for block, age in ages.items():
                if age >= mean:
                    reclaimed += block.size
                    self._release(block)

    # -- segments that grow

    def _grow(self, pool, wanted):
        """A free block of at least `wanted` bytes, at the lowest address at which the segment can grow for it.

        Source: `try_allocate_expandable_block`.
        """
        block = self._growing(pool, wanted)
        if not block.mapped and not self._map(block, min(block.size, wanted)):
            return None
        while block.size < wanted:
            following = block.after
            if not self._map(following, min(wanted - block.size, following.size)):
                return None
            block = following  # it has taken over what was free before it
        pool.remove(block)
        return block

    def _growing(self, pool, wanted):
        """Source: `find_expandable_block`."""
        for (address,) in pool.unmapped:
            block = pool.blocks[address]
            if block.before is not None and block.before.state is FREE:
                block = block.before
            room, each = 0, block
            while room < wanted and each is not None and each.state is FREE:
                room, each = room + each.size, each.after
            if room >= wanted:
                return block
        total = self.total if self.total is not None else 2**47
        # More than the GPU has, as pages may be moved to the end.
        size = _multiple(total + total // 8, pool.page)
        block = self.segment(self.driver.reserve(size), size, pool, mapped=False)
        pool.put(block)
        return block

    def _map(self, block, size):
        """Map pages to the front of a block; return whether the driver had them. Source: `map_block`."""
        pool = block.pool
        size = _multiple(size, pool.page)
        if not self.driver.map(block.address, size):
            return False
        pool.remove(block)
        block.mapped = True
        if size < block.size:
            rest = block.cut(size)
            rest.mapped = False
            pool.put(rest)
        self._asked("segment_map", block.address, size)
        self._merge(block)
        pool.put(self._aged(block))
        return True

    def _unmap(self, block):
        """Unmap the pages that lie wholly within a free block. Source: `unmap_block`."""
        pool = block.pool
        first = block
        while first.before is not None:
            first = first.before
        start = first.address
        low = start + _multiple(block.address - start, pool.page)
        high = start + (block.end - start) // pool.page * pool.page
        if low >= high:
            return
        pool.remove(block)
        if low > block.address:
            rest = block.cut(low - block.address)
            pool.put(self._aged(block))
            block = rest
        if high < block.end:
            pool.put(self._aged(block.cut(high - block.address)))
        block.mapped = False
        self._asked("segment_unmap", low, high - low)
        self.driver.unmap(low, high - low)
        self._merge(block)
        pool.put(block)
        if not block.split:
            pool.remove(block)
            del self.segments[block.address]
            self.driver.forget(block.address)


def _multiple(size, unit):
    return -(-size // unit) * unit
