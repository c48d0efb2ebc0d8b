"""Match a device with a GPU of the catalog by the name that its driver gives it."""

import re

from ..catalog import Gpu, gpus

#: The beginning of the device's name in a rehearsal, where PyTorch's CUDA code runs but no kernel.
REHEARSED = "rehearsed "
#: Words in names of devices that distinguish no two cards.
_VENDOR = {"nvidia", "amd", "tesla", "geforce", "instinct", "generation", "hbm2", "hbm2e", "hbm3", "hbm3e"}


def check(device: object) -> None:
    """Raise ValueError unless it names a device to measure on: `cpu`, `cuda`, `cuda:1`; or is None, the first GPU."""
    if device is not None and not (isinstance(device, str) and re.fullmatch(r"cpu|cuda(:\d{1,4})?", device, re.ASCII)):
        raise ValueError(
            f"measure.device: {device!r} is no device to measure on; allowed: 'cuda', 'cuda:1' and so on, 'cpu', or "
            "None for the first GPU"
        )


def recognize(name: str, memory: int) -> Gpu | None:
    """The catalog's GPU with that name and about that many bytes; None where there is none.

    Every word of the name must occur in the catalog's title, and the memory must be within 5 %. Of several, the nearest in memory.
    """
    words = _words(name)
    fits = [
        g for g in gpus().values() if words and words <= _words(g.title) and abs(g.memory - memory) <= g.memory / 20
    ]
    return min(fits, key=lambda g: abs(g.memory - memory), default=None)


def slug(name: str) -> str:
    """A device's name as the name of a file."""
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-") or "device"


def _words(name):
    joined = re.sub(r"(\d) gb\b", r"\1gb", re.sub(r"[^a-z0-9]+", " ", name.lower()))
    return set(joined.split()) - _VENDOR
