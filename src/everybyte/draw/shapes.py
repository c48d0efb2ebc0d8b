"""A schematic of one transformer block: each operation as wide as its tensors, with the shapes of its weights."""

from collections.abc import Sequence

from matplotlib.figure import Figure
from matplotlib.patches import Polygon

from ..catalog import Model
from ..catalog.weights import weights
from ..common import checks
from .figures import canvas
from .palette import CARD, INK, MUTED, part

#: Fields of a model that put other operations into its block, and what stands in the blocks that are drawn.
_PLAIN = {"block_norms": 2, "post_norm": False, "parallel_residual": False, "qk_norm": False, "sinks": False, "experts": 0, "latent_rank": 0}  # fmt: skip
_WIDEST, _TALL, _GAP = 7.2, 0.62, 0.42  # of a column, of an operation, between two
_ROOM = 3.2  # of an operation that has its words inside


def block_shapes(
    models: Sequence[Model],
    title: str = "One block: each operation as wide as the numbers of a token that enter and leave",
) -> Figure:
    """One block of each model, side by side, drawn from the catalog's list of weights.

    Args:
        models: one or two, dense, with a norm before attention and one before the MLP.

    Raises:
        ValueError: no model or more than two, or one whose block is of another form.
    """
    checks.whole("block_shapes", "models, how many", len(models), 1, 2)
    for m in models:
        for field, plain in _PLAIN.items():
            if getattr(m, field) != plain:
                raise ValueError(f"block_shapes.models: {m.name} has {field} {getattr(m, field)!r}; allowed: {plain!r}")
    fig, ax = canvas(title, height=7.0)
    for column, m in enumerate(models):
        _column(ax, m, column * (_WIDEST + 1.6))
    right = len(models) * (_WIDEST + 1.6) - 1.6
    ax.set(xlim=(-_WIDEST / 2 - 1.6, right - _WIDEST / 2 + 0.4), ylim=(-10 * (_TALL + _GAP) - 0.3, 1.3))
    ax.axis("off")
    said = "; ".join(
        f"{m.name}: "
        + ", ".join(f"{name} ({', '.join(words)}) to {out:,}" for name, _, _, out, words in _steps(m) if name != "add")
        for m in models
    )
    fig.alt = (
        f"Schematic, {title}: the operations from top to bottom, with the shapes of their weights, and how many numbers of each "
        f"token leave; what enters a branch is added to its result. {said}."
    )
    return fig


def _steps(m):
    """(operation, part of the palette, numbers a token in, out, shapes of its weights in words)."""
    found = [w for w in weights(m) if w.count and w.group in ("block", "dense")]

    def shapes(*names):
        letter = (lambda name: name.rpartition(".")[2] + ": ") if len(names) > 1 and not m.fused else lambda name: ""
        said = []
        for name in names:
            of_it = [w for w in found if w.name.rpartition(".")[0] == name]
            sizes = [" × ".join(f"{n:,}" for n in reversed(w.shape)) for w in of_it]
            said += [f"{letter(name)}{' + '.join(sizes)}"] if of_it else []
        return said

    queries, keys = m.heads * m.head_width, m.kv_heads * m.head_width
    gated = m.ffn_width * (1 + m.gated)
    grouped = f", {m.kv_heads} for k and v" if m.kv_heads != m.heads else ""
    activation = m.activation.partition("_")[0]
    return [
        ("norm", "norms", m.width, m.width, shapes("norm1")),
        ("q, k, v", "attention", m.width, queries + 2 * keys, shapes(*(f"attention.{x}" for x in ("qkv", "q", "k", "v")))),
        ("attention", None, queries + 2 * keys, queries, [f"{m.heads} heads of {m.head_width}{grouped}"]),
        ("output", "attention", queries, m.width, shapes("attention.out")),
        ("add", None, m.width, m.width, []),
        ("norm", "norms", m.width, m.width, shapes("norm2")),
        ("gate, up" if m.gated else "up", "mlp", m.width, gated, shapes("mlp.gate_up", "mlp.gate", "mlp.up")),
        (activation, None, gated, m.ffn_width, ["of the gate, times up"] if m.gated else ["of each number"]),
        ("down", "mlp", m.ffn_width, m.width, shapes("mlp.down")),
        ("add", None, m.width, m.width, []),
    ]  # fmt: skip


def _column(ax, m, middle):
    steps = _steps(m)
    scale = _WIDEST / max(max(a, b) for _, _, a, b, _ in steps)
    side = middle - _WIDEST / 2 - 0.35
    ax.text(middle, 1.0, f"{m.name}, H = {m.width:,}", ha="center", color=INK, fontsize=12, fontweight="bold")
    named = {"ha": "center", "va": "center", "fontsize": 8.5, "color": MUTED}
    clear = {"bbox": {"facecolor": CARD, "edgecolor": "none", "pad": 1.5}}
    ax.text(middle, 0.22, f"residual stream: B × S × {m.width:,}", **named, **clear)
    stream = 0.22
    for i, (name, look, taken, out, words) in enumerate(steps):
        top = -i * (_TALL + _GAP)
        bottom = top - _TALL
        if name == "add":
            half = (top + bottom) / 2
            ax.text(middle, half, "+", ha="center", va="center", color=INK, fontsize=15)
            ax.plot([middle, side, side], [stream, stream, half], color=INK, linewidth=1.2, zorder=0)
            ax.annotate("", (middle - 0.2, half), (side, half), arrowprops={"arrowstyle": "->", "color": INK, "linewidth": 1.2})  # fmt: skip
            stream = bottom - _GAP / 2
        else:
            corners = [(-taken, top), (taken, top), (out, bottom), (-out, bottom)]
            shape = [(middle + x * scale / 2, y) for x, y in corners]
            ax.add_patch(Polygon(shape, facecolor=part(look).color if look else CARD, edgecolor=INK, linewidth=1))
            inside = max(taken, out) * scale > _ROOM
            place = middle if inside else middle + max(taken, out) * scale / 2 + 0.12
            ax.text(place, (top + bottom) / 2, "\n".join(words), ha="center" if inside else "left", va="center", color=INK, fontsize=8.5)  # fmt: skip
            left = middle - _WIDEST / 2 - 0.45
            ax.text(left, (top + bottom) / 2, name, ha="right", va="center", color=INK, fontsize=9.5)
        ax.text(middle, bottom - _GAP / 2, f"B × S × {out:,}", **named, **clear)
