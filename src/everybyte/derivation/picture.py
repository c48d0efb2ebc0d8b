"""The map of which instant is the peak, over batches and sequences."""

from collections.abc import Sequence

from .. import units

_POINTS = 90


def regions(derivation, sequences: Sequence[int] | None = None, batches: Sequence[int] | None = None, gpu=None):
    """matplotlib's figure, with its text as `alt`; with a `gpu`, a line where the peak passes its memory."""
    import numpy

    from .. import draw

    if derivation.letters != "BS":
        raise ValueError(
            f"figure: {derivation.name} has no {'sequence' if 'B' in derivation.letters else 'batch'}; allowed: both"
        )
    (least, most), (short, long) = derivation.range("batch"), derivation.range("sequence")
    x = list(sequences or _steps(max(short, 16), min(long, 2**15)))
    y = list(batches or _steps(least, min(most, 256)))
    peak, where = derivation.peaks(numpy.array(y)[:, None], numpy.array(x)[None, :])
    labels = [_label(derivation, instant) for instant in derivation.instants]
    seen = sorted({labels[i] for i in where.ravel()}, key=labels.index)
    shown = [(_part(derivation, labels, label, where, x, y), label) for label in seen]
    numbers = numpy.array([seen.index(label) if label in seen else 0 for label in labels])[where]
    limits = {} if gpu is None else {f"{gpu.name}: {units.text(gpu.memory)}": (peak.tolist(), gpu.memory)}
    title = f"{derivation.name}, {derivation.setup.precision}: where the peak is"
    return draw.regions(x, y, numbers.tolist(), shown, "sequence", "batch", title, limits)


def _steps(low, high):
    ratio = (high / low) ** (1 / (_POINTS - 1)) if high > low else 1
    return sorted({min(high, max(low, round(low * ratio**k))) for k in range(_POINTS)})


def _label(derivation, instant):
    """Where in the step, and in which module."""
    owner = instant.owner.rpartition(".")[2] if instant.owner else ""
    same = owner in instant.at.split() or not owner
    return instant.at if same else f"{instant.at}, {instant.owner}"


def _part(derivation, labels, label, where, x, y):
    """The part whose look a region has: of those that no other region has yet, the largest at its middle."""
    rows = [(j, i) for j, row in enumerate(where) for i, v in enumerate(row) if labels[v] == label]
    j, i = rows[len(rows) // 2]
    point = derivation.at(y[j], x[i])
    by_place = {"optimizer step": "optimizer", "loss backward": "loss", "loss forward": "loss"}
    if place := by_place.get(point.peak_at):
        return place
    changing = {p: v for p, v in point.parts.items() if p in ("activations", "gradients", "casts", "unsharded")}
    return max(changing, key=changing.get)
