"""The time axis of a step: phases and the operations about the peak have widths of their own, so that what lasts shortly is seen."""

from itertools import accumulate, groupby

#: The least share of a phase, and of all phases together what is given away for it.
PHASE, ALL = 0.1, 0.4
#: Shares of the peak's operation and of each of its neighbors, and how many these are on each side.
PEAK, BESIDE, NEIGHBORS = 0.02, 0.008, 6
#: What is said of a moment: the first of these words that it has.
WORDS = {"loss": "loss", "optimizer": "step", "forward": "forward", "backward": "backward"}
#: Without operations that say their moment, phases end at marks.
ENDS = {"after_forward": "forward", "after_backward": "backward", "after_step": "step"}


def phases(trace) -> list[tuple[str, int, int]]:
    """(name, first place, end) of the phases of a step, one after another. trace: as `draw.timeline` takes it."""
    if (operations := getattr(trace, "operations", None)) is None:
        ends = {at: ENDS[name] for name, at in trace.marks.items() if name in ENDS}
        last = ends[max(ends)] if ends else "step"
        said = [next((ends[end] for end in sorted(ends) if end > at), last) for at in range(len(trace.live))]
    else:
        said = [_phase(moment) for _, moment, _ in operations]
        first = next((name for name in said if name), "step")
        said = list(accumulate(said, _turned, initial=first))[1:]
    runs = [(name, len(list(run))) for name, run in groupby(said)]
    starts = accumulate((count for _, count in runs), initial=0)
    return [(name, at, at + count) for (name, count), at in zip(runs, starts, strict=False)]


def _turned(before, name):
    """The phase of an operation after one of another. What is the loss's at the end of backward, a tied weight's, is backward's."""
    return before if not name or (before, name) == ("backward", "loss") else name


def _phase(moment):
    """Empty where a moment is a mark between phases."""
    return "" if moment.startswith("after_") else next((said for word, said in WORDS.items() if word in moment), "")


def edges(phases: list[tuple[str, int, int]], top: int) -> list[float]:
    """Where each place begins on an axis from 0 to 1, and where the last one ends. top: the place of the peak."""
    length, least = phases[-1][2], min(PHASE, ALL / len(phases))
    widths = [max(1 / length, least / (end - first)) for _, first, end in phases for _ in range(first, end)]
    for at in range(max(0, top - NEIGHBORS), min(length, top + NEIGHBORS + 1)):
        widths[at] = max(widths[at], PEAK if at == top else BESIDE)
    ends = list(accumulate(widths, initial=0.0))
    return [end / ends[-1] for end in ends]
