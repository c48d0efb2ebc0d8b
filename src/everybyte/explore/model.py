"""The explorer of a derivation: the parts of any model's peak, by batch, sequence and GPU."""

from .. import draw
from ..catalog import Gpu, gpus
from ..common import checks
from ..derivation import Derivation
from ..derivation.printing import at_the_peak
from .beside import said
from .controls import opens, shared, steps
from .explorer import Explorer
from .pictures import Printed, Stack

#: Letter -> the setup's name for it; name -> where its slider begins. Further letters begin near 224.
_NAMES, _USUAL = {"B": "batch", "S": "sequence"}, {"batch": 8, "sequence": 1024}
#: Sizes that the slider of a further letter may offer.
_SIZES = (
    *(2**k for k in range(14)), *(3 * 2**k for k in range(3, 10)), 28, 56, 112, 160, 224, 240, 299, 320, 336, 448, 518, 640, 896, 1280,
)  # fmt: skip


@opens()
def model(derivation, gpu: Gpu | None = None) -> Explorer:
    """The peak of a `Derivation` for every batch, sequence and further letter, computed in the browser from its formula.

    Args:
        derivation: from `everybyte.derive`. gpu: the one that it opens with.

    Raises:
        ValueError: for what is no derivation, or a GPU that is not in the catalog.
    """
    if not isinstance(derivation, Derivation):
        raise ValueError(f"explore.model: a {type(derivation).__name__}; allowed: what everybyte.derive returns")
    if gpu is not None:
        checks.one_of("explore.model", "gpu", gpu.name, gpus())
    controls = _sizes(derivation)
    shown = [c.name for c in controls]
    base = {"alone": said("model")["alone"]} | {
        name: 1 for letter, name in _NAMES.items() if letter not in derivation.letters
    }
    used = {c.part for c in derivation.columns if not c.host}
    parts = [(part, draw.part(part).label, _live(derivation, part)) for part in derivation.part_names if part in used]
    title = said("model")["title"].format(name=derivation.name)
    return Explorer(
        title, [*controls, shared("gpu", gpu and gpu.name)], Stack(parts), base=base, subject=[], also=shown
    )


def _names(derivation):
    """Letter -> its name in code."""
    return _NAMES | {letter: letter for letter in derivation.further}


def _sizes(derivation):
    """The sliders of batch, sequence and further letters that the formula has."""
    controls: list = []
    for letter in derivation.letters:
        name = _names(derivation)[letter]
        low, high = derivation.range(name)
        ranges = [case.ranges[letter] for case in derivation.cases]
        if letter in _NAMES:
            most = min(high, 512 if name == "batch" else 2**17)
            sizes = [2**k for k in range(18) if low <= 2**k <= most] or [low]
        else:
            sizes = sorted(n for n in _SIZES if any(n in r for r in ranges)) or ranges[0].some([], 1)
        near = _USUAL.get(name, 224)
        label = "sequence (tokens)" if name == "sequence" else name
        controls.append(steps(name, label, sizes, min(sizes, key=lambda n, near=near: abs(n - near))))
    return controls


def _live(derivation, part):
    """A quantity from a derivation's letters: the bytes of a part at the peak."""
    made = at_the_peak(derivation, lambda _, instant, whole: derivation.live(instant, part).text(whole))
    return Printed(draw.part(part).label, tuple(_names(derivation).values()), *made)
