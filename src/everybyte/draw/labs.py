"""What a lab measured: what each switch costs and saves, and how the loss falls."""

from collections.abc import Mapping, Sequence

from matplotlib.figure import Figure

from .. import units
from .figures import amount, canvas
from .palette import BLUE, GREEN, INK, MUTED, ORANGE, PINK, VERMILION

#: A line's look, in order: color, dash and marker together, so that none stands on color alone.
_LOOKS = (
    (BLUE, "-", "o"), (VERMILION, "--", "s"), (GREEN, "-.", "^"), (ORANGE, ":", "D"), (PINK, (0, (5, 1)), "v"),
    (INK, (0, (1, 1)), "P"), (MUTED, (0, (3, 1, 1, 1)), "X"),
)  # fmt: skip


def costs(points: Mapping[str, tuple[float, float | None]], x_label: str, title: str = "") -> Figure:
    """Memory against what it costs: a dot for each way to run the step, lower and to the left is better.

    Args:
        points: name -> (bytes at the peak, the price on the x axis: milliseconds, or arithmetic beside another's). Where
            any price is None, the dots stand side by side, and the axis has no numbers: its label says why.

    Raises:
        ValueError: no points, or an amount below 0.
    """
    if not points or any(not (size >= 0 and (price is None or price >= 0)) for size, price in points.values()):
        raise ValueError(f"points: {dict(points)!r}; allowed: one or more, each (bytes, price), 0 or more")
    fig, ax = canvas(title, height=4.2)
    unpriced = any(price is None for _, price in points.values())
    for number, (name, (size, price)) in enumerate(points.items()):
        price = number if unpriced else price
        color, _, marker = _LOOKS[number % len(_LOOKS)]
        ax.plot(price, units.to(size, "GiB"), marker=marker, markersize=10, color=color, linestyle="none")
        ax.annotate(
            f"{name}\n{amount(size, 'GiB')}", (price, units.to(size, "GiB")), textcoords="offset points",
            xytext=(9, 5 if number % 2 else -17), fontsize=10, color=INK,
        )  # fmt: skip
    ax.margins(x=0.22)
    ax.set_ylim(0, 1.2 * units.to(max(size for size, _ in points.values()), "GiB") or 1)
    if unpriced:
        ax.set_xticks([])
    ax.set_xlabel(x_label)
    ax.set_ylabel("peak, GiB")
    said = "; ".join(
        f"{name} {amount(size, 'GiB')}" + ("" if price is None else f" at {price:,.4g}")
        for name, (size, price) in points.items()
    )
    fig.alt = f"Dots, {title}, peak memory over {x_label}: {said}."
    return fig


def losses(curves: Mapping[str, Sequence[float | None]], title: str = "") -> Figure:
    """The loss of every step, a line for each run; a step without a finite loss leaves a gap.

    Raises:
        ValueError: where no run has a finite loss.
    """
    if not any(loss is not None for curve in curves.values() for loss in curve):
        raise ValueError(f"curves: {dict(curves)!r} has no finite loss; allowed: name -> the loss of each step")
    fig, ax = canvas(title, height=4.0)
    for number, (name, curve) in enumerate(curves.items()):
        color, dash, marker = _LOOKS[number % len(_LOOKS)]
        values = [float("nan") if loss is None else loss for loss in curve]
        ax.plot(
            range(1, len(values) + 1), values, color=color, linestyle=dash, marker=marker, markersize=5,
            markevery=(number, max(1, len(values) // 8)), label=name, alpha=0.9,
        )  # fmt: skip
    ax.set_xlabel("step")
    ax.set_ylabel("loss, nats a token")
    legend = ax.legend(frameon=False, fontsize=10)
    for text in legend.get_texts():
        text.set_color(INK)
    steps = max(map(len, curves.values()))
    fig.alt = (
        f"Lines, {title}: the loss of {len(curves)} runs ({', '.join(curves)}) over {steps} steps on the same text."
    )
    return fig


def learned(curves: Mapping[str, Sequence[Sequence[tuple]]], x_label: str, title: str = "") -> Figure:
    """The loss on what was not trained on: a thin line for each seed, of one look for each way.

    Args:
        curves: name -> for each seed its points (steps or seconds, loss); a loss of None leaves a gap.

    Raises:
        ValueError: where there are no runs, or a run has no points.
    """
    if not curves or not all(runs and all(runs) for runs in curves.values()):
        raise ValueError(
            f"curves: {dict(curves)!r}; allowed: name -> for each seed (steps or seconds, loss), one or more"
        )
    fig, ax = canvas(title, height=4.0)
    for number, (name, runs) in enumerate(curves.items()):
        color, dash, marker = _LOOKS[number % len(_LOOKS)]
        for seed, points in enumerate(runs):
            x, y = zip(*[(at, float("nan") if loss is None else loss) for at, loss in points], strict=True)
            ax.plot(
                x, y, color=color, linestyle=dash, marker=marker, markersize=5, linewidth=1.3, alpha=0.85,
                label=None if seed else name,
            )  # fmt: skip
    ax.set_xlabel(x_label)
    ax.set_ylabel("validation loss, nats a byte")
    legend = ax.legend(frameon=False, fontsize=10)
    for text in legend.get_texts():
        text.set_color(INK)
    seeds = max(map(len, curves.values()))
    times = "one seed" if seeds == 1 else f"{seeds} seeds at most"
    fig.alt = f"Lines, {title}, over {x_label}: the validation loss of {len(curves)} ways ({', '.join(curves)}), {times} each."
    return fig
