"""Figures show what they are given, and say it."""

import sys
from types import SimpleNamespace

import pytest
from matplotlib.text import Text

import everybyte as eb
from everybyte import draw
from everybyte.answers.explanation import Explanation, Gap
from everybyte.ask import schedules
from everybyte.ask.mesh import Mesh

GIB = 2**30
ROWS = {
    "fp32": {"parameters": GIB, "gradients": GIB, "optimizer": 2 * GIB},
    "bf16": {"parameters": GIB // 2, "gradients": GIB // 2, "momentum": GIB // 2, "variance": GIB // 2, "loss": 0},
}
TRACE = SimpleNamespace(
    timeline=lambda: {"parameters": [GIB] * 5, "activations": [0, GIB, 2 * GIB, GIB, 0], "loss": [0, 0, GIB, 0, 0], "casts": [0] * 5},
    live=[GIB, 2 * GIB, 4 * GIB, 2 * GIB, GIB],
    marks={"rest": 0, "after_forward": 2, "after_backward": 3, "after_step": 4},
    peak=4 * GIB, peak_operation=2, peak_at="loss backward",
    parts={"parameters": GIB, "activations": 2 * GIB, "loss": GIB, "casts": 0},
)  # fmt: skip
FORMATS = {
    "fp16": {"smallest": -24, "normal": -14, "largest": 15.999},
    "bf16": {"smallest": -133, "normal": -126, "largest": 127.99},
}
X = [128, 256, 512, 1024]
CURVES = {"scores": ("activations", [x * x for x in X]), "flash": ("activations", [5.0 * x for x in X])}
MAP = [1, 2, 4], [64, 128], [[0, 0, 1], [0, 1, 1]], [("optimizer", "optimizer step"), ("loss", "loss backward")]
GAP = Explanation(
    3 * GIB, 5 * GIB, ("a budget", "a snapshot"), "reserved",
    [Gap("tensors", " ".join([f"only seen: train.py:{n}", *["forward"] * n]), "activations", n, GIB if n % 2 else -GIB) for n in range(1, 14)]
    + [Gap("tensors", "a rest", "other", 0, 2**20, False), Gap("reserved", "kept", "cached", 0, GIB - 2**20)],
)  # fmt: skip
RATIOS = {
    "one": [(1.0, "holds", "weights")] * 20 + [(0.03, "off", "activations and loss at the peak")],
    "two": [(12.5, "off", "a lower bound")],
}
FIGURES = {
    "stacked": lambda: draw.stacked(ROWS, title="GPT-2"),
    "stacked, capacity near": lambda: draw.stacked(ROWS, capacity=3 * GIB, title="GPT-2"),
    "stacked, capacity far": lambda: draw.stacked(ROWS, capacity=80 * GIB, title="GPT-2 " * 30, capacity_label="a GPU"),
    "stacked, nothing": lambda: draw.stacked({"none": {"parameters": 0}}, title="A model without weights"),
    "stacked, every part": lambda: draw.stacked({"all": dict.fromkeys(draw.PARTS, GIB)}),
    "shares": lambda: draw.shares({"embeddings": 39e6, "mlp": 56e6, "norms": 4e4}, title="gpt2"),
    "lines": lambda: draw.lines(X, CURVES, "sequence", "Attention", unit="MiB", mark=500),
    "lines, log": lambda: draw.lines(X, CURVES, "sequence", "Attention", unit="B", log=True, capacity=2**20),
    "ranges": lambda: draw.ranges(FORMATS, mark=-26),
    "ranges, unmarked": lambda: draw.ranges(FORMATS),
    "timeline": lambda: draw.timeline(TRACE, "GPT-2"),
    "timeline, an operation": lambda: draw.timeline(TRACE, "GPT-2", at=3),
    "timelines": lambda: draw.timelines({"predict": TRACE, "dry run": TRACE}, "GPT-2"),
    "regions": lambda: draw.regions(*MAP, "batch", "sequence", "GPT-2", limits={"6 GiB": ([[1, 2, 4], [4, 8, 16]], 6)}),
    "regions, one": lambda: draw.regions(
        *MAP[:2], [[1] * 3] * 2, MAP[3], "batch", "sequence", limits={"none": (MAP[2], 9)}
    ),
    "ratios": lambda: draw.ratios(RATIOS, ("holds", "off"), "articles"),
    "splits": lambda: draw.splits(3),
    "swap": draw.swap,
    "gathered": lambda: draw.gathered(
        eb.model("llama-3.1-8b").replace(layers=4), eb.Setup(batch=1, gpus=8, sharding="zero3")
    ),
    "switches": lambda: draw.switches({"none": 2**43, "checkpointing": 2**40}, {"80 GB": 80 * 10**9}),
    "exchange": lambda: draw.exchange([[9, 1, 2, 0], [4, 4, 4, 0]], 2),
    "exchange, eight GPUs": lambda: draw.exchange([[3000] * 8] * 8, 8),
    "squares": lambda: draw.squares([eb.model("gpt2"), eb.model("llama-3.2-1b")]),
    "saves": lambda: draw.saves([("norm", [("input", 4.0), ("sum", 0.1)]), ("q, k, v", []), ("add", [])], "one branch"),
    "chunks": lambda: draw.chunks(4),
    "tiles": lambda: draw.tiles(),
    "schedule": lambda: draw.schedule(schedules.timed(Mesh(pipeline=4), 8), "1F1B", dict.fromkeys(range(4), 9 * GIB)),
    "schedule, a V": lambda: draw.schedule(schedules.timed(Mesh(pipeline=4, schedule="zbv", stages=2), 24), "ZB-V"),
    "costs": lambda: draw.costs({"none": (8 * GIB, 1.0), "full": (GIB, 1.33)}, "arithmetic, none is 1", "GPT-2"),
    "costs, unpriced": lambda: draw.costs({"a": (GIB, None), "b": (2 * GIB, None)}, "milliseconds: not recorded"),
    "fronts": lambda: draw.fronts(
        [("TP 2", 1.0, 5 * GIB), ("TP 4", 1.5, 3 * GIB), ("slow", 2.0, 9 * GIB)], 6 * GIB, "GPT-2"
    ),
    "fronts, one": lambda: draw.fronts([("alone", 1.0, GIB)], 2 * GIB),
    "costs, one": lambda: draw.costs({"none": (0, 40)}, "milliseconds a step"),
    "losses": lambda: draw.losses({f"run {i}": [7.0, None, 6.0 - i] for i in range(9)}, "GPT-2"),
    "learned": lambda: draw.learned(
        {f"way {i}": [[(10, 3.0), (20, None), (30, 2.5)]] * 2 for i in range(8)}, "steps", "prose"
    ),
    "waterfall": lambda: draw.waterfall(GAP),
    "waterfall, one": lambda: draw.waterfall(
        Explanation(2 * GIB, GIB, ("a budget", "its own"), "tensors", GAP.rows[:1])
    ),
    "timeline, capacity": lambda: draw.timeline(TRACE, "GPT-2", capacity=8 * GIB),
}


def words(fig):
    return [t for t in fig.findobj(Text) if t.get_text() and t.get_visible()]


@pytest.mark.parametrize("name", FIGURES)
def test_every_figure_is_drawn_with_words_of_its_own_and_inside_its_page(name):
    fig = FIGURES[name]()
    assert draw.checked_alt(fig.alt) == fig.alt
    fig.draw_without_rendering()
    assert fig.get_facecolor()[3] == 1  # opaque: the card is what the text's contrast is measured on
    page = fig.bbox
    ticks = {t for ax in fig.axes for axis in (ax.xaxis, ax.yaxis) for t in axis.findobj(Text) if t is not axis.label}
    for text in set(words(fig)) - ticks:
        box = text.get_window_extent()
        assert page.x0 - 1 <= box.x0 and box.x1 <= page.x1 + 1 and page.y0 - 1 <= box.y0 and box.y1 <= page.y1 + 1, text


def test_bars_are_as_long_as_their_bytes():
    fig = draw.stacked(ROWS)
    widths = [bar.get_width() for bar in fig.axes[0].patches]
    assert sum(widths) == pytest.approx(6) and widths[:3] == [1, 1, 2]
    assert "fp32 4.00 GiB (weights 1.00 GiB, gradients 1.00 GiB, optimizer 2.00 GiB)" in fig.alt


@pytest.mark.parametrize(
    ("capacity", "said"),
    [(3 * GIB, "fp32 does not fit"), (GIB, "fp32, bf16 do not fit"), (4 * GIB, "all are below it")],
)
def test_what_does_not_fit_is_said(capacity, said):
    assert said in draw.stacked(ROWS, capacity=capacity).alt


def test_a_waterfall_goes_from_what_was_predicted_to_what_was_seen():
    bars = draw.waterfall(GAP).axes[0].patches
    assert [round(bar.get_x() + bar.get_width(), 3) for bar in bars][:3] == [3, 4, 3] and len(bars) == 14
    assert "Not explained: 1.00 MiB." in draw.waterfall(GAP).alt


def test_the_timeline_marks_the_peak():
    fig = draw.timeline(TRACE, "GPT-2")
    assert any("peak 4.00 GiB, loss backward" in t.get_text() for t in words(fig))
    assert "peak of 4.00 GiB is in loss backward (weights 1.00 GiB, activations 2.00 GiB, loss 1.00 GiB)" in fig.alt
    assert "after forward 4.00 GiB" in fig.alt


def test_timelines_stand_on_one_scale():
    low = SimpleNamespace(**vars(TRACE) | {"peak": GIB})
    one, other = draw.timelines({"predict": TRACE, "dry run": low}, "GPT-2").axes
    assert one.get_ylim() == other.get_ylim() and one.get_title("left") == "predict"
    assert "predict, 5 operations: the peak of 4.00 GiB is in loss backward" in draw.timelines({"predict": TRACE}).alt


def test_a_map_says_its_shares_and_corners():
    fig = draw.regions(*MAP, "batch", "sequence", "GPT-2")
    assert {"optimizer step", "loss backward"} <= {t.get_text() for t in words(fig)}
    assert "Map, GPT-2, 6 points: optimizer step at 3 (50.0%), loss backward at 3 (50.0%)." in fig.alt
    assert "optimizer step at batch 1 and sequence 64, loss backward at batch 4 and sequence 64" in fig.alt


def test_dots_stand_at_their_ratios_and_do_not_cover_each_other():
    fig = draw.ratios(RATIOS, ("holds", "off"), "articles")
    dots = [tuple(float(v[0]) for v in line.get_data()) for line in fig.axes[0].lines if line.get_marker() in "o^"]
    assert len(set(dots)) == len(dots) == 22 and sorted({x for x, _ in dots}) == [0.03, 1.0, 12.5]
    assert "one, 21 numbers, 20 of them within a tenth, from 0.03 times (activations and loss at the peak)" in fig.alt
    assert {"activations and loss at the peak", "a lower bound"} <= {" ".join(t.get_text().split()) for t in words(fig)}


def test_a_schedule_has_a_box_for_each_action():
    fig = draw.schedule(schedules.timed(Mesh(pipeline=2), 3), "1F1B")
    sizes = [path.get_extents().size.tolist() for c in fig.axes[0].collections for path in c.get_paths()]
    widths = [width for width, height in sizes if height == 0.5]
    assert sorted(widths) == [1] * 6 + [2] * 6  # a backward takes two forwards' time
    marked = draw.schedule(schedules.timed(Mesh(pipeline=2), 3), "1F1B", now=1)
    assert [label.get_text() for label in marked.axes[0].get_yticklabels()] == [
        "GPU 0",
        "\N{BLACK RIGHT-POINTING TRIANGLE} GPU 1",
    ]
    assert "GPU 0 2 in flight, GPU 1 1 in flight" in fig.alt


def test_ranges_say_where_the_number_falls():
    assert "fp16 from 2^-24 (normal from 2^-14) to 2^15.999, loses 2^-26" in draw.ranges(FORMATS, mark=-26).alt
    assert "holds with fewer bits 2^-20" in draw.ranges(FORMATS, mark=-20).alt
    assert "overflows at 2^17" in draw.ranges(FORMATS, mark=17).alt


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: draw.stacked({}), "rows: {} has no rows"),
        (lambda: draw.stacked({"a": {"weight": 1}}), "palette.part: 'weight'"),
        (lambda: draw.stacked({"a": {"parameters": -1}}), "-1 is not an amount"),
        (lambda: draw.stacked({"a": {"parameters": float("nan")}}), "nan is not an amount"),
        (lambda: draw.shares({"mlp": 0}), "sum to 0"),
        (lambda: draw.lines([1], {}), "x: .* is not ascending"),
        (lambda: draw.lines([1, 2], {"a": ("loss", [1])}), r"curves\['a'\]: 1 values"),
        (lambda: draw.timelines({}), "traces: {} has no timelines"),
        (lambda: draw.regions([1, 2], [1, 2], [[0, 0]], [("loss", "loss")]), "where: 1 rows do not go with 2 of y"),
        (lambda: draw.regions([1, 2], [1, 2], [[0, 0], [0, 1]], [("loss", "loss")]), r"where: \[0, 1\] name no region"),
        (lambda: draw.ratios({"a": []}, ("holds",)), "a row without dots"),
        (lambda: draw.ratios({"a": [(0, "holds", "w")]}, ("holds",)), r"rows\['a'\]: 0, 'holds'"),
        (lambda: draw.ratios({"a": [(1, "off", "w")]}, ("holds",)), "'off'; allowed: ratios above 0, kinds holds"),
        (lambda: draw.ratios({"a": [(1, "a", "w")]}, "abcde"), "kinds: 5 kinds; allowed: up to 4"),
        (lambda: draw.ranges({}), "formats: {} has no formats"),
        (lambda: draw.ranges({"a": {"smallest": 1, "normal": 0, "largest": 2}}), "does not ascend"),
    ],
)  # fmt: skip
def test_bad_input_is_named(call, said):
    with pytest.raises(ValueError, match=said):
        call()


