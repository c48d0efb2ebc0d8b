"""The allocator's rules one by one, each by a small example whose answer is worked out by hand from PyTorch's source."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from everybyte.allocator import Allocator, OutOfMemory, Request, Requests, Settings, play, settings

KIB, MIB = 2**10, 2**20


def actions(allocator):
    return [(action, size) for action, _, size in allocator.log]


def test_requests_are_rounded_and_come_from_two_pools():
    a = Allocator()
    first, second, third = a.malloc(1), a.malloc(MIB), a.malloc(MIB + 1)
    assert (a.requested, a.allocated, a.reserved) == (2 * MIB + 2, 512 + MIB + MIB + 512, 22 * MIB)
    assert second == first + 512 and third >= 2 * MIB
    assert actions(a) == [("segment_alloc", 2 * MIB), ("segment_alloc", 20 * MIB)]


@pytest.mark.parametrize(
    ("asked", "segment"),
    [
        (1, 2 * MIB),
        (MIB, 2 * MIB),
        (MIB + 1, 20 * MIB),
        (10 * MIB - 512, 20 * MIB),
        (10 * MIB, 10 * MIB),
        (21 * MIB, 22 * MIB),
    ],
)
def test_segments(asked, segment):
    a = Allocator()
    a.malloc(asked)
    assert a.reserved == segment


def test_a_rest_of_up_to_1_mib_stays_with_its_block_and_counts_as_allocated():
    a = Allocator()
    a.free(a.malloc(20 * MIB))
    a.malloc(19 * MIB)
    assert (a.requested, a.allocated) == (19 * MIB, 20 * MIB)
    a = Allocator()
    a.free(a.malloc(20 * MIB))
    a.malloc(19 * MIB - 512)
    assert a.allocated == 19 * MIB - 512


def test_best_fit_then_the_oldest_segment():
    a = Allocator()
    big, small, same = a.malloc(40 * MIB), a.malloc(22 * MIB), a.malloc(22 * MIB)
    for address in (same, big, small):
        a.free(address)
    assert a.malloc(21 * MIB + 512) == small and a.malloc(21 * MIB + 512) == same
    assert a.malloc(21 * MIB + 512) == big and a.reserved == 84 * MIB


def test_equal_blocks_go_by_the_age_of_their_segment_and_not_by_address():
    a = Allocator(memory=90 * MIB)
    first = a.malloc(30 * MIB)
    old = a.malloc(20 * MIB)
    a.free(first)
    a.empty_cache()
    young = a.malloc(20 * MIB)  # where the first one was, below the old one
    assert young < old
    a.free(old)
    a.free(young)
    assert a.malloc(20 * MIB) == old


def test_neighbors_become_one_again():
    a = Allocator()
    pieces = [a.malloc(5 * MIB) for _ in range(4)]
    assert a.reserved == 20 * MIB
    a.free(pieces[1])
    a.free(pieces[3])
    with pytest.raises(ValueError, match="no block is allocated"):
        a.free(pieces[1])
    assert a.find(6 * MIB) is None  # ten are free, in two pieces
    a.free(pieces[2])
    assert a.find(15 * MIB) == pieces[1]


def test_what_is_kept_is_given_back_before_the_memory_runs_out_unless_it_is_in_use_in_part():
    a = Allocator(memory=100 * MIB)
    whole, part = a.malloc(40 * MIB), a.malloc(40 * MIB)
    a.free(whole)
    a.free(part)
    a.malloc(2 * MIB)
    assert a.malloc(58 * MIB) is not None and a.retries == 1 and a.reserved == 98 * MIB
    with pytest.raises(OutOfMemory) as error:
        a.malloc(39 * MIB)
    assert error.value.segment == 40 * MIB and error.value.reserved - error.value.allocated == 38 * MIB
    assert a.retries == 2


def test_segments_that_grow_have_no_holes():
    a = Allocator("expandable_segments:True", memory=200 * MIB)
    pieces = [a.malloc(size * MIB) for size in (12, 30, 5)]
    assert a.reserved == 60 * MIB and pieces == sorted(pieces)
    assert pieces[1] == pieces[0] + 12 * MIB
    a.free(pieces[1])
    a.malloc(29 * MIB)
    assert a.reserved == 60 * MIB and a.allocated == 46 * MIB  # split to the last 512 bytes
    a.malloc(512)
    assert a.reserved == 62 * MIB


def test_pages_that_nobody_uses_come_back_from_the_middle():
    a = Allocator("expandable_segments:True", memory=200 * MIB)
    first, middle, last = a.malloc(30 * MIB), a.malloc(70 * MIB), a.malloc(40 * MIB)
    assert a.reserved == 140 * MIB
    a.free(middle)
    a.empty_cache()
    assert a.reserved == 80 * MIB  # pages 2 to 4 of 0 to 6: those at its ends are in use
    assert a.malloc(60 * MIB) == middle and a.reserved == 140 * MIB
    for address in (first, middle, last):
        a.free(address)
    a.empty_cache()
    assert a.reserved == 0 and not a.segments


def test_large_blocks_that_are_not_split():
    a = Allocator("max_split_size_mb:64", memory=300 * MIB)
    big = a.malloc(100 * MIB)
    a.free(big)
    assert a.find(30 * MIB) is None  # not for a small one
    assert a.find(79 * MIB) is None  # nor for one that is 20 MiB smaller or more
    assert a.find(81 * MIB) == big
    a.malloc(150 * MIB)
    a.malloc(70 * MIB)
    assert a.retries == 0 and actions(a)[-2:] == [("segment_free", 100 * MIB), ("segment_alloc", 70 * MIB)]
    with pytest.raises(OutOfMemory):
        a.malloc(100 * MIB)
    assert a.retries == 1


def test_a_block_that_waits_for_other_streams_serves_nobody():
    a = Allocator()
    address = a.malloc(30 * MIB)
    waiting = a.let_go(address)
    assert (a.allocated, a.requested) == (0, 30 * MIB)
    assert a.malloc(30 * MIB) != address
    a.complete(waiting)
    assert a.malloc(30 * MIB, stream=7) != address  # a stream has blocks of its own
    assert a.malloc(30 * MIB) == address


def test_a_share_of_the_gpu_and_collection_before_the_driver_is_asked():
    a = Allocator("garbage_collection_threshold:0.5,per_process_memory_fraction:0.5", memory=1000 * MIB)
    old = a.malloc(100 * MIB)
    a.free(old)
    for _ in range(5):
        a.free(a.malloc(40 * MIB))
    young = a.malloc(160 * MIB)
    a.free(young)
    a.malloc(200 * MIB)  # above 250 MiB reserved: what has been free the longest goes first
    assert ("segment_free", 100 * MIB) in actions(a)
    with pytest.raises(OutOfMemory):
        a.malloc(310 * MIB)


def test_refused_before_anything_is_tried():
    a = Allocator("throw_on_cudamalloc_oom:True", memory=900 * MIB, total=1000 * MIB)
    a.free(a.malloc(600 * MIB))
    with pytest.raises(OutOfMemory) as error:
        a.malloc(700 * MIB)
    assert error.value.rejected and a.retries == 0 and a.reserved == 600 * MIB


@pytest.mark.parametrize(
    ("text", "asked", "rounded"),
    [
        ("", 1200, 1536),
        ("roundup_power2_divisions:4", 1200, 1536),  # too small for four steps
        ("roundup_power2_divisions:4", 1200 * KIB, 1280 * KIB),
        ("roundup_power2_divisions:4", 1024 * KIB, 1024 * KIB),
        ("roundup_power2_divisions:[256:1,512:2,1024:4,>:8]", 300 * MIB, 300 * MIB),
        ("roundup_power2_divisions:[256:1,512:2,1024:4,>:8]", 520 * MIB, 768 * MIB),
        ("roundup_power2_divisions:[256:1,512:2,1024:4,>:8]", 1025 * MIB, 1280 * MIB),
        ("roundup_power2_divisions:[256:1,512:2,1024:4,>:8]", 2049 * MIB, 2304 * MIB),
    ],
)
def test_rounding(text, asked, rounded):
    assert settings(text).rounded(asked) == rounded


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("expandable_segment:True", "expandable_segments"),
        ("expandable_segments:true", "allowed: True, False"),
        ("max_split_size_mb:10", "max_split_size"),
        ("max_split_size_mb:a", "whole number"),
        ("roundup_power2_divisions:3", "power of two"),
        ("roundup_power2_divisions:[256:3]", "power of two"),
        ("roundup_power2_divisions:[256:1", "bracket"),
        ("garbage_collection_threshold:1", "above 0, below 1"),
        ("backend:cudaMallocAsync", "native"),
        ("large_segment_size_mb:10", "large_segment"),
        ("max_split_size_mb", "name:value"),
    ],
)
def test_what_pytorch_refuses_is_refused(text, message):
    with pytest.raises(ValueError, match=message):
        settings(text)


@pytest.mark.parametrize(
    "text",
    ["expandable_segments:True", "max_split_size_mb:128,large_segment_size_mb:40", "garbage_collection_threshold:0.6"],
)
def test_settings_say_themselves(text):
    assert settings(settings(text).text()) == settings(text) != Settings()


def test_settings_without_bytes_change_none():
    assert settings("pinned_use_background_threads:True, release_lock_on_cudamalloc:True") == Settings()


CONFIGURATIONS = st.sampled_from(["", "expandable_segments:True", "max_split_size_mb:32", "roundup_power2_divisions:4"])
REQUESTS = st.lists(st.tuples(st.integers(0, 3), st.integers(1, 60 * MIB), st.integers(0, 9)), max_size=60)


@given(CONFIGURATIONS, REQUESTS)
def test_no_two_blocks_share_a_byte_and_the_sums_hold(configuration, requests):
    a, live = Allocator(configuration, memory=400 * MIB), {}
    for what, size, which in requests:
        if what == 3 and live:
            a.free(address := list(live)[which % len(live)])
            del live[address]
            continue
        size = size if what else size % MIB + 1
        try:
            live[a.malloc(size)] = size
        except OutOfMemory:
            continue
    spans, allocated, mapped = [], 0, 0
    for block in a.segments.values():
        while block is not None:
            spans.append((block.address, block.size))
            mapped += block.size * block.mapped
            allocated += block.size * (block.state == "allocated")
            assert block.after is None or block.after.before is block
            block = block.after
    spans.sort()
    assert all(at + size <= following for (at, size), (following, _) in zip(spans, spans[1:], strict=False))
    assert (a.requested, a.allocated, a.reserved) == (sum(live.values()), allocated, mapped)
    assert a.requested <= a.allocated <= a.reserved <= 400 * MIB
    for address in live:
        a.free(address)
    a.empty_cache()
    assert a.reserved == a.driver.used == 0 and not a.segments


@given(
    st.sampled_from(["", "expandable_segments:True", "garbage_collection_threshold:0.6"]),
    st.lists(st.tuples(st.integers(1, 60 * 2**20), st.booleans()), min_size=1, max_size=25),
    st.booleans(),
)
def test_steps_that_begin_as_they_end_are_played_once_and_counted_each(configuration, sizes, clear):
    lasting = [key for key, (_, lasts) in enumerate(sizes) if lasts]  # until the next step
    step = [Request(key, 0) for key in lasting]
    step += [Request(key, size) for key, (size, _) in enumerate(sizes)]
    step += [Request(key, 0) for key in range(len(sizes)) if key not in lasting]
    memory = 4 * sum(size for size, _ in sizes) + 2**28
    many = play(Requests([], step, step), configuration, memory, steps=6, clear=clear)
    allocator, blocks, highest = Allocator(configuration, memory), {}, []
    for _ in range(6):
        most = allocator.reserved
        for key, size, _ in step:
            if size:
                blocks[key] = allocator.malloc(size)
                most = max(most, allocator.reserved)
            elif key in blocks:
                allocator.free(blocks.pop(key))
        highest.append(most)
        if clear:
            allocator.empty_cache()
    assert many.steps[1:] == highest and not many.failed
    if not clear:
        assert many.live[-1] == (allocator.requested, allocator.allocated, allocator.reserved)
    assert len(many.allocator.log) == len(allocator.log)  # of a cache that is given back, each step asks anew
