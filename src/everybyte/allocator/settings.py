"""The settings of `PYTORCH_ALLOC_CONF` that change the allocator's bytes, or whether a request is refused."""

from dataclasses import dataclass
from typing import Any

from ..common import checks
from ..units import UNITS

MIB = UNITS["MiB"]
#: Requests are rounded up to a multiple of the first. Then of the small pool: the largest request, and the segments' size.
ROUNDING, SMALL, SMALL_SEGMENT = 512, MIB, 2 * MIB
#: From the first on, a request of the large pool gets a segment of its own size, rounded up to a multiple of the second.
LARGE, LARGE_ROUNDING = 10 * MIB, 2 * MIB
#: The number of intervals, between powers of two from 1 MiB on, with rounding steps of their own.
INTERVALS = 16
#: Settings that change speed, the host's memory or the sharing between processes, and no byte on the GPU.
WITHOUT_BYTES = (
    "graph_capture_record_stream_reuse", "pinned_free_catch_all", "pinned_max_cached_size_mb", "pinned_max_round_threshold_mb",
    "pinned_num_register_threads", "pinned_reserve_segment_size_mb", "pinned_use_background_threads",
    "pinned_use_cuda_host_register", "pinned_use_hip_host_register", "release_lock_on_cudamalloc", "release_lock_on_hipmalloc",
)  # fmt: skip
_SIZES = {
    "max_split_size_mb": "max_split_size",
    "max_non_split_rounding_mb": "max_non_split_rounding",
    "large_segment_size_mb": "large_segment",
}
_SHARES = ("garbage_collection_threshold", "per_process_memory_fraction")
_FLAGS = ("expandable_segments", "throw_on_cudamalloc_oom")


