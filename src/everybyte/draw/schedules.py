"""A pipeline's schedule: what each GPU runs when, and what stands on it meanwhile."""

from collections.abc import Mapping, Sequence

from matplotlib.figure import Figure
from matplotlib.patches import Patch

from .. import units
from ..ask.schedules import Turn, flying
from .figures import canvas
from .palette import ACTIONS, INK, MUTED, ink_on, part


def schedule(
    gpus: Sequence[Sequence[Turn]], title: str = "", peaks: Mapping[int, int] | None = None, now: int | None = None
) -> Figure:
    """A row of boxes for each GPU, one for each action, with the micro-batch in it; under it how many are in flight.

    Args:
        gpus: what `pipelines.timed` gives. peaks: GPU -> bytes, written at the end of its row. now: the GPU that is marked.

    Raises:
        ValueError: without a GPU.
    """
    if not gpus:
        raise ValueError("schedule.gpus: none; allowed: what pipelines.timed gives")
    end = max(turn.end for turns in gpus for turn in turns)
    most = max(count for turns in gpus for _, count in flying(turns))
    fig, ax = canvas(title, height=1.3 + 0.75 * len(gpus))
    used = {turn.action.kind for turns in gpus for turn in turns}
    stages = len({turn.action.stage for turns in gpus for turn in turns})
    for row, turns in enumerate(gpus):
        boxes: dict[tuple[str, bool], list[tuple[float, float]]] = {}
        for turn in turns:
            second = stages > len(gpus) and turn.action.stage >= len(gpus)  # a GPU's further stages, paler
            boxes.setdefault((turn.action.kind, second), []).append((turn.start, turn.end - turn.start))
            if end <= 60:
                look = part(ACTIONS[turn.action.kind][0])
                box = {"boxstyle": "round,pad=0.1", "facecolor": look.color, "edgecolor": "none"}
                ax.text((turn.start + turn.end) / 2, row + 0.25, str(turn.action.batch), ha="center", va="center", fontsize=7,
                        color=ink_on(look.color), bbox=box)  # fmt: skip
        for (kind, second), spans in boxes.items():
            look = part(ACTIONS[kind][0])
            ax.broken_barh(spans, (row, 0.5), facecolor=look.color, edgecolor=INK, linewidth=0.6 if end <= 250 else 0.1,
                           hatch=look.hatch, alpha=0.55 if second else 1.0)  # fmt: skip
        when, counts = zip(*flying(turns), strict=True)
        heights = [row + 0.92 - 0.36 * count / most for count in counts]
        ax.fill_between(
            [*when, end], [*heights, heights[-1]], row + 0.92, step="post", color=MUTED, alpha=0.6, linewidth=0
        )
        said = f"{max(counts)} in flight" + (f"\n{units.text(peaks[row])}" if peaks else "")
        ax.text(end * 1.01, row + 0.45, said, va="center", fontsize=9, color=INK)
    ax.set_xlim(0, end * 1.16)
    ax.set_ylim(len(gpus), -0.1)
    labels = ["\N{BLACK RIGHT-POINTING TRIANGLE} " * (row == now) + f"GPU {row}" for row in range(len(gpus))]
    ax.set_yticks([row + 0.25 for row in range(len(gpus))], labels)
    ax.set_xlabel("time, in forwards of a stage", loc="left")
    ax.grid(visible=False)
    keys = [Patch(facecolor=part(name).color, hatch=part(name).hatch, edgecolor=INK, label=label)
            for kind, (name, label) in ACTIONS.items() if kind in used]  # fmt: skip
    keys.append(Patch(facecolor=MUTED, alpha=0.6, label="micro-batches in flight"))
    fig.legend(handles=keys, loc="lower right", ncols=len(keys), fontsize=9, frameon=False, handlelength=1.5,
               columnspacing=1.4)  # fmt: skip
    said = ", ".join(
        f"GPU {i} {max(count for _, count in flying(turns))} in flight"
        + (f" and {units.text(peaks[i])} at its peak" if peaks else "")
        for i, turns in enumerate(gpus)
    )
    fig.alt = f"Schedule, {title}: {len(gpus)} GPUs in time, {end:g} units long; at most: {said}."
    return fig