def test_no_global_state(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.pyplot", None)  # an import of it would fail
    for make in FIGURES.values():
        make()


def test_a_legend_ends_within_its_figure():
    """Seven parts are more than fit in a row, and the last row is short."""
    fig = draw.timeline(eb.dry_run(eb.model("gpt2"), eb.Setup(precision="bf16-mixed")), "a step")
    fig.draw_without_rendering()
    assert len(fig.legends[0].get_texts()) == 7
    assert fig.legends[0].get_window_extent().x1 <= fig.bbox.x1


def test_a_schedules_legend_covers_no_label():
    fig = draw.schedule(
        schedules.timed(Mesh(pipeline=4, schedule="interleaved-zero-bubble", stages=1), 8), "Zero bubble"
    )
    fig.draw_without_rendering()
    assert not fig.legends[0].get_window_extent().overlaps(fig.axes[0].xaxis.label.get_window_extent())


def test_a_logarithmic_axis_writes_whole_numbers_out():
    fig = draw.lines([2**18, 2**20, 2**22], {"weights": ("parameters", [2**30, 2**32, 2**34])}, "tokens", log=True)
    fig.canvas.draw()
    said = [label.get_text() for label in fig.axes[0].get_xticklabels()]
    assert "1,048,576" in said and not any("e+" in text for text in said)


def test_logarithmic_axes_have_plain_numbers():
    fig = draw.lines([1, 2, 4, 8], {"weights": ("parameters", [15 * GIB, 8 * GIB, 4 * GIB, 2 * GIB])}, "GPUs", log=True)
    fig.draw_without_rendering()
    said = [text.get_text() for axis in (fig.axes[0].xaxis, fig.axes[0].yaxis) for text in axis.get_ticklabels()]
    assert {"1", "2", "4", "8"} <= set(said) and not any("$" in text for text in said)


def test_numbers_of_a_front_do_not_touch():
    """Two pairs of dots of nearly one place."""
    points = [
        ("a", 46.0, 133 * GIB),
        ("b", 46.1, 111 * GIB),
        ("c", 46.3, 104 * GIB),
        ("d", 56.35, 63 * GIB),
        ("e", 56.37, 56 * GIB),
    ]
    fig = draw.fronts(points, 78 * GIB, "Dots")
    fig.draw_without_rendering()
    boxes = [text.get_window_extent() for text in fig.axes[0].texts if text.get_text().isdigit()]
    assert len(boxes) == 5
    assert not any(a.overlaps(b) for i, a in enumerate(boxes) for b in boxes[:i])
