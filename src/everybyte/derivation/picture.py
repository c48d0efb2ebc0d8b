"""The map of which instant is the peak, over batches and sequences, or two other letters."""

from .. import units
from ..common import checks
from ..step.amount import NAMES

_POINTS = 90
#: What is shown of a letter, where it goes so far.
_SHOWN = {"batch": (1, 256), "sequence": (16, 2**15)}
_FURTHER = (1, 2**12)


def regions(derivation, gpu=None, over: tuple[str, str] | None = None):
    """matplotlib's figure, with its text as `alt`; with a `gpu`, a line where its tensors alone would fill it."""
    import numpy

    from .. import draw

    across, up = axes(derivation, over)
    x, y = (steps(derivation, name, _POINTS) for name in (across, up))
    at = {across: numpy.array(x)[None, :], up: numpy.array(y)[:, None]}
    peak, where = derivation.peaks(at.pop("batch", None), at.pop("sequence", None), **at)
    names = [label(instant) for instant in derivation.instants]
    shown = []
    for name in sorted({names[i] for i in where.ravel()}, key=names.index):
        points = [(x[i], y[j]) for j, row in enumerate(where) for i, v in enumerate(row) if names[v] == name]
        middle = points[len(points) // 2]
        shown.append((_part(derivation.at(**dict(zip((across, up), middle, strict=True)))), name))
    seen = [name for _, name in shown]
    numbers = numpy.array([seen.index(name) if name in seen else 0 for name in names])[where]
    limits = (
        {} if gpu is None else {f"tensors alone fill {gpu.name}: {units.text(gpu.memory)}": (peak.tolist(), gpu.memory)}
    )
    title = f"{derivation.name}, {derivation.setup.precision}: where the peak is"
    return draw.regions(x, y, numbers.tolist(), shown, across, up, title, limits)


def axes(derivation, over: tuple[str, str] | None = None) -> tuple[str, str]:
    """The two letters of a map, across and up: as the setup calls them, or the reader's own.

    Raises:
        ValueError: letters that are not there, or not two.
    """
    names = [NAMES.get(letter, letter) for letter in derivation.letters]
    if len(names) < 2:
        raise ValueError(
            f"figure: {derivation.name} has no letter beside {names[0]}; allowed: two, such as batch and sequence"
        )
    if over is None:
        own = [name for name in names if name not in _SHOWN]
        across = "sequence" if "sequence" in names else own[0]
        return across, "batch" if "batch" in names else next(name for name in own if name != across)
    across, up = over
    for name in (across, up):
        checks.one_of("figure", "over", name, names)
    if across == up:
        raise ValueError(f"figure.over: {across!r} twice; allowed: two of {', '.join(names)}")
    return across, up


def steps(derivation, name: str, count: int) -> list[int]:
    """At most `count` sizes of a letter for which the formula holds, evenly spaced on a logarithmic scale."""
    (low, high), (least, most) = derivation.range(name), _SHOWN.get(name, _FURTHER)
    low, high = max(low, min(least, high)), min(high, max(most, low))
    ratio = (high / low) ** (1 / (count - 1)) if high > low else 1
    letter = {"batch": "B", "sequence": "S"}.get(name, name)
    ranges = [case.ranges[letter] for case in derivation.cases]
    found = set()
    for wanted in (min(high, max(low, round(low * ratio**k))) for k in range(count)):
        near = {wanted, *(wanted // r.by * r.by for r in ranges), *(-(-wanted // r.by) * r.by for r in ranges)}
        found |= set(sorted((n for n in near if any(n in r for r in ranges)), key=lambda n: abs(n - wanted))[:1])
    return sorted(found)


def label(instant) -> str:
    """Where in the step an instant is, and in which module."""
    owner = instant.owner.rpartition(".")[2] if instant.owner else ""
    same = owner in instant.at.split() or not owner
    return instant.at if same else f"{instant.at}, {instant.owner}"


def _part(point):
    """The part in whose color a region is drawn: at its middle the largest of those that grow with the step."""
    by_place = {"optimizer step": "optimizer", "loss backward": "loss", "loss forward": "loss"}
    grow = ("activations", "transient", "gradients", "casts", "unsharded")
    grown = {p: v for p, v in point.parts.items() if p in grow}
    return by_place.get(point.peak_at) or max(grown, key=grown.get)
