"""Exercises of chapter 17: from tensors to out of memory."""

from random import Random

from ...allocator import Allocator, OutOfMemory
from . import GIB, MIB, Case, Run, Setup, answers, model, program

#: The report of pytorch/pytorch#35901, in GiB.
CAPACITY, FREE, RESERVED, ALLOCATED = 23.65, 10.26, 12.53, 1.06
LLAMA = model("llama-3.2-1b")
JOB = Run(LLAMA, Setup(batch=1, sequence=4096, precision="bf16"))


def largest(settings="", memory=100):
    """The largest last tensor, in whole MiB, of the chapter's story: 60 MiB freed, 2 MiB kept."""
    return max(size for size in range(1, memory + 1) if _served(size, settings, memory))


def _served(size, settings, memory):
    allocator = Allocator(settings, memory=memory * MIB)
    allocator.free(allocator.malloc(60 * MIB))
    allocator.malloc(2 * MIB)
    try:
        allocator.malloc(size * MIB)
    except OutOfMemory:
        return False
    return True


def reserved(size):
    allocator = Allocator()
    allocator.malloc(size)
    return allocator.reserved


def sizes():
    draw = Random(17)
    fixed = [1, 512, MIB, MIB + 1, 10 * MIB - 1, 10 * MIB - 512, 10 * MIB, 10 * MIB + 1, 21 * MIB]
    for size in fixed + [draw.randint(1, 40 * MIB) for _ in range(12)]:
        yield Case(f"{size:,} B", (size,), reserved(size))


def by_rule(size, *, small=2 * MIB, shared=20 * MIB, page=2 * MIB, block=512):
    rounded = -(-size // block) * block
    if rounded <= MIB:
        return small
    if rounded < 10 * MIB and shared:
        return shared
    return -(-rounded // page) * page


def kept():
    return -JOB.falls({"outputs": "kept"})


ANSWERS = {
    "17.1": answers(
        round((CAPACITY - FREE - RESERVED) * GIB),
        allocated=round((CAPACITY - FREE - ALLOCATED) * GIB),
        cached=round((RESERVED - ALLOCATED) * GIB),
        free=round((CAPACITY - RESERVED) * GIB),
    ),
    "17.2": answers(largest() * MIB, driver=40 * MIB, whole=98 * MIB, again=60 * MIB),
    "17.3": answers(
        kept, fp32=4096 * LLAMA.vocabulary * 4, all=4096 * LLAMA.vocabulary * 12, hidden=4096 * LLAMA.width * 2
    ),
    "17.4": program(by_rule, sizes, small=20 * MIB, shared=0, page=512),
}