@dataclass(frozen=True, kw_only=True)
class Settings:
    """How the allocator rounds, splits, grows and frees. The defaults are PyTorch's.

    Source: PyTorch 2.13, `c10/core/AllocatorConfig.h` and `c10/cuda/CUDAAllocatorConfig.h`.

    Attributes:
        expandable_segments: one growing segment for each pool and stream, in place of many.
        max_split_size: bytes; larger blocks are not split, and serve only requests of about their size. None: no limit.
        max_non_split_rounding: bytes that such a block may be larger than a request that it serves; by default a large segment.
        large_segment: bytes of a segment for requests of 1 to 10 MiB, and of an expandable large segment's pages.
        roundup_power2_divisions: steps in each interval between powers of two, from 1 MiB to 32 GiB on; 0: none.
        garbage_collection_threshold: share of the allowed memory above which unused blocks are freed first; 0: never.
        per_process_memory_fraction: share of the GPU that the process may reserve.
        throw_on_cudamalloc_oom: whether a request beyond that share is refused at once, before anything is freed.
    """

    expandable_segments: bool = False
    max_split_size: int | None = None
    max_non_split_rounding: int | None = None
    large_segment: int = 20 * MIB
    roundup_power2_divisions: tuple[int, ...] = (0,) * INTERVALS
    garbage_collection_threshold: float = 0.0
    per_process_memory_fraction: float = 1.0
    throw_on_cudamalloc_oom: bool = False

    def __post_init__(self):
        for name in _FLAGS:
            checks.flag("Settings", name, getattr(self, name))
        checks.whole("Settings", "large_segment", self.large_segment, LARGE + 1, 2**50)
        for name in ("max_split_size", "max_non_split_rounding"):
            if getattr(self, name) is not None:
                checks.whole("Settings", name, getattr(self, name), self.large_segment, 2**60)
        steps = self.roundup_power2_divisions
        whole = isinstance(steps, tuple) and len(steps) == INTERVALS
        if not whole or any(type(n) is not int or n < 0 or n & (n - 1) for n in steps):
            raise ValueError(
                f"Settings.roundup_power2_divisions: {checks.shown(steps)}; allowed: {INTERVALS} numbers, each 0 or a power of two"
            )
        checks.probability("Settings", "garbage_collection_threshold", self.garbage_collection_threshold)
        checks.probability("Settings", "per_process_memory_fraction", self.per_process_memory_fraction, one=True)

    def rounded(self, size: int) -> int:
        """Bytes of the block for a request of `size` bytes. Source: `round_size`."""
        steps, step = self.roundup_power2_divisions[min(max(size.bit_length() - 21, 0), INTERVALS - 1)], ROUNDING
        if steps > 1 and size > ROUNDING * steps:
            step = (1 << size.bit_length() - 1) // steps
        return max(-(-size // step), 1) * step

    def segment(self, size: int) -> int:
        """Bytes of a new segment for a block of `size` bytes. Source: `get_allocation_size`."""
        if size <= SMALL:
            return SMALL_SEGMENT
        return self.large_segment if size < LARGE else -(-size // LARGE_ROUNDING) * LARGE_ROUNDING

    @property
    def unsplit_from(self) -> int | float:
        """The least bytes of a block that is not split."""
        return float("inf") if self.max_split_size is None else self.max_split_size

    @property
    def non_split_rounding(self) -> int:
        """A block that is not split cannot serve a request that is smaller by this many bytes or more."""
        return self.large_segment if self.max_non_split_rounding is None else self.max_non_split_rounding

    def text(self) -> str:
        """The value of `PYTORCH_ALLOC_CONF`; empty for PyTorch's defaults."""
        own = {name: value for name, value in vars(self).items() if value != getattr(Settings, name, value)}
        said = [f"{name}:True" for name in _FLAGS if name in own]
        said += [f"{name}:{own[field] // MIB}" for name, field in _SIZES.items() if field in own]
        if any(self.roundup_power2_divisions):
            pairs = ",".join(f"{2**i}:{n}" for i, n in enumerate(self.roundup_power2_divisions))
            said.append(f"roundup_power2_divisions:[{pairs}]")
        return ",".join([*said, *(f"{name}:{own[name]:g}" for name in _SHARES if name in own)])


def settings(text: "Settings | str" = "") -> Settings:
    """Read a value of `PYTORCH_ALLOC_CONF`; settings are as they are.

    Raises:
        ValueError: for an unknown setting, a value that PyTorch refuses, and a `backend` with other rules.
    """
    if isinstance(text, Settings):
        return text
    if not isinstance(text, str):
        raise ValueError(
            f"PYTORCH_ALLOC_CONF: {checks.shown(text)}; allowed: text such as 'expandable_segments:True', or ''"
        )
    fields: dict[str, Any] = {}
    for name, value in _tokens(text).items():
        checks.one_of("PYTORCH_ALLOC_CONF", "setting", name, (*_READERS, *WITHOUT_BYTES))
        if name in _READERS:
            fields[_SIZES.get(name, name)] = _READERS[name](name, value)
    fields.pop("backend", None)
    return Settings(**fields)


def _tokens(text):
    """{name: value}; a value in brackets is a list of pairs."""
    found, rest = {}, "".join(text.split())
    while rest:
        name, colon, rest = rest.partition(":")
        if not colon or not name:
            raise ValueError(
                f"PYTORCH_ALLOC_CONF: {checks.shown(text)} ends in {checks.shown(name)}; allowed: name:value,name:value"
            )
        if rest.startswith("["):
            inside, bracket, rest = rest[1:].partition("]")
            if not bracket:
                raise ValueError(
                    f"PYTORCH_ALLOC_CONF.{checks.printable(name, checks.SHOWN)}: no bracket ends {checks.shown(inside)}; allowed: [256:1,512:2,>:4]"
                )
            found[name] = [tuple(pair.split(":")) for pair in inside.split(",")]
        else:
            end = rest.find(",")
            found[name], rest = (rest, "") if end < 0 else (rest[:end], rest[end:])
        if rest and not rest.startswith(","):
            raise ValueError(
                f"PYTORCH_ALLOC_CONF.{checks.printable(name, checks.SHOWN)}: {checks.shown(rest)} follows it; allowed: a comma"
            )
        rest = rest[1:]
    return found


def _backend(name, value):
    if value != "native":
        raise ValueError(
            f"PYTORCH_ALLOC_CONF.backend: {checks.shown(value)} is the driver's own allocator, whose rules are not public; allowed: native"
        )


def _whole(name, value):
    number = checks.natural(value) if isinstance(value, str) else None
    if number is None:
        raise ValueError(f"PYTORCH_ALLOC_CONF.{name}: {checks.shown(value)}; allowed: a whole number")
    return number


def _size(name, value):
    return _whole(name, value) * MIB


def _flag(name, value):
    checks.one_of("PYTORCH_ALLOC_CONF", name, value, ("True", "False"))
    return value == "True"


def _share(name, value):
    try:
        share = float(value)
    except (TypeError, ValueError):
        share = float("nan")
    ends = name == "per_process_memory_fraction"
    if not (0 <= share <= 1 if ends else 0 < share < 1):
        allowed = "0 to 1" if ends else "above 0, below 1"
        raise ValueError(f"PYTORCH_ALLOC_CONF.{name}: {checks.shown(value)}; allowed: {allowed}")
    return share


def _divisions(name, value):
    """The steps of each interval, from one number or boundaries in MB. Source: `parseRoundUpPower2Divisions`."""
    if isinstance(value, str):
        steps = _whole(name, value)
        if steps < 1 or steps & (steps - 1):
            raise ValueError(f"PYTORCH_ALLOC_CONF.{name}: {steps}; allowed: a power of two")
        return (steps,) * INTERVALS
    found, last = [0] * INTERVALS, None
    for pair in value:
        if len(pair) != 2:
            raise ValueError(f"PYTORCH_ALLOC_CONF.{name}: {checks.shown(':'.join(pair))}; allowed: boundary:steps")
        steps = _whole(name, pair[1])
        if pair[0] == ">":
            first = (last or 0) + 1
            found[first:] = [steps] * (INTERVALS - first)
            continue
        boundary = _whole(name, pair[0])
        if boundary < 1 or boundary & (boundary - 1):
            raise ValueError(f"PYTORCH_ALLOC_CONF.{name}: {boundary}; allowed: boundaries that are powers of two")
        index = min(boundary.bit_length() - 1, INTERVALS - 1)
        if last is None:
            found[:index] = [steps] * index
        found[index], last = steps, index
    return tuple(found)


#: Setting -> function that reads its value.
_READERS = {"backend": _backend, "roundup_power2_divisions": _divisions} | dict.fromkeys(_SIZES, _size)
_READERS |= dict.fromkeys(_SHARES, _share) | dict.fromkeys(_FLAGS, _flag)
